"""Queues that answer similar requests together, and measured times that keep every request within its limit."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from snefy_ldl.serve.limits import Fault, Limits, Overload

__all__ = ["MOST_ROWS", "Caller", "Lane", "Meter", "Pace", "Rate", "Size"]

#: A function from payloads to one answer each.
Work = Callable[[list[Any]], Sequence[Any]]
#: Fraction of a request's time limit that a batch of requests may take.
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
            key: requests with the same key are passed to ``work`` together; None for a request that is answered alone.
            payload: passed to ``work``.
            rows: number of rows of the request.
            work: function from payloads to one answer each; if it raises for several, each is tried alone.
            caller: who waits for the answer; by default for the limit's seconds.
            seconds: estimated time; long requests are not answered together with others.

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
#: Seconds after which a measured time expires, so that a busy moment does not count for long.
BELIEVED_SECONDS = 60.0
#: Fraction of the time limit that the advised number of rows would take.
ADVISED_PART = 0.8
#: Numbers of rows on which a computation that cannot be sliced is timed first.
TRIAL_ROWS = (1, 4, 16, 64, 256)


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


@dataclass(frozen=True)
class Size:
    """The size of a request.

    Args:
        key: requests with the same key take the same time per unit.
        rows: of the request.
        per_row: units per row: the points of a density, the groups.
        unit: name of a unit, for messages.
    """

    key: Hashable
    rows: int
    per_row: int = 1
    unit: str = "rows"

    @property
    def units(self) -> int:
        """Units of all rows."""
        return self.rows * self.per_row


@dataclass(frozen=True)
class Rate:
    """A measured time.

    Args:
        seconds: per unit, the smaller of the last two measurements, since a busy machine makes single ones too large.
        is_firm: whether it was measured twice on enough units to scale proportionally; otherwise it is only an upper
            bound, since few units bear the fixed costs alone.
        last: the last measurement on enough units, or None.
        measured: when, by ``time.monotonic()``.
    """

    seconds: float
    is_firm: bool
    last: float | None
    measured: float


class Meter:
    """Measured times of one model by kind of request.

    Example:
        >>> meter = Meter()
        >>> meter.note("predict", 0.25, enough=True)
        >>> meter.note("predict", 0.75, enough=True)
        >>> meter.rate("predict").seconds
        0.25
        >>> meter.rate("density") is None
        True
    """

    def __init__(self) -> None:
        self._rates: dict[Hashable, Rate] = {}

    def rate(self, key: Hashable) -> Rate | None:
        """The latest measured time.

        Args:
            key: of the request.

        Returns:
            The time per unit, or None.
        """
        rate = self._rates.get(key)
        return rate if rate is not None and time.monotonic() - rate.measured < BELIEVED_SECONDS else None

    def note(self, key: Hashable, seconds: float, enough: bool) -> None:
        """Record a measured time.

        Args:
            key: of the request.
            seconds: per unit.
            enough: whether it was measured on enough units to scale proportionally; otherwise it can only lower the
                recorded time.
        """
        known, now = self.rate(key), time.monotonic()
        if known is None or known.last is None:
            least = seconds if known is None or enough else min(seconds, known.seconds)
            self._rates[key] = Rate(least, False, seconds if enough else None, now)
        elif enough:
            self._rates[key] = Rate(min(seconds, known.last), True, seconds, now)
        elif seconds < known.seconds:
            self._rates[key] = Rate(seconds, known.is_firm, seconds, now)


class Pace:
    """Controls one computation: how many rows at a time, and whether to continue.

    Args:
        size: of the request, or of several that are answered together.
        meter: of the model.
        limits: of the service.
        callers: clients that wait for it; the computation stops once none of them waits.

    Example:
        >>> pace = Pace(Size("predict", 5), Meter(), Limits(), [Caller(10.0)])
        >>> sum(part.stop - part.start for part in pace.slices(5))
        5
    """

    def __init__(self, size: Size, meter: Meter, limits: Limits, callers: Sequence[Caller]) -> None:
        self._size, self._meter, self._limits, self._callers = size, meter, limits, callers
        self._slice_seconds = min(SLICE_SECONDS, SLICE_PART * limits.seconds)

    @property
    def seconds(self) -> float:
        """Estimated time of the whole request; 0 if unknown."""
        rate = self._meter.rate(self._size.key)
        return rate.seconds * self._size.units if rate is not None and rate.is_firm else 0.0

    def check_size(self) -> None:
        """Refuse a request that would exceed the time limit.

        Raises:
            Fault: 413; the message says how many rows are possible.
        """
        rate = self._meter.rate(self._size.key)
        if rate is not None and rate.is_firm and rate.seconds * self._size.units > self._limits.seconds:
            raise self._too_large(rate.seconds)

    def check_callers(self) -> None:
        """Stop if no client waits any more.

        Raises:
            Overload: the time is up, or the clients have disconnected.
        """
        if not any(caller.is_waiting() for caller in self._callers):
            raise Overload("the time for this request is up; ask for less, or try again.")

    def slices(self, count: int, units: int = 1, most: int = MOST_ROWS, least: int = 1) -> Iterator[slice]:
        """Slices of work; the time between two of them is measured.

        Args:
            count: number of items to slice.
            units: per item.
            most: items per slice.
            least: items per slice, except for the last.

        Yields:
            The slices in order.

        Raises:
            Overload: no client waits any more.
            Fault: 413, the whole computation would exceed the time limit.
        """
        rate = self._meter.rate(self._size.key)
        start, number = 0, 1 if rate is None else int(self._slice_seconds / max(rate.seconds * units, 1e-9))
        while start < count:
            self.check_callers()
            part = slice(start, min(start + min(max(number, least), most), count))
            done, began = part.stop - part.start, time.perf_counter()
            yield part
            took, start = max(time.perf_counter() - began, 1e-9), part.stop
            # the first slice may have made tables that all later ones share
            enough = rate is not None and (took >= 0.5 * self._slice_seconds or done == most)
            self._meter.note(self._size.key, took / (done * units), enough)
            rate = self._meter.rate(self._size.key)
            if start < count:
                self.check_size()
            number = int(done * min(float(GROWTH), self._slice_seconds / took))

    def try_out(self, answer: Callable[[int], object]) -> None:
        """Time a computation that cannot be sliced on a few rows first, unless its time is known.

        Args:
            answer: computes that many of the first rows; its results and exceptions are ignored here.

        Raises:
            Overload: no client waits any more.
            Fault: 413, the whole computation would exceed the time limit.
        """
        for number in TRIAL_ROWS:
            rate = self._meter.rate(self._size.key)
            if 4 * number > self._size.rows or (rate is not None and rate.is_firm):
                break
            self.check_callers()
            began = time.perf_counter()
            try:
                answer(number)
            except Exception:  # perhaps too few rows
                continue
            took = time.perf_counter() - began
            enough = rate is not None and took >= 0.5 * self._slice_seconds
            self._meter.note(self._size.key, took / (number * self._size.per_row), enough)
        self.check_size()

    def _too_large(self, seconds: float) -> Fault:
        size, limit = self._size, self._limits.seconds
        may = f"and a request may take {limit:g} s"
        rows = int(ADVISED_PART * limit / (seconds * size.per_row))
        takes = f"{size.rows:,} row{'s' * (size.rows > 1)}"
        if size.per_row > 1:
            takes += f" with {size.per_row:,} {size.unit}"
        takes += f" would take about {seconds * size.units:,.0f} s here, {may}"
        if rows >= 1:
            return Fault(413, f"{takes}; send at most {rows:,} row{'s' * (rows > 1)} at a time.", field="rows")
        units = int(ADVISED_PART * limit / seconds)
        if size.per_row > 1 and units >= 1:
            return Fault(413, f"{takes}; send one row at a time with at most {units:,} {size.unit}.", field=size.unit)
        one = f"one row would take about {seconds * size.per_row:,.0f} s here"
        return Fault(413, f"{one}, {may}; the service needs a larger --seconds.", field="rows")
