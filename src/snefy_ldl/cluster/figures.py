"""Means and their errors added up over parts."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, sqrt
from typing import Any

__all__ = ["Tally"]


@dataclass(frozen=True)
class Tally:
    """Number, mean and sum of squared deviations of some figures; two add up to that of all.

    Args:
        n: how many figures.
        mean: of them.
        squares: sum of their squared deviations from the mean.

    Example:
        >>> import numpy as np
        >>> (Tally.of(np.array([1.0, 2.0])) + Tally.of(np.array([6.0]))).mean_and_error()
        (3.0, 1.5275252316519468)
    """

    n: int = 0
    mean: float = 0.0
    squares: float = 0.0

    @classmethod
    def of(cls, values: Any) -> Tally:
        """The tally of an array.

        Args:
            values: figures (b,).

        Returns:
            Their tally.
        """
        mean = float(values.mean())
        return cls(len(values), mean, float(((values - mean) ** 2).sum()))

    def __add__(self, other: Tally) -> Tally:
        n = self.n + other.n
        if not n:
            return self
        gap = other.mean - self.mean
        mean = self.mean + gap * other.n / n
        return Tally(n, mean, self.squares + other.squares + gap**2 * self.n * other.n / n)

    def mean_and_error(self) -> tuple[float, float]:
        """Mean, and its standard error.

        Returns:
            Both; the error of one figure is infinite.
        """
        return self.mean, sqrt(self.squares / (self.n - 1) / self.n) if self.n > 1 else inf

    def to_list(self) -> list[float]:
        """As JSON holds it.

        Returns:
            The three numbers.
        """
        return [self.n, self.mean, self.squares]
