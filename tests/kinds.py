"""Every kind of law, as numbers: one or three members; a centre, zeros, or a centre per row; before and after votes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch
from torch import Tensor

from snefy_ldl import SnefySimplex

#: Kinds of laws, and what each is made of.
KINDS = {
    "plain": (),
    "centre": ("centre",),
    "zeros": ("presence",),
    "centre and zeros": ("centre", "presence"),
    "moving": ("centres",),
    "moving and zeros": ("centres", "presence", "shift"),
}
#: One row has votes for two labels, one has none, one for a single label.
VOTES = ((2.0, 0.0, 1.0), (0.0, 0.0, 0.0), (0.0, 3.0, 0.0))
#: Further votes to ask about: of all kinds, too.
MORE_VOTES = ((1.0, 0.0, 0.0), (0.0, 2.0, 1.0), (0.0, 0.0, 0.0))
#: Points with all labels there.
POINTS = ((0.2, 0.3, 0.5), (0.55, 0.4, 0.05), (0.08, 0.82, 0.1))
#: Points with exact zeros, on edges and at vertices.
ZERO_POINTS = ((0.0, 0.3, 0.7), (0.6, 0.0, 0.4), (0.1, 0.9, 0.0), (1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))


@dataclass(frozen=True)
class Numbers:
    """Arguments of a law of three labels, N = 3 rows and n = 3 neurons.

    Args:
        kind: one of KINDS.
        exponents: (K, n, 3).
        readout: (K, 2, n).
        log_scale: (N, K, n).
        log_members: (N, K).
        centre: (3,) or (N, 3), or None.
        presence: (K, n, 3), or None.
        shift: (N, 3), or None.
        votes: (N, 3), or None.
    """

    kind: str
    exponents: Tensor
    readout: Tensor
    log_scale: Tensor
    log_members: Tensor
    centre: Tensor | None
    presence: Tensor | None
    shift: Tensor | None
    votes: Tensor | None

    def law(
        self, device: str = "cpu", dtype: torch.dtype = torch.float64, batch: tuple[int, ...] = (3,)
    ) -> SnefySimplex:
        """The law itself, with its votes seen one after the other."""

        def put(values: Tensor | None) -> Any:
            return None if values is None else values.to(device, dtype)

        def rows(values: Tensor | None) -> Any:
            return None if values is None else put(values).reshape(*batch, *values.shape[1:])

        moves = self.centre is not None and self.centre.dim() == 2
        law = SnefySimplex(
            put(self.exponents),
            put(self.readout),
            rows(self.log_scale),
            log_members=rows(self.log_members),
            centre=rows(self.centre) if moves else put(self.centre),
            presence=put(self.presence),
            shift=rows(self.shift),
        )
        return law if self.votes is None else law.posterior(rows(self.votes))


def numbers_of(kind: str, members: int = 1, voted: bool = False, seed: int = 0) -> Numbers:
    """Numbers of one kind of law; concentrations are 1.2 to 20, weights of both signs."""
    rng = torch.Generator().manual_seed(1000 * list(KINDS).index(kind) + 10 * members + seed)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=rng, dtype=torch.float64)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng, dtype=torch.float64)

    parts = KINDS[kind]
    alpha = 1.2 * (20.0 / 1.2) ** uniform(members, 3, 3)
    # each neuron alone gives each label a chance of presence from a third to nine tenths
    odds = -0.7 + 2.9 * uniform(members, 3, 3)
    centre = {"centre": (0.7 * normal(3)).exp(), "centres": (0.7 * normal(3, 3)).exp()}
    return Numbers(
        kind,
        0.5 * (alpha - 1.0),
        normal(members, 2, 3),
        normal(3, members, 3),
        torch.log_softmax(normal(3, members), -1),
        next((centre[part] for part in parts if part in centre), None),
        0.5 * (odds - torch.lgamma(alpha)) if "presence" in parts else None,
        0.5 * normal(3, 3) if "shift" in parts else None,
        torch.tensor(VOTES, dtype=torch.float64) if voted else None,
    )


#: The 24 laws of the matrix.
LAWS = tuple(product(KINDS, (1, 3), (False, True)))


def before_votes(numbers: Numbers) -> Numbers:
    """The same without votes."""
    return replace(numbers, votes=None)


def rows_like(law: SnefySimplex, values: Any) -> Tensor:
    """Values on the law's device."""
    return torch.as_tensor(values, dtype=torch.float64, device=law.device)


def _points(law: SnefySimplex) -> Tensor:
    """Points (S, 1, 3), exact zeros among them where labels may be absent."""
    return rows_like(law, POINTS + ZERO_POINTS if law.has_atoms else POINTS)[:, None].to(law.dtype)


LEVELS = (0.05, 0.3, 0.5, 0.95)
CDF_POINTS = (0.1, 0.35, 0.7)
#: One share known, then another one, then none: a row each.
KNOWN = ((0.3, torch.nan, torch.nan), (torch.nan, 0.6, torch.nan), POINTS[0])


def _marginal_answers(law: SnefySimplex, labels: Any) -> Tensor:
    share = law.marginal(labels)
    at = rows_like(law, CDF_POINTS)[:, None].expand(-1, 3).to(law.dtype)
    answers = [share.cdf(at), share.icdf(rows_like(law, LEVELS)[:, None].expand(-1, 3)), share.quantiles(LEVELS).T]
    return torch.cat([*answers, share.log_prob(at), share.mean[None], share.variance[None]])


#: What a law is asked, and answers without drawing: question -> answer.
ANSWERS: dict[str, Callable[[SnefySimplex], Tensor]] = {
    "mean": lambda law: law.mean,
    "variance": lambda law: law.variance,
    "mean_and_variance": lambda law: torch.stack(law.mean_and_variance()),
    "covariance_matrix": lambda law: law.covariance_matrix,
    "member_means": lambda law: law.member_means(),
    "expected_log": lambda law: law.expected_log(),
    "covariance_log": lambda law: law.covariance_log(),
    "expected_entropy": lambda law: law.expected_entropy(),
    "expected_entropy_parts": lambda law: law.expected_entropy_parts(),
    "vote_information": lambda law: law.vote_information(),
    "prob_zero": lambda law: law.prob_zero(),
    "prob_greater": lambda law: torch.stack([law.prob_greater(j, k) for j, k in ((0, 1), (1, 0), (2, 0))]),
    "bayes_point": lambda law: torch.stack([law.bayes_point(loss) for loss in ("kl", "squared", "l1")]),
    "quantiles": lambda law: law.quantiles(LEVELS),
    "marginal": lambda law: torch.stack([_marginal_answers(law, labels) for labels in (0, [0, 2])]),
    "log_prob": lambda law: law.log_prob(_points(law)),
    "log_prob_at": lambda law: law.log_prob_at(_points(law)[:, 0]),
    "shared_log_prob": lambda law: law.shared_log_prob(rows_like(law, POINTS).log())(slice(0, 3)),
    "log_prob_known": lambda law: law.log_prob_known(KNOWN),
    "log_prob_counts": lambda law: law.log_prob_counts(MORE_VOTES),
    "posterior": lambda law: torch.stack([law.posterior(MORE_VOTES).mean, law.posterior(MORE_VOTES).variance]),
    "amalgamate": lambda law: law.amalgamate([[2, 0], [1]]).mean,
    "subcomposition": lambda law: law.subcomposition([2, 0]).mean,
    "given_support": lambda law: law.given_support([True, False, True]).mean,
    "condition_ratios": lambda law: law.condition_ratios({(0, 1): 1.5}).mean,
    "rosenblatt": lambda law: law.rosenblatt(rows_like(law, POINTS)[:, None].expand(-1, 3, -1)),
    "inverse_rosenblatt": lambda law: law.inverse_rosenblatt(rows_like(law, [[[0.8, 0.4]] * 3, [[0.3, 0.9]] * 3])),
    "sum_abs_weights": lambda law: law.sum_abs_weights,
    "acceptance_rate": lambda law: law.acceptance_rate,
    "weights": lambda law: law.weights(),
}
