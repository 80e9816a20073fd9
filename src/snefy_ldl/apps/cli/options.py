"""Options and arguments that several commands share; a command's own docstring has precedence over the help below.

Args:
    model (MODEL): Folder that fit wrote.
    table (TABLE): CSV, TSV, Excel or Parquet file, or a folder of Parquet files.
    out: CSV, TSV, Excel or Parquet file to write, format from the extension; - prints CSV.
    features (F1,F2): Feature columns; by default all others.
    labels (A,B,C): Label columns, each row summing to 1, 100 or another constant.
    drop (C1,C2): Columns that are not features.
    normalize: The label columns hold amounts: divide each row by its sum.
    form (counts|long): Votes instead of shares: counts per label, or one vote per row. Detected by default.
    vote_file: File with the votes, if TABLE has only the items' features.
    columns (I,A,L): Columns of a table with one vote per row; detected by default.
    id_name (COLUMN): Column that names the rows; by default item, id, row, sample id or the like, if present.
    keep (COL1,COL2): Columns to copy from the table.
    option (NAME=VALUE): Any other setting, for example n_neurons=32. Repeatable.
    seed: Random seed; the same seed gives the same result.
    of (WHOM): Whose votes, for a model of annotators: panel, latent, an annotator's name, or facts such as age=50+.
    as_json: Print JSON instead of a table.
"""

from __future__ import annotations

from typing import Annotated

import typer

#: Columns of a table with one vote per row.
VOTE_COLUMNS = "item,annotator,label"

VoteColumns = Annotated[str, typer.Option("--vote-columns")]
Of = Annotated[str | None, typer.Option("--of")]
IdColumn = Annotated[str | None, typer.Option("--id")]
Settings = Annotated[list[str] | None, typer.Option("--set")]
AsJson = Annotated[bool, typer.Option("--json")]
Form = Annotated[str, typer.Option("--votes")]
