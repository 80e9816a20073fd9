"""How a fit on votes starts and how fast it learns, which depends on how many votes an item has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Start = Literal["draws", "means", "both"]


@dataclass(frozen=True)
class VoteSettings:
    """Where training on votes differs from training on label distributions.

    Args:
        rate: learning rate in units of the estimator's.
        exponent_rate: the exponents' rate in units of that.
        start: neurons start at a draw of each item's posterior under one Dirichlet for all items, at its mean, or half
            of them each.
        sharpness: draws are of a posterior with this many times its concentration; 1 is the posterior itself.
        concentration_range: of the neurons at the start, in units of the start labels' own concentration.
    """

    rate: float = 0.4
    exponent_rate: float = 20.0
    start: Start = "draws"
    sharpness: float = 1.0
    concentration_range: tuple[float, float] = (1.0, 32.0)


def settings_for(votes: float) -> VoteSettings:
    """The settings for so many votes an item, on average.

    A start takes from the votes what they can tell. One vote an item says nothing about how far items differ beyond
    their features: neurons then start wide, at draws only a little sharper than the posterior. The more votes, the
    nearer they start to the posterior means, and the higher their concentrations may be. Settled on development rows
    of four data sets, see ``benchmarks/votes.py tune``.

    Args:
        votes: an item, on average.

    Returns:
        The settings.

    Example:
        >>> settings_for(1).concentration_range, settings_for(100).concentration_range
        ((0.5, 1.0), (1.0, 32.0))
    """
    return VoteSettings(
        exponent_rate=float(round(1.0 + 19.0 * (votes - 1.0) / (votes + 10.0))),
        sharpness=min(16.0, 4.0 * votes**2),
        concentration_range=(min(1.0, 0.5 * votes), max(1.0, min(32.0, votes**2))),
    )
