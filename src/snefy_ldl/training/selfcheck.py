"""The check at the end of every fit: the fitted law of some training rows against its own exact draws."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import stats

from snefy_ldl._internal.laws import draw_from, tensor_for, to_numpy
from snefy_ldl._internal.seen import SeenRows
from snefy_ldl._internal.types import Array, Index, Mask
from snefy_ldl.errors import SelfCheckWarning
from snefy_ldl.training.plan import Job
from snefy_ldl.training.state import FittedState, network_inputs

#: Rows of the check, evenly spaced over the training rows, and draws per row. Where every share needs an integral,
#: fewer rows, and of each row one label; draws of a law with zeros take longer, too.
ROWS, DRAWS = 4, 1000
INTEGRAL_ROWS, DRAWS_WITH_ZEROS = 2, 500
#: Components above which integrals are made for a single row, as they are where labels may be absent.
MANY_COMPONENTS = 4096
#: Further draws, which say where the cdf of a law with zeros is to be compared.
PILOT_DRAWS = 25
#: Probabilities whose quantiles are compared with the draws.
LEVELS = (0.05, 0.5, 0.95)
#: Chance that a sound law fails, over all comparisons of a fit together.
FALSE_ALARM = 1e-6
#: How far a draw may lie beyond a quantile and still be taken as equal: part of the quantile, and in shares.
RELATIVE, ABSOLUTE = 1e-6, 1e-9


def finish(state: FittedState, job: Job) -> FittedState:
    """What every fit ends with: fingerprints of its rows, and the self-check of its law.

    Args:
        state: What training returned.
        job: What the fit was given.

    Returns:
        The state with ``seen`` and ``self_check``, and the number of rows in its summary.
    """
    data, rows = job.given, job.rows
    seen = SeenRows.of(data.features, data.labels, rows)
    if state.seen is not None:
        seen = state.seen.joined(seen)
    some = rows[_spaced(len(rows), ROWS)]
    with torch.no_grad():
        law = state.net(*network_inputs(state.net, state.guides, state.inputs, data.features, some, state.effects))
        check = check_law(law, some, state.label_names)
    return replace(state, seen=seen, self_check=check, summary={**state.summary, "given_rows": len(rows)})


class Comparisons(NamedTuple):
    """Points at which a law is compared with its draws.

    Attributes:
        row: Places of the rows (c,).
        label: Numbers of the labels (c,).
        level: Probability of a share up to the point (c,).
        value: The points (c,).
        exact: Whether ``level`` is the cdf there (c,), and not the level of a quantile, which may lie on an atom.
    """

    row: Index
    label: Index
    level: Array
    value: Array
    exact: Mask


def check_law(law: Any, rows: Index, label_names: list[str]) -> dict[str, Any]:
    """Compare a law with its own draws.

    Draws come from a generator of their own: no other random stream changes. Where rows share their components and
    nothing is divided by a centre, quantiles of every label and :data:`ROWS` rows are compared; where each share needs
    an integral, those of one label of :data:`INTEGRAL_ROWS` rows or a single one. Quantiles of a law with zeros come
    from tables that take as long as a fit: there the probability of a zero is compared, and the cdf near the median.

    The number of draws up to a point is binomial; a comparison fails where that number has a chance of at most
    :data:`FALSE_ALARM` divided by twice the number of comparisons. Where a quantile lies on an atom, draws below it
    must not be too many, and draws up to it not too few.

    Args:
        law: Laws of b rows, with ``sample``, ``marginal`` and ``quantiles``.
        rows: Numbers of those rows, for the report.
        label_names: Of the L labels.

    Returns:
        ``passed``, ``rows``, ``draws``, ``levels``, ``comparisons``, ``false_alarm``, and ``failures``: for each failed
        comparison ``row``, ``label``, ``level``, ``quantile`` and ``observed``, the share of draws up to the quantile.
        Plain values, as JSON has them.

    Example:
        >>> from snefy_ldl.distributions import SnefySimplex
        >>> alpha = torch.tensor([[2.0, 3.0, 4.0]]).double()
        >>> law = SnefySimplex.from_mixture(torch.ones(1, 1).double(), alpha)
        >>> check_law(law, np.array([0]), ["bus", "car", "bike"])["passed"]
        True
    """
    if law.has_atoms or _needs_integrals(law):
        single = law.has_atoms or law.n_components > MANY_COMPONENTS
        some = _spaced(len(rows), 1 if single else INTEGRAL_ROWS)
        law, rows = law[some], rows[some]
    n = DRAWS_WITH_ZEROS if law.has_atoms else DRAWS
    draws = to_numpy(draw_from(law, n + (PILOT_DRAWS if law.has_atoms else 0), lambda: 0))  # (n, b, L)
    points = _cdfs(law, draws[n:]) if law.has_atoms else _quantiles(law)
    drawn = draws[:n, points.row, points.label]  # (n, c)
    slack = np.where(points.exact, 0.0, ABSOLUTE + RELATIVE * np.abs(points.value))
    up_to = (drawn <= points.value + slack).sum(0)
    below = np.where(points.exact, up_to, (drawn < points.value - slack).sum(0))
    tail = FALSE_ALARM / (2 * len(points.row))
    fewest, most = stats.binom.ppf(tail, n, points.level), stats.binom.isf(tail, n, points.level)
    # a level that is no probability gives NaN, which no comparison passes
    failed = ~((up_to >= fewest) & (below <= most) & np.isfinite(points.value))
    return {
        "passed": not bool(failed.any()),
        "rows": [int(row) for row in rows],
        "draws": n,
        "levels": np.unique(points.level[np.isfinite(points.level)]).tolist(),
        "comparisons": len(points.row),
        "false_alarm": FALSE_ALARM,
        "failures": [
            {
                "row": int(rows[points.row[c]]),
                "label": label_names[points.label[c]],
                "level": _number(points.level[c]),
                "quantile": _number(points.value[c]),
                "observed": float(up_to[c]) / n,
            }
            for c in np.flatnonzero(failed)
        ],
    }


def _needs_integrals(law: Any) -> bool:
    """Whether shares are divided by a centre, so that each quantile is found by integrals of its own."""
    return law.moves or law.centre is not None


def _number(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None


def _spaced(n: int, most: int) -> Index:
    """Up to so many of n places, evenly spaced."""
    return np.unique(np.linspace(0, n - 1, most).astype(np.intp)) if most > 1 else np.array([n // 2])


def _label_of(place: int, n_labels: int) -> int:
    """The label that is looked at in a row, another one in each."""
    return place * max(1, n_labels // INTEGRAL_ROWS) % n_labels


def _quantiles(law: Any) -> Comparisons:
    """Quantiles of every label where these cost little, of one label per row where they are found by integrals."""
    (n_rows,), (n_labels,), levels = law.batch_shape, law.event_shape, list(LEVELS)
    if not _needs_integrals(law):
        row, label = (axis.ravel() for axis in np.indices((n_rows, n_labels)))
        values = to_numpy(law.quantiles(levels)).reshape(-1, len(levels))
    else:
        row, label = np.arange(n_rows), np.array([_label_of(k, n_labels) for k in range(n_rows)])
        values = np.concatenate([to_numpy(law[[k]].marginal(int(label[k])).quantiles(levels)) for k in row])
    row, label = np.repeat(row, len(levels)), np.repeat(label, len(levels))
    return Comparisons(row, label, np.resize(LEVELS, len(row)), values.ravel(), np.zeros(len(row), dtype=bool))


def _cdfs(law: Any, pilot: Array) -> Comparisons:
    """Probability of a zero of every label, and the cdf of one label per row near its median in some draws."""
    (n_rows,), (n_labels,) = law.batch_shape, law.event_shape
    row, label = (axis.ravel() for axis in np.indices((n_rows, n_labels)))
    level, value = to_numpy(law.prob_zero()).ravel(), np.zeros(n_rows * n_labels)
    middle, chance, looked_at = np.full(n_rows, 0.5), np.empty(n_rows), np.empty(n_rows, dtype=np.intp)
    for k in range(n_rows):
        looked_at[k] = r = _label_of(k, n_labels)
        inside = pilot[(pilot[:, k, r] > 0.0) & (pilot[:, k, r] < 1.0), k, r]
        if len(inside):
            middle[k] = np.median(inside)
        chance[k] = float(law[[k]].marginal(r).cdf(tensor_for(law, middle[[k]])))
    return Comparisons(
        np.concatenate([row, np.arange(n_rows)]),
        np.concatenate([label, looked_at]),
        np.concatenate([level, chance]),
        np.concatenate([value, middle]),
        np.ones(len(row) + n_rows, dtype=bool),
    )


def warn_if_failed(state: FittedState) -> None:
    """Warn where the self-check of a fit failed.

    Args:
        state: A fitted state.
    """
    check = state.self_check
    if check is None or check["passed"]:
        return
    failures = check["failures"]
    rows = ", ".join(str(row) for row in sorted({failure["row"] for failure in failures}))
    labels = ", ".join(dict.fromkeys(failure["label"] for failure in failures))
    warnings.warn(
        f"self-check failed: the fitted law disagrees with its own draws at training rows {rows} (labels "
        f"{labels}), so intervals of this model may be wrong; please report it, with model.self_check_.",
        SelfCheckWarning,
        stacklevel=4,
    )
