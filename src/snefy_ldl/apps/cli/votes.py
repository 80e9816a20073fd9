"""``query --votes``: the items that gain most by one more vote, and the annotators to ask."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from snefy_ldl.apps.cli.common import distinct_columns, input_error, progress_bar, say, table_output, warnings_as_notes
from snefy_ldl.apps.cli.tables import Items

#: Settings of ``query --votes``, with their defaults.
VOTE_SETTINGS = {"criterion": "variance", "max_per_item": 1, "new_item_cost": 1.0, "target_error": 0.0}


def next_votes(
    model: Any,
    items: Path,
    votes: Path,
    out: str,
    n: int,
    changes: dict[str, Any],
    id_name: str | None,
    pairs: bool,
    costs: Path | None,
) -> None:
    """Write the items that gain most by one more vote, the most valuable first.

    Args:
        model: The fitted model.
        items: Table with the items' names and features.
        votes: Their votes so far.
        out: File to write, or ``-``.
        n: Votes to allocate.
        changes: What differs from :data:`VOTE_SETTINGS`.
        id_name: Text of ``--id``, or None.
        pairs: Whether to choose the annotator, too.
        costs: Table of costs by annotator, or None.

    Raises:
        InputError: An option, the items or the votes break a rule.
    """
    from snefy_ldl.datasets.labelled import PREDICTED
    from snefy_ldl.datasets.table_files import TableSink

    settings = _check_settings(changes, pairs, costs)
    most = settings["max_per_item"]
    table_output(out, items, votes)
    if pairs and getattr(model, "annotators_", None) is None:
        raise input_error("--pairs: the model was not fitted to annotators; fit with --votes long or --annotators.")
    reader = Items(model, items, votes, id_name)
    whom = ["annotator"] if pairs else []
    predicted = [f"{PREDICTED}{label}" for label in reader.labels]
    distinct_columns([reader.id_name, *whom, "votes", "expected_gain", *predicted])
    if n > reader.n_items * most:
        raise input_error(f"--n {n}: {items.name} has {reader.n_items} items; ask for fewer, or raise max_per_item.")
    if pairs:
        settings["costs"] = _read_costs(costs)
    best = _best_votes(reader, n, most, settings, pairs)
    with TableSink(out) as sink:
        sink.write(best)
    if out != "-":
        say(f"{len(best):,} votes for {best[reader.id_name].nunique():,} items written to {out}", "green")


def _check_settings(changes: dict[str, Any], pairs: bool, costs: Path | None) -> dict[str, Any]:
    """Settings of the choice, those that go with the kind of choice."""
    if unknown := [name for name in changes if name not in VOTE_SETTINGS]:
        raise input_error(f"--set {unknown[0]}: with --votes use one of {', '.join(VOTE_SETTINGS)}.")
    settings = {**VOTE_SETTINGS, **changes}
    if settings["criterion"] not in ("variance", "information"):
        raise input_error(f"--set criterion={settings['criterion']}: use variance or information.")
    for name in ("max_per_item", "new_item_cost"):
        if not isinstance(settings[name], (int, float)) or not settings[name] > 0:
            raise input_error(f"--set {name}={settings[name]}: give a number above 0.")
    kept = ("max_per_item", "target_error") if pairs else ("criterion", "max_per_item", "new_item_cost")
    if misplaced := [name for name in changes if name not in kept]:
        raise input_error(f"--set {misplaced[0]} goes {'without' if pairs else 'with'} --pairs.")
    if costs is not None and not pairs:
        raise input_error("--costs goes with --pairs.")
    return {name: settings[name] for name in kept}


def _read_costs(file: Path | None) -> dict[str, float]:
    """What a vote of each annotator costs, by name."""
    import pandas as pd

    from snefy_ldl.datasets.vote_table import read_vote_cells

    if file is None:
        return {}
    cells = read_vote_cells(file)
    if not {"annotator", "cost"} <= set(cells.columns):
        raise input_error(f"--costs: {file.name} needs the columns annotator and cost.")
    prices = pd.to_numeric(cells["cost"], errors="coerce")
    if prices.isna().any():
        raise input_error(f"--costs: {file.name}, data row {int(prices.isna().argmax()) + 1}: the cost is no number.")
    return dict(zip(cells["annotator"].astype(str), prices.astype(float)))


def _choose_pairs(reader: Items, X: Any, ids: list[str], n: int, settings: dict[str, Any]) -> tuple[Any, Any, Any]:
    """Rows, annotators and gains of the n best pairs among some items."""
    import numpy as np

    from snefy_ldl.datasets.vote_table import VoteTable

    votes = reader.single_votes
    if votes is None:
        votes = VoteTable.from_counts(np.zeros((len(ids), len(reader.labels))), ids, reader.labels)
    pairs, gains = reader.model.next_vote(X, votes.on_items(ids), n, return_values=True, **settings)
    place = {name: row for row, name in enumerate(ids)}
    return np.array([place[item] for item, _ in pairs], dtype=np.intp), [str(name) for _, name in pairs], gains


def _best_votes(reader: Items, n: int, max_per_item: int, settings: dict[str, Any], pairs: bool) -> Any:
    """The n votes that gain most, the best first: a frame that holds the best of all blocks read so far."""
    import numpy as np
    import pandas as pd

    from snefy_ldl._internal.rows import take_rows
    from snefy_ldl.datasets.labelled import PREDICTED
    from snefy_ldl.datasets.table_files import round_shares
    from snefy_ldl.votes import next_vote
    from snefy_ldl.votes import update as update_by_votes

    best: Any = None
    with warnings_as_notes(tables=True), progress_bar("query") as progress:
        for ids, X, counts in reader.blocks(progress):
            wanted, whom = min(n, len(ids) * max_per_item), {}
            if pairs:
                chosen, people, gains = _choose_pairs(reader, X, ids, wanted, settings)
                whom = {"annotator": people}
            else:
                chosen, gains = next_vote(reader.model, X, counts, wanted, return_values=True, **settings)
            mean = np.zeros((0, len(reader.labels)))
            if len(chosen):
                distinct, where = np.unique(chosen, return_inverse=True)
                dist = update_by_votes(reader.model, take_rows(X, distinct), counts[distinct])
                mean = round_shares(dist.mean.cpu().numpy()[where])
            part = pd.DataFrame(
                {
                    reader.id_name: [ids[row] for row in chosen],
                    **whom,
                    "votes": counts[chosen].sum(axis=1).astype(np.int64),
                    "expected_gain": gains,
                    **{f"{PREDICTED}{label}": mean[:, r] for r, label in enumerate(reader.labels)},
                }
            )
            best = part if best is None else pd.concat([best, part])
            best = best.sort_values("expected_gain", ascending=False, kind="stable").head(n)
    return best
