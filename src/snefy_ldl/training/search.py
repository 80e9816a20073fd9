"""Which candidates a fit tries, and which of them it keeps.

A model may see the features, the guides' predictions, both, or be moved by its guides; zeros may be modelled or shrunk.
Validation rows decide. On very many rows a sample of them decides, and all rows train the candidate that won: two
scalings, and perhaps two centres and two zero policies, would each see every row of a million at every epoch, only for
all but one to be thrown away. A few thousand validation rows tell them apart as surely.
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
from scipy.linalg import helmert

from snefy_ldl._internal.limits import PREDICTION_ROWS
from snefy_ldl._internal.progress import Progress
from snefy_ldl._internal.random import derive_seed
from snefy_ldl._internal.types import Array, Index
from snefy_ldl._internal.validation import ZeroPolicy
from snefy_ldl.errors import TrainingError
from snefy_ldl.logratio import FACTORS, FREEDOMS, choose_shape, shrink, spectrum, stack_guides
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
from snefy_ldl.training.guides import (
    GUIDE_ROWS,
    Guides,
    Mover,
    Moves,
    best_weights,
    default_guides,
    fit_guides,
    fit_mover,
    mixed_mean,
)
from snefy_ldl.training.kernels.counts import MOST_VOTES
from snefy_ldl.training.plan import N_FOLDS, Job, fold_rows
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
from snefy_ldl.training.state import FittedState, Inputs, Validation, choose, lead

#: Features above which guides stand beside them only if the user brings the guides: wide networks are slow to train.
WIDE = 600
#: Standard errors by which guides may be behind on validation rows, from this many rows on.
GUIDE_ALLOWANCE, MANY_ROWS = 2.5, 200
#: Labels from which nothing but guides is tried, and where zeros are modelled nothing but a law that moves with them:
#: they are by far the best then, and the rest is slow.
MANY_LABELS = 20
#: Neurons of a law that moves its odds of presence, too: those of every row are made for each pair of neurons.
PRESENCE_NEURONS = 12
#: Neurons of a law that moves, up to this many labels or on few rows: more gain nothing there, and every row has
#: integrals of its own.
MOVING_NEURONS, FEW_LABELS = 24, 9
#: Standard errors by which such a law must lead up to that many labels: its rows share no tables, and after votes each
#: of them is a mixture of such laws.
MOVING_PRICE = 1.5
#: Epochs of a network that will go on with what is known of groups, as a part of those of a fit. All of them gained
#: nothing on two splits of stools of children each, by rows and by child; on made-up groups this was not tried alone.
EPOCHS_BEFORE_GROUPS = 1.0 / 3.0
#: A part of rows with zeros from which they are modelled without a comparison.
MOSTLY_ZEROS = 0.4
#: Rows below which members that leave out one part of the rows each choose between candidates.
FEW_ROWS = 500
#: Rows from which a network on features is tried on so few rows, too.
FEATURE_ROWS = 100
#: Draws that teach each member of a small table, and rows of a step then.
LESSON_DRAWS, LESSON_BATCH = 1000, 192
#: How far a lesson's guides are moved from those of a row, in differences between two rows.
LESSON_STEP = 0.5
#: Labels up to which draws teach a law that does not move, too.
FEW_PARTS = 6
#: Members of a guided law, where nobody says how many, and the rows up to which so many pay; a law that moves has one,
#: since each would answer every row anew.
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
#: has then. With two votes or more the completed ones lost 0.1 to 0.7 nats on two of four data sets; a law that moves
#: learns from completed ones below so many, or it was up to 0.5 nats behind on ChaosNLI. With single votes such a law
#: is the only one that was clearly ahead of a Dirichlet-multinomial regression on each of the four.
SINGLE_VOTES, MOVING_VOTES, COMPLETED_VOTES = 1.5, 3.0, 32
#: Neurons of a law that moves and learns from votes: three members of 12 were as good as one of 24 by 0.02 to 0.07
#: nats, in less time.
VOTE_NEURONS = 12
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
    return bool(wanted_guides(job)) or job.may_model_zeros or is_large(job)


def search(job: Job, progress: Progress, inputs: Inputs | None = None) -> FittedState:
    """Train one job, with guides and with zeros modelled where its settings and data call for them.

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
    """The state of the zero policy and the inputs that do best; further members join the one that was chosen."""
    policies = [job]
    if job.may_model_zeros:
        policies = [job.with_policy("model")]
        if job.zero_rows < MOSTLY_ZEROS:  # shrunk zeros train in a third of the time, and settle what the network sees
            policies.insert(0, job.with_policy(job.labels.policy.mode))
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
    n_rows = len(job.rows if guidance is None else guidance.seen)
    # who has very many rows asks about many: a law that moves would answer each by integrals of its own
    may_move = (not large or job.data.n_labels >= MANY_LABELS) and job.may_move
    may_move = may_move and (_has_whole_shares(job.data) or _has_few_votes(job))
    grouping = _grouping(job, guidance, no_effects is None) if seeks_effects else None
    if guidance is None and len(policies) == 1:
        return _with_groups(job, train_jobs(policies, progress)[0], job.data, grouping, progress)
    grouped = grouping is not None and grouping.measured is not None
    races: list[_Race] = []
    field: list[Candidate] = []
    chosen: dict[Inputs, dict[str, Any]] | None = None if inputs is None else {inputs: {}}
    n_members: int | Literal["auto"] | None = None
    for part in policies:
        ways = _ways(part, guidance, may_move, chosen, grouped)
        race = _Race(ways, n_rows, grouped, len(policies) > 1 or large, n_members)
        field += race.field
        progress.extend(sum(stack.recipe.epochs for stack in race.stacks))
        race.run(progress, partial(describe, field=field))
        races.append(race)
        chosen, n_members = race.survivors, race.n_members
    best = races[-1]
    if len(races) > 1 and _has_better_mean(races[0].validation, best.validation):
        best = races[0]
    for candidate in field:
        if candidate.outcome == "kept" and candidate is not best.winner:
            candidate.outcome = "not chosen"
    state = best.state if guidance is None else _with_members(best, n_rows, progress)
    records = [candidate.record() for candidate in field]
    kept = records[field.index(best.winner)]
    kept |= {
        "networks": state.net.n_members,
        "seconds": round(kept["seconds"] + state.summary["seconds"] - best.state.summary["seconds"], 3),
    }
    progress.update(progress.completed, f"{_last_losses(state)}, kept {kept['name']}")
    return _with_groups(best.way.base, replace(state, candidates=records), best.way.data, grouping, progress)


@dataclass(frozen=True)
class Guidance:
    """What guides say of the rows of a job, whatever its zero policy.

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
    """What a job's groups are like, whatever its zero policy.

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
    guidance = grouping.guidance

    def fit_moves(predictions: Array, X: Any) -> tuple[Mover, Moves]:
        data = job.data.take(job.rows).with_features(X)
        part = Guidance(guidance.guides, predictions, np.arange(len(X)), guidance.labels[job.rows], guidance.log_centre)
        return _fit_moves(Job(job.settings, data, policy=state.zero_policy, warn=False, seed=job.seed), part, None)

    shown = Shown(job, seen, guidance.guides, guidance.log_centre, fit_moves)
    return add_effects(state, shown, grouping.measured, progress)


def _has_whole_shares(data: TrainingData) -> bool:
    """Whether labels are shares without gaps: laws that move have no likelihood for anything else in training."""
    return not (data.are_counts or data.has_gaps)


def _votes_per_item(job: Job) -> float:
    """Mean number of votes for single labels of a job's items; infinite where labels are shares or votes have gaps."""
    data = job.data
    if not data.are_counts or data.partial is not None or np.isnan(data.labels).any():
        return math.inf
    return float(data.labels[job.rows].sum(1).mean())


def _has_few_votes(job: Job) -> bool:
    """Whether labels are votes without gaps, and no item has so many that a law that moves would take long."""
    return _votes_per_item(job) < math.inf and float(job.data.labels[job.rows].sum(1).max()) <= MOST_VOTES


def _small_parts(D: Array) -> Array | None:
    """Logarithm of the geometric means (L,) of the parts where they are there; None where no part is very small."""
    there = D > 0.0
    mean = np.log(D, out=np.zeros_like(D), where=there).sum(0) / np.maximum(there.sum(0), 1)
    return mean if mean.min() < np.log(SMALL_PART) else None


@dataclass(frozen=True)
class Way:
    """One way for the guides to take part, under one zero policy.

    Args:
        base: the job without its guides.
        inputs: what the network sees.
        data: those inputs, and the moves of the rows where the law moves.
        guides: the fitted guides; None where the network sees the features alone.
        changes: settings that go with it.
        folds: whether members leave out one part of the rows each.
        lessons: rows of the data that teach the members, too; None for none.
    """

    base: Job
    inputs: Inputs
    data: TrainingData
    guides: Guides | None
    changes: dict[str, Any]
    folds: bool = False
    lessons: Index | None = None

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
            changes |= {**_scaled_as(settled), "centre": settled.centre}
        if base.settings.checkpoint_dir is not None:
            mode = f"{base.labels.policy.mode}-" if base.remark else ""
            taught = "" if self.lessons is None else "-taught"
            place = f"{mode}{self.inputs}{taught}" + (f"-{n_members}" if n_members not in (1, "auto") else "")
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
            remark=base.remark,
            members_done=done,
            folds=self.folds,
            lessons=self.lessons,
        )


def _ways(
    job: Job,
    guidance: Guidance | None,
    may_move: bool,
    chosen: dict[Inputs, dict[str, Any]] | None = None,
    grouped: bool = False,
) -> list[Way]:
    """The ways to try under one zero policy, in the order in which they are compared.

    Where inputs are chosen, theirs alone, each with its settings.
    """
    data, unit = job.data, {"standardize": "unit"}
    if guidance is None:
        return [Way(job, "features", data, None, (chosen or {}).get("features", {}))]
    guides, table = guidance.guides, guidance.table
    votes = math.inf if data.groups is not None else _votes_per_item(job)
    learnt, seen = data, table  # by a law that moves
    if votes < MOVING_VOTES:
        learnt, seen = _completed(job, guidance), np.vstack([table, table])
    if votes < SINGLE_VOTES:
        data, table = learnt, seen
    ways: list[Way] = []
    for inputs in _inputs_to_try(job, grouped) if chosen is None else chosen:
        if inputs == "features":
            one_scaling = unit if len(job.rows) < FEW_ROWS and job.settings.standardize == "auto" else {}
            ways.append(Way(job, inputs, data.with_features(data.features), None, one_scaling))
        elif inputs == "guides":
            ways.append(Way(job, inputs, data.with_features(table), guides, unit))
        elif inputs == "both":
            dense = data.features.toarray() if sp.issparse(data.features) else data.features
            ways.append(Way(job, inputs, data.with_features(np.hstack([dense, table])), guides, {}))
        elif may_move or chosen is not None:
            mover, moves = _fit_moves(job, guidance, None if data.groups is None else data.groups.first)
            moves = Moves.joined([moves, moves]) if learnt.completed else moves
            moved = learnt.with_features(seen, moves)
            ways.append(Way(job, inputs, moved, replace(guides, mover=mover), unit | _moving_sizes(job)))
    if chosen is not None:
        ways = [replace(way, changes={**way.changes, **chosen[way.inputs]}) for way in ways]
    if grouped:
        epochs = max(1, round(EPOCHS_BEFORE_GROUPS * job.settings.epochs))
        ways = [replace(way, changes={**way.changes, "epochs": epochs}) for way in ways]
    splits_freely = data.groups is None and _has_whole_shares(data)
    if len(job.rows) >= FEW_ROWS or job.settings.validation_fraction <= 0 or not splits_freely:
        return ways
    # the centre of very unequal parts is not compared with none: the law that moves is ahead of both on few rows
    one_centre = {"centre": "geometric"} if job.settings.centre == "auto" and len(job.centres) > 1 else {}
    ways = [replace(way, folds=True, changes={**way.changes, **one_centre}) for way in ways]
    if not job.models_zeros and data.n_labels < MANY_LABELS:
        lessons = _Lessons(job, guidance)
        ways = [lessons.teach(way) if lessons.are_for(way) else way for way in ways]
    return ways


def _completed(job: Job, guidance: Guidance) -> TrainingData:
    """The rows of a job, and below them the same rows with votes that are completed as guides expect."""
    means = mixed_mean(guidance.table, best_weights(guidance.table[guidance.seen], guidance.labels[guidance.seen]))
    rng = np.random.default_rng(derive_seed(job.seed, 13))
    return job.data.with_completed(complete_votes(job.data.labels, means, COMPLETED_VOTES, rng))


class _Lessons:
    """Draws that teach networks, for each part of the rows without having seen it.

    Args:
        job: under its zero policy.
        guidance: what guides say of its rows.
    """

    def __init__(self, job: Job, guidance: Guidance) -> None:
        predicted = guidance.table.reshape(len(guidance.table), -1, job.data.n_labels)
        if guidance.log_centre is not None:
            predicted = predicted + guidance.log_centre
        parts = [np.intersect1d(train.numpy(), guidance.seen) for train, _ in fold_rows(job.rows, job.seed)]
        drawn = [
            draw_lesson(predicted, job.labels.shares, rows, LESSON_DRAWS, derive_seed(job.seed, 13, k))
            for k, rows in enumerate(parts)
        ]
        self._rows, at, self._labels = (np.concatenate(column) for column in zip(*drawn))
        self._table = (at if guidance.log_centre is None else at - guidance.log_centre).reshape(len(at), -1)

    def are_for(self, way: Way) -> bool:
        """Whether a way gains by lessons in a short time."""
        data, n_rows = way.data, len(way.base.rows)
        return way.inputs == "moving" or (
            way.inputs == "guides" and data.n_labels <= FEW_PARTS and n_rows < FEATURE_ROWS
        )

    def teach(self, way: Way) -> Way:
        """The way with lessons, which need no centre."""
        lessons = way.data.n_rows + np.arange(len(self._rows)).reshape(-1, LESSON_DRAWS)
        changes = way.changes if way.base.settings.centre != "auto" else {**way.changes, "centre": None}
        if way.base.settings.batch_size == "auto":
            changes = {**changes, "batch_size": LESSON_BATCH}
        mover = None if way.guides is None else way.guides.mover
        moves = None if mover is None else mover.moves(self._table, None)
        data = way.data.with_lessons(self._rows, self._table, self._labels, moves)
        return replace(way, data=data, lessons=lessons, changes=changes)


class _Race:
    """The ways of one zero policy against each other.

    Args:
        ways: in the order in which they are compared.
        n_rows: that may be seen.
        grouped: whether rows come in groups that differ.
        compared: whether the winner will be compared with another race's; else nobody asks one without rivals for its
            mean.
        n_members: of each way; as many as can be compared by default.

    Attributes:
        n_members: of each way.
        stacks: one for each way.
        field: the candidates of all of them.
        way: the one that won.
        state: of the winner.
        winner: the candidate.
        survivors: inputs that are about as likely as the winner's, with the setting of their scaling: what is worth
            trying under another zero policy. A law that moves must have won.
    """

    way: Way
    state: FittedState
    winner: Candidate
    survivors: dict[Inputs, dict[str, Any]]

    def __init__(
        self,
        ways: list[Way],
        n_rows: int,
        grouped: bool,
        compared: bool,
        n_members: int | Literal["auto"] | None,
    ) -> None:
        self._ways, self._n_rows, self._compared = ways, n_rows, compared
        base = ways[0].base
        costly = base.data.n_labels <= FEW_LABELS and n_rows >= FEW_ROWS and not base.data.are_counts
        self._price = MOVING_PRICE if costly else 0.0
        if n_members is None:
            n_members = N_FOLDS if n_rows < FEW_ROWS else 1
            if base.data.are_counts and FEW_ROWS <= n_rows < VOTE_ROWS and not grouped:
                n_members = GUIDED_MEMBERS
            if len(ways) == 1 and not grouped and not (ways[0].folds and base.settings.n_members == "auto"):
                n_members = base.settings.n_members  # nothing to choose between
        self.n_members = n_members
        jobs = [way.job(n_members) for way in ways]
        self.stacks = [Stack([job], job.settings.torch_device, checkpoint_of(job)) for job in jobs]
        self.field = [candidate for stack in self.stacks for candidate in candidates_of(stack)]

    @property
    def validation(self) -> Validation | None:
        """How the winner did on the validation rows."""
        return self.state.validation

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
        self.way, self.state, self.winner = best = ends[self._choose([state for _, state, _ in ends])]
        likely = [end for end in ends if end is best or (end[0].inputs != "moving" and self._is_as_likely(end[1]))]
        self.survivors = {way.inputs: _scaled_as(state) for way, state, _ in likely}

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

    def _is_as_likely(self, state: FittedState) -> bool:
        """Whether a state is as likely as the winner's, by one standard error."""
        if state.validation is None or self.validation is None:
            return False
        return lead(self.validation.log_prob, state.validation.log_prob) <= 1.0

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
        allowance = GUIDE_ALLOWANCE if best == "features" != inputs and self._n_rows >= MANY_ROWS else 0.0
        return allowance - self._price if inputs == "moving" else allowance


def _with_members(race: _Race, n_rows: int, progress: Progress) -> FittedState:
    """The winner of a race with as many members as are wanted: the further ones are trained as it was."""
    way, state = race.way, race.state
    done, wanted = state.net.n_members, way.base.settings.n_members
    if wanted == "auto":
        slow = way.inputs == "moving" and not way.data.are_counts
        settled = done > 1 or slow or n_rows > MEMBER_ROWS
        wanted = done if settled else GUIDED_MEMBERS
    if wanted <= done:
        return first_members(state, wanted)
    return join_states(state, train_jobs([way.job(wanted, state)], progress)[0])


def _has_better_mean(challenger: Validation | None, incumbent: Validation | None) -> bool:
    """Whether means are clearly better; likelihoods of two zero policies are of different measures, means are not."""
    if challenger is None or incumbent is None:
        return False
    return lead(-challenger.divergence, -incumbent.divergence) > 1.0


def _scaled_as(state: FittedState) -> dict[str, Any]:
    """The setting that scales features as a state does."""
    return {"standardize": False if state.scaling == "none" else state.scaling}


def _last_losses(state: FittedState) -> str:
    last = state.history[-1]
    return f"loss {last['loss']:.3f} validation {last.get('validation_loss', math.nan):.3f}"


def _moving_sizes(job: Job) -> dict[str, Any]:
    """Sizes of a law that moves, where it needs fewer neurons than a fixed one."""
    if job.data.are_counts:
        most = VOTE_NEURONS
    elif not job.models_zeros and job.data.n_labels > FEW_LABELS and len(job.rows) >= FEW_ROWS:
        return {}
    else:
        most = PRESENCE_NEURONS if job.models_zeros else MOVING_NEURONS
    return {"n_neurons": min(most, job.settings.n_neurons), "n_readouts": min(most, job.settings.n_readouts)}


def _fit_moves(job: Job, guidance: Guidance, groups: Index | None) -> tuple[Mover, Moves]:
    """What moves the law: a centre for each row, and the odds that its labels are there where zeros are modelled."""
    data, seen = job.data, guidance.seen
    n_trees = None
    if job.models_zeros:
        many = min(len(seen), GUIDE_ROWS) * data.n_labels >= 10**6
        n_trees = 50 if many or wants_effects(job) else 100  # of rows in groups twice: of unknown groups, and of known
    seed = derive_seed(job.seed, 12)
    table, labels = guidance.table, guidance.labels
    return fit_mover(table, data.features, labels, seen, n_trees, GUIDE_ROWS, seed, guidance.log_centre, groups)


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
    if grouped and not _has_whole_shares(job.data):
        return ["guides"]
    if grouped:  # what is known of a group moves its law: by 0.6 nats per row more than others on made-up groups
        return ["moving"] if job.may_move else ["guides"]
    if not _has_whole_shares(job.data):
        if not isinstance(job.settings.guides, str):
            return ["guides", "both"] if job.settings.validation_fraction > 0 else ["both"]
        if job.may_move and (votes := _votes_per_item(job)) < math.inf:
            if votes >= SINGLE_VOTES:
                return ["guides", "moving"]
            return ["moving"] if job.data.groups is None else ["guides"]  # validation cannot tell
        few: list[Inputs] = ["features", "guides", "moving"]
        return few if job.data.features.shape[1] > WIDE else ["guides", "both", "moving"]
    if not isinstance(job.settings.guides, str):  # the user's own: they are meant to be used
        alone: list[Inputs] = ["moving"] if job.data.n_labels >= MANY_LABELS else ["both"]
        return ["guides", "both", "moving"] if job.settings.validation_fraction > 0 else alone
    if job.data.n_labels >= MANY_LABELS and job.models_zeros and job.may_move:
        return ["moving"]
    if job.data.n_labels >= MANY_LABELS or len(job.rows) < FEATURE_ROWS:
        return ["guides", "moving"]
    if len(job.rows) < FEW_ROWS:
        return ["features", "guides", "moving"]
    return ["features", "guides", "moving"] if job.data.features.shape[1] > WIDE else ["guides", "both", "moving"]


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


def fit_large(job: Job, fit_small: Callable[[Job], FittedState], progress: Progress) -> FittedState:
    """Choose scaling, centre, zero policy and inputs on a sample of the rows, and train on all of them.

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
    settled = replace(
        settings,
        **_scaled_as(chosen),
        centre=None if chosen.centre is None else "geometric" if isinstance(settings.centre, str) else settings.centre,
    )
    policy = None if data.are_counts else ZeroPolicy(chosen.zero_policy.mode, job.labels.policy.floor)
    rows = job.rows
    if chosen.guides is not None:
        data, rows = data.with_features(*_seen_by(chosen, data)), np.setdiff1d(rows, sample)
    if chosen.inputs == "moving":  # with the few neurons that such a law needs
        n_readouts, n_neurons = chosen.net.readout.shape[1:]
        settled = replace(settled, n_neurons=n_neurons, n_readouts=n_readouts)
    whole = Job(settled, data, rows, policy=policy, warn=False, seed=job.seed, settled=True)
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
    plain = Job(settled, job.data, rows, policy=policy, warn=False, seed=job.seed, settled=True)
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


def draw_lesson(predicted: Array, D: Array, rows: Index, n_draws: int, seed: int) -> tuple[Index, Array, Array]:
    """Draws of a law of log-ratios around the guides that some rows teach, for tables too small to teach a network.

    A few dozen rows do not teach a network how to follow its guides, nor how log-ratios vary together. A law with few
    parameters learns both from them: log-ratios around a mean that is stacked of the guides' predictions, with a
    Student law for what is left (:mod:`snefy_ldl.logratio`). Its draws, beside the rows, teach the network;
    their guides lie between and beyond those of the rows.

    Args:
        predicted: log shares that guides predict for all rows, out of sample (N, G, L), whatever their sum.
        D: label distributions of all rows (N, L), strictly positive.
        rows: those that may be seen.
        n_draws: how many.
        seed: of the draws.

    Returns:
        The row near which each draw lies (n_draws,), what guides predict there (n_draws, G, L), and the drawn label
        distributions (n_draws, L).

    Example:
        >>> random = np.random.default_rng(0)
        >>> D = random.dirichlet([5, 3, 2], size=40)
        >>> where, at, drawn = draw_lesson(np.log(D)[:, None] + 0.1, D, np.arange(30), 7, 0)
        >>> at.shape, drawn.shape, bool(where.max() < 30)
        ((7, 1, 3), (7, 3), True)
    """
    random = np.random.default_rng(seed)
    basis = helmert(D.shape[1])  # (P, L)
    z, guided = np.log(D[rows]) @ basis.T, np.moveaxis(predicted[rows] @ basis.T, 1, 0)  # (N, P), (G, N, P)
    centre, offset = z.mean(0), guided.mean(1, keepdims=True)  # logs of what guides expect of shares are biased
    weights = stack_guides(guided - offset + centre, z)
    left = z - centre - np.tensordot(weights, guided - offset, 1)
    folds = random.permutation(np.arange(len(rows)) % N_FOLDS)
    amount, freedom, spread = choose_shape([left] * N_FOLDS, folds, FREEDOMS, FACTORS)
    values, axes = spectrum(left)
    picked, one, other = random.integers(len(rows), size=(3, n_draws))
    at = predicted[rows[picked]] + LESSON_STEP * (predicted[rows[one]] - predicted[rows[other]])
    mean = centre + np.tensordot(weights, np.moveaxis(at @ basis.T, 1, 0) - offset, 1)
    noise = random.standard_normal((n_draws, z.shape[1])) * np.sqrt(spread * shrink(values, amount))
    noise /= np.sqrt(random.chisquare(freedom, size=(n_draws, 1)) / freedom)
    logs = (mean + noise @ axes.T) @ basis
    drawn = np.exp(logs - logs.max(1, keepdims=True))
    return rows[picked], at, drawn / drawn.sum(1, keepdims=True)
