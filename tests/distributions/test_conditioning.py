"""Known shares and known ratios: against quadrature on a line, and by the chain rule."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from snefy_ldl.distributions import SnefySimplex
from snefy_ldl.errors import InputError

Build = Callable[..., SnefySimplex]
OfKind = Callable[[str, int], SnefySimplex]
#: A comparison at 5.5 standard errors fails by chance once in 26 million; seeds are fixed, so a pass stays a pass.
KINDS = ["signed", "cancelling", "members", "votes", "merged, votes", "small"]


@pytest.mark.parametrize("kind", KINDS)
def test_known_and_unknown_shares_multiply_to_the_density(kind: str, of_kind: OfKind) -> None:
    dist = of_kind(kind, 4)
    points = torch.distributions.Dirichlet(torch.full((4,), 2.0, dtype=torch.float64)).sample((7, *dist.batch_shape))
    for labels in ([2], [0, 3], [3, 1]):
        for point in points:
            given = dist.condition({r: point[..., r] for r in labels})
            left = 1.0 - point[..., labels].sum(-1)
            torch.testing.assert_close(given.scale[..., 0], left)
            others = [r for r in range(4) if r not in labels]
            rest = given.rest.log_prob(point[..., others] / left[..., None]) - (len(others) - 1) * left.log()
            torch.testing.assert_close(given.log_prob_known + rest, dist.log_prob(point))


RATIOS: dict[str, dict[Any, float]] = {
    "one pair": {(1, 3): 0.4},
    "three labels again": {(2, 0): 2.5, (1, 2): 0.7},
    "three labels": {(1, 3): 0.4, (3, 0): 1.7},
    "two pairs": {(0, 2): 3.0, (1, 3): 0.2},
}


@pytest.mark.parametrize("ratios", list(RATIOS))
@pytest.mark.parametrize("kind", KINDS)
def test_ratios_and_totals_multiply_to_the_density(kind: str, ratios: str, of_kind: OfKind) -> None:
    """``p(ℓ) = p(ratios) p(totals) Π_ratios ρ / Π_groups (total^{k-1} Π t)``: the Jacobian of the two coordinates."""
    dist = of_kind(kind, 4)
    given = dist.condition_ratios(RATIOS[ratios])
    points = given.sample((7,), torch.Generator().manual_seed(0))
    for (a, b), ratio in RATIOS[ratios].items():
        torch.testing.assert_close(points[..., a] / points[..., b], torch.full((7, 2), ratio, dtype=torch.float64))
    torch.testing.assert_close(points.sum(-1), torch.ones(7, 2).double())
    jacobian: Any = -sum(math.log(ratio) for ratio in RATIOS[ratios].values())
    for group in given.groups:
        if len(group) > 1:
            total = points[..., group].sum(-1)
            jacobian = jacobian + (len(group) - 1) * total.log() + (points[..., group] / total[..., None]).log().sum(-1)
    expected = dist.log_prob(points) + jacobian
    totals = torch.stack([points[..., group].sum(-1) for group in given.groups], -1)
    torch.testing.assert_close(given.rest.log_prob(totals) + given.log_prob_known, expected, rtol=1e-8, atol=1e-8)


def test_three_labels_against_quadrature(snefy: Build) -> None:
    """The line ℓ_0 / ℓ_1 = 0.6: mass, two moments and a cdf by Gauss-Legendre, to 1e-8."""
    dist = snefy(3, n=3, concentration=(1.6, 9.0))
    ratio = 0.6
    nodes, gauss = np.polynomial.legendre.leggauss(600)
    given = dist.condition_ratios({(0, 1): ratio})
    assert given.groups == [[0, 1], [2]]

    def line(end: float) -> tuple[Tensor, Tensor]:
        """Points with ℓ_2 from 0 to an end, and each one's part of the integral, (S, 3) and (S, N)."""
        angle = torch.as_tensor(math.asin(math.sqrt(end)) * (nodes + 1.0) / 2.0)
        s = angle.sin().square()
        step = torch.as_tensor(gauss) * math.asin(math.sqrt(end)) / 2.0 * (2.0 * angle).sin()
        t = ratio / (1.0 + ratio)
        points = torch.stack([(1.0 - s) * t, (1.0 - s) * (1.0 - t), s], -1)
        slope = (1.0 - s) / (1.0 + ratio) ** 2  # |∂(ℓ_0, ℓ_1)/∂(s, ρ)|
        return points, dist.log_prob(points[:, None]).exp() * (slope * step)[:, None]

    points, mass = line(1.0)
    total = mass.sum(0)
    torch.testing.assert_close(given.log_prob_known.exp(), total, rtol=1e-8, atol=0)
    mean = torch.einsum("sn,sl->nl", mass, points) / total[:, None]
    second = torch.einsum("sn,sl,sq->nlq", mass, points, points) / total[:, None, None]
    torch.testing.assert_close(given.mean, mean, rtol=0, atol=1e-8)
    covariance = second - mean[:, :, None] * mean[:, None, :]
    torch.testing.assert_close(given.covariance_matrix, covariance, rtol=0, atol=1e-8)
    torch.testing.assert_close(given.variance, covariance.diagonal(dim1=1, dim2=2), rtol=0, atol=1e-8)
    median = given.quantiles([0.5])[..., 0]
    for row in range(2):
        below = line(float(median[row, 2]))[1].sum(0)[row] / total[row]
        assert float(below) == pytest.approx(0.5, abs=1e-6)


def test_rows_names_and_both_ways_round(snefy: Build) -> None:
    dist = snefy(4, batch=(3,)).named(["a", "b", "c", "d"])
    each = torch.tensor([0.5, 1.0, 4.0], dtype=torch.float64)
    given = dist.condition_ratios({("a", "c"): each})
    assert given.rest.label_names == ("a + c", "b", "d")
    upside_down = dist.condition_ratios({("c", "a"): 1.0 / each})
    torch.testing.assert_close(given.mean, upside_down.mean)
    # the density of 1/ρ is ρ² times that of ρ
    torch.testing.assert_close(upside_down.log_prob_known, given.log_prob_known + 2.0 * each.log())
    for row in range(3):
        torch.testing.assert_close(dist[row].condition_ratios({(0, 2): each[row]}).mean, given.mean[row])
    torch.testing.assert_close(given.scale.sum(-1), torch.full((3,), 3.0, dtype=torch.float64))
    assert given.groups == [[0, 2], [1], [3]]


BAD: dict[str, tuple[Any, str]] = {
    "zero": ({0: 0.0}, "every label has a positive share"),
    "one": ({0: 1.0}, "strictly between"),
    "too much": ({0: 0.6, 1: [0.1, 0.4]}, "row 1 sum to 1"),
    "all": ({0: 0.2, 1: 0.2, 2: 0.2}, "two labels unknown"),
    "none": ({}, "at least one label"),
    "twice": ({0: 0.2, -4: 0.2}, "each once"),
    "another batch": ({0: [0.1, 0.2, 0.3]}, "fit the batch"),
}


BAD_RATIOS: dict[str, tuple[Any, str]] = {
    "none": ({}, "at least one ratio"),
    "no pair": ({0: 2.0}, "pair of labels"),
    "the same label": ({(1, -3): 2.0}, "two different labels"),
    "nan": ({(0, 1): math.nan}, "positive number"),
    "another batch": ({(0, 1): [1.0, 2.0, 3.0]}, "fit the batch"),
    "a circle": ({(0, 1): 2.0, (1, 2): 2.0, (0, 2): 4.0}, "follows from the other"),
    "all": ({(0, 1): 2.0, (1, 2): 2.0, (2, 3): 2.0}, "every share is known"),
}


@pytest.mark.parametrize(("ask", "mistakes"), [("condition", BAD), ("condition_ratios", BAD_RATIOS)])
def test_mistakes_are_named(ask: str, mistakes: dict[str, tuple[Any, str]], snefy: Build) -> None:
    for known, message in mistakes.values():
        with pytest.raises(InputError, match=message):
            getattr(snefy(4), ask)(known)


def test_a_point_without_density_tells_nothing() -> None:
    """(1 - 2ℓ_1)² is zero at one half: ``1 - 4 ℓ_1 + 4 ℓ_1²`` as three Dirichlets with the same two other labels."""
    alpha = torch.tensor([[1.0, 1.0, 1.0], [2.0, 1.0, 1.0], [3.0, 1.0, 1.0]], dtype=torch.float64)
    weights = torch.tensor([[0.5, -2.0 / 3.0, 1.0 / 3.0]], dtype=torch.float64)
    dist = SnefySimplex.from_mixture(weights / weights.sum(), alpha)
    dist.condition({0: 0.4})
    with pytest.raises(InputError, match="no density"):
        dist.condition({0: 0.5})
