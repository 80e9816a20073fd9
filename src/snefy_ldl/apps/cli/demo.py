"""The command ``demo``: fit a made-up city, compare with the known truth, and write one page about it."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from snefy_ldl.apps.cli.entry import command


@command()
def demo(
    out: Path = Path("demo"),
    rows: Annotated[int, typer.Option(min=50)] = 2000,
    seed: int = 0,
) -> None:
    """Fit a made-up city, compare with the known truth, and write a page with pictures.

    Args:
        out: Folder to write the page into.
        rows: Districts to learn from.
    """
    from snefy_ldl._internal.files import write_bytes
    from snefy_ldl.apps.cli.city import as_frame, fit_city, render, summary_table

    typer.echo(f"A made-up city: learning the mix of uses of {rows:,} districts ...")
    out.mkdir(parents=True, exist_ok=True)
    city = fit_city(rows, max(25, rows // 4), seed, verbose=1)
    Console().print(summary_table(city))
    for name, data in (("train.csv", city.train), ("test.csv", city.test)):  # to try other commands with
        table = as_frame(data.X, data.feature_names).join(as_frame(data.D, data.label_names))
        write_bytes(out / name, table.to_csv(index=False, float_format="%.6g").encode())
    city.model.save(out / "model")
    page = out / "index.html"
    typer.echo(f"Judging it on {len(city.test.D):,} other districts ...")
    commands = [
        f"snefy-ldl fit train.csv --labels {','.join(city.test.label_names)} --out model",
        "snefy-ldl predict model test.csv --interval 0.9 --out predictions.csv",
        "snefy-ldl report model test.csv --train train.csv     # this page, about your own table",
    ]
    write_bytes(page, render(city, commands).encode())
    typer.echo(f"\nThe page with the pictures: {page}   (open it in a browser)")
    program = "snefy-ldl" if shutil.which("snefy-ldl") else sys.argv[0]  # make demo: .venv/bin/snefy-ldl
    typer.echo(f"Next: {program} predict {out / 'model'} {out / 'test.csv'} --interval 0.9")
