"""The commands on tables in parts: which engine, which files, and what is said when all parts are done."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from snefy_ldl.cli.common import distinct_columns, note, progress_bar, say, split, warnings_as_notes
from snefy_ldl.cli.items import read_votes
from snefy_ldl.cli.model_tables import feature_names, known_features, say_odd_cells
from snefy_ldl.cluster.rows import calibrated_levels, interval_columns

if TYPE_CHECKING:
    from snefy_ldl.cluster.base import Engine, Run
    from snefy_ldl.cluster.parts import PartTable
    from snefy_ldl.cluster.work import ShippedModel, Work
    from snefy_ldl.estimator import SnefyLDL

Tables = Annotated[
    list[str], typer.Argument(metavar="TABLE...", help="CSV, TSV, Excel, Parquet or Feather file; several of Parquet.")
]
EngineName = Annotated[
    str,
    typer.Option("--engine", metavar="local|ray", help="Where the work is done; tables in parts need an --out folder."),
]
Address = Annotated[
    str | None, typer.Option(help="Ray cluster, auto say; without one, a cluster is started on this machine.")
]
Workers = Annotated[int | None, typer.Option(min=1, help="Workers of the engine; by default one a core.")]
Patience = Annotated[float, typer.Option(min=0.0, help="Seconds without a finished part that end a run on Ray.")]


def choose_engine(
    engine: str, address: str | None, workers: int | None, patience: float, tables: list[str], out: str
) -> Engine | None:
    """The engine for work in parts.

    Args:
        engine: Name of the engine.
        address: Of a Ray cluster, or None.
        workers: How many, or None.
        patience: Seconds without a finished part that end a run on Ray.
        tables: What was named as input.
        out: What was named as output.

    Returns:
        The engine; None where one table becomes one table, as without any engine.

    Raises:
        BadParameter: The options do not go together.
    """
    if engine not in ("local", "ray"):
        raise typer.BadParameter(f"--engine {engine}: use local or ray.")
    is_folder = bool(out) and out != "-" and not Path(out).suffix
    if engine == "local" and address is not None:
        raise typer.BadParameter("--address names a Ray cluster: say --engine ray, too.")
    if not is_folder:
        if engine == "ray" or len(tables) > 1:
            raise typer.BadParameter("work in parts writes many files: name a folder for them with --out.")
        return None
    if engine == "local":
        from snefy_ldl.cluster.base import LocalEngine

        return LocalEngine(workers)
    from snefy_ldl.cluster.ray import RayEngine, import_ray

    import_ray()  # says at once what is missing
    return RayEngine(address, workers, patience)


def one_table(tables: list[str]) -> Path:
    """The one table of a command that was not asked to work in parts.

    Args:
        tables: What was named; :func:`choose_engine` has seen that there is one.

    Returns:
        Its path.
    """
    return Path(tables[0])


@dataclass(frozen=True)
class Setup:
    """A model and the files it is asked about.

    Args:
        shipped: The model's files.
        model: The model itself.
        calibration: Its calibration, or None.
        table: The files.
    """

    shipped: ShippedModel
    model: SnefyLDL
    calibration: dict[str, Any] | None
    table: PartTable

    @classmethod
    def read(cls, model: Path, tables: list[str], device: str = "auto") -> Setup:
        """Read a model, and look at the files.

        Args:
            model: Folder of the model.
            tables: Files, folders, patterns and addresses.
            device: Where workers put the model.

        Returns:
            All of it.
        """
        from snefy_ldl.cluster.parts import PartTable, find_tables
        from snefy_ldl.cluster.work import ShippedModel

        table = PartTable(find_tables(tables))
        shipped = ShippedModel.read(model, device)
        return cls(shipped, *shipped.load(), table)

    @property
    def labels(self) -> list[str]:
        """Names of the labels."""
        return [str(label) for label in self.model.label_names_]

    def features(self, option: str | None, others: tuple[str, ...] = ()) -> tuple[str, ...]:
        """Columns that the model sees.

        Args:
            option: Text of ``--features``, or None.
            others: Columns that are no features.

        Returns:
            Their names, in the model's order.
        """
        # a table in parts has all of a table on disk that is asked for here
        return tuple(feature_names(self.model, option, cast(Any, self.table), others))

    def key(self, id_name: str | None, option: str | None) -> str | None:
        """The column that names the rows.

        Args:
            id_name: What was named, or None.
            option: Text of ``--features``, or None.

        Returns:
            Its name, or None.
        """
        from snefy_ldl.datasets.labelled import find_id

        self.table.need([] if id_name is None else [id_name], "--id")
        return find_id(self.table.columns, id_name, known_features(self.model, option))


def work_through(engine: Engine, work: Work, table: PartTable, out: str, what: str) -> Run:
    """Work on all parts, with a bar, and say what was odd.

    Args:
        engine: Where the work is done.
        work: The question.
        table: The files.
        out: Folder to write to.
        what: The word beside the bar.

    Returns:
        What came of it.
    """
    from snefy_ldl.cluster.base import run_parts

    with progress_bar(what) as progress:
        run = run_parts(engine, work, table, out, progress=progress)
    say_odd_cells(run.odd)
    if run.kept:
        note(f"{run.kept} of {len(run.outcomes)} parts were finished before and are kept")
    return run


def predict_parts(
    engine: Engine,
    model: Path,
    tables: list[str],
    out: str,
    keep: list[str],
    features: str | None,
    device: str,
    options: dict[str, Any],
) -> None:
    """``predict`` in parts; a column that names the rows is always kept.

    Args:
        engine: Where the work is done.
        model: Folder of the model.
        tables: Parquet files, folders, patterns and addresses.
        out: Folder to write to.
        keep: Columns to copy.
        features: Text of ``--features``, or None.
        device: Where workers put the model.
        options: Of :class:`snefy_ldl.cluster.work.Predictions`.
    """
    from snefy_ldl.cluster.work import Predictions

    setup = Setup.read(model, tables, device)
    setup.table.need(keep, "--keep")
    key = setup.key(None, features)
    kept = list(dict.fromkeys([*([key] if key else []), *keep]))
    names = setup.features(features, tuple(kept))
    level = options["interval"]
    distinct_columns([*kept, *setup.labels, *(interval_columns(setup.labels) if level is not None else [])])
    levels = [] if setup.calibration is None else calibrated_levels(setup.calibration)
    if level is not None and levels and level not in levels and not options["uncalibrated"]:
        note(f"calibrated for other levels; {level:g} is the model's own")
    work = Predictions(setup.shipped, names, tuple(kept), **options)
    run = work_through(engine, work, setup.table, out, "predict")
    say(f"{run.rows:,} rows in {len(run.outcomes):,} parts written to {out}", "green")


def evaluate_parts(
    engine: Engine,
    model: Path,
    tables: list[str],
    out: str,
    labels: str | None,
    features: str | None,
    counts: bool,
    normalize: bool,
    level: float,
) -> dict[str, Any]:
    """``evaluate`` in parts.

    Args:
        engine: Where the work is done.
        model: Folder of the model.
        tables: Parquet files, folders, patterns and addresses.
        out: Folder for the scores of every row.
        labels: Text of ``--labels``, or None.
        features: Text of ``--features``, or None.
        counts: Whether labels are votes.
        normalize: Whether labels are amounts.
        level: Of the intervals.

    Returns:
        The report, as ``evaluate`` makes it of one table.
    """
    from snefy_ldl.cluster.work import Evaluation

    setup = Setup.read(model, tables)
    names = split(labels) or setup.labels
    setup.table.need(names, "labels")
    key = setup.key(None, features)
    keep = () if key is None else (key,)
    work = Evaluation(
        setup.shipped, setup.features(features, (*names, *keep)), keep, tuple(names), counts, normalize, level
    )
    run = work_through(engine, work, setup.table, out, "evaluate")
    say(f"scores of {run.rows:,} rows in {len(run.outcomes):,} parts written to {out}", "green")
    return evaluation_report(run, level, counts)


def evaluation_report(run: Run, level: float, counts: bool) -> dict[str, Any]:
    """The figures of all parts as one report.

    Args:
        run: Over all parts.
        level: Of the intervals.
        counts: Whether labels are votes.

    Returns:
        What ``evaluate --json`` prints.
    """
    from math import isfinite

    from snefy_ldl import metrics
    from snefy_ldl.cluster.work import Tally
    from snefy_ldl.reports.scores import warn_if_seen

    tallies: dict[str, Tally] = {}
    for outcome in run.outcomes:
        for name, numbers in outcome.summary.items():
            tallies[name] = tallies.get(name, Tally()) + Tally(*numbers)

    if run.rows and "trained" in tallies:  # parts that an earlier version scored do not say
        with warnings_as_notes():
            warn_if_seen(round(tallies["trained"].mean_and_error()[0] * run.rows), run.rows)

    def entry(name: str, better: str) -> dict[str, Any] | None:
        if name not in tallies:
            return None
        mean, error = tallies[name].mean_and_error()
        return {"value": mean, "std_error": error if isfinite(error) else None, "better": better}

    near = f"near {level:g}"
    calibrated = {"coverage": entry("calibrated_covered", near), "width": entry("calibrated_width", "lower")}
    interval: dict[str, Any] = {"level": level, "coverage": entry("covered", near), "width": entry("width", "lower")}
    if not counts:
        interval["calibrated"] = None if calibrated["coverage"] is None else calibrated
    return {
        "rows": run.rows,
        "metrics": {
            name: entry(name, "higher" if higher else "lower") for name, higher in metrics.HIGHER_IS_BETTER.items()
        },
        "log_likelihood": entry("log_likelihood", "higher"),
        "interval": interval,
    }


def update_parts(
    engine: Engine,
    model: Path,
    items: str,
    votes: Path,
    out: str,
    level: float,
    *,
    form: str,
    columns: str,
    id_name: str | None,
    features: str | None,
) -> None:
    """``update`` in parts.

    Args:
        engine: Where the work is done.
        model: Folder of the model.
        items: Parquet files: one, a folder, or a pattern.
        votes: Votes so far.
        out: Folder to write to.
        level: Of the intervals.
        form: How the votes are written down.
        columns: Columns of a long table of votes.
        id_name: Column that names the items.
        features: Text of ``--features``, or None.
    """
    from snefy_ldl.cluster.work import Updates
    from snefy_ldl.datasets.labelled import ID_NAMES
    from snefy_ldl.datasets.tables import cell_text
    from snefy_ldl.errors import InputError

    if form not in ("auto", "long", "wide", "counts"):
        raise InputError(f"--votes {form}: use auto, long, wide or counts.")
    setup = Setup.read(model, [items])
    key = setup.key(id_name, features)
    names = setup.features(features, () if key is None else (key,))
    distinct_columns([key or ID_NAMES[-1], "votes", *setup.labels, *interval_columns(setup.labels)])
    ids: set[str] = {str(row) for row in range(setup.table.n_rows)} if key is None else set()
    for cells in [] if key is None else setup.table.column(key):
        for text in map(cell_text, cells):
            if text in ids:
                raise InputError(f"two items are named {text!r} (column {key!r}); names must be unique.")
            ids.add(text)
    where = f"{setup.table.file.name}, which goes by {key or ID_NAMES[-1]!r}"
    counts = read_votes(votes, setup.labels, form, columns, id_name, ids, where)
    sent = tuple((name, tuple(float(number) for number in row)) for name, row in counts.items())
    run = work_through(engine, Updates(setup.shipped, names, (), key, sent, level), setup.table, out, "update")
    say(f"{run.rows:,} items in {len(run.outcomes):,} parts written to {out}", "green")
