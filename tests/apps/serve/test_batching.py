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
import numpy as np
import pandas as pd
import pytest

from snefy_ldl import SnefyLDL
from snefy_ldl.apps.serve import answers as answers_module
from snefy_ldl.apps.serve.answers import Asked, answer_together
from snefy_ldl.apps.serve.app import create_app
from snefy_ldl.apps.serve.batching import Lane
from snefy_ldl.apps.serve.limits import Limits, Overload
from snefy_ldl.apps.serve.schemas import Density, Groups, Predict
from snefy_ldl.apps.serve.server import make_server
from snefy_ldl.apps.serve.store import load_served
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
    """A model that answers once it is allowed to."""

    def __init__(self, model: Any) -> None:
        self.model, self.go_on = model, threading.Event()

    def predict_dist(self, X: Any) -> Any:
        assert self.go_on.wait(20.0)
        return self.model.predict_dist(X)


@pytest.mark.slow
def test_a_stop_finishes_what_was_accepted(folder: Path, city: tuple[pd.DataFrame, pd.DataFrame]) -> None:
    app = create_app([folder], log=Log(io.StringIO()))
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
        while len(app.service.lanes["city", False]) < 5:  # all accepted, the first one is computed
            time.sleep(0.005)
        server.handle_exit(signal.SIGTERM, None)
        held.go_on.set()
        assert [answer.result() for answer in answers] == [200] * 6
    thread.join(20.0)
    assert not thread.is_alive()


def client_of(app: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service", timeout=20.0)


def test_a_slow_model_keeps_no_other_waiting(
    tmp_path: Path, folder: Path, small: SnefyLDL, city: tuple[pd.DataFrame, pd.DataFrame]
) -> None:
    app = create_app([folder, small.save(tmp_path / "slow")], log=Log(io.StringIO()))
    store, rows = app.service.store, city[0][:3].to_dict("records")
    held = Held(store.get("slow").inner)
    store._models["slow"] = replace(store.get("slow"), inner=held)

    async def both() -> list[int]:
        async with client_of(app) as client:
            slow = asyncio.create_task(client.post("/v1/predict", json={"rows": rows, "model": "slow"}))
            quick = await client.post("/v1/predict", json={"rows": rows})
            assert not slow.done()
            held.go_on.set()
            return [quick.status_code, (await slow).status_code]

    assert asyncio.run(both()) == [200, 200]


def test_a_computation_ends_when_its_time_is_up(folder: Path, city: tuple[pd.DataFrame, pd.DataFrame]) -> None:
    served, X = load_served(folder, "city"), city[0].to_numpy()
    question: Any
    for question in (Predict(rows=[{}]), Density(rows=[{}], labels=["business"], at=[0.5])):
        with pytest.raises(Overload, match="time for this request is up"):
            answer_together([Asked(served, question, X, Limits(), time.monotonic() - 1.0)])


def test_slices_of_rows_and_points_give_the_same_answers(
    folder: Path, city: tuple[pd.DataFrame, pd.DataFrame], monkeypatch: pytest.MonkeyPatch
) -> None:
    served, X, deadline = load_served(folder, "city"), city[0].to_numpy()[:9], time.monotonic() + 60.0
    questions: list[Any] = [
        Density(rows=[{}], points=[[0.2, 0.3, 0.5], [0.6, 0.3, 0.1]]),
        Density(rows=[{}], labels=["business"], at=[0.3, 0.7, 0.9]),
        Predict(rows=[{}], levels=[0.8]),
        Groups(rows=[{}], groups={"work": ["business", "education"]}),
    ]
    whole = [answer_together([Asked(served, one, X, Limits(), deadline)])[0] for one in questions]
    monkeypatch.setattr(answers_module, "BLOCK_ROWS", 2)
    monkeypatch.setattr(answers_module, "BLOCK_CELLS", 2)
    for question, expected in zip(questions, whole):
        sliced = answer_together([Asked(served, question, X, Limits(), deadline)])[0]
        for name, values in expected.columns.items():
            np.testing.assert_allclose(sliced.columns[name], values, atol=1e-6, err_msg=name)


def test_bodies_of_clients_that_leave_or_send_too_much(folder: Path) -> None:
    lines = io.StringIO()
    app = create_app([folder], limits=Limits(body_bytes=100), log=Log(lines))
    scope = {"type": "http", "method": "POST", "path": "/v1/predict", "headers": [], "query_string": b""}

    def ask(*messages: dict[str, Any]) -> int:
        waiting, sent = list(messages), []

        async def receive() -> Any:
            return waiting.pop(0)

        async def send(message: Any) -> None:
            sent.append(message)

        asyncio.run(app({**scope}, receive, send))
        return int(sent[0]["status"])

    part = {"type": "http.request", "body": b" " * 80, "more_body": True}
    assert ask(part, {"type": "http.disconnect"}) == 499
    assert ask(part, part, part) == 413  # the rest is not read
    assert '"error"' not in lines.getvalue()


def test_replies_forbid_frames_and_sniffing(folder: Path) -> None:
    app = create_app([folder], token="secret", log=Log(io.StringIO()))

    async def ask() -> list[httpx.Response]:
        async with client_of(app) as client:
            right = {"authorization": "Bearer secret"}
            paths = ("/", "/healthz", "/metrics", "/nothing")
            return [*[await client.get(path, headers=right) for path in paths], await client.get("/")]

    for answer in asyncio.run(ask()):
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
        assert len(answer.headers.get_list("content-security-policy")) == 1
