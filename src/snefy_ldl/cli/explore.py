"""The command ``explore``: a model and some rows as one page that works without a server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from snefy_ldl.cli.common import BackboneCode, IdColumn, ModelFolder, TableFile, import_backbone, not_an_input, say


def explore(
    model: ModelFolder,
    table: TableFile,
    out: Annotated[Path, typer.Option(help="HTML file to write.")] = Path("explorer.html"),
    id_name: IdColumn = None,
    backbone: BackboneCode = None,
) -> None:
    """Write a page that explores a model in any browser, without a server or the internet.

    Pick a row or move its features: the page computes the law itself. Add
    votes, merge labels, say what is known; label rows and download them
    for fit --append.
    """
    # torch, and what reads tables: only when the command runs
    from snefy_ldl._internal.files.atomic import write_bytes
    from snefy_ldl.errors import InputError
    from snefy_ldl.serve.explorer import PageRows, make_page
    from snefy_ldl.serve.store import load_served

    if out.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"--out {out}: name a file that ends in .html.")
    if out.is_dir():
        raise InputError(f"--out {out} is a folder; name a file in it.")
    not_an_input("--out", out, table)
    served = load_served(model, model.resolve().name, import_backbone(backbone))
    rows = PageRows.read(served.model, table, id_name)
    page = make_page(served.model, rows, served.name, served.calibrated).encode()
    write_bytes(out, page)
    say(f"{len(rows):,} rows, {len(page) / 1e6:.1f} MB written to {out}; open it in a browser", "green")
