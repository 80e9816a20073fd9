"""Differential entropy of the predicted law."""

from __future__ import annotations

from typing import Any, Literal

import torch
from numpy.random import RandomState
from torch import Tensor

from snefy_ldl._internal.laws import to_numpy
from snefy_ldl._internal.limits import CACHE_ELEMENTS
from snefy_ldl._internal.types import Array
from snefy_ldl._internal.validation import check_count
from snefy_ldl.active.diversity import Diverse
from snefy_ldl.active.strategies.law import LawStrategy, Space, as_width
from snefy_ldl.distributions.law import SnefySimplex
from snefy_ldl.distributions.sampling import log_dirichlet_draws
from snefy_ldl.errors import InputError

__all__ = ["Entropy", "shared_entropy"]


class Entropy(LawStrategy, name="entropy"):
    """Differential entropy ``-E[log p(ℓ|x)]`` of the predicted law (Algorithms A2 and A3).

    Args:
        method: ``"model"``: the mean over exact draws of each row; ``"uniform"``: the paper's importance sampling from
            the uniform law; ``"shared"``: exact draws of each Dirichlet component, shared by all rows and weighted by
            their ``c_p(x)``. The last is unbiased too and several times cheaper; its error is mostly common to all
            rows, which leaves their order alone.
        n_draws: draws a row; for ``"shared"`` draws of all components together (at least one each).
        diverse: see :class:`LawStrategy`.
        candidates: see :class:`LawStrategy`.
        space: see :class:`LawStrategy`.

    Raises:
        InputError: a setting is out of its range.

    Example:
        >>> flat_and_sharp = torch.distributions.Dirichlet(torch.tensor([[1.0, 1.0], [50.0, 50.0]]))
        >>> int(Entropy().score(flat_and_sharp, RandomState(0)).argmax())
        0
    """

    def __init__(
        self,
        method: Literal["model", "uniform", "shared"] = "model",
        n_draws: int = 1000,
        diverse: Diverse = False,
        candidates: int | None = None,
        space: Space = "features",
    ) -> None:
        super().__init__(diverse, candidates, space)
        if method not in ("model", "uniform", "shared"):
            raise InputError(f'method={method!r}: use "model", "uniform" or "shared".')
        self.method = method
        self.n_draws = check_count("n_draws", n_draws, low=2)

    @property
    def same_draws(self) -> bool:  # type: ignore[override]
        """Draws that serve every row of a block serve every block."""
        return self.method != "model"

    def score(self, law: Any, random: RandomState) -> Array:
        """Entropies (N,)."""
        if not isinstance(law, SnefySimplex):
            return to_numpy(law.entropy())
        generator = torch.Generator(law.device).manual_seed(int(random.randint(2**31 - 1)))
        if self.method == "shared":
            return shared_entropy(law, self.n_draws, generator)
        value = law.entropy(self.n_draws, self.method, generator)
        assert isinstance(value, Tensor)
        return to_numpy(value)

    def weight(self, scores: Array, n_labels: int) -> Array:
        """The width of the law, ``exp(H / (L-1))``."""
        return as_width(scores, n_labels - 1)


def shared_entropy(law: SnefySimplex, n_draws: int, generator: torch.Generator) -> Array:
    """Differential entropies by draws that serve every row.

    ``-Σ_p c_p(x) mean_s log p(ℓ_ps|x)`` with ``ℓ_ps ~ Dirichlet(α_p)``; unbiased.

    Args:
        law: of N rows; with votes or a centre each row gets draws apart from the others.
        n_draws: draws of all components together, at least one each.
        generator: source of randomness.

    Returns:
        Entropies (N,).

    Example:
        >>> flat = SnefySimplex.from_mixture(torch.ones(2, 1).double(), torch.ones(1, 3).double())
        >>> shared_entropy(flat, 100, torch.Generator().manual_seed(0)).round(6)  # log of the triangle's area, 1/2
        array([-0.693147, -0.693147])
    """
    if (
        law.offset is not None or law.parts.scale is not None or law.has_atoms
    ):  # components then differ from row to row, or are no Dirichlets
        value = law.entropy(n_draws, "model", generator)
        assert isinstance(value, Tensor)
        return to_numpy(value)
    repeats = max(1, round(n_draws / law.n_components))
    logs = log_dirichlet_draws(law.concentration.repeat(repeats, 1), generator)  # (S, L), S = repeats P
    log_prob = law.shared_log_prob(logs)
    step = max(1, CACHE_ELEMENTS // len(logs))
    answers = []
    for start in range(0, len(law), step):
        rows = slice(start, min(start + step, len(law)))
        weights = law.weights(rows)  # (b, P)
        log_p = log_prob(rows).unflatten(1, (repeats, -1)).mean(1)
        answers.append(-(weights * log_p).sum(-1))
    return to_numpy(torch.cat(answers))
