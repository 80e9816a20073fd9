"""What an annotator's vote would tell."""

from __future__ import annotations

from typing import Any

from numpy.random import RandomState

from snefy_ldl._internal.laws import to_numpy
from snefy_ldl._internal.types import Array
from snefy_ldl.active.strategies.law import LawStrategy
from snefy_ldl.errors import InputError

__all__ = ["VoteInformation"]


class VoteInformation(LawStrategy, name="vote_information"):
    """``H(E[ℓ|x]) - E[H(ℓ)|x]``, the nats that one annotator's vote tells about the label distribution.

    Args:
        diverse: see :class:`LawStrategy`.
        candidates: see :class:`LawStrategy`.
        space: see :class:`LawStrategy`.

    Example:
        >>> import torch
        >>> from snefy_ldl import SnefySimplex
        >>> law = SnefySimplex.from_mixture(torch.ones(1, 1).double(), torch.ones(1, 2).double())
        >>> VoteInformation().score(law, RandomState(0)).round(4)  # log 2 - 1/2
        array([0.1931])
    """

    def score(self, law: Any, random: RandomState) -> Array:
        """Nats (N,)."""
        if not hasattr(law, "vote_information"):
            raise InputError(f"vote_information needs a law of this library; got {type(law).__name__}.")
        return to_numpy(law.vote_information())
