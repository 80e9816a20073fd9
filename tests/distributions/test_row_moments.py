"""Moments of rows with their own weights, odds and centres: all rows at once against tables of components and draws."""

from __future__ import annotations

import pytest
import torch
from snefy_ldl.distributions.components import ComponentMoments, PresenceComponents, RowMoments, RowPresenceMoments

from snefy_ldl._internal.special import pair_index
from snefy_ldl.distributions.sampling import RandomStream, draw_closed

WIDTHS = pytest.mark.parametrize("n_labels", [2, 3, 37, 150])


def rows_with_presence(n_labels: int, n_rows: int = 5) -> RowPresenceMoments:
    """Two members of four neurons, odds from rare to certain, centres over five orders of magnitude."""
    random = torch.Generator().manual_seed(n_labels)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=random)

    exponents, presence = (normal(2, 4, n_labels) - 0.5).exp() - 0.4, 0.5 * normal(2, 4, n_labels) - 0.5
    components = PresenceComponents.of_pairs(exponents, presence)
    i, j = pair_index(4, torch.device("cpu"))
    pairs = torch.cat([i, i + 4]), torch.cat([j, j + 4])
    weights = normal(n_rows, len(pairs[0])) * torch.exp(6.0 * normal(n_rows, len(pairs[0])))
    weights = weights / weights.abs().sum(1, keepdim=True)
    weights[:, 0] += 1.0 - weights.sum(1)  # weights of either sign and of very different size, which sum to one
    centre = 3.0 * normal(n_rows, n_labels)
    centre -= centre.amax(1, keepdim=True)
    shift = torch.cat([2.0 * normal(n_rows, n_labels - 1), torch.full((n_rows, 1), 60.0)], 1)
    return RowPresenceMoments((exponents + 0.5).flatten(0, 1), pairs, components.log_odds, shift, centre, weights)


def components_of(rows: RowPresenceMoments, row: int) -> PresenceComponents:
    i, j = rows.pairs
    return PresenceComponents(rows.half[i] + rows.half[j], rows.log_odds).moved(rows.shift[row])


@WIDTHS
def test_moments_with_presence_are_those_of_the_tables(n_labels: int) -> None:
    rows = rows_with_presence(n_labels)
    first, second = rows.two()
    for row, weights in enumerate(rows.weights):
        parts = components_of(rows, row)
        tables = ComponentMoments(parts.alpha, rows.log_centre[row], parts.log_odds)
        torch.testing.assert_close(first[row], weights @ tables.first(), rtol=0.0, atol=1e-10)
        torch.testing.assert_close(second[row], weights @ tables.second(), rtol=0.0, atol=1e-10)


@WIDTHS
def test_moments_without_zeros_are_those_of_the_tables(n_labels: int) -> None:
    rows = rows_with_presence(n_labels)
    half = rows.half.unflatten(0, (2, 4))
    random = torch.Generator().manual_seed(0)
    root = torch.randn(2, 4, 4, dtype=torch.float64, generator=random)
    matrix = root @ root.transpose(1, 2)
    features = torch.rand(2, 5, 4, dtype=torch.float64, generator=random)
    features /= torch.einsum("kni,kij,knj->n", features, matrix, features).sqrt()[None, :, None]
    moments = RowMoments(half, matrix, features, rows.log_centre)
    first, second = moments.two()
    alpha = (half[:, :, None] + half[:, None]).flatten(0, 2)
    weights = torch.einsum("kni,kij,knj->nkij", features, matrix, features).flatten(1)
    products = moments.products() if n_labels < 100 else None
    for row in range(len(weights)):
        tables = ComponentMoments(alpha, rows.log_centre[row])
        torch.testing.assert_close(first[row], weights[row] @ tables.first(), rtol=0.0, atol=1e-10)
        torch.testing.assert_close(second[row], weights[row] @ tables.second(), rtol=0.0, atol=1e-10)
        if products is not None:
            i, j = pair_index(n_labels, torch.device("cpu"))
            torch.testing.assert_close(products[row, i, j], weights[row] @ tables.products(), rtol=0.0, atol=1e-10)


def test_moments_of_rows_do_not_depend_on_the_others() -> None:
    rows = rows_with_presence(3, n_rows=40)
    together = torch.stack(rows.two())
    shift, centre, weights = rows.shift[7:8], rows.log_centre[7:8], rows.weights[7:8]
    alone = RowPresenceMoments(rows.half, rows.pairs, rows.log_odds, shift, centre, weights)
    torch.testing.assert_close(torch.stack(alone.two())[:, 0], together[:, 7], rtol=0.0, atol=1e-14)


@pytest.mark.parametrize("n_labels", [3, 150])
def test_moments_with_presence_are_those_of_draws(n_labels: int) -> None:
    """At most 300 means of 40,000 draws: one is six standard errors off once in two million times."""
    rows, n = rows_with_presence(n_labels, n_rows=1), 40_000
    one = torch.zeros_like(rows.weights)
    one[0, 5] = 1.0  # a single component, from which one can draw
    first, second = RowPresenceMoments(rows.half, rows.pairs, rows.log_odds, rows.shift, rows.log_centre, one).two()
    parts = components_of(rows, 0)
    source = RandomStream(torch.device("cpu"), 3, None)
    logs = draw_closed(parts.alpha[[5]].expand(n, -1), parts.log_odds[[5]].expand(n, -1), source)
    drawn = torch.softmax(logs + rows.log_centre[0], -1)
    for exact, values in ((first[0], drawn), (second[0], drawn.square())):
        off = (values.mean(0) - exact).abs() - 6.0 * values.std(0) / n**0.5
        # a share that no draw shows has no standard error: its mean is below 20 / n then
        assert bool(((off <= 0.0) | ((values.std(0) < 1e-3) & (exact < 20.0 / n))).all())
