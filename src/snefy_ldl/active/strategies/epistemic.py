"""Where the members of an ensemble disagree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.random import RandomState

from snefy_ldl._internal.laws import draw_from, tensor_for, to_numpy
from snefy_ldl._internal.types import Array
from snefy_ldl._internal.validation import check_count
from snefy_ldl.active.diversity import Diverse
from snefy_ldl.active.strategies.law import LawStrategy, Space
from snefy_ldl.distributions.law import SnefySimplex
from snefy_ldl.errors import InputError

__all__ = ["Epistemic", "members_of"]


class Epistemic(LawStrategy, name="epistemic"):
    """Members' disagreement: the mutual information between what is predicted and which member predicts it.

    With members ``p_k`` of weight ``π_k`` and ``p = Σ π_k p_k``:

    - ``target="distribution"``: ``Σ_k π_k E_{p_k}[log p_k(ℓ|x) - log p(ℓ|x)]``, by exact draws of each member;
    - ``target="vote"``: ``H(E ℓ) - Σ_k π_k H(E_k ℓ)``, about one annotator's vote; in closed form.

    Both lie between 0 and log K. The first comes near log K where members are sure of different things.

    Args:
        target: ``"distribution"`` or ``"vote"``.
        n_draws: draws a member and row for ``"distribution"``.
        diverse: see :class:`LawStrategy`.
        candidates: see :class:`LawStrategy`.
        space: see :class:`LawStrategy`.

    Raises:
        InputError: a setting is out of its range.

    Example:
        >>> import torch
        >>> sure = [torch.distributions.Dirichlet(torch.tensor([alpha])) for alpha in ([90.0, 10.0], [10.0, 90.0])]
        >>> Epistemic(n_draws=50).score(sure, RandomState(0)).round(3)  # nearly log 2: sure of different things
        array([0.693])
    """

    def __init__(
        self,
        target: Literal["distribution", "vote"] = "distribution",
        n_draws: int = 64,
        diverse: Diverse = False,
        candidates: int | None = None,
        space: Space = "features",
    ) -> None:
        super().__init__(diverse, candidates, space)
        if target not in ("distribution", "vote"):
            raise InputError(f'target={target!r}: use "distribution" or "vote".')
        self.target = target
        self.n_draws = check_count("n_draws", n_draws)

    def predicted_law(self, model: Any, block: Any, start: int = 0) -> Any:
        """See :meth:`LawStrategy.predicted_law`; a list of models gives a list of laws."""
        if isinstance(model, (list, tuple)):
            return [super(Epistemic, self).predicted_law(one, block, start) for one in model]
        return super().predicted_law(model, block, start)

    def score(self, law: Any, random: RandomState) -> Array:
        """Nats (N,)."""
        laws, weights = members_of(law)
        if self.target == "vote":
            means = np.stack([to_numpy(one.mean) for one in laws])  # (K, N, L)
            entropies = _shannon(means)  # (K, N)
            gain: Array = _shannon((weights[..., None] * means).sum(0)) - (weights * entropies).sum(0)
            return np.maximum(gain, 0.0)
        log_weights = np.log(weights)
        total = np.zeros(weights.shape[1])
        for k, one in enumerate(laws):
            draws = to_numpy(draw_from(one, self.n_draws, lambda: int(random.randint(2**31 - 1))))
            draws = draws / draws.sum(axis=-1, keepdims=True)
            log_p = np.stack([to_numpy(other.log_prob(tensor_for(other, draws))) for other in laws])  # (K, S, N)
            mixed = np.logaddexp.reduce(log_p + log_weights[:, None, :], axis=0)
            total += weights[k] * (log_p[k] - mixed).mean(axis=0)
        return total


def members_of(law: Any) -> tuple[list[Any], Array]:
    """The laws that are averaged, and how much each counts.

    Args:
        law: of an ensemble, batch (N,); or a list of laws, which count equally.

    Returns:
        The K laws, each with batch (N,), and their weights (K, N).

    Raises:
        InputError: there are fewer than two members.

    Example:
        >>> import torch
        >>> laws = [torch.distributions.Dirichlet(torch.ones(3, 2)) for _ in range(2)]
        >>> members_of(laws)[1].shape
        (2, 3)
    """
    if isinstance(law, Sequence):
        laws = list(law)
        if len(laws) < 2:
            raise InputError("epistemic compares members: pass at least two models.")
        return laws, np.full((len(laws), int(laws[0].batch_shape[0])), 1.0 / len(laws))
    if not isinstance(law, SnefySimplex) or law.n_members < 2:
        raise InputError(
            "epistemic compares members: fit SnefyLDL(n_members=4), or pass model=[...], a list of fitted models."
        )
    return list(law.members()), to_numpy(law.log_members.exp().T)


def _shannon(shares: Array) -> Array:
    """Shannon entropy over the last axis."""
    logs = np.log(np.where(shares > 0.0, shares, 1.0))
    result: Array = -(shares * logs).sum(axis=-1)
    return result
