"""One thread for small fits: threads that wait for each other cost more than they save."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from snefy_ldl._internal.special.threads import one_blas_thread, one_thread

#: Fits of fewer feature cells than this keep to one thread.
SHARED_CELLS = 4_000_000


@contextlib.contextmanager
def few_threads(cells: int) -> Iterator[None]:
    """One thread for torch and for linear algebra while a small fit runs, as many as before afterwards.

    A fit by L-BFGS is thousands of short calls that take turns between torch and BLAS. Where each has threads of its
    own, those of one spin while the other works: on two cores that others use too, twenty times slower was measured.

    Args:
        cells: Rows times features of the fit.

    Example:
        >>> import torch
        >>> with few_threads(100):
        ...     torch.get_num_threads()
        1
    """
    if cells >= SHARED_CELLS:
        yield
        return
    with one_thread(), one_blas_thread():
        yield
