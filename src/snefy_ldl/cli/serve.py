"""The command ``serve``: models behind an address, and a page to explore them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from snefy_ldl.cli.common import BackboneCode, import_backbone

EXAMPLES = """One model on this machine, its page at http://127.0.0.1:8000/:
  snefy-ldl serve model

Two models, with rows for the page, behind a token:
  SNEFY_LDL_TOKEN=... snefy-ldl serve model other
  --data rows.csv --host 0.0.0.0 --port 8000

A model with a network of your own, whose code mynets.py holds:
  snefy-ldl serve model --backbone mynets:make_backbone
"""


def serve(
    models: Annotated[
        list[Path], typer.Argument(metavar="MODEL...", help="Folders that fit wrote; the first answers.")
    ],
    host: Annotated[str, typer.Option(help="Address to listen at; 0.0.0.0 is every one.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen at.")] = 8000,
    data: Annotated[Path | None, typer.Option(metavar="TABLE", help="Rows that the page at / shows.")] = None,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="SNEFY_LDL_TOKEN", help="Every request must bring it. Better set as a variable than typed."
        ),
    ] = None,
    rows: Annotated[int, typer.Option(min=1, help="Most rows per request.")] = 10_000,
    body_mb: Annotated[float, typer.Option(help="Largest body of a request, in megabytes.")] = 8.0,
    seconds: Annotated[
        float, typer.Option(help="Longest time for a request; what would take longer is refused.")
    ] = 10.0,
    queue: Annotated[int, typer.Option(min=1, help="Requests that may wait per model; further ones get 503.")] = 64,
    batch_ms: Annotated[float, typer.Option(min=0.0, help="How long to wait for requests to answer together.")] = 2.0,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Log only requests that failed.")] = False,
    backbone: BackboneCode = None,
) -> None:
    """Answer questions about a model over HTTP, and show its page at /.

    A folder that changes is read again, as a whole. Stop it with Ctrl-C or
    SIGTERM: what was accepted is finished.
    """
    # an extra, and torch: only this command needs them
    try:
        from snefy_ldl.serve.app import create_app
        from snefy_ldl.serve.server import run
    except ImportError as error:
        if error.name and error.name.startswith("snefy_ldl"):
            raise
        raise ImportError(
            f"serving needs fastapi, uvicorn and others ({error.name} is missing): pip install 'snefy-ldl[serve]'"
        ) from None
    from snefy_ldl.serve.limits import Limits
    from snefy_ldl.serve.telemetry import Log

    os.environ.setdefault("OMP_NUM_THREADS", "1")
    limits = Limits(rows=rows, body_bytes=int(body_mb * 1e6), seconds=seconds, queue=queue, batch_wait=batch_ms / 1e3)
    own = import_backbone(backbone)
    app = create_app(models, token=token or None, limits=limits, data=data, log=Log(quiet=quiet), backbone=own)
    run(app, host, port)
