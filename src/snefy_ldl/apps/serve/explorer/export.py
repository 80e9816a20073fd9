"""The explorer page of a fitted model: its rows and their distributions as numbers, in one HTML document.

A model of the squared family brings its network and components, from which the page computes exactly, changed features
included. Any other model brings a fixed number of draws per row, and its own means, intervals and probabilities of
zero: the page computes everything else from the draws.
"""

from __future__ import annotations

import base64
import gzip
import html
import json
import warnings
from functools import singledispatch
from importlib import resources
from typing import Any

import numpy as np
import torch

from snefy_ldl._internal.types import Array
from snefy_ldl._internal.version import __version__
from snefy_ldl.apps.serve.explorer.page_rows import PageRows, make_controls
from snefy_ldl.apps.table_rows import calibrated_ends, calibrated_levels, label_names
from snefy_ldl.datasets.columns import columns_of
from snefy_ldl.distributions import SimplexDistribution
from snefy_ldl.errors import InputError
from snefy_ldl.learners.maxent import SABFGS
from snefy_ldl.learners.trees import TreesLDL
from snefy_ldl.networks.backbones import StackedMLP
from snefy_ldl.prediction import innermost
from snefy_ldl.snefy import SnefyLDL

#: Most bytes of rows on a page; larger tables are thinned evenly.
MOST_BYTES = 24_000_000
#: Most numbers of trees' nodes on a page (about 4 bytes each).
MOST_TREE_NUMBERS = 1_500_000
#: Draws per row of a distribution that the page cannot compute, and the log share at which their code begins.
DRAWS, LOWEST_LOG = 512, -30.0
#: Levels whose quantiles come with these draws: the ends of all intervals that the page offers.
QUANTILE_LEVELS = (0.025, 0.05, 0.1, 0.25, 0.75, 0.9, 0.95, 0.975)


def export_model(model: Any, rows: PageRows, name: str = "model", intervals: Any = None) -> tuple[dict[str, Any], str]:
    """Everything that the page needs of a model and some rows.

    Args:
        model: fitted.
        rows: to be shown.
        name: of the model.
        intervals: its conformal intervals, or None.

    Returns:
        The JSON content, and the arrays as text.

    Raises:
        InputError: the rows do not fit the model.
    """
    model = innermost(model)
    pack, notes = Pack(), list[str]()
    square = export_square(model, pack, notes)
    levels = calibrated_levels(intervals)
    rows = _thinned(model, rows, square, len(levels), notes)
    encoded = np.asarray(
        rows.table if model.columns_ is None else model.columns_.transform(rows.table), dtype=np.float64
    )
    X = encoded if columns_of(model) is None and model.columns_ is None else rows.table
    with torch.no_grad():
        dist = model.predict_dist(X)
        mean, variance = dist.mean_and_variance()
        content: dict[str, Any] = {
            "format": 2,
            "library": __version__,
            "title": rows.title or name,
            "name": name,
            "labels": label_names(model),
            "controls": make_controls(model, encoded),
            "rows": _rows(rows, encoded, pack),
            "square": square,
            "draws": None,
            "mean": pack.add(_single(mean)),
            "uncertainty": pack.add(_single(variance.sum(-1).sqrt())),
            "calibrated": None,
            "notes": notes,
        }
        if square is None:
            content["draws"] = _draws(dist, pack)
            notes.append(
                "The means, intervals and chances of zero of a row are the model's. Everything else on this page is "
                f"estimated from the {DRAWS} draws per row that it holds."
            )
        elif square["network"] is None:
            square["scales"] = pack.add(dist.rows.square.log_scale.cpu().numpy().astype(np.float64))
    if intervals is not None:
        content["calibrated"] = _calibrated(intervals, X, levels, pack, notes)
    return content, pack.text()


def _calibrated(intervals: Any, X: Any, levels: list[float], pack: Pack, notes: list[str]) -> dict[str, Any] | None:
    """Conformal intervals of every row at all levels that were calibrated."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about intervals that span the whole range, which the page shows
            ends = calibrated_ends(intervals, X)
    except InputError:  # calibrated by groups or weights, which the table does not have
        notes.append("The model's calibrated intervals need groups or weights, so this page shows uncalibrated ones.")
        return None
    return {"levels": levels, "ends": pack.add(ends.astype(np.float32))}


def _thinned(model: Any, rows: PageRows, square: Any, n_levels: int, notes: list[str]) -> PageRows:
    """At most as many rows as there is room for, evenly spread over the table."""
    n_labels = model.n_labels_
    width = model.columns_.n_out if model.columns_ is not None else rows.table[:1].size
    per_row = 8 * width + 8 * n_labels * (1 + n_levels)
    if square is None:
        per_row += n_labels * (2 * DRAWS + 4 * len(QUANTILE_LEVELS))
    elif square["network"] is None:
        per_row += 8 * int(np.prod(square["root"]["shape"]))
    most = max(1, MOST_BYTES // per_row)
    if len(rows) <= most:
        return rows
    notes.append(f"This page shows {most:,} of {len(rows):,} rows, evenly spread.")
    return rows.take(np.linspace(0, len(rows) - 1, most).astype(int))


def _rows(rows: PageRows, encoded: Array, pack: Pack) -> dict[str, Any]:
    """Names of the rows, their features, and the cells of columns that are no numbers."""
    texts: dict[str, Any] = {}
    for name in getattr(rows.table, "columns", ()):
        column = rows.table[name]
        if column.dtype.kind not in "fiub":
            cells = ["" if cell is None or cell != cell else str(cell) for cell in column]
            levels, codes = np.unique(cells, return_inverse=True)
            texts[str(name)] = {"levels": levels.tolist(), "codes": pack.add(codes.astype(np.int32))}
    features = pack.add_numbers(encoded)
    return {"count": len(rows), "id": rows.id_name, "ids": rows.ids, "features": features, "texts": texts}


# -- distributions -----------------------------------------------------------------------------------------------------


def _draws(dist: SimplexDistribution, pack: Pack) -> dict[str, Any]:
    """Draws of every row as whole numbers on the scale of log shares, 0 for a share of zero; and exact answers."""
    logs = dist.draw_logs(DRAWS, torch.Generator().manual_seed(0)).transpose(0, 1).cpu().numpy()  # (N, S, L)
    codes = np.where(np.isneginf(logs), 0.0, 1.0 + np.rint(65534.0 * (1.0 - np.maximum(logs, LOWEST_LOG) / LOWEST_LOG)))
    zero = dist.prob_zero()
    return {
        "count": DRAWS,
        "lowest": LOWEST_LOG,
        "codes": pack.add(codes.astype(np.uint16)),
        "levels": list(QUANTILE_LEVELS),
        "quantiles": pack.add(_single(dist.quantiles(QUANTILE_LEVELS))),
        "zero": pack.add(_single(zero)) if bool((zero > 0.0).any()) else None,
    }


@singledispatch
def export_square(model: Any, pack: Pack, notes: list[str]) -> dict[str, Any] | None:
    """Export components and network of a model of the squared family.

    Args:
        model: fitted.
        pack: takes the arrays.
        notes: takes what the page cannot do.

    Returns:
        Exponents, readouts, normalisers and the network; None for other models, which the page shows by draws.
    """
    return None


@export_square.register(SnefyLDL)
def _(model: SnefyLDL, pack: Pack, notes: list[str]) -> dict[str, Any]:
    net = model.net_
    with torch.no_grad():  # a background is the last neuron
        family = net.distribution(torch.zeros(net.n_members, 1, net.raw_exponents.shape[1])).rows.family
    return {
        "exponents": pack.add_numbers(_plain(family.exponents)),
        "readout": pack.add_numbers(_plain(family.readout)),
        "root": pack.add(_plain(family.log_root_norm)),
        "network": _network(model, net, pack, notes),
    }


def _network(model: SnefyLDL, net: Any, pack: Pack, notes: list[str]) -> dict[str, Any] | None:
    """The network from features to the neurons' scales; None if the browser cannot run it."""
    learners = [] if model.guides_ is None else model.guides_.learners
    trees = [learner for learner in learners if type(learner) is TreesLDL]
    reason = None
    if not isinstance(net.backbone, StackedMLP):
        reason = "The model has a custom network"
    elif any(type(learner) not in (SABFGS, TreesLDL) for learner in learners):
        reason = "The model has a base learner that runs in Python only"
    elif sum(2 * len(learner.feature_) for learner in trees) > MOST_TREE_NUMBERS:
        reason = "The model's trees are too large for a page"
    if reason is not None:
        notes.append(f"{reason}, so features cannot be changed on this page.")
        return None
    body = net.backbone
    layers = [*zip(body.weights, body.biases), (net.head_weight, net.head_bias)]
    return {
        "inputs": model.inputs_,
        "floor": None if model.guides_ is None else model.guides_.floor,
        "guides": [_linear(one, pack) if type(one) is SABFGS else _trees(one, pack) for one in learners],
        "centre": pack.add(_plain(body.scaler.centre)),
        "scale": pack.add(_plain(body.scaler.scale)),
        "limit": [float(limit) if np.isfinite(limit) else None for limit in body.scaler.limit.cpu().numpy()],
        "layers": [{"weight": pack.add(_plain(weight)), "bias": pack.add(_plain(bias))} for weight, bias in layers],
        "balanced": bool(net.balanced),
        "log_odds": [float(odds) if np.isfinite(odds) else None for odds in net.log_odds.cpu().numpy()],
        "background": bool(net.has_background),
    }


def _plain(tensor: Any) -> Any:
    return tensor.detach().cpu().numpy()


def _single(tensor: Any) -> Any:
    return _plain(tensor).astype(np.float32)


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
    """The nodes of all trees; most leaves hold one training row, so each set of shares is stored once."""
    walk, (shares, which) = learner.walk(), learner.leaf_shares()
    leaf = np.full(len(walk.is_leaf), -1)
    leaf[walk.is_leaf] = which
    tables = {"child": walk.child, "feature": walk.feature, "threshold": walk.threshold, "leaf": leaf, "shares": shares}
    entry = {name: pack.add(values) for name, values in (*tables.items(), ("roots", learner.roots_))}
    return {"kind": "trees", **entry}


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


#: The page's parts in the order in which each uses those before it.
_SCRIPTS = ("special.js", "square.js", "draws.js", "network.js", "charts.js", "table.js", "app.js")


def make_page(model: Any, rows: PageRows, name: str = "model", intervals: Any = None) -> str:
    """A self-contained HTML page that explores a model.

    Args:
        model: fitted.
        rows: to show.
        name: of the model; the title if the rows have none.
        intervals: the model's :class:`~snefy_ldl.conformal.ConformalIntervals`, which the page shows for unchanged
            rows; None for none.

    Returns:
        One HTML document, which loads nothing from other hosts.

    Raises:
        InputError: the rows do not fit the model.

    Example:
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> model = SnefyLDL(n_neurons=6, epochs=1, random_state=0).fit(city.X, city.D)
        >>> "<script src" in make_page(model, PageRows(city.X))
        False
    """
    content, arrays = export_model(model, rows, name, intervals)
    folder = resources.files(__package__) / "page"
    page = (folder / "page.html").read_text(encoding="utf-8")
    parts = {
        "TITLE": html.escape(f"{content['title']} · explorer".encode("utf-8", "replace").decode()),
        "STYLE": (folder / "style.css").read_text(encoding="utf-8"),
        # a label named "</script>" would otherwise end the script
        "DATA": json.dumps(content, allow_nan=False).replace("<", "\\u003c"),
        "ARRAYS": arrays,
        "SCRIPT": "\n".join((folder / part).read_text(encoding="utf-8") for part in _SCRIPTS),
    }
    pieces = page.split("%%")
    return "".join(parts.get(piece, piece) if k % 2 else piece for k, piece in enumerate(pieces))
