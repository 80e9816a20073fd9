"""Known shares of a law with a centre or with zeros: draws from a mixture close to the conditional law, with weights.

A draw takes a component, which of the unknown labels are there (at least one) and their proportions. Its weight is the
law's exact density there, votes included, over the mixture's.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from snefy_ldl._internal.limits import block_elements
from snefy_ldl._internal.special import log_beta
from snefy_ldl._internal.special.tolerances import LOG_ODDS_LIMIT
from snefy_ldl.distributions.components import PresenceComponents
from snefy_ldl.distributions.conditioned import KnownShares, WeightedDraws
from snefy_ldl.errors import InputError

__all__ = ["condition_by_draws"]

#: Steps that look for the point at which the components are reweighted; the weights make up for what is missing.
STEPS = 3
#: Share of the proposals that come from the components as they were, so that no part of the law is left out.
UNCHANGED = 0.1


@torch.no_grad()
def condition_by_draws(law: Any, shares: KnownShares, n: int, generator: torch.Generator | None) -> WeightedDraws:
    """Weighted draws of all shares, given some.

    Args:
        law: rows with a centre or with zeros (:class:`~snefy_ldl.distributions.gammas.GammaRows`).
        shares: the known ones, zeros among them or not.
        n: draws per row.
        generator: source of randomness.

    Returns:
        The draws and their weights.

    Raises:
        InputError: fewer than two draws, or the law has no density at the known shares.
    """
    if n < 2:
        raise InputError(f"conditioning by draws needs at least 2 draws; got n_draws={n}.")
    seed = int(torch.randint(2**62, (), generator=generator, device=generator.device if generator else None))
    pieces = [_row_draws(law, row, shares, n, law.stream(seed + row, generator)) for row in range(len(law))]
    logs, log_q = (torch.stack(part, 1) for part in zip(*pieces))
    there = ~torch.isneginf(logs[..., shares.others])
    log_weights = law.log_prob(logs) + (there.sum(-1) - 1) * shares.left.log() - log_q
    lost = torch.nonzero(~torch.isfinite(log_weights.amax(0)))
    if len(lost):
        row = int(lost[0])
        raise InputError(f"the law of row {row} has no density at the known shares; nothing follows from them.")
    return WeightedDraws(logs.exp(), log_weights)


def _row_draws(law: Any, row: int, shares: KnownShares, n: int, source: Any) -> tuple[Tensor, Tensor]:
    """Log shares (n, L) of one row and their log densities under the mixture (n,)."""
    whole: PresenceComponents = law.row_components(row)
    centre = law.row_centre(row)
    others, other_centre = whole.take(shares.others), centre[shares.others]
    values, left = shares.values[row], shares.left[row]
    weights = _proposal(law, row, whole, centre, shares, others)
    component = torch.searchsorted(weights.cumsum(0), source.uniform(n) * weights.sum()).clamp_max(len(weights) - 1)
    plain = law.propose_from(others, component, source)  # (n, L-K), of the others among themselves
    there = ~torch.isneginf(plain)
    proportions = torch.log_softmax(plain + other_centre, -1)
    log_q = _log_density(weights, others, plain) + torch.where(there, plain - proportions, 0.0).sum(-1)
    logs = torch.empty(n, len(centre), dtype=torch.float64, device=plain.device)
    logs[:, shares.others] = proportions + left.log()
    logs[:, shares.labels] = values.log()
    return logs, log_q


def _proposal(
    law: Any, row: int, whole: PresenceComponents, centre: Tensor, shares: KnownShares, others: PresenceComponents
) -> Tensor:
    """Weights (P,), none negative, of the components that draws come from.

    The chance of the known presences is exact. The density of the known shares is taken as if the others' concentration
    were its mean over what may be there, and their proportions the expected ones.
    """
    present = [r for r, v in zip(shares.labels, shares.values[row].tolist()) if v > 0.0]
    known = shares.values[row, [shares.labels.index(r) for r in present]]
    chance = whole.log_odds[:, present].sum(-1) + others.log_norm - whole.log_norm
    logs = law.weights(slice(row, row + 1))[0].clamp_min(0.0).log() + chance
    before = torch.softmax(logs, -1)
    if not bool(torch.isfinite(before).all()):
        raise InputError(f"in the law of row {row} the known labels are never there; nothing follows from them.")
    expected = others.alpha * others.prob_present()  # (P, L-K)
    alpha = torch.cat([whole.alpha[:, present], expected.sum(-1, keepdim=True)], 1)
    log_normaliser, other_centre = log_beta(alpha), centre[shares.others].exp()
    after = before
    for _ in range(STEPS):
        proportions = (after @ (expected / expected.sum(-1, keepdim=True))) * other_centre
        proportions = proportions / proportions.sum()
        # ℓ' of the known labels and of all others together, the latter at these proportions
        rest = shares.left[row] * (proportions / other_centre).sum()
        merged = torch.log_softmax(torch.cat([known.log() - centre[present], rest.log().reshape(1)]), -1)
        after = torch.softmax(logs + (alpha - 1.0) @ merged - log_normaliser, -1)
    return (1.0 - UNCHANGED) * after + UNCHANGED * before


def _log_density(weights: Tensor, parts: PresenceComponents, plain: Tensor) -> Tensor:
    """Log density of the mixture at its draws (n, L-K) -> (n,)."""
    used = torch.nonzero(weights > 0.0).squeeze(1)
    log_weights, alpha = weights[used].log(), parts.alpha[used]
    table, log_norm = parts.log_odds[used] - torch.lgamma(alpha), parts.log_norm[used]
    step = max(1, block_elements(weights.device.type) // (4 * len(used)))
    answers = []
    for points in plain.split(step):
        there = ~torch.isneginf(points)
        supports, which = torch.unique(there, dim=0, return_inverse=True)
        on_support = supports.double() @ table.T + torch.lgamma(supports.double() @ alpha.T) - log_norm
        logs = torch.where(there, points, 0.0) @ (alpha - 1.0).T + on_support[which]
        answers.append(torch.logsumexp(logs + log_weights, -1))
    return torch.cat(answers)


def always_there(alpha: Tensor) -> PresenceComponents:
    """Components whose labels are all there, as ones with presence."""
    return PresenceComponents(alpha, torch.full_like(alpha, LOG_ODDS_LIMIT))
