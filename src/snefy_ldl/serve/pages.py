"""The explorer's page of each served model, made once a version."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np

from snefy_ldl.errors import InputError
from snefy_ldl.serve.explorer import PageRows, make_page
from snefy_ldl.serve.store import ServedModel

__all__ = ["Pages"]


class Pages:
    """Pages by model and version; only the last of each model is kept.

    Args:
        data: table whose rows the pages show, or None.

    Example:
        >>> Pages(None).policy.startswith("default-src 'none'")
        True
    """

    #: What a browser lets the page do: run its own script and style, and nothing from elsewhere.
    policy = (
        "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; "
        "connect-src data:; base-uri 'none'; form-action 'none'"
    )

    def __init__(self, data: Path | None) -> None:
        self._data, self._lock = data, threading.Lock()
        self._made: dict[str, tuple[str, str]] = {}

    def get(self, served: ServedModel) -> str:
        """The page of a model as it is now.

        Args:
            served: the model.

        Returns:
            One HTML document.

        Raises:
            InputError: where the rows of the table do not fit the model, or its network is the user's own.
        """
        if served.is_own:
            raise InputError("its network is your own, and the page computes with the library's; ask /v1/predict.")
        with self._lock:
            version, page = self._made.get(served.name, ("", ""))
            if version != served.version:
                rows = None if self._data is None else PageRows.read(served.model, self._data)
                state = served.calibrated
                levels = [] if state is None else np.atleast_1d(state.confidence_level).tolist()
                page = make_page(served.model, rows, served.name, levels)
                self._made[served.name] = (served.version, page)
            return page
