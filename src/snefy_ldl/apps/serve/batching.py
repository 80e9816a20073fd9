"""Queues that answer similar requests together, and slices that stop a computation when its time is up."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from snefy_ldl.apps.serve.limits import Limits, Overload

#: A function from payloads to one answer each.
Work = Callable[[list[Any]], Sequence[Any]]


@dataclass(eq=False)
class _Job:
    key: Hashable
    payload: Any
    rows: int
    work: Work
    future: asyncio.Future[Any]


class Lane:
    """A queue of requests with one worker thread.

    Args:
        name: of the thread.
        limits: of queue, rows, time and waiting.
        on_batch: called with the number of requests of a batch and the seconds it took.

    Example:
        >>> lane = Lane("doubling", Limits())
        >>> asyncio.run(lane.ask("double", 4, 1, lambda numbers: [2 * number for number in numbers]))
        8
        >>> lane.close()
    """

    def __init__(self, name: str, limits: Limits, on_batch: Callable[[int, float], None] | None = None) -> None:
        self._limits, self._on_batch = limits, on_batch or (lambda requests, seconds: None)
        self._jobs: deque[_Job] = deque()
        self._ready = threading.Condition()
        self._closed, self._crowded = False, False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        """Number of waiting requests."""
        return len(self._jobs)

    async def ask(self, key: Hashable, payload: Any, rows: int, work: Work) -> Any:
        """Wait for an answer.

        Args:
            key: requests with the same key are passed to ``work`` together; None for a request that is answered alone.
            payload: passed to ``work``.
            rows: number of rows of the request.
            work: function from payloads to one answer each; if it raises for several, each is tried alone.

        Returns:
            The answer.

        Raises:
            Overload: too many wait already, the time is up, or the service stops.
        """
        job = _Job(key, payload, rows, work, asyncio.get_running_loop().create_future())
        with self._ready:
            if self._closed:
                raise Overload("the service is stopping.")
            if len(self._jobs) >= self._limits.queue:
                raise Overload("too many requests are waiting; try again in a moment.")
            self._jobs.append(job)
            self._ready.notify()
        try:
            return await asyncio.wait_for(job.future, self._limits.seconds)
        except asyncio.TimeoutError:
            raise Overload(f"no answer within {self._limits.seconds:g} s; ask for less, or try again.") from None

    def close(self, seconds: float = 30.0) -> None:
        """Answer the accepted requests, then stop.

        Args:
            seconds: maximum time to wait.
        """
        with self._ready:
            self._closed = True
            self._ready.notify()
        self._thread.join(seconds)

    def _run(self) -> None:
        while batch := self._next_batch():
            began = time.perf_counter()
            for job, outcome in zip(batch, _answer(batch)):
                try:
                    job.future.get_loop().call_soon_threadsafe(_deliver, job.future, outcome)
                except RuntimeError:  # that event loop has ended: nobody waits for the answer
                    continue
            self._on_batch(len(batch), time.perf_counter() - began)

    def _next_batch(self) -> list[_Job]:
        """The oldest job and those that can be answered with it; empty once the lane is closed and empty."""
        with self._ready:
            while True:
                while not self._jobs and not self._closed:
                    self._ready.wait()
                if not self._jobs:
                    return []
                first = self._jobs.popleft()
                if not first.future.cancelled():
                    break
            if first.key is None:
                return [first]
            if self._crowded and not self._closed and self._limits.batch_wait > 0:
                self._ready.wait(self._limits.batch_wait)
            batch, rows = [first], first.rows
            for job in list(self._jobs):
                if job.key == first.key and rows + job.rows <= self._limits.batch_rows:
                    batch.append(job)
                    rows += job.rows
                    self._jobs.remove(job)
            self._crowded = len(batch) > 1 or bool(self._jobs)
            return batch


def _answer(batch: list[_Job]) -> list[Any]:
    """One answer or exception per job."""
    try:
        return list(batch[0].work([job.payload for job in batch]))
    except Exception as error:
        if len(batch) == 1:
            return [error]
        return [answer for job in batch for answer in _answer([job])]


def _deliver(future: asyncio.Future[Any], outcome: Any) -> None:
    if future.done():
        return
    if isinstance(outcome, BaseException):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


def slices(count: int, most: int, deadline: float) -> Iterator[slice]:
    """Slices of one computation, which ends when its time is up.

    Args:
        count: number of items to slice.
        most: items per slice.
        deadline: on the clock of ``time.monotonic``.

    Yields:
        The slices in order.

    Raises:
        Overload: the time is up.

    Example:
        >>> [part.stop for part in slices(5, 2, time.monotonic() + 1.0)]
        [2, 4, 5]
    """
    for start in range(0, count, most):
        if time.monotonic() > deadline:
            raise Overload("the time for this request is up; send fewer rows or points at a time.")
        yield slice(start, min(start + most, count))
