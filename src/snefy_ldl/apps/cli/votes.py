"""``query --votes``: the items that gain most by one more vote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from snefy_ldl.apps.cli.common import distinct_columns, input_error, progress_bar, say, table_output, warnings_as_notes
from snefy_ldl.apps.cli.tables import Items

#: Settings of ``query --votes``.
VOTE_SETTINGS = ("criterion", "max_per_item", "new_item_cost")


def next_votes(
    model: Any, items: Path, votes: Path, out: str, n: int, settings: dict[str, Any], id_name: str | None
) -> None:
    """Write the items that gain most by one more vote, the most valuable first.

    Args:
        model: The fitted model.
        items: Table with the items' names and features.
        votes: Their votes so far.
        out: File to write, or ``-``.
        n: Votes to allocate.
        settings: Of :func:`snefy_ldl.votes.next_vote`.
        id_name: Text of ``--id``, or None.

    Raises:
        InputError: A setting, the items or the votes break a rule.
    """
    import pandas as pd

    from snefy_ldl._internal.rows import take_rows
    from snefy_ldl.datasets.labelled import PREDICTED
    from snefy_ldl.datasets.table_files import TableSink, round_shares
    from snefy_ldl.votes import next_vote, update

    if unknown := [name for name in settings if name not in VOTE_SETTINGS]:
        raise input_error(f"--set {unknown[0]}: with --votes use one of {', '.join(VOTE_SETTINGS)}.")
    table_output(out, items, votes)
    reader, each = Items(model, items, votes, id_name), settings.get("max_per_item", 1)
    predicted = [f"{PREDICTED}{label}" for label in reader.labels]
    distinct_columns([reader.id_name, "votes", "expected_gain", *predicted])
    if not isinstance(each, int) or each < 1:
        raise input_error(f"--set max_per_item={each}: give a whole number above 0.")
    if n > reader.n_items * each:
        raise input_error(f"--n {n}: {items.name} has {reader.n_items} items; ask for fewer, or raise max_per_item.")
    parts = []
    with warnings_as_notes(tables=True), progress_bar("query") as progress:
        for ids, X, counts in reader.blocks(progress):
            most = min(n, len(ids) * each)
            chosen, gains = next_vote(model, X, counts, most, return_values=True, **settings)
            mean = update(model, take_rows(X, chosen), counts[chosen]).mean.cpu().numpy()
            cells = {reader.id_name: [ids[row] for row in chosen], "votes": counts[chosen].sum(axis=1).astype(int)}
            cells |= {"expected_gain": gains, **dict(zip(predicted, round_shares(mean).T))}
            parts.append(pd.DataFrame(cells))
    best = pd.concat(parts).sort_values("expected_gain", ascending=False, kind="stable").head(n)
    with TableSink(out) as sink:
        sink.write(best)
    if out != "-":
        say(f"{len(best):,} votes for {best[reader.id_name].nunique():,} items written to {out}", "green")
