"""Shapes of batches."""

from __future__ import annotations

import numpy as np
from torch import Size

from snefy_ldl.errors import InputError

__all__ = ["common_shape"]


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
