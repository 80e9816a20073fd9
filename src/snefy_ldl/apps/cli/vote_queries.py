"""Votes on the command line: ``--of``, and ``query --votes``, the items that gain most by one more vote."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from snefy_ldl.apps.cli.common import distinct_columns, input_error, progress_bar, say, table_output, warnings_as_notes
from snefy_ldl.apps.cli.tables import Items

#: Settings of ``query --votes``.
VOTE_SETTINGS = ("criterion", "max_per_item")
#: The same if annotators are known.
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

    from snefy_ldl.datasets.table_files import TableSink

    table_output(out, items, votes)
    reader = Items(model, items, votes, id_name)
    pairs = hasattr(model, "annotators_") and reader.single_votes is not None and bool(reader.single_votes.annotators)
    known, whose = (PAIR_SETTINGS, "for votes of known annotators") if pairs else (VOTE_SETTINGS, "with --votes")
    if unknown := [name for name in settings if name not in known]:
        raise input_error(f"--set {unknown[0]}: {whose} use one of {', '.join(known)}.")
    if not pairs:
        each = settings.get("max_per_item", 1)
        if not isinstance(each, int) or each < 1:
            raise input_error(f"--set max_per_item={each}: give a whole number above 0.")
        if n > reader.n_items * each:
            raise input_error(
                f"--n {n}: {items.name} has {reader.n_items} items; ask for fewer, or raise max_per_item."
            )
    with warnings_as_notes(tables=True), progress_bar("query") as progress:
        parts = list(map(pd.DataFrame, (_best_pairs if pairs else _best_items)(model, reader, n, settings, progress)))
    best = pd.concat(parts).sort_values("expected_gain", ascending=False, kind="stable").head(n)
    with TableSink(out) as sink:
        sink.write(best)
    if out == "-":
        return
    what = f"for {best[reader.id_name].nunique():,} items"
    if pairs:
        what = f"of {best['annotator'].nunique()} annotators, for the {settings.get('objective', 'panel')},"
    say(f"{len(best):,} votes {what} written to {out}", "green")


def _best_items(model: Any, reader: Items, n: int, settings: dict[str, Any], progress: Any) -> Iterator[dict[str, Any]]:
    """The best items of each block, with their votes, the gain and the expected shares."""
    from snefy_ldl._internal.rows import take_rows
    from snefy_ldl.datasets.labelled import PREDICTED
    from snefy_ldl.datasets.table_files import round_shares
    from snefy_ldl.votes import next_vote, update

    predicted = [f"{PREDICTED}{label}" for label in reader.labels]
    distinct_columns([reader.id_name, "votes", "expected_gain", *predicted])
    for ids, X, counts in reader.blocks(progress):
        most = min(n, len(ids) * settings.get("max_per_item", 1))
        chosen, gains = next_vote(model, X, counts, most, return_values=True, **settings)
        mean = update(model, take_rows(X, chosen), counts[chosen]).mean.cpu().numpy()
        cells = {reader.id_name: [ids[row] for row in chosen], "votes": counts[chosen].sum(axis=1).astype(int)}
        yield {**cells, "expected_gain": gains, **dict(zip(predicted, round_shares(mean).T))}


def _best_pairs(model: Any, reader: Items, n: int, settings: dict[str, Any], progress: Any) -> Iterator[dict[str, Any]]:
    """The best pairs of an item and an annotator of each block."""
    assert reader.single_votes is not None
    for ids, X, _ in reader.blocks(progress):
        votes = reader.single_votes.on_items(ids)
        pairs, gains = model.next_vote(as_positions(X), votes, n, return_values=True, **settings)
        names = {reader.id_name: [item for item, _ in pairs], "annotator": [who for _, who in pairs]}
        yield {**names, "expected_gain": gains}


def as_positions(X: Any) -> Any:
    """Features without an index, whose rows are in the order of the items."""
    return X.reset_index(drop=True) if hasattr(X, "reset_index") else X
