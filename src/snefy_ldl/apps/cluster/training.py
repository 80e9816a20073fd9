"""Training on a Ray cluster: rows shared out among workers, gradients averaged at every step."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import torch

from snefy_ldl._internal.files import write_bytes
from snefy_ldl._internal.limits import STREAM_BYTES, STREAM_ROWS
from snefy_ldl._internal.random import seed_from
from snefy_ldl.apps.cluster.parquet import ParquetTable
from snefy_ldl.apps.cluster.prediction import ModelFiles
from snefy_ldl.apps.cluster.ray import EngineError, allocate_workers, connected
from snefy_ldl.datasets.streams import Stream
from snefy_ldl.errors import SnefyError, TrainingError
from snefy_ldl.snefy import SnefyLDL
from snefy_ldl.training.checkpoint import FILE_NAME
from snefy_ldl.training.policy import POLICY, Parameters, Settings
from snefy_ldl.training.stream import ProcessGroup, StreamFit

__all__ = ["ParquetRows", "RayTraining"]


@dataclass(frozen=True)
class ParquetRows:
    """Rows of Parquet files, which travel to workers as a description, not as rows.

    Each worker reads the row groups that hold its rows, and no others.

    Args:
        addresses: files and folders, on this machine or in an object store.
        labels: label columns.
        features: feature columns; all others where empty.
        counts: whether labels are votes.

    Example:
        >>> import pandas, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     frame = pandas.DataFrame({"x": range(7), "a": 0.5, "b": 0.5})
        ...     frame.to_parquet(f"{folder}/rows.parquet", row_group_size=2)
        ...     rows = ParquetRows((folder,), ("a", "b"))
        ...     [[list(chunk.X["x"]) for chunk in rows.shard(rank, 2).chunks()] for rank in range(2)]
        [[[0, 1, 2]], [[3, 4, 5]]]
    """

    addresses: tuple[str, ...]
    labels: tuple[str, ...]
    features: tuple[str, ...] = ()
    counts: bool = False

    def stream(self) -> Stream:
        """All rows.

        Returns:
            A stream of pairs of x and labels.
        """
        return self.shard(0, 1)

    def shard(self, rank: int, workers: int) -> Stream:
        """The rows of one worker.

        Every worker has the same number of rows in blocks of the same sizes, or some would wait for gradients that
        never come; up to ``workers - 1`` rows are left out for that.

        Args:
            rank: number of the worker.
            workers: how many there are.

        Returns:
            A stream of its rows.

        Raises:
            InputError: the files lack a column.
        """
        table = ParquetTable(self.addresses)
        names = list(self.features) or [name for name in table.columns if name not in self.labels]
        table.need([*names, *self.labels], "features and labels")
        size = table.n_rows // workers
        first = rank * size

        def blocks() -> Iterator[tuple[Any, Any]]:
            for part in self._tables(table, [*names, *self.labels], first, first + size):
                yield part.select(names).to_pandas(), part.select(list(self.labels)).to_pandas()

        return Stream(blocks, size, self.counts)

    def _tables(self, table: ParquetTable, columns: list[str], first: int, last: int) -> Iterator[Any]:
        """Rows from one number to before another, in tables of one size: where row groups end does not matter."""
        import pyarrow

        step = max(256, min(STREAM_ROWS, STREAM_BYTES // (8 * len(columns))))
        held: list[Any] = []
        for batch in table.batches(columns, first, last, step):
            held.append(batch)
            while sum(one.num_rows for one in held) >= step:
                whole = pyarrow.Table.from_batches(held)
                yield whole.slice(0, step)
                held = whole.slice(step).to_batches()
        if held:
            yield pyarrow.Table.from_batches(held)


#: Rows per step of all workers together, and the number of rows from which it is taken: half as many exchanges of
#: gradients as with the largest batch of one process, and a likelihood 0.014 nat higher on two million synthetic rows.
CLUSTER_BATCH, CLUSTER_ROWS = 4096, 2_000_000
#: How often workers may be lost before a fit fails.
MOST_LOSSES = 20
#: Seconds between two progress checks, and seconds without progress after which a fit fails.
LOOK_SECONDS, PATIENCE = 0.5, 1800.0


class Coordinator:
    """Holds what must survive the loss of workers: the last checkpoint, the fitted model, and a permanent error.

    It runs on the machine where the fit was started, so workers need no shared disk.

    Args:
        folder: for the checkpoint, so that a fit can resume after the whole cluster is lost; None keeps it in memory.

    Example:
        >>> coordinator = Coordinator()
        >>> coordinator.start(0, 1234)[1] is None  # nothing was kept before
        True
    """

    def __init__(self, folder: str | None = None) -> None:
        self._path = None if folder is None else Path(folder) / FILE_NAME
        exists = self._path is not None and self._path.exists()
        self._checkpoint = self._path.read_bytes() if self._path is not None and exists else None
        self._model: ModelFiles | None = None
        self._error = ""
        self._epoch, self._pids = 0, dict[int, int]()

    def start(self, rank: int, pid: int) -> tuple[str, bytes | None]:
        """Register a worker that starts or restarts.

        Args:
            rank: its number.
            pid: its process.

        Returns:
            The permanent error of another worker, or an empty string; and the checkpoint to resume from, or None.
        """
        self._pids[rank] = pid
        return self._error, self._checkpoint

    def keep(self, epoch: int, checkpoint: bytes) -> None:
        """Store the checkpoint of a finished epoch.

        Args:
            epoch: number of finished epochs.
            checkpoint: from which training can resume.
        """
        self._epoch, self._checkpoint = epoch, checkpoint
        if self._path is not None:
            write_bytes(self._path, checkpoint)

    def finish(self, model: ModelFiles) -> None:
        """Store the fitted model.

        Args:
            model: its files.
        """
        self._model = model

    def fail(self, error: str) -> None:
        """Store a permanent error, which no retry can resolve.

        Args:
            error: the message.
        """
        self._error = self._error or error

    def progress(self) -> tuple[int, list[int]]:
        """The progress of the fit.

        Returns:
            Number of finished epochs, and the process ids of the workers.
        """
        return self._epoch, list(self._pids.values())

    def result(self) -> tuple[str, ModelFiles | None]:
        """The outcome of the fit.

        Returns:
            The error, or an empty string; and the files of the model.
        """
        return self._error, self._model


@dataclass(frozen=True)
class RayTraining:
    """Trains one model on several workers of a Ray cluster, each with its part of the rows.

    A step is taken on the mean of all gradients: ``batch_size`` rows, shared out among the workers, so their number
    does not change how a model learns. gloo carries gradients between processors, nccl between GPUs. A lost
    worker is replaced, and all workers resume from the last epoch.

    Args:
        workers: how many.
        address: of a cluster; None starts one on this machine for the time of the fit.
        patience: seconds without an epoch after which the fit fails.
        on_epoch: called with the number of finished epochs and the workers' process ids, whenever these change.

    Example:
        >>> RayTraining(workers=4, address="auto").workers
        4
    """

    workers: int = 2
    address: str | None = None
    patience: float = PATIENCE
    on_epoch: Callable[[int, list[int]], None] | None = None

    def fit(self, model: SnefyLDL, rows: ParquetRows) -> SnefyLDL:
        """Fit a model to rows that workers read as streams.

        Args:
            model: with its settings; fitted in place. Its ``checkpoint_dir`` is a folder on this machine.
            rows: what to train on.

        Returns:
            The model itself, on this machine.

        Raises:
            InputError: the rows break a rule.
            TrainingError: losses stay infinite after several repairs.
            EngineError: no epoch finishes within ``patience``, or workers are lost repeatedly.
        """
        settings = model.settings()
        fixed = replace(settings, random_state=seed_from(settings.random_state), checkpoint_dir=None, verbose=0)
        folder = None if settings.checkpoint_dir is None else str(Path(settings.checkpoint_dir).absolute())
        with connected(self.address, self.workers) as ray:
            error, files = self._train(ray, {"settings": fixed, "rows": rows, "columns": model.columns}, folder)
        if error:
            raise TrainingError(error)
        if files is None:
            raise EngineError("the workers ended without a model; run it again, with --checkpoint it goes on.")
        with tempfile.TemporaryDirectory() as place:
            files.write(Path(place))
            return model.adopt(SnefyLDL.load(place, settings.backbone).model_)

    def _train(self, ray: Any, task: dict[str, Any], folder: str | None) -> tuple[str, ModelFiles | None]:
        """Run Ray Train in a thread and watch its progress."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        coordinator = ray.remote(num_cpus=0, scheduling_strategy=here)(Coordinator).remote(folder)
        ended: list[BaseException | None] = []

        def work() -> None:
            try:
                _run_trainer(self.workers, {**task, "coordinator": coordinator})
                ended.append(None)
            except BaseException as error:  # the thread that waits must learn of anything
                ended.append(error)

        threading.Thread(target=work, daemon=True).start()
        before, moved = (0, list[int]()), time.monotonic()
        while not ended:
            time.sleep(LOOK_SECONDS)
            state = ray.get(coordinator.progress.remote())
            if state != before:
                before, moved = state, time.monotonic()
                if self.on_epoch is not None:
                    self.on_epoch(*state)
            if time.monotonic() - moved > self.patience:
                raise EngineError(
                    f"no epoch was finished for {self.patience:g} s; {state[0]} are done, by {len(state[1])} of "
                    f"{self.workers} workers, on a cluster of {ray.cluster_resources().get('CPU', 0.0):g} processors."
                )
        error, model = ray.get(coordinator.result.remote())
        if ended[0] is not None and not error:
            words = str(ended[0]).strip().splitlines() or [type(ended[0]).__name__]
            raise EngineError(f"Ray Train gave up: {words[-1]}") from ended[0]
        return error, model


def _run_trainer(workers: int, task: dict[str, Any]) -> None:
    """Ray Train from its start to its end."""
    import ray
    import ray.train
    from ray.train.torch import TorchTrainer

    total = ray.cluster_resources()
    allocation = allocate_workers(total, workers)
    use_gpu = total.get("GPU", 0.0) >= workers
    with tempfile.TemporaryDirectory() as place:  # for Ray's records; checkpoints go to the coordinator
        TorchTrainer(
            train_worker,
            train_loop_config=task,
            scaling_config=ray.train.ScalingConfig(
                num_workers=workers,
                use_gpu=use_gpu,
                resources_per_worker={"CPU": allocation.cpus, **({"GPU": 1} if use_gpu else {})},
                placement_strategy="SPREAD",
            ),
            run_config=ray.train.RunConfig(
                name="snefy-ldl", storage_path=place, failure_config=ray.train.FailureConfig(max_failures=MOST_LOSSES)
            ),
        ).fit()


def train_worker(task: dict[str, Any]) -> None:
    """Train on one worker's rows, from the last checkpoint to the last epoch.

    Args:
        task: settings, rows, columns and the coordinator.
    """
    import ray
    import ray.train

    torch.set_num_threads(1)
    context, coordinator = ray.train.get_context(), task["coordinator"]
    rank = context.get_world_rank()
    error, checkpoint = ray.get(coordinator.start.remote(rank, os.getpid()))
    if error:
        return
    with tempfile.TemporaryDirectory() as place:
        if checkpoint is not None:
            (Path(place) / FILE_NAME).write_bytes(checkpoint)
        try:
            _train_epochs(task, rank, context.get_world_size(), Path(place))
        except SnefyError as trouble:
            ray.get(coordinator.fail.remote(" ".join(str(trouble).split())))
            raise  # ends the others, too, which wait for this one's gradients


def worker_batch(settings: Settings, n_rows: int | None, workers: int) -> int | Literal["auto"]:
    """Rows per step of one worker: its part of the step that all workers take together.

    By default that is the step of a fit on one machine; from two million rows on it is twice as long, so that less of
    the time goes into exchanging gradients.

    Args:
        settings: whose ``batch_size`` is that of all workers together.
        n_rows: how many rows there are; None if unknown.
        workers: how many there are.

    Returns:
        Rows per step; "auto" where the number of rows is not known.

    Example:
        >>> from snefy_ldl import SnefyLDL
        >>> worker_batch(SnefyLDL().settings(), 2_000_000, 2)
        2048
    """
    size = settings.batch_size
    if size == "auto":
        if n_rows is None:
            return "auto"
        size = next((size for size, limit in POLICY.batch_limits if n_rows < limit), POLICY.largest_batch)
        size = CLUSTER_BATCH if n_rows >= CLUSTER_ROWS else size
    return max(1, int(size) // workers)


def _train_epochs(task: dict[str, Any], rank: int, workers: int, place: Path) -> None:
    import ray
    import ray.train

    rows, coordinator = task["rows"], task["coordinator"]
    stream = rows.stream()
    settings = replace(task["settings"], checkpoint_dir=place)
    settings = replace(settings, batch_size=worker_batch(settings, stream.n_rows, workers))
    exchange = ProcessGroup() if workers > 1 else None
    fit = StreamFit(settings, stream, task["columns"], exchange, rows.shard(rank, workers))
    while not fit.finished:
        fit.epoch()
        if rank == 0:
            ray.get(coordinator.keep.remote(fit.run.next_epoch, (place / FILE_NAME).read_bytes()))
        ray.train.report({"epoch": fit.run.next_epoch, "loss": fit.run.history[-1]["loss"]})
    if rank == 0:
        plain = replace(task["settings"], checkpoint_dir=None)
        model = SnefyLDL(**{field.name: getattr(plain, field.name) for field in fields(Parameters)})
        model.adopt(fit.conclude()).save(place / "model")
        ray.get(coordinator.finish.remote(ModelFiles.read(place / "model")))
