"""The command ``conformalize``: intervals of a saved model calibrated on rows it has not seen."""

from __future__ import annotations

from typing import Annotated, Any, cast

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
    level_list,
    load_model,
    note,
    number,
    progress_bar,
    split,
    warnings_as_notes,
)
from snefy_ldl.cli.model_tables import table_notes
from snefy_ldl.cli.reader import Source, read_for_model

__all__ = ["conformalize"]


def conformalize(
    model: ModelFolder,
    table: TableFile,
    level: Annotated[str, typer.Option(metavar="0.9,0.95", help="Confidence level, or several.")] = "0.9",
    method: Annotated[
        str, typer.Option(help="auto (compares the others), cdf, quantile, scaled quantile, chebyshev or absolute.")
    ] = "auto",
    simultaneous: Annotated[bool, typer.Option(help="Cover all labels of a row at once.")] = False,
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
    """Calibrate a model's intervals on rows it has not seen; predict --interval then uses them."""
    from snefy_ldl._internal.files.models import save_calibration
    from snefy_ldl.conformal import ConformalIntervals
    from snefy_ldl.errors import InputError
    from snefy_ldl.training.seen import MOST_SEEN, count_seen

    levels = [number(part, "--level") for part in split(level)]
    fitted = load_model(model, backbone)
    form = "counts" if counts else votes
    rows, X = read_for_model(fitted, Source(table, labels, features, form, vote_file, columns, id_name, normalize))
    if rows.are_counts:
        note("calibrated on proportions of votes: the intervals cover what annotators would say, not the shares behind")
    D = rows.labels / rows.labels.sum(axis=1, keepdims=True)
    intervals = ConformalIntervals(
        fitted, levels if len(levels) > 1 else levels[0], method=cast(Any, method), simultaneous=simultaneous
    )
    seen = count_seen(fitted, X, D)
    if seen > MOST_SEEN * len(D):
        raise InputError(
            f"{seen:,} of the {len(D):,} rows of {table} trained this model: it is surer of them than of new rows, so "
            "intervals calibrated on them would be too narrow. Hold rows back: split the table in two, fit on one part "
            "and conformalize with the other."
        )
    with warnings_as_notes(), table_notes(), progress_bar("conformalize") as progress:
        progress(0, 1)
        intervals.conformalize(X, D)
        progress(1, 1)
    path = save_calibration(model, intervals.to_dict())
    if intervals.choice_ is not None:
        typer.echo(str(intervals.choice_))
    typer.echo(f"{intervals.n_calibration_:,} calibration rows, method {intervals.method}, level {level_list(levels)}")
    typer.echo(f"saved to {path}; snefy-ldl predict --interval {levels[0]:g} now gives calibrated intervals")
