"""What a network keeps between predictions: everything about its laws that does not depend on x."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from snefy_ldl.distributions.family import PairFamily


@dataclass(frozen=True)
class LawParts:
    """Parts of a network's laws that all rows share.

    Attributes:
        family: pairs of neurons, the background's neuron among them.
        log_root_norm: ``g`` of the network's own neurons (K, n), float64.
        normaliser: ``M ∘ R`` of them (K, n, n), by which the background gets its share; None without a background.
        centre: ``c`` (L,), or None.
    """

    family: PairFamily
    log_root_norm: Tensor
    normaliser: Tensor | None
    centre: Tensor | None


class KeptParts:
    """The parts made last, given out again as long as the numbers they were made of are the same.

    The numbers themselves are compared, not their versions: parameters may be changed through ``.data`` or by a graph
    on a GPU, which leave no trace. Many threads may ask at once. Copies of a network start without any.

    Example:
        >>> kept, source = KeptParts(), torch.zeros(2)
        >>> first = kept.get([source], lambda: object())
        >>> kept.get([source], lambda: object()) is first, kept.get([source.add_(1)], lambda: object()) is first
        (True, False)
    """

    def __init__(self) -> None:
        self._last: tuple[list[Tensor], Any] | None = None
        self._lock = threading.Lock()

    def get(self, sources: list[Tensor], make: Callable[[], Any]) -> Any:
        """The parts of these tensors, made if the last ones were of others.

        Args:
            sources: all that the parts depend on.
            make: makes them, outside of gradients and inference mode.

        Returns:
            What ``make`` gave, now or earlier.
        """
        last = self._last
        if last is not None and _same(last[0], sources):
            return last[1]
        with self._lock:  # one makes them, the others wait
            last = self._last
            if last is not None and _same(last[0], sources):
                return last[1]
            with torch.inference_mode(False), torch.no_grad():
                copies = [source.detach().clone() for source in sources]
                parts = make()
            self._last = copies, parts
        return parts

    def __deepcopy__(self, memo: Any) -> KeptParts:
        return KeptParts()

    def __reduce__(self) -> tuple[type[KeptParts], tuple[()]]:
        return KeptParts, ()


def _same(kept: list[Tensor], sources: list[Tensor]) -> bool:
    return len(kept) == len(sources) and all(
        a.device == b.device and a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(kept, sources)
    )
