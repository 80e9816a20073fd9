"""The queue: what is answered together, what is refused, and a stop that finishes what was accepted."""

from __future__ import annotations

import asyncio
import io
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pandas as pd
import pytest

from snefy_ldl.apps.serve.app import create_app
from snefy_ldl.apps.serve.batching import Lane
from snefy_ldl.apps.serve.limits import Limits, Overload
from snefy_ldl.apps.serve.server import make_server
from snefy_ldl.apps.serve.transport import Log


def test_requests_that_come_together_are_answered_together() -> None:
    sizes: list[int] = []
    started, go_on = threading.Event(), threading.Event()

    def double(numbers: list[Any]) -> list[Any]:
        started.set()
        go_on.wait(5.0)
        sizes.append(len(numbers))
        return [2 * number for number in numbers]

    async def several() -> list[int]:
        lane = Lane("test", Limits(batch_rows=4))
        first = asyncio.create_task(lane.ask("a", 0, 1, double))
        while not started.is_set():
            await asyncio.sleep(0.001)
        others = [asyncio.create_task(lane.ask("a" if k < 5 else "b", k, 1, double)) for k in range(1, 7)]
        await asyncio.sleep(0.01)
        go_on.set()
        answers = await asyncio.gather(first, *others)
        lane.close()
        return answers

    assert asyncio.run(several()) == [0, 2, 4, 6, 8, 10, 12]
    assert sizes == [1, 4, 2]  # four rows at most, and never two questions in one


def test_one_bad_request_does_not_spoil_its_neighbours() -> None:
    started, go_on = threading.Event(), threading.Event()

    def invert(numbers: list[Any]) -> list[Any]:
        started.set()
        go_on.wait(5.0)
        return [1.0 / number for number in numbers]

    async def several() -> list[Any]:
        lane = Lane("test", Limits())
        tasks = [asyncio.create_task(lane.ask("a", 1, 1, invert))]
        while not started.is_set():
            await asyncio.sleep(0.001)
        tasks += [asyncio.create_task(lane.ask("a", number, 1, invert)) for number in (2, 0, 4)]
        await asyncio.sleep(0.01)
        go_on.set()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        lane.close()
        return answers

    first, second, third, fourth = asyncio.run(several())
    assert (first, second, fourth) == (1.0, 0.5, 0.25)
    assert isinstance(third, ZeroDivisionError)


def test_a_full_queue_and_a_late_answer_are_overload() -> None:
    go_on = threading.Event()

    def wait(parts: list[Any]) -> list[Any]:
        go_on.wait(5.0)
        return parts

    async def several() -> list[Any]:
        lane = Lane("test", Limits(queue=2, seconds=0.3))
        tasks = []
        for number in range(6):
            tasks.append(asyncio.create_task(lane.ask(None, number, 1, wait)))
            await asyncio.sleep(0.01)
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        go_on.set()
        lane.close()
        with pytest.raises(Overload, match="stopping"):
            await lane.ask(None, 0, 1, wait)
        return answers

    answers = asyncio.run(several())
    assert all(isinstance(answer, Overload) for answer in answers)
    assert ["waiting" in str(answer) for answer in answers] == [False] * 3 + [True] * 3


class Held:
    """A model that answers when it is let."""

    def __init__(self, model: Any) -> None:
        self.model, self.go_on = model, threading.Event()

    def predict_dist(self, X: Any) -> Any:
        assert self.go_on.wait(20.0)
        return self.model.predict_dist(X)


@pytest.mark.slow
def test_a_stop_finishes_what_was_accepted(folder: Path, city: tuple[pd.DataFrame, pd.DataFrame]) -> None:
    app = create_app([folder], log=Log(io.StringIO()))
    app.service.wait()
    store = app.service.store
    held = Held(store.get().inner)
    store._models["city"] = replace(store.get(), inner=held)
    server = make_server(app, "127.0.0.1", 0)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not (server.started and server.servers):
        time.sleep(0.005)
    port = server.servers[0].sockets[0].getsockname()[1]
    body = {"rows": city[0][:9].to_dict("records"), "groups": {"g": ["business"]}}

    def ask(_: int) -> int:
        return httpx.post(f"http://127.0.0.1:{port}/v1/groups", json=body, timeout=20.0).status_code

    with ThreadPoolExecutor(6) as pool:
        answers = [pool.submit(ask, number) for number in range(6)]
        while len(app.service._slow["city"]) < 5:  # all accepted, the first one is computed
            time.sleep(0.005)
        server.handle_exit(signal.SIGTERM, None)
        assert app.service.state()[0] == "stopping"
        held.go_on.set()
        assert [answer.result() for answer in answers] == [200] * 6
    thread.join(20.0)
    assert not thread.is_alive()
