"""Which candidates a fit tries, and which of them it keeps.

A model may see the features, the guides' predictions, or both; validation rows decide. On very many rows a sample of
them decides, and all rows train the candidate that won: a few thousand validation rows tell candidates apart as surely.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp

from snefy_ldl._internal.limits import PREDICTION_ROWS
from snefy_ldl._internal.progress import Progress
from snefy_ldl._internal.random import derive_seed
from snefy_ldl._internal.types import Array, Index
from snefy_ldl._internal.validation import ZeroPolicy
from snefy_ldl.errors import TrainingError
from snefy_ldl.training.checkpoint import checkpoint_of
from snefy_ldl.training.data import TrainingData, complete_votes
from snefy_ldl.training.groups import (
    TOLD_BY_FEATURES,
    Measured,
    Shown,
    add_effects,
    base_learners,
    measure_effects,
    wants_effects,
    why_no_effects,
    without_effects,
)
from snefy_ldl.training.guides import Guides, best_weights, default_guides, fit_guides, mixed_mean
from snefy_ldl.training.plan import N_FOLDS, Job
from snefy_ldl.training.race import (
    Candidate,
    Stack,
    candidates_of,
    conclude_stack,
    describe,
    first_members,
    join_states,
    run_race,
    train_jobs,
)
from snefy_ldl.training.settings import Settings
from snefy_ldl.training.state import FittedState, Inputs, choose

#: Features above which guides stand beside them only if the user brings the guides: wide networks are slow to train.
WIDE = 600
#: Standard errors by which guides may be behind on validation rows, from this many rows on.
GUIDE_ALLOWANCE, MANY_ROWS = 2.5, 200
#: Labels from which nothing but guides is tried: they are by far the best then, and the rest is slow.
MANY_LABELS = 20
#: Epochs of a network that will go on with what is known of groups, as a part of those of a fit. All of them gained
#: nothing on two splits of stools of children each, by rows and by child; on made-up groups this was not tried alone.
EPOCHS_BEFORE_GROUPS = 1.0 / 3.0
#: Rows below which members that leave out one part of the rows each choose between candidates.
FEW_ROWS = 500
#: Rows from which a network on features is tried on so few rows, too.
FEATURE_ROWS = 100
#: Members of a guided model, where nobody says how many, and the rows up to which so many pay.
GUIDED_MEMBERS, MEMBER_ROWS = 3, 10_000
#: A part whose geometric mean is below this is too small for a guide to see beside the others: guides then learn
#: shares that were divided by a centre. Against a regression on log-ratios, parts of 1e-5 to 1e-7 lose 0.4 to 1.1 nats
#: without that, and 0.2 to 0.3 with it.
SMALL_PART = 1e-4
#: Rows below which no guide is tried by itself.
LEAST_ROWS = 12
#: Rows from which a fit is large.
LARGE_ROWS = 100_000
#: Rows and epochs by which a large fit chooses.
SAMPLE_ROWS, SAMPLE_EPOCHS = 20_000, 10
#: Votes per item below which they are completed (they then say nothing of how far items differ), and how many an item
#: has then. With two votes or more the completed ones lost 0.1 to 0.7 nats on two of four data sets.
SINGLE_VOTES, COMPLETED_VOTES = 1.5, 32
#: Rows below which candidates on votes have as many members as the winner will have, each with validation rows of its
#: own: those of one were too few to tell which of two laws new votes prefer.
VOTE_ROWS = 2000
#: What guides predict of votes is lifted to the share of this part of a vote, one vote per label added to an item's.
PART_OF_VOTE = 0.1
#: Nats per row by which guides must be better on the sample: less than that the network learns from the other rows, and
#: guides make every prediction slower.
GUIDE_GAIN = 0.1


def needs_search(job: Job) -> bool:
    """Whether a job has more to choose than one stack of members holds."""
    return bool(wanted_guides(job)) or is_large(job)


def search(job: Job, progress: Progress, inputs: Inputs | None = None) -> FittedState:
    """Train one job, with guides where its settings and data call for them.

    Args:
        job: one model and its rows.
        progress: where to show how far it is.
        inputs: what the network sees, where an earlier fit has chosen that; None chooses.

    Returns:
        The fitted state of what does best on validation rows.
    """
    if is_large(job):
        return fit_large(job, lambda part: _search(part, progress, inputs, large=True), progress)
    return _search(job, progress, inputs)


def _search(job: Job, progress: Progress, inputs: Inputs | None, large: bool = False) -> FittedState:
    """The state of the inputs that do best; further members join the one that was chosen."""
    has_guides = bool(wanted_guides(job, light=large))
    seeks_effects = not large and wants_effects(job)
    no_effects = None
    if seeks_effects and has_guides:
        assert job.data.groups is not None
        progress.update(progress.completed, "looking at groups")
        no_effects = why_no_effects(job, *_guide_labels(job)[:2])
        if no_effects == TOLD_BY_FEATURES:
            return without_effects(_search(job.without_groups(), progress, inputs), job.data.groups, no_effects)
    guidance = None
    if has_guides:
        progress.update(progress.completed, "fitting guides")
        guidance = _guidance(job, large)
    grouping = _grouping(job, guidance, no_effects is None) if seeks_effects else None
    if guidance is None:
        return _with_groups(job, train_jobs([job], progress)[0], job.data, grouping, progress)
    grouped = grouping is not None and grouping.measured is not None
    race = _Race(_ways(job, guidance, inputs, grouped), len(guidance.seen), grouped, large)
    progress.extend(sum(stack.recipe.epochs for stack in race.stacks))
    race.run(progress, partial(describe, field=race.field))
    state = _with_members(race, len(guidance.seen), progress)
    records = [candidate.record() for candidate in race.field]
    kept = records[race.field.index(race.winner)]
    kept |= {
        "networks": state.net.n_members,
        "seconds": round(kept["seconds"] + state.summary["seconds"] - race.state.summary["seconds"], 3),
    }
    for candidate, record in zip(race.field, records):
        if candidate.outcome == "kept" and candidate is not race.winner:
            record["outcome"] = "not chosen"
    progress.update(progress.completed, f"{_last_losses(state)}, kept {kept['name']}")
    return _with_groups(race.way.base, replace(state, candidates=records), race.way.data, grouping, progress)


@dataclass(frozen=True)
class Guidance:
    """Guides and their predictions of the rows of a job.

    Args:
        guides: fitted.
        table: their predictions of all rows, out of sample (N, G L).
        seen: the rows they learnt from.
        labels: label distributions of all rows as the guides learnt them (N, L).
        log_centre: logarithm of what the rows' own shares were divided by (L,); None where by nothing.
    """

    guides: Guides
    table: Array
    seen: Index
    labels: Array
    log_centre: Array | None


def _learnt_rows(job: Job) -> Index:
    """Rows of a job from which guides learn."""
    weights = job.data.weights
    return job.rows if weights is None else job.rows[weights[job.rows] > 0]


def _guide_labels(job: Job) -> tuple[Array, float, Array | None]:
    """Label distributions of all rows for guides (N, L), their floor, and the logarithm of their centre, if any."""
    data, seen = job.data, _learnt_rows(job)
    labels = data.labels if _has_whole_shares(data) else job.labels.proportions
    floor, log_centre = job.labels.policy.floor, _small_parts(labels[seen])
    if log_centre is not None:
        labels = labels / np.exp(log_centre)
        labels /= labels.sum(1, keepdims=True)
        floor = ZeroPolicy.from_data(labels[seen], "shrink").floor
    floor = min(floor, 1e-3)
    if (votes := _votes_per_item(job)) < math.inf:
        floor = PART_OF_VOTE / (votes + data.n_labels)
    return labels, floor, log_centre


def _guidance(job: Job, large: bool = False) -> Guidance | None:
    """The fitted guides, None where the data or settings leave no room for them."""
    learners, data = wanted_guides(job, light=large), job.data
    if not learners:
        return None
    seen = _learnt_rows(job)
    labels, floor, log_centre = _guide_labels(job)
    groups = None if data.groups is None else data.groups.first
    guides, table = fit_guides(learners, data.features, labels, seen, floor, derive_seed(job.seed, 9), groups)
    return Guidance(guides, table, seen, labels, log_centre)


@dataclass(frozen=True)
class Grouping:
    """What a job's groups are like.

    Args:
        guidance: point learners, from whose predictions the groups' effects are measured.
        measured: the effects; None where groups do not differ by more than chance.
    """

    guidance: Guidance
    measured: Measured | None


def _grouping(job: Job, guidance: Guidance | None, may_differ: bool = True) -> Grouping:
    """The effects of a job's groups; none where they are known not to differ."""
    if not may_differ and guidance is not None:
        return Grouping(guidance, None)
    if guidance is None:
        base, table = base_learners(job, job.rows)
        guidance = Guidance(base, table, job.rows, job.labels.shares, None)
        return Grouping(guidance, measure_effects(job, table, guidance.labels, None))
    return Grouping(guidance, measure_effects(job, guidance.table, guidance.labels, guidance.guides))


def _with_groups(
    job: Job, state: FittedState, seen: TrainingData, grouping: Grouping | None, progress: Progress
) -> FittedState:
    """The state with group effects, where the rows come in groups and that helps."""
    if grouping is None:
        return state
    shown = Shown(job, seen, grouping.guidance.guides, grouping.guidance.log_centre)
    return add_effects(state, shown, grouping.measured, progress)


def _has_whole_shares(data: TrainingData) -> bool:
    """Whether labels are shares without gaps."""
    return not (data.are_counts or data.has_gaps)


def _votes_per_item(job: Job) -> float:
    """Mean number of votes for single labels of a job's items; infinite where labels are shares or votes have gaps."""
    data = job.data
    if not data.are_counts or data.partial is not None or np.isnan(data.labels).any():
        return math.inf
    return float(data.labels[job.rows].sum(1).mean())


def _small_parts(D: Array) -> Array | None:
    """Logarithm of the geometric means (L,) of the parts where they are there; None where no part is very small."""
    there = D > 0.0
    mean = np.log(D, out=np.zeros_like(D), where=there).sum(0) / np.maximum(there.sum(0), 1)
    return mean if mean.min() < np.log(SMALL_PART) else None


@dataclass(frozen=True)
class Way:
    """One way for the guides to take part.

    Args:
        base: the job without its guides.
        inputs: what the network sees.
        data: those inputs.
        guides: the fitted guides; None where the network sees the features alone.
        changes: settings that go with it.
        folds: whether members leave out one part of the rows each.
    """

    base: Job
    inputs: Inputs
    data: TrainingData
    guides: Guides | None
    changes: dict[str, Any]
    folds: bool = False

    def job(self, n_members: int | Literal["auto"], settled: FittedState | None = None) -> Job:
        """The job of some members.

        Args:
            n_members: how many it has in all.
            settled: what its first members chose, for those that come after them; None where nothing is chosen yet.

        Returns:
            The job, to be compared with others where nothing is settled.
        """
        base, changes = self.base, {**self.changes, "guides": None, "n_members": n_members}
        done = 0
        if settled is not None:
            done = settled.net.n_members
            changes |= _scaled_as(settled)
        if base.settings.checkpoint_dir is not None:
            place = self.inputs + (f"-{n_members}" if n_members not in (1, "auto") else "")
            changes["checkpoint_dir"] = Path(base.settings.checkpoint_dir) / place
        return Job(
            replace(base.settings, **changes),
            self.data,
            base.rows,
            policy=base.labels.policy,
            warn=False,
            seed=base.seed,
            compared=settled is None,
            inputs=self.inputs,
            members_done=done,
            folds=self.folds,
        )


def _ways(job: Job, guidance: Guidance, chosen: Inputs | None = None, grouped: bool = False) -> list[Way]:
    """The ways to try, in the order in which they are compared; only one where its inputs are chosen."""
    data, unit = job.data, {"standardize": "unit"}
    guides, table = guidance.guides, guidance.table
    if data.groups is None and _votes_per_item(job) < SINGLE_VOTES:
        data, table = _completed(job, guidance), np.vstack([table, table])
    ways: list[Way] = []
    for inputs in _inputs_to_try(job, grouped) if chosen is None else [chosen]:
        if inputs == "features":
            one_scaling = unit if len(job.rows) < FEW_ROWS and job.settings.standardize == "auto" else {}
            ways.append(Way(job, inputs, data.with_features(data.features), None, one_scaling))
        elif inputs == "guides":
            ways.append(Way(job, inputs, data.with_features(table), guides, unit))
        else:
            dense = data.features.toarray() if sp.issparse(data.features) else data.features
            ways.append(Way(job, inputs, data.with_features(np.hstack([dense, table])), guides, {}))
    if grouped:
        epochs = max(1, round(EPOCHS_BEFORE_GROUPS * job.settings.epochs))
        ways = [replace(way, changes={**way.changes, "epochs": epochs}) for way in ways]
    splits_freely = data.groups is None and _has_whole_shares(data)
    folds = len(job.rows) < FEW_ROWS and job.settings.validation_fraction > 0 and splits_freely
    return [replace(way, folds=folds) for way in ways]


def _completed(job: Job, guidance: Guidance) -> TrainingData:
    """The rows of a job, and below them the same rows with votes that are completed as guides expect."""
    means = mixed_mean(guidance.table, best_weights(guidance.table[guidance.seen], guidance.labels[guidance.seen]))
    rng = np.random.default_rng(derive_seed(job.seed, 13))
    return job.data.with_completed(complete_votes(job.data.labels, means, COMPLETED_VOTES, rng))


class _Race:
    """The ways of a job against each other.

    Args:
        ways: in the order in which they are compared.
        n_rows: that may be seen.
        grouped: whether rows come in groups that differ.
        compared: whether the winner will be compared with another race's; else nobody asks one without rivals for its
            mean.

    Attributes:
        stacks: one for each way.
        field: the candidates of all of them.
        way: the one that won.
        state: of the winner.
        winner: the candidate.
    """

    way: Way
    state: FittedState
    winner: Candidate

    def __init__(self, ways: list[Way], n_rows: int, grouped: bool, compared: bool) -> None:
        self._ways, self._n_rows, self._compared = ways, n_rows, compared
        base = ways[0].base
        n_members: int | Literal["auto"] = N_FOLDS if n_rows < FEW_ROWS else 1
        if base.data.are_counts and FEW_ROWS <= n_rows < VOTE_ROWS and not grouped:
            n_members = GUIDED_MEMBERS
        if len(ways) == 1 and not grouped and not (ways[0].folds and base.settings.n_members == "auto"):
            n_members = base.settings.n_members  # nothing to choose between
        jobs = [way.job(n_members) for way in ways]
        self.stacks = [Stack([job], job.settings.torch_device, checkpoint_of(job)) for job in jobs]
        self.field = [candidate for stack in self.stacks for candidate in candidates_of(stack)]

    def run(self, progress: Progress, say: Callable[[Stack], str]) -> None:
        """Train all ways, and keep the best."""
        n_rows = self._n_rows

        def handicap(one: Job, other: Job) -> float:
            here, there = one.inputs, other.inputs
            given = self._allowance(here, there) - self._allowance(there, here)
            if here == "guides" != there and n_rows >= MANY_ROWS:  # it sees nothing else, and starts slowly
                return max(given, GUIDE_ALLOWANCE)
            return given

        run_race(self.stacks, [self.field], progress, say, handicap)
        at_end = [candidate for candidate in self.field if candidate.outcome is None]
        if not self._compared and len(at_end) == 1:
            at_end[0].job.compared = False
        ends: list[tuple[Way, FittedState, Candidate]] = []
        for way, stack in zip(self._ways, self.stacks):
            if stack.failure is not None:
                continue
            own = [candidate for candidate in self.field if candidate.stack is stack]
            state = conclude_stack(stack, own)[0]
            if state is None:
                continue
            state = replace(
                state,
                inputs=way.inputs,
                guides=way.guides,
                n_features=way.base.data.n_features,
                feature_names=way.base.data.feature_names,
                summary={**state.summary, "inputs": way.inputs},
            )
            kept = next(candidate for candidate in own if candidate.outcome == "kept")
            ends.append((way, state, kept))
        if not ends:
            raise TrainingError("there is nothing to train.")
        self.way, self.state, self.winner = ends[self._choose([state for _, state, _ in ends])]

    def _choose(self, states: list[FittedState]) -> int:
        """The number of the state to keep."""
        validation = [state.validation for state in states]
        if self._ways[0].base.data.are_counts:  # by votes alone: shares that one could compare means with are not known
            return max(
                range(len(states)), key=lambda k: -math.inf if (v := validation[k]) is None else v.log_likelihood
            )
        if self._n_rows < FEW_ROWS:
            return choose(validation)
        best = 0
        for number, state in enumerate(states):
            if number and self._is_better(state, states[best]):
                best = number
        return best

    def _is_better(self, state: FittedState, best: FittedState) -> bool:
        """Whether a state with guides beats the best so far on the validation rows.

        What guides say of those rows comes from folds or from out of bag, while new rows are predicted by guides fitted
        on all rows: they will do better there. Where there are rows enough for guides to be any good, they get the
        benefit.
        """
        if state.validation is None or best.validation is None:
            return False
        return state.validation.beats(best.validation, self._allowance(state.inputs, best.inputs))

    def _allowance(self, inputs: Inputs, best: Inputs) -> float:
        """Standard errors that a state with some inputs is given over one with others."""
        return GUIDE_ALLOWANCE if best == "features" != inputs and self._n_rows >= MANY_ROWS else 0.0


def _with_members(race: _Race, n_rows: int, progress: Progress) -> FittedState:
    """The winner of a race with as many members as are wanted: the further ones are trained as it was."""
    way, state = race.way, race.state
    done, wanted = state.net.n_members, way.base.settings.n_members
    if wanted == "auto":
        wanted = done if done > 1 or n_rows > MEMBER_ROWS else GUIDED_MEMBERS
    if wanted <= done:
        return first_members(state, wanted)
    return join_states(state, train_jobs([way.job(wanted, state)], progress)[0])


def _scaled_as(state: FittedState) -> dict[str, Any]:
    """The setting that scales features as a state does."""
    return {"standardize": False if state.scaling == "none" else state.scaling}


def _last_losses(state: FittedState) -> str:
    last = state.history[-1]
    return f"loss {last['loss']:.3f} validation {last.get('validation_loss', math.nan):.3f}"


def wanted_guides(job: Job, light: bool = False) -> list[object]:
    """The guides to fit, none where the data or settings leave no room for them."""
    settings, data = job.settings, job.data
    if settings.guides is None or settings.is_paper or job.one_pass or job.start is not None:
        return []
    if settings.backbone is not None:
        return []
    if not isinstance(settings.guides, str):
        return list(settings.guides)
    if settings.validation_fraction <= 0 or not LEAST_ROWS <= len(job.rows) < LARGE_ROWS:
        return []
    return default_guides(len(job.rows), int(data.features.shape[1]), derive_seed(job.seed, 10), light)


def _inputs_to_try(job: Job, grouped: bool = False) -> list[Inputs]:
    if grouped:
        return ["guides"]
    if not isinstance(job.settings.guides, str):  # the user's own: they are meant to be used
        return ["guides", "both"] if job.settings.validation_fraction > 0 else ["both"]
    if _has_whole_shares(job.data):
        if job.data.n_labels >= MANY_LABELS or len(job.rows) < FEATURE_ROWS:
            return ["guides"]
        if len(job.rows) < FEW_ROWS:
            return ["features", "guides"]
    return ["features", "guides"] if job.data.features.shape[1] > WIDE else ["guides", "both"]


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
    return len(job.scalings) > 1 or tries_guides


def fit_large(job: Job, fit_small: Callable[[Job], FittedState], progress: Progress) -> FittedState:
    """Choose scaling and inputs on a sample of the rows, and train on all of them.

    Guides learn from the sample. Where they are kept, the network learns from the other rows, whose labels the guides
    have not seen.

    Args:
        job: for which :func:`is_large` holds.
        fit_small: trains a job, whatever there is to choose.
        progress: where to show how far it is.

    Returns:
        The fitted state; its summary says by how many rows it was chosen (``"chosen_by"``).
    """
    settings, data = replace(job.settings, guides=None), job.data
    rng = np.random.default_rng(derive_seed(job.seed, 11))
    sample = _sample(job, rng)
    chosen = _choose(job, sample, fit_small)
    settled = replace(settings, **_scaled_as(chosen))
    policy = None if data.are_counts else ZeroPolicy(chosen.zero_policy.mode, job.labels.policy.floor)
    rows = job.rows
    if chosen.guides is not None:
        data, rows = data.with_features(_seen_by(chosen, data)), np.setdiff1d(rows, sample)
    whole = Job(settled, data, rows, policy=policy, warn=False, seed=job.seed)
    state = fit_small(whole)
    state = replace(
        state,
        inputs=chosen.inputs,
        guides=chosen.guides,
        n_features=data.n_features,
        summary={**state.summary, "inputs": chosen.inputs, "chosen_by": len(sample)},
        candidates=chosen.candidates,
    )
    if not wants_effects(job):
        return state
    plain = Job(settled, job.data, rows, policy=policy, warn=False, seed=job.seed)
    return _with_groups(plain, state, data, _grouping(plain, None), progress)


def _sample(job: Job, rng: np.random.Generator) -> Index:
    """Rows by which a large fit chooses; of rows in groups, whole groups."""
    if job.data.groups is None:
        return np.sort(rng.choice(job.rows, SAMPLE_ROWS, replace=False))
    first = job.data.groups.first[job.rows]
    groups, which = np.unique(first, return_inverse=True)
    place = rng.permutation(len(groups))[which.reshape(-1)]
    return np.sort(job.rows[np.argsort(place, kind="stable")[:SAMPLE_ROWS]])


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
    if job.settings.guides is None or plain.validation is None or not _has_whole_shares(job.data):
        return plain
    guided = fit_sample(replace(brief, guides=job.settings.guides))
    if guided.guides is None or guided.validation is None or guided.zero_policy.mode != plain.zero_policy.mode:
        return plain
    gain = guided.validation.log_likelihood - plain.validation.log_likelihood
    return guided if gain > GUIDE_GAIN else plain


def _seen_by(chosen: FittedState, data: TrainingData) -> Array:
    """What the network sees of every row, float32: guides' predictions, a part of the rows at a time."""
    assert chosen.guides is not None
    parts = []
    for start in range(0, data.n_rows, PREDICTION_ROWS):
        seen = chosen.guides.inputs(data.features[start : start + PREDICTION_ROWS], chosen.inputs)
        parts.append(seen.astype(np.float32))
    return np.concatenate(parts)
