"""A fitted model as numbers for the page: the network, the law's components, and the rows that are shown.

What the page can compute depends on the model, and is said in the export: ``law`` is "plain" (everything is computed in
the browser), "centred" or "zeros" (moments are; the laws of single shares come with the rows), and ``network`` is None
where features cannot be moved.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from snefy_ldl._types import Array
from snefy_ldl._version import __version__
from snefy_ldl.distributions.centred import CentredSnefy
from snefy_ldl.distributions.integrals import CentredMoments
from snefy_ldl.distributions.snefy import SnefySimplex
from snefy_ldl.distributions.zero_moments import PresenceMoments
from snefy_ldl.distributions.zeros import ZeroSnefy
from snefy_ldl.networks.backbones import StackedMLP
from snefy_ldl.serve.explorer.guides import export_guides, guide_numbers
from snefy_ldl.serve.explorer.pack import Pack
from snefy_ldl.serve.explorer.rows import PageRows, make_controls, past_columns, typical_features

__all__ = ["QUANTILE_LEVELS", "export_model"]

#: Numbers of trees' nodes that a page takes (some 4 bytes each).
MOST_TREE_NUMBERS = 1_500_000
#: Numbers of features that a page takes, all rows together; of more rows every so manyth is kept.
MOST_CELLS = 6_000_000
#: Numbers of tabulated quantiles, or of scales where the network cannot be taken along.
MOST_TABULATED = 1_500_000
#: Rows whose quantiles are worked out one by one, some seconds each; only the intervals' levels then.
MOST_SLOW_ROWS, INTERVAL_LEVELS = 20, (0.025, 0.05, 0.1, 0.25, 0.75, 0.9, 0.95, 0.975)
#: Numbers of tables of component moments; without room for products there are no correlations.
MOST_MOMENTS = 1_200_000
#: Levels of the quantiles that go with rows whose laws the browser cannot compute.
QUANTILE_LEVELS = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5),
    *(0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.975, 0.99, 0.995),
)


def export_model(model: Any, rows: PageRows | None, name: str = "model") -> tuple[dict[str, Any], str]:
    """Everything the page needs of a model and some rows.

    Args:
        model: fitted.
        rows: to be shown, or None for one typical row.
        name: of the model.

    Returns:
        What goes in as JSON, and the arrays as text.

    Raises:
        InputError: where the rows do not fit the model.
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
        "calibrated": [],
        "notes": notes,
    }
    if not isinstance(law, (SnefySimplex, ZeroSnefy)):
        _add_rows(law, content, pack, notes)
        return content, pack.text()
    content["network"], content["components"] = _network(model, pack, notes), _components(law, pack)
    if isinstance(law, (CentredSnefy, ZeroSnefy)):
        _add_tables(law, content, pack, notes)
    if content["network"] is None:
        n_kept = max(1, MOST_TABULATED // (law.flat_log_scale.shape[1] * law.flat_log_scale.shape[2]))
        content["scales"] = pack.add(law.flat_log_scale[:n_kept].cpu().numpy().astype(np.float64))
        if n_kept < len(law):
            notes.append(f"Only the first {n_kept:,} rows can be looked into; the table shows all.")
    return content, pack.text()


def _encoded(model: Any, table: Any) -> Array:
    features = model.columns_.transform(table) if model.columns_ is not None else np.asarray(table, dtype=np.float64)
    return np.asarray(features, dtype=np.float64)


def _thinned(model: Any, rows: PageRows, notes: list[str]) -> PageRows:
    width = model.columns_.n_out if model.columns_ is not None else int(model.n_features_in_)
    most = max(1, MOST_CELLS // width)
    if len(rows) <= most:
        return rows
    notes.append(f"Of {len(rows):,} rows {most:,}, evenly spread, are on this page.")
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
    """The way from features to the law's scales; None where the browser cannot go it."""
    net, guides = model.net_, model.guides_
    if not isinstance(net.backbone, StackedMLP):
        notes.append("The model has a network of its own making, so features cannot be moved on this page.")
        return None
    if guides is not None:
        numbers = guide_numbers(guides)
        if numbers is None:
            notes.append("The model is guided by a learner that runs in Python only, so features cannot be moved here.")
            return None
        if numbers > MOST_TREE_NUMBERS:
            notes.append("The model's trees are too large for a page, so features cannot be moved here.")
            return None
    body = net.backbone
    return {
        "inputs": model.inputs_,
        "guides": None if guides is None else export_guides(guides, pack),
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
    """Exponents, readouts and, for laws with zeros, the kernel; a background is the last neuron."""
    entry = {
        "exponents": pack.add_numbers(_plain(law.exponents)),
        "readout": pack.add_numbers(_plain(law.readout)),
        "root": pack.add(_plain(law.log_root_norm)),
    }
    if isinstance(law, ZeroSnefy):
        entry["kernel"] = pack.add(_plain(law.log_kernel))
    return entry


def _add_tables(law: Any, content: dict[str, Any], pack: Pack, notes: list[str]) -> None:
    """What a browser cannot work out by itself: moments of every component, quantiles of the first rows."""
    zeros = isinstance(law, ZeroSnefy)
    content["law"] = "zeros" if zeros else "centred"
    content["centre"] = law.centre.tolist()
    moments: Any = PresenceMoments(law.components) if zeros else CentredMoments(law.concentration, law.centre)
    tables = {"first": pack.add(_single(moments.first())), "second": pack.add(_single(moments.second()))}
    n_labels = law.n_labels
    if law.n_components * n_labels * (n_labels + 1) // 2 <= MOST_MOMENTS:
        tables["products"] = pack.add(_single(moments.products()))
    else:
        notes.append("Correlations are left out: the model has too many labels for them on a page.")
    if zeros:
        tables["zero"] = pack.add(_single(law.components.prob_all_absent()))
    content["tables"] = tables
    _add_quantiles(law, content, pack, notes, len(law))
    what = "Shares may be exactly zero" if zeros else "Labels are of very unequal size (the law has a centre)"
    notes.append(
        f"{what}: intervals and densities are shown for the rows of the table, not for moved features; votes, known "
        "shares and merged labels are not available on this page."
    )


def _add_rows(law: Any, content: dict[str, Any], pack: Pack, notes: list[str]) -> None:
    """A law whose components are each row's own: only the rows' answers can be taken along."""
    content["law"] = "rows"
    content["zero"] = pack.add(_single(law.prob_zero()))
    notes.append(
        "Each row of this model has components of its own, so this page shows the rows' answers as they were computed: "
        "features cannot be moved, and votes, known shares, merged labels, correlations and comparisons are not "
        "available."
    )
    _add_quantiles(law, content, pack, notes, MOST_SLOW_ROWS, INTERVAL_LEVELS)


def _add_quantiles(
    law: Any,
    content: dict[str, Any],
    pack: Pack,
    notes: list[str],
    most: int,
    levels: tuple[float, ...] = QUANTILE_LEVELS,
) -> None:
    kept = min(len(law), most, max(1, MOST_TABULATED // (law.n_labels * len(levels))))
    content["quantiles"] = pack.add(_single(law[:kept].quantiles(levels)))
    content["levels"] = list(levels)
    if kept < len(law):
        notes.append(f"Intervals come with the first {kept:,} rows.")


def _plain(tensor: Any) -> Any:
    return tensor.detach().cpu().numpy()


def _single(tensor: Any) -> Any:
    return tensor.detach().cpu().numpy().astype(np.float32)
