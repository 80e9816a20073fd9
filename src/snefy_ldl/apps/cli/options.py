"""Options and arguments that several commands share; a command's own docstring has precedence over the help below.

The fields of a dataclass become options of the command that takes it (:func:`snefy_ldl.apps.cli.entry.command`).

Args:
    model (MODEL): Folder that fit wrote.
    table (TABLE): CSV, TSV, Excel, Parquet or Feather file, or a folder of Parquet files.
    tables (TABLE...): CSV, TSV, Excel, Parquet or Feather file, or several Parquet files.
    items (ITEMS): Table with the items' names (item, id or row) and features.
    out: CSV, TSV, Excel, Parquet or Feather file to write, by its ending; - prints CSV.
    features (F1,F2): Feature columns, for a model that was fitted without column names.
    counts: The label columns hold numbers of votes, not shares.
    normalize: The label columns hold amounts: divide each row by its sum.
    vote_file: File with the votes, if TABLE holds only the items' features.
    columns (I,A,L): Columns of a table with one vote per row; detected by default.
    id_name (COLUMN): Column that names the rows; by default item, id or row, if present.
    keep (COL1,COL2): Columns to copy from the table.
    ternary (A,B,C): Labels at the corners of the triangles, or groups of labels: A+B,C,D.
    option (NAME=VALUE): Any other setting, for example n_neurons=32. Repeatable.
    seed: Random seed; the same seed gives the same result.
    device: auto (a GPU where there is one), cpu, cuda ...
    backbone (MODULE:FUNCTION): For a model with a custom network: the function that builds it. Runs that code; it must
        be trusted.
    address: Address of a Ray cluster, for example auto; by default a cluster is started on this machine.
    dpi: Dots per inch of a PNG file.
    as_json: Print JSON instead of a table.
    quiet: No progress bar.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

#: Columns of a table with one vote per row.
VOTE_COLUMNS = "item,annotator,label"

VoteColumns = Annotated[str, typer.Option("--vote-columns")]
IdColumn = Annotated[str | None, typer.Option("--id")]
Settings = Annotated[list[str] | None, typer.Option("--set")]
Dpi = Annotated[int, typer.Option(min=30, max=1200)]
AsJson = Annotated[bool, typer.Option("--json")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q")]


@dataclass(frozen=True)
class LabelOptions:
    """Options of commands that judge a model: where the labels of a table are.

    Args:
        labels (A,B,C): Label columns; by default those the model was fitted to.
        votes (FORM): Votes instead of shares: counts, long or wide; auto detects it.
    """

    labels: str | None = None
    features: str | None = None
    counts: bool = False
    votes: str = "auto"
    vote_file: Path | None = None
    columns: VoteColumns = VOTE_COLUMNS
    id_name: IdColumn = None
    normalize: bool = False

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
    features: str | None = None


@dataclass(frozen=True)
class EngineOptions:
    """Options of ``predict`` for a cluster.

    Args:
        engine (local|ray): Where rows are predicted; ray needs an --out folder.
        workers: Workers on a Ray cluster; by default one per core.
    """

    engine: str = "local"
    address: str | None = None
    workers: Annotated[int | None, typer.Option(min=1)] = None

    def is_ray(self, tables: list[str], out: str, backbone: str | None) -> bool:
        """Whether the work goes to a Ray cluster.

        Args:
            tables: What was named as input.
            out: What was named as output.
            backbone: Text of ``--backbone``, or None.

        Returns:
            True for a cluster.

        Raises:
            BadParameter: The options do not go together.
            InputError: A model with a custom network cannot be sent to other processes.
        """
        is_folder = out != "-" and not Path(out).suffix
        if not is_ray(self.engine, self.address):
            if len(tables) > 1 or is_folder:
                raise typer.BadParameter(
                    "name one TABLE, which may be a folder of Parquet files, and a file for --out; "
                    "many tables to a folder need --engine ray."
                )
            return False
        from snefy_ldl.apps.cluster.ray import import_ray

        if not is_folder:
            raise typer.BadParameter("a cluster writes many files: name a folder for them with --out.")
        if backbone is not None:
            from snefy_ldl.errors import InputError

            raise InputError("--backbone does not work with --engine ray: its code is not sent to workers.")
        import_ray()  # raises at once if Ray is missing
        return True


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
