"""Connecting to a Ray cluster, and how it is divided among workers."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from snefy_ldl.errors import SnefyError

__all__ = ["EngineError", "allocate_workers", "connected", "import_ray"]

#: Fraction of the processors that all workers together may use; the rest is for Ray itself.
MOST_CPUS = 0.9
#: Bytes of the object store of a cluster that is started here.
STORE_BYTES = 512 << 20
#: Seconds within which a cluster must accept a connection.
CONNECT_SECONDS = 10.0


class EngineError(SnefyError, RuntimeError):
    """The cluster could not finish the work: there is none, it has no processor, or workers fail repeatedly."""


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
        raise ImportError("work on a cluster needs Ray: pip install 'snefy-ldl[ray]'") from None
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


def allocate_workers(total: dict[str, float], wanted: int | None = None, most_cpus: float = MOST_CPUS) -> Allocation:
    """Divide a cluster among workers, leaving some of it for Ray itself.

    Args:
        total: what the cluster has, as ``ray.cluster_resources()`` returns it.
        wanted: number of workers; by default one per processor.
        most_cpus: fraction of the processors that all workers together may use.

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
    share = min(most_cpus, most_cpus * cpus / workers)
    return Allocation(workers, _round_down(share), _round_down(min(1.0, gpus / workers)) if gpus else 0.0)


def _round_down(share: float) -> float:
    """Ray counts in ten-thousandths; rounded up, the last worker would not fit."""
    return int(share * 10_000 + 1e-6) / 10_000
