"""Measures of a model: beside simple rivals with paired differences, and alone with standard errors (evaluate)."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np
import torch
from scipy import stats
from scipy.optimize import minimize_scalar
from scipy.special import gammaln, xlogy

from snefy_ldl import metrics
from snefy_ldl._internal.rows import as_rows, take_rows
from snefy_ldl._internal.seen import MOST_SEEN, count_seen
from snefy_ldl._internal.types import Array, Index
from snefy_ldl._internal.validation import check_confidence, check_counts, check_distributions
from snefy_ldl.apps.reports.answers import Answers, JudgedRows, density_kind
from snefy_ldl.datasets.grouping import in_groups, split_rows
from snefy_ldl.datasets.streams import make_stream
from snefy_ldl.datasets.zeros import ZeroPolicy
from snefy_ldl.errors import CalibrationWarning, InputError, LabelWarning, TableNote
from snefy_ldl.learners import SABFGS
from snefy_ldl.metrics.averages import mean_over_rows
from snefy_ldl.networks.starts import fit_dirichlet, label_concentration

#: Parts into which the judged rows are cut where there are no others to learn from.
FOLDS = 5


@dataclass(frozen=True, eq=False)
class Rival:
    """Answers of a simple rival for the same rows.

    Args:
        name: What to call it.
        mean: Its predictions (N, L).
        log_prob: Log density or probability it gave to what was observed (N,); None where it gives none.
        halves: Its predictions from either half of its rows alone (2, N, L); None where that was not tried.

    Example:
        >>> Rival("constant mean", np.full((2, 2), 0.5)).log_prob is None
        True
    """

    name: str
    mean: Array
    log_prob: Array | None = None
    halves: Array | None = None


def fit_rivals(
    rows: JudgedRows,
    numbers: Array,
    train: JudgedRows | None = None,
    train_numbers: Any = None,
    *,
    density: bool = True,
    by_group: bool = False,
) -> list[Rival]:
    """The constant mean, with the one Dirichlet that fits best, and SA-BFGS.

    Args:
        rows: The judged rows.
        numbers: Their features as numbers (N, d): text columns encoded, gaps filled.
        train: Rows to learn from; None learns from four fifths of the judged rows for each fifth of them.
        train_numbers: Their features as numbers.
        density: Whether the constant's likelihood can be compared with the model's, which is not so for a model that
            gives exact zeros a probability.
        by_group: Whether the fifths are made of whole groups, where rows have groups.

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
    halves = np.empty((2, *rows.D.shape))
    if train is not None:
        jobs: list[tuple[JudgedRows, Any, Index]] = [(train, train_numbers, np.arange(len(rows)))]
    else:
        splits = rows.folds(FOLDS, 0, by_group)
        jobs = [(rows.pick(learn), numbers[learn], test) for learn, test in splits]
    for given, features, test in jobs:
        mean[test] = _mean_shares(given)
        linear[test] = np.asarray(SABFGS().fit(features, given.D).predict(numbers[test]))
        for k, half in enumerate(np.array_split(np.random.default_rng(0).permutation(len(given)), 2)):
            halves[k, test] = np.asarray(SABFGS().fit(features[half], given.D[half]).predict(numbers[test]))
        if density:
            log_prob[test] = _constant_law(given)(rows.pick(test))
    constant = Rival("constant mean", mean, log_prob if density else None)
    return [constant, Rival("SA-BFGS", linear, halves=halves)]


def measure_doubling(rows: JudgedRows, rival: Rival) -> Difference:
    """What twice as many rows gain a rival: its KL divergence less that with half of them, the mean of both halves.

    Args:
        rows: The judged rows.
        rival: Which has learned from either half of its rows, too.

    Returns:
        The paired difference, whose ``value`` is the KL divergence with half of the rows.

    Example:
        >>> D = np.random.default_rng(0).dirichlet([2.0, 3.0], 12)
        >>> rival = Rival("all-knowing", D, halves=np.full((2, 12, 2), 0.5))
        >>> measure_doubling(JudgedRows(D, D, ["a", "b"]), rival).verdict
        'better'
    """
    assert rival.halves is not None
    full, *halves = (metrics.kl_divergence(rows.D, mean, per_row=True) for mean in (rival.mean, *rival.halves))
    return _difference(full, np.mean(halves, axis=0), False)


def one_dirichlet(D: Array) -> Array:
    """The one Dirichlet that fits all label distributions best: what is left when nothing is known about a row.

    Args:
        D: Label distributions without zeros (N, L).

    Returns:
        Its concentrations (L,).

    Example:
        >>> one_dirichlet(np.random.default_rng(0).dirichlet([2.0, 6.0], 4000)).round()
        array([2., 6.])
    """
    shares = torch.as_tensor(D)
    start = shares.mean(0) * max(label_concentration(shares), 1.0)
    return fit_dirichlet(shares.log().mean(0), start).numpy()


def _mean_shares(rows: JudgedRows) -> Array:
    if rows.counts is None:
        return np.asarray(rows.D.mean(axis=0))
    total = np.nansum(rows.counts, axis=0)
    return np.asarray(total / total.sum())


def _constant_law(train: JudgedRows) -> Callable[[JudgedRows], Array]:
    """Log density of rows under the one Dirichlet of the training rows, or of votes under one Dirichlet-multinomial."""
    if train.counts is None:
        policy = ZeroPolicy.from_data(train.D, "shrink")
        alpha = one_dirichlet(policy.apply(train.D))
        return lambda rows: dirichlet_log_prob(alpha, policy.apply(rows.D))
    shares, known = _mean_shares(train).clip(1e-9), np.nan_to_num(train.counts)
    best = minimize_scalar(lambda log_s: -_votes_log_prob(np.exp(log_s) * shares, known).mean(), bounds=(-4.0, 9.0))
    alpha = np.exp(best.x) * shares

    def votes_log_prob(rows: JudgedRows) -> Array:
        assert rows.counts is not None
        return _votes_log_prob(alpha, np.nan_to_num(rows.counts))

    return votes_log_prob


def dirichlet_log_prob(alpha: Array, D: Array) -> Array:
    """Log density of one Dirichlet.

    Args:
        alpha: Concentrations (L,).
        D: Label distributions without zeros (N, L).

    Returns:
        Log densities (N,).

    Example:
        >>> dirichlet_log_prob(np.ones(2), np.full((1, 2), 0.5))
        array([0.])
    """
    return gammaln(alpha.sum()) - gammaln(alpha).sum() + xlogy(alpha - 1.0, D).sum(axis=1)


def _votes_log_prob(alpha: Array, counts: Array) -> Array:
    """Log probability of the numbers of votes (N, L), given how many there are."""
    n, s = counts.sum(axis=1), alpha.sum()
    ways = gammaln(n + 1.0) - gammaln(counts + 1.0).sum(axis=1)
    return ways + gammaln(s) - gammaln(n + s) + (gammaln(counts + alpha) - gammaln(alpha)).sum(axis=1)


#: What each measure of a point prediction tells, in a few words.
MEANINGS = {
    "chebyshev": "largest miss of any label",
    "clark": "relative miss, squared and summed",
    "canberra": "relative miss, summed over labels",
    "kl_divergence": "information lost, in nats",
    "cosine": "angle between both distributions",
    "intersection": "share that both have in common",
}
#: What a likelihood of each kind is.
LIKELIHOODS = {
    "shares": "log density of shares",
    "shares with zeros": "log density of shares, zeros included as zeros",
    "votes": "log probability of a row's votes",
}
#: How measures are written where that is not their name.
NAMES = {"kl_divergence": "KL divergence"}
#: Confidence level of the paired intervals.
PAIRED_LEVEL = 0.95


@dataclass(frozen=True)
class Difference:
    """The model's figure less a rival's, over the same rows.

    Args:
        value: The rival's own figure.
        mean: Mean of model less rival.
        half_width: Half the width of its paired 95 % interval (Student).
        verdict: "better", "worse" or "even": whether that interval leaves out zero, and on which side.

    Example:
        >>> Difference(0.3, -0.1, 0.02, "better").verdict
        'better'
    """

    value: float
    mean: float
    half_width: float
    verdict: str


@dataclass(frozen=True)
class ScoreLine:
    """One measure of the model and its rivals.

    Args:
        name: The measure.
        meaning: What it tells, in a few words.
        better: "higher" or "lower".
        value: The model's figure.
        std_error: Its standard error over rows.
        rivals: The model's differences to each rival; None where a rival has no such figure.

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


def score_lines(answers: Answers, rows: JudgedRows, rivals: Sequence[Rival]) -> list[ScoreLine]:
    """The six measures of label distribution learning, and the likelihood.

    Args:
        answers: The model's, for all rows.
        rows: What was observed.
        rivals: Their answers for the same rows.

    Returns:
        Seven lines; the likelihood is the last.

    Example:
        >>> import numpy as np
        >>> D = np.random.default_rng(0).dirichlet([2.0, 3.0], 12)
        >>> flat = np.full((12, 2), 0.5)
        >>> lines = score_lines(Answers(D, D, D, np.zeros(12)), JudgedRows(D, D, ["a", "b"]), [Rival("flat", flat)])
        >>> [line.rivals[0].verdict for line in lines[:4]], lines[-1].rivals
        (['better', 'better', 'better', 'better'], [None])
    """
    lines = []
    for name, meaning in MEANINGS.items():
        measure: Any = getattr(metrics, name)
        higher = metrics.HIGHER_IS_BETTER[name]
        ours = measure(rows.D, answers.mean, per_row=True)
        others = [measure(rows.D, rival.mean, per_row=True) for rival in rivals]
        lines.append(_line(NAMES.get(name, name), meaning, higher, ours, others))
    others = [rival.log_prob for rival in rivals]
    return [*lines, _line("mean log likelihood", LIKELIHOODS[answers.kind], True, answers.log_prob, others)]


def _line(name: str, meaning: str, higher: bool, ours: Array, others: Sequence[Array | None]) -> ScoreLine:
    value, error = mean_over_rows(ours, True)
    differences = [None if theirs is None else _difference(ours, theirs, higher) for theirs in others]
    return ScoreLine(name, meaning, "higher" if higher else "lower", value, error, differences)


def _difference(ours: Array, theirs: Array, higher: bool) -> Difference:
    mean, error = mean_over_rows(ours - theirs, True)
    half = float(stats.t.ppf(0.5 + PAIRED_LEVEL / 2, len(ours) - 1) * error)
    gain = mean if higher else -mean
    verdict = "even" if abs(gain) <= half else "better" if gain > 0 else "worse"
    return Difference(float(theirs.mean()), mean, half, verdict)


def evaluate(
    model: Any, X: Any, D: Any = None, *, counts: Any = None, level: float = 0.9, groups: Any = None
) -> dict[str, Any]:
    """Score a fitted model on rows whose label distributions, or votes, are known.

    Args:
        model: with a density, such as :class:`snefy_ldl.SnefyLDL` or a pipeline that ends in one.
        X: features (N, d), or anything else that the model predicts for: tables, images, texts, graphs. A torch
            ``Dataset`` or ``DataLoader`` of pairs (x, shares) or (x, counts) needs no further labels, and is read a
            part at a time.
        D: label distributions (N, L).
        counts: votes (N, L) instead.
        level: of the intervals whose coverage and width are measured.
        groups: of the rows, (N,) or (N, k), as ``fit`` took them; None where they are not known.

    Returns:
        ``rows``; ``metrics``, each measure of :data:`snefy_ldl.metrics.HIGHER_IS_BETTER`; ``log_likelihood``; and
        ``interval`` with ``level``, ``coverage`` (None for votes, which do not show the shares behind them) and
        ``width``. Every figure is a dict of ``value``, ``std_error`` over rows (None for one row) and ``better``; the
        likelihood's ``of`` names what it is a density of: "shares", "shares with zeros" or "votes". Only figures of the
        same kind can be compared.

    Raises:
        InputError: where there are no labels, or they do not fit the rows.

    Warns:
        CalibrationWarning: where more than a tenth of the rows trained the model.

    Example:
        >>> from snefy_ldl import SnefyLDL
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=120, random_state=0)
        >>> model = SnefyLDL(epochs=2, guides=None, random_state=0).fit(city.X[:80], city.D[:80])
        >>> report = evaluate(model, city.X[80:], city.D[80:])
        >>> report["rows"], sorted(report["metrics"])[:2], report["interval"]["level"]
        (40, ['canberra', 'chebyshev'], 0.9)
    """
    check_confidence(level, "level")
    if D is not None and counts is not None:
        raise InputError("evaluate takes label distributions or counts, not both.")
    X = in_groups(X, groups)
    given = [(X, D, counts)] if D is not None or counts is not None else _labelled_chunks(X)
    parts: list[tuple[Array, Array, Array, Array]] = []
    seen, votes, kind = 0, False, "votes"
    for features, shares, numbers in given:
        votes = votes or (not parts and numbers is not None)  # the first part decides
        if not parts and not votes:
            kind = density_kind(model.predict_dist(take_rows(as_rows(features), np.arange(1))))
        parts.append(_answers(model, features, shares, numbers, level))
        seen += count_seen(model, split_rows(features)[0], parts[-1][0])
    shares, predicted, ends, densities = (np.concatenate(part) for part in zip(*parts))
    warn_if_seen(seen, len(shares))
    return _figures(shares, predicted, ends, densities, kind, level)


def _labelled_chunks(X: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Features, label distributions and votes of a data set of pairs, a part at a time; one of the last two is None."""
    for chunk in make_stream(X).chunks():
        if chunk.labels is None:
            raise InputError("evaluate needs labels: pass D or counts, or a data set of pairs (x, labels).")
        yield (chunk.X, *chunk.split(None))


def warn_if_seen(seen: int, rows: int) -> None:
    """Warn where a clear share of the rows trained the model that is scored on them.

    Args:
        seen: How many did.
        rows: How many there are.

    Warns:
        CalibrationWarning: More than a tenth of the rows did.

    Example:
        >>> warn_if_seen(1, 100)
    """
    if seen > MOST_SEEN * rows:
        warnings.warn(
            f"{seen:,} of the {rows:,} rows trained this model, which looks better on them than on new rows; evaluate "
            "it on rows that fit has not seen.",
            CalibrationWarning,
            stacklevel=3,
        )


def _answers(model: Any, X: Any, D: Any, counts: Any, level: float) -> tuple[Array, Array, Array, Array]:
    """True shares, predicted ones, intervals and log densities of some rows."""
    votes = counts is not None
    densities = model.log_prob(X, counts=counts) if votes else model.log_prob(X, D)  # refuses what does not fit
    with warnings.catch_warnings():
        for note in (TableNote, LabelWarning):
            warnings.simplefilter("ignore", note)  # log_prob has warned already
        labels = (check_counts(counts, model=model) if votes else check_distributions(D, model=model))[0]
        predicted, ends = np.asarray(model.predict(X)), np.asarray(model.predict_interval(X, level))
    return labels / labels.sum(1, keepdims=True) if votes else labels, predicted, ends, np.asarray(densities)


def _figures(shares: Array, predicted: Array, ends: Array, densities: Array, kind: str, level: float) -> dict[str, Any]:
    def measure(function: Any, better: str, *arrays: Array) -> dict[str, Any]:
        return figure(function(*arrays, return_std_error=True), better)

    std_error = densities.std(ddof=1) / np.sqrt(len(densities)) if len(densities) > 1 else np.inf
    return {
        "rows": len(shares),
        "metrics": {
            name: measure(getattr(metrics, name), "higher" if higher else "lower", shares, predicted)
            for name, higher in metrics.HIGHER_IS_BETTER.items()
        },
        "log_likelihood": {**figure((densities.mean(), std_error), "higher"), "of": kind},
        "interval": {
            "level": level,
            "coverage": None if kind == "votes" else measure(metrics.coverage, f"near {level:g}", shares, ends),
            "width": measure(metrics.interval_width, "lower", ends),
        },
    }


def figure(pair: tuple[float, float], better: str) -> dict[str, Any]:
    """A figure, its standard error and which way is better, as one entry of a report.

    Args:
        pair: value and standard error.
        better: "lower", "higher" or "near 0.9".

    Returns:
        ``value``, ``std_error`` (None where there is none) and ``better``.

    Example:
        >>> figure((0.5, float("inf")), "lower")
        {'value': 0.5, 'std_error': None, 'better': 'lower'}
    """
    value, error = (float(number) for number in pair)
    return {"value": value, "std_error": error if isfinite(error) else None, "better": better}
