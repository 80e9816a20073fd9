"""The engine on a Ray cluster: Ray Data hands parts to actors that hold the model, and starts anew those that die."""

from __future__ import annotations

import logging
import os
import queue
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from snefy_ldl.cluster.base import Engine, EngineError
from snefy_ldl.cluster.parts import Part, Place
from snefy_ldl.cluster.work import Outcome, PartWorker, Work

__all__ = ["PATIENCE", "RayEngine"]

#: Part of the processors that workers may take together: what is left is for Ray itself and for those who read.
#: A pool that takes every processor can wait for ever for readers that never start.
MOST_CPUS = 0.9
#: Bytes of the object store of a cluster that is started here: rows never pass through it.
STORE_BYTES = 256 << 20
#: Seconds in which the cluster at an address must take a call.
KNOCK_SECONDS = 10.0


def import_ray() -> Any:
    """The module ``ray``.

    Returns:
        The module.

    Raises:
        ImportError: it is not installed; the message says how to.
    """
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # workers without a GPU keep their environment
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # what matters is raised here, and said in one line
    try:
        import ray
    except ImportError:
        raise ImportError("the engine ray needs Ray: pip install 'snefy-ldl[ray]'") from None
    return ray


@contextmanager
def connected(address: str | None = None, workers: int | None = None) -> Iterator[Any]:
    """Be connected to a cluster.

    A connection that is there already is used and left as it is. Otherwise the cluster at the address is joined, and
    the library's code is sent to it; without an address a cluster is started on this machine, and stopped at the end.

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
        package = str(Path(__file__).resolve().parents[1])  # workers need no disk that holds the library
        try:
            _knock(address)
            ray.init(address=address, runtime_env={"py_modules": [package]}, **quiet)
        except (OSError, ValueError, RuntimeError) as error:
            words = " ".join(str(error).split())
            raise EngineError(f"no Ray cluster answers at {address} ({words}). Start one: ray start --head") from None
    try:
        yield ray
    finally:
        ray.shutdown()


def _knock(address: str) -> None:
    """Raise at once where nobody listens: Ray itself tries for minutes."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=KNOCK_SECONDS).close()


@dataclass(frozen=True)
class Shares:
    """How a cluster is shared out.

    Args:
        workers: how many work at one time.
        cpus: that each takes, less than one.
        gpus: that each takes; several workers may share one.
    """

    workers: int
    cpus: float
    gpus: float


def share_out(total: dict[str, float], wanted: int | None = None, tasks: int | None = None) -> Shares:
    """Share a cluster out, so that there is always some of it left for reading.

    Args:
        total: what the cluster has, as ``ray.cluster_resources()`` tells.
        wanted: workers; by default one a processor.
        tasks: how many there are to do: more workers than that would only wait.

    Returns:
        The shares.

    Raises:
        EngineError: the cluster has no processor.

    Example:
        >>> share_out({"CPU": 2.0})
        Shares(workers=2, cpus=0.9, gpus=0.0)
        >>> share_out({"CPU": 8.0, "GPU": 1.0}, wanted=4)
        Shares(workers=4, cpus=0.9, gpus=0.25)
    """
    cpus, gpus = float(total.get("CPU", 0.0)), float(total.get("GPU", 0.0))
    if cpus <= 0.0:
        raise EngineError("the Ray cluster has no processor to work on: give its nodes some, ray start --num-cpus=...")
    workers = wanted or max(1, int(cpus))
    if tasks is not None:
        workers = max(1, min(workers, tasks))
    share = min(MOST_CPUS, MOST_CPUS * cpus / workers)
    return Shares(workers, _round_down(share), _round_down(min(1.0, gpus / workers)) if gpus else 0.0)


def _round_down(share: float) -> float:
    """Ray counts in ten-thousandths; rounded up, the last worker would find no place."""
    return int(share * 10_000 + 1e-6) / 10_000


#: Seconds without a finished part after which a run ends.
PATIENCE = 600.0


class RayEngine(Engine):
    """Works on parts in actors of a Ray cluster.

    Each actor holds the model and reads, answers and writes whole parts, so no rows pass through Ray's object store
    and no reader waits for a processor that an actor holds. An actor that dies is started anew and does its part again.

    Args:
        address: of a cluster; None starts one on this machine for the time of the work.
        workers: actors; by default one a processor of the cluster.
        patience: seconds without a finished part after which the run ends with a sentence.

    Example:
        >>> RayEngine(address="auto", workers=8).workers
        8
    """

    def __init__(self, address: str | None = None, workers: int | None = None, patience: float = PATIENCE) -> None:
        self.address, self.workers, self.patience = address, workers, patience

    def outcomes(self, work: Work, parts: list[Part], out: Place) -> Iterator[Outcome]:
        """Work on parts; see :meth:`Engine.outcomes`."""
        with connected(self.address, self.workers) as ray:
            _quiet()
            shares = share_out(ray.cluster_resources(), self.workers, len(parts))
            answers: queue.Queue[Any] = queue.Queue()
            data = _data_set(work, parts, out, shares)
            thread = threading.Thread(target=_drain, args=(data, answers), daemon=True)
            thread.start()
            left = len(parts)
            while True:
                try:
                    answer = answers.get(timeout=self.patience)
                except queue.Empty:
                    raise EngineError(_stuck(ray, shares, left, self.patience)) from None
                if answer is None:
                    return
                if isinstance(answer, BaseException):
                    words = str(answer).strip().splitlines() or [type(answer).__name__]
                    raise EngineError(f"Ray gave up: {words[-1]} (parts that were finished are kept)") from answer
                left -= 1
                yield answer


def _data_set(work: Work, parts: list[Part], out: Place, shares: Shares) -> Any:
    """Parts as a lazy data set that actors turn into outcomes; a part is a block, so none waits for another."""
    import ray.data

    rows = ray.data.from_items([{"part": part} for part in parts], override_num_blocks=len(parts))
    return rows.map(
        PartActor,
        fn_constructor_args=(work, out),
        compute=ray.data.ActorPoolStrategy(size=shares.workers, max_tasks_in_flight_per_actor=1),
        num_cpus=shares.cpus,
        num_gpus=shares.gpus or None,
    )


class PartActor(PartWorker):
    """A worker of Ray Data.

    Args:
        work: the question.
        out: folder for the files.
    """

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:  # type: ignore[override]
        """Work on a part.

        Args:
            row: of the data set.

        Returns:
            A row with the outcome.
        """
        return {"outcome": super().__call__(row["part"])}


def _drain(data: Any, answers: queue.Queue[Any]) -> None:
    """Run the data set and pass its rows on; None at the end, an exception where Ray gives up."""
    try:
        for row in data.iter_rows():
            answers.put(row["outcome"])
        answers.put(None)
    except BaseException as error:  # the thread that waits must learn of anything
        answers.put(error)


def _quiet() -> None:
    """No bars and no plans on the terminal: the command shows its own progress."""
    import ray.data

    ray.data.DataContext.get_current().enable_progress_bars = False
    for name in ("ray.data", "ray"):
        logging.getLogger(name).setLevel(logging.ERROR)


def _stuck(ray: Any, shares: Shares, left: int, patience: float) -> str:
    """Why nothing moves, as far as the cluster tells."""
    total, free = ray.cluster_resources(), ray.available_resources()
    return (
        f"no part was finished for {patience:g} s and {left} are left: {shares.workers} workers of {shares.cpus:g} "
        f"processors each on a cluster of {total.get('CPU', 0.0):g}, of which {free.get('CPU', 0.0):g} are free. "
        "Parts that were finished are kept: run it again with fewer workers, or more patience."
    )
