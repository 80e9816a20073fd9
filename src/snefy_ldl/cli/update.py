"""The command ``update``: what is known about items from their features and the votes on them so far."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from snefy_ldl.cli.common import (
    VOTE_COLUMNS,
    BackboneCode,
    Features,
    IdColumn,
    ModelFolder,
    TableOut,
    VoteColumns,
    VoteForm,
    distinct_columns,
    progress_bar,
    refuse_backbone,
    say,
    table_output,
)
from snefy_ldl.cli.items import Items
from snefy_ldl.cli.model_tables import table_notes
from snefy_ldl.cli.parts import Address, EngineName, Patience, Workers, choose_engine, one_table, update_parts
from snefy_ldl.cluster.rows import interval_columns

EXAMPLES = """One vote a row (item, annotator, label):
  snefy-ldl update model items.csv votes.csv --out posterior.csv

Numbers of votes, a column a label:
  snefy-ldl update model items.csv counts.csv --votes counts
"""


def update(
    model: ModelFolder,
    items_name: Annotated[
        str,
        typer.Argument(
            metavar="ITEMS", help="Table with the items' names (item, id or row) and features; Parquet files by a *."
        ),
    ],
    votes: Annotated[Path, typer.Argument(metavar="VOTES", help="Votes so far: a table, or a Label Studio export.")],
    out: TableOut = "-",
    interval: Annotated[float, typer.Option(metavar="LEVEL", help="Level of each label's interval.")] = 0.9,
    form: VoteForm = "auto",
    columns: VoteColumns = VOTE_COLUMNS,
    id_name: IdColumn = None,
    features: Features = None,
    engine: EngineName = "local",
    address: Address = None,
    workers: Workers = None,
    patience: Patience = 600.0,
    backbone: BackboneCode = None,
) -> None:
    """What is known about each item from its features and its votes so far.

    Written are the item's name, its number of votes, and for each label
    the mean of its share and both ends of its interval. Exact: nothing is
    sampled, and the model stays as it is.
    """
    import numpy as np
    import pandas as pd

    from snefy_ldl._internal.validation import check_confidence
    from snefy_ldl.datasets.tables import DECIMALS, TableSink

    check_confidence(interval, "--interval")
    chosen = choose_engine(engine, address, workers, patience, [items_name], out)
    if chosen is not None:
        refuse_backbone(backbone)
        read: dict[str, Any] = {"form": form, "columns": columns, "id_name": id_name, "features": features}
        return update_parts(chosen, model, items_name, votes, out, interval, **read)
    items = one_table([items_name])
    table_output(out, items, votes)
    reader = Items(model, items, votes, form, columns, id_name, features, backbone)
    ends_of = interval_columns(reader.labels)
    distinct_columns([reader.id_name, "votes", *reader.labels, *ends_of])
    tail = 0.5 * (1.0 - interval)
    rows = 0
    with table_notes(), progress_bar("update") as progress, TableSink(out) as sink:
        for ids, X, counts in reader.blocks(progress):
            law = reader.model.update(X, counts)
            mean, ends = law.mean.cpu().numpy(), law.quantiles([tail, 1.0 - tail]).cpu().numpy()
            written: dict[str, Any] = {reader.id_name: ids, "votes": counts.sum(axis=1).astype(np.int64)}
            for r, label in enumerate(reader.labels):
                written[label] = mean[:, r].round(DECIMALS)
                written |= dict(zip(ends_of[2 * r : 2 * r + 2], ends[:, r].round(DECIMALS).T))
            sink.write(pd.DataFrame(written))
            rows += len(ids)
    if out != "-":
        say(f"{rows:,} items written to {out}", "green")
