"""The mixture that :class:`~snefy_ldl.LogRatioLDL` trains: presence of labels and whitened log-ratios of those there.

A row shows ``r = Q z + e`` for whitened log-ratios z of all labels (:class:`~snefy_ldl.learners.log_amounts.Frames`):

    p(S, r | h) = Σ_k w_k(h) P_k(S | h) N(e^{-s(h)} (r - Q δ(h)); Q c_k, σ_k² I) e^{-p s(h)},

with labels there independently given k, and at least one. Where every label is always there, Q is one, each log-ratio
has its scale, and a triangular map before them is learned, too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.stats import gamma
from torch import Tensor
from torch.nn.functional import softplus

from snefy_ldl._internal.adam import Adam
from snefy_ldl._internal.types import Array, Index

#: The Student distribution at the start mixes over its precision, in bins with these ends: narrow ones for far tails.
PRECISION_BINS = np.array([0.0, 0.001, 0.01, 0.04, 0.12, 0.3, 0.55, 0.8, 1.0])
#: What the other components weigh together at the start.
OTHER_WEIGHT = 0.2
#: How far the centres of the other components lie out at the start, in standard deviations.
LARGEST_OFFSET = 0.9
#: Hidden units of the network.
N_HIDDEN = 64
#: Patterns of presence that components share, and the log odds at which they begin.
N_PATTERNS, FIRST_ODDS = 8, 0.5
#: The distribution learns fast and the network slowly, with decay: otherwise the network overfits before the
#: components have moved.
FAST_RATE, SLOW_RATE, TURN_RATE = 1e-2, 1e-3, 1e-3
WEIGHT_DECAY, WARM_UP, GRADIENT_NORM = 1.0, 20, 5.0
#: What the cross-entropy of the mean counts, next to the log density, and the rows of a step that it is about (KL on
#: SBU_3DFE .0484 -> .0477, on Natural_Scene .666 -> .632; with zeros it costs likelihood and gains nothing).
MEAN_WEIGHT, MEAN_ROWS = 5.0, 32
#: Steps between two looks at the validation rows, and steps without progress after which training ends.
LOOK_EVERY, PATIENCE = 5, 120
#: Rows of one training step.
BATCH_ROWS = 512
#: Logarithms of terms of a sum below this, compared with the largest, count as this.
SMALLEST_TERM = -40.0
LOG_2PI = math.log(2.0 * math.pi)


@dataclass
class Rows:
    """What the mixture is trained on.

    Args:
        inputs: of the network (N, I).
        point: (N, Q), square: (N,), inner: (N, Q, Q) or None, size: (N,): the frames of the rows.
        log_det: of the whitening (N,).
        shares: label distributions (N, L).
        centre: log-amounts that guides predict (N, L).
        there: which labels are there (N, L); None if all are, always.
        odds: log odds that they are (N, L), or None.
    """

    inputs: Tensor
    point: Tensor
    square: Tensor
    inner: Tensor | None
    size: Tensor
    log_det: Tensor
    shares: Tensor
    centre: Tensor
    there: Tensor | None = None
    odds: Tensor | None = None

    def __post_init__(self) -> None:
        n_axes = self.point.shape[1]
        self.pairs = torch.triu_indices(n_axes, n_axes)
        self.packed = None
        if self.inner is not None:  # so that a quadratic form is a product with packed products
            twice = torch.where(self.pairs[0] == self.pairs[1], 1.0, 2.0).to(self.point)
            self.packed = self.inner[:, self.pairs[0], self.pairs[1]] * twice

    def __len__(self) -> int:
        return len(self.inputs)

    def take(self, rows: Tensor) -> Rows:
        """Some of the rows."""
        fields: Any = {k: v if v is None else v[rows] for k, v in vars(self).items() if k not in ("pairs", "packed")}
        return Rows(**fields)


class LogSumExp(torch.autograd.Function):
    """``log Σ exp`` over the last axis, without the numbers too small for a float that make exp ten times as slow."""

    @staticmethod
    def forward(ctx: Any, terms: Tensor) -> Tensor:
        """Logarithms of sums; keeps the shares of the terms."""
        top = terms.detach().amax(-1, keepdim=True)
        shares = (terms - top).clamp_(min=SMALLEST_TERM).exp_()
        total = shares.sum(-1, keepdim=True)
        ctx.save_for_backward(shares.div_(total))
        return (top + total.log())[..., 0]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """Shares times the gradient."""
        (shares,) = ctx.saved_tensors
        return shares * gradient[..., None]


@dataclass
class MixtureNet:
    """M members of K components in Q whitened log-ratios, reshaped by a network with one hidden layer.

    Args:
        hidden: (M, I, H).
        hidden_bias: (M, 1, H).
        out: (M, H, S + Q + K + L): log scales (one, or Q of them), shifts, log weights, and log odds of presence.
        out_bias: (M, 1, S + Q + K + L).
        centres: (M, K, Q).
        log_widths: (M, K).
        turn: entries below the diagonal of a triangular map of log-ratios (M, Q, Q); (M, 0, 0) without.
        odds: log odds of every pattern of presence (M, C, L); L is zero where every label is always there.
    """

    hidden: Tensor
    hidden_bias: Tensor
    out: Tensor
    out_bias: Tensor
    centres: Tensor
    log_widths: Tensor
    turn: Tensor
    odds: Tensor

    @classmethod
    def start(
        cls, rows: Rows, n_members: int, n_components: int, freedom: float, spread: float, seed: int
    ) -> MixtureNet:
        """The Student distribution of residuals, with further components near it that nearly sum up to it."""
        generator = torch.Generator().manual_seed(seed)
        n_inputs, n_axes = rows.inputs.shape[1], rows.point.shape[1]
        complete, n_labels = rows.inner is None, 0 if rows.there is None else rows.there.shape[1]
        bins = PRECISION_BINS if n_components >= 2 * len(PRECISION_BINS) else np.array([0.0, 1.0])
        n_radial = len(bins) - 1
        hidden = torch.randn(n_members, n_inputs, N_HIDDEN, generator=generator) / n_inputs**0.5
        # the further components: offsets of variance τ², and what is missing to one as their width
        offset = LARGEST_OFFSET * torch.rand(n_members, n_components, 1, generator=generator)
        centres = offset * torch.randn(n_members, n_components, n_axes, generator=generator)
        log_widths = 0.5 * torch.log1p(-offset[..., 0].square())
        precision = np.ones(1)
        if n_radial > 1:
            precision = gamma.ppf(0.5 * (bins[1:] + bins[:-1]), freedom / 2, scale=2 / freedom)
        centres[:, :n_radial], log_widths[:, :n_radial] = 0.0, torch.as_tensor(-0.5 * np.log(precision)).float()
        weights = np.concatenate([np.diff(bins), np.full(n_components - n_radial, OTHER_WEIGHT / n_components)])
        n_scales = n_axes if complete else 1
        at = n_scales + n_axes
        out_bias = torch.zeros(n_members, 1, at + n_components + n_labels)
        out_bias[..., at : at + n_components] = torch.as_tensor(np.log(weights)).float()
        odds = torch.zeros(n_members, min(N_PATTERNS, n_components), n_labels)
        if rows.there is not None:
            drawn = torch.randint(len(rows), odds.shape[:2], generator=generator)
            odds = FIRST_ODDS * (2.0 * rows.there[drawn] - 1.0)
            odds[:, 0] = 0.0
        return cls(
            hidden,
            torch.zeros(n_members, 1, N_HIDDEN),
            torch.zeros(n_members, N_HIDDEN, out_bias.shape[-1]),
            out_bias,
            spread**0.5 * centres,
            log_widths + 0.5 * math.log(spread),
            torch.zeros(n_members, *(2 * (n_axes if complete else 0,))),
            odds,
        )

    @property
    def patterns(self) -> Tensor:
        """The pattern of presence of every component (K,): those of the Student distribution have the first."""
        n_components, n_patterns = self.centres.shape[1], self.odds.shape[1]
        n_radial = len(PRECISION_BINS) - 1 if n_components >= 2 * len(PRECISION_BINS) else 1
        return (torch.arange(n_components) - n_radial).clamp_min(0) % n_patterns

    def maps(self) -> Tensor:
        """The triangular maps (M, Q, Q)."""
        return torch.eye(self.centres.shape[-1]).to(self.centres) + torch.tril(self.turn, -1)

    def __call__(self, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Log scales, shifts, log weights up to a constant, and log odds (M, N, ·) of rows, inputs (N, I)."""
        inside = torch.tanh(torch.matmul(inputs, self.hidden) + self.hidden_bias)
        answer = torch.baddbmm(self.out_bias, inside, self.out)
        sizes = self.centres.shape[2], self.centres.shape[1], self.odds.shape[2]
        scale, shift, logits, odds = answer.split([answer.shape[-1] - sum(sizes), *sizes], -1)
        return scale, shift, logits, odds

    def log_presence(self, there: Tensor, odds: Tensor) -> Tensor:
        """Log probability of supports (M, N, C), given which labels are there (N, L) and log odds (M, N, L)."""
        # one pattern at a time: an array of all patterns leaves the cache, which takes three times as long
        absent = torch.stack([softplus(odds + one[:, None]).sum(-1) for one in self.odds.unbind(1)], -1)
        chance = (there * odds).sum(-1)[..., None] + there @ self.odds.transpose(1, 2) - absent
        return chance - torch.log(-torch.expm1(-absent))

    def log_prob(self, rows: Rows) -> Tensor:
        """Log density (M, N)."""
        log_scale, shift, logits, odds = self(rows.inputs)
        inverse = torch.exp(-2.0 * self.log_widths)[..., None]  # (M, K, 1)
        size = rows.size[:, None].expand(*logits.shape[:2], 1)
        if rows.inner is None:
            point = torch.exp(-log_scale) * ((rows.point - shift) @ self.maps().transpose(1, 2))
            square = point.square().sum(-1, keepdim=True)
            length = self.centres.square().sum(-1, keepdim=True)
            known, factors = [torch.ones_like(size)], [-0.5 * length * inverse]
            shrunk = log_scale.sum(-1)
        else:
            seen = torch.matmul(rows.inner, shift.permute(1, 2, 0)).permute(2, 0, 1)  # QᵀQ δ (M, N, Q)
            scale = torch.exp(-log_scale)
            point = scale * (rows.point - seen)
            square = rows.square[:, None] + ((seen - 2.0 * rows.point) * shift).sum(-1, keepdim=True)
            square = scale.square() * square
            products = self.centres[..., rows.pairs[0]] * self.centres[..., rows.pairs[1]]
            assert rows.packed is not None
            known, factors = [rows.packed.expand(len(logits), -1, -1)], [-0.5 * products * inverse]
            shrunk = rows.size * log_scale[..., 0]
        # -½ ‖point - c‖² / σ² - p log σ of all components is one product
        known += [point, square, size]
        factors += [self.centres * inverse, -0.5 * inverse, -self.log_widths[..., None]]
        terms = torch.baddbmm(logits, torch.cat(known, -1), torch.cat(factors, -1).transpose(1, 2))
        if rows.there is not None and rows.odds is not None:
            terms = terms + self.log_presence(rows.there, rows.odds + odds)[..., self.patterns]
        log_sum: Any = LogSumExp.apply
        log_p: Tensor = log_sum(terms) - log_sum(logits)
        return log_p - shrunk - 0.5 * LOG_2PI * rows.size + rows.log_det

    def mean_shares(self, rows: Rows, back: Tensor, random: torch.Generator) -> Tensor:
        """``E[ℓ]`` (M, N, L) by one draw from every component, unbiased.

        Args:
            rows: whose means are wanted, in which every label is there.
            back: from whitened log-ratios to log-amounts (L, P).
            random: source of the draws.
        """
        log_scale, shift, logits, _ = self(rows.inputs)
        noise = torch.randn(*logits.shape, shift.shape[-1], generator=random)
        point = self.centres[:, None] + self.log_widths.exp()[:, None, :, None] * noise
        point = point @ torch.linalg.inv(self.maps()).transpose(1, 2)[:, None]
        amounts = rows.centre[:, None] + (log_scale.exp()[:, :, None] * point + shift[:, :, None]) @ back.T
        return (torch.softmax(logits, -1)[..., None] * torch.softmax(amounts, -1)).sum(-2)

    def member(self, number: int) -> MixtureNet:
        """One member alone."""
        return MixtureNet(**{name: value[number : number + 1] for name, value in vars(self).items()})

    def state(self) -> dict[str, Tensor]:
        """Copies of all parameters."""
        return {name: value.detach().clone() for name, value in vars(self).items()}


@dataclass
class Trained:
    """The net at the common stopping step, that step, and the held-out log densities of all rows (N,)."""

    net: MixtureNet
    step: int
    log_prob: Array


def train(net: MixtureNet, rows: Rows, back: Array, weights: Array, owner: Index, max_iter: int, seed: int) -> Trained:
    """Train all members together, and go back to the step at which held-out rows were most likely.

    Draws of hidden parts come from the distribution at the start. So the likelihood ratio of what a row shows is the
    mean of those of its draws (importance sampling), and its gradient weighs each draw by its ratio.

    Args:
        net: at its start.
        rows: what all members see; N rows, or several draws of them, one after the other (C·N), in turn.
        back: from whitened log-ratios to log-amounts (L, P).
        weights: of the rows (N,).
        owner: the member that does not learn from each row (N,).
        max_iter: most steps.
        seed: of the rows of each step, where there are many.

    Returns:
        The trained net.
    """
    n_rows, n_members = len(owner), len(net.centres)
    copies = [rows.take(part) for part in torch.arange(len(rows)).split(n_rows)] if len(rows) > n_rows else [rows]
    random = torch.Generator().manual_seed(seed)
    owners, returns = torch.as_tensor(owner), torch.as_tensor(back).float()
    counts = torch.as_tensor(weights).float()
    learns = (owners != torch.arange(n_members)[:, None]) * counts
    whole = n_rows <= BATCH_ROWS

    def look() -> Tensor:
        values = torch.zeros(len(copies), n_members, n_rows)
        with torch.no_grad():
            for number, copy in enumerate(copies):
                for member in range(n_members):  # of single draws, only what the member did not learn from
                    seen = np.flatnonzero(owner == member) if len(copies) == 1 else np.arange(n_rows)
                    for at in torch.as_tensor(seen).split(BATCH_ROWS):
                        values[number, member, at] = net.member(member).log_prob(copy.take(at))[0]
        return values

    start = look()  # (C, M, N)
    best = own = start.mean(0).gather(0, owners[None])[0]
    shown = learns.expand_as(start)
    best_step, state = 0, net.state()
    slow = [value.requires_grad_() for value in (net.hidden, net.hidden_bias, net.out)]
    fast = [value.requires_grad_() for value in (net.out_bias, net.centres, net.log_widths, net.odds)]
    turn = net.turn.requires_grad_()
    adam = Adam([(slow, SLOW_RATE, WEIGHT_DECAY), (fast, FAST_RATE, 0.0), ([turn], TURN_RATE, 0.0)], (0.9, 0.98))
    for step in range(max_iter + 1):
        chosen: Any = slice(None) if whole else torch.randperm(n_rows, generator=random)[:BATCH_ROWS]
        number = step % len(copies)
        copy = copies[number]
        log_prob = net.log_prob(copy if whole else copy.take(chosen))
        if step and step % LOOK_EVERY == 0:
            gains = look() - start
            shown = len(copies) * torch.softmax(gains, 0) * learns
            means = gains.logsumexp(0) - math.log(len(copies))
            values = own + means.gather(0, owners[None])[0]
            if values @ counts > best @ counts:
                best, best_step, state = values, step, net.state()
            elif step - best_step > PATIENCE:
                break
        share = shown[number][:, chosen]
        loss = -(log_prob * share).sum() / share.sum()
        if rows.there is None:
            few = torch.randperm(n_rows, generator=random)[:MEAN_ROWS]
            seen, share = copy.take(few), shown[number][:, few]
            entropy = -(seen.shares * net.mean_shares(seen, returns, random).clamp_min(1e-12).log()).sum(-1)
            loss = loss + MEAN_WEIGHT * (entropy * share).sum() / share.sum().clamp_min(1.0)
        loss.backward()
        torch.nn.utils.clip_grad_norm_([*slow, *fast, turn], GRADIENT_NORM)
        adam.step(min(1.0, (step + 1) / WARM_UP))
    return Trained(MixtureNet(**state), best_step, best.double().numpy())
