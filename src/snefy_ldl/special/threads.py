"""One thread for small work: on a busy machine torch's other threads cost more than they give."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import torch
from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

__all__ = ["one_thread"]


@lru_cache(maxsize=1)
def _openmp() -> ThreadpoolController:
    return ThreadpoolController().select(user_api="openmp")


@contextmanager
def one_thread(wanted: bool = True) -> Iterator[None]:
    """Let torch use one thread here, and leave all other Python threads as they are.

    ``torch.set_num_threads`` would also count for threads that start meanwhile. The number that OpenMP keeps for the
    calling thread is set instead, which torch asks before it shares work.

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
    with _openmp().limit(limits=1):
        yield
