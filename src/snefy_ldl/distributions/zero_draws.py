"""Known positive shares where labels may be absent: draws from a mixture close to the conditional law, with weights.

A draw takes a component, which of the unknown labels are there (at least one) and their proportions. Its weight is the
law's exact density there over the mixture's, as for laws with a centre.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from snefy_ldl._limits import block_elements
from snefy_ldl.distributions.centred_conditioning import STEPS, UNCHANGED
from snefy_ldl.distributions.conditioned import ConditionedDraws, KnownShares
from snefy_ldl.distributions.law import closed
from snefy_ldl.distributions.sampling import RandomStream
from snefy_ldl.distributions.zero_moments import PresenceComponents
from snefy_ldl.distributions.zero_square import propose_presence
from snefy_ldl.errors import InputError
from snefy_ldl.special import log_beta


@torch.no_grad()
def condition_on_shares(law: Any, shares: KnownShares, n: int, generator: torch.Generator | None) -> ConditionedDraws:
    """Weighted draws of all shares, given some of which at least one is positive.

    Args:
        law: a :class:`~snefy_ldl.distributions.zeros.ZeroSnefy`.
        shares: the known ones, zeros among them or not.
        n: draws a row.
        generator: source of randomness.

    Returns:
        The draws and their weights.

    Raises:
        InputError: fewer than two draws, or the law has no density at the known shares.
    """
    if n < 2:
        raise InputError(f"conditioning on shares with zeros modelled needs at least 2 draws; got n_draws={n}.")
    whole = law.components
    others = PresenceComponents(
        whole.alpha.detach()[:, shares.others], whole.log_odds.detach()[:, shares.others], law.centre[shares.others]
    )
    weights = _proposal(law, shares, others)
    plain = _draw(weights, others, n, generator)  # (n, N, L-K)
    there = ~torch.isneginf(plain)
    log_q = _log_density(weights, others, plain)
    proportions = torch.log_softmax(plain + others.centre.log(), -1)
    log_q = log_q + torch.where(there, plain - proportions, 0.0).sum(-1)
    logs = shares.filled(proportions + shares.left.log()[:, None], shares.values.log())
    everywhere = law.plain_logs(logs)
    log_p = torch.cat([law.log_densities(rows, everywhere[:, rows])[0] for rows in law.chunks()], 1)
    log_p = log_p + torch.where(torch.isneginf(logs), 0.0, everywhere - logs).sum(-1)
    log_weights = log_p + (there.sum(-1) - 1) * shares.left.log() - log_q
    lost = torch.nonzero(~torch.isfinite(log_weights.amax(0)))
    if len(lost):
        row = int(lost[0])
        raise InputError(f"the law of row {row} has no density at the known shares; nothing follows from them.")
    return ConditionedDraws(law, shares, logs.exp(), log_weights)


def _proposal(law: Any, shares: KnownShares, others: PresenceComponents) -> Tensor:
    """Weights (N, P), none negative, of the components that draws come from.

    The chance of the known presences is exact. The density of the known shares is taken as if the others' concentration
    were its mean over what may be there, and their proportions the expected ones.
    """
    present = [r for r, v in zip(shares.labels, shares.values[0].tolist()) if v > 0.0]
    known = shares.values[:, [shares.labels.index(r) for r in present]]
    parts = law.components
    chance = parts.log_odds.detach()[:, present].sum(-1) + others.log_norm - parts.log_norm.detach()  # (P,)
    before = torch.cat([law.weights(rows) for rows in law.chunks()]).clamp_min(0.0)
    logs = before.log() + chance
    before = torch.softmax(logs, -1)
    if not bool(torch.isfinite(before).all()):
        row = int(torch.nonzero(~torch.isfinite(before).all(-1))[0])
        raise InputError(f"in the law of row {row} the known labels are never there; nothing follows from them.")
    expected = others.alpha * _presence(others)  # (P, L-K)
    alpha = torch.cat([parts.alpha.detach()[:, present], expected.sum(-1, keepdim=True)], 1)
    log_centre, log_normaliser = law.centre[present].log(), log_beta(alpha)
    after = before
    for _ in range(STEPS):
        proportions = closed((after @ (expected / expected.sum(-1, keepdim=True))) * others.centre)
        # ℓ' of the known labels and of all others together, the latter at these proportions
        rest = shares.left * (proportions / others.centre).sum(-1)
        merged = torch.cat([known.log() - log_centre, rest.log()[:, None]], 1)
        merged = torch.log_softmax(merged, -1)
        after = torch.softmax(logs + merged @ (alpha - 1.0).T - log_normaliser, -1)
    return (1.0 - UNCHANGED) * after + UNCHANGED * before


def _presence(parts: PresenceComponents) -> Tensor:
    """Chance that a label is there, given that one is (P, L)."""
    total = softplus(parts.log_odds)
    rest = total.sum(-1, keepdim=True) - total
    return (parts.log_odds + rest - parts.log_norm[:, None]).exp().clamp(0.0, 1.0)


def _draw(weights: Tensor, parts: PresenceComponents, n: int, generator: torch.Generator | None) -> Tensor:
    """``log ℓ'`` of n draws a row (n, N, L-K), -inf for absent labels."""
    seed = int(torch.randint(2**62, (), generator=generator, device=generator.device if generator else None))
    source = RandomStream(weights.device, seed, generator)
    component = torch.multinomial(weights, n, replacement=True, generator=generator).T  # (n, N)
    return propose_presence(parts, component, source)


def _log_density(weights: Tensor, parts: PresenceComponents, plain: Tensor) -> Tensor:
    """Log density of the mixture at its draws (n, N, L-K) -> (n, N)."""
    log_weights = weights.log()  # (N, P)
    table = parts.log_odds - torch.lgamma(parts.alpha)
    n_rows = len(weights)
    step = max(1, block_elements(weights.device.type) // (4 * max(1, n_rows) * len(table)))
    answers = []
    for points in plain.split(step):
        there = ~torch.isneginf(points)
        supports, which = torch.unique(there.flatten(0, 1), dim=0, return_inverse=True)
        on_support = supports.double() @ table.T + torch.lgamma(supports.double() @ parts.alpha.T) - parts.log_norm
        logs = torch.where(there, points, 0.0) @ (parts.alpha - 1.0).T + on_support[which].unflatten(0, there.shape[:2])
        answers.append(torch.logsumexp(logs + log_weights, -1))
    return torch.cat(answers)
