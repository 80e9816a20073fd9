"""What workers compute for a part: predictions, with a model sent as files."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snefy_ldl._internal.version import __version__
from snefy_ldl.apps.cluster.parts import STAMP, Part, StoragePath
from snefy_ldl.apps.cluster.rows import calibrated_intervals, model_rows, prediction_columns, takes_gaps
from snefy_ldl.errors import InputError, ModelFileError, SnefyError

__all__ = ["ModelFiles", "Predictions"]

if TYPE_CHECKING:
    from snefy_ldl.snefy import SnefyLDL


@dataclass(frozen=True)
class ModelFiles:
    """The files of a saved model, its calibration among them.

    Args:
        files: content by name.
        device: where the model is put; ``"auto"`` is a GPU where the worker has one.

    Example:
        >>> from snefy_ldl import SnefyLDL
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = SnefyLDL(epochs=1, random_state=0).fit(city.X, city.D).save(folder)
        ...     shipped = ModelFiles.read(Path(folder))
        >>> shipped.load()[0].predict(city.X[:2]).shape
        (2, 3)
    """

    files: tuple[tuple[str, bytes], ...]
    device: str = "auto"

    @classmethod
    def read(cls, folder: Path, device: str = "auto") -> ModelFiles:
        """Take the files of a folder.

        Args:
            folder: that ``save`` wrote.
            device: where workers put the model.

        Returns:
            The files.

        Raises:
            ModelFileError: there is no such folder.
        """
        if not folder.is_dir():
            raise ModelFileError(f"{folder} is no folder with a saved model.")
        paths = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
        return cls(tuple((path.name, path.read_bytes()) for path in paths), device)

    @property
    def digest(self) -> str:
        """Of all files."""
        digest = hashlib.sha256()
        for name, content in self.files:
            digest.update(f"{name} {len(content)} ".encode())
            digest.update(content)
        return digest.hexdigest()

    def load(self) -> tuple[SnefyLDL, dict[str, Any] | None]:
        """The model, and its calibration where it has one.

        Returns:
            A fitted model, and what :func:`snefy_ldl._internal.model_files.load_calibration` gives.

        Raises:
            ModelFileError: a file is missing or damaged, or the model needs a backbone, whose code is not saved.
        """
        from snefy_ldl._internal.model_files import load_calibration
        from snefy_ldl.persistence import load  # loads torch

        with tempfile.TemporaryDirectory() as place:
            self.write(Path(place))
            device = None if self.device == "auto" else self.device
            return load(place, device=device), load_calibration(Path(place))

    def write(self, folder: Path) -> None:
        """Put the files into a folder.

        Args:
            folder: made where it is missing.
        """
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in self.files:
            (folder / name).write_bytes(content)


@dataclass(frozen=True)
class Predictions:
    """Label distributions and intervals of every row, sent to the workers together with the model.

    Args:
        model: the files of the model.
        features: columns that the model sees, in its order.
        keep: columns that are copied as they are.
        interval: level of the intervals; None for none.
        uncalibrated: whether intervals are the model's, whatever calibration its folder holds.

    Example:
        >>> work = Predictions(None, features=("depth",), keep=("id",), interval=0.9)  # normally a ModelFiles
        >>> work.columns
        ['id', 'depth']
    """

    model: ModelFiles
    features: tuple[str, ...]
    keep: tuple[str, ...] = ()
    interval: float | None = None
    uncalibrated: bool = False

    @property
    def columns(self) -> list[str]:
        """Every column that is read: kept ones and features."""
        return list(dict.fromkeys([*self.keep, *self.features]))

    def digest(self) -> str:
        """A digest of everything that affects the result."""
        settings = [self.features, self.keep, self.interval, self.uncalibrated]
        content = json.dumps([self.model.digest, settings, __version__])
        return hashlib.sha256(content.encode()).hexdigest()


@dataclass(frozen=True)
class Outcome:
    """The outcome of a part.

    Args:
        number: of the part.
        rows: it has.
        seconds: processing time; 0 if an earlier run finished the part.
        pid: process id of the worker; 0 if an earlier run finished the part.
        odd: cells unlike any that the fit has seen.
        error: what went wrong, or empty.
        is_known: whether the error is one of the library's own.
    """

    number: int
    rows: int
    seconds: float = 0.0
    pid: int = 0
    odd: tuple[Any, ...] = ()
    error: str = ""
    is_known: bool = True


class PartWorker:
    """Loads a model and processes one part after the other.

    Args:
        work: what to compute.
        out: folder for the output files.
    """

    def __init__(self, work: Predictions, out: StoragePath) -> None:
        self.work, self.out, self.digest = work, out, work.digest()
        self.model, calibration = work.model.load()
        self.gaps, self.intervals = takes_gaps(self.model), None
        if (level := work.interval) is not None:
            calibrated = None if work.uncalibrated else calibrated_intervals(self.model, calibration, level)
            self.intervals = calibrated or (lambda X: self.model.predict_interval(X, level))

    def __call__(self, part: Part) -> Outcome:
        """Process a part.

        Args:
            part: the part.

        Returns:
            The outcome; errors are stored in it instead of raised, so that they arrive unchanged.
        """
        started = time.perf_counter()
        odd: list[Any] = []
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # unusual cells are counted and reported once for all parts
                self._write(part, odd)
        except Exception as error:
            known = isinstance(error, (SnefyError, OSError))
            words = " ".join(str(error).split())
            text = words if known else f"{type(error).__name__}: {words}"
            return Outcome(part.number, part.rows, error=text or type(error).__name__, is_known=known)
        seconds = time.perf_counter() - started
        return Outcome(part.number, part.rows, seconds, os.getpid(), tuple(odd))

    def _write(self, part: Part, odd: list[Any]) -> None:
        """The part's file, whole or not at all."""
        from pyarrow import parquet

        with self.out.child(part.file_name).replaced() as file:
            writer = None
            try:
                for table in self._tables(part, odd):
                    writer = writer or parquet.ParquetWriter(file, table.schema)
                    writer.write_table(table)
                assert writer is not None  # no part is empty
                writer.add_key_value_metadata({STAMP: part.stamp(self.digest).encode()})
            finally:
                if writer is not None:
                    writer.close()

    def _tables(self, part: Part, odd: list[Any]) -> Iterator[Any]:
        """Answers to a part's rows, some at a time."""
        import pyarrow

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
                odd.extend(self.model.columns_.odd_cells(X))
            try:
                columns = prediction_columns(self.model, X, self.intervals)
            except InputError as error:
                rows = f"rows {first + 1} to {first + batch.num_rows}"
                raise InputError(f"{part.source.name}, {rows}: {error}") from None
            kept = {name: batch.column(name) for name in self.work.keep}
            yield pyarrow.table({**kept, **{name: pyarrow.array(values) for name, values in columns.items()}})
