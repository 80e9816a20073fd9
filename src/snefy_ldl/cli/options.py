"""Options and arguments that several commands share, with their help texts.

The fields of a dataclass become options of the command that takes it (:func:`snefy_ldl.cli.entry.command`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

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
