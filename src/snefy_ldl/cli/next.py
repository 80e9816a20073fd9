"""The command ``next``: which items the next votes should go to."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, cast

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
    say,
    table_output,
)
from snefy_ldl.cli.items import Items, ItemsFile
from snefy_ldl.cli.model_tables import table_notes

EXAMPLES = """Fifty items for one more annotator:
  snefy-ldl next model items.csv votes.csv --n 50 --out next.csv

Where a first vote on a new item costs as much as three:
  snefy-ldl next model items.csv votes.csv --new-item-cost 3
"""


def next_items(
    model: ModelFolder,
    items: ItemsFile,
    votes: Annotated[
        Path | None, typer.Argument(metavar="VOTES", help="Votes so far; without them all items are new.")
    ] = None,
    out: TableOut = "-",
    n: Annotated[int, typer.Option("--n", "-n", min=1, help="How many votes there are to give out.")] = 50,
    criterion: Annotated[
        str, typer.Option(help="variance: how much surer the shares become; information: nats a vote tells.")
    ] = "variance",
    max_per_item: Annotated[int, typer.Option(min=1, help="Most of these votes that one item may get.")] = 1,
    new_item_cost: Annotated[float, typer.Option(help="What the first vote on a new item costs, in votes.")] = 1.0,
    form: VoteForm = "auto",
    columns: VoteColumns = VOTE_COLUMNS,
    id_name: IdColumn = None,
    features: Features = None,
    backbone: BackboneCode = None,
) -> None:
    """Which items the next annotator should see, and what a vote on each is expected to gain.

    Written are the item's name, its number of votes so far, the expected
    gain, and as predicted_... columns the shares expected now; the most
    valuable first.
    """
    from snefy_ldl.datasets.labelled import PREDICTED
    from snefy_ldl.datasets.tables import TableSink
    from snefy_ldl.errors import InputError

    if criterion not in ("variance", "information"):
        raise InputError(f"--criterion {criterion}: use variance or information.")
    if not new_item_cost > 0:
        raise InputError(f"--new-item-cost {new_item_cost:g}: it must be above 0.")
    table_output(out, items, votes)
    reader = Items(model, items, votes, form, columns, id_name, features, backbone)
    distinct_columns([reader.id_name, "votes", "expected_gain", *(f"{PREDICTED}{label}" for label in reader.labels)])
    if n > reader.n_items * max_per_item:
        raise InputError(f"--n {n}: {items.name} has {reader.n_items} items; ask for fewer, or raise --max-per-item.")
    settings = {"criterion": criterion, "max_per_item": max_per_item, "new_item_cost": new_item_cost}
    best = _best_votes(reader, n, max_per_item, settings)
    with TableSink(out) as sink:
        sink.write(best)
    if out != "-":
        say(f"{len(best):,} votes for {best[reader.id_name].nunique():,} items written to {out}", "green")


def _best_votes(reader: Items, n: int, max_per_item: int, settings: dict[str, Any]) -> Any:
    """The n votes that gain most, the best first: a frame that holds the best of all blocks read so far."""
    import numpy as np
    import pandas as pd

    from snefy_ldl._internal.validation.rows import take_rows
    from snefy_ldl.datasets.labelled import PREDICTED
    from snefy_ldl.datasets.tables import DECIMALS

    best: Any = None
    with table_notes(), progress_bar("next") as progress:
        for ids, X, counts in reader.blocks(progress):
            chosen, gains = reader.model.next_vote(
                X, counts, min(n, len(ids) * max_per_item), return_values=True, **cast(Any, settings)
            )
            distinct, where = np.unique(chosen, return_inverse=True)
            mean = (
                reader.model.update(take_rows(X, distinct), counts[distinct]).mean.cpu().numpy()[where].round(DECIMALS)
            )
            part = pd.DataFrame(
                {
                    reader.id_name: [ids[row] for row in chosen],
                    "votes": counts[chosen].sum(axis=1).astype(np.int64),
                    "expected_gain": gains,
                    **{f"{PREDICTED}{label}": mean[:, r] for r, label in enumerate(reader.labels)},
                }
            )
            best = part if best is None else pd.concat([best, part])
            best = best.sort_values("expected_gain", ascending=False, kind="stable").head(n)
    return best
