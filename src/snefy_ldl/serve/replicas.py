"""The service on Ray Serve: replicas that hold the models, more of them when more is asked."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from snefy_ldl.cluster.cluster import MOST_CPUS, connected, import_ray
from snefy_ldl.cluster.shipped import ShippedModel
from snefy_ldl.errors import InputError
from snefy_ldl.serve.limits import Limits

__all__ = ["make_replicas", "serve_replicas"]

#: Requests that a replica should have in hand: more of them, and another replica is started.
TARGET_REQUESTS = 8


def make_replicas(
    folders: Sequence[str | Path],
    *,
    token: str | None = None,
    limits: Limits | None = None,
    replicas: int = 1,
    most_replicas: int | None = None,
    cpus: float = MOST_CPUS,
    gpus: float = 0.0,
) -> Any:
    """The service as an application for Ray Serve: ``ray.serve.run(make_replicas(["model"]))``.

    The models' files travel to the replicas, which share no disk with whoever starts them; a folder that changes is not
    read again: run it anew, and Ray Serve replaces the replicas one by one.

    Args:
        folders: of saved models; the first is the default one.
        token: that every request must bring; None asks for none.
        limits: on requests and queue of each replica; :class:`Limits`' own by default.
        replicas: how many at least.
        most_replicas: up to how many, by how much is asked; None keeps their number.
        cpus: processors of each; less than one, so that what stands before them has its share.
        gpus: of each; several may share one.

    Returns:
        The application.

    Raises:
        ImportError: Ray Serve is not installed.
        InputError: there is no folder, two have one name, or the numbers of replicas do not fit.
        ModelFileError: a folder holds no whole model.

    Example:
        >>> make_replicas(["model"], replicas=3, most_replicas=2)
        Traceback (most recent call last):
            ...
        snefy_ldl.errors.InputError: most_replicas=2 is less than replicas=3.
    """
    if most_replicas is not None and most_replicas < replicas:
        raise InputError(f"most_replicas={most_replicas} is less than replicas={replicas}.")
    names = [Path(folder).resolve().name for folder in folders]
    if not names or len(set(names)) < len(names):
        raise InputError("name at least one model folder to serve, and each of another name.")
    models = [(name, ShippedModel.read(Path(folder))) for name, folder in zip(names, folders)]
    for _, model in models:
        model.load()  # a folder that holds no model is told here, not by a replica
    import_ray()
    try:
        from ray import serve
    except ImportError as error:
        raise ImportError(f"serving on Ray needs Ray Serve ({error}): pip install 'ray[serve]'") from None

    def build() -> Any:
        return build_app(models, token, limits)

    number: dict[str, Any] = {"num_replicas": replicas}
    if most_replicas is not None:
        range_of = {"min_replicas": replicas, "max_replicas": most_replicas}
        number = {"autoscaling_config": {**range_of, "target_ongoing_requests": TARGET_REQUESTS}}
    options = {"num_cpus": cpus, "num_gpus": gpus}
    waiting = (limits or Limits()).queue
    deployment = serve.deployment(
        name="snefy-ldl", ray_actor_options=options, max_ongoing_requests=waiting, health_check_period_s=10, **number
    )
    return deployment(serve.ingress(build)()).bind()


def serve_replicas(
    folders: Sequence[str | Path], host: str, port: int, address: str | None = None, **options: Any
) -> None:
    """Serve models from a Ray cluster until the process is told to stop.

    Args:
        folders: of saved models; the first is the default one.
        host: address to listen at.
        port: to listen at.
        address: of a cluster; None starts one on this machine.
        options: of :func:`make_replicas`.

    Raises:
        ImportError: Ray Serve is not installed.
        EngineError: no cluster answers at the address.

    Example:
        >>> serve_replicas(["model"], "127.0.0.1", 8000, replicas=2)  # doctest: +SKIP
    """
    application = make_replicas(folders, **options)
    with connected(address):
        from ray import serve

        serve.start(http_options={"host": host, "port": port})
        try:
            serve.run(application, name="snefy-ldl", blocking=True)
        finally:
            serve.shutdown()


def build_app(models: list[tuple[str, ShippedModel]], token: str | None, limits: Limits | None) -> Any:
    """The service of one replica.

    Args:
        models: names and files.
        token: that every request must bring, or None.
        limits: on requests and queue, or None.

    Returns:
        An ASGI application.
    """
    from snefy_ldl.serve.app import create_app  # an extra

    place = Path(tempfile.mkdtemp(prefix="snefy-ldl-"))  # lives as long as the replica: models are read from it
    for name, model in models:
        model.write(place / name)
    app = create_app([place / name for name, _ in models], token=token, limits=limits, reload_seconds=3600.0)
    app.service.wait()  # Ray sends requests as soon as this returns
    return app
