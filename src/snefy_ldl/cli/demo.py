"""The command ``demo``: fit a made-up city, compare with the known truth, and write one page about it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from snefy_ldl.cli import options as opt
from snefy_ldl.cli.entry import command


@command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder to write the page into.")] = Path("demo"),
    rows: Annotated[int, typer.Option(min=50, help="Districts to learn from.")] = 2000,
    members: Annotated[int, typer.Option(min=1, help="Networks to average.")] = 3,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the training rows.")] = 30,
    seed: opt.Seed = 0,
) -> None:
    """Fit a made-up city, compare with the known truth, and write a page with pictures."""
    typer.echo(f"A made-up city: learning the mix of uses of {rows:,} districts ...")
    page = run_demo(
        out, n_train=rows, n_test=max(25, rows // 4), n_members=members, epochs=epochs, random_state=seed, verbose=1
    )
    typer.echo(f"\nThe page with the pictures: {page}   (open it in a browser)")
    typer.echo(f"Next: snefy-ldl predict {out / 'model'} {out / 'test.csv'} --interval 0.9")


def run_demo(
    out: str | Path = "demo",
    *,
    n_train: int = 2000,
    n_test: int = 500,
    n_members: int = 3,
    epochs: int = 30,
    random_state: int = 0,
    verbose: int = 1,
    console: Console | None = None,
) -> Path:
    """Fit the city districts, print how well it went, and write ``out/index.html``.

    The folder also gets tables and the model, to try the command line with: ``train.csv``, ``test.csv``, ``model/``.

    Args:
        out: Folder to write into.
        n_train: Districts to learn from.
        n_test: Districts to judge on.
        n_members: Networks whose densities are averaged.
        epochs: Passes over the training rows.
        random_state: Seed of the city and of the fit.
        verbose: 1 shows progress.
        console: Where to print the summary; standard output by default.

    Returns:
        The page.

    Raises:
        ImportError: pandas, jinja2, matplotlib or mpltern is not installed.
    """
    from snefy_ldl._internal.files import write_bytes
    from snefy_ldl.cli.city import as_frame, fit_city, render, summary_table

    folder, console = Path(out), console or Console()
    folder.mkdir(parents=True, exist_ok=True)
    city = fit_city(n_train, n_test, n_members, epochs, random_state, verbose)
    console.print(summary_table(city))
    for name, data in (("train.csv", city.train), ("test.csv", city.test)):
        table = as_frame(data.X, data.feature_names).join(as_frame(data.D, data.label_names))
        write_bytes(folder / name, table.to_csv(index=False, float_format="%.6g").encode())
    city.model.save(folder / "model")
    page = folder / "index.html"
    write_bytes(page, render(city).encode())
    return page
