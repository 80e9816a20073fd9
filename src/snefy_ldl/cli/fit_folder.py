"""``fit --stream`` and ``fit --engine ray``: Parquet folders that are larger than memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from snefy_ldl.cli.common import say, training_rows, warnings_as_notes


def fit_streamed(
    model: Any,
    folder: Path,
    out: Path,
    labels: list[str],
    features: list[str] | None,
    counts: bool,
    engine: Any = None,
) -> None:
    """Fit a model to a folder of Parquet files, save it, and say how it went.

    Args:
        model: unfitted.
        folder: of Parquet files, or one file.
        out: folder for the model.
        labels: the label columns.
        features: the feature columns; all others where None.
        counts: whether labels are votes.
        engine: that trains; None trains here.
    """
    from snefy_ldl.cluster.training import ParquetRows
    from snefy_ldl.datasets.streams import parquet_stream

    stream, names = parquet_stream(folder, labels, features, counts)
    with warnings_as_notes():
        if engine is None:
            model.fit(stream)
        else:
            model.fit(ParquetRows((str(folder),), tuple(labels), tuple(names), counts), engine=engine)
    model.save(out)
    done = model.training_
    typer.echo(f"{training_rows(done)}, {len(names)} features, {len(labels)} labels: {folder}, read as a stream")
    typer.echo(f"fitted in {done['seconds']:.1f} s, {done['epochs']} epochs, on {done['device']}")
    losses = [loss for loss in done["validation_loss"] if loss is not None]
    if losses:
        typer.echo(f"mean log likelihood of the rows held back: {-sum(losses) / len(losses):.4f}")
    typer.echo(f"saved to {out}")


def training_engine(name: str, address: str | None, workers: int, quiet: bool) -> Any:
    """The engine that trains.

    Args:
        name: "local" or "ray".
        address: of a Ray cluster, or None.
        workers: that train together.
        quiet: whether to say nothing while they do.

    Returns:
        The engine; None for a fit in this process.

    Raises:
        BadParameter: there is no such engine, or it has no address.
    """
    if name not in ("local", "ray"):
        raise typer.BadParameter(f"--engine {name}: use local or ray.")
    if name == "local":
        if address is not None:
            raise typer.BadParameter("--address names a Ray cluster: say --engine ray, too.")
        return None
    from snefy_ldl.cluster.ray import import_ray
    from snefy_ldl.cluster.training import RayTraining

    import_ray()  # says at once what is missing
    shown = None if quiet else lambda epoch, pids: say(f"epoch {epoch} done by {len(pids)} workers", "")
    return RayTraining(workers, address, on_epoch=shown)
