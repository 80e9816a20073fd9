"""The commands ``update``, ``next`` and ``annotators``: what votes say about items and people, and where more go."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, cast

import typer

from snefy_ldl.cli import options as opt
from snefy_ldl.cli.common import distinct_columns, input_error, progress_bar, say, table_output
from snefy_ldl.cli.entry import command
from snefy_ldl.cli.tables import Items, table_notes
from snefy_ldl.cluster.rows import interval_columns

UPDATE_EXAMPLES = """One vote per row (item, annotator, label):
  snefy-ldl update model items.csv votes.csv --out posterior.csv

Numbers of votes, one column per label:
  snefy-ldl update model items.csv counts.csv --votes counts
"""

NEXT_EXAMPLES = """Fifty items for one more annotator:
  snefy-ldl next model items.csv votes.csv --n 50 --out next.csv

Where a first vote on a new item costs as much as three:
  snefy-ldl next model items.csv votes.csv --new-item-cost 3
"""


ANNOTATOR_EXAMPLES = """Who guesses, who agrees, who leans where:
  snefy-ldl annotators model

The whole table, and a picture of it:
  snefy-ldl annotators model --out people.csv --plot people.png
"""


@command(examples=UPDATE_EXAMPLES)
def update(
    model: opt.ModelFolder,
    items: opt.ItemFile,
    votes: Annotated[Path, typer.Argument(metavar="VOTES", help="Votes so far: a table, or a Label Studio export.")],
    out: opt.TableOut = "-",
    interval: Annotated[float, typer.Option(metavar="LEVEL", help="Level of each label's interval.")] = 0.9,
    *,
    options: opt.VoteOptions,
    backbone: opt.BackboneCode = None,
) -> None:
    """Combine each item's features with its votes so far: what is now known about it.

    Each item is written with its name, its number of votes, and for each
    label the mean of its share and both ends of its interval. The result is
    exact, without sampling, and the model does not change.
    """
    import numpy as np
    import pandas as pd

    from snefy_ldl._internal.validation import check_confidence
    from snefy_ldl.datasets.tables import DECIMALS, TableSink

    check_confidence(interval, "--interval")
    table_output(out, items, votes)
    reader = Items(model, items, votes, options, backbone)
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


@command("next", examples=NEXT_EXAMPLES)
def next_items(
    model: opt.ModelFolder,
    items: opt.ItemFile,
    votes: Annotated[
        Path | None, typer.Argument(metavar="VOTES", help="Votes so far; without them all items are new.")
    ] = None,
    out: opt.TableOut = "-",
    n: Annotated[int, typer.Option("--n", "-n", min=1, help="How many votes there are to give out.")] = 50,
    criterion: Annotated[
        str,
        typer.Option(help="variance: how much more certain the shares become; information: nats gained per vote."),
    ] = "variance",
    max_per_item: Annotated[int, typer.Option(min=1, help="Most of these votes that one item may get.")] = 1,
    new_item_cost: Annotated[float, typer.Option(help="What the first vote on a new item costs, in votes.")] = 1.0,
    *,
    options: opt.VoteOptions,
    backbone: opt.BackboneCode = None,
) -> None:
    """Choose the items the next annotator should see, and the expected gain of a vote on each.

    Each item is written with its name, its number of votes so far, the
    expected gain, and the shares expected now (predicted_... columns), the
    most valuable first.
    """
    from snefy_ldl.datasets.labelled import PREDICTED
    from snefy_ldl.datasets.tables import TableSink

    if criterion not in ("variance", "information"):
        raise input_error(f"--criterion {criterion}: use variance or information.")
    if not new_item_cost > 0:
        raise input_error(f"--new-item-cost {new_item_cost:g}: the cost must be above 0.")
    table_output(out, items, votes)
    reader = Items(model, items, votes, options, backbone)
    distinct_columns([reader.id_name, "votes", "expected_gain", *(f"{PREDICTED}{label}" for label in reader.labels)])
    if n > reader.n_items * max_per_item:
        raise input_error(f"--n {n}: {items.name} has {reader.n_items} items; ask for fewer, or raise --max-per-item.")
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

    from snefy_ldl._internal.rows import take_rows
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


@command(examples=ANNOTATOR_EXAMPLES)
def annotators(
    model: opt.ModelFolder,
    out: Annotated[
        str | None, typer.Option(help="CSV, TSV, Excel, Parquet or Feather file for the whole table, by its ending.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="PNG, SVG or PDF file to draw the table into.")] = None,
    as_json: opt.AsJson = False,
    dpi: opt.Dpi = 150,
    backbone: opt.BackboneCode = None,
) -> None:
    """Print what a fit to single votes learnt about its annotators.

    Each annotator has a number of votes, the agreement with others on the
    same items, how often a vote is the latent label (accuracy, per label),
    and the probability of guessing (spam score), the highest first. Files
    also hold how far each annotator leans to a label, and 90 % intervals.
    """
    import json

    from rich.console import Console

    from snefy_ldl.cli.common import check_picture, load_model, make_table
    from snefy_ldl.datasets.tables import TableSink

    if plot is not None:
        check_picture(plot)
    people = load_model(model, backbone).annotators_
    if people is None:
        raise input_error(f"{model} was not fitted to single votes; fit with --votes long or --annotators.")
    frame = people.to_frame().sort_values("spam_score", ascending=False, kind="stable")
    if out is not None:
        with TableSink(out) as sink:
            sink.write(frame.reset_index())
    if plot is not None:
        from snefy_ldl.plots.votes import plot_annotators

        plot_annotators(people).figure.savefig(plot, dpi=dpi, bbox_inches="tight")
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
