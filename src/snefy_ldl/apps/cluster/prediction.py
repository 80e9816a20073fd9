"""Predictions for Parquet files by Ray Data: the model is sent to the workers as files."""

from __future__ import annotations

import logging
import re
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snefy_ldl.apps.cluster.parquet import ParquetTable, find_parquet
from snefy_ldl.apps.cluster.ray import EngineError, allocate_workers, connected
from snefy_ldl.apps.rows import calibrated_intervals, model_rows, prediction_columns
from snefy_ldl.errors import InputError, ModelFileError

if TYPE_CHECKING:
    from snefy_ldl.snefy import SnefyLDL

__all__ = ["ModelFiles", "Predictor", "predict_on_ray"]

#: Rows answered at a time.
BATCH_ROWS = 1 << 15
#: Rows of an output file, at least, if there are as many.
FILE_ROWS = 1 << 17
#: Processors of each worker, of each task that reads and of each that writes: less than one, so that all fit.
WORKER_CPUS, READING_CPUS = 0.5, 0.25


@dataclass(frozen=True)
class ModelFiles:
    """The files of a saved model, its calibration among them.

    Args:
        files: content by name.
        device: where the model is put; ``"auto"`` is a GPU if the worker has one.

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
        """Read the files of a folder.

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

    def load(self) -> tuple[SnefyLDL, dict[str, Any] | None]:
        """The model, and its calibration if it has one.

        Returns:
            A fitted model, and what :func:`snefy_ldl.persistence.load_calibration` gives.

        Raises:
            ModelFileError: a file is missing or damaged, or the model needs a backbone, whose code is not saved.
        """
        from snefy_ldl.persistence import (
            load,  # loads torch
            load_calibration,
        )

        with tempfile.TemporaryDirectory() as place:
            self.write(Path(place))
            return load(place, device=None if self.device == "auto" else self.device), load_calibration(Path(place))

    def write(self, folder: Path) -> None:
        """Put the files into a folder.

        Args:
            folder: created if it is missing.
        """
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in self.files:
            (folder / name).write_bytes(content)


class Predictor:
    """Label distributions, and intervals if a level is given, of tables of rows; Ray Data makes one per worker.

    Args:
        model: the files of the model.
        features: columns that the model sees, in its order.
        keep: columns that are copied as they are.
        interval: level of the intervals; None for none.
        uncalibrated: whether intervals are the model's own, even if its folder holds a calibration.

    Example:
        >>> import pyarrow
        >>> from snefy_ldl import SnefyLDL
        >>> X, D = [[0.0], [1.0], [2.0], [3.0]] * 5, [[0.4, 0.6]] * 20
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = SnefyLDL(epochs=1, guides=None, random_state=0).fit(X, D).save(folder)
        ...     predictor = Predictor(ModelFiles.read(Path(folder)), ["depth"], interval=0.9)
        >>> predictor(pyarrow.table({"depth": [0.5, 1.5]})).num_columns  # two labels, and both ends of their intervals
        6
    """

    def __init__(
        self,
        model: ModelFiles,
        features: Sequence[str],
        keep: Sequence[str] = (),
        interval: float | None = None,
        uncalibrated: bool = False,
    ) -> None:
        import torch

        torch.set_num_threads(1)  # there are as many workers as cores: more threads would only compete
        self.features, self.keep = list(features), list(keep)
        self.model, calibration = model.load()
        self.intervals = None
        if interval is not None:
            calibrated = None if uncalibrated else calibrated_intervals(self.model, calibration, interval)
            self.intervals = calibrated or (lambda X: self.model.predict_interval(X, interval))

    def __call__(self, table: Any) -> Any:
        """Predict the rows of a ``pyarrow.Table`` that has a column ``path`` if it comes from a file.

        Args:
            table: the rows.

        Returns:
            A ``pyarrow.Table`` of the kept columns and the predictions.

        Raises:
            InputError: a cell breaks a rule; the message names the file, the column and the rule.
        """
        import pyarrow

        from snefy_ldl.datasets.table_files import check_finite  # loads pandas

        frame = table.select(self.features).to_pandas()
        file = Path(table.column("path")[0].as_py()).name if "path" in table.column_names else "table"
        where = f"{file}, in a batch of {len(frame)} rows, row"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # cells that the fit has not seen: a note per batch would be too many
            check_finite(frame, where, 1)
            columns = prediction_columns(self.model, model_rows(self.model, frame, self.features), self.intervals)
        kept = {name: table.column(name) for name in self.keep}
        return pyarrow.table({**kept, **{name: pyarrow.array(values) for name, values in columns.items()}})


def predict_on_ray(
    predictor: dict[str, Any], table: ParquetTable, out: str, address: str | None = None, workers: int | None = None
) -> None:
    """Predict all rows of Parquet files on a Ray cluster, into a folder of Parquet files.

    Ray Data reads, predicts and writes; a worker that is lost is replaced, and its rows are predicted again. Sorted by
    name, the files that it writes hold the rows in the order of the input.

    Args:
        predictor: arguments of :class:`Predictor`, by name.
        table: the rows.
        out: folder, on this machine or in an object store; it must hold no Parquet files.
        address: of a cluster; None starts one on this machine for the time of the work.
        workers: number of workers; by default one per processor of the cluster.

    Raises:
        InputError: the data break a rule, or the folder holds Parquet files.
        EngineError: the cluster could not finish the work.
    """
    if find_parquet(out)[1]:
        raise InputError(f"{out} holds Parquet files already; name an empty folder for the predictions.")
    place = out if "://" in out else str(Path(out).absolute())
    with connected(address, workers) as ray:
        from ray import data as ray_data

        logging.getLogger("ray.data.exceptions").setLevel(logging.CRITICAL)  # errors are raised here
        allocation = allocate_workers(ray.cluster_resources(), workers, WORKER_CPUS)
        context = ray_data.DataContext.get_current()
        context.execution_options.preserve_order = True
        context.use_datasource_v2 = False  # it lists files on a whole processor, which may not be free
        light = {"num_cpus": READING_CPUS}
        try:
            rows = ray_data.read_parquet(
                table.files,
                filesystem=table.system,
                columns=list(dict.fromkeys([*predictor.get("keep", ()), *predictor["features"]])),
                include_paths=True,
                ray_remote_args=light,
            )
            rows.map_batches(
                Predictor,
                fn_constructor_kwargs=predictor,
                batch_format="pyarrow",
                batch_size=BATCH_ROWS,
                compute=ray_data.ActorPoolStrategy(size=allocation.workers),
                num_cpus=allocation.cpus,
                num_gpus=allocation.gpus,
            ).write_parquet(place, min_rows_per_file=FILE_ROWS, ray_remote_args=light)
        except ray.exceptions.RayError as error:
            raise translate(error) from error


def translate(error: BaseException) -> Exception:
    r"""An error of Ray's as one of ours: a rule that the data break, if a worker raised that, else what Ray says last.

    Args:
        error: that Ray raised; its text ends with the traceback of the worker.

    Returns:
        The exception to raise.

    Example:
        >>> translate(RuntimeError("Traceback ...\n  in f\nsnefy_ldl.errors.InputError: a.parquet: a is inf"))
        InputError('a.parquet: a is inf')
    """
    text = str(error).strip()
    if found := re.search(r"snefy_ldl\.errors\.\w+: (.+)", text):
        return InputError(found[1])
    return EngineError(f"Ray gave up: {(text.splitlines() or [type(error).__name__])[-1]}")
