"""The command ``watch``: whether new labelled rows are still like those that calibrated a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from snefy_ldl.cli.common import (
    VOTE_COLUMNS,
    BackboneCode,
    Counts,
    Features,
    IdColumn,
    KnownForm,
    Labels,
    ModelFolder,
    Normalize,
    TableFile,
    VoteColumns,
    VoteFile,
    load_model,
)
from snefy_ldl.cli.model_tables import table_notes
from snefy_ldl.cli.reader import Source, read_for_model

__all__ = ["watch_rows"]


def watch_rows(
    model: ModelFolder,
    table: TableFile,
    alarm: Annotated[
        float, typer.Option(help="Evidence that raises the alarm; false with probability 1/ALARM.")
    ] = 100.0,
    picture: Annotated[Path | None, typer.Option(help="File for a picture of the evidence, .svg or .png.")] = None,
    labels: Labels = None,
    features: Features = None,
    counts: Counts = False,
    votes: KnownForm = "auto",
    vote_file: VoteFile = None,
    columns: VoteColumns = VOTE_COLUMNS,
    id_name: IdColumn = None,
    normalize: Normalize = False,
    backbone: BackboneCode = None,
) -> None:
    """Has the world changed since conformalize? Tests new labelled rows, in the order of the table."""
    from snefy_ldl._internal.files.models import load_calibration
    from snefy_ldl.conformal import ConformalIntervals, watch
    from snefy_ldl.errors import InputError

    fitted = load_model(model, backbone)
    state = load_calibration(model)
    if state is None:
        raise InputError(f"{model} holds no calibration; make one first: snefy-ldl conformalize {model} TABLE.")
    if alarm <= 1.0:
        raise InputError(f"--alarm {alarm:g}: give a number above 1, such as 100.")
    form = "counts" if counts else votes
    with table_notes():
        rows, X = read_for_model(fitted, Source(table, labels, features, form, vote_file, columns, id_name, normalize))
        D = rows.labels / rows.labels.sum(axis=1, keepdims=True)
        found = watch(ConformalIntervals.from_dict(fitted, state), X, D, alarm=alarm)
    typer.echo(str(found))
    if picture is not None:
        from snefy_ldl.plots.conformal import plot_watch

        plot_watch(found).figure.savefig(picture, bbox_inches="tight")
        typer.echo(f"picture written to {picture}")
