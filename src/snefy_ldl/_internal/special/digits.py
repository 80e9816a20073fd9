"""Numbers cut to the digits that their computation settles."""

from __future__ import annotations

import torch
from torch import Tensor


def ten_digits(values: Tensor) -> Tensor:
    """Numbers rounded to ten significant digits.

    What an iteration stops at is good to some ten digits, and the rest follows the order of sums in the last bit;
    without the rest, fits that should be the same have the same bits.

    Args:
        values: a few numbers (N,), float64.

    Returns:
        (N,), float64, on the same device.

    Example:
        >>> ten_digits(torch.tensor([1.0 / 3.0], dtype=torch.float64)).item()
        0.3333333333
    """
    return torch.tensor([float(f"{value:.9e}") for value in values.tolist()], dtype=torch.float64, device=values.device)
