"""Training on a Ray cluster: rows shared out among workers, gradients averaged at every step."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed

from snefy_ldl._internal.memory import STREAM_BYTES, STREAM_ROWS
from snefy_ldl._internal.random import seed_from
from snefy_ldl.apps.cluster.parquet import ParquetTable
from snefy_ldl.apps.cluster.ray import connected, count_workers, translate
from snefy_ldl.datasets.streams import Stream
from snefy_ldl.snefy import SnefyLDL
from snefy_ldl.training.policy import POLICY, Parameters, Settings
from snefy_ldl.training.stream_fit import StreamFit

__all__ = ["ParquetRows", "RayTraining"]


@dataclass(frozen=True)
class ParquetRows:
    """Rows of Parquet files, which travel to workers as a description, not as rows.

    Each worker reads the row groups that hold its rows, and no others.

    Args:
        addresses: files and folders, on this machine or in an object store.
        labels: label columns.
        features: feature columns; all others if empty.
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
#: Processors of each worker: less than one, so that Ray itself fits.
WORKER_CPUS = 0.9
#: Folder of the fitted model in the last checkpoint.
MODEL = "model"


@dataclass(frozen=True)
class RayTraining:
    """Trains a model on a Ray cluster with Ray Train: every worker reads its own rows.

    Gradients are averaged at every step, whose rows are those of all workers together, so their number
    does not change how a model learns. gloo carries gradients between processors, nccl between GPUs. A lost
    worker is replaced, and all workers resume from the last epoch.

    Args:
        workers: how many.
        address: of a cluster; None starts one on this machine for the time of the fit.
        replacements: how often workers may be lost before the fit fails.

    Example:
        >>> RayTraining(workers=4, address="auto").workers
        4
    """

    workers: int = 2
    address: str | None = None
    replacements: int = 3

    def fit(self, model: SnefyLDL, rows: ParquetRows) -> SnefyLDL:
        """Fit a model to rows that workers read as streams.

        Args:
            model: with its settings; fitted in place. Its ``checkpoint_dir`` is a folder that all machines of a
                cluster share, and which a cluster of several machines needs; a fit that was stopped continues from it.
            rows: what to train on.

        Returns:
            The model itself, on this machine.

        Raises:
            InputError: the rows break a rule.
            EngineError: workers are lost repeatedly.
        """
        settings = model.settings()
        fixed = replace(settings, random_state=seed_from(settings.random_state), checkpoint_dir=None)
        task = {"settings": fixed, "rows": rows, "columns": model.columns}
        kept = settings.checkpoint_dir
        with (
            connected(self.address, self.workers, settings.verbose > 0) as ray,
            tempfile.TemporaryDirectory() as place,
        ):
            checkpoint = self._train(ray, task, place if kept is None else str(Path(kept).absolute()))
            with checkpoint.as_directory() as folder:
                return model.adopt(SnefyLDL.load(Path(folder) / MODEL, settings.backbone).model_)

    def _train(self, ray: Any, task: dict[str, Any], storage: str) -> Any:
        """Run Ray Train; returns the last checkpoint."""
        from ray import train
        from ray.train.torch import TorchTrainer

        total = ray.cluster_resources()
        use_gpu = total.get("GPU", 0.0) >= self.workers
        trainer = TorchTrainer(
            train_worker,
            train_loop_config=task,
            scaling_config=train.ScalingConfig(
                num_workers=count_workers(total, self.workers),
                use_gpu=use_gpu,
                resources_per_worker={"CPU": WORKER_CPUS, **({"GPU": 1} if use_gpu else {})},
                placement_strategy="SPREAD",
            ),
            run_config=train.RunConfig(
                name="snefy-ldl",
                storage_path=storage,
                failure_config=train.FailureConfig(max_failures=self.replacements),
                checkpoint_config=train.CheckpointConfig(num_to_keep=1),
            ),
        )
        try:
            return trainer.fit().checkpoint
        except Exception as error:
            raise translate(error) from error


class ProcessGroup:
    """The workers of torch's process group, which must be there: gloo between processors, nccl between GPUs.

    Attributes:
        n_workers: how many there are.
    """

    def __init__(self) -> None:
        self.n_workers = distributed.get_world_size()

    @torch.no_grad()
    def average(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors by their means over all workers, who call this at the same place; one message per kind."""
        kinds: dict[torch.dtype, list[Tensor]] = {}
        for tensor in tensors:
            kinds.setdefault(tensor.dtype, []).append(tensor)
        for group in kinds.values():
            message = torch.cat([tensor.flatten() for tensor in group])
            distributed.all_reduce(message)
            message /= self.n_workers
            parts = message.split([tensor.numel() for tensor in group])
            torch._foreach_copy_(group, [part.view(tensor.shape) for part, tensor in zip(parts, group)])


def train_worker(task: dict[str, Any]) -> None:
    """Train on one worker's rows, from the last checkpoint to the last epoch.

    Args:
        task: settings, rows and columns.
    """
    from ray import train

    torch.set_num_threads(1)
    context, kept = train.get_context(), train.get_checkpoint()
    rank, workers = context.get_world_rank(), context.get_world_size()
    with tempfile.TemporaryDirectory() as place:
        if kept is not None:
            kept.to_directory(place)
        stream, settings = task["rows"].stream(), task["settings"]
        size = worker_batch(settings, stream.n_rows or 0, workers)
        exchange = ProcessGroup() if workers > 1 else None
        part = replace(settings, checkpoint_dir=place, batch_size=size)
        fit = StreamFit(part, stream, task["columns"], exchange, task["rows"].shard(rank, workers))
        while not fit.finished:
            fit.epoch()
            done = {"epoch": fit.run.next_epoch, "loss": fit.run.history[-1]["loss"]}
            if rank == 0 and settings.verbose:
                print("epoch {epoch}: loss {loss:.4f}".format(**done), flush=True)
            if rank == 0 and fit.finished:
                model = SnefyLDL(**{field.name: getattr(settings, field.name) for field in fields(Parameters)})
                model.adopt(fit.model()).save(Path(place) / MODEL)
            train.report(done, checkpoint=train.Checkpoint.from_directory(place) if rank == 0 else None)


def worker_batch(settings: Settings, n_rows: int, workers: int) -> int:
    """Rows per step of one worker: its part of the step that all workers take together.

    By default that is the step of a fit on one machine; from two million rows on it is twice as long, so that less of
    the time goes into exchanging gradients.

    Args:
        settings: whose ``batch_size`` is that of all workers together.
        n_rows: how many rows there are.
        workers: how many there are.

    Returns:
        Rows per step.

    Example:
        >>> from snefy_ldl import SnefyLDL
        >>> worker_batch(SnefyLDL().settings(), 2_000_000, 2)
        2048
    """
    size = settings.batch_size
    if size == "auto":
        size = next((size for size, limit in POLICY.batch_limits if n_rows < limit), POLICY.largest_batch)
        size = CLUSTER_BATCH if n_rows >= CLUSTER_ROWS else size
    return max(1, int(size) // workers)
