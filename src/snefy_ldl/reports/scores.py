"""Measures of a model beside those of simple rivals, with paired differences: both answered for the same rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from scipy import stats

from snefy_ldl import metrics
from snefy_ldl._internal.types import Array
from snefy_ldl.metrics.averages import mean_over_rows
from snefy_ldl.reports.answers import Answers, JudgedRows
from snefy_ldl.reports.rivals import Rival

__all__ = ["MEANINGS", "Difference", "ScoreLine", "score_lines"]

#: What each measure of a point prediction tells, in a few words.
MEANINGS = {
    "chebyshev": "largest miss of any label",
    "clark": "relative miss, squared and summed",
    "canberra": "relative miss, summed over labels",
    "kl_divergence": "information lost, in nats",
    "cosine": "angle between both distributions",
    "intersection": "share that both have in common",
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
    what = "log density of what was observed" if rows.counts is None else "log probability of a row's votes"
    others = [rival.log_prob for rival in rivals]
    return [*lines, _line("mean log likelihood", what, True, answers.log_prob, others)]


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
