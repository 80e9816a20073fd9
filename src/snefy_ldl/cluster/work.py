"""Work on parts: what a worker is told, what it does to one part, and what it says afterwards."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from snefy_ldl._internal.version import __version__
from snefy_ldl.cluster.parts import STAMP, Part
from snefy_ldl.cluster.places import Place
from snefy_ldl.cluster.rows import model_rows, takes_gaps
from snefy_ldl.cluster.shipped import ShippedModel
from snefy_ldl.errors import InputError, SnefyError

if TYPE_CHECKING:
    from snefy_ldl.estimator import SnefyLDL

__all__ = ["Answers", "Outcome", "PartWorker", "Work"]


class Answers(ABC):
    """What becomes of one part, batch after batch."""

    @abstractmethod
    def add(self, batch: Any, X: Any, first: int) -> Any:
        """Answer some rows.

        Args:
            batch: all columns that the work reads, a batch of pyarrow's.
            X: the features as the model takes them.
            first: number in the file of the first row.

        Returns:
            A table of pyarrow's to be written, or None where there is nothing yet.
        """

    def finish(self) -> tuple[Any, dict[str, Any]]:
        """What is left when every row is answered.

        Returns:
            A table of pyarrow's or None, and figures of the whole part, as JSON holds them.
        """
        return None, {}


@dataclass(frozen=True)
class Work(ABC):
    """A question to a model about every row; it travels to the workers.

    Args:
        model: the files of the model.
        features: columns that the model sees, in its order.
        keep: columns that are copied as they are.
    """

    model: ShippedModel
    features: tuple[str, ...]
    keep: tuple[str, ...] = ()

    @property
    def columns(self) -> list[str]:
        """Every column that is read."""
        return list(dict.fromkeys([*self.keep, *self.features]))

    def digest(self) -> str:
        """Of everything that decides the answers."""
        settings = [(part.name, repr(getattr(self, part.name))) for part in fields(self) if part.name != "model"]
        content = json.dumps([type(self).__name__, self.model.digest, settings, __version__])
        return hashlib.sha256(content.encode()).hexdigest()

    @abstractmethod
    def open(self, model: SnefyLDL, calibration: dict[str, Any] | None, part: Part) -> Answers:
        """Start on a part.

        Args:
            model: loaded once a worker.
            calibration: of the model, or None.
            part: whose rows follow.

        Returns:
            What answers them.
        """


@dataclass(frozen=True)
class Outcome:
    """What a worker says about a part.

    Args:
        number: of the part.
        rows: it has.
        summary: figures of the part.
        seconds: it took; 0 where it was finished before.
        pid: of the worker; 0 where it was finished before.
        peak_mb: most memory the worker has held so far, in megabytes.
        odd: cells unlike those of the fit.
        error: what went wrong, or empty.
        is_known: whether the error is one of the library's own.
    """

    number: int
    rows: int
    summary: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    pid: int = 0
    peak_mb: float = 0.0
    odd: tuple[Any, ...] = ()
    error: str = ""
    is_known: bool = True


class PartWorker:
    """Holds a model and works on one part after the other.

    Args:
        work: the question.
        out: folder for the files.
    """

    def __init__(self, work: Work, out: Place) -> None:
        import torch

        torch.set_num_threads(1)  # as many workers as cores: threads of each would wait for the others'
        self.work, self.out, self.digest = work, out, work.digest()
        self.model, self.calibration = work.model.load()
        self.gaps = takes_gaps(self.model)

    def __call__(self, part: Part) -> Outcome:
        """Work on a part.

        Args:
            part: the rows.

        Returns:
            What came of it; errors are told in it, not raised, so that they arrive as they are.
        """
        started = time.perf_counter()
        try:
            odd: list[Any] = []
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # what is odd is counted, and told once for all parts
                summary = self._write(part, odd)
        except Exception as error:
            known = isinstance(error, (SnefyError, OSError))
            words = " ".join(str(error).split())
            text = words if known else f"{type(error).__name__}: {words}"
            return Outcome(part.number, part.rows, error=text or type(error).__name__, is_known=known)
        seconds = time.perf_counter() - started
        return Outcome(part.number, part.rows, summary, seconds, os.getpid(), _peak_mb(), tuple(odd))

    def _write(self, part: Part, odd: list[Any]) -> dict[str, Any]:
        """The part's file, whole or not at all."""
        import pyarrow
        from pyarrow import parquet

        answers = self.work.open(self.model, self.calibration, part)
        with self.out.child(part.file_name).replaced() as file:
            writer = None
            try:
                for table in self._tables(part, answers, odd):
                    writer = writer or parquet.ParquetWriter(file, table.schema)
                    writer.write_table(table)
                table, summary = answers.finish()
                if table is not None:
                    writer = writer or parquet.ParquetWriter(file, table.schema)
                    writer.write_table(table)
                writer = writer or parquet.ParquetWriter(file, pyarrow.schema([]))
                stamp = {"stamp": part.stamp(self.digest), "rows": part.rows, "summary": summary}
                writer.add_key_value_metadata({STAMP: json.dumps(stamp, allow_nan=False).encode()})
            finally:
                if writer is not None:
                    writer.close()
        return summary

    def _tables(self, part: Part, answers: Answers, odd: list[Any]) -> Iterator[Any]:
        """Answers to a part's rows, some at a time."""
        from snefy_ldl.datasets.columns import TableEncoder
        from snefy_ldl.datasets.tables import check_finite, check_numbers  # loads pandas

        names, where = list(self.work.features), f"{part.source.name}, data row"
        for first, batch in part.batches(self.work.columns):
            frame = batch.select(names).to_pandas()
            check_finite(frame, where, first + 1)
            if not self.gaps:
                for name in names:
                    check_numbers(frame[name], where, first + 1)
            X = model_rows(self.model, frame, names)
            if isinstance(self.model.columns_, TableEncoder):
                odd.extend(self.model.columns_.surprises(X))
            try:
                table = answers.add(batch, X, first)
            except InputError as error:
                raise InputError(f"{part.source.name}, rows {first + 1} to {first + batch.num_rows}: {error}") from None
            if table is not None:
                yield table


def _peak_mb() -> float:
    """Most memory that this process has held, in megabytes; 0 where the system does not tell."""
    try:
        import resource
    except ImportError:  # Windows
        return 0.0
    unit = 1024.0**2 if sys.platform == "darwin" else 1024.0  # macOS counts bytes, Linux kilobytes
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
