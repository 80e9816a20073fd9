"""``fit --stream``: Parquet folders that are larger than memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from snefy_ldl.cli.common import warnings_as_notes


def fit_streamed(
    model: Any, folder: Path, out: Path, labels: list[str], features: list[str] | None, counts: bool
) -> None:
    """Fit a model to a folder of Parquet files, save it, and say how it went.

    Args:
        model: unfitted.
        folder: of Parquet files, or one file.
        out: folder for the model.
        labels: the label columns.
        features: the feature columns; all others where None.
        counts: whether labels are votes.
    """
    from snefy_ldl.datasets.parquet_folders import parquet_stream

    stream, names = parquet_stream(folder, labels, features, counts)
    with warnings_as_notes():
        model.fit(stream)
    model.save(out)
    done = model.training_
    typer.echo(f"{stream.n_rows:,} rows, {len(names)} features, {len(labels)} labels: {folder}, read as a stream")
    typer.echo(f"fitted in {done['seconds']:.1f} s, {done['epochs']} epochs, on {done['device']}")
    losses = [loss for loss in done["validation_loss"] if loss is not None]
    if losses:
        typer.echo(f"mean log likelihood of the rows held back: {-sum(losses) / len(losses):.4f}")
    typer.echo(f"saved to {out}")
