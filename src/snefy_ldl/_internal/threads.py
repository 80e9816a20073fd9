"""One thread for small work: on a busy machine the other threads of torch cost more than they give."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]


@lru_cache
def _pools(api: str) -> ThreadpoolController:
    return ThreadpoolController().select(user_api=api)


@lru_cache(maxsize=1)
def _set_mkl_threads() -> Callable[[int], int]:
    """What sets the number of threads that torch's matrix products use in this thread, and returns the one before.

    After a call of ``torch.set_num_threads``, MKL inside torch no longer follows OpenMP; and threadpoolctl does
    not list it, since it is linked into libtorch_cpu.so.
    """
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        set_threads: Callable[[int], int] = library.MKL_Set_Num_Threads_Local
    except (OSError, AttributeError):  # another system, or torch without MKL
        return lambda number: 0
    return set_threads


@contextmanager
def one_thread(wanted: bool = True) -> Iterator[None]:
    """Let torch use one thread here, and leave all other Python threads as they are.

    ``torch.set_num_threads`` would also count for threads that start meanwhile. The number that OpenMP keeps for the
    calling thread is set instead, which torch reads before it shares work, and that of its matrix products.

    Args:
        wanted: False to change nothing.

    Example:
        >>> with one_thread():
        ...     torch.get_num_threads()
        1
    """
    if not wanted or torch.get_num_threads() == 1:
        yield
        return
    set_mkl_threads = _set_mkl_threads()
    with _pools("openmp").limit(limits=1):
        before = set_mkl_threads(1)
        try:
            yield
        finally:
            set_mkl_threads(before)


#: One entry for each user of :func:`one_blas_thread`: the limit that the first of them set, and None.
_LIMITS: list[Any] = []
_LOCK = Lock()


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Let NumPy's matrix products use one thread, until the last of those who asked for it is done.

    Many short products gain nothing from threads; on a machine that is busy, or in several threads of yours, they
    were ten times slower with them. The number is the whole process's.

    Example:
        >>> import numpy as np
        >>> with one_blas_thread():
        ...     float(np.ones((2, 3)) @ np.ones(3) @ np.ones(2))
        6.0
    """
    with _LOCK:
        _LIMITS.append(None if _LIMITS else _pools("blas").limit(limits=1))
    try:
        yield
    finally:
        with _LOCK:
            limit = _LIMITS.pop()  # the last to leave finds that of the first
            if limit is not None:
                limit.restore_original_limits()


#: Fits of fewer feature cells than this keep to one thread.
SHARED_CELLS = 4_000_000


@contextmanager
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
    small = cells < SHARED_CELLS
    with one_thread(small), one_blas_thread() if small else nullcontext():
        yield
