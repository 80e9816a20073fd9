"""The command ``explain``: what moves a model's predictions, as tables and a picture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from snefy_ldl.apps.cli import options as opt
from snefy_ldl.apps.cli.common import (
    PICTURES,
    check_output,
    input_error,
    load_model,
    new_figure,
    say,
    warnings_as_notes,
    write_picture,
)
from snefy_ldl.apps.cli.entry import command
from snefy_ldl.apps.cli.tables import group_columns, open_table, read_for_model
from snefy_ldl.apps.table_rows import (
    feature_names,
    model_rows,
    row_names,
    table_groups,
)

if TYPE_CHECKING:
    from snefy_ldl.explain.dependence import Dependence
    from snefy_ldl.explain.effects import Effects


#: Lines and labels of the dependence that are printed; --json also holds the others, and bands.
MOST_LINES, MOST_LABELS = 60, 6
#: Rows to average over, drawn at random from more.
MOST_ROWS = 500


@command("explain")
def explain_model(
    model: Path,
    table: Path,
    feature: Annotated[str, typer.Option()],
    second: Annotated[str | None, typer.Option("--and")] = None,
    of: str = "mean",
    step: float | None = None,
    reference: str | None = None,
    level: float = 0.9,
    out: Path | None = None,
    as_json: opt.AsJson = False,
) -> None:
    """Show what a feature does to the predictions: average effects, and how they change along it.

    Answers are averaged over the rows of TABLE, whose other cells stay as
    they are. If TABLE has the labels, effects come with intervals, from
    a regression of these labels. Effects on predictions are not causes.

    Args:
        feature: Feature to explain.
        second (COLUMN): A second column, for a map.
        of: mean, width (of intervals), "A>B" (probability) or "A/B" (log-ratio).
        step: How far to move a number; by default a standard deviation.
        reference: Level of a text column to compare others with; by default the most frequent.
        level: Confidence level of intervals and bands.
        out: Picture to write: .png, .svg or .pdf.

    Examples:
        The effect of 10 mm more rain, and how the shares change along rain:
          snefy-ldl explain model soil.csv --feature rain --step 10 --out rain.png

        The probability of more sand than clay along two features:
          snefy-ldl explain model soil.csv --feature rain --and slope --of "sand>clay"
    """
    # torch, and what reads tables: only when the command runs
    import numpy as np

    from snefy_ldl.datasets.grouping import in_groups, split_rows
    from snefy_ldl.explain import dependence, effects

    if out is not None:
        check_output(out, PICTURES, table)
    fitted = load_model(model)
    source = open_table(table)
    key = row_names(fitted, source.columns)
    names = feature_names(fitted, source, (key,) if key else ())
    wanted = [_column(name, names) for name in (feature, second) if name is not None]
    D = None
    if set(map(str, fitted.label_names_)) <= set(source.columns):
        rows, X = read_for_model(fitted, table)
        D = rows.labels / np.nansum(rows.labels, axis=1, keepdims=True) if rows.are_counts else rows.labels
    else:
        X = model_rows(fitted, source.whole(names, []), names)
        if levels := group_columns(fitted, source):
            X = in_groups(X, table_groups(fitted, source.whole([], levels)))
    has_names = hasattr(split_rows(X)[0], "columns")
    columns: list[Any] = wanted if has_names else [names.index(name) for name in wanted]
    asked = _quantity(of, [str(label) for label in fitted.label_names_])
    common: dict[str, Any] = {"of": asked, "confidence_level": level, "max_rows": MOST_ROWS}
    with warnings_as_notes():
        table_of_effects = effects(fitted, X, columns, D, step=step, reference=reference, **common)
        curve = dependence(fitted, X, columns, **common)
    if as_json:
        content = {
            "effects": table_of_effects.frame.to_dict("records"),
            "notes": table_of_effects.notes,
            "confidence_level": table_of_effects.confidence_level,
            "rows": table_of_effects.n_rows,
            "dependence": curve.frame.to_dict("records"),
        }
        typer.echo(json.dumps(content, indent=2, ensure_ascii=False, default=str))
    else:
        _print(table_of_effects, curve)
    if out is not None:
        write_picture(_figure(table_of_effects, curve), out)
        say(f"effects of {' and '.join(wanted)}: {out}", "green")


def _column(name: str, names: list[str]) -> str:
    if name not in names:
        raise input_error(f"{name!r} is not a feature of the model, which uses {', '.join(names)}.")
    return name


def _quantity(of: str, labels: list[str]) -> Any:
    """What to explain, out of the text of ``--of``."""
    if of in ("mean", "width"):
        return of
    for sign, name in ((">", "greater"), ("/", "log_ratio")):
        for k in [k for k, letter in enumerate(of) if letter == sign]:  # a label's name may hold the sign, too
            first, second = of[:k].strip(), of[k + 1 :].strip()
            if first in labels and second in labels:
                return (name, first, second)
    raise input_error(f'--of {of}: use mean, width, "A>B" or "A/B", with labels from {", ".join(labels)}.')


def _print(table: Effects, curve: Dependence) -> None:
    """Print the effects in words, and the averages along the features as a table with one column per label."""
    along = list(curve.frame.columns[: len(curve.features)])
    wide = curve.frame.pivot(index=along, columns="label", values="estimate")[curve.labels]
    typer.echo(f"{table}\n\n{str(curve).splitlines()[0]} (--json and --out also have bands)")
    typer.echo(wide.to_string(max_rows=MOST_LINES, max_cols=MOST_LABELS, float_format="{:.3g}".format))


def _figure(table: Effects, curve: Dependence) -> Any:
    """The dependence and the effects."""
    figure = new_figure(11.0, max(3.4, 0.8 + 0.26 * len(table.entries)))
    curve.plot(ax=figure.add_subplot(1, 2, 1))
    table.plot(ax=figure.add_subplot(1, 2, 2))
    return figure
