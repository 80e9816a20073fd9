"""A Ray cluster: found or started, its size, and how its processors are shared out."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from snefy_ldl.cluster.base import EngineError

__all__ = ["Shares", "connected", "import_ray", "share_out"]

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
