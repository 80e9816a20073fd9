"""How a fit on votes starts and how fast it learns, which depends on how many votes an item has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from snefy_ldl._types import Array

Start = Literal["draws", "means", "both"]


@dataclass(frozen=True)
class CountRecipe:
    """Where training on votes differs from training on label distributions.

    Args:
        rate: learning rate in units of the estimator's.
        exponent_rate: the exponents' rate in units of that.
        start: neurons start at a draw of each item's posterior under one Dirichlet for all items, at its mean, or half
            of them each.
        sharpness: draws are of a posterior with this many times its concentration; 1 is the posterior itself.
        spread: range of the concentration that neurons start with, in units of the start labels' own.
    """

    rate: float = 0.4
    exponent_rate: float = 20.0
    start: Start = "draws"
    sharpness: float = 1.0
    spread: tuple[float, float] = (1.0, 32.0)


def count_recipe(votes: float) -> CountRecipe:
    """The recipe for so many votes an item, on average.

    A start takes from the votes what they can tell. One vote an item says nothing about how far items differ beyond
    their features: neurons then start wide, at draws only a little sharper than the posterior. The more votes, the
    nearer they start to the posterior means, and the higher their concentrations may be. Settled on development rows
    of four data sets, see ``benchmarks/votes.py tune``.

    >>> count_recipe(1).spread, count_recipe(100).spread
    ((0.5, 1.0), (1.0, 32.0))
    """
    return CountRecipe(
        exponent_rate=float(round(1.0 + 19.0 * (votes - 1.0) / (votes + 10.0))),
        sharpness=min(16.0, 4.0 * votes**2),
        spread=(min(1.0, 0.5 * votes), max(1.0, min(32.0, votes**2))),
    )


def start_labels(votes: Array, prior: Array, start: Start, rng: np.random.Generator, sharpness: float = 1.0) -> Array:
    """Label distributions (N, L) for neurons to start at, given votes (N, L) and the Dirichlet of all items.

    Means take few votes for agreement; a draw is as far from the mean as the votes leave open.

    >>> start_labels(np.array([[9.0, 0.0]]), np.array([0.5, 0.5]), "means", np.random.default_rng(0))
    array([[0.95, 0.05]])
    """
    posterior = votes + prior
    means: Array = posterior / posterior.sum(1, keepdims=True)
    if start == "means":
        return means
    draws: Array = rng.standard_gamma(sharpness * posterior)
    draws = np.maximum(draws, 1e-6 * draws.sum(1, keepdims=True))
    draws /= draws.sum(1, keepdims=True)
    if start == "draws":
        return draws
    both: Array = np.where((np.arange(len(votes)) % 2 == 0)[:, None], means, draws)
    return both
