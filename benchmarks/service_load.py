"""A load generator of few parts: connections that stay open, requests at fixed moments, whole answers or none."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any


class HalfAnswer(Exception):
    """A connection that ended inside an answer."""


@dataclass
class Outcome:
    """What came of some requests."""

    seconds: list[float] = field(default_factory=list)
    statuses: dict[int, int] = field(default_factory=dict)
    broken: int = 0
    half: int = 0

    def add(self, status: int, seconds: float) -> None:
        self.statuses[status] = self.statuses.get(status, 0) + 1
        if status == 200:
            self.seconds.append(seconds)

    def quantile_ms(self, level: float) -> float:
        ordered = sorted(self.seconds)
        return 1e3 * ordered[min(len(ordered) - 1, int(level * len(ordered)))] if ordered else float("nan")


class Connection:
    """One kept-alive connection."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        """Status and body; raises OSError if nothing came, HalfAnswer if only a part did."""
        for attempt in (0, 1):
            fresh = self.streams is None
            if self.streams is None:
                self.streams = await asyncio.open_connection("127.0.0.1", self.port)
            reader, writer = self.streams
            writer.write(request)
            try:
                head = await reader.readuntil(b"\r\n\r\n")
                break
            except (asyncio.IncompleteReadError, ConnectionError) as error:
                self.close()
                if getattr(error, "partial", b""):
                    raise HalfAnswer from None
                if fresh or attempt:  # a kept connection may have been closed while it rested
                    raise ConnectionError from None
        lines = head.decode("latin-1").split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines[1:] if ": " in line)
        try:
            body = await reader.readexactly(int(headers["content-length"]))
        except (asyncio.IncompleteReadError, ConnectionError):
            self.close()
            raise HalfAnswer from None
        if headers.get("connection") == "close":
            self.close()
        return int(lines[0].split()[1]), body

    def close(self) -> None:
        if self.streams is not None:
            self.streams[1].close()
        self.streams = None


def post(path: str, body: Any) -> bytes:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()


async def at_rate(port: int, requests: list[bytes], rate: float, seconds: float, connections: int = 64) -> Outcome:
    """Requests at fixed moments, whether earlier ones are answered or not; times count from those moments."""
    outcome, free = Outcome(), asyncio.Queue[Connection]()
    for _ in range(connections):
        free.put_nowait(Connection(port))
    began, tasks = time.perf_counter(), set()

    async def one(request: bytes, due: float) -> None:
        connection = await free.get()
        try:
            status, body = await connection.ask(request)
            json.loads(body)
            outcome.add(status, time.perf_counter() - due)
        except HalfAnswer:
            outcome.half += 1
        except (OSError, ValueError):
            outcome.broken += 1
        finally:
            free.put_nowait(connection)

    for number in range(int(rate * seconds)):
        due = began + number / rate
        wait = due - time.perf_counter()
        if wait > 0:
            await asyncio.sleep(wait)
        task = asyncio.create_task(one(requests[number % len(requests)], due))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    if tasks:
        await asyncio.wait(tasks)
    while not free.empty():
        free.get_nowait().close()
    return outcome


async def in_turn(port: int, requests: list[bytes], count: int, connections: int = 8) -> Outcome:
    """So many requests as fast as the service answers them."""
    outcome, number = Outcome(), iter(range(count))

    async def worker() -> None:
        connection = Connection(port)
        for at in number:
            began = time.perf_counter()
            try:
                status, _ = await connection.ask(requests[at % len(requests)])
                outcome.add(status, time.perf_counter() - began)
            except HalfAnswer:
                outcome.half += 1
            except OSError:
                outcome.broken += 1
                await asyncio.sleep(0.02)
        connection.close()

    await asyncio.gather(*(worker() for _ in range(connections)))
    return outcome
