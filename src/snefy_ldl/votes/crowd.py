"""How confusion matrices are learned from single votes, given draws of every item's label distribution.

``P(vote v of annotator a | ℓ) = (C_aᵀ ℓ)_v = c_min + Σ_k (C_akv - c_min) ℓ_k``: a vote is one for a latent label k, or,
as far as it does not depend on the item, none at all. Expectation-maximisation takes turns:

- given the items' distributions and the matrices, the expected latent labels of all votes, by weighted draws of ℓ;
- given those, the matrices (:class:`Crowd`), and a model of the items, by a fit to the counts of latent labels
  (:class:`snefy_ldl.AnnotatorLDL`).

Expected counts are rounded at random so that each item's total stays within one: the probability of votes has a closed
form for whole numbers, and rounding this way adds little noise.

Distributions and matrices are only known up to a common matrix: sharper distributions and less careful people explain
the same votes. So the common matrix is held close to one with :data:`CARE` on its diagonal, unless gold items
are given.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import expit, logit, logsumexp, softmax

from snefy_ldl._internal.types import Array, Index
from snefy_ldl.datasets.vote_table import VoteTable
from snefy_ldl.errors import InputError
from snefy_ldl.votes.confusion import Annotators, bin_numbers

#: How often a careful person's vote is the latent label itself, unless gold items show it.
CARE = 0.9
#: By how many votes per label people whose votes nobody shares are believed to vote as everybody.
TRUST = 200.0
#: How much the common matrix is held: so many times the votes there are; less where the truth is known of some.
HOLD, HOLD_WITH_TRUTH = 1.0, 0.1
#: Strength of the annotators' prior at the start, and the range of estimates.
STRENGTH, STRENGTHS = 30.0, (2.0, 300.0)
#: Strength of that prior in intervals, at most: votes settle it badly, and too much of it makes intervals too short.
INTERVAL_STRENGTH = 10.0
#: Sweeps of the sampler behind intervals, and those before the first that counts.
SWEEPS, FIRST_SWEEPS = 150, 50
#: Strengths of the prior of guesses; some people guess alike, others each in their own way, always the same label say.
GUESS_STRENGTHS = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
#: Ridges of the regression of votes on items, in votes, and the least probability that it gives a vote.
RIDGES, LEAST_CHANCE = (3.0, 10.0, 30.0, 100.0, 300.0), 0.01
#: People who guess and who do not, thought of beforehand; and how many may guess: votes of people who all guess tell
#: nothing about items, so that is no explanation of them.
SPAM_PRIOR, MOST_SPAM = (1.0, 4.0), 0.8
#: Votes on items with other votes below which a person's matrix shrinks to that of everybody, and their spam score to
#: 0; where no item has two votes, the matrix of everybody is the identity.
EVIDENCE = 10
#: Turns between matrices and latent labels, and draws per item.
TURNS, DRAWS = 10, 64
#: Share of the latent label of a gold item, where a label is given.
GOLD = 0.999
#: Votes and draws that are held at a time.
CHUNK = 1 << 13


@dataclass(frozen=True, eq=False)
class Ballots:
    """Single votes, as the fit takes them.

    Args:
        item: row of each vote's item (V,), sorted.
        who: number of its annotator (V,); A where that is not known.
        label: what for (V,).
        n_items: N.
        n_people: A.
        n_labels: L.
    """

    item: Index
    who: Index
    label: Index
    n_items: int
    n_people: int
    n_labels: int

    @classmethod
    def of(cls, votes: VoteTable, rows: Index) -> Ballots:
        """The votes on some items, which become rows 0, 1, ...

        Args:
            votes: all of them.
            rows: numbers of the items.

        Returns:
            The votes.
        """
        place = np.full(len(votes.items), -1)
        place[rows] = np.arange(len(rows))
        chosen = np.flatnonzero(place[votes.item] >= 0)
        chosen = chosen[np.argsort(place[votes.item[chosen]], kind="stable")]
        n_people = len(votes.annotators)
        who = np.where(votes.annotator[chosen] < 0, n_people, votes.annotator[chosen])
        return cls(place[votes.item[chosen]], who, votes.label[chosen], len(rows), n_people, len(votes.label_names))

    def __len__(self) -> int:
        return len(self.item)

    def counts(self) -> Array:
        """Votes per item and label (N, L)."""
        table = np.zeros((self.n_items, self.n_labels))
        np.add.at(table, (self.item, self.label), 1.0)
        return table


class Crowd:
    """Annotators during a fit.

    Args:
        ballots: their votes.
        hold: how much the common matrix is held, in times the votes there are.
    """

    def __init__(self, ballots: Ballots, hold: float) -> None:
        self.ballots, self.hold = ballots, hold
        n_people, n_labels = ballots.n_people, ballots.n_labels
        several = np.bincount(ballots.item)[ballots.item] > 1
        shared = np.bincount(ballots.who[several], minlength=n_people + 1)
        #: How far each person's votes can be compared with others': 0 for those without a vote that others share.
        self.evidence = np.minimum(shared / EVIDENCE, 1.0)
        self.careful = _diagonal(1.0 - (1.0 - CARE) * several.mean() - 1e-3 * (not several.any()), n_labels)
        self.common = self.careful.copy()
        self.strength = STRENGTH
        self.cast = np.zeros((n_people + 1, n_labels))
        np.add.at(self.cast, (ballots.who, ballots.label), 1.0)
        self.guess = self.cast.sum(0) / self.cast.sum()
        self.guess_strength = np.full(n_people + 1, float(n_labels))
        self.guess_weights = np.full(len(GUESS_STRENGTHS), 1.0 / len(GUESS_STRENGTHS))
        self.spam_rate = SPAM_PRIOR[0] / sum(SPAM_PRIOR)
        self.spam = self.spam_rate * self.evidence
        self.counts = np.zeros((n_people + 1, n_labels, n_labels))
        self._settle()

    def _settle(self) -> None:
        """The matrices that follow from the counts and the priors."""
        self.centres = np.broadcast_to(self.common, self.counts.shape).copy()
        self.strengths = self.strength + TRUST * (1.0 - self.evidence)
        own = self.counts.copy()
        own[-1] = 0.0  # votes of unknown people are not one person's
        careful = own + self.strengths[:, None, None] * self.centres
        guesses = self.cast + self.guess_strength[:, None] * self.guess
        guesses[-1] = self.guess
        spam = self.spam[:, None, None]
        careful /= careful.sum(-1, keepdims=True)
        guesses /= guesses.sum(-1, keepdims=True)
        self.matrices = (1.0 - spam) * careful + spam * guesses[:, None, :]

    def factors(self) -> Array:
        """Columns of confusion matrices, one per vote (V, L)."""
        return np.asarray(self.matrices[self.ballots.who, :, self.ballots.label])

    def learn(self, latent: Array, others: Array, learn_strength: bool) -> None:
        """New matrices.

        Args:
            latent: expected latent label of each vote (V, L).
            others: expected label distribution of its item, given all votes but this one (V, L).
            learn_strength: whether the strength of the prior is fitted, too.
        """
        ballots, people = self.ballots, self.ballots.who
        self.counts = np.zeros_like(self.counts)
        np.add.at(self.counts.transpose(0, 2, 1), (people, ballots.label), latent)
        self.others = others
        if learn_strength:
            self.strength = self._strength_by_moments(others)
        share = self.guess[ballots.label]
        alike, total = self.cast[people, ballots.label] - 1.0, self.cast[people].sum(1) - 1.0
        options = [(alike + s * share) / (total + s) for s in GUESS_STRENGTHS]
        logs = np.stack([np.bincount(people, np.log(option), len(self.spam)) for option in options], 1)
        logs += np.log(self.guess_weights)  # (A + 1, strengths)
        chosen = softmax(logs, axis=1)
        self.guess_weights = self.spam @ chosen + 1.0 / len(options)
        self.guess_weights /= self.guess_weights.sum()
        self.guess_strength = np.array(GUESS_STRENGTHS)[logs.argmax(1)]
        score = logsumexp(logs, axis=1) - self._fit_by_item(others)
        self.spam = expit(logit(self.spam_rate) + score) * self.evidence
        self.spam *= min(1.0, MOST_SPAM / max(self.spam[:-1].mean(), 1e-9))
        self.spam_rate = float((self.spam[:-1].sum() + SPAM_PRIOR[0]) / (ballots.n_people + sum(SPAM_PRIOR)))
        self.spam[-1] = self.spam_rate
        table = ((1.0 - self.spam)[:, None, None] * self.counts).sum(0)
        table += (self.hold * len(ballots) + 1.0) * self.careful
        self.common = table / table.sum(-1, keepdims=True)
        guess = (self.spam[:, None] * self.cast).sum(0) + 1.0
        self.guess = guess / guess.sum()
        self._settle()

    def _fit_by_item(self, others: Array) -> Array:
        """Log probability of each person's votes where they depend on the item, each vote left out in turn (A + 1,).

        Votes are regressed on ``o``, an item's expected label distribution given features and other votes, with a
        ridge towards everybody's: ``C_a = (Oᵀ O + λ S)⁻¹ (Oᵀ V + λ S C)``, S the mean of ``o oᵀ``. The vote itself
        enters neither ``o`` nor, by its leverage h, the prediction ``(ŷ - h) / (1 - h)``: matrices that follow a
        person's own votes make random votes look careful.
        """
        people, label, n_labels = self.ballots.who, self.ballots.label, others.shape[1]
        moments, products = np.zeros_like(self.counts), np.zeros_like(self.counts)
        np.add.at(moments, people, others[:, :, None] * others[:, None, :])
        np.add.at(products.transpose(0, 2, 1), (people, label), others)
        weight = 1.0 - self.spam
        mean = np.einsum("a,akl->kl", weight, moments) + 1e-6 * len(others) * np.eye(n_labels)
        everybody = np.linalg.solve(mean, np.einsum("a,akv->kv", weight, products) + 1e-6 * len(others) * self.common)
        mean /= weight @ np.bincount(people, minlength=len(weight))
        logs = []
        for ridge in RIDGES:
            inverse = np.linalg.inv(moments + ridge * mean)
            matrices = inverse @ (products + ridge * mean @ everybody)
            fitted = (others * matrices[people, :, label]).sum(1)
            leverage = np.einsum("vk,vkl,vl->v", others, inverse[people], others)
            chance = np.clip((fitted - leverage) / (1.0 - leverage), LEAST_CHANCE, 1.0)
            logs.append(np.bincount(people, np.log(chance), len(weight)))
        return np.asarray(logsumexp(logs, axis=0) - np.log(len(logs)))

    def _strength_by_moments(self, others: Array) -> float:
        """How much annotators differ, from how much their residuals vary beyond chance.

        With ``P = others @ C`` the residual sums ``R_akv = Σ_j ℓ_jk ([v_j = v] - P_jv)`` of an annotator vary by chance
        by ``Σ_j ℓ_jk² P_jv (1 - P_jv)``, and between annotators by ``Σ_m (Σ_j ℓ_jk ℓ_jm)² Var[C_amv]``, where a
        Dirichlet of strength s has ``Var[C_mv] = c_mv (1 - c_mv) / (s + 1)``. The likelihood of the votes themselves is
        no guide: matrices that follow their own latent labels always look more different than they are.
        """
        ballots, people = self.ballots, self.ballots.who
        careful = (self.spam < 0.5).astype(float)
        careful[-1] = 0.0
        mean = np.einsum("a,akv->kv", careful, self.counts) + 1e-3 * self.common
        mean /= mean.sum(-1, keepdims=True)
        chance = others @ mean
        gap = -chance
        gap[np.arange(len(gap)), ballots.label] += 1.0
        residual, noise, overlap = (np.zeros_like(self.counts) for _ in range(3))
        np.add.at(residual, people, others[:, :, None] * gap[:, None, :])
        np.add.at(noise, people, np.square(others)[:, :, None] * (chance * (1.0 - chance))[:, None, :])
        np.add.at(overlap, people, others[:, :, None] * others[:, None, :])
        signal = np.square(overlap) @ (mean * (1.0 - mean))
        weight = careful[:, None, None]
        share = float((weight * (np.square(residual) - noise)).sum() / max((weight * signal).sum(), 1e-9))
        return float(np.clip(1.0 / max(share, 1e-6) - 1.0, *STRENGTHS))

    def count_certain(self) -> Array:
        """Votes equivalent to the evidence for each row of a careful person's matrix (A + 1, L).

        Latent labels given the matrices, and matrices given those, are drawn in turns (Gibbs sampling); a Dirichlet of
        the size that comes back has the variance of the draws.
        """
        ballots, rng = self.ballots, np.random.default_rng(0)
        n_labels = ballots.n_labels
        strengths = np.minimum(self.strengths, INTERVAL_STRENGTH)
        prior, matrices = strengths[:, None, None] * self.centres, self.matrices
        total, squares = np.zeros((2, *prior.shape))
        for sweep in range(FIRST_SWEEPS + SWEEPS):
            chance = (self.others * matrices[ballots.who, :, ballots.label]).cumsum(1)
            latent = (rng.random((len(chance), 1)) * chance[:, -1:] > chance).sum(1)
            cell = (ballots.who * n_labels + latent) * n_labels + ballots.label
            drawn = rng.standard_gamma(np.bincount(cell, minlength=prior.size).reshape(prior.shape) + prior) + 1e-12
            matrices = drawn / drawn.sum(-1, keepdims=True)
            if sweep >= FIRST_SWEEPS:
                total += matrices / SWEEPS
                squares += np.square(matrices) / SWEEPS
        ratio = (total * (1.0 - total)).sum(-1) / (squares - np.square(total)).sum(-1)
        return np.asarray(np.maximum(ratio - 1.0, 1.0))


def _diagonal(value: float, n_labels: int) -> Array:
    """A matrix (L, L) with a value on its diagonal and rows that sum to one."""
    table = np.full((n_labels, n_labels), (1.0 - value) / (n_labels - 1))
    np.fill_diagonal(table, value)
    return table


# -- latent labels ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Draws:
    """Weighted draws of every item's label distribution.

    Args:
        values: (N, S, L), float32.
        log_weights: (N, S), before any votes.
    """

    values: Array
    log_weights: Array


def tilt_of(soft: Array, most_votes: int) -> Array | None:
    """Votes (N, L) that draws already depend on: half of those there are, where items have many; else None."""
    return np.floor(0.5 * soft) if most_votes > 12 else None


def weigh_votes(draws: Draws, ballots: Ballots, factors: Array) -> tuple[Array, Array, Array]:
    """Expected latent labels.

    Args:
        draws: of every item's label distribution.
        ballots: the votes.
        factors: columns of confusion matrices, one per vote (V, L).

    Returns:
        For each vote its expected latent label (V, L) and the expected label distribution of its item given all votes
        but this one (V, L); for each item the expected votes for each label that inform about it (N, L).
    """
    latent, others = np.empty((2, len(ballots), ballots.n_labels))
    evidence = np.zeros((ballots.n_items, ballots.n_labels))
    starts = np.searchsorted(ballots.item, np.arange(ballots.n_items + 1))
    informative = factors - factors.min(1, keepdims=True)
    first = 0
    while first < ballots.n_items:
        last = max(first + 1, int(np.searchsorted(starts, starts[first] + CHUNK, side="right")) - 1)
        rows, votes = slice(first, last), slice(starts[first], starts[last])
        place = ballots.item[votes] - first
        values, column = draws.values[rows], factors[votes].astype(np.float32)
        theirs = values[place]  # (B, S, L)
        chance = np.maximum(np.matmul(theirs, column[:, :, None])[..., 0], 1e-12)  # (B, S)
        logs = draws.log_weights[rows].copy()
        np.add.at(logs, place, np.log(chance))
        weights = softmax(logs, axis=1).astype(np.float32)
        relative = (weights[place] / chance)[:, None, :]
        share = np.matmul(relative, theirs)[:, 0]  # (B, L)
        latent[votes] = share * column
        others[votes] = share / share.sum(1, keepdims=True)
        np.add.at(evidence, ballots.item[votes], share * informative[votes])
        first = last
    return latent, others, evidence


def round_counts(expected: Array, rng: np.random.Generator) -> Array:
    """Whole numbers with these expectations (N, L), each row's total within one of the expected total.

    Args:
        expected: numbers >= 0.
        rng: source of randomness.

    Returns:
        (N, L).

    Example:
        >>> round_counts(np.array([[2.0, 3.0]]), np.random.default_rng(0))
        array([[2., 3.]])
    """
    order = rng.permutation(expected.shape[1])
    edges = np.concatenate([np.zeros((len(expected), 1)), np.cumsum(expected[:, order], 1)], 1)
    whole = np.diff(np.floor(edges + rng.random((len(expected), 1)) + 1e-9), axis=1)
    rounded = np.empty_like(whole)
    rounded[:, order] = whole
    return rounded


# -- gold items, and first draws -------------------------------------------------------------------------------------


def gold_rows(votes: VoteTable, gold: Mapping[Any, Any]) -> dict[int, Array]:
    """Label distributions of gold items by row."""
    items, labels = {name: k for k, name in enumerate(votes.items)}, list(votes.label_names)
    rows = {}
    for name, value in gold.items():
        if name not in items:
            raise InputError(f"gold item {name!r} is not among the items of the votes.")
        if np.ndim(value) == 0:
            if str(value) not in labels:
                raise InputError(f"gold item {name!r} has the label {value!r}; the labels are: {', '.join(labels)}.")
            rows[items[name]] = _diagonal(GOLD, len(labels))[labels.index(str(value))]
            continue
        shares = np.asarray(value, dtype=np.float64)
        if shares.shape != (len(labels),) or not (shares >= 0).all() or not abs(shares.sum() - 1.0) < 1e-6:
            raise InputError(f"gold item {name!r} must have a label, or {len(labels)} shares that sum to one.")
        rows[items[name]] = shares
    return rows


def first_draws(counts: Array, alpha: Array, rng: np.random.Generator) -> Draws:
    """Draws of every item's label distribution before there is a model of the items: from one Dirichlet.

    Args:
        counts: votes (N, L).
        alpha: its concentration (L,).
        rng: source of randomness.

    Returns:
        The draws.
    """
    tilt = tilt_of(counts, int(counts.sum(1).max()))
    drawn = rng.standard_gamma(
        (alpha + (0.0 * counts if tilt is None else tilt))[:, None], (len(counts), DRAWS, len(alpha))
    )
    return as_draws(drawn / drawn.sum(-1, keepdims=True), tilt)


def as_draws(values: Array, tilt: Array | None) -> Draws:
    """Draws (N, S, L) with the weights that undo the votes (N, L) they already depend on."""
    values = np.maximum(values, 1e-9).astype(np.float32)
    weights = np.zeros(values.shape[:2])
    if tilt is not None:
        weights = -np.einsum("nsk,nk->ns", np.log(values), tilt)
    return Draws(values, weights.astype(np.float32))


def describe_crowd(
    crowd: Crowd, votes: VoteTable, facts: dict[str, list[Any]], item_mean: Array, readings: tuple[Array, Array]
) -> Annotators:
    """Estimates of the fit about the annotators."""
    ballots = crowd.ballots
    table = ballots.counts()
    agreed, exposure = np.zeros((ballots.n_people + 1, 2)), np.zeros_like(crowd.cast)
    alike, others = table[ballots.item, ballots.label] - 1.0, table[ballots.item].sum(1) - 1.0
    np.add.at(agreed, ballots.who, np.stack([alike, others], 1))
    np.add.at(exposure, ballots.who, crowd.others)
    return Annotators(
        names=list(votes.annotators),
        label_names=list(votes.label_names),
        cast=crowd.cast[:-1],
        exposure=exposure[:-1],
        counts=crowd.counts[:-1],
        certain=crowd.count_certain()[:-1],
        centres=crowd.centres[:-1],
        strength=crowd.strengths[:-1],
        spam_score=crowd.spam[:-1],
        guess=crowd.guess,
        guess_strength=crowd.guess_strength[:-1],
        agreed=agreed[:-1],
        item_mean=item_mean,
        directions=readings[0],
        slopes=readings[1],
        facts={fact: bin_numbers(column) for fact, column in facts.items()},
        votes_per_item=float(np.median(table.sum(1))),
    )
