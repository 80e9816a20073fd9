"""Predicted laws of rows of any kind, a block at a time: the one place where conformal prediction touches torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from snefy_ldl._internal.types import Array
from snefy_ldl._internal.validation.rows import count_rows, take_rows
from snefy_ldl.distributions.law import SnefySimplex

#: Rows whose predicted laws are held at one time.
BLOCK_ROWS = 1 << 15


def law_blocks(model: Any, X: Any, block_rows: int | None = None) -> Iterator[tuple[slice, Any]]:
    """The predicted laws of a block of rows at a time; memory does not grow with the rows."""
    n_rows, step = count_rows(X), min(block_rows or BLOCK_ROWS, BLOCK_ROWS)
    for start in range(0, max(n_rows, 1), step):
        rows = slice(start, min(start + step, n_rows))
        with torch.no_grad():
            law = model.predict_dist(X if n_rows <= step else take_rows(X, rows))
        yield rows, law  # outside: a generator left half-way would leave gradients switched off


def tensor_for(law: Any, values: Array) -> Tensor:
    """Values where the law's own numbers live."""
    return torch.as_tensor(values, device=law.device if isinstance(law, SnefySimplex) else "cpu")


def to_numpy(values: Tensor) -> Array:
    """float64 array of a tensor."""
    return np.asarray(values.detach().cpu().numpy(), dtype=np.float64)


def draw_from(law: Any, n: int, seed: Callable[[], int]) -> Tensor:
    """n draws (n, b, L) of a law, reproducible also for torch's own laws, which take no generator."""
    if isinstance(law, SnefySimplex):
        generator = torch.Generator(law.device).manual_seed(seed())
        return law.sample((n,), generator)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed())
        draws: Tensor = law.sample((n,))
    return draws
