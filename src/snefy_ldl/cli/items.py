"""Items with their features and the votes on them so far, as ``update`` and ``next`` read them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from snefy_ldl._internal.text import shorten
from snefy_ldl.cli.common import load_model, note, report_votes, vote_columns
from snefy_ldl.cli.model_tables import feature_names, known_features, model_rows, takes_gaps

if TYPE_CHECKING:
    from snefy_ldl.datasets.tables import Progress


#: Items whose laws are computed at a time.
BLOCK_ITEMS = 4096

ItemsFile = Annotated[
    Path, typer.Argument(metavar="ITEMS", help="Table with the items' names (item, id or row) and their features.")
]


class Items:
    """Items with their features and votes, read a block at a time; all checks come first.

    Args:
        model: Folder of a saved model.
        items: Table with the items' names and features.
        votes: Votes so far, a table or a Label Studio export; None where there are none.
        form: How the votes are written down: "auto", "long", "wide" or "counts".
        columns: Columns of a long table of votes, between commas.
        id_name: Column that names the items; by default item, id or row.
        features: Feature columns between commas, for a model that knows no feature names.
        backbone: Text of ``--backbone``, for a model with a network of the user's own.

    Raises:
        InputError: An option, the items or the votes break a rule.
    """

    def __init__(
        self,
        model: Path,
        items: Path,
        votes: Path | None,
        form: str,
        columns: str,
        id_name: str | None,
        features: str | None,
        backbone: str | None = None,
    ) -> None:
        from snefy_ldl.datasets.labelled import ID_NAMES, find_id
        from snefy_ldl.datasets.tables import TableSource
        from snefy_ldl.errors import InputError

        if form not in ("auto", "long", "wide", "counts"):
            raise InputError(f"--votes {form}: use auto, long, wide or counts.")
        self.source, self.model = TableSource(items), load_model(model, backbone)
        self.labels = [str(label) for label in self.model.label_names_]
        known = known_features(self.model, None)
        key = find_id(self.source.columns, id_name, known)
        self._features = feature_names(self.model, features, self.source, (key,) if key else ())
        self._key, self.id_name = key, key or ID_NAMES[-1]
        names = self.source.whole([] if key else self._features[:1], [key] if key else [])
        ids = [str(row) for row in range(len(names))] if key is None else list(names[key])
        self.n_items = len(ids)
        if len(set(ids)) < len(ids):
            twice = next(name for name, times in Counter(ids).items() if times > 1)
            raise InputError(f"{items.name}: two items are named {twice!r} (column {key!r}); names must be unique.")
        file = f"{items.name}, which goes by {self.id_name!r}"
        self._votes = {} if votes is None else read_votes(votes, self.labels, form, columns, id_name, set(ids), file)

    def blocks(self, progress: Progress) -> Iterator[tuple[list[str], Any, Any]]:
        """Some items at a time, in the order of the table.

        Args:
            progress: Called with how much of the table is read, and how much there is.

        Yields:
            Names (b,), features (b, d) and numbers of votes (b, L); an item without votes has zeros.
        """
        import numpy as np

        from snefy_ldl.datasets.tables import cell_text

        start, no_votes = 0, np.zeros(len(self.labels))
        keep, finite = [self._key] if self._key else [], not takes_gaps(self.model)
        for chunk in self.source.chunks(self._features, keep, progress, BLOCK_ITEMS, finite):
            names = chunk[self._key] if self._key else range(start, start + len(chunk))
            ids = [cell_text(name) for name in names]
            start += len(chunk)
            counts = np.array([self._votes.get(name, no_votes) for name in ids])
            yield ids, model_rows(self.model, chunk, self._features), counts


def read_votes(
    file: Path, labels: list[str], form: str, columns: str, id_name: str | None, items: set[str], where: str
) -> dict[str, Any]:
    """Votes on items; what is odd about them is said on standard error.

    Args:
        file: A table, or a Label Studio export.
        labels: Names of the labels (L).
        form: How the votes are written down.
        columns: Columns of a long table of votes, between commas.
        id_name: Column that names the items.
        items: Names of all items.
        where: The table of the items and its column of names, for messages.

    Returns:
        Numbers of votes (L,) by item name.

    Raises:
        InputError: The file holds no votes, or none on these items.
    """
    from snefy_ldl.datasets.labelled import last_of_each, read_labelled
    from snefy_ldl.errors import InputError

    rows = read_labelled(
        file,
        labels,
        form=cast(Any, form),
        id_name=id_name,
        vote_columns=vote_columns(columns),
        prefer_counts=True,
    )
    rows = last_of_each(rows)
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
            f"not one item of {file.name} ({rows.ids[0]!r} say) is in {where}. Name the column of names with --id."
        )
    if missing:
        note(f"votes on {len(missing)} items that {where.partition(',')[0]} lacks: {shorten(missing, 5)}")
    return dict(zip(rows.ids, rows.labels))
