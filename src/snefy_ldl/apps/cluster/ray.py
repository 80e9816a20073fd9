"""Connecting to a Ray cluster, and the errors of its workers."""

from __future__ import annotations

import logging
import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from snefy_ldl._internal.extras import extra
from snefy_ldl.errors import InputError, SnefyError

__all__ = ["EngineError", "connected", "count_workers", "import_ray", "translate"]

#: Bytes of the object store of a cluster that is started here.
STORE_BYTES = 512 << 20
#: Seconds within which a cluster must accept a connection.
CONNECT_SECONDS = 10.0


class EngineError(SnefyError, RuntimeError):
    """The cluster could not finish the work: there is none, it is too small, or workers fail repeatedly."""


def import_ray() -> Any:
    """The module ``ray``.

    Returns:
        The module.

    Raises:
        ImportError: it is not installed; the message names the command.
    """
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # workers without a GPU keep their environment
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # errors that matter are raised here in one line
    with extra("ray", "work on a cluster needs Ray"):
        import ray
    return ray


@contextmanager
def connected(address: str | None = None, workers: int | None = None, show: bool = False) -> Iterator[Any]:
    """Connect to a cluster for the duration of a ``with`` block.

    An existing connection is used and left open. Otherwise the cluster at the address is joined and the library's code
    is sent to it; without an address a cluster is started on this machine and stopped at the end.

    Args:
        address: of a cluster, as Ray takes it: ``"auto"`` or ``"10.0.0.1:6379"``; None starts one.
        workers: processors of a cluster that is started here; by default all of this machine.
        show: whether to show what workers print.

    Yields:
        The module ``ray``.

    Raises:
        ImportError: Ray is not installed.
        EngineError: there is no cluster at the address.
        InputError: the data break a rule, as a worker found.
    """
    ray, joined = import_ray(), False
    options: dict[str, Any] = {"log_to_driver": show, "logging_level": logging.ERROR}
    if address is None:
        options |= {"num_cpus": workers or os.cpu_count(), "object_store_memory": STORE_BYTES}
    else:  # workers need no disk that holds the library
        options |= {"address": address, "runtime_env": {"py_modules": [str(Path(__file__).resolve().parents[2])]}}
    try:
        if not ray.is_initialized():
            _check_reachable(address or "")
            ray.init(include_dashboard=None if address else False, **options)
            joined = True
    except (OSError, ValueError, RuntimeError) as error:
        words = " ".join(str(error).split())
        raise EngineError(f"no Ray cluster answers at {address} ({words}). Start one: ray start --head") from None
    try:
        yield ray
    finally:
        if joined:
            ray.shutdown()


def _check_reachable(address: str) -> None:
    """Raise at once if nothing listens at the address: Ray itself retries for minutes."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()


def count_workers(total: dict[str, float], wanted: int | None = None) -> int:
    """How many workers a cluster takes, one per processor.

    Args:
        total: what the cluster has, as ``ray.cluster_resources()`` returns it.
        wanted: number of workers; by default one per processor.

    Returns:
        The number.

    Raises:
        EngineError: the cluster has fewer processors.

    Example:
        >>> count_workers({"CPU": 8.0}), count_workers({"CPU": 8.0}, 3)
        (8, 3)
    """
    cpus = int(total.get("CPU", 0.0))
    if (wanted or 1) > cpus:
        raise EngineError(f"the Ray cluster has {cpus} processors for {wanted or 1} workers: add nodes, ray start ...")
    return wanted or cpus


def translate(error: BaseException) -> Exception:
    r"""An error of Ray's as one of ours: a rule that the data break, if a worker raised that, else Ray's last message.

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
