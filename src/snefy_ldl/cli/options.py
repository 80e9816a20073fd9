"""Options and arguments that several commands share, with their help texts.

The fields of a dataclass become options of the command that takes it (:func:`snefy_ldl.cli.entry.command`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from snefy_ldl.cluster.base import Engine

#: Columns of a table with one vote per row.
VOTE_COLUMNS = "item,annotator,label"

ModelFolder = Annotated[Path, typer.Argument(metavar="MODEL", help="Folder that fit wrote.")]
TableFile = Annotated[
    Path,
    typer.Argument(metavar="TABLE", help="CSV, TSV, Excel, Parquet or Feather file, or a folder of Parquet files."),
]
ItemFile = Annotated[
    Path, typer.Argument(metavar="ITEMS", help="Table with the items' names (item, id or row) and features.")
]
Tables = Annotated[
    list[str],
    typer.Argument(metavar="TABLE...", help="CSV, TSV, Excel, Parquet or Feather file, or several Parquet files."),
]
Features = Annotated[
    str | None,
    typer.Option(metavar="F1,F2", help="Feature columns, for a model that was fitted without column names."),
]
Counts = Annotated[bool, typer.Option("--counts", help="The label columns hold numbers of votes, not shares.")]
Normalize = Annotated[
    bool, typer.Option("--normalize", help="The label columns hold amounts: divide each row by its sum.")
]
Device = Annotated[str, typer.Option(help="auto (a GPU where there is one), cpu, cuda ...")]
Seed = Annotated[int, typer.Option(help="Random seed; the same seed gives the same result.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")]
Keep = Annotated[str | None, typer.Option(metavar="COL1,COL2", help="Columns to copy from the table.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Any other setting, for example n_neurons=32. Repeatable."),
]
Ternary = Annotated[
    str | None,
    typer.Option(metavar="A,B,C", help="Labels at the corners of the triangles, or groups of labels: A+B,C,D."),
]
Dpi = Annotated[int, typer.Option(min=30, max=1200, help="Dots per inch of a PNG file.")]
TableOut = Annotated[
    str, typer.Option(help="CSV, TSV, Excel, Parquet or Feather file to write, by its ending; - prints CSV.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
IdColumn = Annotated[
    str | None,
    typer.Option("--id", metavar="COLUMN", help="Column that names the rows; by default item, id or row, if present."),
]
VoteFile = Annotated[Path | None, typer.Option(help="File with the votes, if TABLE holds only the items' features.")]
VoteColumns = Annotated[
    str,
    typer.Option(
        "--vote-columns", metavar="I,A,L", help="Columns of a table with one vote per row; detected by default."
    ),
]
BackboneCode = Annotated[
    str | None,
    typer.Option(
        "--backbone",
        metavar="MODULE:FUNCTION",
        help="For a model with a custom network: the function that builds it. Runs that code; it must be trusted.",
    ),
]


@dataclass(frozen=True)
class LabelOptions:
    """Options of commands that judge a model: where the labels of a table are.

    Args:
        labels (A,B,C): Label columns; by default those the model was fitted to.
        votes (FORM): Votes instead of shares: counts, long or wide; auto detects it.
    """

    labels: str | None = None
    features: Features = None
    counts: Counts = False
    votes: str = "auto"
    vote_file: VoteFile = None
    columns: VoteColumns = VOTE_COLUMNS
    id_name: IdColumn = None
    normalize: Normalize = False

    @property
    def form(self) -> str:
        """How the labels are written down."""
        return "counts" if self.counts else self.votes


@dataclass(frozen=True)
class VoteOptions:
    """Options of ``update`` and ``next``: how the votes are written down.

    Args:
        form (FORM): How the votes are written down: auto, long, wide or counts.
    """

    form: Annotated[str, typer.Option("--votes")] = "auto"
    columns: VoteColumns = VOTE_COLUMNS
    id_name: IdColumn = None
    features: Features = None


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
            from snefy_ldl.errors import InputError

            raise InputError("--backbone works with one table only: tables in parts are read by other processes.")
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
