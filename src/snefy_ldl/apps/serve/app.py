"""The service as an ASGI application: routes, queues, models and their reloading."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, Response
from starlette.exceptions import HTTPException

from snefy_ldl._internal.version import __version__
from snefy_ldl.apps.serve.answers import Asked, answer_together, feature_rows, prediction_key
from snefy_ldl.apps.serve.batching import Lane
from snefy_ldl.apps.serve.explorer import PageRows, make_page
from snefy_ldl.apps.serve.limits import Fault, Limits
from snefy_ldl.apps.serve.schemas import QUESTIONS, Question, describe, make_examples
from snefy_ldl.apps.serve.store import ModelStore, ServedModel, model_card, typical_row
from snefy_ldl.apps.serve.transport import (
    Front,
    Log,
    Telemetry,
    fault_reply,
    json_reply,
    read_body,
    read_question,
    reply,
)
from snefy_ldl.errors import InputError, SnefyError

__all__ = ["create_app"]

#: Bytes of a body, and numbers of an answer, above which a thread reads or writes them.
LONG_BODY, LONG_ANSWER = 1 << 16, 20_000
#: Security policy of the page: its own script and style, nothing from other hosts.
PAGE_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; "
    "connect-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class Service:
    """What the routes share: models, queues, counters, pages.

    Args:
        folders: of the models, the default first.
        limits: on requests and queue.
        data: table whose rows the page at ``/`` shows, or None.
        log: writes log lines.
        backbone: custom network of models that were saved without its code, or None.
    """

    def __init__(
        self, folders: Sequence[Path], limits: Limits, data: Path | None, log: Log, backbone: Any = None
    ) -> None:
        self.limits, self.log, self.telemetry, self._data = limits, log, Telemetry(), data
        self.store = ModelStore(folders, self._loaded, backbone)
        self._pages: dict[str, tuple[str, str]] = {}
        self._page_lock = threading.Lock()
        # two queues per model: neither another model nor a slow question delays predictions
        self.lanes = {
            (served.name, quick): Lane(f"{served.name}: {'predictions' if quick else 'questions'}", limits, self._batch)
            for served in self.store.models
            for quick in (True, False)
        }
        self.telemetry.waiting.set_function(lambda: float(sum(len(lane) for lane in self.lanes.values())))

    def _loaded(self, event: str, **fields: Any) -> None:
        self.telemetry.loads.labels(fields["model"], event).inc()
        self.log(event, **fields)

    def _batch(self, requests: int, seconds: float) -> None:
        self.telemetry.batches.observe(requests)
        self.telemetry.work.inc(seconds)

    def close(self) -> None:
        """Answer the accepted requests, then stop."""
        end = time.monotonic() + self.limits.seconds + 5.0
        for lane in self.lanes.values():
            lane.close(0.0)
        for lane in self.lanes.values():
            lane.close(max(end - time.monotonic(), 0.0))

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
        deadline = time.monotonic() + self.limits.seconds
        body = await read_body(request, self.limits)

        def read() -> Asked:
            question = read_question(kind, request, body, self.limits)
            served = self.store.get(question.model)
            return Asked(served, question, feature_rows(served, question.rows), self.limits, deadline)

        asked = await _aside(len(body) > LONG_BODY, read)
        served, rows, key = asked.served, len(asked.X), prediction_key(asked)
        request.state.logged = {"rows": rows, "model": served.name, "version": served.version}
        try:
            made = await self.lanes[served.name, key is not None].ask(key, asked, rows, answer_together)
        except SnefyError as error:
            raise Fault(422, " ".join(str(error).split())) from None
        self.telemetry.rows.labels(f"/v1/{path}").inc(rows)
        is_long = sum(values.size for values in made.columns.values()) > LONG_ANSWER
        return await _aside(is_long, lambda: reply(made, served))

    def page(self, served: ServedModel) -> str:
        """The explorer page of a model's current version, made once.

        Args:
            served: the model.

        Returns:
            One HTML document.

        Raises:
            InputError: the rows of the table do not fit the model, or the model has a custom network.
        """
        if served.is_custom:
            raise InputError("the page cannot run a custom network in the browser; use /v1/predict instead.")
        with self._page_lock:
            version, page = self._pages.get(served.name, ("", ""))
            if version != served.version:
                rows = None if self._data is None else PageRows.read(served.model, self._data)
                page = make_page(served.model, rows, served.name, served.calibrated)
                self._pages[served.name] = (served.version, page)
        return page


async def _aside(is_long: bool, work: Callable[[], Any]) -> Any:
    """Run something, in a thread if it takes long."""
    return await asyncio.to_thread(work) if is_long else work()


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
    table = None if data is None else Path(data)
    service = Service([Path(folder) for folder in folders], limits or Limits(), table, log or Log(), backbone)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        stopped = threading.Event()

        def watch() -> None:
            while not stopped.wait(reload_seconds):
                service.store.refresh()

        threading.Thread(target=watch, name="watch", daemon=True).start()
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
    front = Front(app, routes, token, service.telemetry, service.log)
    front.service = service  # type: ignore[attr-defined]
    return front


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
    votes = served.typical is not None and served.typical.supports("posterior")
    examples = make_examples(served.labels, typical_row(served), votes)
    for path, kind in QUESTIONS.items():
        extra = describe(kind, examples.get(path))
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
    @app.get("/readyz")
    async def healthz() -> Response:
        """Whether the service takes requests: it starts only after all models are loaded."""
        return json_reply({"status": "ready"})

    @app.get("/metrics")
    async def metrics() -> Response:
        """Counters in Prometheus' text format."""
        return Response(service.telemetry.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/", response_class=HTMLResponse)
    async def explorer(model: str | None = None) -> Response:
        """The page that explores a model."""
        try:
            page = await asyncio.to_thread(service.page, service.store.get(model))
        except SnefyError as error:  # for example, rows that do not fit the model
            raise Fault(404, f"there is no page of this model: {' '.join(str(error).split())}") from None
        return HTMLResponse(page, headers={"Content-Security-Policy": PAGE_POLICY})
