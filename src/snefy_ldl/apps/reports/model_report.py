"""A report in numbers: how good a model is next to simple rivals, whether to trust its intervals, and where it fails.

A report is made of what the model answers for each row (:class:`Answers`), which is computed once.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from scipy import stats
from scipy.optimize import minimize_scalar
from sklearn.model_selection import KFold

from snefy_ldl import metrics
from snefy_ldl._internal.dists import dist_blocks, log_probs, tensor_for, to_numpy
from snefy_ldl._internal.rows import as_rows, take_rows
from snefy_ldl._internal.seen import count_seen
from snefy_ldl._internal.types import Array, Index, Mask
from snefy_ldl.apps.reports.measures import BETTER, density_kind
from snefy_ldl.apps.table_rows import interval_maker
from snefy_ldl.datasets.grouping import group_folds, read_groups, split_rows
from snefy_ldl.datasets.zeros import ZeroPolicy
from snefy_ldl.errors import InputError, LabelWarning, TableNote, TrainingWarning
from snefy_ldl.explain.features import column_names
from snefy_ldl.explain.importance import Importance, rank_columns
from snefy_ldl.learners import SABFGS
from snefy_ldl.metrics import joint_calibration_test, joint_pit
from snefy_ldl.metrics.averages import covered_labels, mean_over_rows
from snefy_ldl.metrics.joint import FEWEST_ROWS as FEWEST_JOINT
from snefy_ldl.metrics.joint import JointCalibration
from snefy_ldl.networks.net import fit_dirichlet
from snefy_ldl.prediction import innermost
from snefy_ldl.snefy import fit_folds, fit_many

#: Share of rows that trained the model from which a report warns.
FEW_SEEN = 0.02
#: Confidence level of the intervals, and levels of the coverage curves.
LEVEL, LEVELS = 0.9, (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
#: Fewest rows of a report, and of a group of rows.
FEWEST_ROWS, FEWEST_IN_GROUP = 10, 10
#: Parts into which the judged rows are cut if there are no others to learn from.
FOLDS = 5
#: Confidence level of paired intervals, and the probability of a false alarm about a group, over all groups together.
PAIRED_LEVEL, FALSE_ALARM = 0.95, 0.05
#: Most values of a column that make a group each; columns of more are cut into quarters.
MOST_VALUES = 8

#: Models, and the numbers of the rows that each answers for, none of which it was fitted to.
Parts = Sequence[tuple[Any, Index]]


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
        below: Limits of shares that are known to lie below them (N, L), NaN elsewhere; None without any.

    Example:
        >>> JudgedRows(np.zeros((12, 2)), np.full((12, 2), 0.5), ["no", "yes"]).name(0)
        'row 1'
    """

    X: Any
    D: Array
    labels: list[str]
    counts: Array | None = None
    names: list[str] | None = None
    below: Array | None = None

    def __len__(self) -> int:
        return len(self.D)

    @property
    def features(self) -> Any:
        """X without the groups that its rows may have."""
        return split_rows(self.X)[0]

    @property
    def groups(self) -> Index | None:
        """Number of each row's group (N,), of the first level; None if rows have no groups."""
        groups = split_rows(self.X)[1]
        return None if groups is None else read_groups(groups, len(self)).first

    def folds(self, n_folds: int, random_state: int, by_group: bool = True) -> list[tuple[Index, Index]]:
        """Training and test rows of a cross-validation.

        Args:
            n_folds: How many folds, at most.
            random_state: Seed of the folds.
            by_group: Whether folds are made of whole groups, if rows have groups.

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
            Its name, or its number counted from 1.
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
        below = None if self.below is None else self.below[index]
        return JudgedRows(take_rows(as_rows(self.X), index), self.D[index], self.labels, counts, names, below)


# -- answers -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Answers:
    """The model's predictions for each row, and where the observed shares lie in them.

    Args:
        mean: Predicted means (N, L).
        low: Lower ends of the central intervals of level :data:`LEVEL` (N, L).
        high: Their upper ends (N, L).
        log_prob: Log density of the observed shares, or log probability of the votes (N,).
        pit: Probability of a smaller share than the observed one (N, L), drawn evenly within an atom; None for votes.
        joint: Joint transform of all shares (N, L-1); None for votes.
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


def cross_fit(model: Any, rows: JudgedRows, folds: int = 5, random_state: int = 0) -> Parts:
    """The model fitted again without each fold, so that every row is judged by a model that has not seen it.

    A model that chose between candidates is fitted with its choice alone. If rows have groups,
    a row is judged by a model that has not seen its group.

    Args:
        model: A fitted or unfitted :class:`~snefy_ldl.SnefyLDL`; it stays as it is.
        rows: All rows.
        folds: How many; fewer if there are few rows.
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
        >>> sorted(np.concatenate([judged for _, judged in parts]).tolist()) == list(range(60))
        True
    """
    splits = rows.folds(folds, random_state)
    learn = [train for train, _ in splits]
    settled = getattr(model, "settled", None)
    model = model if settled is None else settled()
    with warnings.catch_warnings():  # the fit on all rows has warned already
        for category in (LabelWarning, TableNote, TrainingWarning):
            warnings.simplefilter("ignore", category)
        if rows.counts is None:
            fitted = fit_folds(model, rows.X, rows.D, learn, below=rows.below)
        else:
            alone = innermost(model)  # annotators do not matter for numbers of votes
            fitted = list(fit_many(alone, rows.features, None, learn, counts=rows.counts))
    return [(one, test) for one, (_, test) in zip(fitted, splits)]


def ask(parts: Parts, rows: JudgedRows, random_state: int = 0) -> Answers:
    """Predictions of all rows.

    Args:
        parts: Models and their rows, which together are all rows.
        rows: All rows.
        random_state: Seed of the transform of exact zeros, which is drawn evenly from 0 to their probability.

    Returns:
        One answer per row.

    Example:
        >>> from snefy_ldl import SnefyLDL
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> model = SnefyLDL(guides=None, epochs=1, random_state=0).fit(city.X, city.D)
        >>> answers = ask([(model, np.arange(60))], JudgedRows(city.X, city.D, city.label_names))
        >>> answers.mean.shape, answers.pit.shape, answers.joint.shape
        ((60, 3), (60, 3), (60, 2))
    """
    (n, n_labels), votes = rows.D.shape, rows.counts is not None
    mean, low, high, pit = (np.empty((n, n_labels)) for _ in range(4))
    log_prob, joint, random, kinds = (
        np.empty(n),
        np.empty((n, n_labels - 1)),
        np.random.default_rng(random_state),
        set(),
    )
    for model, judged in parts:
        policy = getattr(model, "zero_policy_", None)
        for block, dist in dist_blocks(model, rows.pick(judged).X):
            here = judged[block]
            mean[here] = to_numpy(dist.mean)
            low[here], high[here] = np.moveaxis(to_numpy(dist.quantiles([0.5 - LEVEL / 2, 0.5 + LEVEL / 2])), 2, 0)
            shares = rows.D[here] if policy is None else policy.apply(rows.D[here])
            counts, below = (None if table is None else table[here] for table in (rows.counts, rows.below))
            log_prob[here] = log_probs(dist, shares, counts, below)
            kinds.add(density_kind(dist, votes, below is not None))
            if not votes:
                pit[here], joint[here] = _transform(dist, shares, random), joint_pit(dist, None, shares)
    transforms = {} if votes else {"pit": pit, "joint": joint}
    return Answers(mean, low, high, log_prob, **transforms, kind=max(kinds, key=len))


def _transform(dist: Any, shares: Array, random: np.random.Generator) -> Array:
    """Probability of less than each share (b, L), drawn evenly from the probability of exactly this share if any."""
    labels = range(shares.shape[1])
    up_to = np.stack([to_numpy(dist.marginal(r).cdf(tensor_for(dist, shares[:, r]))) for r in labels], axis=1)
    below = np.where(shares == 0.0, 0.0, up_to)
    whole = shares == 1.0  # of positive probability if all other labels can be absent
    if whole.any():
        below = np.where(whole, np.stack([dist.rows.ends([r])[1] for r in labels], axis=1), below)
    return below + (up_to - below) * random.uniform(size=below.shape)


# -- simple rivals -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Rival:
    """Answers of a simple rival for the same rows.

    Args:
        name: What to call it.
        mean: Its predictions (N, L).
        log_prob: Log density or probability it gave to the observed labels (N,); None if it gives none.

    Example:
        >>> Rival("constant mean", np.full((2, 2), 0.5)).log_prob is None
        True
    """

    name: str
    mean: Array
    log_prob: Array | None = None


def fit_rivals(
    rows: JudgedRows,
    numbers: Array,
    train: tuple[JudgedRows, Array] | None = None,
    *,
    density: bool = True,
    by_group: bool = False,
) -> list[Rival]:
    """The constant mean, with the one Dirichlet that fits best, and SA-BFGS.

    Args:
        rows: The judged rows.
        numbers: Their features as numbers (N, d): text columns encoded, gaps filled.
        train: Rows to learn from and their features as numbers; None learns from four fifths of the judged rows for
            each fifth of them.
        density: Whether the constant's likelihood can be compared with the model's, which is not so for a model that
            gives exact zeros a probability.
        by_group: Whether the fifths are made of whole groups, if rows have groups.

    Returns:
        Both rivals.

    Example:
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=100, random_state=0)
        >>> rows = JudgedRows(city.X, city.D, city.label_names)
        >>> [rival.name for rival in fit_rivals(rows, city.X)]
        ['constant mean', 'SA-BFGS']
    """
    mean, linear, log_prob = np.empty(rows.D.shape), np.empty(rows.D.shape), np.empty(len(rows))
    if train is not None:
        jobs = [(*train, np.arange(len(rows)))]
    else:
        jobs = [(rows.pick(learn), numbers[learn], test) for learn, test in rows.folds(FOLDS, 0, by_group)]
    for given, features, test in jobs:
        mean[test] = _mean_shares(given)
        linear[test] = np.asarray(SABFGS().fit(features, given.D).predict(numbers[test]))
        if density:
            log_prob[test] = _constant_density(given)(rows.pick(test))
    constant = Rival("constant mean", mean, log_prob if density else None)
    return [constant, Rival("SA-BFGS", linear)]


def one_dirichlet(D: Array) -> Array:
    """The one Dirichlet that fits all label distributions best, for rows of which nothing is known.

    Args:
        D: Label distributions without zeros (N, L).

    Returns:
        Its concentrations (L,).

    Example:
        >>> one_dirichlet(np.random.default_rng(0).dirichlet([2.0, 6.0], 4000)).round()
        array([2., 6.])
    """
    return fit_dirichlet(torch.as_tensor(D)).numpy()


def _mean_shares(rows: JudgedRows) -> Array:
    if rows.counts is None:
        return np.asarray(rows.D.mean(axis=0))
    total = np.nansum(rows.counts, axis=0)
    return np.asarray(total / total.sum())


def _constant_density(train: JudgedRows) -> Callable[[JudgedRows], Array]:
    """Log density of rows under the one Dirichlet of the training rows, or of votes under one Dirichlet-multinomial."""
    if train.counts is None:
        policy = ZeroPolicy.from_data(train.D, "shrink")
        alpha = one_dirichlet(policy.apply(train.D))
        return lambda rows: stats.dirichlet.logpdf(policy.apply(rows.D).T, alpha)
    shares = _mean_shares(train).clip(1e-9)

    def log_prob(log_s: float, rows: JudgedRows) -> Array:
        counts = np.nan_to_num(np.asarray(rows.counts)).astype(int)
        return np.asarray(stats.dirichlet_multinomial.logpmf(counts, np.exp(log_s) * shares, counts.sum(axis=1)))

    best = minimize_scalar(lambda log_s: -log_prob(log_s, train).mean(), bounds=(-4.0, 9.0)).x
    return lambda rows: log_prob(best, rows)


#: The six measures of point predictions: title, and what they show in a few words.
MEASURES = {
    "chebyshev": ("chebyshev", "largest miss of any label"),
    "clark": ("clark", "relative miss, squared and summed"),
    "canberra": ("canberra", "relative miss, summed over labels"),
    "kl_divergence": ("KL divergence", "information lost, in nats"),
    "cosine": ("cosine", "angle between both distributions"),
    "intersection": ("intersection", "share that both have in common"),
}
#: What a likelihood of each kind is.
LIKELIHOODS = {
    "shares": "log density of shares",
    "shares with zeros": "log density of shares, zeros included as zeros",
    "shares below limits": "log density of exact shares, and probability that the others lie below their limits",
    "votes": "log probability of a row's votes",
}


@dataclass(frozen=True)
class Difference:
    """The model's figure minus a rival's, over the same rows.

    Args:
        value: The rival's own figure.
        mean: Mean of model minus rival.
        half_width: Half the width of its paired 95 % interval (Student).
        verdict: "better", "worse" or "even": whether that interval excludes zero, and on which side.

    Example:
        >>> Difference(0.3, -0.1, 0.02, "better").verdict
        'better'
    """

    value: float
    mean: float
    half_width: float
    verdict: str

    @classmethod
    def of(cls, ours: Array, theirs: Array, better: str) -> Difference:
        """The paired difference of two figures per row (N,)."""
        mean, error = mean_over_rows(ours - theirs, True)
        half = float(stats.t.ppf(0.5 + PAIRED_LEVEL / 2, len(ours) - 1) * error)
        gain = mean if better == "higher" else -mean
        verdict = "even" if abs(gain) <= half else "better" if gain > 0 else "worse"
        return cls(float(theirs.mean()), mean, half, verdict)


@dataclass(frozen=True)
class ScoreLine:
    """One measure of the model and its rivals.

    Args:
        name: The measure.
        meaning: What it shows, in a few words.
        better: "higher" or "lower".
        value: The model's figure.
        std_error: Its standard error over rows.
        rivals: The model's differences to each rival; None if a rival has no such figure.

    Example:
        >>> ScoreLine("cosine", "angle between both distributions", "higher", 0.9, 0.01, []).value
        0.9
    """

    name: str
    meaning: str
    better: str
    value: float
    std_error: float
    rivals: list[Difference | None]

    @classmethod
    def of(cls, name: str, meaning: str, better: str, ours: Array, rivals: Sequence[Array | None]) -> ScoreLine:
        """The line of figures per row (N,), of the model and of its rivals."""
        differences = [None if theirs is None else Difference.of(ours, theirs, better) for theirs in rivals]
        value, error = mean_over_rows(ours, True)
        return cls(name, meaning, better, value, error, differences)


def score_lines(answers: Answers, rows: JudgedRows, rivals: Sequence[Rival]) -> list[ScoreLine]:
    """The six measures of label distribution learning, and the likelihood.

    Args:
        answers: The model's, for all rows.
        rows: The observed rows.
        rivals: Their answers for the same rows.

    Returns:
        Seven lines; the likelihood is the last.

    Example:
        >>> D = np.random.default_rng(0).dirichlet([2.0, 3.0], 12)
        >>> flat = np.full((12, 2), 0.5)
        >>> lines = score_lines(Answers(D, D, D, np.zeros(12)), JudgedRows(D, D, ["a", "b"]), [Rival("flat", flat)])
        >>> [line.rivals[0].verdict for line in lines[:4]], lines[-1].rivals
        (['better', 'better', 'better', 'better'], [None])
    """
    lines = []
    for name, (title, meaning) in MEASURES.items():
        measure: Any = getattr(metrics, name)
        ours, *others = (measure(rows.D, mean, per_row=True) for mean in (answers.mean, *(one.mean for one in rivals)))
        lines.append(ScoreLine.of(title, meaning, BETTER[name], ours, others))
    likely = [rival.log_prob for rival in rivals]
    return [*lines, ScoreLine.of("mean log likelihood", LIKELIHOODS[answers.kind], "higher", answers.log_prob, likely)]


# -- coverage ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Trust:
    """Coverage of the model's own intervals, and of calibrated ones.

    Args:
        curve: Observed coverage of the model's own intervals at each of :data:`LEVELS` (A,).
        coverage: Own coverage at :data:`LEVEL` of each label (L,).
        calibrated: Calibrated coverage at :data:`LEVEL` of each label (L,); None without a calibration.
        width: Mean width of the own intervals of each label (L,).
        joint: Test of joint calibration; None below 20 rows.

    Example:
        >>> Trust(np.ones(10), np.ones(2), None, np.ones(2), None).coverage.mean()
        np.float64(1.0)
    """

    curve: Array
    coverage: Array
    calibrated: Array | None
    width: Array
    joint: JointCalibration | None


def judge_coverage(parts: Parts, rows: JudgedRows, answers: Answers, calibration: Any = None) -> Trust | None:
    """How often shares lie inside their intervals: the model's own, and calibrated ones.

    Args:
        parts: Models and their rows.
        rows: All rows.
        answers: The models' answers for them.
        calibration: Conformalized intervals with :data:`LEVEL` among their levels, or None.

    Returns:
        The coverages; None for votes, which do not show the shares behind them.

    Example:
        >>> from snefy_ldl import SnefyLDL
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=120, random_state=0)
        >>> parts = [(SnefyLDL(guides=None, epochs=3, random_state=0).fit(city.X, city.D), np.arange(120))]
        >>> rows = JudgedRows(city.X, city.D, city.label_names)
        >>> judge_coverage(parts, rows, ask(parts, rows)).coverage.shape
        (3,)
    """
    if answers.pit is None or answers.joint is None:
        return None
    inside = np.abs(answers.pit - 0.5) <= np.array(LEVELS)[:, None, None] / 2
    calibrated = None
    if calibration is not None:
        ends = interval_maker(parts[0][0], calibration, LEVEL)(rows.X)
        calibrated = metrics.coverage(rows.D, ends, per_label=True)
    return Trust(
        inside.mean(axis=(1, 2)),
        metrics.coverage(rows.D, answers.ends, per_label=True),
        calibrated,
        metrics.interval_width(answers.ends, per_label=True),
        joint_calibration_test(answers.joint) if len(rows) >= FEWEST_JOINT else None,
    )


# -- failures ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RowMiss:
    """A row with a large error.

    Args:
        row: Its number, counted from 0.
        kl: KL divergence of the predicted mean from the observed shares.
        surprise: Predicted probability of a share at least as far out, of the label that is furthest out, times the
            number of labels: small if the model was sure of something wrong. None for votes.
        outside: Labels whose share lies outside its interval.

    Example:
        >>> RowMiss(0, 0.5, 0.01, ["clay"]).outside
        ['clay']
    """

    row: int
    kl: float
    surprise: float | None
    outside: list[str]


@dataclass(frozen=True)
class GroupMiss:
    """A group of rows on which the model is worse than on the others.

    Args:
        column: The column that makes the group.
        value: Which of its values, in words.
        n: Rows of the group.
        kl: Their mean KL divergence.
        kl_others: That of the other rows.
        p_value: Probability of such a difference by chance (Welch's test), times the number of groups looked at.
        coverage: Share of labels inside their interval in the group; None for votes.

    Example:
        >>> GroupMiss("depth", "above 80", 30, 0.3, 0.1, 0.001, 0.8).n
        30
    """

    column: str
    value: str
    n: int
    kl: float
    kl_others: float
    p_value: float
    coverage: float | None


def worst_rows(answers: Answers, rows: JudgedRows, n: int = 6) -> list[RowMiss]:
    """The rows whose predicted mean is furthest from the observed shares, by KL divergence.

    Args:
        answers: The model's, for all rows.
        rows: The observed rows.
        n: How many.

    Returns:
        The worst first.

    Example:
        >>> D = np.array([[0.5, 0.5]] * 11 + [[0.9, 0.1]])
        >>> half = np.full((12, 2), 0.5)
        >>> worst_rows(Answers(half, half - 0.1, half + 0.1, np.zeros(12)), JudgedRows(D, D, ["a", "b"]), 1)[0].row
        11
    """
    kl = metrics.kl_divergence(rows.D, answers.mean, per_row=True)
    missed = ~covered_labels(rows.D, answers.ends)
    misses = []
    for row in np.argsort(-kl, kind="stable")[:n]:
        surprise = None
        if answers.pit is not None:
            tails = 2.0 * np.minimum(answers.pit[row], 1.0 - answers.pit[row])
            surprise = min(1.0, float(tails.min()) * rows.D.shape[1])
        outside = [] if rows.counts is not None else [rows.labels[r] for r in np.flatnonzero(missed[row])]
        misses.append(RowMiss(int(row), float(kl[row]), surprise, outside))
    return misses


def worst_groups(answers: Answers, rows: JudgedRows, n: int = 6) -> tuple[list[GroupMiss], int]:
    """Groups on which the predicted mean is further off than on the other rows, more than luck explains.

    Groups are the values of each column, quarters of a column of many numbers, and the label predicted largest.

    Args:
        answers: The model's, for all rows.
        rows: The observed rows.
        n: At most so many.

    Returns:
        The groups, the surest first, and how many were looked at.

    Example:
        >>> D = np.array([[0.5, 0.5]] * 30 + [[0.8, 0.2], [0.7, 0.3]] * 15)
        >>> half = np.full((60, 2), 0.5)
        >>> answers = Answers(half, half - 0.1, half + 0.1, np.zeros(60))
        >>> groups, looked = worst_groups(answers, JudgedRows(np.repeat([0.0, 1.0], 30)[:, None], D, ["a", "b"]))
        >>> groups[0].value, looked
        ('1', 2)
    """
    kl = metrics.kl_divergence(rows.D, answers.mean, per_row=True)
    inside = covered_labels(rows.D, answers.ends).mean(axis=1)
    most = len(rows) - FEWEST_IN_GROUP
    groups = [group for group in _row_groups(answers, rows) if FEWEST_IN_GROUP <= group[2].sum() <= most]
    misses = []
    for column, value, members in groups:
        here, others = kl[members], kl[~members]
        # equal figures differ by rounding: a thousandth of their mean is no difference
        if here.mean() > 1.001 * others.mean():
            chance = stats.ttest_ind(here, others, equal_var=False, alternative="greater").pvalue if np.ptp(kl) else 1.0
            p_value = min(1.0, float(np.nan_to_num(chance)) * len(groups))
            covered = None if rows.counts is not None else float(inside[members].mean())
            misses.append(GroupMiss(column, value, len(here), here.mean(), others.mean(), p_value, covered))
    clear = [miss for miss in misses if miss.p_value <= FALSE_ALARM]
    return sorted(clear, key=lambda miss: (miss.p_value, -miss.kl))[:n], len(groups)


def _row_groups(answers: Answers, rows: JudgedRows) -> Iterator[tuple[str, str, Mask]]:
    """A column, its value in words, and which rows have it (N,); also the label predicted largest."""
    X = rows.features
    for k, name in enumerate(column_names(X)):
        for value, members in _column_groups(X[name] if hasattr(X, "columns") else np.asarray(X)[:, k]):
            yield name, value, members
    largest = answers.mean.argmax(axis=1)
    for r, label in enumerate(rows.labels):
        yield "largest predicted share", label, largest == r


def _column_groups(column: Any) -> Iterator[tuple[str, Mask]]:
    """Values of a column in words, and which rows have them."""
    import pandas as pd  # an extra, which a report needs

    cells = pd.Series(np.asarray(column))
    numbers = pd.to_numeric(cells, errors="coerce").astype(float)
    missing = cells.isna().to_numpy()
    is_numeric = cells.dtype.kind not in "bM" and numbers.notna().sum() >= 0.9 * (~missing).sum()
    if missing.any():
        yield "missing", missing
    if not is_numeric:
        for value in cells.dropna().astype(str).value_counts().index[:MOST_VALUES]:
            yield value, (cells.astype(str) == value).to_numpy() & ~missing
    elif numbers.nunique() <= MOST_VALUES:
        for number in np.sort(numbers.dropna().unique()):
            yield number_words(number), (numbers == number).to_numpy()
    else:
        cuts = np.quantile(numbers.dropna(), [0.25, 0.5, 0.75])
        quarter = np.where(numbers.isna(), -1, np.searchsorted(cuts, numbers))
        low, middle, high = (number_words(cut) for cut in cuts)
        names = (f"up to {low}", f"{low} to {middle}", f"{middle} to {high}", f"above {high}")
        for k, name in enumerate(names):
            yield name, quarter == k


def number_words(value: float) -> str:
    """A number as one writes it in a sentence.

    Args:
        value: Any number.

    Returns:
        Three digits, or all those before the point of a large number.

    Example:
        >>> number_words(3945.2), number_words(0.03312), number_words(7.0), number_words(2e9)
        ('3,945', '0.0331', '7', '2e+09')
    """
    return f"{value:,.0f}" if 1000.0 <= abs(value) < 1e7 else f"{value:.3g}"


# -- everything --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Report:
    """Evaluation results of a model on rows with known labels.

    Args:
        model: The fitted model.
        rows: The judged rows.
        parts: Which model answered for which rows.
        answers: The answers.
        rivals: Names of the simple rivals, and of further ones.
        scores: Measures of the model and its rivals.
        trust: Coverage before and after calibration; None for votes.
        importance: What shuffling each column costs, the most important first.
        worst_rows: The rows with the largest errors.
        worst_groups: Groups that are clearly worse.
        groups_looked_at: Among how many these were found.
        shown: Numbers of the surest, a typical and the least sure row.
        trained_here: Whether rivals learned from the judged rows, four fifths for each fifth.
        folds: In how many folds the model was fitted again for the report; 0 if it answered itself.
        seen: Share of the judged rows that trained the model that answered for them.

    Example:
        >>> from snefy_ldl import SnefyLDL
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> model = SnefyLDL(epochs=1, guides=None, random_state=0).fit(city.X[:30], city.D[:30])
        >>> report = make_report(model, JudgedRows(city.X[30:], city.D[30:], city.label_names))
        >>> report.folds, report.line("KL divergence").name
        (0, 'KL divergence')
    """

    model: Any
    rows: JudgedRows
    parts: Parts
    answers: Answers
    rivals: list[str]
    scores: list[ScoreLine]
    trust: Trust | None
    importance: list[Importance]
    worst_rows: list[RowMiss]
    worst_groups: list[GroupMiss]
    groups_looked_at: int
    shown: list[int]
    trained_here: bool
    folds: int
    seen: float = 0.0

    def dist_of(self, row: int) -> Any:
        """The predicted distribution of one row, by the model that answered for it.

        Args:
            row: Its number, counted from 0.

        Returns:
            A distribution with batch (1,).
        """
        model = next(model for model, judged in self.parts if row in judged)
        return next(dist for _, dist in dist_blocks(model, self.rows.pick([row]).X))

    def line(self, name: str) -> ScoreLine:
        """One measure.

        Args:
            name: "KL divergence", "mean log likelihood", ...

        Returns:
            Its line.
        """
        return next(line for line in self.scores if line.name == name)


def make_report(
    model: Any,
    rows: JudgedRows,
    *,
    train: JudgedRows | None = None,
    folds: int = 0,
    calibration: Any = None,
    rivals: Sequence[Rival] = (),
    random_state: int = 0,
) -> Report:
    """All figures of a report.

    Args:
        model: A fitted :class:`~snefy_ldl.SnefyLDL` or :class:`~snefy_ldl.LogRatioLDL`; it is not changed.
        rows: Rows with known labels that the fit has not seen (with ``folds``, those it has).
        train: Rows that the simple rivals learn from; None lets them learn from four fifths of the judged rows.
        folds: Judge the model's settings by cross-validation, fitted again so many times; 0 judges the model itself.
        calibration: Conformalized intervals of level 0.9; None shows none.
        rivals: Further answers for the judged rows to compare with.
        random_state: Seed of folds, halves and shuffles.

    Returns:
        The report.

    Raises:
        InputError: There are fewer than ten rows, or a table breaks a rule.

    Example:
        >>> from snefy_ldl import SnefyLDL
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=160, random_state=0)
        >>> model = SnefyLDL(guides=None, epochs=3, random_state=0).fit(city.X[:100], city.D[:100])
        >>> report = make_report(model, JudgedRows(city.X[100:], city.D[100:], city.label_names))
        >>> len(report.scores), len(report.importance), report.trained_here
        (7, 5, True)
    """
    if len(rows) < FEWEST_ROWS:
        raise InputError(f"a report needs at least {FEWEST_ROWS} rows with known labels; got {len(rows)}.")
    parts = cross_fit(model, rows, folds, random_state) if folds else [(model, np.arange(len(rows)))]
    answers = ask(parts, rows, random_state)
    numbers = _feature_numbers(model, rows.features)
    others = None if train is None else (train, _feature_numbers(model, train.features))
    simple = fit_rivals(rows, numbers, others, density=answers.kind in ("shares", "votes"), by_group=folds > 0)
    rivals = [*simple, *rivals]
    groups, looked = worst_groups(answers, rows)
    order, random = np.argsort(answers.width, kind="stable"), np.random.default_rng(random_state)
    known = None if rows.below is not None else (answers.log_prob, answers.mean)
    return Report(
        model=model,
        rows=rows,
        parts=parts,
        answers=answers,
        rivals=[rival.name for rival in rivals],
        scores=score_lines(answers, rows, rivals),
        trust=judge_coverage(parts, rows, answers, None if folds else calibration),
        importance=rank_columns(parts, rows.X, (rows.D, rows.counts), rows.labels, random, before=known),
        worst_rows=worst_rows(answers, rows),
        worst_groups=groups,
        groups_looked_at=looked,
        shown=[int(order[place]) for place in (0, len(order) // 2, -1)],
        trained_here=train is None,
        folds=folds,
        seen=0.0 if folds else count_seen(model, rows.X, rows.D) / len(rows),
    )


def _feature_numbers(model: Any, X: Any) -> Array:
    """Features as numbers without gaps (N, k), encoded as the model encodes them."""
    columns = getattr(model, "columns_", None)
    with warnings.catch_warnings():  # the predictions have warned already
        warnings.simplefilter("ignore", TableNote)
        return np.asarray(X if columns is None else columns.transform(X), dtype=np.float64)
