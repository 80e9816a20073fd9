"""Conditioning on shares with a centre: draws from a mixture close to the conditional law, and their weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from snefy_ldl.distributions.conditioned import ConditionedDraws, KnownShares, full_logs
from snefy_ldl.distributions.law import closed
from snefy_ldl.distributions.mixture import SignedDirichletMixture
from snefy_ldl.errors import InputError

#: Steps that look for the point at which the components are reweighted; the weights make up for what is missing.
STEPS = 3
#: Share of the proposals that come from the components as they were, so that no part of the law is left out.
UNCHANGED = 0.1


@torch.no_grad()
def condition_centred(law: Any, shares: KnownShares, n: int, generator: torch.Generator | None) -> ConditionedDraws:
    """Weighted draws of all shares, given some.

    The components are reweighted as without a centre, at the known shares' ``ℓ'`` were the others at their expected
    proportions. Only positive weights are kept: a mixture without zeros, whose draws need no rejection.

    Args:
        law: a :class:`~snefy_ldl.distributions.centred.CentredSnefy`.
        shares: the known ones.
        n: draws a row.
        generator: source of randomness.

    Returns:
        The draws and their weights.

    Raises:
        InputError: fewer than two draws, or the law has no density at the known shares.
    """
    if n < 2:
        raise InputError(f"conditioning with a centre needs at least 2 draws; got n_draws={n}.")
    proposal = _proposal(law, shares)
    log_centre = law.centre[shares.others].log()
    plain = proposal.draw_logs(n, generator)  # (n, N, L-K), of the others among themselves
    log_q = torch.cat([proposal.log_densities(rows, plain[:, rows])[0] for rows in proposal.chunks()], 1)
    proportions = torch.log_softmax(plain + log_centre, -1)
    log_q = log_q + (plain - proportions).sum(-1)
    logs = full_logs(shares, proportions)
    whole = law.plain_logs(logs)
    log_p = torch.cat([law.log_densities(rows, whole[:, rows])[0] for rows in law.chunks()], 1)
    log_p = log_p + (whole - logs).sum(-1) + (len(shares.others) - 1) * shares.left.log()
    return ConditionedDraws(law, shares, logs.exp(), log_p - log_q)


def _proposal(law: Any, shares: KnownShares) -> SignedDirichletMixture:
    """The mixture over the unknown labels, as proportions of ℓ', that draws come from."""
    centre, alpha = law.centre[shares.others], law.concentration.detach()[:, shares.others]
    before = torch.cat([law.weights(rows) for rows in law.chunks()]).clamp_min(0.0)
    before = before / before.sum(-1, keepdim=True)
    proportions = closed(law.mean.double().reshape(-1, law.n_labels)[:, shares.others])
    for _ in range(STEPS):
        plain = law.plain_logs(full_logs(shares, proportions.log())).exp()
        known = plain[:, shares.labels]
        merged = torch.cat([known, plain[:, shares.others].sum(-1, keepdim=True)], 1).log()
        after = law.reweighted(shares, merged)[0].clamp_min(0.0)
        after = after / after.sum(-1, keepdim=True)
        proportions = closed(_mean(after, alpha) * centre)
    return SignedDirichletMixture((1.0 - UNCHANGED) * after + UNCHANGED * before, alpha, validate_args=False)


def _mean(weights: Tensor, alpha: Tensor) -> Tensor:
    return weights @ (alpha / alpha.sum(-1, keepdim=True))
