"""A data set beside the law it was drawn from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from snefy_ldl._internal.types import Array
from snefy_ldl.datasets.dataset import Dataset
from snefy_ldl.datasets.synthetic.truth import TrueConditional

__all__ = ["SyntheticData"]


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class SyntheticData(Dataset):
    """A :class:`~snefy_ldl.datasets.dataset.Dataset` whose law is known.

    Args:
        truth: The conditional law of the label distribution.
        latent: The label distributions that were drawn, (N, L); differs from ``D`` when only votes were seen.
        votes: Columns ``item``, ``annotator``, ``label`` of the single votes, where they were asked for.
    """

    truth: TrueConditional
    latent: Array
    votes: dict[str, NDArray[Any]] | None = None
