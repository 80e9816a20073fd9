"""Strategies that score the predicted distribution of each row, and take the rows with the highest scores."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.random import RandomState

from snefy_ldl._internal.laws import to_numpy
from snefy_ldl._internal.limits import CHUNK_ELEMENTS
from snefy_ldl._internal.types import Array, Index, Mask
from snefy_ldl._internal.validation import check_choice, check_count
from snefy_ldl.active.pool import Pool
from snefy_ldl.active.query import Strategy, free_rows, top_rows
from snefy_ldl.distributions import SimplexDistribution
from snefy_ldl.errors import InputError


class ScoreStrategy(Strategy):
    """A strategy with a score per row: a subclass writes :meth:`score`.

    The rows with the highest scores often resemble each other; for a diverse batch use ``lcmd``.

    Example:
        >>> class Variance(ScoreStrategy, name="variance"):
        ...     def score(self, dist, random):
        ...         return dist.variance.sum(-1).numpy()
        >>> Variance().score(torch.distributions.Dirichlet(torch.ones(1, 2)), RandomState(0)).round(4)
        array([0.1667], dtype=float32)
        >>> from snefy_ldl.active import STRATEGIES
        >>> del STRATEGIES["variance"]
    """

    needs_model = True

    @abstractmethod
    def score(self, dist: Any, random: RandomState) -> Array:
        """How useful the label of each row is.

        Args:
            dist: what ``predict_dist`` returns for b rows.
            random: source of randomness, in the same state for every block of rows.

        Returns:
            Scores (b,); rows with the largest are chosen.
        """

    def choose(
        self,
        pool: Pool,
        n: int,
        *,
        model: Any = None,
        X_labeled: Any = None,
        random: RandomState,
        exclude: Mask | None = None,
    ) -> tuple[Index, Array]:
        """See :meth:`Strategy.choose`."""
        if not hasattr(model, "predict_dist"):
            raise InputError(f"model must have predict_dist; got {type(model).__name__}.")
        parts, seed = [], int(random.randint(2**31 - 1))
        for start, block in pool.blocks("score"):
            with pool.naming(start), torch.no_grad():
                parts.append(self.score(model.predict_dist(block), RandomState(seed)))
        utilities = np.concatenate(parts)
        return top_rows(utilities, n, free_rows(len(utilities), n, exclude), random), utilities


@dataclass(eq=False, repr=False)
class Entropy(ScoreStrategy, name="entropy"):
    """Differential entropy ``-E[log p(ℓ|x)]`` of the predicted distribution (Algorithms A2 and A3).

    Args:
        method: ``"model"``: the mean over exact draws of each row; ``"uniform"``: the paper's importance sampling from
            the uniform distribution.
        n_draws: draws per row.

    Raises:
        InputError: a setting is out of its range.

    Example:
        >>> flat_and_sharp = torch.distributions.Dirichlet(torch.tensor([[1.0, 1.0], [50.0, 50.0]]))
        >>> int(Entropy().score(flat_and_sharp, RandomState(0)).argmax())
        0
    """

    method: Literal["model", "uniform"] = "model"
    n_draws: int = 1000

    def __post_init__(self) -> None:
        check_choice("method", self.method, ("model", "uniform"))
        check_count("n_draws", self.n_draws, low=2)

    def score(self, dist: Any, random: RandomState) -> Array:
        """Entropies (N,)."""
        if not isinstance(dist, SimplexDistribution):  # one of torch's own
            return to_numpy(dist.entropy())
        seed = int(random.randint(2**31 - 1))
        step = max(1, CHUNK_ELEMENTS // (self.n_draws * dist.n_labels))
        parts = []
        for start in range(0, len(dist), step):
            generator = torch.Generator(dist.device).manual_seed(seed)
            entropies = dist[start : start + step].entropy(self.n_draws, self.method, generator)
            parts.append(to_numpy(torch.as_tensor(entropies)))
        return np.concatenate(parts)
