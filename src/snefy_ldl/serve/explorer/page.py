"""The page itself: one document that holds its script, its style and its numbers."""

from __future__ import annotations

import html
import json
from importlib import resources
from typing import Any

from snefy_ldl.serve.explorer.export import export_model
from snefy_ldl.serve.explorer.rows import PageRows

__all__ = ["make_page"]

_SCRIPTS = (
    *("special.js", "law.js", "moments.js", "draws.js", "smooth.js", "phases.js", "voted.js", "moved.js"),
    *("network.js", "charts.js", "table.js", "app.js"),
)


def make_page(model: Any, rows: PageRows | None = None, name: str = "model", intervals: Any = None) -> str:
    """A self-contained page that explores a model.

    Args:
        model: fitted.
        rows: to be shown; None for one typical row.
        name: of the model, for the title.
        intervals: the model's :class:`~snefy_ldl.conformal.ConformalIntervals`, which the page shows for the rows as
            they are; they take features as the model's columns make them. None for none.

    Returns:
        One HTML document; it loads nothing from anywhere.

    Raises:
        InputError: where the rows do not fit the model.

    Example:
        >>> from snefy_ldl import SnefyLDL
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> model = SnefyLDL(n_neurons=6, epochs=1, random_state=0).fit(city.X, city.D)
        >>> "<script src" in make_page(model, PageRows(city.X))
        False
    """
    content, arrays = export_model(model, rows, name, intervals)
    folder = resources.files(__package__) / "page"
    page = (folder / "page.html").read_text(encoding="utf-8")
    script = "\n".join((folder / part).read_text(encoding="utf-8") for part in _SCRIPTS)
    # "<" would let a label named </script> end the script it stands in
    data = json.dumps(content, allow_nan=False).replace("<", "\\u003c")
    parts = {
        "TITLE": html.escape(f"{name} · explorer".encode("utf-8", "replace").decode()),
        "STYLE": (folder / "style.css").read_text(encoding="utf-8"),
        "DATA": data,
        "ARRAYS": arrays,
        "SCRIPT": script,
    }
    pieces = page.split("%%")
    return "".join(parts.get(piece, piece) if k % 2 else piece for k, piece in enumerate(pieces))
