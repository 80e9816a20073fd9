"""Shapes of batches."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Size

from snefy_ldl.errors import InputError

__all__ = ["as_size", "common_shape"]


def common_shape(*shapes: Size | tuple[int, ...]) -> Size:
    """The shape to which all of these broadcast; torch's own function loads half a second of code at its first call.

    Args:
        shapes: of tensors or batches.

    Returns:
        Their common shape.

    Raises:
        InputError: they do not broadcast.

    Example:
        >>> common_shape((3, 1), (4,))
        torch.Size([3, 4])
    """
    wanted = [tuple(shape) for shape in shapes]
    try:
        return Size(np.broadcast_shapes(*wanted))
    except ValueError:
        raise InputError(f"shapes do not fit together: {' and '.join(map(str, wanted))}.") from None


def as_size(shape: Any, name: str) -> Size:
    """A shape that a user gave.

    Args:
        shape: Whole numbers >= 0.
        name: Of the argument, for the message.

    Returns:
        The shape.

    Raises:
        InputError: It is something else.

    Example:
        >>> as_size((2, 3), "sample_shape")
        torch.Size([2, 3])
    """
    try:
        size = Size(shape)
    except TypeError:
        size = None
    if size is None or any(length < 0 for length in size):
        raise InputError(f"{name} must be a tuple of whole numbers >= 0; got {shape!r}.")
    return size
