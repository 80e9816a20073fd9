"""Parts of a table worked on by a few threads while others are read and written, in the order they came."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from snefy_ldl._internal.limits import MOST_THREADS

Part = TypeVar("Part")
Answer = TypeVar("Answer")


def map_in_order(work: Callable[[Part], Answer], parts: Iterable[Part], threads: int | None = None) -> Iterator[Answer]:
    """What some work makes of each part, in the parts' order, in bounded memory.

    Threads gain because PyTorch, NumPy and the reader of Parquet files leave the interpreter free while they compute;
    each uses one core, so that they do not wait for each other.

    Args:
        work: Called with a part, in any thread.
        parts: Read in the calling thread, at most ``threads + 1`` ahead of what was handed on.
        threads: How many; by default one a core, up to four.

    Yields:
        The answers.

    >>> list(map_in_order(lambda part: part**2, range(5), threads=2))
    [0, 1, 4, 9, 16]
    """
    import torch  # loaded where it is used: a command that only asks for help should answer at once

    from snefy_ldl._internal.special.threads import one_blas_thread

    cores = os.cpu_count() or 1
    count = threads or min(cores, MOST_THREADS)
    before = torch.get_num_threads()
    waiting: deque[Future[Answer]] = deque()
    torch.set_num_threads(1)
    try:
        with one_blas_thread(), ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            try:
                for part in parts:
                    waiting.append(pool.submit(work, part))
                    if len(waiting) > count:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                for future in waiting:
                    future.cancel()
    finally:
        torch.set_num_threads(before)
