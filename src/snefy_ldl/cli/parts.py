"""Predictions in parts: which engine, which files, and what is printed when all parts are done."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from snefy_ldl.cli.common import distinct_columns, input_error, note, note_other_levels, progress_bar, say
from snefy_ldl.cli.tables import feature_names, known_features, label_names, print_odd_cells
from snefy_ldl.cluster.rows import calibrated_levels, interval_columns

if TYPE_CHECKING:
    from snefy_ldl.cluster.base import Engine

Address = Annotated[
    str | None,
    typer.Option(help="Address of a Ray cluster, for example auto; by default a cluster is started on this machine."),
]


@dataclass(frozen=True)
class EngineOptions:
    """Options of ``predict`` for tables in parts.

    Args:
        engine (local|ray): Where tables in parts are worked on; they need an --out folder.
        workers: Workers; by default one per core.
        patience: Seconds without a finished part after which a run on Ray ends.
    """

    engine: str = "local"
    address: Address = None
    workers: Annotated[int | None, typer.Option(min=1)] = None
    patience: Annotated[float, typer.Option(min=0.0)] = 600.0

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
        if out == "-" or Path(out).suffix:
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
    from snefy_ldl.cluster.base import run_parts
    from snefy_ldl.cluster.parts import PartTable, find_tables
    from snefy_ldl.cluster.work import ModelFiles, Predictions
    from snefy_ldl.datasets.labelled import find_id

    table, files = PartTable(find_tables(tables)), ModelFiles.read(model, device)
    fitted, calibration = files.load()
    if getattr(fitted, "group_effects_", None) is not None:
        note("a table in parts is read without its groups: all rows are of unknown groups")
    table.need(keep, "--keep")
    key, labels = find_id(table.columns, None, known_features(fitted, features)), label_names(fitted)
    kept = tuple(dict.fromkeys([*([key] if key else []), *keep]))
    # a table in parts has all of a table on disk that is asked for here
    names = tuple(feature_names(fitted, features, cast(Any, table), kept))
    distinct_columns([*kept, *labels, *(interval_columns(labels) if interval is not None else [])])
    if interval is not None and calibration is not None and not uncalibrated:
        note_other_levels(calibrated_levels(calibration), interval)
    work = Predictions(files, names, kept, interval, uncalibrated)
    with progress_bar("predict") as progress:
        run = run_parts(engine, work, table, out, progress=progress)
    print_odd_cells(run.odd)
    if run.kept:
        note(f"{run.kept} of {len(run.outcomes)} parts were finished by an earlier run")
    say(f"{run.rows:,} rows in {len(run.outcomes):,} parts written to {out}", "green")
