"""The service as an ASGI application: routes, queues, models, their preparation and reloading."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, Response
from starlette.exceptions import HTTPException

from snefy_ldl._internal.version import __version__
from snefy_ldl.apps.serve.answers import Answer, Asked, answer_alone, answer_predictions, feature_rows, prediction_key
from snefy_ldl.apps.serve.batching import Caller, Lane
from snefy_ldl.apps.serve.explorer import PageRows, make_page
from snefy_ldl.apps.serve.guard import Guard, Log, Telemetry, fault_reply, json_reply, read_body, read_question, reply
from snefy_ldl.apps.serve.limits import Fault, HungUp, Limits, Overload
from snefy_ldl.apps.serve.schemas import QUESTIONS, Predict, Question, describe
from snefy_ldl.apps.serve.store import ModelStore, ServedModel, model_card, typical_row
from snefy_ldl.errors import InputError, SnefyError

__all__ = ["Service", "create_app"]

#: Bytes of a body, and numbers of an answer, above which a thread reads or writes them.
LONG_BODY, LONG_ANSWER = 1 << 16, 20_000
#: Number of these threads.
READERS = 4
#: Shown, and reloaded by the browser, while a model's page is being made.
WAITING_PAGE = "<!DOCTYPE html><title>preparing</title><p>This model is being prepared; its page will appear here."
#: Time limit for preparing a model: as long as it takes.
PREPARING_SECONDS = 86_400.0


class Service:
    """What the routes share: models, queues, counters.

    Args:
        folders: of the models, the default first.
        limits: on requests and queue.
        data: table whose rows the page at ``/`` shows, or None.
        reload_seconds: between two checks whether a folder has changed.
        log: writes log lines.
        backbone: custom network of models that were saved without its code, or None.

    Example:
        >>> import tempfile
        >>> from snefy_ldl import SnefyLDL
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> model = SnefyLDL(epochs=1, guides=None, random_state=0).fit(city.X[:30], city.D[:30])
        >>> from snefy_ldl.apps.serve.limits import Limits
        >>> from snefy_ldl.apps.serve.guard import Log
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     service = Service([model.save(f"{folder}/city")], Limits(), None, 2.0, Log())
        ...     service.stopping
        False
    """

    def __init__(
        self,
        folders: Sequence[Path],
        limits: Limits,
        data: Path | None,
        reload_seconds: float,
        log: Log,
        backbone: Any = None,
    ) -> None:
        self.limits, self.log, self.telemetry = limits, log, Telemetry()
        self.store = ModelStore(folders, self._loaded, self._prepare, backbone)
        self.pages = Pages(data)
        self.stopping = False
        self._reload_seconds = reload_seconds
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="reader")
        names = [served.name for served in self.store.models]
        # a queue and a thread per model, so that a slow model does not delay the others
        self._quick = {name: Lane(f"{name}: predictions", limits, self.telemetry.batch) for name in names}
        self._slow = {name: Lane(f"{name}: questions", limits, self.telemetry.batch) for name in names}
        lanes = [*self._quick.values(), *self._slow.values()]
        self.telemetry.waiting.set_function(lambda: float(sum(len(lane) for lane in lanes)))
        self._prepared: dict[str, Future[None]] = {name: Future() for name in names}
        for served in self.store.models:
            threading.Thread(target=self._prepare_first, args=(served,), name="prepare", daemon=True).start()

    def _loaded(self, event: str, **fields: Any) -> None:
        self.telemetry.loads.labels(fields["model"], event).inc()
        self.log(event, **fields)

    # -- preparation ---------------------------------------------------------------------------------------------------

    def _prepare(self, served: ServedModel) -> None:
        """Predict one row twice, so that tables are made and the time per row is known before the first request."""
        self.log("preparing", model=served.name, version=served.version)
        began = time.perf_counter()
        row = typical_row(served)
        if row is None:  # a custom network: nobody knows what it takes
            return
        X = feature_rows(served, [row])
        question, limits = Predict(rows=[{}], levels=[0.9]), replace(self.limits, seconds=PREPARING_SECONDS)
        for _ in range(2):
            asked_at = time.perf_counter()
            answer_predictions([Asked(served, question, X, limits, Caller(PREPARING_SECONDS))])
        done = time.perf_counter()
        seconds, row_seconds = round(done - began, 3), round(done - asked_at, 4)
        self.log("prepared", model=served.name, version=served.version, seconds=seconds, row_seconds=row_seconds)

    def _prepare_first(self, served: ServedModel) -> None:
        prepared = self._prepared[served.name]
        try:
            self._prepare(served)
        except Exception as error:  # the other models must go on whatever fails here
            self.log("prepare failed", model=served.name, version=served.version, reason=str(error)[:300])
            prepared.set_exception(error)
        else:
            prepared.set_result(None)
            if all(other.done() and other.exception() is None for other in self._prepared.values()):
                self.log("ready")

    def state(self) -> tuple[str, list[str]]:
        """Whether the service takes requests.

        Returns:
            "ready", "stopping", "preparing" or "failed"; and the names of the models concerned.
        """
        if self.stopping:
            return "stopping", []
        failed = [name for name, one in self._prepared.items() if one.done() and one.exception() is not None]
        preparing = [name for name, one in self._prepared.items() if not one.done()]
        if failed or preparing:
            return ("failed", failed) if failed else ("preparing", preparing)
        return "ready", list(self._prepared)

    def wait(self) -> None:
        """Wait until all models are prepared.

        Raises:
            Exception: what a model's preparation raised.
        """
        for prepared in self._prepared.values():
            prepared.result()

    async def until_prepared(self, name: str, caller: Caller) -> None:
        """Wait until a model is prepared.

        Args:
            name: of the model.
            caller: who waits.

        Raises:
            Overload: it is not prepared within the caller's time.
            Fault: 503, it could not be prepared.
        """
        prepared = self._prepared[name]
        try:
            await caller.wait(prepared, f"model {name!r} is being prepared; try again in a moment.")
        except Overload:
            raise
        except Exception:
            raise Fault(503, f"model {name!r} could not be prepared; the log says why.", field="model") from None

    # -- questions -----------------------------------------------------------------------------------------------------

    def is_full(self, path: str) -> bool:
        """Whether the queues of all models are full.

        Args:
            path: of the request.

        Returns:
            True if no request to this path can be accepted.
        """
        lanes = self._quick if path == "/v1/predict" else self._slow
        return all(len(lane) >= self.limits.queue for lane in lanes.values())

    def watch(self, stopped: threading.Event) -> None:
        """Reload models when their folders change.

        Args:
            stopped: ends the loop.
        """
        while not stopped.wait(self._reload_seconds):
            self.store.refresh()

    def close(self) -> None:
        """Answer the accepted requests, then stop."""
        lanes, end = [*self._quick.values(), *self._slow.values()], time.monotonic() + self.limits.seconds + 5.0
        for lane in lanes:
            lane.close(0.0)
        for lane in lanes:
            lane.close(max(end - time.monotonic(), 0.0))
        self._readers.shutdown(wait=False)

    async def answer(self, path: str, kind: type[Question], request: Request) -> Response:
        """Read, compute and answer a request.

        Args:
            path: of the request.
            kind: its class.
            request: as it arrived.

        Returns:
            The response.

        Raises:
            Fault: it cannot be answered.
        """
        body = await read_body(request, self.limits)
        caller = Caller(self.limits.seconds)
        asked = await self._beside(len(body) > LONG_BODY, lambda: self._read(kind, request, body, caller))
        served, rows = asked.served, len(asked.X)
        request.scope.setdefault("state", {})["logged"] = {
            "rows": rows,
            "model": served.name,
            "version": served.version,
        }
        try:
            made = await _while_there(request, caller, self._work(asked))
        except SnefyError as error:
            raise Fault(422, " ".join(str(error).split())) from None
        self.telemetry.rows.labels(f"/v1/{path}").inc(rows)
        is_long = sum(values.size for values in made.columns.values()) > LONG_ANSWER
        return await self._beside(is_long, lambda: reply(made, served))

    def _read(self, kind: type[Question], request: Request, body: bytes, caller: Caller) -> Asked:
        question = read_question(kind, request, body, self.limits)
        served = self.store.get(question.model)
        return Asked(served, question, feature_rows(served, question.rows), self.limits, caller)

    async def _work(self, asked: Asked) -> Answer:
        name = asked.served.name
        await self.until_prepared(name, asked.caller)
        if isinstance(asked.question, Predict):
            key, lane, work = prediction_key(asked), self._quick[name], answer_predictions
        else:
            key, lane, work = None, self._slow[name], _answer_each
        return await lane.ask(key, asked, len(asked.X), work, asked.caller)

    async def _beside(self, is_long: bool, work: Callable[[], Any]) -> Any:
        """Run something, in a thread if it takes long."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, work) if is_long else work()


def _answer_each(requests: Sequence[Asked]) -> list[Answer]:
    return [answer_alone(asked) for asked in requests]


async def _while_there(request: Request, caller: Caller, work: Coroutine[Any, Any, Answer]) -> Answer:
    """The result of some work; if the client disconnects first, the work is cancelled."""

    async def leave() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(leave())
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise HungUp
        return working.result()
    finally:
        caller.gone = True
        working.cancel()
        leaving.cancel()


def create_app(
    folders: Sequence[str | Path],
    *,
    token: str | None = None,
    limits: Limits | None = None,
    data: str | Path | None = None,
    reload_seconds: float = 2.0,
    log: Log | None = None,
    backbone: Any = None,
) -> Any:
    """The service as an ASGI application.

    Args:
        folders: of saved models; the first is the default one.
        token: that every request must send (``Authorization: Bearer ...``); None for no authentication.
        limits: on requests and queue; the defaults of :class:`Limits` if None.
        data: table whose rows the page at ``/`` shows; by default one typical row.
        reload_seconds: between two checks whether a folder has changed.
        log: writes one line per event; to standard error by default.
        backbone: custom network of models that were saved without its code, as for ``SnefyLDL.load``.

    Returns:
        The application; its :class:`Service` is ``.service``.

    Raises:
        ModelFileError: a folder holds no whole model.
        InputError: there is no folder, or two have one name.

    Example:
        >>> create_app([])
        Traceback (most recent call last):
            ...
        snefy_ldl.errors.InputError: name at least one model folder to serve.
    """
    service = Service(
        [Path(folder) for folder in folders],
        limits or Limits(),
        None if data is None else Path(data),
        reload_seconds,
        log or Log(),
        backbone,
    )

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        stopped = threading.Event()
        threading.Thread(target=service.watch, args=(stopped,), name="watch", daemon=True).start()
        yield
        stopped.set()
        await asyncio.to_thread(service.close)

    app = FastAPI(
        title="SNEFY-LDL",
        version=__version__,
        description="Conditional densities over label distributions: means, intervals, groups, votes.",
        lifespan=lifespan,
        docs_url=None,  # FastAPI's pages load scripts from other hosts
        redoc_url=None,
    )
    app.add_exception_handler(Fault, _show_fault)
    app.add_exception_handler(HTTPException, _show_http)
    _add_questions(app, service)
    _add_pages(app, service)
    routes = [getattr(route, "path", "") for route in app.routes]
    guard = Guard(app, routes, token, service.is_full, service.telemetry, service.log)
    guard.service = service  # type: ignore[attr-defined]
    return guard


async def _show_fault(request: Request, error: Exception) -> Response:
    assert isinstance(error, Fault)
    return fault_reply(error)


async def _show_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return json_reply({"error": str(error.detail)}, error.status_code, error.headers)


def _add_questions(app: FastAPI, service: Service) -> None:
    def route_of(path: str, kind: type[Question]) -> Callable[[Request], Awaitable[Response]]:
        async def route(request: Request) -> Response:
            return await service.answer(path, kind, request)

        route.__name__, route.__doc__ = path, kind.__doc__
        return route

    served = service.store.get()
    for path, kind in QUESTIONS.items():
        extra = describe(path, kind, served.labels, typical_row(served))
        app.post(f"/v1/{path}", openapi_extra=extra, response_model=None)(route_of(path, kind))


def _add_pages(app: FastAPI, service: Service) -> None:
    @app.get("/v1/models")
    async def models() -> Response:
        """The models by name."""
        return json_reply({"models": [{"name": one.name, "version": one.version} for one in service.store.models]})

    @app.get("/v1/model")
    async def model(name: str | None = None) -> Response:
        """A model's card: training data, measures and limitations."""
        return json_reply(model_card(service.store.get(name)))

    @app.get("/healthz")
    async def healthz() -> Response:
        """Whether the process is alive."""
        return json_reply({"status": "alive"})

    @app.get("/readyz")
    async def readyz() -> Response:
        """Whether the service takes requests: 200 once all models are prepared."""
        status, names = service.state()
        ready = status == "ready"
        return json_reply(
            {"status": status, "models": names}, 200 if ready else 503, {} if ready else {"Retry-After": "5"}
        )

    @app.get("/metrics")
    async def metrics() -> Response:
        """Counters in Prometheus' text format."""
        return Response(service.telemetry.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/", response_class=HTMLResponse)
    async def explorer(model: str | None = None) -> Response:
        """The page that explores a model."""
        served, caller = service.store.get(model), Caller(service.limits.seconds)
        try:
            await service.until_prepared(served.name, caller)
            page = await service.pages.get(served, caller)
        except Overload:
            return HTMLResponse(WAITING_PAGE, 503, {"Retry-After": "3", "Refresh": "3"})
        except SnefyError as error:  # for example, rows that do not fit the model
            raise Fault(404, f"there is no page of this model: {' '.join(str(error).split())}") from None
        return HTMLResponse(page, headers={"Content-Security-Policy": service.pages.policy})


class Pages:
    """The explorer page of each served model, made once per version.

    Args:
        data: table whose rows the pages show, or None.

    Example:
        >>> Pages(None).policy.startswith("default-src 'none'")
        True
    """

    #: Security policy of the page: its own script and style, nothing from other hosts.
    policy = (
        "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; "
        "connect-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )

    def __init__(self, data: Path | None) -> None:
        self._data, self._lock = data, threading.Lock()
        self._made: dict[str, tuple[str, Future[str]]] = {}

    async def get(self, served: ServedModel, caller: Caller) -> str:
        """The page of a model's current version; it is made once, whatever the number of requests.

        Args:
            served: the model.
            caller: who waits.

        Returns:
            One HTML document.

        Raises:
            InputError: the rows of the table do not fit the model, or the model has a custom network.
            Overload: the page is not ready within the caller's time; try again later.
        """
        if served.is_own:
            raise InputError("the page cannot run a custom network in the browser; use /v1/predict instead.")
        with self._lock:
            version, made = self._made.get(served.name, ("", Future()))
            if version != served.version or (made.done() and made.exception() is not None):
                made = Future()
                self._made[served.name] = (served.version, made)
                threading.Thread(target=self._make, args=(served, made), name="page", daemon=True).start()
        return await caller.wait(made, "the page is being made; try again in a moment.")

    def _make(self, served: ServedModel, made: Future[str]) -> None:
        try:
            rows = None if self._data is None else PageRows.read(served.model, self._data)
            made.set_result(make_page(served.model, rows, served.name, served.calibrated))
        except Exception as error:  # raised where the page is awaited
            made.set_exception(error)
