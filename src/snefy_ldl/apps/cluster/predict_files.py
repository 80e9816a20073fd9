"""Predictions for Parquet files by Ray Data, which sends the fitted model to the workers."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from snefy_ldl.apps.cluster.parquet import ParquetTable, find_parquet
from snefy_ldl.apps.cluster.ray import connected, count_workers, translate
from snefy_ldl.apps.table_rows import feature_names, interval_maker, model_rows, prediction_columns
from snefy_ldl.errors import InputError

__all__ = ["Predictor", "predict_on_ray"]

#: Rows answered at a time.
BATCH_ROWS = 1 << 15
#: Rows of an output file, at least, if there are as many.
FILE_ROWS = 1 << 17
#: Processors of each worker, of each task that reads and of each that writes: less than one, so that all fit.
WORKER_CPUS, READING_CPUS = 0.5, 0.25


class Predictor:
    """Label distributions, and intervals if a level is given, of tables of rows; Ray Data makes one per worker.

    Args:
        model: fitted.
        features: columns that the model sees, in its order.
        keep: columns that are copied as they are.
        interval: level of the intervals; None for none.
        calibrated: its conformal intervals; None for the model's own.

    Example:
        >>> import pyarrow
        >>> from snefy_ldl import SnefyLDL
        >>> X, D = [[0.0], [1.0], [2.0], [3.0]] * 5, [[0.4, 0.6]] * 20
        >>> predictor = Predictor(SnefyLDL(epochs=1, guides=None, random_state=0).fit(X, D), ["depth"], interval=0.9)
        >>> predictor(pyarrow.table({"depth": [0.5, 1.5]})).num_columns  # two labels, and both ends of their intervals
        6
    """

    def __init__(
        self,
        model: Any,
        features: Sequence[str],
        keep: Sequence[str] = (),
        interval: float | None = None,
        calibrated: Any = None,
    ) -> None:
        import torch

        torch.set_num_threads(1)  # there are as many workers as cores: more threads would only compete
        self.model, self.features, self.keep = model, list(features), list(keep)
        self.intervals = None if interval is None else interval_maker(model, calibrated, interval)

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
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # cells that the fit has not seen: a note per batch would be too many
            check_finite(frame, f"{file}, in a batch of {len(frame)} rows, row", 1)
            columns = prediction_columns(self.model, model_rows(self.model, frame, self.features), self.intervals)
        kept = {name: table.column(name) for name in self.keep}
        return pyarrow.table({**kept, **{name: pyarrow.array(values) for name, values in columns.items()}})


def predict_on_ray(
    model: Any,
    addresses: Sequence[str],
    out: str,
    *,
    keep: Sequence[str] = (),
    interval: float | None = None,
    calibrated: Any = None,
    address: str | None = None,
    workers: int | None = None,
) -> None:
    """Predict all rows of Parquet files on a Ray cluster, into a folder of Parquet files.

    Ray Data reads, predicts and writes; a worker that is lost is replaced, and its rows are predicted again. Sorted by
    name, the files that it writes hold the rows in the order of the input, as shares of 1.

    Args:
        model: fitted.
        addresses: Parquet files and folders of them (:func:`~snefy_ldl.apps.cluster.parquet.find_parquet`).
        out: folder, on this machine or in an object store; it must hold no Parquet files.
        keep: columns that are copied as they are.
        interval: level of the intervals; None for none.
        calibrated: its conformal intervals; None for the model's own.
        address: of a cluster; None starts one on this machine for the time of the work.
        workers: number of workers; by default one per processor of the cluster.

    Raises:
        InputError: the data break a rule, or the folder holds Parquet files.
        EngineError: the cluster could not finish the work.
    """
    table = ParquetTable(addresses)
    table.need(list(keep), "keep")
    features = feature_names(model, cast(Any, table), tuple(keep))
    work = {"model": model, "features": features, "keep": keep, "interval": interval, "calibrated": calibrated}
    if find_parquet(out)[1]:
        raise InputError(f"{out} holds Parquet files already; name an empty folder for the predictions.")
    with connected(address, workers) as ray:
        from ray import data as ray_data

        logging.getLogger("ray.data.exceptions").setLevel(logging.CRITICAL)  # errors are raised here
        context = ray_data.DataContext.get_current()
        context.execution_options.preserve_order = True
        context.use_datasource_v2 = False  # it lists files on a whole processor, which may not be free
        try:
            rows = ray_data.read_parquet(
                table.files,
                filesystem=table.system,
                columns=list(dict.fromkeys([*keep, *features])),
                include_paths=True,
                num_cpus=READING_CPUS,
            )
            rows.map_batches(
                Predictor,
                fn_constructor_kwargs=work,
                batch_format="pyarrow",
                batch_size=BATCH_ROWS,
                compute=ray_data.ActorPoolStrategy(size=count_workers(ray.cluster_resources(), workers)),
                num_cpus=WORKER_CPUS,
            ).write_parquet(
                out if "://" in out else str(Path(out).absolute()),
                min_rows_per_file=FILE_ROWS,
                ray_remote_args={"num_cpus": READING_CPUS},
            )
        except ray.exceptions.RayError as error:
            raise translate(error) from error
