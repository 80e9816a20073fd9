"""The command ``fit``: labelled rows out of one table or several, and a model fitted to them."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from snefy_ldl.apps.cli import options as opt
from snefy_ldl.apps.cli.common import (
    given,
    input_error,
    note,
    setting,
    split,
    training_kind,
    training_length,
    training_rows,
    vote_columns,
    warnings_as_notes,
)
from snefy_ldl.apps.cli.entry import command
from snefy_ldl.apps.cli.tables import LabelReader, record_table, report_rows

if TYPE_CHECKING:
    from snefy_ldl.datasets.labelled import Labelled

#: Votes per annotator from which annotators are modelled by default.
LEAST_VOTES = 25


@command()
def fit(
    table: Path,
    out: Annotated[Path, typer.Option()],
    labels: str | None = None,
    features: str | None = None,
    drop: str | None = None,
    category: str | None = None,
    as_number: Annotated[str | None, typer.Option("--number")] = None,
    normalize: bool = False,
    limit: list[str] | None = None,
    votes: str | None = None,
    vote_file: Path | None = None,
    columns: opt.VoteColumns = opt.VOTE_COLUMNS,
    annotators: Path | None = None,
    id_name: opt.IdColumn = None,
    append: list[Path] | None = None,
    groups: str | None = None,
    density: str = "auto",
    seed: int = 0,
    option: opt.Settings = None,
    stream: bool = False,
) -> None:
    """Fit a model to a table of features and label distributions, or to votes.

    How the table was read (unit, names of rows, votes) is recorded with the
    model, and other commands read their tables in the same way.

    Args:
        out: Folder to write the model into.
        labels (A,B,C): Label columns, each row summing to 1, 100 or another constant; for single votes, the labels.
        category (C1,C2): Columns of numbers that are categories.
        as_number (C1,C2): Columns of numbers that would be taken for something else.
        limit (COLUMN=NUMBER|min): Limit of detection of a label column, or its smallest positive value: smaller cells,
            zeros and cells such as nd lie below it. Repeatable; cells such as <0.5 need no such option.
        votes (counts|long): Votes instead of shares: counts per label, or one vote per row.
        annotators: Table of facts about the annotators, one row per person, with a column annotator.
        append: More rows, a table with the same columns, such as one that query wrote, filled in. Repeatable.
        groups (COLUMN): Column of the group (child, field, person) of each row, which is not a feature.
        density (auto|snefy|logratio): Distribution to fit: the squared neural family, log-ratios, or the one that
            makes held-out rows more likely.
        stream: TABLE is a folder of Parquet files, read in chunks.

    Examples:
        Shares or percentages, one column per label:
          snefy-ldl fit soil.csv --labels sand,silt,clay --out model

        Numbers of votes, one column per label:
          snefy-ldl fit items.csv --votes counts --labels no,yes --out model

        One vote per row (item, annotator, label), features in another table:
          snefy-ldl fit items.csv --vote-file votes.csv --out model

        One vote per row, with the features in the same row; annotators
        with enough votes are modelled, too:
          snefy-ldl fit votes.csv --votes long --out model

        Further rounds of labels, as query asked for them:
          snefy-ldl fit train.csv --labels no,yes --append round1.csv
          --append round2.csv --out model

        Several rows of each child; rows of one child are more alike:
          snefy-ldl fit stools.csv --labels a,b,c --groups child --out model

        A table of amounts, each row of which is divided by its sum:
          snefy-ldl fit rocks.csv --normalize --labels SiO2,Al2O3,Fe2O3 --out model

        More rows than memory can take, a folder of Parquet files:
          snefy-ldl fit soil/ --stream --labels sand,silt,clay --out model
    """
    alone, form = vote_file is None, votes
    if form not in (None, "counts", "long"):
        raise typer.BadParameter(f"--votes {form}: use counts or long.")
    if labels is None and alone and form in (None, "counts"):
        raise typer.BadParameter("name the label columns with --labels, or add --votes long for one vote per row.")
    if stream and (append or not alone or form not in (None, "counts")):
        raise typer.BadParameter("--stream takes shares or --votes counts in a folder of Parquet files only.")
    if out.exists() and not out.is_dir():
        raise input_error(f"--out {out} is a file; name a folder for the model.")
    if annotators is not None and (append or stream or form not in (None, "long")):
        raise typer.BadParameter("--annotators goes with single votes (--votes long), without --append.")
    if normalize and form is not None:
        raise typer.BadParameter("--normalize is for amounts; it does not go with votes.")
    levels = split(groups)
    if levels and (stream or annotators is not None):
        raise typer.BadParameter("--groups does not go with --stream or --annotators.")
    changes = dict(setting(text) for text in option or [])
    of_snefy = {"--stream": stream, "--annotators": annotators, "--votes long": form == "long"}
    density = _settle_density(density, {**of_snefy, "--set checkpoint_dir": changes.get("checkpoint_dir")})
    model = _make_model(
        density,
        changes,
        random_state=seed,
        verbose=0 if given.quiet else 1,
    )
    wanted, chosen = split(labels), split(features) or None
    if stream:
        n_features = _fit_stream(model, table, wanted, chosen, form == "counts")
        summary = f"{n_features} features, {len(wanted)} labels: {table}, read as a stream"
    else:
        limits = dict(_limit(text, wanted) for text in limit or [])
        named = vote_columns(columns)
        reader = LabelReader(wanted or None, chosen, split(drop), id_name, named, normalize, levels, limits)
        if alone and form in (None, "counts"):
            rows = reader.shares(table, form == "counts")
        else:
            kind: Any = form or "auto"
            rows = reader.votes(vote_file or table, kind, None if alone else table)
        report_rows(rows, limits=True)
        words = {name: "feature" for name in chosen or [] if name not in [*split(drop), *levels]}
        words |= dict.fromkeys(split(category), "category") | dict.fromkeys(split(as_number), "number")
        rows, names_rows = _settle_columns(reader, rows, words, bool(append), levels)
        table_record = _record(rows, reader, names_rows)
        for file in append or []:
            rows = reader.append(rows, file)
        people = None if append or levels else _single_votes(rows, form == "long", annotators, reader.columns[1])
        model = _fit(model.set_params(columns=words or "auto"), rows, people, levels)
        record_table(model, table_record)
        votes_word = ", votes" if rows.are_counts else ""
        votes_word += f" of {len(people.annotators)} annotators" if people is not None else ""
        summary = f"{len(model.columns_.names_used)} features, {len(rows.label_names)} labels{votes_word}: {table}"
    model.save(out)
    _conclude(model.model_ if "choice_" in vars(model) else model, summary, out)


def _limit(text: str, labels: list[str]) -> tuple[str, Any]:
    """A column and its limit, from ``--limit COLUMN=NUMBER`` or ``COLUMN=min``."""
    name, _, value = text.rpartition("=")
    try:
        limit = value if value == "min" else float(value)
    except ValueError:
        limit = -1.0
    if name not in labels or (limit != "min" and not 0.0 < float(limit) < float("inf")):
        raise typer.BadParameter(f"--limit {text}: use LABEL=NUMBER with a positive number, or LABEL=min.")
    return name, limit


def _record(rows: Labelled, reader: LabelReader, names_rows: str | None) -> dict[str, Any]:
    """How the table was read, for the commands that read others for the same model."""
    return {
        "form": "votes" if rows.are_counts else "shares",
        "unit": None if rows.unit is None else asdict(rows.unit),
        "normalize": reader.normalize,
        "limits": reader.limits,
        "id": reader.id_name or rows.id_name or names_rows,
        "vote_columns": list(reader.columns),
    }


def _settle_density(density: str, needs_snefy: dict[str, Any]) -> str:
    """The distribution to fit; options of the squared neural family alone settle the choice."""
    if density not in ("auto", "snefy", "logratio"):
        raise typer.BadParameter(f"--density {density}: use auto, snefy or logratio.")
    named = next((option for option, value in needs_snefy.items() if value), None)
    if named is not None and density == "logratio":
        raise typer.BadParameter(f"{named} does not go with --density logratio.")
    return density if named is None else "snefy"


def _make_model(density: str, changes: dict[str, Any], **settings: Any) -> Any:
    """An unfitted model; ``--set`` has the last word."""
    from snefy_ldl.auto import AutoLDL
    from snefy_ldl.logratio import LogRatioLDL
    from snefy_ldl.snefy import SnefyLDL

    squared, ratios = (set(kind().get_params()) - {"backbone", "columns"} for kind in (SnefyLDL, LogRatioLDL))
    known = {"auto": squared | ratios, "snefy": squared, "logratio": ratios}[density]
    if unknown := [name for name in changes if name not in known]:
        raise input_error(f"--set {unknown[0]}: no such setting. Use one of: {', '.join(sorted(known))}.")
    if isinstance(changes.get("hidden_sizes"), list):
        changes["hidden_sizes"] = tuple(changes["hidden_sizes"])
    seed = {"random_state": changes.get("random_state", settings["random_state"])}
    if density == "logratio":
        return LogRatioLDL(**seed, **{name: value for name, value in changes.items() if name != "random_state"})
    snefy = SnefyLDL(**{**settings, **{name: value for name, value in changes.items() if name in squared}})
    if density == "snefy":
        return snefy
    logratio = LogRatioLDL(**seed, **{name: value for name, value in changes.items() if name not in squared})
    return AutoLDL(snefy=snefy, logratio=logratio, verbose=settings["verbose"], **seed)


def _settle_columns(
    reader: LabelReader, rows: Labelled, words: dict[str, str], further: bool, levels: list[str]
) -> tuple[Labelled, str | None]:
    """Print what the columns are, and return the one that names the rows; files that follow need only features."""
    from snefy_ldl.datasets.columns import TableEncoder
    from snefy_ldl.datasets.labelled import find_odd_rows
    from snefy_ldl.datasets.recognise import LIKELY_GROUP

    encoder = TableEncoder.fit(rows.features.drop(columns=levels), words)
    for remark in encoder.notes:
        left = "was left out" in remark and ("rows (" in remark or "every row (" in remark)
        hint = " (--features keeps it)" if left else ""
        if remark.endswith(LIKELY_GROUP):
            hint = " (--groups uses it as one, --drop leaves it out)"
        note(f"{remark}{hint}")
    for remark in find_odd_rows(rows):
        note(f"{rows.source}: {remark}")
    names_rows = next((one.name for one in encoder.columns if getattr(one, "reason", None) == "id"), None)
    if not further:
        return rows, names_rows
    reader.features = [*encoder.names_used, *levels]
    return replace(rows, features=rows.features[reader.features]), names_rows


def _single_votes(rows: Labelled, wanted: bool, facts: Path | None, column: str) -> Any:
    """Single votes if annotators are modelled; None if only the numbers of votes matter."""
    from snefy_ldl.datasets.vote_table import read_vote_cells
    from snefy_ldl.votes.annotator_tables import Votes

    known = rows.votes is not None and bool(rows.votes.annotators)
    if facts is not None and not known:
        raise input_error(
            "--annotators: the votes have no column of annotators; name their columns with --vote-columns."
        )
    if not known or (facts is None and not wanted):
        return None
    assert rows.votes is not None
    assert rows.ids is not None
    votes = Votes.of(rows.votes).on_items(rows.ids)
    each = len(votes) / len(votes.annotators)
    if facts is None and each < LEAST_VOTES:
        note(f"{each:.0f} votes per annotator are too few to learn about them; votes are counted without names")
        return None
    if facts is None:
        return votes
    cells = read_vote_cells(facts)
    return votes.with_facts(cells, column if column in cells.columns else "annotator")


def _fit(model: Any, rows: Labelled, votes: Any, levels: list[str]) -> Any:
    """The model fitted to shares or votes, with the columns' names."""
    import pandas as pd
    from sklearn.utils.validation import has_fit_parameter

    from snefy_ldl.annotators import AnnotatorLDL
    from snefy_ldl.auto import AutoLDL
    from snefy_ldl.grouped import GroupedLDL

    if votes is not None:
        with warnings_as_notes():
            return AnnotatorLDL(model).fit(rows.features, votes)
    X = rows.features.drop(columns=levels)
    Y = pd.DataFrame(rows.labels, columns=rows.label_names)
    labels: dict[str, Any] = {"counts": Y} if rows.are_counts else {"D": Y}
    with warnings_as_notes():
        if rows.below is not None:
            if not has_fit_parameter(model, "below"):
                raise input_error(
                    "cells below a limit need log-ratios: leave --density to auto, or set it to logratio."
                )
            labels["below"] = rows.below
        if levels:
            if isinstance(model, AutoLDL):  # of two distributions, the one for such labels
                half: Any = model.snefy if rows.are_counts else model.logratio
                model = half.set_params(columns=model.columns)
            return GroupedLDL(model).fit(X, **labels, groups=rows.features[levels])
        return model.fit(X, **labels)


def _fit_stream(
    model: Any,
    folder: Path,
    labels: list[str],
    features: list[str] | None,
    counts: bool,
) -> int:
    """Fit the model to a folder of Parquet files; returns the number of features."""
    from snefy_ldl.apps.cluster.fit_files import ParquetRows
    from snefy_ldl.datasets.table_files import TableSource
    from snefy_ldl.snefy import fit_stream

    source = TableSource(folder)
    if source.kind != "parquet":
        raise input_error(f"{folder.name}: only Parquet files can be streamed; a CSV file is read whole.")
    names = features or [name for name in source.columns if name not in labels]
    source.need([*names, *labels], "features and labels")
    rows = ParquetRows((str(folder),), tuple(labels), tuple(names), counts)
    with warnings_as_notes():
        fit_stream(model, rows.stream())
    return len(names)


def _conclude(model: Any, summary: str, out: Path) -> None:
    """Print what was fitted, how well, and where it is."""
    from snefy_ldl.auto import Choice

    done = model.training_
    losses = [loss for loss in done["validation_loss"] if loss is not None]
    typer.echo(f"{training_rows(done)}, {summary}")
    if (choice := done.get("choice")) is not None:
        typer.echo(str(Choice(**choice)))
    typer.echo(f"fitted in {done['seconds']:.1f} s, on {done['device']}: {training_length(done)}")
    tried = getattr(model, "candidates_", [])
    if len(tried) > 1:
        name = next(one["name"] for one in tried if one["outcome"] == "kept")
        typer.echo(f"inputs: {name}, kept from {len(tried)} candidates")
    if (groups := done.get("group_effects")) is not None:
        sizes = ", ".join(f"{n:,} of {level}" for n, level in zip(groups["groups"], groups["levels"]))
        typer.echo(f"groups: {sizes}; group effects: {groups['effects']}")
    if losses:
        kind = training_kind(model)
        typer.echo(f"mean log likelihood of the rows held back ({kind}): {-sum(losses) / len(losses):.4f}")
    typer.echo(f"saved to {out}")
