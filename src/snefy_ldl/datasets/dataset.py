"""A data set: features and label distributions, their names, and where they come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from snefy_ldl._internal.text import shorten
from snefy_ldl._internal.types import Array

__all__ = ["Dataset"]


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Dataset:
    """Features and label distributions, with their names and where they come from.

    Args:
        X: Features, (N, d) float64; a DataFrame where a table of your own holds text or gaps.
        D: Label distributions, (N, L) float64; rows sum to one.
        counts: Vote counts (N, L) behind ``D`` where they are known.
        label_names: The L labels, in the order of D's columns.
        feature_names: The d features, in the order of X's columns.
        name: Short name of the set.
        source: Where it comes from.
        licence: Under what terms, as far as the source says.

    >>> Dataset(X=np.eye(2), D=np.full((2, 2), 0.5), label_names=["no", "yes"], feature_names=["a", "b"], name="tiny")
    Dataset('tiny': 2 rows, 2 features, 2 labels (no, yes))
    """

    X: Any
    D: Array
    counts: Array | None = None
    label_names: list[str]
    feature_names: list[str]
    name: str
    source: str = "not stated"
    licence: str = "not stated"

    def __repr__(self) -> str:
        votes = "" if self.counts is None else f", {self.counts.sum():.0f} votes"
        return (
            f"{type(self).__name__}({self.name!r}: {len(self.D)} rows, {self.X.shape[1]} features, "
            f"{self.D.shape[1]} labels ({shorten(self.label_names, 6)}){votes})"
        )

    def summary(self) -> str:
        """A few lines for a person: size, mean share of each label, exact zeros, votes, source and licence.

        Returns:
            The lines in one text.

        >>> from snefy_ldl.datasets import make_city_districts
        >>> print(make_city_districts(n=50).summary().splitlines()[0])
        city_districts: 50 rows, 5 features, 3 labels
        """
        width = max(len(name) for name in self.label_names)
        lines = [f"{self.name}: {len(self.D)} rows, {self.X.shape[1]} features, {self.D.shape[1]} labels"]
        lines.append(f"features   {shorten(self.feature_names, 6)}")
        lines.append(f"zeros      {np.mean(self.D == 0.0):.2%} of the shares are exactly 0")
        if self.counts is not None:
            totals = self.counts.sum(axis=1)
            lines.append(
                f"votes      {totals.sum():.0f} in all; a row has {totals.min():.0f} to {totals.max():.0f}, "
                f"median {np.median(totals):.0f}"
            )
        lines.append("mean share")
        lines += [f"  {name:<{width}}  {share:.3f}" for name, share in zip(self.label_names, self.D.mean(axis=0))]
        lines += [f"source     {self.source}", f"licence    {self.licence}"]
        return "\n".join(lines)
