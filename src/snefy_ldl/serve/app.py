"""The service as an application: routes, lanes, models and their reloading."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, Response
from starlette.exceptions import HTTPException

from snefy_ldl._version import __version__
from snefy_ldl.errors import SnefyError
from snefy_ldl.serve.answers import Asked, answer_alone, answer_predictions, prediction_key
from snefy_ldl.serve.batching import Lane
from snefy_ldl.serve.card import model_card, typical_row
from snefy_ldl.serve.faults import Fault
from snefy_ldl.serve.guard import Guard
from snefy_ldl.serve.limits import Limits
from snefy_ldl.serve.openapi import describe
from snefy_ldl.serve.pages import Pages
from snefy_ldl.serve.replies import fault_reply, json_reply, read_body, read_question, reply
from snefy_ldl.serve.rows import feature_rows
from snefy_ldl.serve.schemas import QUESTIONS, Predict, Question
from snefy_ldl.serve.store import ModelStore
from snefy_ldl.serve.telemetry import Log, Telemetry

__all__ = ["Service", "create_app"]


class Service:
    """What the routes share: models, lanes, counters.

    Args:
        folders: of the models, the default first.
        limits: on requests and queue.
        data: table whose rows the page at ``/`` shows, or None.
        reload_seconds: between two looks at the folders.
        log: writes lines.
        backbone: the network of those models whose code is not saved with them, or None.

    Example:
        >>> import tempfile
        >>> from snefy_ldl import SnefyLDL
        >>> from snefy_ldl.synthetic import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> model = SnefyLDL(epochs=1, guides=None, random_state=0).fit(city.X[:30], city.D[:30])
        >>> from snefy_ldl.serve.limits import Limits
        >>> from snefy_ldl.serve.telemetry import Log
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
        self.store = ModelStore(folders, self._loaded, backbone)
        self.quick = Lane("predictions", limits, self.telemetry.batch)
        self.slow = Lane("questions", limits, self.telemetry.batch)
        self.pages = Pages(data)
        self.stopping = False
        self._reload_seconds = reload_seconds
        self.telemetry.waiting.set_function(lambda: float(len(self.quick) + len(self.slow)))
        for served in self.store.models:
            self._warm(served)

    def _loaded(self, event: str, **fields: Any) -> None:
        self.telemetry.load(fields["model"], event)
        self.log(event, **fields)

    def _warm(self, served: Any) -> None:
        """Ask one row, so that tables are made before anybody waits for them."""
        row = typical_row(served)
        if row is None:  # the network is the user's own
            return
        X = feature_rows(served, [row])
        question = Predict(rows=[{}], levels=[0.9])
        answer_predictions([Asked(served, question, X, self.limits, time.monotonic() + 60.0)])

    def is_full(self) -> bool:
        """Whether no further question may wait."""
        return len(self.quick) >= self.limits.queue or len(self.slow) >= self.limits.queue

    async def watch(self) -> None:
        """Read models again when their folders change, for ever."""
        while True:
            await asyncio.sleep(self._reload_seconds)
            await asyncio.to_thread(self.store.refresh)

    async def answer(self, path: str, kind: type[Question], request: Request) -> Response:
        """The whole way of a question.

        Args:
            path: of the question.
            kind: its class.
            request: as it came.

        Returns:
            The response.

        Raises:
            Fault: it cannot be answered.
        """
        body = await read_body(request, self.limits)
        question = read_question(kind, request, body, self.limits)
        served = self.store.get(question.model)
        X = feature_rows(served, question.rows)
        request.scope.setdefault("state", {})["logged"] = {
            "rows": len(X),
            "model": served.name,
            "version": served.version,
        }
        asked = Asked(served, question, X, self.limits, time.monotonic() + self.limits.seconds)
        try:
            if isinstance(question, Predict):
                made = await self.quick.ask(prediction_key(asked), asked, len(X), answer_predictions)
            else:
                made = await self.slow.ask(None, asked, len(X), lambda parts: [answer_alone(part) for part in parts])
        except SnefyError as error:
            raise Fault(422, " ".join(str(error).split())) from None
        self.telemetry.rows(f"/v1/{path}", len(X))
        return reply(made, served, request.headers.get("accept", ""))


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
        token: that every request must bring (``Authorization: Bearer ...``); None asks for none.
        limits: on requests and queue; :class:`Limits`' own by default.
        data: table whose rows the page at ``/`` shows; without, it shows one typical row.
        reload_seconds: between two looks at the folders.
        log: writes a line an event; to standard error by default.
        backbone: the network of those models whose code is not saved with them, as ``SnefyLDL.load`` takes it.

    Returns:
        The application; ``.service`` is what it works with.

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
        watcher = asyncio.create_task(service.watch())
        yield
        watcher.cancel()
        await asyncio.to_thread(service.quick.close)
        await asyncio.to_thread(service.slow.close)

    app = FastAPI(
        title="SNEFY-LDL",
        version=__version__,
        description="Label distributions with a full density: means, intervals, groups, votes.",
        lifespan=lifespan,
        docs_url=None,  # their pages load scripts from elsewhere
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
        """A model's card: on what it was trained, how it was measured, what it cannot answer."""
        return json_reply(model_card(service.store.get(name)))

    @app.get("/healthz")
    async def healthz() -> Response:
        """Whether the service lives."""
        return json_reply({"status": "alive"})

    @app.get("/readyz")
    async def readyz() -> Response:
        """Whether the service takes requests."""
        if service.stopping:
            return json_reply({"status": "stopping"}, 503, {"Retry-After": "5"})
        return json_reply({"status": "ready", "models": [one.name for one in service.store.models]})

    @app.get("/metrics")
    async def metrics() -> Response:
        """Counters in Prometheus' text format."""
        return Response(service.telemetry.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/", response_class=HTMLResponse)
    async def explorer(model: str | None = None) -> Response:
        """The page that explores a model."""
        served = service.store.get(model)
        try:
            page = await asyncio.to_thread(service.pages.get, served)
        except SnefyError as error:  # the rows are those of another model, say
            raise Fault(404, f"there is no page of this model: {' '.join(str(error).split())}") from None
        return HTMLResponse(page, headers={"Content-Security-Policy": service.pages.policy})
