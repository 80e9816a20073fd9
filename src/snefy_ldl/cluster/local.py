"""The engine on this machine: a few threads, each with the model, none of them waiting for the others."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed

from snefy_ldl._internal.limits import MOST_THREADS
from snefy_ldl.cluster.base import Engine
from snefy_ldl.cluster.parts import Part
from snefy_ldl.cluster.places import Place
from snefy_ldl.cluster.work import Outcome, PartWorker, Work

__all__ = ["LocalEngine"]


class LocalEngine(Engine):
    """Works on parts in threads of this process.

    PyTorch, NumPy and the reader of Parquet files leave the interpreter free while they compute.

    Args:
        workers: threads; by default one a core, up to four.

    Example:
        >>> LocalEngine(workers=2).workers
        2
    """

    def __init__(self, workers: int | None = None) -> None:
        self.workers = workers or min(os.cpu_count() or 1, MOST_THREADS)

    def outcomes(self, work: Work, parts: list[Part], out: Place) -> Iterator[Outcome]:
        """Work on parts; see :meth:`Engine.outcomes`."""
        import torch  # loaded where it is used: a command that only asks for help should answer at once

        from snefy_ldl._internal.special.threads import one_blas_thread

        before = torch.get_num_threads()
        try:
            worker = PartWorker(work, out)  # a fitted model may be asked by many threads at one time
            workers = ThreadPoolExecutor(self.workers, initializer=torch.set_num_threads, initargs=(1,))
            with one_blas_thread(), workers as pool:
                futures = [pool.submit(worker, part) for part in parts]
                try:
                    for future in as_completed(futures):
                        yield future.result()
                finally:
                    for future in futures:
                        future.cancel()
        finally:
            torch.set_num_threads(before)
