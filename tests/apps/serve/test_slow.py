"""What is slow: models, clients, bodies and first answers; none of them keeps anybody else waiting."""

from __future__ import annotations

import asyncio
import io
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pandas as pd
import pytest
import torch
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from snefy_ldl import SnefyLDL
from snefy_ldl.apps.serve import answers as answers_module
from snefy_ldl.apps.serve import app as app_module
from snefy_ldl.apps.serve import server as server_module
from snefy_ldl.apps.serve.answers import Asked, answer_alone, answer_predictions
from snefy_ldl.apps.serve.app import create_app
from snefy_ldl.apps.serve.batching import Caller, slices
from snefy_ldl.apps.serve.limits import Limits, Overload
from snefy_ldl.apps.serve.schemas import Density, Predict
from snefy_ldl.apps.serve.store import load_served
from snefy_ldl.apps.serve.transport import Log

Table = tuple[pd.DataFrame, pd.DataFrame]
WAIT = 20.0  # seconds after which a test that waits for something gives up
CLOSE = 1e-6  # the network works in single precision, and rounds by the size of its batch


class Watched:
    """A model whose laws are counted, and held up by whatever a test wants."""

    def __init__(self, model: Any, before: Callable[[int], None]) -> None:
        self._model, self._before = model, before
        self.sizes: list[int] = []

    def predict_dist(self, X: Any) -> Any:
        self.sizes.append(len(X))
        self._before(len(X))
        return self._model.predict_dist(X)


def watch(app: Any, name: str, before: Callable[[int], None]) -> Watched:
    """Put a watched model into a service that is ready."""
    app.service.wait()
    store = app.service.store
    watched = Watched(store.get(name).inner, before)
    store._models[name] = replace(store.get(name), inner=watched, calibrated=None)
    return watched


def until(is_so: Callable[[], bool]) -> None:
    """Wait for something to become true."""
    end = time.monotonic() + WAIT
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.005)


def client_of(app: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service", timeout=WAIT)


def records(lines: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines.getvalue().splitlines()]


@pytest.fixture
def two(tmp_path: Path, folder: Path, small: SnefyLDL) -> list[Path]:
    return [folder, small.save(tmp_path / "slow")]


@pytest.fixture
def rows(city: Table) -> list[dict[str, float]]:
    return city[0][:40].to_dict("records")


# -- slow models -------------------------------------------------------------------------------------------------------


def test_a_slow_model_keeps_no_other_waiting(two: list[Path], rows: Any) -> None:
    app = create_app(two, limits=Limits(seconds=5.0), log=Log(io.StringIO()))
    go_on = threading.Event()
    watched = watch(app, "slow", lambda n: go_on.wait(WAIT) and None)

    async def both() -> list[int]:
        async with client_of(app) as client:
            held = asyncio.create_task(client.post("/v1/predict", json={"rows": rows, "model": "slow"}))
            while not watched.sizes:
                await asyncio.sleep(0.005)
            quick = await client.post("/v1/predict", json={"rows": rows[:1]})
            assert not held.done()
            go_on.set()
            return [quick.status_code, (await held).status_code]

    assert asyncio.run(both()) == [200, 200]


def test_a_computation_ends_when_its_time_is_up(two: list[Path], rows: Any) -> None:
    app = create_app(two, limits=Limits(seconds=2.0), log=Log(io.StringIO()))
    watched = watch(app, "slow", lambda n: time.sleep(0.15 * n))

    async def ask() -> list[int]:
        async with client_of(app) as client:
            first = await client.post("/v1/predict", json={"rows": rows, "model": "slow"})
            second = await client.post("/v1/predict", json={"rows": rows[:1], "model": "slow"})
            return [first.status_code, second.status_code]

    first, second = asyncio.run(ask())
    assert first in (413, 503)
    assert second == 200  # nobody works for the first any more
    assert sum(watched.sizes) < len(rows)


@pytest.mark.parametrize("leaves", [True, False])
def test_nobody_is_worked_for_who_has_left_or_whose_time_is_up(folder: Path, city: Table, leaves: bool) -> None:
    served, caller = load_served(folder, "city"), Caller(WAIT)

    def leave(n: int) -> None:
        caller.gone, caller.deadline = leaves, caller.deadline if leaves else 0.0

    watched = Watched(served.inner, leave)
    served = replace(served, inner=watched)
    X = city[0].to_numpy()
    for answer, question in (
        (lambda asked: answer_predictions([asked]), Predict(rows=[{}])),
        (answer_alone, Density(rows=[{}], labels=["business"], at=[0.5])),
    ):
        caller.gone, caller.deadline = False, time.monotonic() + WAIT
        watched.sizes.clear()
        with pytest.raises(Overload, match="time for this request is up"):
            answer(Asked(served, question, X, Limits(), caller))
        assert watched.sizes == [1]  # of 160 rows


def test_a_question_that_turns_out_slow_is_refused_with_a_size_that_would_not(folder: Path, rows: Any) -> None:
    app = create_app([folder], limits=Limits(seconds=4.0), log=Log(io.StringIO()))
    watched = watch(app, "city", lambda n: time.sleep(0.25 * n))

    async def ask() -> Any:
        async with client_of(app) as client:
            return await client.post("/v1/groups", json={"rows": rows, "groups": {"work": ["business"]}})

    refused = asyncio.run(ask())
    assert refused.status_code == 413, refused.text
    said = r"40 rows would take about (\d+) s here, and a request may take 4 s; send at most (\d+) rows at a time\."
    seconds, most = map(int, re.fullmatch(said, refused.json()["error"]).groups())
    assert seconds >= 10  # as long as it sleeps, and longer on a busy machine
    assert 1 <= most <= 16
    assert refused.json()["field"] == "rows"
    assert sum(watched.sizes) <= 4


def test_one_slow_moment_of_the_machine_refuses_nobody() -> None:
    seen = []
    for part in slices(40, [Caller(WAIT)], Limits(seconds=1.0), most=4):
        seen.append(part)
        if part.start == 5:
            time.sleep(0.2)  # forty such rows would take two seconds
    assert seen[-1].stop == 40


def test_many_points_are_answered_in_slices_and_are_the_laws(
    folder: Path, city: Table, small: SnefyLDL, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers_module, "MANY_POINTS", 10)
    monkeypatch.setattr(answers_module, "MOST_POINTS", 16)
    points = np.random.default_rng(0).dirichlet([2.0, 3.0, 4.0], size=50)
    served, X = load_served(folder, "city"), city[0].to_numpy()[:3]
    law = small.predict_dist(X)
    question = Density(rows=[{}], points=points.tolist())
    got = answer_alone(Asked(served, question, X, Limits(), Caller(WAIT))).columns
    np.testing.assert_allclose(got["log_density"], law.log_prob(torch.tensor(points)[:, None]).T, atol=CLOSE)
    question = Density(rows=[{}], labels=["business", "education"], at=points[:, 0].tolist())
    got = answer_alone(Asked(served, question, X, Limits(), Caller(WAIT))).columns
    share, at = law.marginal([0, 2]), torch.tensor(points[:, :1])
    np.testing.assert_allclose(got["density"], share.log_prob(at).exp().T, atol=CLOSE)
    np.testing.assert_allclose(got["probability_below"], share.cdf(at).T, atol=CLOSE)


# -- slow first answers ------------------------------------------------------------------------------------------------


def test_the_port_is_open_while_a_model_is_prepared(folder: Path, rows: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, lines = threading.Event(), io.StringIO()

    def held(requests: Any) -> Any:
        assert go_on.wait(WAIT)
        return answer_predictions(requests)

    monkeypatch.setattr(app_module, "answer_predictions", held)
    app = create_app([folder], limits=Limits(seconds=1.0), log=Log(lines))

    async def ask() -> None:
        async with client_of(app) as client:
            assert (await client.get("/healthz")).status_code == 200
            ready = await client.get("/readyz")
            assert (ready.status_code, ready.json()) == (503, {"status": "preparing", "models": ["city"]})
            answer = await client.post("/v1/predict", json={"rows": rows[:1]})
            assert answer.status_code == 503
            assert "is being prepared" in answer.json()["error"]
            page = await client.get("/")
            assert (page.status_code, page.headers["refresh"]) == (503, "3")
            assert [one["event"] for one in records(lines)][:2] == ["loaded", "preparing"]
            go_on.set()
            await asyncio.to_thread(app.service.wait)
            assert (await client.get("/readyz")).status_code == 200
            assert (await client.post("/v1/predict", json={"rows": rows[:1]})).status_code == 200

    asyncio.run(ask())
    prepared = next(one for one in records(lines) if one["event"] == "prepared")
    assert {"model", "seconds", "row_seconds"} <= prepared.keys()
    until(lambda: any(one["event"] == "ready" for one in records(lines)))


def test_a_model_that_cannot_answer_is_never_ready(folder: Path, rows: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = io.StringIO()

    def fail(requests: Any) -> Any:
        raise ValueError("no law")

    monkeypatch.setattr(app_module, "answer_predictions", fail)
    app = create_app([folder], log=Log(lines))
    with pytest.raises(ValueError, match="no law"):
        app.service.wait()

    async def ask() -> None:
        async with client_of(app) as client:
            ready = await client.get("/readyz")
            assert (ready.status_code, ready.json()["status"]) == (503, "failed")
            assert (await client.post("/v1/predict", json={"rows": rows[:1]})).status_code == 503

    asyncio.run(ask())
    assert any(one["event"] == "prepare failed" and one["reason"] == "no law" for one in records(lines))


# -- slow clients ------------------------------------------------------------------------------------------------------


@contextmanager
def serving(app: Any) -> Iterator[int]:
    """The port of a real server."""
    server = server_module.make_server(app, "127.0.0.1", 0)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        until(lambda: bool(server.started and server.servers))
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(WAIT)


@pytest.fixture(params=[HttpToolsProtocol, H11Protocol], ids=["httptools", "h11"])
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    made = server_module.make_protocol
    monkeypatch.setattr(server_module, "make_protocol", lambda limits: made(limits, request.param))


@pytest.fixture
def connect() -> Iterator[Callable[..., socket.socket]]:
    """Opens connections, and closes what a test leaves open."""
    with ExitStack() as stack:

        def open_one(port: int, sent: bytes = b"") -> socket.socket:
            made = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=WAIT))
            made.sendall(sent)
            return made

        yield open_one


def rest(connection: socket.socket) -> bytes:
    """All that comes until the other side closes."""
    parts = []
    try:
        while part := connection.recv(65_536):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


HALF_HEAD = b"POST /v1/predict HTTP/1.1\r\nhost: x\r\n"
HALF_BODY = HALF_HEAD + b"content-type: application/json\r\ncontent-length: 1000\r\n\r\n{"
HEALTH = b"GET /healthz HTTP/1.1\r\nhost: x\r\n"


@pytest.mark.usefixtures("parser")
def test_half_a_request_is_not_waited_for_long(folder: Path, connect: Any) -> None:
    limits = Limits(head_seconds=0.2, body_seconds=0.2)
    lines = io.StringIO()
    app = create_app([folder], limits=limits, token="secret", log=Log(lines))
    allowed = HALF_BODY.replace(b"host: x", b"host: x\r\nauthorization: Bearer secret")
    with serving(app) as port:
        assert rest(connect(port)).startswith(b"HTTP/1.1 408")
        assert rest(connect(port, HALF_HEAD)).startswith(b"HTTP/1.1 408")
        assert rest(connect(port, HALF_BODY)).startswith(b"HTTP/1.1 401")  # the body is not waited for
        late = rest(connect(port, allowed))
        assert late.startswith(b"HTTP/1.1 408")
        assert b"within 0.2 s" in late
        # another request on a connection that was used, half of it
        again = connect(port, HEALTH + b"authorization: Bearer secret\r\n\r\n")
        assert again.recv(65_536).startswith(b"HTTP/1.1 200")
        again.sendall(HALF_HEAD)
        assert rest(again) == b""
    assert all(one["status"] != 500 for one in records(lines) if one["event"] == "request")


@pytest.mark.usefixtures("parser")
def test_connections_are_limited_and_health_checks_get_through(folder: Path, rows: Any, connect: Any) -> None:
    limits = Limits(connections=6, spare_connections=3, head_seconds=WAIT, body_seconds=WAIT)
    app = create_app([folder], limits=limits, log=Log(io.StringIO()))
    go_on = threading.Event()
    watched = watch(app, "city", lambda n: go_on.wait(WAIT) and None)
    with serving(app) as port:
        held = [connect(port, HALF_HEAD) for _ in range(30)]
        assert rest(held[0]) == b""  # the oldest made room
        assert httpx.get(f"http://127.0.0.1:{port}/healthz").status_code == 200
        for one in held:
            one.close()
        bodies = [json.dumps({"rows": rows[:1], "levels": [0.1 * k]}).encode() for k in range(1, 7)]  # none together
        head = HALF_HEAD + b"content-type: application/json\r\ncontent-length: "
        working = [connect(port, head + f"{len(body)}\r\n\r\n".encode() + body) for body in bodies]
        until(lambda: bool(watched.sizes) and len(app.service._quick["city"]) == 5)
        assert httpx.get(f"http://127.0.0.1:{port}/healthz").status_code == 200
        refused = httpx.post(f"http://127.0.0.1:{port}/v1/predict", json={"rows": rows[:1]})
        assert refused.status_code == 503
        assert "connections" in refused.json()["error"]
        go_on.set()
        assert all(one.recv(65_536).startswith(b"HTTP/1.1 200") for one in working)
        for one in working:
            one.close()


@pytest.mark.usefixtures("parser")
def test_half_bodies_keep_no_health_check_out(folder: Path, connect: Any) -> None:
    limits = Limits(connections=6, spare_connections=3, head_seconds=WAIT, body_seconds=WAIT)
    with serving(create_app([folder], limits=limits, log=Log(io.StringIO()))) as port:
        held = [connect(port, HALF_BODY) for _ in range(30)]
        assert httpx.get(f"http://127.0.0.1:{port}/healthz").status_code == 200
        for one in held:
            one.close()


def test_there_are_fewer_connections_than_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    monkeypatch.setattr(resource, "getrlimit", lambda which: (200, 200))
    seen: list[Limits] = []
    made = server_module.make_protocol
    monkeypatch.setattr(server_module, "make_protocol", lambda limits: seen.append(limits) or made(limits))
    app = create_app([folder], log=Log(io.StringIO()))
    server = server_module.make_server(app)
    assert seen[0].connections + seen[0].spare_connections + server.config.backlog <= 200 - 64


@pytest.mark.usefixtures("parser")
def test_a_client_that_hangs_up_is_no_mistake_of_the_service(folder: Path, rows: Any, connect: Any) -> None:
    lines, go_on = io.StringIO(), threading.Event()
    app = create_app([folder], log=Log(lines))
    watched = watch(app, "city", lambda n: go_on.wait(WAIT) and None)
    whole = json.dumps({"rows": rows, "groups": {"work": ["business"]}}).encode()
    head = b"POST /v1/groups HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    with serving(app) as port:
        connect(port, HALF_BODY).close()
        connect(port, head + f"content-length: {len(whole)}\r\n\r\n".encode() + whole).close()
        until(lambda: len([one for one in records(lines) if one["event"] == "request"]) == 2)
        go_on.set()
    statuses = [one["status"] for one in records(lines) if one["event"] == "request"]
    assert statuses == [499, 499]
    assert not any(one["event"] == "error" for one in records(lines))
    assert sum(watched.sizes) <= 1  # of forty rows


def test_long_bodies_and_answers_are_read_and_written_beside_the_loop(
    folder: Path, city: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = create_app([folder], log=Log(io.StringIO()))
    steps = {"read_question": threading.Event(), "reply": threading.Event()}
    reached = {name: threading.Event() for name in steps}

    def held(name: str) -> Any:
        made = getattr(app_module, name)

        def wait(*args: Any) -> Any:
            reached[name].set()
            assert steps[name].wait(5.0)
            return made(*args)

        return wait

    for name in steps:
        monkeypatch.setattr(app_module, name, held(name))
    body = {"rows": city[0].to_dict("records") * 20}

    async def ask() -> int:
        async with client_of(app) as client:
            long = asyncio.create_task(client.post("/v1/predict", json=body))
            for name, go_on in steps.items():
                while not reached[name].is_set():
                    assert not long.done()
                    await asyncio.sleep(0.005)
                assert (await client.get("/healthz")).status_code == 200
                go_on.set()
            return (await long).status_code

    assert asyncio.run(ask()) == 200


def test_replies_are_what_they_say_and_stand_in_no_frame(folder: Path) -> None:
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
