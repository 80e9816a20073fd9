"""Shapes of what users give: batches, indexes, tables of labels and numbers of draws, checked and laid out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Size, Tensor

from snefy_ldl._internal.memory import DRAWN_NUMBERS
from snefy_ldl._internal.validation import align_labels, as_float
from snefy_ldl.errors import InputError

Part = TypeVar("Part")


def sort_kinds(parts: Sequence[Part], alike: Callable[[Part, Part], bool]) -> tuple[list[Part], list[int]]:
    """The first of each kind among some parts, and the kind of every part.

    >>> sort_kinds([1, 2, 11], lambda a, b: a % 10 == b % 10)
    ([1, 2], [0, 1, 0])
    """
    kinds: list[Part] = []
    which: list[int] = []
    for part in parts:
        which.append(next((k for k, kind in enumerate(kinds) if alike(kind, part)), len(kinds)))
        kinds += [part] if which[-1] == len(kinds) else []
    return kinds, which


def common_shape(*shapes: Size | tuple[int, ...]) -> Size:
    """The common shape of some; torch's own function loads half a second of code at its first call."""
    wanted = [tuple(shape) for shape in shapes]
    try:
        return Size(np.broadcast_shapes(*wanted))
    except ValueError:
        raise InputError(f"shapes do not fit together: {' and '.join(map(str, wanted))}.") from None


def as_size(shape: Any, name: str) -> Size:
    """A shape that a user gave, checked: whole numbers >= 0."""
    try:
        size = Size(shape)
        fits = all(0 <= length < 2**63 for length in size)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        fits = False
    if not fits:
        raise InputError(f"{name} must be a tuple of whole numbers >= 0 that memory can hold; got {shape!r}.")
    return size


def check_draws(n: Any, per_draw: int, name: str = "n", least: int = 0) -> int:
    """A number of draws, each of so many numbers, which memory must be able to hold.

    Example:
        >>> check_draws(10**12, 3)
        Traceback (most recent call last):
        ...
        snefy_ldl.errors.InputError: n=1000000000000 draws at once are too many; ask for fewer at a time.
    """
    if isinstance(n, bool) or not isinstance(n, (int, np.integer)) or n < least:
        raise InputError(f"{name} must be a whole number of at least {least} draws; got {n!r}.")
    if n * per_draw > DRAWN_NUMBERS:
        raise InputError(f"{name}={n} draws at once are too many; ask for fewer at a time.")
    return int(n)


def as_index(index: Any) -> Any:
    """An index of any container as one that tensors take.

    Raises:
        InputError: text, or numbers that are not whole.
    """
    if isinstance(index, tuple):
        return tuple(as_index(part) for part in index)
    if index is None or isinstance(index, (int, np.integer, slice, type(Ellipsis), Tensor)):
        return index
    numbers = np.asarray(index)
    if numbers.size and numbers.dtype.kind not in "biu":
        raise InputError(f"a batch is indexed by whole numbers, slices and masks; got {index!r}.")
    return torch.as_tensor(numbers if numbers.size else numbers.astype(np.int64))


def is_several(labels: Any) -> bool:
    """Whether these are labels, and not one label's number or name."""
    return not isinstance(labels, str) and getattr(labels, "ndim", 1) > 0 and hasattr(labels, "__iter__")


def label_table(value: Any, names: Any, n_labels: int, device: torch.device, what: str = "value") -> Tensor:
    """Numbers for every label (..., L) of any container; a frame's columns go by name, a tensor keeps its gradient.

    Args:
        value: the numbers.
        names: of the labels (L,), or None.
        n_labels: L.
        device: where the numbers are wanted.
        what: name of the numbers in messages.

    Raises:
        InputError: unknown or missing names, another number of columns, or no real numbers.
    """
    value = align_labels(value, names, what)
    if not isinstance(value, Tensor) or value.is_sparse:
        value = torch.as_tensor(as_float(value, what), device=device)
    if value.shape[-1:] != (n_labels,) or value.is_complex():
        raise InputError(f"{what} must hold {n_labels} real numbers per row; got shape {tuple(value.shape)}.")
    return value


def row_table(values: Tensor, batch_shape: Size, event_shape: Size | tuple[int, ...], name: str) -> Tensor:
    """Values for every row, (*batch, *event) or one for all, as (N, *event)."""
    try:
        return values.expand((*batch_shape, *event_shape)).reshape(-1, *event_shape)
    except RuntimeError:
        raise InputError(
            f"{name} of shape {tuple(values.shape)} does not fit the batch of shape {tuple(batch_shape)}: give "
            "one value for each row of the batch, or one for all."
        ) from None
