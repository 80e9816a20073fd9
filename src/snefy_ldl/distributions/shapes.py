"""Shapes of what users give: batches, points and levels, checked and laid out row by row."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Size, Tensor

from snefy_ldl._internal.tolerances import SHARE_SUM_ROUNDING
from snefy_ldl._internal.validation import as_float
from snefy_ldl.errors import InputError


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
    except TypeError:
        size = None
    if size is None or any(length < 0 for length in size):
        raise InputError(f"{name} must be a tuple of whole numbers >= 0; got {shape!r}.")
    return size


def row_table(values: Tensor, batch_shape: Size, n_labels: int, name: str) -> Tensor:
    """Values for every row and label, (*batch, L) or one row for all, as (N, L)."""
    try:
        return values.expand(*batch_shape, n_labels).reshape(-1, n_labels)
    except RuntimeError:
        raise InputError(
            f"{name} of shape {tuple(values.shape)} do not fit a batch of shape {tuple(batch_shape)} with {n_labels} "
            "labels: give one row for each row of the batch, or one for all."
        ) from None


def share_points(dist: Any, value: Any) -> tuple[Tensor, Size]:
    """Shares (T, L) in float64, whose points fall to the distribution's rows in order, over and over; and their shape.

    Args:
        dist: whose labels and batch they must fit.
        value: shares (..., *batch, L).

    Returns:
        The points, and the shape (..., *batch) that answers take.

    Raises:
        InputError: another shape, or shares that are not finite, negative, or do not sum to one.
    """
    points = _as_points(value, dist.n_labels, dist.device)
    flat = points.reshape(-1, dist.n_labels)
    bad = ~((flat >= 0.0).all(-1) & ((flat.sum(-1) - 1.0).abs() <= SHARE_SUM_ROUNDING))
    if bool(bad.any()):
        row = int(torch.nonzero(bad)[0])
        raise InputError(f"row {row} is {flat[row].tolist()}: shares must be >= 0 and sum to one.")
    shape = _whole_shape(dist, points.shape[:-1])
    return points.expand(*shape, dist.n_labels).reshape(-1, dist.n_labels), shape


def level_points(dist: Any, uniforms: Any) -> tuple[Tensor, Size]:
    """Levels (T, L-1) in [0, 1], of (..., *batch, L-1), as :func:`share_points` does for shares; and their shape."""
    width = dist.n_labels - 1
    points = _as_points(uniforms, width, dist.device)
    if not bool(((points >= 0.0) & (points <= 1.0)).all()):
        raise InputError("uniform numbers must lie between 0 and 1.")
    shape = _whole_shape(dist, points.shape[:-1])
    return points.expand(*shape, width).reshape(-1, width), shape


def _whole_shape(dist: Any, shape: Size) -> Size:
    try:
        whole = common_shape(shape, dist.batch_shape)
    except ValueError:
        whole = torch.Size()
    depth = len(dist.batch_shape)
    if len(whole) < depth or (len(dist) != 1 and whole[len(whole) - depth :] != dist.batch_shape):
        raise InputError(
            f"points of shape {tuple(shape)} do not fit a batch of shape {tuple(dist.batch_shape)}: give one for "
            "each row of the batch, or several blocks of as many."
        )
    return whole


def _as_points(value: Any, width: int, device: torch.device) -> Tensor:
    """Points as finite float64 numbers (..., width)."""
    table = torch.tensor(as_float(value, "value"), device=device)
    if table.dim() < 1 or table.shape[-1] != width:
        raise InputError(f"expected {width} columns; got shape {tuple(table.shape)}.")
    if not bool(torch.isfinite(table).all()):
        raise InputError("every number must be finite.")
    return table
