"""The engine on a Ray cluster: a pool of actors that hold the model; Ray restarts those that die."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from snefy_ldl.apps.cluster.base import Engine, EngineError
from snefy_ldl.apps.cluster.parts import Part, StoragePath
from snefy_ldl.apps.cluster.work import Outcome, PartWorker, Predictions

__all__ = ["PATIENCE", "RayEngine"]

#: Fraction of the processors that all workers together may use; the rest is for Ray itself.
MOST_CPUS = 0.9
#: Bytes of the object store of a cluster that is started here: rows never pass through it.
STORE_BYTES = 256 << 20
#: Seconds within which a cluster must accept a connection.
CONNECT_SECONDS = 10.0


def import_ray() -> Any:
    """The module ``ray``.

    Returns:
        The module.

    Raises:
        ImportError: it is not installed; the message says how to.
    """
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # workers without a GPU keep their environment
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # errors that matter are raised here in one line
    try:
        import ray
    except ImportError:
        raise ImportError("the engine ray needs Ray: pip install 'snefy-ldl[ray]'") from None
    return ray


@contextmanager
def connected(address: str | None = None, workers: int | None = None) -> Iterator[Any]:
    """Connect to a cluster for the duration of a ``with`` block.

    An existing connection is used and left open. Otherwise the cluster at the address is joined and the library's code
    is sent to it; without an address a cluster is started on this machine and stopped at the end.

    Args:
        address: of a cluster, as Ray takes it: ``"auto"`` or ``"10.0.0.1:6379"``; None starts one.
        workers: processors of a cluster that is started here; by default all of this machine.

    Yields:
        The module ``ray``.

    Raises:
        ImportError: Ray is not installed.
        EngineError: there is no cluster at the address.
    """
    ray = import_ray()
    if ray.is_initialized():
        yield ray
        return
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address is None:
        ray.init(
            num_cpus=workers or os.cpu_count() or 1,
            include_dashboard=False,
            object_store_memory=STORE_BYTES,
            **quiet,
        )
    else:
        package = str(Path(__file__).resolve().parents[2])  # workers need no disk that holds the library
        try:
            _check_reachable(address)
            ray.init(address=address, runtime_env={"py_modules": [package]}, **quiet)
        except (OSError, ValueError, RuntimeError) as error:
            words = " ".join(str(error).split())
            raise EngineError(f"no Ray cluster answers at {address} ({words}). Start one: ray start --head") from None
    try:
        yield ray
    finally:
        ray.shutdown()


def _check_reachable(address: str) -> None:
    """Raise at once if nothing listens at the address: Ray itself retries for minutes."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()


@dataclass(frozen=True)
class Allocation:
    """The resources of each worker.

    Args:
        workers: number of workers at a time.
        cpus: processors per worker, less than one.
        gpus: GPUs per worker; several workers may share one.
    """

    workers: int
    cpus: float
    gpus: float


def allocate_workers(total: dict[str, float], wanted: int | None = None, tasks: int | None = None) -> Allocation:
    """Divide a cluster among workers, leaving some of it for reading.

    Args:
        total: what the cluster has, as ``ray.cluster_resources()`` tells.
        wanted: number of workers; by default one per processor.
        tasks: number of tasks: more workers than tasks would be idle.

    Returns:
        The resources of each worker.

    Raises:
        EngineError: the cluster has no processor.

    Example:
        >>> allocate_workers({"CPU": 2.0})
        Allocation(workers=2, cpus=0.9, gpus=0.0)
        >>> allocate_workers({"CPU": 8.0, "GPU": 1.0}, wanted=4)
        Allocation(workers=4, cpus=0.9, gpus=0.25)
    """
    cpus, gpus = float(total.get("CPU", 0.0)), float(total.get("GPU", 0.0))
    if cpus <= 0.0:
        raise EngineError("the Ray cluster has no processor to work on: give its nodes some, ray start --num-cpus=...")
    workers = wanted or max(1, int(cpus))
    if tasks is not None:
        workers = max(1, min(workers, tasks))
    share = min(MOST_CPUS, MOST_CPUS * cpus / workers)
    return Allocation(workers, _round_down(share), _round_down(min(1.0, gpus / workers)) if gpus else 0.0)


def _round_down(share: float) -> float:
    """Ray counts in ten-thousandths; rounded up, the last worker would not fit."""
    return int(share * 10_000 + 1e-6) / 10_000


#: Seconds without a finished part after which a run fails.
PATIENCE = 600.0


class RayEngine(Engine):
    """Processes parts in actors of a Ray cluster.

    Each actor holds the model and reads, processes and writes whole parts, so no rows pass through Ray's object store.
    An actor that dies is restarted and repeats its part.

    Args:
        address: of a cluster; None starts one on this machine for the time of the work.
        workers: number of actors; by default one per processor of the cluster.
        patience: seconds without a finished part after which the run fails.

    Example:
        >>> RayEngine(address="auto", workers=8).workers
        8
    """

    def __init__(self, address: str | None = None, workers: int | None = None, patience: float = PATIENCE) -> None:
        self.address, self.workers, self.patience = address, workers, patience

    def outcomes(self, work: Predictions, parts: list[Part], out: StoragePath) -> Iterator[Outcome]:
        """Process parts; see :meth:`Engine.outcomes`."""
        with connected(self.address, self.workers) as ray:
            from ray.util import ActorPool

            allocation = allocate_workers(ray.cluster_resources(), self.workers, len(parts))
            # an actor that dies is restarted and repeats its part
            resources = {"num_cpus": allocation.cpus, "num_gpus": allocation.gpus}
            actor = ray.remote(**resources, max_restarts=-1, max_task_retries=-1)(PartActor)
            sent = ray.put(work)
            pool = ActorPool([actor.remote(sent, out) for _ in range(allocation.workers)])
            for part in parts:
                pool.submit(lambda actor, part: actor.answer.remote(part), part)
            for left in range(len(parts), 0, -1):
                try:
                    yield pool.get_next_unordered(timeout=self.patience)
                except TimeoutError:
                    raise EngineError(_stuck(ray, allocation, left, self.patience)) from None
                except ray.exceptions.RayError as error:
                    words = str(error).strip().splitlines() or [type(error).__name__]
                    raise EngineError(f"Ray gave up: {words[-1]} (parts that were finished are kept)") from error


class PartActor:
    """A worker of a Ray cluster.

    Args:
        work: what to compute.
        out: folder for the output files.
    """

    def __init__(self, work: Predictions, out: StoragePath) -> None:
        import torch

        torch.set_num_threads(1)  # there are as many workers as cores: more threads would only compete
        self._worker = PartWorker(work, out)

    def answer(self, part: Part) -> Outcome:
        """Process a part.

        Args:
            part: the part.

        Returns:
            The outcome.
        """
        return self._worker(part)


def _stuck(ray: Any, allocation: Allocation, left: int, patience: float) -> str:
    """An error message with what the cluster reports about its resources."""
    total, free = ray.cluster_resources(), ray.available_resources()
    return (
        f"no part was finished for {patience:g} s and {left} are left: {allocation.workers} workers of "
        f"{allocation.cpus:g} processors each on a cluster of {total.get('CPU', 0.0):g}, of which "
        f"{free.get('CPU', 0.0):g} are free. "
        "Parts that were finished are kept: run it again with fewer workers, or more patience."
    )
