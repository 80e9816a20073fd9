"""Randomness: one seed from any ``random_state`` of scikit-learn, and seeds derived from seeds."""

from __future__ import annotations

import numbers
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.utils import check_random_state

from snefy_ldl.errors import InputError

if TYPE_CHECKING:
    import torch


#: Seeds drawn from other generators lie below this: the largest that NumPy's old generators take.
SEED_LIMIT = 2**31 - 1


def seed_from(random_state: Any) -> int:
    """One whole number from a seed, a generator of NumPy's, or None (NumPy's global state).

    >>> seed_from(7)
    7
    """
    if isinstance(random_state, numbers.Integral):
        return int(random_state)
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(SEED_LIMIT))
    return int(numpy_random(random_state).randint(SEED_LIMIT))


def numpy_random(random_state: Any) -> np.random.RandomState:
    """A NumPy ``RandomState``, which scikit-learn's own functions take; a generator's next number seeds it."""
    if isinstance(random_state, np.random.Generator):
        return np.random.RandomState(int(random_state.integers(SEED_LIMIT)))
    try:
        return check_random_state(random_state)
    except ValueError as error:
        raise InputError(f"random_state: {error}") from None


def torch_generator(random_state: Any, device: torch.device | str = "cpu") -> torch.Generator:
    """A torch generator on a device, seeded by :func:`seed_from`."""
    import torch  # the command line and tables use this module, and start without torch

    return torch.Generator(device).manual_seed(seed_from(random_state))


def derive_seed(*parts: int) -> int:
    """One seed out of several whole numbers, well mixed.

    >>> derive_seed(0, 1) == derive_seed(0, 1), derive_seed(0, 1) == derive_seed(1, 0)
    (True, False)
    """
    state = 0x9E3779B97F4A7C15
    for part in parts:
        state = ((state ^ (part & 0xFFFFFFFFFFFFFFFF)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        state ^= state >> 31
    return state & 0x7FFFFFFFFFFFFFFF
