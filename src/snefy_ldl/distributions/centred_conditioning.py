"""Conditioning with a centre: on shares by draws from a mixture close to the conditional law, on ratios exactly."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from snefy_ldl.distributions.conditioned import ConditionedDraws, KnownShares, full_logs
from snefy_ldl.distributions.family import PairFamily
from snefy_ldl.distributions.law import closed
from snefy_ldl.distributions.mixture import SignedDirichletMixture
from snefy_ldl.distributions.ratios import ConditionedRatios, KnownRatios
from snefy_ldl.distributions.snefy import SnefySimplex
from snefy_ldl.errors import InputError
from snefy_ldl.special.tolerances import SAME_CENTRE

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
        law: a :class:`~snefy_ldl.distributions.centred.CentredSnefy`, or one whose rows have their own centres.
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
    log_centre, frame = law.log_centre[:, shares.others], law.plain()
    plain = proposal.draw_logs(n, generator)  # (n, N, L-K), of the others among themselves
    log_q = torch.cat([proposal.log_densities(rows, plain[:, rows])[0] for rows in proposal.chunks()], 1)
    proportions = torch.log_softmax(plain + log_centre, -1)
    log_q = log_q + (plain - proportions).sum(-1)
    logs = full_logs(shares, proportions)
    whole = law.plain_logs(logs)
    log_p = torch.cat([frame.log_densities(rows, whole[:, rows])[0] for rows in law.chunks()], 1)
    log_p = log_p + (whole - logs).sum(-1) + (len(shares.others) - 1) * shares.left.log()
    return ConditionedDraws(law, shares, logs.exp(), log_p - log_q)


def _proposal(law: Any, shares: KnownShares) -> SignedDirichletMixture:
    """The mixture over the unknown labels, as proportions of ℓ', that draws come from."""
    centre, alpha = law.log_centre[:, shares.others].exp(), law.concentration.detach()[:, shares.others]
    frame = law.plain()
    before = torch.cat([law.weights(rows) for rows in law.chunks()]).clamp_min(0.0)
    before = before / before.sum(-1, keepdim=True)
    proportions = closed(law.mean.double().reshape(-1, law.n_labels)[:, shares.others])
    for _ in range(STEPS):
        plain = law.plain_logs(full_logs(shares, proportions.log())).exp()
        known = plain[:, shares.labels]
        merged = torch.cat([known, plain[:, shares.others].sum(-1, keepdim=True)], 1).log()
        after = frame.reweighted(shares, merged)[0].clamp_min(0.0)
        after = after / after.sum(-1, keepdim=True)
        proportions = closed(_mean(after, alpha) * centre)
    return SignedDirichletMixture((1.0 - UNCHANGED) * after + UNCHANGED * before, alpha, validate_args=False)


def _mean(weights: Tensor, alpha: Tensor) -> Tensor:
    return weights @ (alpha / alpha.sum(-1, keepdim=True))


def ratios_centred(law: Any, known: KnownRatios) -> ConditionedRatios:
    """The law of all shares, given ratios of some.

    In ``p'(ℓ') ∝ ‖V exp(W log ℓ' + h)‖²`` put ``ℓ'_r = t_r ℓ'_G`` for the labels r of a group G, t known: the same
    square, with ``h_i + Σ_r w_ir log t_r`` and the exponents of merged labels. The group's centre is ``Σ c_r t_r``.

    Args:
        law: a :class:`~snefy_ldl.distributions.centred.CentredSnefy`.
        known: the ratios.

    Returns:
        The law.

    Raises:
        InputError: the ratios make the groups' centres differ from row to row, or the law has no density at them.
    """
    plain = known.log_proportions - law.centre.log()  # (N, L)
    for group in known.groups:
        plain[:, group] = torch.log_softmax(plain[:, group], -1)
    centre = known.merged(plain.exp() * law.centre)  # (N, G)
    if bool((centre / centre[:1] - 1.0).abs().max() > SAME_CENTRE):
        raise InputError(
            "with a centre a ratio must be the same in every row (a group's centre hangs on it); ask for rows with "
            "the same ratio together: dist[rows].condition_ratios(...)."
        )
    exponents, readout = law.exponents.double(), law.readout.double()
    merged = known.merged(exponents + 0.5) - 0.5
    family = PairFamily(merged, readout, law.gram)
    shift = torch.einsum("nl,kil->nki", plain, exponents) + family.log_root_norm - law.log_root_norm
    scale = (law.flat_log_scale.double() + shift).reshape(*law.batch_shape, *shift.shape[1:])
    bare = SnefySimplex(merged, readout, scale, validate_args=False, family=family)
    evidence = torch.cat([bare.log_normaliser(rows) - law.log_normaliser(rows) for rows in law.chunks()])
    members = evidence + law.log_members  # (N, K)
    log_p = torch.logsumexp(members, -1) + plain.sum(-1) - known.log_ratios  # a group of one has log t = 0
    lost = torch.nonzero(~torch.isfinite(log_p))
    if len(lost):
        row = int(lost[0])
        raise InputError(f"the law of row {row} has no density at the known ratios; nothing follows from them.")
    shaped = members.reshape(*law.batch_shape, -1)
    rest = type(law)(merged, readout, scale, centre[0], shaped, validate_args=False, family=family)
    rest.dtype = law.dtype
    return ConditionedRatios(law, rest.named(known.names(law.label_names)), known, law.shaped(log_p))
