"""What a model answers for each row, computed once: every figure and picture of a report is made of this."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.model_selection import KFold

from snefy_ldl._internal.laws import law_blocks, log_probs, tensor_for, to_numpy
from snefy_ldl._internal.rows import as_rows, take_rows
from snefy_ldl._internal.types import Array, Index
from snefy_ldl.datasets.grouping import group_folds, read_groups, split_rows
from snefy_ldl.errors import LabelWarning, SnefyError, TableNote, TrainingWarning
from snefy_ldl.metrics import joint_pit
from snefy_ldl.snefy import SnefyLDL, fit_folds, fit_many
from snefy_ldl.training import Job, TrainingData
from snefy_ldl.training.fit import fit

#: Confidence level of the intervals.
LEVEL = 0.9
#: Fewest rows that a report can say anything about.
FEWEST_ROWS = 10
#: Seconds that a fit took up to which one process fits it again for every fold.
SHORT_FIT = 5.0


@dataclass(frozen=True, eq=False)
class JudgedRows:
    """Rows whose labels are known.

    Args:
        X: Features as the model takes them, (N, d); a DataFrame keeps the names of its columns. With groups,
            ``in_groups(X, groups)`` (:func:`snefy_ldl.datasets.in_groups`).
        D: Observed label distributions (N, L); of votes, their proportions.
        labels: Names of the labels (L).
        counts: Numbers of votes (N, L); None for shares.
        names: What to call each row (N); None for "row 1", "row 2", ...

    Example:
        >>> JudgedRows(np.zeros((12, 2)), np.full((12, 2), 0.5), ["no", "yes"]).name(0)
        'row 1'
    """

    X: Any
    D: Array
    labels: list[str]
    counts: Array | None = None
    names: list[str] | None = None

    def __len__(self) -> int:
        return len(self.D)

    @property
    def features(self) -> Any:
        """X without the groups that its rows may have."""
        return split_rows(self.X)[0]

    @property
    def groups(self) -> Index | None:
        """Number of each row's group (N,), of the first level; None where rows have no groups."""
        groups = split_rows(self.X)[1]
        return None if groups is None else read_groups(groups, len(self)).first

    def folds(self, n_folds: int, random_state: int, by_group: bool = True) -> list[tuple[Index, Index]]:
        """Training and test rows of a cross-validation.

        Args:
            n_folds: How many folds, at most.
            random_state: Seed of the folds.
            by_group: Whether folds are made of whole groups, where rows have groups.

        Returns:
            Row numbers to train on and to test on, one pair per fold.
        """
        groups = self.groups if by_group else None
        if groups is None:
            return list(KFold(n_folds, shuffle=True, random_state=random_state).split(np.zeros(len(self))))
        fold = group_folds(groups, n_folds, np.random.default_rng(random_state))
        return [(np.flatnonzero(fold != k), np.flatnonzero(fold == k)) for k in range(int(fold.max()) + 1)]

    def name(self, row: int) -> str:
        """What to call a row.

        Args:
            row: Its number, counted from 0.

        Returns:
            Its name, or its number as a person counts.
        """
        return f"row {row + 1}" if self.names is None else self.names[row]

    def pick(self, rows: Any) -> JudgedRows:
        """Some of the rows.

        Args:
            rows: Their numbers.

        Returns:
            These rows, in this order.
        """
        index = np.asarray(rows, dtype=np.intp)
        counts = None if self.counts is None else self.counts[index]
        names = [self.name(int(row)) for row in index]
        return JudgedRows(take_rows(as_rows(self.X), index), self.D[index], self.labels, counts, names)


@dataclass(frozen=True, eq=False)
class Part:
    """A fitted model and the rows it is judged on.

    Args:
        model: Anything with ``predict_dist`` and ``log_prob``.
        rows: Numbers of its rows, none of which it was fitted to.

    Example:
        >>> Part("a model", np.arange(3)).rows.tolist()
        [0, 1, 2]
    """

    model: Any
    rows: Index


@dataclass(frozen=True, eq=False)
class Answers:
    """What the model says of each row, beside what was observed.

    Args:
        mean: Predicted means (N, L).
        low: Lower ends of the central intervals of level :data:`LEVEL` (N, L).
        high: Their upper ends (N, L).
        log_prob: Log density of what was observed, or log probability of the votes (N,).
        pit: Probability of a smaller share than the observed one (N, L), spread evenly over an atom; None for votes.
        below: Probability of less than the observed share (N, L); None for votes.
        up_to: Probability of at most the observed share (N, L); differs from ``below`` at an atom. None for votes.
        joint: Joint transform of all shares (N, L-1); None for votes and if the distribution has none.
        kind: What the log density is a density of: "shares", "shares with zeros" or "votes".

    Example:
        >>> one = np.full((1, 2), 0.5)
        >>> Answers(one, one - 0.1, one + 0.1, np.zeros(1)).width.round(3).tolist()
        [0.2]
    """

    mean: Array
    low: Array
    high: Array
    log_prob: Array
    pit: Array | None = None
    below: Array | None = None
    up_to: Array | None = None
    joint: Array | None = None
    kind: str = "shares"

    @cached_property
    def width(self) -> Array:
        """Mean width of a row's intervals (N,): how unsure the model is."""
        return (self.high - self.low).mean(axis=1)

    @property
    def ends(self) -> Array:
        """Intervals (N, L, 2)."""
        return np.stack([self.low, self.high], axis=2)


def cross_fit(model: Any, rows: JudgedRows, folds: int = 5, random_state: int = 0) -> list[Part]:
    """The model fitted again without each fold, so that every row is judged by a model that has not seen it.

    A fitted model has chosen between candidates; what it chose is fitted again, without the search. Where rows have
    groups, a row is judged by a model that has not seen its group.

    Args:
        model: A fitted or unfitted :class:`~snefy_ldl.SnefyLDL`; it stays as it is.
        rows: All rows.
        folds: How many; fewer where there are few rows.
        random_state: Seed of the folds.

    Returns:
        One part per fold.

    Raises:
        InputError: The rows are too few for the model's settings.

    Example:
        >>> from snefy_ldl import SnefyLDL
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> rows = JudgedRows(city.X, city.D, city.label_names)
        >>> parts = cross_fit(SnefyLDL(guides=None, epochs=1, random_state=0), rows, folds=3)
        >>> sorted(np.concatenate([part.rows for part in parts]).tolist()) == list(range(60))
        True
    """
    splits = rows.folds(folds, random_state)
    learn = [train for train, _ in splits]
    with warnings.catch_warnings():  # the fit on all rows has warned already of what is odd about them
        for category in (LabelWarning, TableNote, TrainingWarning):
            warnings.simplefilter("ignore", category)
        if rows.counts is None:
            fitted = _refit(model, rows, learn) if type(model) is SnefyLDL else fit_folds(model, rows.X, rows.D, learn)
        else:
            alone = model.model_ if "model_" in vars(model) else model  # annotators do not matter for numbers of votes
            fitted = list(fit_many(alone, rows.features, None, learn, counts=rows.counts))
    return [Part(one, test) for one, (_, test) in zip(fitted, splits)]


def _refit(model: SnefyLDL, rows: JudgedRows, learn: Sequence[Index]) -> list[SnefyLDL]:
    """One model per fold, of the candidate that the given one chose if it is fitted."""
    if not hasattr(model, "net_"):
        return fit_many(model, rows.features, rows.D, learn)
    chosen: dict[str, Any] = {"standardize": False if model.scaling_ == "none" else model.scaling_}
    if model.inputs_ == "features":
        chosen["guides"] = None
    settled = clone(model).set_params(**chosen)
    data = TrainingData(rows.features, rows.D, None, None, settled.backbone, settled.columns)
    if model.guides_ is None or (data.columns is not None and (data.columns.has_gaps or not data.columns.is_plain)):
        return fit_many(settled, rows.features, rows.D, learn)
    jobs = [Job(settled.settings(), data, fold, warn=False) for fold in learn]
    # what is over soon is not worth processes of its own, which load the library first
    n_jobs = 1 if model.training_["seconds"] < SHORT_FIT else None
    return [clone(settled).adopt(state) for state in fit(jobs, n_jobs, model.inputs_)]


def ask(parts: Sequence[Part], rows: JudgedRows, random_state: int = 0) -> Answers:
    """Predictions of all rows.

    Args:
        parts: Models and their rows, which together are all rows.
        rows: All rows.
        random_state: Seed of the spread over atoms: a share of exactly zero gets a transform drawn evenly from 0 to
            the predicted probability of a zero.

    Returns:
        One answer per row.

    Example:
        >>> from snefy_ldl import SnefyLDL
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> model = SnefyLDL(guides=None, epochs=1, random_state=0).fit(city.X, city.D)
        >>> answers = ask([Part(model, np.arange(60))], JudgedRows(city.X, city.D, city.label_names))
        >>> answers.mean.shape, answers.pit.shape, answers.joint.shape
        ((60, 3), (60, 3), (60, 2))
    """
    shape, votes = rows.D.shape, rows.counts is not None
    mean, low, high, log_prob = np.empty(shape), np.empty(shape), np.empty(shape), np.empty(len(rows))
    below, up_to, pit, joint = (np.full((shape[0], width), np.nan) for width in (*[shape[1]] * 3, shape[1] - 1))
    random, kinds = np.random.default_rng(random_state), set[str]()
    for part in parts:
        policy = getattr(part.model, "zero_policy_", None)
        for block, dist in law_blocks(part.model, rows.pick(part.rows).X):
            here = part.rows[block]
            mean[here] = to_numpy(dist.mean)
            low[here], high[here] = np.moveaxis(to_numpy(dist.quantiles([0.5 - LEVEL / 2, 0.5 + LEVEL / 2])), 2, 0)
            observed = rows.D[here]
            shares = observed if policy is None else policy.apply(observed)
            log_prob[here] = log_probs(dist, shares, None if rows.counts is None else rows.counts[here])
            kinds.add(density_kind(dist, votes))
            if not votes:
                below[here], up_to[here] = known = _probabilities(dist, observed)
                lifted = known if np.array_equal(shares, observed) else _probabilities(dist, shares)
                pit[here] = _spread(*lifted, random)
                joint[here] = _joint(dist, shares)
    exact = {"pit": pit, "below": below, "up_to": up_to} if not votes and np.isfinite(pit).all() else {}
    whole = {"joint": joint} if not votes and np.isfinite(joint).all() else {}
    return Answers(mean, low, high, log_prob, **exact, **whole, kind=max(kinds, key=len))


def density_kind(dist: Any, votes: bool = False) -> str:
    """What a log density is a density of; numbers of different kinds cannot be compared.

    Args:
        dist: A predicted distribution.
        votes: Whether it is asked for the probability of votes.

    Returns:
        "votes", "shares with zeros" if exact zeros have a probability, or "shares".

    Example:
        >>> import torch
        >>> from snefy_ldl import SnefySimplex
        >>> density_kind(SnefySimplex.from_mixture(torch.ones(1, 1), torch.tensor([[1.0, 1.0]])))
        'shares'
    """
    return "votes" if votes else "shares with zeros" if dist.rows.may_be_zero else "shares"


def _probabilities(dist: Any, shares: Array) -> tuple[Array, Array]:
    """Probability of less than these shares, and of at most them (b, L each)."""
    labels = range(shares.shape[1])
    up_to = np.stack([to_numpy(dist.marginal(r).cdf(tensor_for(dist, shares[:, r]))) for r in labels], axis=1)
    below = np.where(shares == 0.0, 0.0, up_to)
    whole = shares == 1.0  # of positive probability if all other labels can be absent
    if whole.any():
        below = np.where(whole, np.stack([dist.rows.ends([r])[1] for r in labels], axis=1), below)
    return below, up_to


def _spread(below: Array, up_to: Array, random: np.random.Generator) -> Array:
    """One transform per share: drawn evenly from the probability of exactly this share, if it has one."""
    return np.where(up_to > below, below + (up_to - below) * random.uniform(size=below.shape), up_to)


def _joint(dist: Any, shares: Array) -> Array:
    """Joint transform (b, L-1); NaN if the distribution has no Rosenblatt map."""
    try:
        return joint_pit(dist, None, shares)
    except SnefyError:
        return np.full((len(shares), shares.shape[1] - 1), np.nan)
