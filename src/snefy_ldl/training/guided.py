"""A fit with guides: one model on the features, one on the guides' predictions, one on both; validation decides."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from joblib import Parallel, delayed

from snefy_ldl._random import derive_seed
from snefy_ldl._types import Array, Index
from snefy_ldl.errors import TrainingError, TrainingWarning
from snefy_ldl.learners.guides import GUIDE_ROWS, Guides, default_guides, fit_guides
from snefy_ldl.learners.moves import Mover, Moves, fit_mover
from snefy_ldl.training.data import TrainingData
from snefy_ldl.training.fit import fit
from snefy_ldl.training.large import LARGE_ROWS, fit_large, is_large
from snefy_ldl.training.plan import Job
from snefy_ldl.training.state import FittedState, Inputs, lead

#: Features above which guides stand beside them only if the user brings the guides: wide networks are slow to train.
WIDE = 600
#: Standard errors by which guides may be behind on validation rows, from this many rows on.
GUIDE_ALLOWANCE, MANY_ROWS = 2.5, 200
#: Labels from which nothing but guides is tried: they are by far the best then, and the rest is slow.
MANY_LABELS = 20
#: Neurons of a law that moves its odds of presence, too: those of every row are made for each pair of neurons.
PRESENCE_NEURONS = 12
#: Neurons of a law that moves, up to this many labels or on few rows: more gain nothing there, and every row has
#: integrals of its own.
MOVING_NEURONS, FEW_LABELS = 24, 9
#: Standard errors by which such a law must lead up to that many labels: its rows share no tables.
MOVING_PRICE = 1.5
#: A part of rows with zeros from which they are modelled without a comparison.
MOSTLY_ZEROS = 0.4
#: Rows below which several members, each with validation rows of its own, choose between candidates.
FEW_ROWS, CHOOSING_MEMBERS = 300, 4
#: Standard errors by which a law that moves must lead on so few rows; a network on features is not tried there at all.
#: Among 360 small tables of ten real data sets the choice of all four ways was hardly better than a blind one.
FEW_ROWS_PRICE = 0.5
#: Members of a guided law, where nobody says how many, and the rows up to which so many pay; a law that moves has one,
#: since each would answer every row anew.
GUIDED_MEMBERS, MEMBER_ROWS = 3, 10_000
#: Rows below which no guide is tried by itself.
LEAST_ROWS = 12


def fit_job(job: Job) -> FittedState:
    """Train one job: with guides, and with zeros modelled, where its settings and data call for them.

    Args:
        job: one model and its rows.

    Returns:
        The fitted state of what does best on validation rows.
    """
    started = time.perf_counter()
    state = fit_large(job, lambda part: _fit_zeros(part, large=True)) if is_large(job) else _fit_zeros(job)
    _tell_if_nothing_was_learnt(state)
    # the guides and the candidates that were not chosen took their time, too
    seconds = max(state.summary["seconds"], round(time.perf_counter() - started, 3))
    return replace(state, summary={**state.summary, "seconds": seconds})


def _tell_if_nothing_was_learnt(state: FittedState) -> None:
    """A fit that stays at its background is worse than the mean label, and nobody should have it without knowing."""
    report = state.summary
    if report["epochs"] >= 10 and max(report["best_epoch"]) == 0 and min(report["background_share"]) > 0.5:
        warnings.warn(
            f"the fit did not learn: no epoch was better than the first, and {min(report['background_share']):.0%} of "
            "the density is the labels' overall law. Try a lower learning_rate, fewer labels (merge rare ones), "
            "guides=[...] with a learner that does well on this data, or more rows.",
            TrainingWarning,
            stacklevel=4,
        )


def _fit_zeros(job: Job, large: bool = False) -> FittedState:
    """The state under the zero policy that does best."""
    guidance = _guidance(job, large)
    # who has very many rows asks about many: a law that moves would answer each by integrals of its own
    may_move = not large or job.data.n_labels >= MANY_LABELS
    if not job.may_model_zeros:
        return _fit_inputs(job, guidance, may_move)
    with_zeros = _fit_inputs(job.with_policy("model"), guidance, may_move)
    if job.zero_rows >= MOSTLY_ZEROS:
        return with_zeros
    shrunk = _fit_inputs(job.with_policy(job.labels.policy.mode), guidance, may_move)
    if with_zeros.validation is None or shrunk.validation is None:
        return with_zeros
    # the two likelihoods are of different measures; the means are not
    worse = lead(-shrunk.validation.divergence, -with_zeros.validation.divergence) > 1.0
    return shrunk if worse else with_zeros


@dataclass(frozen=True)
class Guidance:
    """What guides say of the rows of a job, whatever its zero policy.

    Args:
        guides: fitted.
        table: their predictions of all rows, out of sample (N, G L).
        seen: the rows they learnt from.
    """

    guides: Guides
    table: Array
    seen: Index


def _guidance(job: Job, large: bool = False) -> Guidance | None:
    """The fitted guides, None where the data or settings leave no room for them."""
    learners, data = wanted_guides(job, light=large), job.data
    if not learners:
        return None
    seen = job.rows if data.weights is None else job.rows[data.weights[job.rows] > 0]
    floor = min(job.labels.policy.floor, 1e-3)
    guides, table = fit_guides(learners, data.features, data.labels, seen, floor, derive_seed(job.seed, 9))
    return Guidance(guides, table, seen)


def _fit_inputs(job: Job, guidance: Guidance | None, may_move: bool) -> FittedState:
    """The state of the best inputs under one zero policy."""
    if guidance is None:
        return fit([job])[0]
    best: tuple[Candidate, FittedState] | None = None
    failure: TrainingError | None = None
    n_choosing = CHOOSING_MEMBERS if len(guidance.seen) < FEW_ROWS else 1
    ways = [way for way in _inputs_to_try(job) if may_move or way != "moving"]
    for candidate in _candidates(job, guidance, ways):
        try:
            state = _train(job, candidate, n_choosing)
        except TrainingError as error:  # the others may do
            failure = error
            continue
        if best is None or _better(state, best[1], len(guidance.seen)):
            best = candidate, state
    if best is None:
        raise failure or TrainingError("there is nothing to train.")
    candidate, state = best
    n_members = job.settings.n_members
    if n_members == "auto":
        settled = n_choosing > 1 or candidate.inputs == "moving" or len(guidance.seen) > MEMBER_ROWS
        n_members = n_choosing if settled else GUIDED_MEMBERS
    return state if n_members == n_choosing else _train(job, candidate.settled(state), n_members)


@dataclass(frozen=True)
class Candidate:
    """One way for the guides to take part.

    Args:
        inputs: what the network sees.
        data: those inputs, and the moves of the rows where the law moves.
        guides: the fitted guides; None where the network sees the features alone.
        changes: settings that go with it.
    """

    inputs: Inputs
    data: TrainingData
    guides: Guides | None
    changes: dict[str, Any]

    def settled(self, state: FittedState) -> Candidate:
        """The same with the scaling and the centre that one member chose, for all of them."""
        scaling = False if state.scaling == "none" else state.scaling
        return replace(self, changes={**self.changes, "standardize": scaling, "centre": state.centre})


def _candidates(job: Job, guidance: Guidance, ways: list[Inputs]) -> Iterator[Candidate]:
    """The ways to try; each is made when it is asked for."""
    guides, table = guidance.guides, guidance.table
    data, unit = job.data, {"standardize": "unit"}
    for inputs in ways:
        if inputs == "features":
            yield Candidate(inputs, data.with_features(data.features), None, {})
        elif inputs == "guides":
            yield Candidate(inputs, data.with_features(table), guides, unit)
        elif inputs == "both":
            dense = data.features.toarray() if sp.issparse(data.features) else data.features
            yield Candidate(inputs, data.with_features(np.hstack([dense, table])), guides, {})
        else:
            mover, moves = _fit_moves(job, guidance)
            changes = unit | _moving_sizes(job)
            yield Candidate(inputs, data.with_features(table, moves), replace(guides, mover=mover), changes)


def _moving_sizes(job: Job) -> dict[str, Any]:
    """Sizes of a law that moves, where it needs fewer neurons than a fixed one."""
    if not job.models_zeros and job.data.n_labels > FEW_LABELS and len(job.rows) >= FEW_ROWS:
        return {}
    most = PRESENCE_NEURONS if job.models_zeros else MOVING_NEURONS
    return {"n_neurons": min(most, job.settings.n_neurons), "n_readouts": min(most, job.settings.n_readouts)}


def _fit_moves(job: Job, guidance: Guidance) -> tuple[Mover, Moves]:
    """What moves the law: a centre for each row, and the odds that its labels are there where zeros are modelled."""
    data, seen = job.data, guidance.seen
    n_trees = None
    if job.models_zeros:
        n_trees = 100 if min(len(seen), GUIDE_ROWS) * data.n_labels < 10**6 else 50
    seed = derive_seed(job.seed, 12)
    return fit_mover(guidance.table, data.features, data.labels, seen, n_trees, GUIDE_ROWS, seed)


def _train(job: Job, candidate: Candidate, n_members: int) -> FittedState:
    """One candidate's state, which is told what the user's features are."""
    folder, changes = job.settings.checkpoint_dir, dict(candidate.changes)
    if folder is not None:
        place = candidate.inputs if n_members == 1 else f"{candidate.inputs}-{n_members}"
        changes["checkpoint_dir"] = Path(folder) / place
    settings = replace(job.settings, guides=None, n_members=n_members, **changes)
    policy = job.labels.policy
    part = Job(settings, candidate.data, job.rows, policy=policy, warn=False, seed=job.seed, compared=True)
    state = fit([part])[0]
    return replace(
        state,
        inputs=candidate.inputs,
        guides=candidate.guides,
        n_features=job.data.n_features,
        feature_names=job.data.feature_names,
        summary={**state.summary, "inputs": candidate.inputs},
    )


def fit_jobs(jobs: Sequence[Job], n_jobs: int | None = 1) -> list[FittedState]:
    """Train some jobs: those that try guides each by itself, the others stacked.

    Args:
        jobs: on one and the same data and device.
        n_jobs: processes on a CPU; None takes all cores, or one where the work is over in a few seconds.

    Returns:
        Fitted states, in the order of the jobs.
    """
    if not any(wanted_guides(job) or job.may_model_zeros or is_large(job) for job in jobs):
        return fit(jobs, n_jobs)
    workers = 1 if jobs[0].settings.torch_device.type != "cpu" else min(n_jobs or os.cpu_count() or 1, len(jobs))
    if workers == 1:
        return [fit_job(job) for job in jobs]
    states: list[FittedState] = Parallel(n_jobs=workers)(delayed(_fit_alone)(job) for job in jobs)
    return states


def _fit_alone(job: Job) -> FittedState:
    """The same in a process of its own, with one thread."""
    torch.set_num_threads(1)
    return fit_job(job)


def _better(state: FittedState, best: FittedState, n_rows: int) -> bool:
    """Whether a state with guides beats the best so far on the validation rows.

    What guides say of those rows comes from folds or from out of bag, while new rows are predicted by guides fitted on
    all rows: they will do better there. Where there are rows enough for guides to be any good, they get the benefit.
    """
    if state.validation is None or best.validation is None:
        return False
    allowance = GUIDE_ALLOWANCE if best.inputs == "features" and n_rows >= MANY_ROWS else 0.0
    if state.inputs == "moving":
        if n_rows < FEW_ROWS:
            allowance = -FEW_ROWS_PRICE
        elif len(state.label_names) <= FEW_LABELS:
            allowance -= MOVING_PRICE
    return state.validation.beats(best.validation, allowance)


def wanted_guides(job: Job, light: bool = False) -> list[object]:
    """The guides to fit, none where the data or settings leave no room for them."""
    settings, data = job.settings, job.data
    if settings.guides is None or settings.is_paper or job.one_pass or job.start is not None:
        return []
    if settings.backbone is not None or data.are_counts or data.has_gaps:
        return []
    if not isinstance(settings.guides, str):
        return list(settings.guides)
    if settings.validation_fraction <= 0 or not LEAST_ROWS <= len(job.rows) < LARGE_ROWS:
        return []
    return default_guides(len(job.rows), int(data.features.shape[1]), derive_seed(job.seed, 10), light)


def _inputs_to_try(job: Job) -> list[Inputs]:
    if not isinstance(job.settings.guides, str):  # the user's own: they are meant to be used
        alone: list[Inputs] = ["moving"] if job.data.n_labels >= MANY_LABELS else ["both"]
        return ["guides", "both", "moving"] if job.settings.validation_fraction > 0 else alone
    if job.data.n_labels >= MANY_LABELS or len(job.rows) < FEW_ROWS:
        return ["guides", "moving"]
    if job.data.features.shape[1] > WIDE:
        return ["features", "guides", "moving"]
    return ["features", "guides", "both", "moving"]
