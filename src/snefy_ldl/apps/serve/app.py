"""The service: routes, token, limits, and the process that serves them."""

from __future__ import annotations

import base64
import binascii
import hmac
import json
import logging
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, Response
from starlette.exceptions import HTTPException

from snefy_ldl._internal.version import __version__
from snefy_ldl.apps.serve.answers import answer
from snefy_ldl.apps.serve.explorer import PageRows, make_page
from snefy_ldl.apps.serve.limits import Fault, Limits
from snefy_ldl.apps.serve.schemas import QUESTIONS, Question
from snefy_ldl.apps.serve.store import ModelStore, ServedModel
from snefy_ldl.errors import InputError, SnefyError

__all__ = ["create_app"]

#: How long an idle connection is kept, in seconds.
KEEP_ALIVE_SECONDS = 30
#: Headers of every reply, and the security policy of the page: its own script and style, nothing from other hosts.
HEADERS = {
    "x-content-type-options": "nosniff",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
}
PAGE_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; "
    "connect-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class _Json(Response):
    """JSON in ASCII, which also holds text that is not valid Unicode."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()


def create_app(
    folders: Sequence[str | Path],
    *,
    token: str | None = None,
    limits: Limits | None = None,
    data: str | Path | None = None,
) -> FastAPI:
    """The service as an ASGI application.

    Args:
        folders: of saved models; the first is the default one.
        token: that every request must send (``Authorization: Bearer ...``); None for no authentication.
        limits: on requests; the defaults of :class:`Limits` if None.
        data: table whose rows the page at ``/`` shows; None for no page.

    Returns:
        The application; its models are ``app.state.store``.

    Raises:
        ModelFileError: a folder holds no whole model.
        InputError: there is no folder, or two have one name.

    Example:
        >>> create_app([])
        Traceback (most recent call last):
            ...
        snefy_ldl.errors.InputError: name at least one model folder to serve.
    """
    store, limits = ModelStore([Path(folder) for folder in folders]), limits or Limits()

    app = FastAPI(
        title="SNEFY-LDL",
        version=__version__,
        description="Conditional densities over label distributions: means, intervals, groups, votes.",
        docs_url=None,  # FastAPI's pages load scripts from other hosts
        redoc_url=None,
    )
    app.state.store, app.state.limits = store, limits
    for kind, handler in {
        Fault: lambda request, error: _refuse(error),
        SnefyError: lambda request, error: _refuse(Fault(422, " ".join(str(error).split()))),
        RequestValidationError: lambda request, error: _refuse(_first_error(error)),
        HTTPException: lambda request, error: _Json({"error": str(error.detail)}, error.status_code, error.headers),
    }.items():
        app.add_exception_handler(kind, handler)

    @app.middleware("http")
    async def guard(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        length = request.headers.get("content-length", "0" if request.method == "GET" else "")
        if token is not None and not _is_right(request.headers.get("authorization", ""), token):
            made: Response = _refuse(Fault(401, "send the token: Authorization: Bearer TOKEN."))
        elif not length.isdigit():
            made = _refuse(Fault(411, "send the length of the body (Content-Length)."))
        elif int(length) > limits.body_bytes:
            most = f"the body is longer than {limits.body_bytes:,} bytes"
            made = _refuse(Fault(413, f"{most}; send fewer rows at a time."))
        else:
            made = await call_next(request)
        for name, value in HEADERS.items():
            made.headers.setdefault(name, value)
        return made

    for path, question in QUESTIONS.items():
        app.post(f"/v1/{path}", response_model=None)(_route(path, question, store, limits))
    _add_pages(app, store, None if data is None else Path(data))
    return app


def _route(path: str, kind: type[Question], store: ModelStore, limits: Limits) -> Callable[..., Response]:
    def route(question: Any) -> Response:
        served = store.get(question.model)
        named = {"model": served.name, "version": served.version, "labels": served.labels}
        return _Json({**named, **answer(served, question, limits)})

    route.__name__, route.__doc__ = path, kind.__doc__
    route.__annotations__["question"] = kind
    return route


def _refuse(fault: Fault) -> Response:
    """The reply to a request that cannot be answered."""
    headers = {
        401: {"WWW-Authenticate": 'Bearer, Basic realm="snefy-ldl", charset="UTF-8"', "Connection": "close"},
        413: {"Connection": "close"},  # the body is not read
        503: {"Retry-After": "1"},
    }
    return _Json(fault.content(), fault.status, headers.get(fault.status))


def _first_error(error: RequestValidationError) -> Fault:
    """The first rule that a body breaks, without the values that were sent."""
    first = error.errors()[0]
    place = [part for part in first["loc"][1:] if not str(part).startswith(("dict[", "list["))]
    row = next((part for part in place if isinstance(part, int)), None) if place[:1] in (["rows"], ["votes"]) else None
    field = ".".join(map(str, place))
    return Fault(422, f"field {field!r}: {first['msg']}" if field else first["msg"], row, field or None)


def _is_right(given: str, token: str) -> bool:
    """Whether a request sends the token, as a bearer token or as the password of basic authentication."""
    scheme, _, text = given.strip().partition(" ")
    value = text.strip().encode("latin-1")  # as the header was sent
    if scheme.lower() == "basic":
        try:
            value = base64.b64decode(value, validate=True).partition(b":")[2]
        except binascii.Error:
            return False
    return scheme.lower() in ("basic", "bearer") and hmac.compare_digest(value, token.encode())


def _add_pages(app: FastAPI, store: ModelStore, data: Path | None) -> None:
    pages: dict[str, str] = {}
    lock = threading.Lock()

    def make(served: ServedModel) -> str:
        """The explorer page of a model, made once."""
        if data is None:
            raise InputError("start the service with rows for it (--data).")
        with lock:
            if served.name not in pages:
                rows = PageRows.read(served.model, data)
                pages[served.name] = make_page(served.model, rows, served.name, served.calibrated)
            return pages[served.name]

    @app.get("/v1/models", response_model=None)
    async def models() -> Response:
        """The models: names, labels, and the features that a row must have."""
        what = ("name", "version", "labels", "features")
        return _Json({"models": [{name: getattr(one, name) for name in what} for one in store.models]})

    @app.get("/healthz", response_model=None)
    async def healthz() -> Response:
        """Whether the service takes requests: it starts only after all models are loaded."""
        return _Json({"status": "ready"})

    @app.get("/", response_model=None, response_class=HTMLResponse)
    def explorer(model: str | None = None) -> Response:
        """The page that explores a model."""
        try:
            return HTMLResponse(make(store.get(model)), headers={"content-security-policy": PAGE_POLICY})
        except SnefyError as error:  # for example, rows that do not fit the model
            raise Fault(404, f"there is no page of this model: {' '.join(str(error).split())}") from None


def make_server(app: FastAPI, host: str = "127.0.0.1", port: int = 8000, quiet: bool = False) -> uvicorn.Server:
    """Create a server with limits on connections, without starting it.

    Args:
        app: what :func:`create_app` returned.
        host: address to listen on.
        port: to listen on; 0 takes a free one.
        quiet: whether to leave out the log of requests.

    Returns:
        The server; ``run()`` starts it.
    """
    limits = app.state.limits
    return uvicorn.Server(
        uvicorn.Config(
            app,
            host=host,
            port=port,
            access_log=not quiet,
            limit_concurrency=limits.connections,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=int(limits.seconds) + 5,
            server_header=False,
        )
    )


def run(app: FastAPI, host: str, port: int, quiet: bool = False) -> None:
    """Serve until the process is stopped; requests accepted by then are answered, and it exits with status 0.

    Args:
        app: what :func:`create_app` returned.
        host: address to listen on.
        port: to listen on.
        quiet: whether to leave out the log of requests.
    """
    for number in (signal.SIGTERM, signal.SIGINT):  # uvicorn stops, then raises the signal again for this handler
        signal.signal(number, lambda *_: sys.exit(0))
    server = make_server(app, host, port, quiet)
    for served in app.state.store.models:
        logging.getLogger("uvicorn.error").info("model %s, version %s", served.name, served.version)
    server.run()
