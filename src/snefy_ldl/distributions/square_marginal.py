"""Laws of shares where each row has its own centre, by integrals that all rows share (:mod:`square_rows`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from scipy.special import betainc, logit
from torch import Size, Tensor

from snefy_ldl._types import Array
from snefy_ldl.distributions.law import SimplexLaw
from snefy_ldl.distributions.marginal import GroupMarginal
from snefy_ldl.distributions.square_rows import SquareRows
from snefy_ldl.errors import InputError
from snefy_ldl.special.tolerances import TAIL_MASS


class SquareMarginal(GroupMarginal):
    """The law of a sum of shares; cdfs are good to 1e-7.

    Args:
        law: one that has ``square_rows``.
        labels: whose shares are summed up.

    Example:
        >>> from snefy_ldl.distributions.moving import MovingSnefy
        >>> w, one = torch.zeros(1, 1, 2).double(), torch.ones(1, 1, 1).double()
        >>> law = MovingSnefy(w, None, one, torch.zeros(2, 1, 1).double(), torch.tensor([[1.0, 1.0], [9.0, 1.0]]).log())
        >>> law.marginal(0).cdf(torch.tensor(0.5).double())
        tensor([0.5000, 0.1000], dtype=torch.float64)
    """

    def __init__(self, law: Any, labels: list[int]) -> None:
        self._square: SquareRows = law.square_rows()
        super().__init__(law, labels)

    def _cdf(self, points: Array) -> Array:
        with np.errstate(divide="ignore"):  # points at the ends, which the caller sees to
            return self._at(points)[0].cpu().numpy()

    def _density(self, points: Array) -> Array:
        density: Array = self._at(points)[1].cpu().numpy() / (points * (1.0 - points))
        return density

    def _at(self, points: Array) -> tuple[Tensor, Tensor]:
        return self._square.cdf(self.labels, torch.as_tensor(logit(points), device=self.law.device))

    def _quantiles(self, levels: Array) -> Array:
        target = torch.as_tensor(np.ascontiguousarray(levels), device=self.law.device)
        mean, variance = self.mean.double(), self.variance.double()
        return self._square.quantiles(self.labels, target, mean, variance).cpu().numpy()

    def expand(self, batch_shape: Size | Sequence[int], _instance: Any = None) -> SquareMarginal:
        """Refused: each row has a centre of its own.

        Raises:
            InputError: always; take the rows that are wanted, ``dist[rows].marginal(...)``.
        """
        raise InputError(f"shares of {len(self.law)} rows do not broadcast to {tuple(batch_shape)}; take dist[rows].")


def square_quantiles_of_labels(law: SimplexLaw, levels: Array) -> Array:
    """Quantiles of every label at levels (N, L, A), each row's own.

    Args:
        law: one that has ``square_rows``.
        levels: probabilities; at 0 and 1 the answer is 0 and 1.

    Returns:
        (N, L, A).
    """
    rows: SquareRows = law.square_rows()  # type: ignore[attr-defined]
    first, second = rows.two_moments()
    inner = torch.as_tensor(np.clip(levels, TAIL_MASS, 1.0 - TAIL_MASS), device=law.device)
    variance = second - first.square()
    columns = [rows.quantiles([r], inner[:, r], first[:, r], variance[:, r]) for r in range(law.n_labels)]
    answer = torch.stack(columns, 1).cpu().numpy()
    return np.where(levels <= 0.0, 0.0, np.where(levels >= 1.0, 1.0, answer))


def square_prob_greater(law: Any, log_centre: Tensor, first: int, second: int) -> Tensor:
    """``P(ℓ_j > ℓ_k|x) = Σ c I_x(α_k, α_j)`` with each row's ``x = c_j / (c_j + c_k)``.

    Args:
        law: one whose components all rows share.
        log_centre: ``log c`` (N, L).
        first: j.
        second: k.

    Returns:
        (N,).
    """
    alpha = law.concentration.detach().cpu().numpy()
    at = torch.sigmoid(log_centre[:, first] - log_centre[:, second]).cpu().numpy()

    def answer(rows: slice) -> Tensor:
        below = betainc(alpha[:, second], alpha[:, first], at[rows, None])
        total: Tensor = (law.weights(rows) * torch.as_tensor(below, device=law.device)).sum(-1)
        return total

    chance: Tensor = law.collect(answer, per_pair=2)
    return chance.clamp(0.0, 1.0)
