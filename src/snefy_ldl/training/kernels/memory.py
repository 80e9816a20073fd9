"""Work arrays that are used again: a fresh one of a few MiB costs as much to map as to fill."""

from __future__ import annotations

import math
import threading

import torch
from torch import Tensor

#: Arrays kept for the next step, a thread.
POOLED = 64


class WorkArrays(threading.local):
    """A pool of arrays on a CPU, one a thread. An array that is given back may be handed out again with other sizes.

    Example:
        >>> pool = WorkArrays()
        >>> array = pool.take(2, 3)
        >>> address = array.data_ptr()
        >>> pool.give(array)
        >>> pool.take(3, 2).data_ptr() == address
        True
    """

    def __init__(self) -> None:
        self._free: list[Tensor] = []  # of bytes

    def take(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """An array with anything in it.

        Args:
            shape: its sizes.
            dtype: its type.

        Returns:
            The array.
        """
        size = math.prod(shape) * dtype.itemsize
        fits = (place for place, memory in enumerate(self._free) if size <= len(memory) <= 4 * size)
        place = next(fits, None)
        memory = torch.empty(size + size // 4, dtype=torch.uint8) if place is None else self._free.pop(place)
        return memory[:size].view(dtype).view(shape)

    def give(self, array: Tensor) -> None:
        """Hand an array of :meth:`take` back; nobody may read it any more."""
        if len(self._free) < POOLED:
            self._free.append(torch.empty(0, dtype=torch.uint8).set_(array.untyped_storage()))


#: The pool of all kernels.
work_arrays = WorkArrays()
