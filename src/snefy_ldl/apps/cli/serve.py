"""The commands ``serve``, ``explore`` and ``export``: a model for others, over HTTP, as a page, or as a file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from snefy_ldl.apps.cli import options as opt
from snefy_ldl.apps.cli.common import check_output, given, load_model, say
from snefy_ldl.apps.cli.entry import command
from snefy_ldl.apps.cli.tables import sheet_of


@command()
def serve(
    models: list[Path],
    host: str = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535)] = 8000,
    data: Path | None = None,
    token: Annotated[str | None, typer.Option(envvar="SNEFY_LDL_TOKEN")] = None,
    rows: Annotated[int, typer.Option(min=1)] = 10_000,
    body_mb: Annotated[float, typer.Option(min=0.001)] = 8.0,
    seconds: Annotated[float, typer.Option(min=0.001)] = 10.0,
    connections: Annotated[int, typer.Option(min=1)] = 512,
) -> None:
    """Answer questions about a model over HTTP; with --data, show its page at /.

    A changed model folder needs a restart. Stop the server with Ctrl-C
    or SIGTERM: requests it has accepted are finished.

    Args:
        models (MODEL...): Folders that fit wrote; the first is the default.
        host: Address to listen on; 0.0.0.0 is all of them.
        port: Port to listen on.
        data (TABLE): Rows for the page at /.
        token: Token that every request must carry; prefer the environment variable.
        rows: Most rows per request.
        body_mb: Largest body of a request, in megabytes.
        seconds: Longest time per request; slower requests get 503.
        connections: Open connections, waiting requests included; others get 503.

    Examples:
        One model on this machine, its page at http://127.0.0.1:8000/:
          snefy-ldl serve model --data rows.csv

        Two models, with rows for the page, behind a token:
          SNEFY_LDL_TOKEN=... snefy-ldl serve model other
          --data rows.csv --host 0.0.0.0 --port 8000
    """
    try:  # an extra, and torch: only this command needs them
        from snefy_ldl.apps.serve.app import create_app, run
    except ImportError as error:
        if error.name and error.name.startswith("snefy_ldl"):
            raise
        raise ImportError(
            f"serving needs fastapi and uvicorn ({error.name} is missing): pip install 'snefy-ldl[serve]'"
        ) from None
    from snefy_ldl.apps.serve.limits import Limits

    os.environ.setdefault("OMP_NUM_THREADS", "1")
    limits = Limits(rows=rows, body_bytes=int(body_mb * 1e6), seconds=seconds, connections=connections)
    app = create_app(models, token=token or None, limits=limits, data=data)
    run(app, host, port, given.quiet)


@command()
def explore(
    model: Path,
    table: Path,
    out: Path = Path("explorer.html"),
    id_name: opt.IdColumn = None,
) -> None:
    """Write a page that explores a model in any browser, without a server or the internet.

    Pick a row: the page shows its shares with intervals, densities and
    comparisons. Merge labels, fix a share, change features; label rows and
    download them for fit --append.

    Args:
        out: HTML file to write.
    """
    # torch, and what reads tables: only when the command runs
    from snefy_ldl._internal.files import write_bytes
    from snefy_ldl.apps.serve.explorer import PageRows, make_page
    from snefy_ldl.apps.serve.store import load_served

    check_output(out, (".html", ".htm"), table)
    served = load_served(model, model.resolve().name)
    rows = PageRows.read(served.model, table, id_name, sheet_of(table))
    page = make_page(served.model, rows, served.name, served.calibrated).encode()
    write_bytes(out, page)
    say(f"{len(rows):,} rows, {len(page) / 1e6:.1f} MB written to {out}; open it in a browser", "green")


@command()
def export(
    model: Path,
    out: Path,
) -> None:
    """Write a model as a file that gives mean and variance without Python.

    The file takes numbers only: its metadata describes how the model turns
    text and dates into numbers.

    Args:
        out (FILE): File to write, ending in .onnx.

    Examples:
        A file for any ONNX runtime:
          snefy-ldl export model/ model.onnx
    """
    # torch, and what reads models: only when the command runs
    from snefy_ldl.apps.integrations.onnx import export_onnx

    check_output(out, (".onnx",), option="FILE")
    fitted = load_model(model, "cpu")
    export_onnx(fitted, out, verbose=1)
    say(f"{out.stat().st_size / 1e6:.1f} MB written to {out}", "green")
    if fitted.columns_ is not None and fitted.columns_.names_out != fitted.columns_.names_used:
        say("text, dates and gaps: the file's metadata describes the numbers it takes", "yellow")
