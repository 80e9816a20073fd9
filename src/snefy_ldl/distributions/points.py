"""Points that a chain of conditional laws is asked at: shares or levels of any container, checked."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Size, Tensor

from snefy_ldl.distributions.law import SimplexLaw
from snefy_ldl.distributions.shapes import common_shape
from snefy_ldl.errors import InputError
from snefy_ldl.special.tolerances import SHARE_SUM_ROUNDING


def share_points(law: SimplexLaw, value: Any) -> tuple[Tensor, Size]:
    """Shares (T, L) in float64, whose points fall to the law's rows in order, over and over; and their shape.

    Args:
        law: whose labels and batch they must fit.
        value: shares (..., *batch, L).

    Returns:
        The points, and the shape (..., *batch) that answers take.

    Raises:
        InputError: another shape, or shares that are not finite, negative, or do not sum to one.
    """
    points = _as_points(value, law.n_labels, law.device)
    flat = points.reshape(-1, law.n_labels)
    bad = ~((flat >= 0.0).all(-1) & ((flat.sum(-1) - 1.0).abs() <= SHARE_SUM_ROUNDING))
    if bool(bad.any()):
        row = int(torch.nonzero(bad)[0])
        raise InputError(f"row {row} is {flat[row].tolist()}: shares must be >= 0 and sum to one.")
    shape = _whole_shape(law, points.shape[:-1])
    return points.expand(*shape, law.n_labels).reshape(-1, law.n_labels), shape


def level_points(law: SimplexLaw, uniforms: Any) -> tuple[Tensor, Size]:
    """Levels (T, L-1) in float64, in the order of :func:`share_points`; and their shape.

    Args:
        law: whose labels and batch they must fit.
        uniforms: levels (..., *batch, L-1).

    Returns:
        The levels, and the shape (..., *batch) that answers take.

    Raises:
        InputError: another shape, or numbers outside [0, 1].
    """
    width = law.n_labels - 1
    points = _as_points(uniforms, width, law.device)
    if not bool(((points >= 0.0) & (points <= 1.0)).all()):
        raise InputError("uniform numbers must lie between 0 and 1.")
    shape = _whole_shape(law, points.shape[:-1])
    return points.expand(*shape, width).reshape(-1, width), shape


def _whole_shape(law: SimplexLaw, shape: Size) -> Size:
    try:
        whole = common_shape(shape, law.batch_shape)
    except ValueError:
        whole = torch.Size()
    depth = len(law.batch_shape)
    if len(whole) < depth or (len(law) != 1 and whole[len(whole) - depth :] != law.batch_shape):
        raise InputError(
            f"points of shape {tuple(shape)} do not fit a batch of shape {tuple(law.batch_shape)}: give one for "
            "each row of the batch, or several blocks of as many."
        )
    return whole


def _as_points(value: Any, width: int, device: torch.device) -> Tensor:
    """Points as finite float64 numbers (..., width)."""
    table = value if isinstance(value, Tensor) else torch.tensor(np.asarray(value, dtype=np.float64))
    table = table.detach().to(device, torch.float64)
    if table.dim() < 1 or table.shape[-1] != width:
        raise InputError(f"expected {width} columns; got shape {tuple(table.shape)}.")
    if not bool(torch.isfinite(table).all()):
        raise InputError("every number must be finite.")
    return table
