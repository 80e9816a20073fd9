"""The engine on a Ray cluster: Ray Data hands parts to actors that hold the model, and starts anew those that die."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Iterator
from typing import Any

from snefy_ldl.cluster.base import Engine, EngineError
from snefy_ldl.cluster.cluster import Shares, connected, share_out
from snefy_ldl.cluster.parts import Part
from snefy_ldl.cluster.places import Place
from snefy_ldl.cluster.work import Outcome, PartWorker, Work

__all__ = ["PATIENCE", "RayEngine"]

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
