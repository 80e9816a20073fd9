"""Queues that answer similar requests together, and slices that keep every request within its time limit."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from snefy_ldl.apps.serve.limits import Fault, Limits, Overload

#: A function from payloads to one answer each.
Work = Callable[[list[Any]], Sequence[Any]]
#: Fraction of a request's time limit that a batch of requests may take.
BATCH_PART = 0.1


@dataclass(eq=False)
class _Job:
    key: Hashable
    payload: Any
    rows: int
    work: Work
    future: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop
    caller: Caller


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
        self._closed, self._crowded, self._row_seconds = False, False, 0.0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        """Number of waiting requests."""
        return len(self._jobs)

    async def ask(
        self,
        key: Hashable,
        payload: Any,
        rows: int,
        work: Work,
        caller: Caller | None = None,
    ) -> Any:
        """Wait for an answer.

        Args:
            key: requests with the same key are passed to ``work`` together; None for a request that is answered alone.
            payload: passed to ``work``.
            rows: number of rows of the request.
            work: function from payloads to one answer each; if it raises for several, each is tried alone.
            caller: who waits for the answer; by default for the limit's seconds.

        Returns:
            The answer.

        Raises:
            Overload: too many wait already, the time is up, or the service stops.
        """
        loop = asyncio.get_running_loop()
        caller = caller or Caller(self._limits.seconds)
        job = _Job(key, payload, rows, work, loop.create_future(), loop, caller)
        with self._ready:
            if self._closed:
                raise Overload("the service is stopping.")
            if len(self._jobs) >= self._limits.queue:
                raise Overload("too many requests are waiting; try again in a moment.")
            self._jobs.append(job)
            self._ready.notify()
        try:
            return await asyncio.wait_for(job.future, caller.seconds_left)
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

    # -- the worker --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            batch = self._next_batch()
            if not batch:
                return
            began = time.perf_counter()
            for job, outcome in zip(batch, _answer(batch)):
                try:
                    job.loop.call_soon_threadsafe(_deliver, job, outcome)
                except RuntimeError:  # that event loop has ended: nobody waits for the answer
                    continue
            took = time.perf_counter() - began
            self._row_seconds = took / sum(job.rows for job in batch)
            self._on_batch(len(batch), took)

    def _next_batch(self) -> list[_Job]:
        """The oldest job and those that can be answered with it; empty once the lane is closed and empty."""
        with self._ready:
            while True:
                while not self._jobs and not self._closed:
                    self._ready.wait()
                if not self._jobs:
                    return []
                first = self._jobs.popleft()
                if first.caller.is_waiting() and not first.future.cancelled():
                    break
            if first.key is None:
                return [first]
            if self._crowded and not self._closed and self._limits.batch_wait > 0:
                self._ready.wait(self._limits.batch_wait)
            batch, rows = [first], first.rows
            most = BATCH_PART * self._limits.seconds / max(self._row_seconds, 1e-9)
            for job in list(self._jobs):
                if job.key == first.key and rows + job.rows <= min(self._limits.batch_rows, most):
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


def _deliver(job: _Job, outcome: Any) -> None:
    if job.future.done():
        return
    if isinstance(outcome, BaseException):
        job.future.set_exception(outcome)
    else:
        job.future.set_result(outcome)


#: Most seconds per slice of work, or this fraction of a request's time limit if that is less.
SLICE_SECONDS, SLICE_PART = 0.1, 0.1
#: Most rows per slice.
MOST_ROWS = 1_024
#: A slice may have this many times the rows of the previous one.
GROWTH = 8
#: Fraction of the time limit that the advised number of rows would take.
ADVISED_PART = 0.8


class Caller:
    """A client that waits for an answer.

    Args:
        seconds: how long it waits.

    Example:
        >>> caller = Caller(10.0)
        >>> caller.is_waiting()
        True
        >>> caller.gone = True
        >>> caller.is_waiting()
        False
    """

    def __init__(self, seconds: float) -> None:
        self.deadline = time.monotonic() + seconds
        self.gone = False

    def is_waiting(self) -> bool:
        """Whether the client is still connected and its time is not up."""
        return not self.gone and self.seconds_left > 0.0

    @property
    def seconds_left(self) -> float:
        """Seconds until its time is up."""
        return max(self.deadline - time.monotonic(), 0.0)

    async def wait(self, future: Future[Any], message: str) -> Any:
        """Wait for a result.

        Args:
            future: of the result.
            message: of the error.

        Returns:
            The result.

        Raises:
            Overload: it is not there within the client's time.
        """
        if future.done():
            return future.result()
        try:
            return await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(future)), self.seconds_left)
        except asyncio.TimeoutError:
            raise Overload(message) from None


def slices(
    count: int, callers: Sequence[Caller], limits: Limits, most: int = MOST_ROWS, least: int = 1, what: str = "rows"
) -> Iterator[slice]:
    """Slices of one computation: few items at first, then as many as take a tenth of a second.

    Args:
        count: number of items to slice.
        callers: clients that wait for it; the computation stops once none of them waits.
        limits: of the service.
        most: items per slice.
        least: items per slice, except for the last.
        what: the items, for the message.

    Yields:
        The slices in order.

    Raises:
        Overload: the time is up, or the clients have disconnected.
        Fault: 413, the whole computation would exceed the time limit; the message says how many items are possible.

    Example:
        >>> [part.stop for part in slices(5, [Caller(10.0)], Limits(), most=2)]
        [1, 3, 5]
    """
    start, number, last = 0, least, float("inf")
    while start < count:
        if not any(caller.is_waiting() for caller in callers):
            raise Overload("the time for this request is up; ask for less, or try again.")
        part, began = slice(start, min(start + number, count)), time.perf_counter()
        yield part
        took = max(time.perf_counter() - began, 1e-9)
        rate = took / (part.stop - start)
        # the smaller of two: the first slice may have made tables that all later ones share, a busy moment slows one
        if start and min(rate, last) * count > limits.seconds:
            fitting = max(1, int(ADVISED_PART * limits.seconds / min(rate, last)))
            raise Fault(
                413,
                f"{count:,} {what} would take about {min(rate, last) * count:,.0f} s here, and a request may take "
                f"{limits.seconds:g} s; send at most {fitting:,} {what} at a time.",
                field=what,
            )
        pace = min(float(GROWTH), min(SLICE_SECONDS, SLICE_PART * limits.seconds) / took)
        number = min(max(int((part.stop - start) * pace), least), most)
        start, last = part.stop, rate
