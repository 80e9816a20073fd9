"""Fits on very many rows: what is to be chosen is chosen on a sample of them, and all rows train the one that won.

Two scalings, and perhaps two centres and two zero policies, would each see every row of a million at every epoch, only
for all but one to be thrown away. A few thousand validation rows tell them apart as surely.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from snefy_ldl._random import derive_seed
from snefy_ldl.training.plan import Job
from snefy_ldl.training.state import FittedState
from snefy_ldl.validation import ZeroPolicy

#: Rows from which a fit is large. Guides, which learn from 20,000 rows at most, are then tried only if the user asks.
LARGE_ROWS = 100_000
#: Rows and epochs by which a large fit chooses.
SAMPLE_ROWS, SAMPLE_EPOCHS = 20_000, 10


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
    return len(job.scalings) * len(job.centres) > 1 or job.may_model_zeros


def fit_large(job: Job, fit_small: Callable[[Job], FittedState]) -> FittedState:
    """Choose scaling, centre and zero policy on a sample of the rows, and train on all of them.

    Args:
        job: for which :func:`is_large` holds.
        fit_small: trains a job, whatever there is to choose.

    Returns:
        The fitted state; its summary says by how many rows it was chosen (``"chosen_by"``).
    """
    settings = replace(job.settings, guides=None)
    rng = np.random.default_rng(derive_seed(job.seed, 11))
    sample = np.sort(rng.choice(job.rows, SAMPLE_ROWS, replace=False))
    brief = replace(
        settings, n_members=1, epochs=min(settings.epochs, SAMPLE_EPOCHS), verbose=0, checkpoint_dir=None, patience=None
    )
    # the floor is that of all rows, or the two fits would not speak of the same labels
    policy = None if job.data.are_counts else job.labels.policy
    chosen = fit_small(Job(brief, job.data.take(sample), policy=policy, warn=False, seed=job.seed))
    settled = replace(
        settings,
        standardize=False if chosen.scaling == "none" else chosen.scaling,
        centre=None if chosen.centre is None else "geometric" if isinstance(settings.centre, str) else settings.centre,
    )
    if policy is not None:
        policy = ZeroPolicy(chosen.zero_policy.mode, policy.floor)
    state = fit_small(Job(settled, job.data, job.rows, policy=policy, warn=False, seed=job.seed, settled=True))
    return replace(state, summary={**state.summary, "chosen_by": len(sample)})
