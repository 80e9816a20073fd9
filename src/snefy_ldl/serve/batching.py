"""A queue with one worker, for one model: requests that ask the same of it are answered together."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from snefy_ldl.serve.faults import Overload
from snefy_ldl.serve.limits import Limits
from snefy_ldl.serve.pace import Caller

__all__ = ["Lane"]

#: From payloads to one answer each.
Work = Callable[[list[Any]], Sequence[Any]]
#: Part of the time for a request that requests answered together may take.
BATCH_PART = 0.1


@dataclass(eq=False)
class _Job:
    key: Hashable
    payload: Any
    rows: int
    seconds: float
    work: Work
    future: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop
    caller: Caller


class Lane:
    """Requests that wait for one thread.

    Args:
        name: of the thread.
        limits: of queue, rows, time and waiting.
        on_batch: called with the number of requests answered together, and the seconds it took.

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
        """Requests that wait."""
        return len(self._jobs)

    async def ask(
        self,
        key: Hashable,
        payload: Any,
        rows: int,
        work: Work,
        caller: Caller | None = None,
        seconds: float = 0.0,
    ) -> Any:
        """Wait for an answer.

        Args:
            key: requests with one key are given to ``work`` together; None for one that stays alone.
            payload: what ``work`` gets.
            rows: how much it counts.
            work: from payloads to answers, one each; where it raises for several, each is tried alone.
            caller: who waits; by default one who waits for the limit's seconds.
            seconds: it will take by what was measured; long ones are not answered together with others.

        Returns:
            The answer.

        Raises:
            Overload: too many wait already, the time is up, or the service stops.
        """
        loop = asyncio.get_running_loop()
        caller = caller or Caller(self._limits.seconds)
        job = _Job(key, payload, rows, seconds, work, loop.create_future(), loop, caller)
        with self._ready:
            if self._closed:
                raise Overload("the service is stopping.")
            if len(self._jobs) >= self._limits.queue:
                raise Overload("too many requests are waiting; try again in a moment.")
            self._jobs.append(job)
            self._ready.notify()
        try:
            return await asyncio.wait_for(job.future, max(caller.deadline - time.monotonic(), 0.0))
        except asyncio.TimeoutError:
            raise Overload(f"no answer within {self._limits.seconds:g} s; ask for less, or try again.") from None

    def close(self, seconds: float = 30.0) -> None:
        """Finish what was accepted, and stop.

        Args:
            seconds: to wait for it at most.
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
            outcomes = _answer(batch)
            by_loop: dict[asyncio.AbstractEventLoop, list[tuple[_Job, Any]]] = {}
            for job, outcome in zip(batch, outcomes):
                by_loop.setdefault(job.loop, []).append((job, outcome))
            for loop, pairs in by_loop.items():
                try:
                    loop.call_soon_threadsafe(_deliver, pairs)
                except RuntimeError:  # that loop has ended, and nobody waits any more
                    continue
            self._on_batch(len(batch), time.perf_counter() - began)

    def _next_batch(self) -> list[_Job]:
        """The oldest job and those that may go with it; nothing once the lane is closed and empty."""
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
            batch, rows, seconds = [first], first.rows, first.seconds
            for job in list(self._jobs):
                fits = rows + job.rows <= self._limits.batch_rows
                if job.key == first.key and fits and seconds + job.seconds <= BATCH_PART * self._limits.seconds:
                    batch.append(job)
                    rows, seconds = rows + job.rows, seconds + job.seconds
                    self._jobs.remove(job)
            self._crowded = len(batch) > 1 or bool(self._jobs)
            return batch


def _answer(batch: list[_Job]) -> list[Any]:
    """Answers, or the exceptions in their place."""
    try:
        return list(batch[0].work([job.payload for job in batch]))
    except Exception as error:
        if len(batch) == 1:
            return [error]
        return [answer for job in batch for answer in _answer([job])]


def _deliver(pairs: list[tuple[_Job, Any]]) -> None:
    for job, outcome in pairs:
        if job.future.done():
            continue
        if isinstance(outcome, BaseException):
            job.future.set_exception(outcome)
        else:
            job.future.set_result(outcome)
