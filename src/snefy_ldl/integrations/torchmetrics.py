"""Measures that add up over batches and processes, as torchmetrics has them. Needs the extra ``metrics``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from snefy_ldl import metrics
from snefy_ldl.distributions.law import SnefySimplex
from snefy_ldl.errors import InputError

try:
    from torchmetrics import Metric
except ImportError:
    raise ImportError("metrics over batches need torchmetrics: pip install 'snefy-ldl[metrics]'") from None

__all__ = ["LabelDistributionMetric", "NegativeLogLikelihood"]


class _RowAverage(Metric):  # type: ignore[misc]
    """An average over rows, kept as a sum and a number of rows, so that batches and processes add up."""

    is_differentiable = False
    full_state_update = False
    total: Tensor
    rows: Tensor

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.add_state("total", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("rows", torch.zeros((), dtype=torch.long), dist_reduce_fx="sum")

    def _add(self, values: Any) -> None:
        values = torch.as_tensor(values, dtype=torch.float64, device=self.total.device)
        self.total += values.sum()
        self.rows += values.numel()

    def compute(self) -> Tensor:
        """The average over all rows so far; NaN before the first."""
        return self.total / self.rows


class LabelDistributionMetric(_RowAverage):
    """One of the measures of :mod:`snefy_ldl.metrics` that average over rows, batch by batch.

    Args:
        measure: "kl_divergence", "chebyshev", "clark", "canberra", "cosine" or "intersection".
        settings: of ``torchmetrics.Metric``.

    Raises:
        InputError: where there is no such measure.

    Example:
        >>> metric = LabelDistributionMetric("chebyshev")
        >>> metric.update(torch.tensor([[0.2, 0.8]]), torch.tensor([[0.5, 0.5]]))
        >>> round(float(metric.compute()), 3)
        0.3
    """

    def __init__(self, measure: str = "kl_divergence", **settings: Any) -> None:
        super().__init__(**settings)
        if measure not in metrics.HIGHER_IS_BETTER:
            raise InputError(f"measure={measure!r}: use one of {', '.join(metrics.HIGHER_IS_BETTER)}.")
        self.measure = measure

    @property
    def higher_is_better(self) -> bool:
        """Whether the measure is a similarity."""
        return metrics.HIGHER_IS_BETTER[self.measure]

    def update(self, preds: Any, target: Any) -> None:
        """Take in a batch.

        Args:
            preds: predicted shares (B, L), or a law, whose mean is meant.
            target: label distributions (B, L).

        Raises:
            InputError: where rows are no label distributions.
        """
        shares = preds.mean if isinstance(preds, SnefySimplex) else preds
        self._add(getattr(metrics, self.measure)(target, shares, per_row=True))


class NegativeLogLikelihood(_RowAverage):
    """Mean negative log likelihood of laws, batch by batch.

    Args:
        settings: of ``torchmetrics.Metric``.

    Example:
        >>> from snefy_ldl import SnefyHead
        >>> metric = NegativeLogLikelihood()
        >>> metric.update(SnefyHead(4, n_labels=2)(torch.zeros(3, 4)), torch.full((3, 2), 0.5))
        >>> metric.compute().shape
        torch.Size([])
    """

    higher_is_better = False

    def update(self, preds: SnefySimplex, target: Tensor) -> None:
        """Take in a batch.

        Args:
            preds: the law of B rows, as :class:`snefy_ldl.SnefyHead` and ``predict_dist`` give it.
            target: label distributions (B, L).
        """
        with torch.no_grad():
            self._add(-preds.log_prob(target.double()))
