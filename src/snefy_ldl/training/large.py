"""Fits on very many rows: what is to be chosen is chosen on a sample of them, and all rows train the one that won.

Two scalings, and perhaps two centres and two zero policies, would each see every row of a million at every epoch, only
for all but one to be thrown away. A few thousand validation rows tell them apart as surely.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from snefy_ldl._internal.limits import PREDICTION_ROWS
from snefy_ldl._internal.random import derive_seed
from snefy_ldl._internal.types import Index
from snefy_ldl._internal.validation import ZeroPolicy
from snefy_ldl.training.data import TrainingData
from snefy_ldl.training.moves import Moves
from snefy_ldl.training.plan import Job
from snefy_ldl.training.settings import Settings
from snefy_ldl.training.state import FittedState

#: Rows from which a fit is large.
LARGE_ROWS = 100_000
#: Rows and epochs by which a large fit chooses.
SAMPLE_ROWS, SAMPLE_EPOCHS = 20_000, 10
#: Nats a row by which guides must be better on the sample: less than that the network learns from the other rows, and
#: guides make every prediction slower.
GUIDE_GAIN = 0.1


def is_large(job: Job) -> bool:
    """Whether a job has very many rows, and something to choose that a sample of them can settle.

    Args:
        job: one model and its rows.

    Returns:
        Whether :func:`fit_large` is for it.
    """
    settings, data = job.settings, job.data
    if len(job.rows) < LARGE_ROWS or settings.backbone is not None or data.partial is not None:
        return False
    if not (settings.guides is None or isinstance(settings.guides, str)) or settings.validation_fraction <= 0:
        return False
    if settings.is_paper or job.one_pass or job.start is not None:
        return False
    tries_guides = settings.guides is not None and not (data.are_counts or data.has_gaps)
    return len(job.scalings) * len(job.centres) > 1 or job.may_model_zeros or tries_guides


def fit_large(job: Job, fit_small: Callable[[Job], FittedState]) -> FittedState:
    """Choose scaling, centre, zero policy and inputs on a sample of the rows, and train on all of them.

    Guides learn from the sample. Where they are kept, the network learns from the other rows, whose labels the guides
    have not seen.

    Args:
        job: for which :func:`is_large` holds.
        fit_small: trains a job, whatever there is to choose.

    Returns:
        The fitted state; its summary says by how many rows it was chosen (``"chosen_by"``).
    """
    settings, data = replace(job.settings, guides=None), job.data
    rng = np.random.default_rng(derive_seed(job.seed, 11))
    sample = np.sort(rng.choice(job.rows, SAMPLE_ROWS, replace=False))
    chosen = _choose(job, sample, fit_small)
    settled = replace(
        settings,
        standardize=False if chosen.scaling == "none" else chosen.scaling,
        centre=None if chosen.centre is None else "geometric" if isinstance(settings.centre, str) else settings.centre,
    )
    policy = None if data.are_counts else ZeroPolicy(chosen.zero_policy.mode, job.labels.policy.floor)
    rows = job.rows
    if chosen.guides is not None:
        data, rows = data.with_features(*_seen_by(chosen, data)), np.setdiff1d(rows, sample)
    if chosen.inputs == "moving":  # with the few neurons that such a law needs
        n_readouts, n_neurons = chosen.net.readout.shape[1:]
        settled = replace(settled, n_neurons=n_neurons, n_readouts=n_readouts)
    state = fit_small(Job(settled, data, rows, policy=policy, warn=False, seed=job.seed, settled=True))
    return replace(
        state,
        inputs=chosen.inputs,
        guides=chosen.guides,
        n_features=data.n_features,
        summary={**state.summary, "inputs": chosen.inputs, "chosen_by": len(sample)},
        candidates=chosen.candidates,
    )


def _choose(job: Job, sample: Index, fit_small: Callable[[Job], FittedState]) -> FittedState:
    """The state of a sample: without guides, or with them where they are better by far."""
    brief = replace(
        job.settings,
        guides=None,
        n_members=1,
        epochs=min(job.settings.epochs, SAMPLE_EPOCHS),
        verbose=0,
        checkpoint_dir=None,
        patience=None,
    )
    # the floor is that of all rows, or the two fits would not speak of the same labels
    policy = None if job.data.are_counts else job.labels.policy
    part = job.data.take(sample)

    def fit_sample(settings: Settings) -> FittedState:
        return fit_small(Job(settings, part, policy=policy, warn=False, seed=job.seed, compared=True))

    plain = fit_sample(brief)
    if job.settings.guides is None or plain.validation is None:
        return plain
    guided = fit_sample(replace(brief, guides=job.settings.guides))
    if guided.guides is None or guided.validation is None or guided.zero_policy.mode != plain.zero_policy.mode:
        return plain
    gain = float((guided.validation.log_prob - plain.validation.log_prob).double().mean())
    return guided if gain > GUIDE_GAIN else plain


def _seen_by(chosen: FittedState, data: TrainingData) -> tuple[Any, Moves | None]:
    """What the network sees of every row, float32: guides' predictions, a part of the rows at a time; and its moves."""
    assert chosen.guides is not None
    table, moves = None, []
    for start in range(0, data.n_rows, PREDICTION_ROWS):
        part = slice(start, min(start + PREDICTION_ROWS, data.n_rows))
        seen = chosen.guides.inputs(data.features[part], chosen.inputs)
        if table is None:
            table = np.empty((data.n_rows, seen.shape[1]), dtype=np.float32)
        table[part] = seen
        if chosen.guides.mover is not None:
            moves.append(chosen.guides.mover.moves(seen, data.features[part]))
    return table, Moves.joined(moves) if moves else None
