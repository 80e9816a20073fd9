"""Every kind of law is asked every question: it answers right, or says no with a reason and ``supports`` says so, too.

Answers are compared with integrals over the simplex of a density written down here from the formula, and with draws;
the draws are compared with the integrals, too. Comparisons with draws ask for Z = 6.6 standard errors, below 4e-11
each, so that fewer than 20,000 of them raise a false alarm once in a million runs; the seeds are fixed.
"""

from __future__ import annotations

import copy
import itertools
import math
import pickle
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch
from snefy_ldl.distributions.conditioned import ConditionedLaw
from torch import Tensor

from kinds import (
    ANSWERS,
    CDF_POINTS,
    KINDS,
    KNOWN,
    LAWS,
    LEVELS,
    MORE_VOTES,
    POINTS,
    VOTES,
    ZERO_POINTS,
    Numbers,
    before_votes,
    numbers_of,
)
from snefy_ldl import SnefySimplex
from snefy_ldl.errors import InputError

Z, DRAWS = 6.6, 20_000
#: Absolute error of the integrals, with a margin; they are good to 1e-8.
EXACT = 2e-7

ZEROS = ("zeros", "centre and zeros", "moving and zeros")
NOT_PLAIN = tuple(kind for kind in KINDS if kind != "plain")
WHY = {
    "merged": "sums of gammas of different scales, or of gammas that may be absent, are no gammas",
    "votes": "votes mix over a scale that all labels share, and the smaller law would have to mix in the same way",
    "shift": "the factor of the other labels' odds is another in every row, and the readout is the same in all",
    "no ratio": "labels that may be absent have no ratio, and their logarithms no moments",
}
#: What ``supports`` denies: question -> (kind, after votes) -> why.
DENIED: dict[str, dict[tuple[str, bool], str]] = {
    "amalgamate": {(kind, voted): WHY["merged"] for kind in NOT_PLAIN for voted in (False, True)},
    "subcomposition": {(kind, True): WHY["votes"] for kind in NOT_PLAIN} | {("moving and zeros", False): WHY["shift"]},
    "given_support": {(kind, True): WHY["votes"] for kind in NOT_PLAIN},
    "condition_ratios": {(kind, True): WHY["votes"] for kind in NOT_PLAIN}
    | {(k, False): WHY["no ratio"] for k in ZEROS},
    "covariance_log": {(kind, voted): WHY["no ratio"] for kind in ZEROS for voted in (False, True)},
}


# -- integrals -------------------------------------------------------------------------------------------------------


def axis(low: float = 0.0, high: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    """The trapezoidal rule on the logit scale between two shares: t, 1 - t and the measure dt."""
    z = torch.arange(-21.0, 21.1, 0.25, dtype=torch.float64)
    below, above = torch.sigmoid(z), torch.sigmoid(-z)
    width = high - low
    return low + width * below, (1.0 - high) + width * above, 0.25 * width * below * above


def edge(i: int, j: int, low: float = 0.0, high: float = 1.0) -> tuple[Tensor, Tensor]:
    """Points with two labels, the first one's share between two bounds, and their measure."""
    t, rest, measure = axis(low, high)
    points = torch.zeros(len(t), 3, dtype=torch.float64)
    points[:, i], points[:, j] = t, rest
    return points, measure


def face(
    order: tuple[int, int, int], first: tuple[float, float] = (0.0, 1.0), second: tuple[float, float] = (0.0, 1.0)
) -> tuple[Tensor, Tensor]:
    """Points with all labels: ``t`` for the first, ``s (1 - t)`` for the second, both between bounds."""
    t, rest, dt = (part[:, None] for part in axis(*first))
    s, other, ds = axis(*second)
    points = torch.empty(len(t), len(s), 3, dtype=torch.float64)
    points[..., order[0]], points[..., order[1]], points[..., order[2]] = t, rest * s, rest * other
    return points.reshape(-1, 3), (dt * ds * rest).reshape(-1)


def vertex(label: int) -> tuple[Tensor, Tensor]:
    """The point at which one label has everything."""
    return torch.eye(3, dtype=torch.float64)[[label]], torch.ones(1, dtype=torch.float64)


def together(*parts: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Points and measures of several parts of the simplex."""
    points, measures = zip(*parts)
    return torch.cat(points), torch.cat(measures)


class Oracle:
    """A law by its formula and by integrals: no code of the library.

    Args:
        numbers: of the law.
    """

    def __init__(self, numbers: Numbers) -> None:
        self.numbers = numbers
        self.zeros = numbers.presence is not None
        supports = [face((0, 1, 2))]
        if self.zeros:
            supports += [edge(0, 1), edge(0, 2), edge(1, 2), vertex(0), vertex(1), vertex(2)]
        self.points, self.measure = together(*supports)
        squares = self._log_squares(self.points)  # (S, N, K)
        self._log_z = torch.logsumexp(squares + self.measure.log()[:, None, None], 0)  # (N, K)
        before = self._before(squares)
        self.log_evidence = torch.logsumexp(before + self._powers(self.points) + self.measure.log()[:, None], 0)
        self.density = (before + self._powers(self.points) - self.log_evidence).exp()  # (S, N)

    def _log_squares(self, points: Tensor) -> Tensor:
        """The log of every member's square at points (S, 3), not normalised: (S, N, K)."""
        own = self.numbers
        w, readout, scale = own.exponents, own.readout, own.log_scale
        there = points > 0.0
        logs = torch.where(there, points.clamp_min(1e-300).log(), -math.inf)
        centre = torch.zeros(3, 3, dtype=torch.float64) if own.centre is None else own.centre.log().expand(3, 3)
        plain = torch.log_softmax(logs[:, None] - centre, -1)  # (S, N, 3)
        plain = torch.where(there[:, None], plain, 0.0)
        jacobian = (plain - torch.where(there, logs, 0.0)[:, None]).sum(-1)
        alpha = 1.0 + w[:, :, None] + w[:, None]  # (K, n, n, 3)
        gram = torch.einsum("kmi,kmj->kij", readout, readout)
        same = torch.arange(3)
        if own.presence is None:
            g = 0.5 * (torch.lgamma(1.0 + 2.0 * w).sum(-1) - torch.lgamma((1.0 + 2.0 * w).sum(-1)))
            u = torch.einsum("snl,kil->snki", plain, w) + scale - g  # (S, N, K, n)
            factor = torch.zeros(8, 1, 3, 3, dtype=torch.float64)
        else:
            shift = torch.zeros(3, 3, dtype=torch.float64) if own.shift is None else own.shift  # (N, 3)
            odds = (2.0 * own.presence)[None] + torch.lgamma(alpha[:, same, same])[None] + shift[:, None, None]
            g = 0.5 * ((1.0 + odds.exp()).prod(-1) - 1.0).log()  # (N, K, n)
            u = (
                torch.einsum("snl,kil->snki", plain, w)
                + torch.einsum("sl,kil->ski", there.double(), own.presence)[:, None]
            )
            u = u + scale - g + 0.5 * (there.double() @ shift.T)[..., None, None]
            supports = torch.cartesian_prod(*[torch.arange(2.0, dtype=torch.float64)] * 3)  # (8, 3)
            factor = torch.lgamma(torch.einsum("tl,kijl->tkij", supports, alpha))
            factor[0] = 0.0  # a point has at least one label
        top = u.amax(-1, keepdim=True)
        e = (u - top).exp()
        shared = factor.amax((-1, -2), keepdim=True)  # (8, K, 1, 1)
        pairs, support = gram * (factor - shared).exp(), there.long() @ torch.tensor([4, 2, 1])
        square = torch.empty(e.shape[:-1], dtype=torch.float64)
        for number in support.unique().tolist():
            part = e[support == number]
            square[support == number] = (torch.einsum("snki,kij->snkj", part, pairs[number]) * part).sum(-1)
        shared = shared[support, None, :, 0, 0]  # (S, 1, K)
        return square.clamp_min(0.0).log() + 2.0 * top[..., 0] + shared + jacobian[..., None]

    def _before(self, squares: Tensor) -> Tensor:
        return torch.logsumexp(squares - self._log_z + self.numbers.log_members, -1)

    def _powers(self, points: Tensor) -> Tensor:
        """``Σ k log ℓ`` (S, N)."""
        if self.numbers.votes is None:
            return torch.zeros(len(points), 3, dtype=torch.float64)
        return powers(points, self.numbers.votes)

    def log_prob(self, points: Tensor) -> Tensor:
        """Log density at points (S, 3): (S, N)."""
        return self._before(self._log_squares(points)) + self._powers(points) - self.log_evidence

    def expect(self, values: Tensor) -> Tensor:
        """Expectation of a function with these values (S, ...) at ``points``: (N, ...)."""
        return torch.einsum("sn,s...->n...", self.density * self.measure[:, None], values)

    def expect_rows(self, values: Tensor) -> Tensor:
        """Expectation of a function with other values in every row (S, N): (N,)."""
        return (self.density * self.measure[:, None] * values).sum(0)

    def chance(self, *parts: tuple[Tensor, Tensor]) -> Tensor:
        """Probability of a part of the simplex (N,)."""
        points, measure = together(*parts)
        return (self.log_prob(points).exp() * measure[:, None]).sum(0)

    def below(self, label: int, share: float) -> Tensor:
        """``P(ℓ_r <= share)`` (N,)."""
        j, k = (r for r in range(3) if r != label)
        parts = [face((label, j, k), (0.0, share))]
        if self.zeros:
            parts += [edge(label, j, 0.0, share), edge(label, k, 0.0, share), edge(j, k), vertex(j), vertex(k)]
        return self.chance(*parts)

    def greater(self, j: int, k: int) -> Tensor:
        """``P(ℓ_j > ℓ_k)`` (N,)."""
        other = 3 - j - k
        parts = [face((other, j, k), second=(0.5, 1.0))]
        if self.zeros:
            parts += [edge(j, k, 0.5, 1.0), edge(j, other), vertex(j)]
        return self.chance(*parts)

    def given(self, label: int, share: float) -> tuple[Tensor, Tensor]:
        """Points at which one share is known (S, 3), and their density times measure (S, N)."""
        j, k = (r for r in range(3) if r != label)
        s, other, measure = axis()
        points = torch.empty(len(s), 3, dtype=torch.float64)
        points[:, label], points[:, j], points[:, k] = share, (1.0 - share) * s, (1.0 - share) * other
        parts = [(points, measure * (1.0 - share))]
        if self.zeros:
            for r in (j, k):
                point = torch.zeros(1, 3, dtype=torch.float64)
                point[:, label], point[:, r] = share, 1.0 - share
                parts.append((point, torch.ones(1, dtype=torch.float64)))
        points, measure = together(*parts)
        return points, self.log_prob(points).exp() * measure[:, None]


def powers(points: Tensor, counts: Tensor) -> Tensor:
    """``Σ k_r log ℓ_r`` of points (S, 3) and counts (N, 3), with 0 log 0 = 0: (S, N)."""
    logs = torch.where(points > 0.0, points.clamp_min(1e-300).log(), -1e300)[:, None]
    return torch.where(counts > 0.0, counts * logs, 0.0).sum(-1)


@dataclass(frozen=True)
class Case:
    """One law of the matrix."""

    kind: str
    members: int
    voted: bool

    @cached_property
    def numbers(self) -> Numbers:
        return numbers_of(self.kind, self.members, self.voted)

    @cached_property
    def law(self) -> SnefySimplex:
        return self.numbers.law()

    @cached_property
    def oracle(self) -> Oracle:
        return Oracle(self.numbers)

    @cached_property
    def draws(self) -> Tensor:
        return self.law.sample((DRAWS,), generator=torch.Generator().manual_seed(5))

    def answer(self, question: str) -> Tensor:
        return ANSWERS[question](self.law)


case_of = lru_cache(maxsize=None)(Case)


def agree(answer: Tensor, truth: Tensor, tolerance: float = EXACT) -> None:
    """Absolute errors, and none of them a NaN."""
    assert answer.shape == truth.shape
    assert not torch.isnan(answer).any()
    torch.testing.assert_close(answer, truth, rtol=tolerance, atol=tolerance)


def within_errors(values: Tensor, truth: Tensor) -> None:
    """The mean of draws (S, ...) lies within Z standard errors of the truth; a constant is met exactly."""
    error = values.double().std(0) / math.sqrt(len(values)) + 3.0 / len(values) / Z
    assert ((values.double().mean(0) - truth).abs() <= Z * error).all()


# -- the questions ---------------------------------------------------------------------------------------------------

Check = Callable[[Case], None]
CHECKS: dict[str, Check] = {}


def asks(*questions: str) -> Callable[[Check], Check]:
    """Marks what answers a question, or several that belong together."""

    def mark(check: Check) -> Check:
        CHECKS.update(dict.fromkeys(questions, check))
        return check

    return mark


def _mean(case: Case) -> Tensor:
    return case.oracle.expect(case.oracle.points)


def _products(case: Case) -> Tensor:
    points = case.oracle.points
    return case.oracle.expect(points[:, :, None] * points[:, None, :])


def _covariance(case: Case) -> Tensor:
    mean = _mean(case)
    return _products(case) - mean[:, :, None] * mean[:, None, :]


@asks("mean")
def check_mean(case: Case) -> None:
    agree(case.law.mean, _mean(case))
    within_errors(case.draws, case.law.mean)


@asks("variance", "mean_and_variance")
def check_variance(case: Case) -> None:
    variance = _covariance(case).diagonal(dim1=1, dim2=2)
    agree(case.law.variance, variance)
    agree(case.answer("mean_and_variance"), torch.stack([_mean(case), variance]))
    agree(case.law.stddev, variance.sqrt(), 1e-5)
    within_errors((case.draws - case.law.mean).square(), case.law.variance)


@asks("covariance_matrix")
def check_covariance(case: Case) -> None:
    agree(case.law.covariance_matrix, _covariance(case))
    away = case.draws - case.law.mean
    within_errors(away[..., :, None] * away[..., None, :], case.law.covariance_matrix)


@asks("expected_log")
def check_expected_log(case: Case) -> None:
    oracle, answer = case.oracle, case.law.expected_log()
    truth = oracle.expect(oracle.points.clamp_min(1e-300).log())
    if oracle.zeros:  # only a vote makes sure that a label is there
        seen = torch.tensor(VOTES) > 0.0 if case.voted else torch.zeros(3, 3, dtype=torch.bool)
        assert torch.isneginf(answer[~seen]).all()
        agree(answer[seen], truth[seen], 1e-6)
    else:
        agree(answer, truth, 1e-6)
        within_errors(case.draws.log(), answer)


@asks("covariance_log")
def check_covariance_log(case: Case) -> None:
    oracle, logs = case.oracle, case.oracle.points.log()
    first = oracle.expect(logs)
    truth = oracle.expect(logs[:, :, None] * logs[:, None, :]) - first[:, :, None] * first[:, None, :]
    agree(case.law.covariance_log(), truth, 1e-6)
    away = case.draws.log() - first
    within_errors(away[..., :, None] * away[..., None, :], case.law.covariance_log())


@asks("expected_entropy", "expected_entropy_parts", "vote_information")
def check_expected_entropy(case: Case) -> None:
    parts = case.oracle.expect(torch.special.entr(case.oracle.points))
    agree(case.law.expected_entropy_parts(), parts)
    agree(case.law.expected_entropy(), parts.sum(-1))
    agree(case.law.vote_information(), torch.special.entr(_mean(case)).sum(-1) - parts.sum(-1), 1e-6)
    within_errors(torch.special.entr(case.draws).sum(-1), case.law.expected_entropy())


@asks("prob_zero", "share_ends")
def check_prob_zero(case: Case) -> None:
    truth = case.oracle.expect((case.oracle.points == 0.0).double())
    agree(case.law.prob_zero(), truth)
    within_errors((case.draws == 0.0).double(), truth)
    at_zero, below_one = case.law.share_ends([0])
    agree(torch.as_tensor(at_zero), truth[:, 0])
    agree(1.0 - torch.as_tensor(below_one), case.oracle.expect((case.oracle.points[:, 0] == 1.0).double()))


@asks("prob_greater")
def check_prob_greater(case: Case) -> None:
    pairs = ((0, 1), (1, 0), (2, 0))
    agree(case.answer("prob_greater"), torch.stack([case.oracle.greater(*pair) for pair in pairs]))
    within_errors((case.draws[..., 0] > case.draws[..., 1]).double(), case.law.prob_greater(0, 1))


@asks("bayes_point")
def check_bayes_point(case: Case) -> None:
    law, oracle = case.law, case.oracle
    for loss in ("kl", "squared"):
        agree(law.bayes_point(loss), _mean(case))
    point = law.bayes_point("l1")
    agree(point.sum(-1), torch.ones(3).double(), 1e-9)

    def loss_at(point: Tensor) -> Tensor:
        return (case.draws - point).abs().sum(-1)  # (S, N)

    for j, k in itertools.permutations(range(3), 2):  # no small step along the simplex makes the loss smaller
        step = torch.zeros(3, dtype=torch.float64)
        step[j], step[k] = 0.02, -0.02
        moved = point + step
        inside = (moved >= 0.0).all(-1)
        gain = (loss_at(point) - loss_at(moved))[:, inside]
        assert (gain.mean(0) <= Z * gain.std(0) / math.sqrt(DRAWS)).all()
    logs = oracle.expect(oracle.points.clamp_min(1e-300).log())
    if not oracle.zeros:
        agree(law.bayes_point("reverse_kl"), torch.softmax(logs, -1), 1e-6)
        return
    with pytest.raises(InputError, match="infinite"):
        law.bayes_point("reverse_kl")
    if case.voted:
        rows = [0, 2]
        seen = torch.tensor(VOTES)[rows] > 0.0
        truth = torch.softmax(torch.where(seen, logs[rows], -math.inf), -1)
        agree(law[rows].bayes_point("reverse_kl"), truth, 1e-6)


@asks("quantiles", "share_quantiles")
def check_quantiles(case: Case) -> None:
    answer = case.law.quantiles(LEVELS)
    assert answer.shape == (3, 3, len(LEVELS))
    own = case.law[:1].quantiles(np.broadcast_to(LEVELS[:1], (1, 3, 1)))
    agree(own, answer[:1, :, :1], 1e-7)  # float32 sums where many are asked for
    for label in range(3):
        _are_quantiles(case.law, [label], answer[:, label])
        shares = case.draws[..., label, None]
        below, at_most = (shares < answer[:, label]).double(), (shares <= answer[:, label]).double()
        spread = Z * math.sqrt(0.25 / DRAWS)
        level = torch.tensor(LEVELS)
        assert (below.mean(0) <= level + spread).all()
        assert (at_most.mean(0) >= level - spread).all()
    ends = case.law.quantiles([0.0, 1.0])
    assert (ends[..., 0] == 0.0).all()
    assert (ends[..., 1] == 1.0).all()


def _are_quantiles(law: SnefySimplex, group: list[int], shares: Tensor) -> None:
    """The cdf reaches the levels at these shares (N, A), and not before; an atom may hold a level."""
    cdf = law.marginal(group).cdf(shares.T).T  # (N, A)
    level, inside, at_one = torch.tensor(LEVELS, dtype=torch.float64), (shares > 0.0) & (shares < 1.0), shares >= 1.0
    assert ((cdf - level).abs()[inside] < 1e-6).all()
    assert (cdf >= level - 1e-6).all()
    below = torch.as_tensor(law.share_ends(group)[1])[:, None].expand(shares.shape)
    assert ((below <= level + 1e-6) | ~at_one).all()


@asks("marginal", "share_cdf", "share_log_prob")
def check_marginal(case: Case) -> None:
    law, oracle = case.law, case.oracle
    at = torch.tensor(CDF_POINTS, dtype=torch.float64)
    for labels, other in ((0, None), ([0, 2], 1)):
        share = law.marginal(labels)
        group = [0] if other is None else [0, 2]
        if other is None:
            truth = torch.stack([oracle.below(0, float(x)) for x in at])
            known = [oracle.given(0, float(x))[1].sum(0) for x in at]
        else:  # the sum is what the other label leaves
            truth = torch.stack([1.0 - oracle.below(1, float(1.0 - x)) for x in at])
            known = [oracle.given(1, float(1.0 - x))[1].sum(0) for x in at]
        column = at[:, None].expand(-1, 3)
        agree(share.cdf(column), truth)
        agree(torch.as_tensor(law[:1].share_cdf(group, column[:1, :1].numpy().copy())), truth[:1, :1])
        agree(share.log_prob(column).exp(), torch.stack(known), 1e-6)
        agree(law[:1].share_log_prob(group, column[:1, :1]).exp(), known[0][None, :1], 1e-6)
        sums = oracle.points[:, group].sum(-1)
        agree(share.mean, oracle.expect(sums))
        agree(share.variance, oracle.expect(sums.square()) - oracle.expect(sums).square())
        if other is not None:  # of single labels, see quantiles
            _are_quantiles(law, group, share.quantiles(LEVELS))
        else:
            agree(share.quantiles([0.3]).T, share.icdf(torch.full((1, 3), 0.3, dtype=torch.float64)), 1e-12)
        draws = share.sample((2000,), generator=torch.Generator().manual_seed(3))
        within_errors((draws[:, None] <= column).double(), truth)
        ends = share.cdf(torch.tensor([[0.0] * 3, [1.0] * 3], dtype=torch.float64))
        absent = (oracle.points[:, group] == 0.0).all(-1).double()
        agree(ends, torch.stack([oracle.expect(absent), torch.ones(3).double()]))
        if law.has_atoms:
            atoms = share.log_prob(torch.tensor([[0.0] * 3, [1.0] * 3], dtype=torch.float64)).exp()
            rest = [r for r in range(3) if r not in group]
            all_there = (oracle.points[:, rest] == 0.0).all(-1).double()
            agree(atoms, torch.stack([oracle.expect(absent), oracle.expect(all_there)]))


@asks("log_prob", "log_prob_at", "shared_log_prob", "points")
def check_log_prob(case: Case) -> None:
    law, oracle = case.law, case.oracle
    points = torch.tensor(POINTS + ZERO_POINTS if law.has_atoms else POINTS, dtype=torch.float64)
    truth = oracle.log_prob(points)
    impossible = truth < -1e200  # a label with votes is absent
    for answer in (law.log_prob(points[:, None]), law.log_prob_at(points)):
        assert torch.isneginf(answer[impossible]).all()
        agree(answer[~impossible], truth[~impossible], 1e-6)
    agree(law.log_prob_at(points[:3], slice(1, 3)), truth[:3, 1:], 1e-6)
    shared = law.shared_log_prob(points[:3].log())
    agree(shared(slice(0, 3)), truth[:3].T, 1e-5)
    agree(law.log_prob(points[:3]), truth[:3].diagonal(), 1e-6)  # a point per row
    agree(law.log_prob(case.draws[:5]), torch.stack([oracle.log_prob(row).diagonal() for row in case.draws[:5]]), 1e-6)
    assert law.points(POINTS).shape == (3, 3)
    with pytest.raises(InputError, match="no label distribution"):
        law.points([[0.5, 0.5, 0.5]])


@asks("log_prob_known")
def check_log_prob_known(case: Case) -> None:
    law, oracle = case.law, case.oracle
    answer = law.log_prob_known(KNOWN)
    truth = [oracle.given(0, 0.3)[1].sum(0)[0], oracle.given(1, 0.6)[1].sum(0)[1]]
    truth.append(oracle.log_prob(torch.tensor(KNOWN[2:]).double())[0, 2].exp())
    agree(answer.exp(), torch.stack(truth), 1e-6)
    for label in range(3):
        known = torch.full((3, 3), torch.nan, dtype=torch.float64)
        known[:, label] = 0.25
        agree(law.log_prob_known(known).exp(), oracle.given(label, 0.25)[1].sum(0), 1e-6)
        if law.has_atoms:  # of zeros alone, their probability
            known[:, label] = 0.0
            agree(law.log_prob_known(known).exp(), law.prob_zero()[:, label], 1e-6)


def _moment(case: Case, counts: Tensor) -> Tensor:
    """``E[Π ℓ^k]`` (N,)."""
    return case.oracle.expect_rows(powers(case.oracle.points, counts).exp())


@asks("log_prob_counts")
def check_counts(case: Case) -> None:
    more = torch.tensor(MORE_VOTES, dtype=torch.float64)
    coefficient = torch.tensor([1.0, 3.0, 1.0], dtype=torch.float64)
    agree(case.law.log_prob_counts(MORE_VOTES), (coefficient * _moment(case, more)).log(), 1e-6)
    all_counts = [c for c in itertools.product(range(4), repeat=3) if sum(c) == 3]
    total = torch.stack([case.law.log_prob_counts(c).exp() for c in map(torch.tensor, all_counts)]).sum(0)
    agree(total, torch.ones(3).double(), 1e-8)


@asks("posterior", "offset")
def check_posterior(case: Case) -> None:
    oracle, more = case.oracle, torch.tensor(MORE_VOTES, dtype=torch.float64)
    law = case.law.posterior(MORE_VOTES)
    seen = powers(oracle.points, more).exp() / _moment(case, more)  # (S, N)
    mean = torch.stack([oracle.expect_rows(seen * oracle.points[:, [r]]) for r in range(3)], 1)
    agree(law.mean, mean)
    points = torch.tensor(POINTS, dtype=torch.float64)
    truth = oracle.log_prob(points) + powers(points, more) - _moment(case, more).log()
    agree(law.log_prob(points[:, None]), truth, 1e-6)
    assert law.offset is not None
    agree(law.offset, more + torch.tensor(VOTES) if case.voted else more, 0.0)
    none = case.law.posterior(torch.zeros(3))
    agree(none.mean, case.law.mean, 1e-9)
    agree(none.log_prob(points[:, None]), case.law.log_prob(points[:, None]), 1e-9)


@asks("amalgamate")
def check_amalgamate(case: Case) -> None:
    law = case.law.amalgamate([[2, 0], [1]])
    agree(law.mean[:, 1], case.law.mean[:, 1], 1e-9)
    agree(law.variance[:, 1], case.law.variance[:, 1], 1e-9)
    at = torch.tensor([[0.3, 0.7]], dtype=torch.float64)
    agree(law.log_prob(at).exp(), case.oracle.given(1, 0.7)[1].sum(0), 1e-6)


@asks("subcomposition")
def check_subcomposition(case: Case) -> None:
    law, oracle = case.law.subcomposition([2, 0]), case.oracle
    points = oracle.points
    total = points[:, [2, 0]].sum(-1)
    some = (total > 0.0).double()
    share = torch.where(total > 0.0, points[:, 2] / total.clamp_min(1e-300), 0.0)
    chance = oracle.expect(some)
    agree(law.mean[:, 0], oracle.expect(share) / chance)
    agree(law.variance[:, 0], oracle.expect(share.square()) / chance - (oracle.expect(share) / chance).square())
    agree(law.prob_zero()[:, 0], oracle.expect(some * (points[:, 2] == 0.0)) / chance)
    draws = case.draws[..., [2, 0]]
    kept = draws.sum(-1) > 0.0
    proportion = torch.where(kept, draws[..., 0] / draws.sum(-1).clamp_min(1e-300), 0.0)
    ratio = proportion.sum(0) / kept.sum(0)
    spread = (torch.where(kept, proportion - ratio, 0.0).square().sum(0)).sqrt() / kept.sum(0)
    assert ((ratio - law.mean[:, 0]).abs() <= Z * spread).all()
    assert bool(torch.isfinite(law.quantiles(LEVELS)).all())


@asks("given_support")
def check_given_support(case: Case) -> None:
    law, oracle = case.law.given_support([True, False, True]), case.oracle
    assert not law.has_atoms
    assert law.n_labels == 2
    if not oracle.zeros:  # all labels are there: the proportions among some
        agree(law.mean, case.law.subcomposition([0, 2]).mean, 1e-9)
        return
    on_edge = (oracle.points > 0.0).eq(torch.tensor([True, False, True])).all(-1).double()
    chance = oracle.expect(on_edge)
    agree(law.mean[:, 0], oracle.expect(on_edge * oracle.points[:, 0]) / chance, 1e-6)
    at = torch.tensor([[0.6, 0.0, 0.4]], dtype=torch.float64)
    agree(law.log_prob(at[:, [0, 2]][:, None])[0], oracle.log_prob(at)[0] - chance.log(), 1e-6)
    whole = case.law.given_support([True, True, True])
    points = torch.tensor(POINTS, dtype=torch.float64)
    inside = oracle.expect((oracle.points > 0.0).all(-1).double())
    agree(whole.log_prob(points[:, None]), oracle.log_prob(points) - inside.log(), 1e-6)


@asks("condition")
def check_condition(case: Case) -> None:
    law, oracle = case.law, case.oracle
    generator = torch.Generator().manual_seed(1)
    for label in (0, 1):
        points, density = oracle.given(label, 0.3)
        given = law.condition({label: 0.3}, generator=generator)
        known = density.sum(0)
        mean = torch.einsum("sn,sl->nl", density, points) / known[:, None]
        second = torch.einsum("sn,sl->nl", density, points.square()) / known[:, None]
        absent = torch.einsum("sn,sl->nl", density, (points == 0.0).double()) / known[:, None]
        if isinstance(given, ConditionedLaw):
            agree(given.log_prob_known.exp(), known, 1e-6)
            agree(given.mean, mean, 1e-6)
            agree(given.variance, second - mean.square(), 1e-6)
            agree(given.prob_zero(), absent, 1e-6)
        else:
            error = (given.log_prob_known - known.log()).abs()
            assert (error <= Z * given.log_prob_std_error + 1e-9).all()
            assert ((given.mean - mean).abs() <= Z * given.std_error + 1e-9).all()
            spread = (absent * (1.0 - absent) / given.effective_draws[:, None]).sqrt()
            assert ((given.prob_zero() - absent).abs() <= Z * spread + 3.0 / 4000).all()
            assert (given.effective_draws > 100.0).all()
        at = points[60].expand(3, 3)
        agree(given.log_prob(at), oracle.log_prob(points[[60]])[0] - given.log_prob_known, 1e-6)
        assert bool(torch.isfinite(given.quantiles(LEVELS)).all())
        sample = given.sample((5,), generator=generator)
        assert sample.shape == (5, 3, 3)
        assert (sample[..., label] == 0.3).all()
    if not law.has_atoms:
        with pytest.raises(InputError, match="exact zero"):
            law.condition({0: 0.0})
        return
    rows = [0, 1] if case.voted else [0, 1, 2]  # votes in row 2 say that label 1 is there
    without = law[rows].condition({1: 0.0}, generator=generator)
    gone = (oracle.points[:, 1] == 0.0).double()
    chance = oracle.expect(gone)
    mean = oracle.expect(gone[:, None] * oracle.points) / chance[:, None]
    slack = 1e-6 if isinstance(without, ConditionedLaw) else Z * without.std_error + 1e-9  # type: ignore[attr-defined]
    assert ((without.mean - mean[rows]).abs() <= slack).all()
    log_slack = 1e-6 if isinstance(without, ConditionedLaw) else Z * without.log_prob_std_error + 1e-9  # type: ignore[attr-defined]
    assert ((without.log_prob_known - chance[rows].log()).abs() <= log_slack).all()
    if case.voted:
        with pytest.raises(InputError, match="row 2 has no density"):
            law.condition({1: 0.0})


@asks("condition_ratios")
def check_condition_ratios(case: Case) -> None:
    ratio, oracle = 1.5, case.oracle
    given = case.law.condition_ratios({(0, 1): ratio})
    total, rest, measure = axis()
    points = torch.stack([total * ratio / (1.0 + ratio), total / (1.0 + ratio), rest], 1)
    # with total = ℓ_0 + ℓ_1 and ρ = ℓ_0 / ℓ_1: |∂(ℓ_0, ℓ_1) / ∂(ρ, total)| = total / (1 + ρ)²
    density = oracle.log_prob(points).exp() * (measure * total / (1.0 + ratio) ** 2)[:, None]
    known = density.sum(0)
    agree(given.log_prob_known.exp(), known, 1e-6)
    agree(given.mean, torch.einsum("sn,sl->nl", density, points) / known[:, None], 1e-6)
    agree(given.log_prob(points[[80]].expand(3, 3)).exp(), density[80] / measure[80] / known, 1e-5)
    draws = given.sample((4,), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(draws[..., 0], ratio * draws[..., 1])


@asks("rosenblatt", "inverse_rosenblatt")
def check_rosenblatt(case: Case) -> None:
    law = case.law
    points = torch.tensor(POINTS[:2], dtype=torch.float64)[:, None].expand(-1, 3, -1)  # (S, N, 3)
    # the map is uniform if its Jacobian is the density
    step = 1e-5
    columns = []
    for label in (0, 1):
        move = torch.zeros(3, dtype=torch.float64)
        move[label], move[2] = step, -step
        columns.append((law.rosenblatt(points + move) - law.rosenblatt(points - move)) / (2.0 * step))
    jacobian = torch.linalg.det(torch.stack(columns, -1)).abs()
    agree(jacobian, case.oracle.log_prob(points[:, 0]).exp(), 1e-4)
    draws = case.draws[:50]
    uniforms = law.rosenblatt(draws, random_state=4)
    assert ((uniforms >= 0.0) & (uniforms <= 1.0)).all()
    within_errors(uniforms, torch.full((3, 2), 0.5).double())
    within_errors(uniforms.square(), torch.full((3, 2), 1.0 / 3.0).double())
    within_errors(uniforms.prod(-1), torch.full((3,), 0.25).double())
    back = law.inverse_rosenblatt(uniforms)
    agree(back, draws, 1e-5)
    assert torch.equal(back == 0.0, draws == 0.0)


@asks("entropy")
def check_entropy(case: Case) -> None:
    oracle = case.oracle
    truth = -oracle.expect_rows(torch.where(oracle.density > 0.0, oracle.density.log(), 0.0))
    for method, n in (("model", 2000), ("uniform", 20_000)):
        if method == "uniform" and oracle.zeros:
            with pytest.raises(InputError, match="uniform draws miss"):
                case.law.entropy(method="uniform")
            continue
        generator = torch.Generator().manual_seed(2)
        value, error = case.law.entropy(n, method=method, generator=generator, return_std_error=True)
        assert ((value - truth).abs() <= Z * error).all()
    assert case.law.entropy(10).shape == (3,)


@asks("sample", "draw_logs")
def check_draws(case: Case) -> None:
    oracle, draws = case.oracle, case.draws
    agree(oracle.expect(torch.ones(len(oracle.points)).double()), torch.ones(3).double())
    within_errors(draws, _mean(case))
    within_errors(draws[..., :, None] * draws[..., None, :], _products(case))
    within_errors((draws[..., 0] <= 0.35).double(), oracle.below(0, 0.35))
    within_errors((draws == 0.0).double(), oracle.expect((oracle.points == 0.0).double()))
    torch.testing.assert_close(draws.sum(-1), torch.ones(DRAWS, 3).double())
    assert case.law.sample().shape == (3, 3)
    generators = [torch.Generator().manual_seed(9) for _ in range(2)]
    logs, again = case.law.draw_logs(4, generators[0]), case.law.sample((2, 2), generators[1])
    torch.testing.assert_close(logs.exp().reshape(2, 2, 3, 3), again)


@asks("members", "member_means", "n_members")
def check_members(case: Case) -> None:
    members = case.law.members()
    assert len(members) == case.law.n_members == case.members
    agree(case.law.member_means(), torch.stack([member.mean for member in members]), 1e-9)
    points = torch.tensor(POINTS, dtype=torch.float64)[:, None]
    before = before_votes(case.numbers).law()
    parts = torch.stack([member.log_prob(points) for member in before.members()], -1)
    agree(torch.logsumexp(parts + case.numbers.log_members, -1), before.log_prob(points), 1e-8)


def same(law: SnefySimplex, other: SnefySimplex) -> None:
    """Two laws give the same answers."""
    points = torch.tensor(POINTS, dtype=torch.float64).reshape(3, *[1] * len(law.batch_shape), 3)
    agree(law.mean, other.mean, 1e-9)
    agree(law.log_prob(points), other.log_prob(points), 1e-8)
    agree(law.prob_zero(), other.prob_zero(), 1e-9)
    assert law.has_atoms == other.has_atoms
    assert repr(law) == repr(other)


@asks("expand", "joined", "shaped", "checking", "named", "label_number", "n_labels", "label_names", "dtype", "device")
def check_rows(case: Case) -> None:
    law = case.law
    wide = law.expand((2, 3))
    assert wide.batch_shape == (2, 3)
    agree(wide.mean, law.mean.expand(2, 3, 3), 1e-9)
    agree(wide.log_prob(torch.tensor(POINTS).double()), law.log_prob(torch.tensor(POINTS).double()).expand(2, 3), 1e-8)
    for rows in (slice(1, 3), [1, 2], torch.tensor([False, True, True]), np.array([1, 2])):
        agree(law[rows].mean, law.mean[1:], 1e-9)
    agree(law[-1].mean, law.mean[2:], 1e-9)
    agree(law[1].mean, law.mean[1:2], 1e-9)
    assert len(law) == 3
    same(law.joined([law[:1], law[1:]]), law)
    same(pickle.loads(pickle.dumps(law)), law)
    same(copy.deepcopy(law), law)
    assert law.n_labels == 3
    assert law.dtype == torch.float64
    assert law.device == law.mean.device
    assert law.shaped(torch.zeros(3, 2)).shape == (3, 2)
    named = case.numbers.law().named(["a", "b", "c"])
    assert named.label_names == ("a", "b", "c")
    assert named[:2].label_names == ("a", "b", "c")
    assert named.label_number("b") == named.label_number(-2) == 1
    agree(named.prob_greater("a", "c"), law.prob_greater(0, 2), 1e-12)
    with pytest.raises(InputError, match="no label names"):
        law.label_number("a")
    with pytest.raises(InputError, match="label index"):
        law.label_number(3)
    assert not copy.copy(law).checking(False)._validate_args
    notes = {"with zeros": law.has_atoms, "with votes": case.voted, "each row its own centre": law.moves}
    for note, there in notes.items():
        assert (note in repr(law)) == there


@asks(
    "family", "exponents", "readout", "presence", "shift", "centre", "log_centre", "moves", "has_atoms",
    "flat_log_scale", "log_scale", "log_members", "n_components", "concentration", "weights", "sum_abs_weights",
    "acceptance_rate", "arg_constraints", "support", "has_rsample", "from_raw", "from_mixture",
)  # fmt: skip
def check_parts(case: Case) -> None:
    law, numbers = case.law, case.numbers
    if law.offset is not None and case.kind == "plain":
        law = before_votes(numbers).law()  # votes fold into the weights of a plain law
    for name in ("exponents", "readout", "presence", "shift", "log_scale"):
        answer, given = getattr(law, name), getattr(numbers, name)
        assert (answer is None) == (given is None)
        assert answer is None or torch.equal(answer, given)
    agree(before_votes(numbers).law().log_members, numbers.log_members, 1e-12)
    average = (case.law.log_members.exp()[..., None] * case.law.member_means().transpose(0, 1)).sum(1)
    agree(average, case.law.mean, 1e-9)
    assert torch.equal(law.flat_log_scale, law.log_scale)
    assert law.has_atoms == (numbers.presence is not None)
    assert law.moves == case.kind.startswith("moving")
    assert (law.centre is not None) == case.kind.startswith("centre")
    if law.centre is not None and numbers.centre is not None:
        agree(law.centre, numbers.centre / numbers.centre.sum(), 1e-12)
    assert (law.log_centre is None) == (numbers.centre is None)
    assert law.family.n_members == case.members
    assert law.n_components == len(law.concentration) == 6 * case.members
    weights = law.weights()
    agree(weights.sum(-1), torch.ones(3).double(), 1e-9)
    agree(law.sum_abs_weights, weights.abs().sum(-1), 1e-12)
    agree(law.acceptance_rate, 1.0 / weights.clamp_min(0.0).sum(-1), 1e-12)
    assert set(law.arg_constraints) == {"exponents", "readout", "log_scale"}
    assert not law.has_rsample
    assert law.support.check(torch.tensor(POINTS)).all()
    for name, constraint in law.arg_constraints.items():
        assert bool(constraint.check(getattr(law, name)).all())
    if case.kind == "plain" and case.members == 1:
        g = 0.5 * (
            torch.lgamma(1.0 + 2.0 * law.exponents[0]).sum(-1) - torch.lgamma((1.0 + 2.0 * law.exponents[0]).sum(-1))
        )
        same(SnefySimplex.from_raw(law.exponents[0], law.readout[0], law.log_scale[:, 0] - g), law)
        agree(SnefySimplex.from_mixture(weights, law.concentration).mean, law.mean, 1e-9)


@asks("supports")
def check_supports(case: Case) -> None:
    for question in set(CHECKS) - {"dtype"}:  # an annotation alone
        assert case.law.supports(question) == ((case.kind, case.voted) not in DENIED.get(question, {})), question
    with pytest.raises(InputError, match="no question"):
        case.law.supports("ask_me")


#: Questions that are checked together.
TOGETHER = {check: [name for name, other in CHECKS.items() if other is check] for check in CHECKS.values()}


def takes_long(kind: str, members: int, voted: bool, check: Check) -> bool:
    """Whether a check is left to the slow tests: single members, and laws of one share after votes."""
    heavy = [check_marginal, check_quantiles, check_rosenblatt, check_bayes_point, check_log_prob_known]
    return members == 1 or (voted and kind != "plain" and check in heavy)


def cells() -> list[Any]:
    """Every law and every check."""
    return [
        pytest.param(
            *law,
            check,
            id="-".join(map(str, (*law, TOGETHER[check][0]))),
            marks=[pytest.mark.slow] if takes_long(*law, check) else [],
        )
        for law in LAWS
        for check in TOGETHER
    ]


@pytest.mark.parametrize(("kind", "members", "voted", "check"), cells())
def test_every_law_answers_every_question(kind: str, members: int, voted: bool, check: Check) -> None:
    case = case_of(kind, members, voted)
    if not any((kind, voted) in DENIED.get(question, {}) for question in TOGETHER[check]):
        check(case)
        return
    (question,) = TOGETHER[check]
    assert not case.law.supports(question)
    with pytest.raises(InputError, match=r"\w{3,} \w{2,}"):
        case.answer(question)


def test_no_question_is_missing() -> None:
    """A new method or property of a law has to say here what a right answer is."""
    public = {name for name in vars(SnefySimplex) if not name.startswith("_")}
    assert public <= set(CHECKS)
    assert set(DENIED) <= set(ANSWERS) <= set(CHECKS)


# -- shapes, sizes and sharp laws ------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [(3, 1), (1, 3)], ids=str)
@pytest.mark.parametrize("voted", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_batches_of_any_shape(kind: str, voted: bool, batch: tuple[int, ...]) -> None:
    flat, shaped = case_of(kind, 3, voted).law, case_of(kind, 3, voted).numbers.law(batch=batch)
    points = torch.tensor(POINTS, dtype=torch.float64)
    assert shaped.batch_shape == batch
    counts = torch.tensor(MORE_VOTES).reshape(*batch, 3)
    for answer, truth in (
        (shaped.mean, flat.mean),
        (shaped.covariance_matrix, flat.covariance_matrix),
        (shaped.prob_greater(0, 1), flat.prob_greater(0, 1)),
        (shaped.log_prob(points.reshape(*batch, 3)), flat.log_prob(points)),
        (shaped.log_prob_counts(counts), flat.log_prob_counts(MORE_VOTES)),
        (shaped.posterior(counts).mean, flat.posterior(MORE_VOTES).mean),
        (shaped.marginal(0).cdf(points[:, 0].reshape(batch)), flat.marginal(0).cdf(points[:, 0])),
        (shaped.rosenblatt(points.reshape(*batch, 3)), flat.rosenblatt(points)),
    ):
        agree(answer, truth.reshape(*batch, *truth.shape[1:]), 1e-8)


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_without_dimensions(kind: str) -> None:
    numbers = numbers_of(kind, 3, voted=True)
    first = {name: getattr(numbers, name)[:1] for name in ("log_scale", "log_members", "votes")}
    if numbers.shift is not None:
        first["shift"] = numbers.shift[:1]
    if numbers.centre is not None and numbers.centre.dim() == 2:
        first["centre"] = numbers.centre[:1]
    law = replace(numbers, **first).law(batch=())
    assert law.batch_shape == ()
    agree(law.mean, numbers.law().mean[0], 1e-9)
    assert law.sample((2,)).shape == (2, 3)
    assert law.marginal(0).cdf(torch.tensor(0.3)).shape == ()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["plain", "centre", "zeros"])
@pytest.mark.parametrize("size", [1e10, 1e-10, 1e30])
def test_a_readout_of_any_size(kind: str, size: float, dtype: torch.dtype) -> None:
    """A member's readout matters up to a factor; tables in float32 overflowed where it was large."""
    numbers = numbers_of(kind, 3)
    law = numbers.law(dtype=dtype)
    large = replace(numbers, readout=numbers.readout * torch.tensor([size, 1.0, 1.0 / size])[:, None, None]).law(
        dtype=dtype
    )
    tolerance = 1e-5 if dtype == torch.float32 else 1e-8
    for question in ("mean", "covariance_matrix", "quantiles", "log_prob", "log_prob_counts", "posterior", "weights"):
        agree(ANSWERS[question](large), ANSWERS[question](law), tolerance)
    for question in ("subcomposition", "given_support"):
        agree(ANSWERS[question](large), ANSWERS[question](law), 10.0 * tolerance)


@pytest.mark.parametrize("votes", [(1e3, 2e3, 5e2), (1e3, 0.0, 0.0), (0.5, 0.25, 1e-3)], ids=str)
def test_many_votes_and_parts_of_votes(votes: tuple[float, ...]) -> None:
    """A centre of ones changes nothing, but takes the other route: an integral over a scale."""
    plain = numbers_of("plain", 3)
    before, other = plain.law(), replace(plain, centre=torch.ones(3, dtype=torch.float64)).law()
    agree(other.log_prob_counts(votes), before.log_prob_counts(votes), 1e-7)
    first, second = before.posterior(votes), other.posterior(votes)
    for question in ("mean", "expected_entropy", "expected_log", "covariance_log", "prob_greater", "log_prob"):
        agree(ANSWERS[question](second), ANSWERS[question](first), 1e-6)
    torch.testing.assert_close(second.variance, first.variance, rtol=1e-6, atol=0.0)


def dirichlet(alpha: Any, centre: Any = None, rows: int = 1, **more: Any) -> SnefySimplex:
    """One neuron: one Dirichlet, with a centre."""
    half = 0.5 * (torch.as_tensor(alpha, dtype=torch.float64)[None] - 1.0)
    centre = torch.as_tensor(np.ones(3) if centre is None else centre, dtype=torch.float64)
    one = torch.ones(1, 1, dtype=torch.float64)
    return SnefySimplex(half, one, torch.zeros(rows, 1, dtype=torch.float64), centre=centre, **more)


def routes(alpha: Any, centre: Any = None) -> list[SnefySimplex]:
    """The same law, answered row by row, from a table, with odds of presence that leave no doubt, and both."""
    centre = np.ones(3) if centre is None else np.asarray(centre, dtype=np.float64)
    odds = torch.as_tensor(0.5 * (40.0 - scipy.special.gammaln(np.asarray(alpha, dtype=np.float64))))[None]
    shift = torch.zeros(1, 3, dtype=torch.float64)
    return [
        dirichlet(alpha, centre[None]),
        dirichlet(alpha, centre, rows=40),
        dirichlet(alpha, centre, presence=odds),
        dirichlet(alpha, centre[None], presence=odds, shift=shift),
    ]


SHARP = (0.05, 0.5, 0.95)


def level_error(shares: Any, cdf: Callable[[float], float]) -> float:
    """The largest difference between the levels asked for and those reached, for shares that a float64 can hold."""
    held = [(level, float(q)) for level, q in zip(SHARP, shares) if 1e-250 < q < 1.0 - 1e-12]
    return max((abs(cdf(q) - level) for level, q in held), default=0.0)


@pytest.mark.parametrize("size", [0.01, 1.0, 100.0, 1e4, 1e5])
@pytest.mark.parametrize("proportions", [(1.0, 1.0, 1.0), (1.0, 2.0, 5.0), (1.0, 0.01, 3.0)], ids=str)
def test_quantiles_of_sharp_and_of_flat_dirichlets(proportions: tuple[float, ...], size: float) -> None:
    alpha = np.array(proportions) * size
    for law in routes(alpha):
        shares = law.quantiles(SHARP)[0]
        for r in range(3):
            assert level_error(shares[r], scipy.stats.beta(alpha[r], alpha.sum() - alpha[r]).cdf) < 1e-6
        both = scipy.stats.beta(alpha[0] + alpha[2], alpha[1])
        at = both.ppf(0.3)
        if 1e-250 < at < 1.0 - 1e-12:
            assert (
                abs(float(law.marginal([0, 2]).cdf(torch.full((len(law),), at, dtype=torch.float64))[0]) - 0.3) < 1e-6
            )


def test_quantiles_of_one_sharp_component() -> None:
    law = SnefySimplex(
        torch.full((1, 3), 249.5).double(), torch.ones(1, 1).double(), torch.zeros(1, 1).double(), centre=torch.ones(3)
    )
    agree(law.quantiles(SHARP)[0, 0], torch.tensor([0.3134, 0.3333, 0.3535]).double(), 1e-4)


@pytest.mark.parametrize("small", [1e-4, 1e-8])
@pytest.mark.parametrize("alpha", [(0.3, 0.2, 0.5), (2.0, 3.0, 5.0), (1e4, 2e4, 3e4)], ids=str)
def test_quantiles_with_a_very_uneven_centre(alpha: tuple[float, ...], small: float) -> None:
    """Under the centre (1, c, 1) the odds of label 1 are c times those of a Beta; label 0 is held against draws."""
    odds = scipy.stats.beta(alpha[1], alpha[0] + alpha[2])

    def cdf(share: float) -> float:
        return float(odds.cdf(share / small / (share / small + 1.0 - share)))

    rng = np.random.default_rng(0)
    gammas = rng.gamma(alpha, size=(200_000, 3)) * (1.0, small, 1.0)
    first = gammas[:, 0] / gammas.sum(1)
    answers = [law.quantiles(SHARP)[0] for law in routes(alpha, (1.0, small, 1.0))]
    for shares in answers:
        assert level_error(shares[1], cdf) < 1e-6
        for level, share in zip(SHARP, shares[0].tolist()):
            assert abs((first <= share).mean() - level) < Z * math.sqrt(0.25 / len(first))
    for shares in answers[1:]:  # row by row, or from a table
        spread = (answers[0][:, 2] - answers[0][:, 0])[:, None]
        assert ((shares - answers[0]).abs() / spread).max() < 1e-6


@pytest.mark.parametrize("log_odds", [(0.0, 0.0, 0.0), (1.0, -2.0, 0.5)], ids=str)
@pytest.mark.parametrize(
    "alpha", [(0.05, 0.5, 3.0), (50.0, 200.0, 10.0), (2.7e4, 1.5e3, 1.5e3), (3e4, 0.3, 30.0)], ids=str
)
def test_sharp_laws_with_zeros(alpha: tuple[float, ...], log_odds: tuple[float, ...]) -> None:
    """Each support has its own Dirichlet: shares are mixtures of Betas and atoms."""
    presence = torch.as_tensor(0.5 * (np.array(log_odds) - scipy.special.gammaln(alpha)))[None]
    supports = [s for k in (1, 2, 3) for s in itertools.combinations(range(3), k)]
    chance = np.exp([sum(log_odds[r] for r in s) for s in supports])
    chance /= chance.sum()

    def cdf(r: int, share: float) -> float:
        answer = 0.0
        for support, weight in zip(supports, chance):
            rest = sum(alpha[q] for q in support if q != r)
            if r not in support:
                answer += weight
            elif rest > 0.0:
                answer += weight * scipy.stats.beta(alpha[r], rest).cdf(share)
            else:
                answer += weight * (share >= 1.0)
        return float(answer)

    at = np.array([0.01, 0.2, 0.5, 0.9])
    ones = np.ones(3)
    rows = 40 if min(alpha) * 1e5 > max(alpha) else 1  # there is no table of laws so uneven
    for law in (dirichlet(alpha, ones, rows=rows, presence=presence), dirichlet(alpha, ones[None], presence=presence)):
        points = torch.as_tensor(at)[:, None].expand(-1, len(law))
        for r in range(3):
            agree(law.marginal(r).cdf(points)[:, 0], torch.tensor([cdf(r, t) for t in at]).double(), 1e-6)
        shares = law.quantiles(SHARP)[0]
        for r, (number, level) in itertools.product(range(3), enumerate(SHARP)):
            share = float(shares[r, number])
            if 1e-250 < share < 1.0 - 1e-12:
                # next to a gap in the mixture the cdf is flat, and any share in it will do
                assert cdf(r, share * (1.0 - 1e-9)) < level + 1e-6
                assert cdf(r, share * (1.0 + 1e-9)) > level - 1e-6
            else:
                assert cdf(r, share) >= level - 1e-6


def test_two_sharp_members_and_a_sum() -> None:
    alphas = np.array([[300.0, 500.0, 200.0], [4.0, 1.0, 2.0]])
    half = torch.as_tensor(0.5 * (alphas - 1.0))[:, None]
    one, log_members = torch.ones(2, 1, 1, dtype=torch.float64), torch.tensor([0.3, 0.7]).double().log()
    law = SnefySimplex(half, one, torch.zeros(1, 2, 1).double(), log_members=log_members, centre=torch.ones(3))
    betas = [scipy.stats.beta(alpha[0] + alpha[2], alpha[1]) for alpha in alphas]

    def cdf(share: float) -> float:
        return float(0.3 * betas[0].cdf(share) + 0.7 * betas[1].cdf(share))

    assert level_error(law.marginal([0, 2]).quantiles(SHARP)[0], cdf) < 1e-6
