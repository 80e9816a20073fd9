"""Log densities of known shares, and far out in the tails, where integrals cancel: saddle points and logarithms."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

from snefy_ldl._internal.limits import SWEEP_ELEMENTS
from snefy_ldl._internal.special import log_share
from snefy_ldl.distributions.components import PresenceComponents, log_expm1
from snefy_ldl.distributions.sparse_shares import log_modulus, nodes, turning

#: Components whose densities are e to minus this of the largest do not matter.
MATTERS = 45.0
#: Between which logits a tilt is looked for, and how often that range is halved.
TILT_LIMIT, TILT_HALVINGS = 800.0, 24


def log_known(
    values: Tensor,
    unknown: Tensor,
    alpha: Tensor,
    log_centre: Tensor,
    presence: PresenceComponents | None,
    log_weight: Tensor,
) -> Tensor:
    """Density of known shares under every component; see :meth:`GammaRows.log_prob_known`.

    Args:
        values: shares (L,); zero for labels that are known to be absent.
        unknown: which of them are not known (L,).
        alpha: concentrations (P, L).
        log_centre: ``log c`` (L,).
        presence: odds of presence, or None where all labels are there: exact zeros are then lifted to 1e-300.
        log_weight: of the components (P,); those that cannot matter in their sum may get minus infinity.

    Returns:
        Its logarithm (P,).
    """
    if presence is None:
        values = torch.where(unknown, torch.nan, log_share(values).exp())
    known = ~unknown & (values > 0.0)
    own = alpha[:, known].sum(1)
    log_norm, log_odds = torch.zeros_like(own), None
    if bool(unknown.all()):
        return log_norm
    if presence is not None:
        log_odds, log_norm = presence.log_odds, presence.log_norm
    rest = alpha[:, unknown], log_centre[unknown], None if log_odds is None else log_odds[:, unknown]
    if not bool(known.any()):  # zeros alone
        assert rest[2] is not None
        return PresenceComponents(rest[0], rest[2]).log_norm - log_norm
    logs = values[known].log()
    log_kappa = torch.logsumexp(logs - log_centre[known], 0)
    log_p = alpha[:, known] @ (logs - log_centre[known]) - logs.sum() - torch.lgamma(alpha[:, known]).sum(1)
    if log_odds is not None:
        log_p = log_p + log_odds[:, known].sum(1)
    log_p = log_p + torch.lgamma(own + 1.0) - (own + 1.0) * log_kappa
    left = 1.0 - values[known].sum()
    across = torch.zeros_like(log_centre[unknown], dtype=torch.bool)
    return log_p + log_density_at_zero(own + 1.0, log_share(left) - log_kappa, *rest, across, log_weight) - log_norm


def log_density_at_zero(
    own: Tensor,
    log_scale: Tensor,
    alpha: Tensor,
    log_centre: Tensor,
    log_odds: Tensor | None,
    beside: Tensor,
    log_weight: Tensor,
) -> Tensor:
    """Log density at zero of ``X = λ G + Σ_beside c g - Σ_across c g`` with gammas G and g, however small it is.

    It is ``(2π)⁻¹ ∫ E[e^{itX}] dt``, which cancels where zero lies far out in a tail. So X is first tilted by
    ``e^{ηX}`` with η such that its mean is zero: gammas remain gammas of other scales, and nothing cancels.

    Args:
        own: concentration of G (P,).
        log_scale: ``log λ``.
        alpha: concentrations of the others (P, M).
        log_centre: their scales ``log c`` (M,).
        log_odds: of their presence (P, M), at least one of those across being there; None where all are.
        beside: which of them have the sign of G (M,).
        log_weight: of the components (P,); those that cannot matter in their sum get minus infinity.

    Returns:
        (P,).

    Example:
        A gamma less another of the same kind, both exponential, has the density ½ e^{-|x|}.

        >>> one, zero = torch.ones(1).double(), torch.zeros(1).double()
        >>> across = torch.zeros(1, dtype=torch.bool)
        >>> log_density_at_zero(one, zero[0], one[:, None], zero, None, across, zero).exp().round(decimals=8)
        tensor([0.5000], dtype=torch.float64)
    """
    own, alpha = own[:, None], alpha.reshape(len(own), -1)
    both, sides = torch.cat([own, alpha], 1), torch.cat([beside.new_ones(1), beside])
    scale = torch.cat([log_scale.reshape(1), log_centre])
    tops = torch.where(sides, scale[sides].max(), scale[~sides].max())
    relative = scale - tops  # of the largest scale on the same side
    one_less = torch.log(-torch.expm1(relative))
    apart = scale[sides].max() - scale[~sides].max()

    def tilted(x: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """``log(1 ± c η)`` (P, 1+M) at ``η = σ/λ* - (1-σ)/c*``, ``x = logit σ``; the sign of the mean; log odds."""
        ends = torch.where(sides, logsigmoid(-x) + softplus(apart), logsigmoid(x) + softplus(-apart))
        logs = torch.logaddexp(one_less.expand_as(ends), relative + ends)
        odds, pull = None, both.log() + scale - logs
        less = pull.new_zeros(len(x))
        if log_odds is not None:
            odds = log_odds - alpha * logs[:, 1:]
            pull = pull + torch.cat([torch.zeros_like(own), logsigmoid(odds)], 1)
            less = torch.log(-torch.expm1(-softplus(odds[:, ~beside]).sum(1)))
        return logs, pull[:, sides].logsumexp(1) - pull[:, ~sides].logsumexp(1) + less, odds

    low, high = torch.full_like(own, -TILT_LIMIT), torch.full_like(own, TILT_LIMIT)
    for _ in range(TILT_HALVINGS):
        middle = 0.5 * (low + high)
        right = tilted(middle)[1][:, None] > 0.0
        low, high = torch.where(right, low, middle), torch.where(right, middle, high)
    logs, _, odds = tilted(0.5 * (low + high))
    size = -own[:, 0] * logs[:, 0]
    if odds is None:
        size = size - (alpha * logs[:, 1:]).sum(1)
    else:
        size = size + softplus(odds[:, beside]).sum(1) + log_expm1(softplus(odds[:, ~beside]).sum(1))
    scales = scale - logs
    shift = 0.5 * (both.log() + 2.0 * scales).logsumexp(1)  # the standard deviation
    scales, size = scales - shift[:, None], size - shift
    rank = size + log_weight
    used = torch.nonzero(rank > rank.max() - MATTERS).squeeze(1)
    answer = torch.full_like(size, -math.inf)
    if len(used):
        kept = None if odds is None else odds[used]
        answer[used] = size[used] + _log_inverted(both[used], scales[used], kept, sides)
    return answer


def _log_inverted(alpha: Tensor, scale: Tensor, log_odds: Tensor | None, sides: Tensor) -> Tensor:
    """``log π⁻¹ ∫ Re E[e^{itX}] dt`` (P,) for gammas (P, 1+M), those of the second sort taken off; see above."""
    sizes = alpha.log() + 2.0 * scale
    sums, logs = [alpha[:, 0], *(alpha[:, s].sum(1) for s in (sides, ~sides))], [sizes[:, 0]]
    logs += [sizes[:, s].logsumexp(1) for s in (sides, ~sides)]
    if log_odds is not None:  # any of them may be there alone
        sums, logs = [*sums, alpha[:, 1:].flatten()], [*logs, sizes[:, 1:].flatten()]
    slowest = min(1.0, float((alpha[:, 0] - 1.0 + alpha[:, ~sides].amin(1)).min()))
    first, last = -float((alpha.log() + scale).logsumexp(1).max()) - 1.0, 2.0 - float(scale.min())
    y, weight = nodes(first, last, slowest, turning(torch.cat(sums), torch.cat(logs)), alpha.device)
    integral, sign = torch.empty_like(alpha[:, 0]), torch.where(sides, 1.0, -1.0).to(alpha)[:, None]
    for part in torch.arange(len(alpha)).split(max(1, 8 * SWEEP_ELEMENTS // (len(y) * alpha.shape[1]))):
        phase, each = scale[part][..., None] + y, alpha[part][..., None]
        factor = torch.complex(-each * log_modulus(phase), sign * each * torch.atan(phase.exp()))  # log
        if log_odds is None:
            product = (factor.sum(1) + y).exp()  # dt = t dy
        else:
            chance, absent = torch.sigmoid(log_odds[part])[..., None], torch.sigmoid(-log_odds[part])[..., None]
            product, none, some = (
                (factor[:, 0] + y).exp(),
                torch.ones_like(absent[:, 0]),
                torch.zeros_like(factor[:, 0]),
            )
            for r, same_side in enumerate(sides[1:].tolist()):
                present = chance[:, r] * factor[:, r + 1].exp()
                if same_side:
                    product = product * (present + absent[:, r])
                else:  # those across: none of them so far, or some
                    none, some = none * absent[:, r], some * (present + absent[:, r]) + none * present
            product = product * some / -torch.expm1(-softplus(log_odds[part][:, ~sides[1:]]).sum(1))[:, None]
        integral[part] = (product.real * weight).sum(1) / math.pi
    return integral.clamp_min(0.0).log()
