"""Known shares: the law of the others against quadrature, the chain rule, draws in a window, and with a centre."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from snefy_ldl.distributions import SnefySimplex
from snefy_ldl.errors import InputError

Build = Callable[..., SnefySimplex]
#: A comparison at 5.5 standard errors fails by chance once in 26 million; seeds are fixed, so a pass stays a pass.
VOTES = torch.tensor([[3.0, 0.0, 1.0, 0.0], [0.0, 0.0, 9.0, 2.0]])
LAWS: dict[str, Callable[[Build, Build], SnefySimplex]] = {
    "signed": lambda snefy, _: snefy(4),
    "cancelling": lambda _, cancelling: cancelling(4),
    "members": lambda snefy, _: snefy(4, n=3, members=3),
    "votes": lambda snefy, _: snefy(4).posterior(VOTES),
    "merged": lambda snefy, _: snefy(5).posterior(torch.ones(5)).amalgamate([[0, 4], [1], [2], [3]]),
    "small concentrations": lambda snefy, _: snefy(4, concentration=(0.05, 0.3)),
}


@pytest.mark.parametrize("kind", list(LAWS))
def test_known_and_unknown_shares_multiply_to_the_density(kind: str, snefy: Build, cancelling: Build) -> None:
    law = LAWS[kind](snefy, cancelling)
    points = torch.distributions.Dirichlet(torch.full((4,), 2.0, dtype=torch.float64)).sample((7, *law.batch_shape))
    for labels in ([2], [0, 3], [3, 1]):
        for point in points:
            given = law.condition({r: point[..., r] for r in labels})
            torch.testing.assert_close(given.log_prob_known + given.log_prob(point), law.log_prob(point))
            torch.testing.assert_close(given.scale[..., 0], 1.0 - point[..., labels].sum(-1))


def test_the_law_of_one_unknown_share(snefy: Build) -> None:
    law = snefy(4, batch=(3,)).named(["a", "b", "c", "d"])
    given = law.condition({"b": torch.tensor([0.1, 0.2, 0.3])})
    share, both = given.marginal("c"), given.marginal([0, 3])
    torch.testing.assert_close(share.mean, given.mean[:, 2])
    torch.testing.assert_close(share.variance, given.variance[:, 2])
    torch.testing.assert_close(both.mean, given.mean[:, [0, 3]].sum(-1))
    levels = torch.full((3,), 0.3, dtype=torch.float64)
    at = share.icdf(levels)
    torch.testing.assert_close(at, given.quantiles([0.3])[:, 2, 0], rtol=0, atol=1e-8)
    torch.testing.assert_close(share.cdf(at), levels, rtol=0, atol=1e-8)
    torch.testing.assert_close(both.cdf(given.scale[..., 0] - at), 1.0 - levels, rtol=0, atol=1e-8)
    step = 1e-5
    slope = (share.cdf(at + step) - share.cdf(at - step)) / (2 * step)
    torch.testing.assert_close(share.log_prob(at).exp(), slope, rtol=1e-5, atol=0)
    assert share.sample((5,)).shape == (5, 3)
    with pytest.raises(InputError, match="is known"):
        given.marginal("b")


BAD: dict[str, tuple[Any, str]] = {
    "zero": ({0: 0.0}, "every label has a positive share"),
    "negative": ({0: -0.1}, "strictly between"),
    "nan": ({0: math.nan}, "strictly between"),
    "one": ({0: 1.0}, "strictly between"),
    "too much": ({0: 0.6, 1: [0.1, 0.4]}, "row 1 sum to 1"),
    "all": ({0: 0.2, 1: 0.2, 2: 0.2}, "two labels unknown"),
    "none": ({}, "at least one label"),
    "twice": ({0: 0.2, -4: 0.2}, "each once"),
    "no such label": ({7: 0.2}, "from 0 to 3"),
    "another batch": ({0: [0.1, 0.2, 0.3]}, "fit the batch"),
}


@pytest.mark.parametrize("mistake", list(BAD))
def test_mistakes_are_named(mistake: str, snefy: Build) -> None:
    known, message = BAD[mistake]
    with pytest.raises(InputError, match=message):
        snefy(4).condition(known)


def test_a_point_without_density_tells_nothing() -> None:
    """(1 - 2ℓ_1)² is zero at one half: ``1 - 4 ℓ_1 + 4 ℓ_1²`` as three Dirichlets with the same two other labels."""
    alpha = torch.tensor([[1.0, 1.0, 1.0], [2.0, 1.0, 1.0], [3.0, 1.0, 1.0]], dtype=torch.float64)
    weights = torch.tensor([[0.5, -2.0 / 3.0, 1.0 / 3.0]], dtype=torch.float64)
    law = SnefySimplex.from_mixture(weights / weights.sum(), alpha)
    law.condition({0: 0.4})
    with pytest.raises(InputError, match="no density"):
        law.condition({0: 0.5})
    with pytest.raises(InputError, match="disagrees"):
        law.condition({0: 0.4}).log_prob(torch.tensor([[0.3, 0.3, 0.4]]).double())
