"""The commands ``update``, ``next`` and ``annotators``: what votes say about items and people, and where more go."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from snefy_ldl.apps.cli import options as opt
from snefy_ldl.apps.cli.common import distinct_columns, input_error, progress_bar, say, table_output, warnings_as_notes
from snefy_ldl.apps.cli.entry import command
from snefy_ldl.apps.cli.tables import Items
from snefy_ldl.apps.rows import RATING_COLUMNS, interval_columns, update_columns


@command()
def update(
    model: Path,
    items: Path,
    votes: Path,
    out: str = "-",
    interval: float = 0.9,
    ordered: bool = False,
    *,
    options: opt.VoteOptions,
    backbone: str | None = None,
) -> None:
    """Combine each item's features with its votes so far: what is now known about it.

    Each item is written with its name, its number of votes, and for each
    label the mean of its share and both ends of its interval. With --ordered,
    vote_low, vote_median and vote_high hold the labels between which one more
    vote would lie, at the interval's level. The result is exact, without
    sampling, and the model does not change.

    Args:
        votes (VOTES): Votes so far: a table, or a Label Studio export.
        interval (LEVEL): Level of each label's interval.
        ordered: Labels are ordered ratings: also write which one more vote would give.

    Examples:
        One vote per row (item, annotator, label):
          snefy-ldl update model items.csv votes.csv --out posterior.csv

        Numbers of votes, one column per label:
          snefy-ldl update model items.csv counts.csv --votes counts

        Labels that are ratings: what would one more vote be?
          snefy-ldl update model items.csv votes.csv --ordered
    """
    import pandas as pd

    from snefy_ldl._internal.validation import check_confidence
    from snefy_ldl.datasets.tables import TableSink

    check_confidence(interval, "--interval")
    table_output(out, items, votes)
    reader = Items(model, items, votes, options, backbone)
    ratings = RATING_COLUMNS if ordered else ()
    distinct_columns([reader.id_name, "votes", *reader.labels, *interval_columns(reader.labels), *ratings])
    rows = 0
    with warnings_as_notes(tables=True), progress_bar("update") as progress, TableSink(out) as sink:
        for ids, X, counts in reader.blocks(progress):
            columns = update_columns(reader.model, X, counts, interval, ordered)
            sink.write(pd.DataFrame({reader.id_name: ids, **columns}))
            rows += len(ids)
    if out != "-":
        say(f"{rows:,} items written to {out}", "green")


@command("next")
def next_items(
    model: Path,
    items: Path,
    votes: Annotated[Path | None, typer.Argument()] = None,
    out: str = "-",
    n: Annotated[int, typer.Option("--n", "-n", min=1)] = 50,
    criterion: str = "variance",
    max_per_item: Annotated[int, typer.Option(min=1)] = 1,
    new_item_cost: float = 1.0,
    pairs: bool = False,
    costs: Path | None = None,
    target_error: float = 0.0,
    *,
    options: opt.VoteOptions,
    backbone: str | None = None,
) -> None:
    """Choose the items the next annotator should see, and the expected gain of a vote on each.

    Each item is written with its name, its number of votes so far, the
    expected gain, and the shares expected now (predicted_... columns), the
    most valuable first. With --pairs, each row also names the annotator to
    ask; gains are per unit of cost.

    Args:
        votes (VOTES): Votes so far; without them all items are new.
        n: How many votes there are to give out.
        criterion: variance: how much more certain the shares become; information: nats gained per vote.
        max_per_item: Most of these votes that one item may get.
        new_item_cost: What the first vote on a new item costs, in votes.
        pairs: Also choose whom to ask; for a model and votes that know annotators.
        costs: With --pairs: table of what votes cost (columns annotator, cost); 1 if absent.
        target_error: With --pairs: items whose expected squared error is at most this get no vote.

    Examples:
        Fifty items for one more annotator:
          snefy-ldl next model items.csv votes.csv --n 50 --out next.csv

        Where a first vote on a new item costs as much as three:
          snefy-ldl next model items.csv votes.csv --new-item-cost 3

        Whom to ask about what, by what their votes tell and cost:
          snefy-ldl next model items.csv votes.csv --pairs --costs costs.csv
    """
    from snefy_ldl.datasets.labelled import PREDICTED
    from snefy_ldl.datasets.tables import TableSink

    if criterion not in ("variance", "information"):
        raise input_error(f"--criterion {criterion}: use variance or information.")
    if not new_item_cost > 0:
        raise input_error(f"--new-item-cost {new_item_cost:g}: the cost must be above 0.")
    table_output(out, items, votes)
    reader = Items(model, items, votes, options, backbone)
    whom = ["annotator"] if pairs else []
    predicted = [f"{PREDICTED}{label}" for label in reader.labels]
    distinct_columns([reader.id_name, *whom, "votes", "expected_gain", *predicted])
    if n > reader.n_items * max_per_item:
        raise input_error(f"--n {n}: {items.name} has {reader.n_items} items; ask for fewer, or raise --max-per-item.")
    settings: dict[str, Any] = {"criterion": criterion, "max_per_item": max_per_item, "new_item_cost": new_item_cost}
    if pairs:
        if criterion != "variance" or new_item_cost != 1.0:
            raise input_error("--pairs goes without --criterion and --new-item-cost; name costs with --costs.")
        if not hasattr(reader.model, "annotators_"):
            raise input_error(f"--pairs: {model} knows no annotators; fit with --votes long or --annotators.")
        settings = {"max_per_item": max_per_item, "target_error": target_error, "costs": _read_costs(costs)}
    elif costs is not None or target_error:
        raise input_error("--costs and --target-error go with --pairs.")
    best = _best_votes(reader, n, max_per_item, settings, pairs)
    with TableSink(out) as sink:
        sink.write(best)
    if out != "-":
        say(f"{len(best):,} votes for {best[reader.id_name].nunique():,} items written to {out}", "green")


def _read_costs(file: Path | None) -> dict[str, float]:
    """What a vote of each annotator costs, by name."""
    import pandas as pd

    from snefy_ldl.datasets.votes import read_vote_cells

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

    from snefy_ldl.datasets.votes import VoteTable

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
    from snefy_ldl.datasets.tables import round_shares
    from snefy_ldl.votes import next_vote
    from snefy_ldl.votes import update as update_by_votes

    best: Any = None
    with warnings_as_notes(tables=True), progress_bar("next") as progress:
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
                law = update_by_votes(reader.model, take_rows(X, distinct), counts[distinct])
                mean = round_shares(law.mean.cpu().numpy()[where])
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


@command()
def annotators(
    model: Path,
    out: str | None = None,
    plot: Path | None = None,
    as_json: opt.AsJson = False,
    dpi: opt.Dpi = 150,
    backbone: str | None = None,
) -> None:
    """Print what a fit to single votes learnt about its annotators.

    Each annotator has a number of votes, the agreement with others on the
    same items, how often a vote is the latent label (accuracy, per label),
    and the probability of guessing (spam score), the highest first. Files
    also hold how far each annotator leans to a label, and 90 % intervals.

    Args:
        out: CSV, TSV, Excel, Parquet or Feather file for the whole table, by its ending.
        plot: PNG, SVG or PDF file to draw the table into.

    Examples:
        Who guesses, who agrees, who leans where:
          snefy-ldl annotators model

        The whole table, and a picture of it:
          snefy-ldl annotators model --out people.csv --plot people.png
    """
    import json

    from rich.console import Console

    from snefy_ldl.apps.cli.common import check_picture, load_model, make_table, write_picture
    from snefy_ldl.datasets.tables import TableSink

    if plot is not None:
        check_picture(plot, option="--plot")
    people = getattr(load_model(model, backbone), "annotators_", None)
    if people is None:
        raise input_error(f"{model} was not fitted to single votes; fit with --votes long or --annotators.")
    frame = people.to_frame().sort_values("spam_score", ascending=False, kind="stable")
    if out is not None:
        with TableSink(out) as sink:
            sink.write(frame.reset_index())
    if plot is not None:
        from snefy_ldl.plots.votes import plot_annotators

        write_picture(plot_annotators(people).figure, plot, dpi)
    if as_json:
        typer.echo(json.dumps(frame.reset_index().to_dict("records"), ensure_ascii=False))
        return
    accuracies = [f"accuracy_{label}" for label in people.label_names]
    shown = ["spam_score", "agreement", *accuracies]
    lines = [
        [str(name), f"{row['votes']:.0f}", *(f"{row[one]:.2f}" for one in shown)] for name, row in frame.iterrows()
    ]
    heads = ["annotator", "votes", "spam", "agreement", *people.label_names]
    title = f"{len(people)} annotators; accuracy per latent label (--out writes intervals and biases, too)"
    Console().print(make_table(heads, lines, ["annotator"], title=title))
