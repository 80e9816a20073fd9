"""The commands on tables in parts: which engine, which files, and what is printed when all parts are done."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from snefy_ldl.cli import options as opt
from snefy_ldl.cli.common import (
    distinct_columns,
    input_error,
    note,
    note_other_levels,
    progress_bar,
    say,
    split,
    warnings_as_notes,
)
from snefy_ldl.cli.tables import (
    check_vote_form,
    feature_names,
    known_features,
    label_names,
    print_odd_cells,
    read_votes,
)
from snefy_ldl.cluster.rows import calibrated_levels, interval_columns

if TYPE_CHECKING:
    from snefy_ldl.cluster.base import Engine, Run
    from snefy_ldl.cluster.parts import PartTable
    from snefy_ldl.cluster.work import ModelFiles, Work
    from snefy_ldl.estimator import SnefyLDL

#: What the table of chosen rows is called, beside the folder of the parts.
CHOSEN, PARTS = "chosen.parquet", "parts"

Address = Annotated[
    str | None,
    typer.Option(help="Address of a Ray cluster, for example auto; by default a cluster is started on this machine."),
]


@dataclass(frozen=True)
class EngineOptions:
    """Options of commands that work on tables in parts. Its fields become options.

    Args:
        engine: "local" or "ray".
        address: Of a Ray cluster, or None.
        workers: How many; None takes one per core.
        patience: Seconds without a finished part that end a run on Ray.
    """

    engine: Annotated[
        str,
        typer.Option(
            "--engine", metavar="local|ray", help="Where tables in parts are worked on; they need an --out folder."
        ),
    ] = "local"
    address: Address = None
    workers: Annotated[int | None, typer.Option(min=1, help="Workers; by default one per core.")] = None
    patience: Annotated[
        float, typer.Option(min=0.0, help="Seconds without a finished part after which a run on Ray ends.")
    ] = 600.0

    def choose(self, tables: list[str], out: str, backbone: str | None) -> Engine | None:
        """The engine for work in parts.

        Args:
            tables: What was named as input.
            out: What was named as output.
            backbone: Text of ``--backbone``, or None.

        Returns:
            The engine; None where one table becomes one table, as without any engine.

        Raises:
            BadParameter: The options do not go together.
            InputError: A model with a custom network cannot be sent to other processes.
        """
        on_ray = is_ray(self.engine, self.address)
        if not out or out == "-" or Path(out).suffix:
            if on_ray or len(tables) > 1:
                raise typer.BadParameter("work in parts writes many files: name a folder for them with --out.")
            return None
        if on_ray:
            from snefy_ldl.cluster.ray import RayEngine, import_ray

            import_ray()  # raises at once where Ray is missing
            engine: Engine = RayEngine(self.address, self.workers, self.patience)
        else:
            from snefy_ldl.cluster.base import LocalEngine

            engine = LocalEngine(self.workers)
        if backbone is not None:
            raise input_error("--backbone works with one table only: tables in parts are read by other processes.")
        return engine


def is_ray(engine: str, address: str | None) -> bool:
    """Whether the work goes to a Ray cluster.

    Args:
        engine: Text of ``--engine``.
        address: Text of ``--address``, or None.

    Returns:
        True for "ray".

    Raises:
        BadParameter: There is no such engine, or a local one was given an address.
    """
    if engine not in ("local", "ray"):
        raise typer.BadParameter(f"--engine {engine}: use local or ray.")
    if engine == "local" and address is not None:
        raise typer.BadParameter("--address names a Ray cluster: add --engine ray.")
    return engine == "ray"


@dataclass(frozen=True)
class Setup:
    """A model and the files it is asked about.

    Args:
        shipped: The model's files.
        model: The model itself.
        calibration: Its calibration, or None.
        table: The files.
    """

    shipped: ModelFiles
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
        from snefy_ldl.cluster.work import ModelFiles

        table = PartTable(find_tables(tables))
        shipped = ModelFiles.read(model, device)
        fitted, calibration = shipped.load()
        if getattr(fitted, "group_effects_", None) is not None:
            note("a table in parts is read without its groups: all rows are of unknown groups")
        return cls(shipped, fitted, calibration, table)

    @property
    def labels(self) -> list[str]:
        """Names of the labels."""
        return label_names(self.model)

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
    """Work on all parts, with a bar, and print what was odd.

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
    print_odd_cells(run.odd)
    if run.kept:
        note(f"{run.kept} of {len(run.outcomes)} parts were finished by an earlier run")
    return run


def predict_parts(
    engine: Engine,
    model: Path,
    tables: list[str],
    out: str,
    keep: list[str],
    features: str | None,
    device: str,
    interval: float | None,
    uncalibrated: bool,
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
        interval: Level of the intervals, or None.
        uncalibrated: Whether to ignore a calibration.
    """
    from snefy_ldl.cluster.work import Predictions

    setup = Setup.read(model, tables, device)
    setup.table.need(keep, "--keep")
    key = setup.key(None, features)
    kept = tuple(dict.fromkeys([*([key] if key else []), *keep]))
    names = setup.features(features, kept)
    distinct_columns([*kept, *setup.labels, *(interval_columns(setup.labels) if interval is not None else [])])
    if interval is not None and setup.calibration is not None and not uncalibrated:
        note_other_levels(calibrated_levels(setup.calibration), interval)
    work = Predictions(setup.shipped, names, kept, interval=interval, uncalibrated=uncalibrated)
    run = work_through(engine, work, setup.table, out, "predict")
    say(f"{run.rows:,} rows in {len(run.outcomes):,} parts written to {out}", "green")


def evaluate_parts(
    engine: Engine, model: Path, tables: list[str], out: str, options: opt.LabelOptions, level: float
) -> dict[str, Any]:
    """``evaluate`` in parts.

    Args:
        engine: Where the work is done.
        model: Folder of the model.
        tables: Parquet files, folders, patterns and addresses.
        out: Folder for the scores of every row.
        options: Where the labels are.
        level: Of the intervals.

    Returns:
        The report, as ``evaluate`` makes it of one table.

    Raises:
        BadParameter: The labels are single votes, or in another table.
    """
    from snefy_ldl.cluster.work import Evaluation

    if options.vote_file is not None or options.form not in ("auto", "shares", "counts"):
        raise typer.BadParameter("work in parts takes shares or --counts in the same table only.")
    setup, counts = Setup.read(model, tables), options.form == "counts"
    names = split(options.labels) or setup.labels
    setup.table.need(names, "labels")
    key = setup.key(None, options.features)
    keep = () if key is None else (key,)
    features = setup.features(options.features, (*names, *keep))
    work = Evaluation(setup.shipped, features, keep, tuple(names), counts, options.normalize, level)
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
    from snefy_ldl import metrics
    from snefy_ldl.cluster.work import RunningMoments
    from snefy_ldl.reports.scores import figure, warn_if_seen

    tallies: dict[str, RunningMoments] = {}
    for outcome in run.outcomes:
        for name, numbers in outcome.summary.items():
            tallies[name] = tallies.get(name, RunningMoments()) + RunningMoments(*numbers)

    if run.rows and "trained" in tallies:  # parts that an earlier version scored lack it
        with warnings_as_notes():
            warn_if_seen(round(tallies["trained"].mean_and_error()[0] * run.rows), run.rows)

    def entry(name: str, better: str) -> dict[str, Any] | None:
        return figure(tallies[name].mean_and_error(), better) if name in tallies else None

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
    engine: Engine, model: Path, items: str, votes: Path, out: str, level: float, options: opt.VoteOptions
) -> None:
    """``update`` in parts.

    Args:
        engine: Where the work is done.
        model: Folder of the model.
        items: Parquet files: one, a folder, or a pattern.
        votes: Votes so far.
        out: Folder to write to.
        level: Of the intervals.
        options: How the votes are written down.
    """
    from snefy_ldl.cluster.work import Updates
    from snefy_ldl.datasets.labelled import ID_NAMES
    from snefy_ldl.datasets.tables import cell_text

    check_vote_form(options)
    setup = Setup.read(model, [items])
    key = setup.key(options.id_name, options.features)
    names = setup.features(options.features, () if key is None else (key,))
    distinct_columns([key or ID_NAMES[-1], "votes", *setup.labels, *interval_columns(setup.labels)])
    ids: set[str] = {str(row) for row in range(setup.table.n_rows)} if key is None else set()
    for cells in [] if key is None else setup.table.column(key):
        for text in map(cell_text, cells):
            if text in ids:
                raise input_error(f"two items are named {text!r} (column {key!r}); names must be unique.")
            ids.add(text)
    counts = read_votes(votes, setup.labels, options, ids, setup.table.file.name, key)
    sent = tuple((name, tuple(float(number) for number in row)) for name, row in counts.items())
    run = work_through(engine, Updates(setup.shipped, names, (), key, sent, level), setup.table, out, "update")
    say(f"{run.rows:,} items in {len(run.outcomes):,} parts written to {out}", "green")


def query_parts(
    engine: Engine,
    model: Path,
    pools: list[str],
    out: str,
    strategy: Any,
    n: int,
    seed: int,
    *,
    id_name: str | None,
    keep: list[str],
    features: str | None,
    skip: list[Path],
) -> None:
    """``query`` in parts.

    Args:
        engine: Where the work is done.
        model: Folder of the model.
        pools: Parquet files, folders, patterns and addresses.
        out: Folder to write to: ``chosen.parquet``, and the best rows of each part in ``parts``.
        strategy: One that scores each row by itself.
        n: How many rows.
        seed: Of draws.
        id_name: Column that names the rows.
        keep: Further columns to copy.
        features: Text of ``--features``, or None.
        skip: Files that name rows which must not be chosen.
    """
    from snefy_ldl.cluster.work import Query

    setup = Setup.read(model, pools)
    scored = _scores_rows(strategy, setup.model)
    setup.table.need(keep, "--keep")
    key = setup.key(id_name, features)
    ids = () if key is None else (key,)
    names = setup.features(features, (*ids, *keep))
    kept = tuple(name for name in keep if name not in (*ids, *names))
    skipped = tuple(sorted(names_to_skip(skip, key, id_name)))
    work = Query(setup.shipped, names, kept, scored, n, seed, key, skipped)
    run = work_through(engine, work, setup.table, f"{out.rstrip('/')}/{PARTS}", "query")
    free = sum(int(outcome.summary["free"]) for outcome in run.outcomes)
    if free < n:
        raise input_error(f"--n {n}: the pool has only {free} rows to choose from.")
    _write_chosen(out, n, setup.labels)
    say(f"{n:,} of {run.rows:,} rows written to {out.rstrip('/')}/{CHOSEN}", "green")


def names_to_skip(files: list[Path], key: str | None, id_name: str | None) -> set[str]:
    """Names of rows that must not be chosen again.

    Args:
        files: Tables or Label Studio files that name rows.
        key: Column that names the rows of the pool; None where they go by number.
        id_name: Text of ``--id``, or None.

    Returns:
        The names.

    Raises:
        InputError: A file names its rows in another way than the pool.
    """
    from snefy_ldl.datasets.labelled import ID_NAMES, named_rows

    names: set[str] = set()
    for file in files:
        listed, column = named_rows(file, id_name)
        if (key is None) != (column == ID_NAMES[-1]) and key != column:
            goes = f"column {key!r}" if key else "row number"
            raise input_error(
                f"--skip {file}: the file names rows by {column!r}, the pool by {goes}. Name the column with --id."
            )
        names.update(listed)
    return names


def _scores_rows(strategy: Any, model: Any) -> Any:
    """The strategy, where it needs no row but the one it scores."""
    from snefy_ldl.active import Auto, Epistemic, LawStrategy, Variance

    if isinstance(strategy, Auto):
        note("in parts, rows are chosen by their scores alone, whether or not they differ from each other")
        several = getattr(model, "n_members", 1) not in (1, "auto")
        strategy = Epistemic(target="vote") if several else Variance()
    if not isinstance(strategy, LawStrategy) or strategy.diverse:
        raise input_error(
            "in parts, each row is scored by itself: use variance, entropy, logdet, vote_information, epistemic or "
            "dirichlet, without --diverse; other strategies look at all rows of one table."
        )
    return strategy


def _write_chosen(out: str, n: int, labels: list[str]) -> None:
    """The best rows of all parts, best first, with empty columns to fill the labels in."""
    import pyarrow
    from pyarrow import parquet

    from snefy_ldl.cluster.parts import StoragePath
    from snefy_ldl.cluster.work import NUMBER, take_best

    tables = []
    for place in StoragePath(f"{out.rstrip('/')}/{PARTS}").files():
        system, path = place.open()
        with system.open_input_file(path) as file:
            tables.append(parquet.read_table(file))
    best = take_best(pyarrow.concat_tables(tables), n).drop_columns([NUMBER])
    for number, label in enumerate([label for label in labels if label not in best.column_names], 2):
        best = best.add_column(number, label, pyarrow.nulls(best.num_rows, pyarrow.float64()))
    with StoragePath(out).child(CHOSEN).replaced() as file:
        parquet.write_table(best.replace_schema_metadata(None), file)
