"""The explorer page of a fitted model: the network, the law's components and the rows as numbers, in one HTML document.

What the page can compute depends on the model. ``law`` is "plain" (everything is exact), "centred", "zeros" or "moving"
(moments are exact; the rest is integrals or draws that the browser makes, and exact intervals are exported for the
first rows). ``network`` is None if features cannot be changed on the page; each row's parameters are then exported as
``places``.
"""

from __future__ import annotations

import base64
import gzip
import html
import json
import warnings
from importlib import resources
from typing import Any

import numpy as np
import torch

from snefy_ldl._internal.progress import Progress
from snefy_ldl._internal.types import Array
from snefy_ldl._internal.version import __version__
from snefy_ldl.apps.serve.explorer.rows import PageRows, make_controls, past_columns, typical_features
from snefy_ldl.distributions.components import ComponentMoments
from snefy_ldl.errors import InputError
from snefy_ldl.learners.maxent import SABFGS
from snefy_ldl.learners.trees import TreesLDL
from snefy_ldl.networks.backbones import StackedMLP
from snefy_ldl.training.guides import Guides

#: Most numbers of trees' nodes on a page (about 4 bytes each).
MOST_TREE_NUMBERS = 1_500_000
#: Most feature cells on a page; larger tables are thinned evenly.
MOST_CELLS = 6_000_000
#: Most tabulated quantiles, or parameters of rows if the network cannot be exported.
MOST_TABULATED = 1_500_000
#: Rows with exact intervals where each takes a good part of a second.
MOST_SLOW_ROWS = 20
#: Most numbers in tables of component moments; beyond that correlations come from draws.
MOST_MOMENTS = 1_200_000
#: Pairs of neurons times labels up to which the browser itself computes intervals of a law with a centre.
EXACT_WORK = 30_000
#: Levels of the exported quantiles: the ends of all intervals that the page offers.
QUANTILE_LEVELS = (0.025, 0.05, 0.1, 0.25, 0.75, 0.9, 0.95, 0.975)


def export_model(
    model: Any, rows: PageRows | None, name: str = "model", intervals: Any = None, verbose: int = 0
) -> tuple[dict[str, Any], str]:
    """Everything that the page needs of a model and some rows.

    Args:
        model: fitted.
        rows: to be shown, or None for one typical row.
        name: of the model.
        intervals: its conformal intervals, which take encoded features, or None.
        verbose: 1 shows progress on stderr where rows take long.

    Returns:
        The JSON content, and the arrays as text.

    Raises:
        InputError: the rows do not fit the model.
    """
    pack, notes = Pack(), list[str]()
    if rows is None:
        encoded = typical_features(model)
        rows = PageRows(encoded)
    else:
        rows = _thinned(model, rows, notes)
        encoded = _encoded(model, rows.table)
    law = past_columns(model).predict_dist(encoded)
    mean, variance = law.mean_and_variance()
    content: dict[str, Any] = {
        "format": 1,
        "library": __version__,
        "name": name,
        "labels": [str(label) for label in model.label_names_],
        "law": "plain",
        "controls": make_controls(model, encoded),
        "rows": _rows(rows, encoded, pack),
        "network": None,
        "components": None,
        "mean": pack.add(mean.cpu().numpy().astype(np.float32)),
        "uncertainty": pack.add(variance.sum(-1).sqrt().cpu().numpy().astype(np.float32)),
        "calibrated": None,
        "notes": notes,
    }
    content["network"], content["components"] = _network(model, pack, notes), _components(law, pack)
    if law.parts.scale is not None or law.has_atoms:
        _add_law(law, content, pack, notes, verbose)
    if content["network"] is None:
        content["places"] = _places(law, pack, notes)
    if intervals is not None:
        most = MOST_SLOW_ROWS if content["law"] == "moving" else len(encoded)
        content["calibrated"] = _calibrated(intervals, encoded[:most], pack, notes)
    return content, pack.text()


def _calibrated(intervals: Any, encoded: Array, pack: Pack, notes: list[str]) -> dict[str, Any] | None:
    """Conformal intervals of the first rows at all levels that were calibrated."""
    levels = np.atleast_1d(intervals.confidence_level).tolist()
    kept = max(1, MOST_TABULATED // (2 * intervals.n_labels_ * len(levels)))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about intervals that span the whole range, which the page shows
            ends = intervals.predict_interval(encoded[:kept])
    except InputError:  # calibrated by groups or weights, which the table does not have
        notes.append("The model's calibrated intervals need groups or weights, so this page shows uncalibrated ones.")
        return None
    ends = ends if ends.ndim == 4 else ends[..., None]  # (N, L, 2, levels)
    return {"levels": levels, "ends": pack.add(ends.astype(np.float32))}


def _encoded(model: Any, table: Any) -> Array:
    features = model.columns_.transform(table) if model.columns_ is not None else np.asarray(table, dtype=np.float64)
    return np.asarray(features, dtype=np.float64)


def _thinned(model: Any, rows: PageRows, notes: list[str]) -> PageRows:
    own = getattr(model, "n_features_in_", rows.table.shape[1])  # a network of the user's own takes what it takes
    width = model.columns_.n_out if model.columns_ is not None else int(own)
    most = max(1, MOST_CELLS // width)
    if len(rows) <= most:
        return rows
    notes.append(f"This page shows {most:,} of {len(rows):,} rows, evenly spread.")
    return rows.take(np.linspace(0, len(rows) - 1, most).astype(int))


def _rows(rows: PageRows, encoded: Array, pack: Pack) -> dict[str, Any]:
    """Names of the rows, their features, and the cells of columns that are no numbers."""
    entry: dict[str, Any] = {"count": len(rows), "id": rows.id_name, "ids": rows.ids}
    entry["features"] = pack.add_numbers(encoded)
    texts: dict[str, Any] = {}
    if hasattr(rows.table, "columns"):
        for name in rows.table.columns:
            column = rows.table[name]
            if column.dtype.kind not in "fiub":
                cells = ["" if cell is None or cell != cell else str(cell) for cell in column]
                levels = sorted(set(cells))
                code = {level: k for k, level in enumerate(levels)}
                codes = np.array([code[cell] for cell in cells], dtype=np.int32)
                texts[str(name)] = {"levels": levels, "codes": pack.add(codes)}
    entry["texts"] = texts
    return entry


def _network(model: Any, pack: Pack, notes: list[str]) -> dict[str, Any] | None:
    """The network from features to the law's scales; None if the browser cannot run it."""
    model = model.without_groups() if hasattr(model, "without_groups") else model
    net, guides = model.net_, model.guides_
    if not isinstance(net.backbone, StackedMLP):
        notes.append("The model has a custom network, so features cannot be changed on this page.")
        return None
    if guides is not None:
        numbers = guide_numbers(guides)
        if numbers is None:
            notes.append("The model has a guide that runs in Python only, so features cannot be changed here.")
            return None
        if numbers > MOST_TREE_NUMBERS:
            notes.append("The model's trees are too large for a page, so features cannot be changed here.")
            return None
    body = net.backbone
    return {
        "inputs": model.inputs_,
        "guides": None if guides is None else export_guides(guides, pack),
        "mover": None,
        "centre": pack.add(_plain(body.scaler.centre)),
        "scale": pack.add(_plain(body.scaler.scale)),
        "limit": [float(limit) if np.isfinite(limit) else None for limit in body.scaler.limit.cpu().numpy()],
        "layers": [
            {"weight": pack.add(_plain(weight)), "bias": pack.add(_plain(bias[:, 0]))}
            for weight, bias in zip(body.weights, body.biases)
        ],
        "head": {"weight": pack.add(_plain(net.head_weight)), "bias": pack.add(_plain(net.head_bias[:, 0]))},
        "balanced": bool(net.balanced),
        "log_odds": [float(odds) if np.isfinite(odds) else None for odds in net.log_odds.cpu().numpy()],
        "background": bool(net.has_background),
    }


def _components(law: Any, pack: Pack) -> dict[str, Any]:
    """Exponents, readouts and what belongs to labels that may be absent; a background is the last neuron."""
    entry = {
        "exponents": pack.add_numbers(_plain(law.exponents)),
        "readout": pack.add_numbers(_plain(law.readout)),
    }
    if law.has_atoms:
        entry["presence"] = pack.add_numbers(_plain(law.presence))
        if not law.moves:  # otherwise each row has its own kernel
            entry["kernel"] = pack.add(_plain(law.family.log_kernel))
    if not law.moves or not law.has_atoms:
        entry["root"] = pack.add(_plain(law.family.log_root_norm))
    return entry


def _add_law(law: Any, content: dict[str, Any], pack: Pack, notes: list[str], verbose: int) -> None:
    """Add what a law needs that is not plain: its kind, its centre, tables, and exact intervals of the first rows."""
    zeros = law.has_atoms
    if law.moves:
        content["law"], kept = "moving", MOST_SLOW_ROWS
    else:
        content["law"], kept = "zeros" if zeros else "centred", len(law)
        even = torch.full((law.n_labels,), 1.0 / law.n_labels).double()
        content["centre"] = (even if law.centre is None else law.centre).tolist()
        if zeros:
            content["tables"] = _zero_tables(law, pack)
    kept = min(len(law), kept, max(1, MOST_TABULATED // (law.n_labels * len(QUANTILE_LEVELS))))
    content["quantiles"] = pack.add(_quantiles(law[:kept], verbose))
    content["levels"] = list(QUANTILE_LEVELS)
    what = {
        "moving": "The centre of this model's distribution depends on the features",
        "centred": "Labels are of very unequal size, so the distribution has a centre",
        "zeros": "Shares may be exactly zero",
    }[content["law"]]
    if zeros and content["law"] == "moving":
        what += ", and shares may be exactly zero"
    content["exact"] = not zeros and law.exponents[..., 0].numel() * law.exponents.shape[1] * law.n_labels <= EXACT_WORK
    rows = "of the table's rows" if kept == len(law) else f"of the first {kept:,} rows"
    which = (
        "intervals are exact. Densities"
        if content["exact"]
        else f"intervals {rows} are exact. Other intervals, densities"
    )
    notes.append(
        f"{what}: means, correlations and {which}, merged labels, votes and known shares come from several thousand "
        "draws made on this page, which shows how accurate they are."
    )


def _quantiles(law: Any, verbose: int) -> Any:
    """Quantiles (N, L, A) in float32; those of a law that moves cost up to a second per row, so progress is shown."""
    if not law.moves:
        return _single(law.quantiles(QUANTILE_LEVELS))
    step = torch.get_num_threads()  # as many rows at a time as can be computed at once
    with Progress("rows", len(law), show=bool(verbose)) as progress:
        parts = []
        for start in range(0, len(law), step):
            parts.append(_single(law[start : start + step].quantiles(QUANTILE_LEVELS)))
            progress.advance(len(parts[-1]))
    return np.concatenate(parts)


def _zero_tables(law: Any, pack: Pack) -> dict[str, Any]:
    """Moments and probabilities of zero under every component, shared by all rows."""
    parts = law.family.components.detached()
    log_centre = torch.zeros(law.n_labels).double() if law.log_centre is None else law.log_centre[0].cpu()
    moments = ComponentMoments(parts.alpha, log_centre, parts.log_odds)
    tables = {"first": pack.add(_single(moments.first())), "zero": pack.add(_single(parts.prob_all_absent()))}
    if law.n_components * law.n_labels * (law.n_labels + 1) // 2 <= MOST_MOMENTS:
        tables["products"] = pack.add(_single(moments.products()))
    return tables


def _places(law: Any, pack: Pack, notes: list[str]) -> dict[str, Any]:
    """Each row's parameters, for a page that cannot compute them from the features."""
    scale = law.flat_log_scale
    width = scale.shape[1] * scale.shape[2] + (2 * law.n_labels if law.moves else 0)
    kept = max(1, MOST_TABULATED // width)
    places = {"scales": pack.add(_plain(scale[:kept]).astype(np.float64))}
    if law.moves:
        places["centre"] = pack.add(_plain(law.log_centre[:kept]))
        if law.shift is not None:
            places["shift"] = pack.add(_plain(law.shift[:kept]).astype(np.float64))
    if kept < len(law):
        notes.append(f"Only the first {kept:,} rows can be opened; the table shows all rows.")
    return places


def _plain(tensor: Any) -> Any:
    return tensor.detach().cpu().numpy()


def _single(tensor: Any) -> Any:
    return tensor.detach().cpu().numpy().astype(np.float32)


def guide_numbers(guides: Guides) -> int | None:
    """Count the numbers that the guides need on a page.

    Args:
        guides: fitted.

    Returns:
        The number, or None if a guide is not one of the library's.
    """
    total = 0
    for learner in guides.learners:
        if type(learner) is SABFGS:
            total += learner.coef_.size
        elif type(learner) is TreesLDL:
            total += 2 * len(learner.feature_)
        else:
            return None
    return total


def export_guides(guides: Guides, pack: Pack) -> dict[str, Any]:
    """Export the guides.

    Args:
        guides: fitted.
        pack: takes the arrays.

    Returns:
        Floor and learners.
    """
    entries = [_linear(one, pack) if type(one) is SABFGS else _trees(one, pack) for one in guides.learners]
    return {"floor": guides.floor, "learners": entries}


def _linear(learner: Any, pack: Pack) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "kind": "linear",
        "coef": pack.add(learner.coef_),
        "intercept": pack.add(learner.intercept_),
    }
    if learner.standardize:
        entry["mean"], entry["inverse"] = pack.add(learner.feature_mean_), pack.add(learner.feature_inverse_scale_)
    return entry


def _trees(learner: Any, pack: Pack) -> dict[str, Any]:
    """Nodes in depth-first order, left before right: children need no numbers, leaves only their order.

    A threshold is rounded down to float32, on which features are compared: ``x > t`` is then the same for every x.
    Most leaves hold one training row, so each set of shares is stored once.
    """
    order, children = _walk(learner.children_, learner.roots_), learner.children_[:, 0]
    inner = children[order] >= 0
    feature = np.where(inner, learner.feature_[order] + 1, 0)  # 0 is a leaf
    exact = learner.threshold_[order][inner]
    single = exact.astype(np.float32)
    single = np.where(single.astype(np.float64) > exact, np.nextafter(single, np.float32(-np.inf)), single)
    shares, which = np.unique(learner.value_[order][~inner], axis=0, return_inverse=True)
    return {
        "kind": "trees",
        "trees": len(learner.roots_),
        "feature": pack.add(feature.astype(np.uint8 if feature.max() < 256 else np.int32)),
        "threshold": pack.add(single),
        "leaf": pack.add(which.reshape(-1).astype(np.uint16 if len(shares) < 65536 else np.int32)),
        "shares": pack.add(shares),
    }


def _walk(children: Any, roots: Any) -> Any:
    """Numbers of all nodes in depth-first order, tree after tree."""
    order: list[int] = []
    for root in roots:
        stack = [int(root)]
        while stack:
            node = stack.pop()
            order.append(node)
            left, right = children[node]
            if left >= 0:
                stack += [int(right), int(left)]
    return np.array(order)


#: Types that JavaScript has arrays for.
_KINDS = {"float32": "f4", "float64": "f8", "uint8": "u1", "uint16": "u2", "int32": "i4"}


class Pack:
    """Many arrays as one compressed text, which the browser unpacks.

    Example:
        >>> pack = Pack()
        >>> pack.add(np.zeros((2, 3), dtype=np.float32))
        {'kind': 'f4', 'shape': [2, 3], 'at': 0}
        >>> len(pack.text()) > 10
        True
    """

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, values: Any) -> dict[str, Any]:
        """Append an array.

        Args:
            values: any shape; integers become int32, or the smaller kind that they have.

        Returns:
            Its type, shape and position, for the script.
        """
        array = np.ascontiguousarray(values)
        if array.dtype.name not in _KINDS:
            array = array.astype(np.int32 if array.dtype.kind in "iu" else np.float64)
        content = array.astype(array.dtype.newbyteorder("<")).tobytes()
        entry = {"kind": _KINDS[array.dtype.name], "shape": list(array.shape), "at": self._size}
        padded = content + bytes(-len(content) % 8)  # typed arrays start at multiples of their numbers' size
        self._parts.append(padded)
        self._size += len(padded)
        return entry

    def add_numbers(self, values: Any) -> dict[str, Any]:
        """Append numbers as float32 if that loses nothing, else as float64.

        Args:
            values: any shape.

        Returns:
            Its type, shape and position.

        Example:
            >>> Pack().add_numbers([0.5, 1.0])["kind"], Pack().add_numbers([0.1])["kind"]
            ('f4', 'f8')
        """
        array = np.asarray(values, dtype=np.float64)
        with np.errstate(over="ignore"):
            single = array.astype(np.float32)
        same = np.array_equal(single.astype(np.float64), array, equal_nan=True)
        return self.add(single if same else array)

    def text(self) -> str:
        """All arrays, compressed by gzip and encoded in base64."""
        return base64.b64encode(gzip.compress(b"".join(self._parts), 6, mtime=0)).decode("ascii")


_SCRIPTS = (
    *("special.js", "law.js", "moments.js", "draws.js", "smooth.js", "phases.js", "voted.js", "moved.js"),
    *("network.js", "charts.js", "table.js", "app.js"),
)


def make_page(
    model: Any, rows: PageRows | None = None, name: str = "model", intervals: Any = None, verbose: int = 0
) -> str:
    """A self-contained HTML page that explores a model.

    Args:
        model: fitted.
        rows: to show; None for one typical row.
        name: of the model, for the title.
        intervals: the model's :class:`~snefy_ldl.conformal.ConformalIntervals` on encoded features, which the page
            shows for unchanged rows; None for none.
        verbose: 1 shows progress on stderr where rows take long.

    Returns:
        One HTML document, which loads nothing from other hosts.

    Raises:
        InputError: the rows do not fit the model, or it has a log-ratio density.

    Example:
        >>> from snefy_ldl import SnefyLDL
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> model = SnefyLDL(n_neurons=6, epochs=1, random_state=0).fit(city.X, city.D)
        >>> "<script src" in make_page(model, PageRows(city.X))
        False
    """
    if not hasattr(model, "net_"):
        raise InputError("the page cannot compute a log-ratio density in the browser; ask the model itself instead.")
    content, arrays = export_model(model, rows, name, intervals, verbose)
    folder = resources.files(__package__) / "page"
    page = (folder / "page.html").read_text(encoding="utf-8")
    script = "\n".join((folder / part).read_text(encoding="utf-8") for part in _SCRIPTS)
    # a label named "</script>" would otherwise end the script
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
