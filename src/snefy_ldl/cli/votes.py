"""The commands ``update`` and ``next``: what votes so far tell about items, and where the next ones should go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from snefy_ldl.cli.common import (
    VOTE_COLUMNS,
    Features,
    IdColumn,
    ModelFolder,
    VoteColumns,
    VoteForm,
    feature_names,
    note,
    progress_bar,
    report_votes,
    say,
    table_output,
    vote_columns,
)

if TYPE_CHECKING:
    from snefy_ldl.datasets.tables import Progress

UPDATE_EXAMPLES = """One vote a row (item, annotator, label):
  snefy-ldl update model items.csv votes.csv --out posterior.csv

Numbers of votes, a column a label:
  snefy-ldl update model items.csv counts.csv --votes counts
"""
NEXT_EXAMPLES = """Fifty items for one more annotator:
  snefy-ldl next model items.csv votes.csv --n 50 --out next.csv

Where a first vote on a new item costs as much as three:
  snefy-ldl next model items.csv votes.csv --new-item-cost 3
"""
#: Items whose laws are asked at a time.
BLOCK_ITEMS = 4096

ItemsFile = Annotated[
    Path, typer.Argument(metavar="ITEMS", help="Table with the items' names (item, id or row) and their features.")
]
Out = Annotated[str, typer.Option(help="CSV, TSV or Parquet file to write, by its ending; - prints CSV.")]


def update(
    model: ModelFolder,
    items: ItemsFile,
    votes: Annotated[Path, typer.Argument(metavar="VOTES", help="Votes so far: a table, or a Label Studio export.")],
    out: Out = "-",
    interval: Annotated[float, typer.Option(metavar="LEVEL", help="Level of each label's interval.")] = 0.9,
    form: VoteForm = "auto",
    columns: VoteColumns = VOTE_COLUMNS,
    id_name: IdColumn = None,
    features: Features = None,
) -> None:
    """What is known about each item from its features and its votes so far.

    Written are the item's name, its number of votes, and for each label
    the mean of its share and both ends of its interval. Exact: nothing is
    sampled, and the model stays as it is.
    """
    from snefy_ldl.datasets.tables import DECIMALS, TableSink
    from snefy_ldl.distributions.vote_quantiles import posterior_quantiles
    from snefy_ldl.validation import check_confidence

    check_confidence(interval, "--interval")
    table_output(out)
    asked = _Items(model, items, votes, form, columns, id_name, features)
    tail = 0.5 * (1.0 - interval)
    rows = 0
    with progress_bar("update") as progress, TableSink(out) as sink:
        for ids, X, counts in asked.blocks(progress):
            import numpy as np
            import pandas as pd

            law = asked.model.update(X, counts)
            mean, ends = law.mean.cpu().numpy(), posterior_quantiles(law, [tail, 1.0 - tail])
            written: dict[str, Any] = {asked.id_name: ids, "votes": counts.sum(axis=1).astype(np.int64)}
            for r, label in enumerate(asked.labels):
                written[label] = mean[:, r].round(DECIMALS)
                written[f"{label}_low"], written[f"{label}_high"] = ends[:, r].round(DECIMALS).T
            sink.write(pd.DataFrame(written))
            rows += len(ids)
    if out != "-":
        say(f"{rows:,} items written to {out}", "green")


def next_items(
    model: ModelFolder,
    items: ItemsFile,
    votes: Annotated[
        Path | None, typer.Argument(metavar="VOTES", help="Votes so far; without them all items are new.")
    ] = None,
    out: Out = "-",
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
) -> None:
    """Which items the next annotator should see, and what a vote on each is expected to gain.

    Written are the item's name, its number of votes so far, the expected
    gain, and as predicted_... columns the shares expected now; the most
    valuable first.
    """
    import numpy as np
    import pandas as pd

    from snefy_ldl.datasets.labelled import PREDICTED
    from snefy_ldl.datasets.tables import DECIMALS, TableSink
    from snefy_ldl.errors import InputError

    if criterion not in ("variance", "information"):
        raise InputError(f"--criterion {criterion}: use variance or information.")
    if not new_item_cost > 0:
        raise InputError(f"--new-item-cost {new_item_cost:g}: it must be above 0.")
    table_output(out)
    asked = _Items(model, items, votes, form, columns, id_name, features)
    if n > asked.n_items * max_per_item:
        raise InputError(f"--n {n}: {items.name} has {asked.n_items} items; ask for fewer, or raise --max-per-item.")
    best: Any = None
    with progress_bar("next") as progress:
        for ids, X, counts in asked.blocks(progress):
            chosen, gains = asked.model.next_vote(
                X,
                counts,
                min(n, len(ids) * max_per_item),
                criterion=cast(Any, criterion),
                max_per_item=max_per_item,
                new_item_cost=new_item_cost,
                return_values=True,
            )
            distinct, where = np.unique(chosen, return_inverse=True)
            mean = asked.model.update(X[distinct], counts[distinct]).mean.cpu().numpy()[where].round(DECIMALS)
            part = pd.DataFrame(
                {
                    asked.id_name: [ids[row] for row in chosen],
                    "votes": counts[chosen].sum(axis=1).astype(np.int64),
                    "expected_gain": gains,
                    **{f"{PREDICTED}{label}": mean[:, r] for r, label in enumerate(asked.labels)},
                }
            )
            best = part if best is None else pd.concat([best, part])
            best = best.sort_values("expected_gain", ascending=False, kind="stable").head(n)
    with TableSink(out) as sink:
        sink.write(best)
    if out != "-":
        say(f"{len(best):,} votes for {best[asked.id_name].nunique():,} items written to {out}", "green")


class _Items:
    """Items with their features and votes, read a block at a time; all checks come first."""

    def __init__(
        self,
        model: Path,
        items: Path,
        votes: Path | None,
        form: str,
        columns: str,
        id_name: str | None,
        features: str | None,
    ) -> None:
        from snefy_ldl.datasets.labelled import ID_NAMES, find_id
        from snefy_ldl.datasets.tables import TableSource
        from snefy_ldl.errors import InputError
        from snefy_ldl.estimator import SnefyLDL

        if form not in ("auto", "long", "wide", "counts"):
            raise InputError(f"--votes {form}: use auto, long, wide or counts.")
        self.source, self.model = TableSource(items), SnefyLDL.load(model)
        self.labels = [str(label) for label in self.model.label_names_]
        known = [str(name) for name in getattr(self.model, "feature_names_in_", [])]
        key = find_id(self.source.columns, id_name, known)
        self._features = feature_names(self.model, features, self.source, (key,) if key else ())
        self._key, self.id_name = key, key or ID_NAMES[-1]
        names = self.source.whole([] if key else self._features[:1], [key] if key else [])
        ids = [str(row) for row in range(len(names))] if key is None else list(names[key])
        self.n_items = len(ids)
        if len(set(ids)) < len(ids):
            twice = next(name for name, times in Counter(ids).items() if times > 1)
            raise InputError(f"{items.name}: two items are named {twice!r} (column {key!r}); names must be unique.")
        self._votes = self._read_votes(votes, form, columns, id_name, set(ids))

    def _read_votes(
        self, file: Path | None, form: str, columns: str, id_name: str | None, items: set[str]
    ) -> dict[str, Any]:
        from snefy_ldl._text import shorten
        from snefy_ldl.datasets.labelled import read_labelled
        from snefy_ldl.errors import InputError

        if file is None:
            return {}
        rows = read_labelled(
            file,
            self.labels,
            form=cast(Any, form),
            id_name=id_name,
            vote_columns=vote_columns(columns),
            prefer_counts=True,
        )
        if not rows.are_counts:
            raise InputError(f"{file.name} holds shares; update and next need votes.")
        if rows.ids is None:
            raise InputError(f"{file.name} has no column that names the items (item, id or row); name it with --id.")
        if rows.votes is not None:
            report_votes(rows.votes)
        for remark in rows.remarks:
            note(f"{file.name}: {remark}")
        missing = [name for name in rows.ids if name not in items]
        if len(missing) == len(rows.ids):
            raise InputError(
                f"not one item of {file.name} ({rows.ids[0]!r} say) is in {self.source.file.name}, which goes by "
                f"{self.id_name!r}. Name the column of names with --id."
            )
        if missing:
            note(f"votes on {len(missing)} items that {self.source.file.name} lacks: {shorten(missing, 5)}")
        return dict(zip(rows.ids, rows.labels))

    def blocks(self, progress: Progress) -> Iterator[tuple[list[str], Any, Any]]:
        """Names, features (b, d) and votes (b, L) of some items at a time."""
        import numpy as np

        from snefy_ldl.datasets.tables import cell_text

        start, none = 0, np.zeros(len(self.labels))
        for chunk in self.source.chunks(self._features, [self._key] if self._key else [], progress, BLOCK_ITEMS):
            names = chunk[self._key] if self._key else range(start, start + len(chunk))
            ids = [cell_text(name) for name in names]
            start += len(chunk)
            counts = np.array([self._votes.get(name, none) for name in ids])
            yield ids, chunk[self._features].to_numpy(dtype=np.float64), counts
