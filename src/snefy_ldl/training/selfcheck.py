"""The check at the end of every fit: the fitted law of some training rows against its own exact draws."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from scipy import stats

from snefy_ldl._internal.laws import draw_from, to_numpy
from snefy_ldl._internal.seen import SeenRows
from snefy_ldl._internal.types import Index
from snefy_ldl.errors import SelfCheckWarning
from snefy_ldl.training.model import FittedModel, network_inputs
from snefy_ldl.training.prepare import Task

#: Rows of the check, evenly spaced over the training rows, and draws per row.
ROWS, DRAWS = 4, 1000
#: Probabilities whose quantiles are compared with the draws.
LEVELS = (0.05, 0.5, 0.95)
#: Chance that a sound law fails, over all comparisons of a fit together.
FALSE_ALARM = 1e-6
#: How far a draw may lie beyond a quantile and still be taken as equal: part of the quantile, and in shares.
RELATIVE, ABSOLUTE = 1e-6, 1e-9


def finish(model: FittedModel, task: Task) -> FittedModel:
    """What every fit ends with: fingerprints of its rows, and the self-check of its distribution.

    Args:
        model: what training returned.
        task: what the fit was given.

    Returns:
        The model with ``seen`` and ``self_check``, and the number of rows in its summary.
    """
    data, rows = task.data, task.rows
    seen = SeenRows.of(data.features, data.labels, rows)
    if model.seen is not None:
        seen = model.seen.joined(seen)
    some = rows[np.unique(np.linspace(0, len(rows) - 1, ROWS).astype(np.intp))]
    with torch.no_grad():
        law = model.net(*network_inputs(model.net, model.guides, model.inputs, data.features, some, model.effects))
        check = check_law(law, some, model.label_names)
    summary = {**model.summary, "given_rows": len(rows)}
    return replace(model, seen=seen, self_check=check, summary=summary, shown=None)  # the data are the caller's


def check_law(law: Any, rows: Index, label_names: list[str]) -> dict[str, Any]:
    """Compare quantiles of a distribution with its own draws, for every row and label.

    Draws come from a generator of their own: no other random stream changes. The number of draws up to a quantile is
    binomial; a comparison fails where that number has a chance of at most :data:`FALSE_ALARM` divided by twice the
    number of comparisons.

    Args:
        law: Distributions of b rows, with ``sample`` and ``quantiles``.
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
    draws = to_numpy(draw_from(law, DRAWS, lambda: 0))[..., None]  # (n, b, L, 1)
    values, levels = to_numpy(law.quantiles(list(LEVELS))), np.array(LEVELS)  # (b, L, levels)
    slack = ABSOLUTE + RELATIVE * np.abs(values)
    up_to, below = (draws <= values + slack).sum(0), (draws < values - slack).sum(0)
    tail = FALSE_ALARM / (2 * values.size)
    fewest, most = stats.binom.ppf(tail, DRAWS, levels), stats.binom.isf(tail, DRAWS, levels)
    failed = ~((up_to >= fewest) & (below <= most) & np.isfinite(values))
    return {
        "passed": not bool(failed.any()),
        "rows": [int(row) for row in rows],
        "draws": DRAWS,
        "levels": list(LEVELS),
        "comparisons": values.size,
        "false_alarm": FALSE_ALARM,
        "failures": [
            {
                "row": int(rows[k]),
                "label": label_names[r],
                "level": LEVELS[q],
                "quantile": float(values[k, r, q]) if np.isfinite(values[k, r, q]) else None,
                "observed": float(up_to[k, r, q]) / DRAWS,
            }
            for k, r, q in np.argwhere(failed).tolist()
        ],
    }


def warn_if_failed(model: FittedModel) -> None:
    """Warn where the self-check of a fit failed.

    Args:
        model: a fitted model.
    """
    check = model.self_check
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
