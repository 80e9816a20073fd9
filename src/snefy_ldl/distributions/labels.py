"""The labels of a law: their number and names, and the groups of them that a question may name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch.distributions import Distribution

from snefy_ldl.errors import InputError

if TYPE_CHECKING:
    from typing_extensions import Self


class LabelledLaw(Distribution):
    """A law whose event is a vector of L shares, one a label."""

    #: Names of the labels, which then serve beside their numbers; None where nobody gave any.
    label_names: tuple[str, ...] | None = None

    @property
    def n_labels(self) -> int:
        """L, the number of parts."""
        return int(self.event_shape[0])

    def named(self, names: Sequence[Any] | None) -> Self:
        """This law, whose labels now have names (L,); returns itself."""
        if names is not None and len(names) != self.n_labels:
            raise InputError(f"{len(names)} names for {self.n_labels} labels.")
        self.label_names = None if names is None else tuple(str(name) for name in names)
        return self

    def label_number(self, label: int | str) -> int:
        """Number of a label, given by its number or its name."""
        return self._label(label)

    def _label(self, r: int | str) -> int:
        if isinstance(r, str):
            if self.label_names is None or r not in self.label_names:
                known = "has no label names" if self.label_names is None else f"has the labels {list(self.label_names)}"
                raise InputError(f"the law {known}; got {r!r}.")
            return self.label_names.index(r)
        if not isinstance(r, (int, np.integer)) or not -self.n_labels <= r < self.n_labels:
            raise InputError(f"label index must be a whole number from 0 to {self.n_labels - 1}; got {r!r}.")
        return int(r) % self.n_labels

    def _group(self, labels: int | str | Sequence[int | str]) -> list[int]:
        """One label or several, of which at least one must be left out."""
        group = [labels] if isinstance(labels, (int, np.integer, str)) else list(labels)
        checked = sorted({self._label(r) for r in group})
        if not 0 < len(checked) < self.n_labels or len(checked) < len(group):
            raise InputError(f"a sum of shares needs some of the labels, each once, and not all; got {labels!r}.")
        return checked

    def _groups(self, groups: Sequence[Sequence[int]]) -> list[list[int]]:
        checked = [[self._label(r) for r in group] for group in groups]
        if len(checked) < 2 or any(not group for group in checked):
            raise InputError("amalgamate needs at least two groups, none of them empty.")
        if sorted(r for group in checked for r in group) != list(range(self.n_labels)):
            raise InputError(
                f"groups must hold each of the labels 0 to {self.n_labels - 1} exactly once; got {checked}. "
                "For the proportions among some labels only, use subcomposition."
            )
        return checked

    def _subset(self, labels: Sequence[int]) -> list[int]:
        checked = [self._label(r) for r in labels]
        if len(checked) < 2 or len(set(checked)) < len(checked):
            raise InputError(f"subcomposition needs at least two different labels; got {list(labels)}.")
        return checked

    def _two_labels(self, j: int | str, k: int | str) -> tuple[int, int]:
        first, second = self._label(j), self._label(k)
        if first == second:
            raise InputError(f"prob_greater compares two different labels; got {j} twice.")
        return first, second
