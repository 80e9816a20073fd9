"""The command ``conformalize``: intervals of a saved model calibrated on rows it has not seen."""

from __future__ import annotations

from typing import Annotated, Any, cast

import typer

from snefy_ldl.cli.common import (
    Features,
    Labels,
    ModelFolder,
    TableFile,
    known_features,
    level_list,
    number,
    progress_bar,
    split,
)

__all__ = ["conformalize"]


def conformalize(
    model: ModelFolder,
    table: TableFile,
    level: Annotated[str, typer.Option(metavar="0.9,0.95", help="Confidence level, or several.")] = "0.9",
    method: Annotated[str, typer.Option(help="cdf, quantile or chebyshev (the paper's).")] = "cdf",
    simultaneous: Annotated[bool, typer.Option(help="Cover all labels of a row at once.")] = False,
    labels: Labels = None,
    features: Features = None,
) -> None:
    """Calibrate a model's intervals on rows it has not seen; predict --interval then uses them."""
    from snefy_ldl.conformal import ConformalIntervals
    from snefy_ldl.datasets import load_table
    from snefy_ldl.estimator import SnefyLDL
    from snefy_ldl.files.models import save_calibration

    levels = [number(part, "--level") for part in split(level)]
    fitted = SnefyLDL.load(model)
    data = load_table(table, split(labels) or list(fitted.label_names_), known_features(fitted, features))
    intervals = ConformalIntervals(
        fitted, levels if len(levels) > 1 else levels[0], method=cast(Any, method), simultaneous=simultaneous
    )
    with progress_bar("conformalize") as progress:
        progress(0, 1)
        intervals.conformalize(data.X, data.D)
        progress(1, 1)
    path = save_calibration(model, intervals.to_dict())
    typer.echo(f"{len(data.D):,} calibration rows, method {method}, level {level_list(levels)}")
    typer.echo(f"saved to {path}; snefy-ldl predict --interval {levels[0]:g} now gives calibrated intervals")
