"""Labels of items out of votes alone, without features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy.special import softmax

from snefy_ldl._internal.types import Array, Index
from snefy_ldl._internal.validation import check_choice
from snefy_ldl.datasets.vote_table import VoteTable
from snefy_ldl.errors import InputError
from snefy_ldl.training.data import fit_dirichlet_multinomial
from snefy_ldl.votes.crowd import HOLD, TURNS, Ballots, Crowd, first_draws, weigh_votes

Method = Literal["majority", "dawid-skene", "shares"]
METHODS = ("majority", "dawid-skene", "shares")
#: Turns of Dawid and Skene, and what is added to each cell of their matrices.
STEPS, ADDED = 100, 0.01


@dataclass(frozen=True, eq=False)
class Aggregate:
    """Labels of items from votes alone.

    Args:
        items: names (N).
        label_names: names (L).
        shares: for "majority" shares of votes, for "dawid-skene" the probability of each label, for "shares" the
            expected label distribution (N, L).
        label: the chosen label, by name (N).
        quality: probability that it is the right one (N,): low ones are worth another look.
    """

    items: list[Any]
    label_names: list[str]
    shares: Array
    label: list[str]
    quality: Array


def aggregate(votes: VoteTable, method: Method = "shares") -> Aggregate:
    """One label and one label distribution per item, out of votes alone.

    Args:
        votes: single votes; items without a vote are an error.
        method: "majority"; "dawid-skene": one true label per item and a confusion matrix per annotator (1979); or
            "shares": a label distribution per item and confusion matrices, some of people who guess, as
            :class:`snefy_ldl.AnnotatorLDL` learns them, with one Dirichlet in place of features.

    Returns:
        Shares, labels and their quality. That of a majority is ``(k + 1) / (n + L)``; under "shares" it is the
        probability that no other label has a larger share.

    Raises:
        InputError: an item has no vote, or the votes do not name who cast them, which only the majority can do without.

    Example:
        >>> votes = VoteTable.from_counts([[3, 1], [0, 2]])
        >>> aggregate(votes, "majority").quality.round(2)
        array([0.67, 0.75])
    """
    check_choice("method", method, METHODS)
    counts = votes.counts
    if not counts.sum(1).all():
        raise InputError(f"item {votes.items[int(counts.sum(1).argmin())]!r} has no vote.")
    if method != "majority" and (not votes.annotators or (votes.annotator < 0).any()):
        raise InputError(f'method="{method}" needs to know who cast each vote; use "majority".')
    ballots = Ballots.of(votes, np.arange(len(votes.items)))
    shares = counts / counts.sum(1, keepdims=True)
    quality: Array = (counts.max(1) + 1.0) / (counts.sum(1) + counts.shape[1])
    if method == "dawid-skene":
        shares = _dawid_skene(ballots, shares)
        quality = shares.max(1)
    elif method == "shares":
        shares, leads = _by_crowd(ballots, counts)
        best: Index = shares.argmax(1)
        quality = leads[np.arange(len(best)), best]
    labels = [votes.label_names[r] for r in shares.argmax(1)]
    return Aggregate(list(votes.items), list(votes.label_names), shares, labels, quality)


def _dawid_skene(ballots: Ballots, shares: Array) -> Array:
    """Probabilities of the true label (N, L)."""
    for _ in range(STEPS):
        tables = np.full((ballots.n_people, ballots.n_labels, ballots.n_labels), ADDED)
        np.add.at(tables.transpose(0, 2, 1), (ballots.who, ballots.label), shares[ballots.item])
        logs = np.log(tables / tables.sum(-1, keepdims=True))
        evidence = np.tile(np.log(shares.mean(0) + 1e-12), (ballots.n_items, 1))
        np.add.at(evidence, ballots.item, logs[ballots.who, :, ballots.label])
        before, shares = shares, softmax(evidence, axis=1)
        if np.abs(shares - before).max() < 1e-6:
            break
    return shares


def _by_crowd(ballots: Ballots, counts: Array) -> tuple[Array, Array]:
    """Expected label distributions, and how probably each label leads (N, L)."""
    crowd = Crowd(ballots, HOLD)
    draws = first_draws(counts, fit_dirichlet_multinomial(counts), np.random.default_rng(0))
    for turn in range(2 * TURNS):
        latent, others, _ = weigh_votes(draws, ballots, crowd.factors())
        crowd.learn(latent, others, learn_strength=turn >= TURNS)
    logs = draws.log_weights.astype(np.float64)
    chance = np.einsum("vsk,vk->vs", draws.values[ballots.item], crowd.factors())
    np.add.at(logs, ballots.item, np.log(np.maximum(chance, 1e-12)))
    weights = softmax(logs, axis=1)
    ahead = np.eye(counts.shape[1])[draws.values.argmax(2)]
    return np.einsum("ns,nsk->nk", weights, draws.values), np.einsum("ns,nsk->nk", weights, ahead)
