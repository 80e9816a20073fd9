"""The interface of an engine, the run that all engines share, and the engine for this machine, which uses threads."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from snefy_ldl._internal.limits import MOST_THREADS
from snefy_ldl.apps.cluster.parts import PART_ROWS, Part, PartTable, StoragePath, plan_parts, read_stamp
from snefy_ldl.apps.cluster.work import Outcome, PartWorker, Predictions
from snefy_ldl.errors import InputError, SnefyError

__all__ = ["Engine", "EngineError", "LocalEngine", "Run", "map_in_order", "run_parts"]

#: Called with how many rows are done, and of how many.
Progress = Callable[[int, int], None]
Item = TypeVar("Item")
Answer = TypeVar("Answer")


class EngineError(SnefyError, RuntimeError):
    """The cluster could not finish the work: a worker fails repeatedly, or nothing finishes within the patience."""


class Engine(ABC):
    """Where parts of a table are processed.

    An engine hands every part to some worker, in any order, until all are finished. A part's file is written whole or
    not at all, so a worker may die at any moment and another one repeats its part.

    Example:
        >>> from snefy_ldl.apps.cluster.base import LocalEngine
        >>> isinstance(LocalEngine(workers=1), Engine)
        True
    """

    @abstractmethod
    def outcomes(self, work: Predictions, parts: list[Part], out: StoragePath) -> Iterator[Outcome]:
        """Process parts.

        Args:
            work: what to compute.
            parts: the parts to process.
            out: folder for the output files.

        Yields:
            The outcome of each part as it finishes.

        Raises:
            EngineError: no part finishes within the engine's patience.
        """


@dataclass(frozen=True)
class Run:
    """The result of a run over parts.

    Args:
        outcomes: of all parts, in row order, including parts that an earlier run finished.
        rows: number of rows of all parts.
        kept: number of parts that an earlier run finished.

    Example:
        >>> Run([], rows=0, kept=0).rows
        0
    """

    outcomes: list[Outcome]
    rows: int
    kept: int

    @property
    def odd(self) -> list[Any]:
        """Cells unlike those of the fit, over all parts."""
        return [one for outcome in self.outcomes for one in outcome.odd]


def run_parts(
    engine: Engine,
    work: Predictions,
    table: PartTable,
    out: str,
    *,
    part_rows: int = PART_ROWS,
    progress: Progress | None = None,
) -> Run:
    """Process every row of some Parquet files; a run that was interrupted resumes with the missing parts.

    Args:
        engine: where the work is done.
        work: what to compute.
        table: the input files.
        out: folder for ``part-000000.parquet`` and so on, on this machine or in an object store. Sorted by name, the
            parts hold the rows in the order of the input files.
        part_rows: maximum number of rows per part, unless a single row group of a file holds more.
        progress: called with the number of finished rows and the total.

    Returns:
        The result of the run.

    Raises:
        InputError: the data break a rule, or the folder holds parts that this run would not replace.
        EngineError: no part finishes within the engine's patience, or a worker raised an unexpected error.

    Example:
        >>> import pandas, tempfile
        >>> from pathlib import Path
        >>> from snefy_ldl import SnefyLDL
        >>> from snefy_ldl.apps.cluster.base import LocalEngine
        >>> from snefy_ldl.apps.cluster.work import ModelFiles, Predictions
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> frame = pandas.DataFrame(city.X, columns=city.feature_names)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = SnefyLDL(epochs=1, random_state=0).fit(frame, city.D).save(f"{folder}/model")
        ...     frame.to_parquet(f"{folder}/rows.parquet", row_group_size=20)
        ...     work = Predictions(ModelFiles.read(Path(folder, "model")), tuple(city.feature_names))
        ...     table = PartTable([StoragePath(f"{folder}/rows.parquet")])
        ...     first = run_parts(LocalEngine(), work, table, f"{folder}/out", part_rows=20)
        ...     again = run_parts(LocalEngine(), work, table, f"{folder}/out", part_rows=20)
        ...     first.rows, first.kept, again.kept
        (60, 0, 3)
    """
    place, parts = StoragePath(out), plan_parts(table, part_rows)
    done = _finished(work, parts, place)
    rows = sum(outcome.rows for outcome in done.values())
    kept, todo = len(done), [part for part in parts if part.number not in done]
    if todo:
        for outcome in engine.outcomes(work, todo, place):
            if outcome.error:
                kind = InputError if outcome.is_known else EngineError
                raise kind(f"{outcome.error} (part {outcome.number}; parts that were finished are kept)")
            if outcome.number not in done:  # an abandoned worker may still have finished its part
                done[outcome.number] = outcome
                rows += outcome.rows
            if progress is not None:
                progress(rows, table.n_rows)
    if missing := [part for part in parts if part.number not in done]:
        raise EngineError(f"{len(missing)} parts were not finished, {missing[0].file_name} first; run it again.")
    place.tidy()
    return Run([done[part.number] for part in parts], rows, kept)


def _finished(work: Predictions, parts: list[Part], out: StoragePath) -> dict[int, Outcome]:
    """Outcomes of parts whose files are there, made by the same work from the same rows."""
    if out.kind() == "file":
        raise InputError(f"{out.address} is a file; name a folder for the parts.")
    names = {part.file_name for part in parts}
    there = {place.name for place in out.files() if place.name.startswith("part-")} if out.kind() == "folder" else set()
    if foreign := sorted(there - names):
        raise InputError(
            f"{out.address} holds {foreign[0]}, which is not part of this run: its rows would be mistaken for those of "
            "this run. Remove it, or name another folder."
        )
    done: dict[int, Outcome] = {}
    digest = work.digest()
    for part in parts:
        if part.file_name in there and read_stamp(out.child(part.file_name)) == part.stamp(digest):
            done[part.number] = Outcome(part.number, part.rows)
    return done


def map_in_order(work: Callable[[Item], Answer], parts: Iterable[Item], threads: int | None = None) -> Iterator[Answer]:
    """What some work makes of each part, in the parts' order, in bounded memory.

    Threads gain because PyTorch, NumPy and the reader of Parquet files leave the interpreter free while they compute;
    each uses one core, so that they do not wait for each other.

    Args:
        work: Called with a part, in any thread.
        parts: Read in the calling thread, at most ``threads + 1`` ahead of what was handed on.
        threads: How many; by default one per core, up to four.

    Yields:
        The answers.

    >>> list(map_in_order(lambda part: part**2, range(5), threads=2))
    [0, 1, 4, 9, 16]
    """
    import torch  # loaded where it is used: a command that only asks for help should answer at once

    from snefy_ldl._internal.threads import one_blas_thread

    count = threads or min(os.cpu_count() or 1, MOST_THREADS)
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


class LocalEngine(Engine):
    """Processes parts in threads of this process.

    Args:
        workers: number of threads; by default one per core, up to four.

    Example:
        >>> LocalEngine(workers=2).workers
        2
    """

    def __init__(self, workers: int | None = None) -> None:
        self.workers = workers

    def outcomes(self, work: Predictions, parts: list[Part], out: StoragePath) -> Iterator[Outcome]:
        """Process parts; see :meth:`Engine.outcomes`."""
        return map_in_order(PartWorker(work, out), parts, self.workers)  # threads may share a fitted model
