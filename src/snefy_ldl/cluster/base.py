"""What an engine is, the run that every engine shares, and the engine on this machine: a few threads."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any

from snefy_ldl._internal.limits import MOST_THREADS
from snefy_ldl.cluster.parts import PART_ROWS, Part, PartTable, Place, plan_parts, read_stamp
from snefy_ldl.cluster.work import Outcome, PartWorker, Work
from snefy_ldl.errors import InputError, SnefyError

__all__ = ["Engine", "EngineError", "LocalEngine", "Run", "run_parts"]

#: Called with how many rows are done, and of how many.
Progress = Callable[[int, int], None]


class EngineError(SnefyError, RuntimeError):
    """The machines could not do the work: a worker fails again and again, or nothing moves any more."""


class Engine(ABC):
    """Where rows are worked on.

    An engine gives every part to some worker until it is done, in any order. A part's file appears whole under its
    name or not at all, so a worker may die at any moment and the part be done again by another.

    Example:
        >>> from snefy_ldl.cluster.base import LocalEngine
        >>> isinstance(LocalEngine(workers=1), Engine)
        True
    """

    @abstractmethod
    def outcomes(self, work: Work, parts: list[Part], out: Place) -> Iterator[Outcome]:
        """Work on parts.

        Args:
            work: the question.
            parts: the rows.
            out: folder for the files.

        Yields:
            What came of each part, as it is done.

        Raises:
            EngineError: nothing moves any more.
        """


@dataclass(frozen=True)
class Run:
    """What a run over parts came to.

    Args:
        outcomes: of all parts, in the order of the rows; parts that were finished before among them.
        rows: of all parts.
        kept: parts that were finished before.

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
    work: Work,
    table: PartTable,
    out: str,
    *,
    part_rows: int = PART_ROWS,
    progress: Progress | None = None,
) -> Run:
    """Ask a question about every row of some files; run again after a stop, it goes on with what is missing.

    Args:
        engine: where the work is done.
        work: the question.
        table: the files.
        out: folder, on this machine or in an object store; ``part-000000.parquet`` and so on go into it. In the order
            of their names lie the rows in the order of the files.
        part_rows: rows of a part, at most, unless a row group of a file holds more.
        progress: called with how many rows are done, and of how many.

    Returns:
        What came of it.

    Raises:
        InputError: the data break a rule, or the folder holds parts that this run would not replace.
        EngineError: nothing moves any more, or a worker met what nobody foresaw.

    Example:
        >>> import pandas, tempfile
        >>> from pathlib import Path
        >>> from snefy_ldl import SnefyLDL
        >>> from snefy_ldl.cluster.base import LocalEngine
        >>> from snefy_ldl.cluster.work import Predictions
        >>> from snefy_ldl.cluster.work import ShippedModel
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> frame = pandas.DataFrame(city.X, columns=city.feature_names)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = SnefyLDL(epochs=1, random_state=0).fit(frame, city.D).save(f"{folder}/model")
        ...     frame.to_parquet(f"{folder}/rows.parquet", row_group_size=20)
        ...     work = Predictions(ShippedModel.read(Path(folder, "model")), tuple(city.feature_names))
        ...     table = PartTable([Place(f"{folder}/rows.parquet")])
        ...     first = run_parts(LocalEngine(), work, table, f"{folder}/out", part_rows=20)
        ...     again = run_parts(LocalEngine(), work, table, f"{folder}/out", part_rows=20)
        ...     first.rows, first.kept, again.kept
        (60, 0, 3)
    """
    place, parts = Place(out), plan_parts(table, part_rows)
    done = _finished(work, parts, place)
    rows = sum(outcome.rows for outcome in done.values())
    kept, todo = len(done), [part for part in parts if part.number not in done]
    if todo:
        for outcome in engine.outcomes(work, todo, place):
            if outcome.error:
                kind = InputError if outcome.is_known else EngineError
                raise kind(f"{outcome.error} (part {outcome.number}; parts that were finished are kept)")
            if outcome.number not in done:  # a worker that was given up may still have finished its part
                done[outcome.number] = outcome
                rows += outcome.rows
            if progress is not None:
                progress(rows, table.n_rows)
    if missing := [part for part in parts if part.number not in done]:
        raise EngineError(f"{len(missing)} parts were not finished, {missing[0].file_name} first; run it again.")
    place.tidy()
    return Run([done[part.number] for part in parts], rows, kept)


def _finished(work: Work, parts: list[Part], out: Place) -> dict[int, Outcome]:
    """Outcomes of parts whose files are there, made by the same work from the same rows."""
    if out.kind() == "file":
        raise InputError(f"{out.address} is a file; name a folder for the parts.")
    names = {part.file_name for part in parts}
    there = {place.name for place in out.files() if place.name.startswith("part-")} if out.kind() == "folder" else set()
    if foreign := sorted(there - names):
        raise InputError(
            f"{out.address} holds {foreign[0]}, which this run would not write: its rows would be taken for ours. "
            "Remove it, or name another folder."
        )
    done: dict[int, Outcome] = {}
    digest = work.digest()
    for part in parts:
        if part.file_name not in there:
            continue
        stamp = read_stamp(out.child(part.file_name))
        if stamp is not None and stamp.get("stamp") == part.stamp(digest):
            done[part.number] = Outcome(part.number, part.rows, stamp["summary"])
    return done


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

        from snefy_ldl._internal.threads import one_blas_thread

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
