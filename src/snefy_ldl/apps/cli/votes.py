"""Votes on the command line: ``--of``, and ``query --votes``, the items that gain most by one more vote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from snefy_ldl.apps.cli.common import distinct_columns, input_error, progress_bar, say, table_output, warnings_as_notes
from snefy_ldl.apps.cli.tables import Items

#: Settings of ``query --votes``.
VOTE_SETTINGS = ("criterion", "max_per_item", "new_item_cost")
#: The same where annotators are known.
PAIR_SETTINGS = ("objective", "max_per_item", "max_per_annotator", "target_error")


def answer_of(model: Any, of: str | None) -> Any:
    """The model, answering about the votes that ``--of`` names.

    Args:
        model: The fitted model.
        of: Text of ``--of``: panel, latent, an annotator, or facts such as age=50+,gender=f.

    Returns:
        The model itself.

    Raises:
        InputError: The model has no annotators, or not these.
    """
    if of is None:
        return model
    if not hasattr(model, "annotators_"):
        raise input_error("--of: the model was not fitted to single votes; fit with --votes long or --annotators.")
    whom: Any = dict(part.split("=", 1) for part in of.split(",")) if "=" in of and of not in model.annotators_ else of
    if whom not in ("panel", "latent"):
        model.annotators_.matrix(whom)
    return model.set_params(of=whom)


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

    table_output(out, items, votes)
    reader, each = Items(model, items, votes, id_name), settings.get("max_per_item", 1)
    single = reader.single_votes
    if hasattr(model, "annotators_") and single is not None and single.annotators:
        return _next_pairs(model, reader, single, out, n, settings)
    if unknown := [name for name in settings if name not in VOTE_SETTINGS]:
        raise input_error(f"--set {unknown[0]}: with --votes use one of {', '.join(VOTE_SETTINGS)}.")
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


def _next_pairs(model: Any, reader: Items, single: Any, out: str, n: int, settings: dict[str, Any]) -> None:
    """Write which annotator to ask about which item."""
    import pandas as pd

    from snefy_ldl.datasets.table_files import TableSink

    if unknown := [name for name in settings if name not in PAIR_SETTINGS]:
        raise input_error(f"--set {unknown[0]}: for votes of known annotators use one of {', '.join(PAIR_SETTINGS)}.")
    parts = []
    with warnings_as_notes(tables=True), progress_bar("query") as progress:
        for ids, X, _ in reader.blocks(progress):
            votes = single.on_items(ids)
            pairs, gains = model.next_vote(as_positions(X), votes, n, return_values=True, **settings)
            parts.append(
                pd.DataFrame({reader.id_name: [item for item, _ in pairs], "annotator": [a for _, a in pairs]})
            )
            parts[-1]["expected_gain"] = gains
    best = pd.concat(parts).sort_values("expected_gain", ascending=False, kind="stable").head(n)
    with TableSink(out) as sink:
        sink.write(best)
    if out != "-":
        what = settings.get("objective", "panel")
        say(
            f"{len(best):,} votes of {best['annotator'].nunique()} annotators, for the {what}, written to {out}",
            "green",
        )


def as_positions(X: Any) -> Any:
    """Features without an index, whose rows are in the order of the items."""
    return X.reset_index(drop=True) if hasattr(X, "reset_index") else X
