"""The check at the end of every fit: quantiles of the fitted law against exact draws of some training rows."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from scipy import stats

from snefy_ldl._types import Array, Index
from snefy_ldl.errors import SelfCheckWarning
from snefy_ldl.inputs.objects import Objects
from snefy_ldl.learners.guides import Guides
from snefy_ldl.networks.backbones import CustomBackbone
from snefy_ldl.networks.net import SnefyNet
from snefy_ldl.prediction.laws import draw_from, to_numpy
from snefy_ldl.training.data import TrainingData
from snefy_ldl.training.seen import SeenRows
from snefy_ldl.training.state import FittedState, Inputs
from snefy_ldl.validation.rows import move_rows, take_rows

__all__ = ["check_law", "finish", "network_inputs", "warn_if_failed"]

#: Rows of the check, evenly spaced over the training rows, and draws per row.
ROWS, DRAWS = 4, 1000
#: Probabilities whose quantiles are compared with the draws, for every label.
LEVELS = (0.05, 0.5, 0.95)
#: Chance that a sound law fails, over all comparisons of a fit together.
FALSE_ALARM = 1e-6
#: How far a draw may lie beyond a quantile and still be taken as equal: part of the quantile, and in shares.
RELATIVE, ABSOLUTE = 1e-6, 1e-9


def finish(state: FittedState, data: TrainingData, rows: Index | None = None) -> FittedState:
    """What every fit ends with: fingerprints of its rows, and the self-check of its law.

    Args:
        state: What training returned.
        data: What the fit was given, before any guides.
        rows: The rows that the model learned from; all by default.

    Returns:
        The state with ``seen`` and ``self_check``, and the number of rows in its summary.

    Warns:
        SelfCheckWarning: The check failed.
    """
    index = np.arange(data.n_rows) if rows is None else rows
    seen = SeenRows.of(data.features, data.labels, index)
    if seen is not None and state.seen is not None:
        seen = state.seen.joined(seen)
    some = index[np.unique(np.linspace(0, len(index) - 1, ROWS).astype(np.intp))]
    with torch.no_grad():
        law = state.net(*network_inputs(state.net, state.guides, state.inputs, data.features, some))
        check = check_law(law, some, state.label_names)
    done = replace(state, seen=seen, self_check=check, summary={**state.summary, "given_rows": len(index)})
    warn_if_failed(done)
    return done


def check_law(law: Any, rows: Index, label_names: list[str]) -> dict[str, Any]:
    """Compare the quantiles of a law with its own draws.

    Draws come from a generator of their own: no other random stream changes. The number of draws up to a quantile is
    binomial; a comparison fails where that number has a chance of at most :data:`FALSE_ALARM` divided by twice the
    number of comparisons. A law may have an atom (a share of exactly zero): draws below the quantile must not be too
    many, and draws up to it not too few.

    Args:
        law: Laws of b rows, with ``quantiles`` and ``sample``.
        rows: Numbers of those rows, for the report.
        label_names: Of the L labels.

    Returns:
        ``passed``, ``rows``, ``draws``, ``levels``, ``comparisons``, ``false_alarm``, and ``failures``: for each failed
        comparison ``row``, ``label``, ``level``, ``quantile`` and ``observed``, the share of draws up to the quantile.
        Plain values, as JSON has them.

    Example:
        >>> from snefy_ldl.distributions import SnefySimplex
        >>> law = torch.distributions.Dirichlet(torch.tensor([[2.0, 3.0]]))
        >>> law.quantiles = lambda levels: torch.tensor([[[0.0976, 0.3857, 0.7514], [0.2486, 0.6143, 0.9024]]])
        >>> check_law(law, np.array([0]), ["no", "yes"])["passed"]
        True
    """
    draws = to_numpy(draw_from(law, DRAWS, lambda: 0))  # (n, b, L)
    quantiles = to_numpy(law.quantiles(list(LEVELS)))  # (b, L, A)
    slack = ABSOLUTE + RELATIVE * np.abs(quantiles)
    up_to = np.stack([(draws <= (quantiles + slack)[..., a]).sum(0) for a in range(len(LEVELS))], axis=-1)
    below = np.stack([(draws < (quantiles - slack)[..., a]).sum(0) for a in range(len(LEVELS))], axis=-1)
    tail = FALSE_ALARM / (2 * quantiles.size)
    levels = np.asarray(LEVELS)
    fewest, most = stats.binom.ppf(tail, DRAWS, levels), stats.binom.isf(tail, DRAWS, levels)
    failed = (up_to < fewest) | (below > most) | ~np.isfinite(quantiles)
    return {
        "passed": not bool(failed.any()),
        "rows": [int(row) for row in rows],
        "draws": DRAWS,
        "levels": list(LEVELS),
        "comparisons": int(quantiles.size),
        "false_alarm": FALSE_ALARM,
        "failures": [_failure(place, rows, label_names, quantiles, up_to) for place in np.argwhere(failed)],
    }


def _failure(place: Any, rows: Index, label_names: list[str], quantiles: Array, up_to: Any) -> dict[str, Any]:
    b, r, a = (int(i) for i in place)
    value = float(quantiles[b, r, a])
    return {
        "row": int(rows[b]),
        "label": label_names[r],
        "level": LEVELS[a],
        "quantile": value if np.isfinite(value) else None,
        "observed": float(up_to[b, r, a]) / DRAWS,
    }


def warn_if_failed(state: FittedState) -> None:
    """Warn where the self-check of a fit failed: once more where it ran in another process, whose warnings are lost.

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
        f"self-check failed: quantiles of the fitted law disagree with its own draws at training rows {rows} (labels "
        f"{labels}), so intervals of this model may be wrong; please report it, with model.self_check_.",
        SelfCheckWarning,
        stacklevel=4,
    )


def network_inputs(net: SnefyNet, guides: Guides | None, inputs: Inputs, features: Any, rows: Any) -> tuple[Any, ...]:
    """What the network takes of some rows: what it sees, and what moves each row's law where guides do that.

    Args:
        net: The fitted network.
        guides: The fitted guides, or None.
        inputs: What the network sees.
        features: Features of all rows, encoded.
        rows: A slice, or row numbers.

    Returns:
        The arguments of the network, on its device.
    """
    device = net.readout.device
    if isinstance(net.backbone, CustomBackbone):
        index = torch.arange(rows.start, rows.stop) if isinstance(rows, slice) else torch.as_tensor(rows)
        fetched = isinstance(features, Objects)
        return (move_rows(features.batch(index) if fetched else take_rows(features, index), device),)
    seen = part = features[rows]
    moves: tuple[Any, ...] = ()
    if guides is not None:
        seen = guides.inputs(part, inputs)
        if guides.mover is not None:
            moves = guides.mover.moves(seen, part).tensors(device)
    seen = seen.toarray() if sp.issparse(seen) else seen
    return torch.as_tensor(np.require(seen, np.float32, ["C", "W"]), device=device), *moves
