"""The command ``demo``: fit a made-up city, compare with the known truth, and write one page about it."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

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
    from snefy_ldl.apps.cli.city import as_frame, fit_city, render, two_answers
    from snefy_ldl.apps.cli.report_page import verdict

    others = max(25, rows // 4)
    typer.echo(f"A made-up city: learning the mix of uses of {rows:,} districts, judging it on {others:,} others ...")
    out.mkdir(parents=True, exist_ok=True)
    city = fit_city(rows, others, seed, verbose=1)
    first = two_answers(city)
    typer.echo(f"\n{first[0]}. {first[1]}\n\n{verdict(city.report)}")
    for name, data in (("train.csv", city.train), ("test.csv", city.test)):  # to try other commands with
        table = as_frame(data.X, data.feature_names).join(as_frame(data.D, data.label_names))
        write_bytes(out / name, table.to_csv(index=False, float_format="%.6g").encode())
    city.model.save(out / "model")
    page, program = out / "index.html", _program()
    train, test, model = out / "train.csv", out / "test.csv", out / "model"
    commands = [
        f"{program} fit {train} --labels {','.join(city.test.label_names)} --out {model}",
        f"{program} predict {model} {test} --interval 0.9 --out predictions.csv",
        "# this page, about your own table",
        f"{program} report {model} {test} --train {train}",
    ]
    write_bytes(page, render(city, commands, first).encode())
    typer.echo(f"\nThe page with the pictures: {page}   (open it in a browser)")
    typer.echo(f"Next: {program} predict {model} {test} --interval 0.9")


def _program() -> str:
    """How this program was called, as a command for a shell: after ``make demo`` it is not on the path."""
    called, found = Path(sys.argv[0]), shutil.which("snefy-ldl")
    if called.suffix == ".py":
        return f"{sys.executable} -m snefy_ldl"
    return "snefy-ldl" if found is not None and Path(found).samefile(called) else str(called)
