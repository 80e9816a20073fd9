"""Tables as the commands read them: columns a model takes, labelled rows, and items with votes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from snefy_ldl._internal.text import shorten
from snefy_ldl.apps.cli import options as opt
from snefy_ldl.apps.cli.common import input_error, load_model, note, progress_bar, say, split, vote_columns
from snefy_ldl.apps.rows import group_levels, model_rows, table_groups, takes_gaps

if TYPE_CHECKING:
    from snefy_ldl.datasets.labelled import Form, Labelled
    from snefy_ldl.datasets.tables import Progress, TableSource
    from snefy_ldl.snefy import SnefyLDL


def odd_cells(model: SnefyLDL, table: Any, names: list[str]) -> list[Any]:
    """What is odd about the cells of a table, for a model that reads text and gaps.

    Args:
        model: A fitted model.
        table: A DataFrame that has these columns.
        names: The columns to feed the model.

    Returns:
        Entries that :func:`~snefy_ldl.apps.cli.common.print_odd_cells` adds up.
    """
    from snefy_ldl.datasets.columns import TableEncoder

    columns = model.columns_
    return columns.odd_cells(model_rows(model, table, names)) if isinstance(columns, TableEncoder) else []


def label_names(model: SnefyLDL) -> list[str]:
    """Names of a model's labels as texts.

    Args:
        model: A fitted model.

    Returns:
        The names (L).
    """
    names = model.label_names_
    return [f"label_{r}" for r in range(model.n_labels_)] if names is None else [str(label) for label in names]


def known_features(model: SnefyLDL, option: str | None) -> list[str] | None:
    """The feature columns of a model, as far as they are known by name.

    Args:
        model: A fitted model.
        option: Text of ``--features``, or None.

    Returns:
        The names in the option, else those the model was fitted with, else None.
    """
    from snefy_ldl.datasets.columns import columns_of

    return split(option) or columns_of(model)


def feature_names(model: SnefyLDL, option: str | None, source: TableSource, others: tuple[str, ...] = ()) -> list[str]:
    """The columns of a table to feed a model.

    Args:
        model: A fitted model.
        option: Text of ``--features``, or None.
        source: The table.
        others: Columns that are no features; they matter where neither the option nor the model names any.

    Returns:
        The names in the option, or those the model knows, or all columns but the labels and the others.

    Raises:
        InputError: The table lacks one of them, or their number is wrong.
    """
    from snefy_ldl.datasets.labelled import is_answer

    names = known_features(model, option)
    if names is None:
        labels = label_names(model)
        others = (*labels, *others, *group_levels(model))
        names = [c for c in source.columns if c not in others and not is_answer(c, labels)]
    source.need(names, "features of the model")
    if model.backbone is not None:  # only the user's own network knows what it takes
        return names
    wanted = len(known_features(model, None) or []) if takes_gaps(model) else model.n_features_in_
    if len(names) != wanted:
        raise input_error(
            f"{source.file.name}: the model takes {wanted} features, but there are {len(names)} columns "
            "for them. Name the right ones with --features."
        )
    return names


@dataclass
class LabelReader:
    """Reads a first set of labelled rows, which settles labels and features, and then further ones.

    Args:
        labels: Label columns; None takes those that occur, which only single votes allow.
        features: Feature columns; None takes every column that is nothing else.
        drop: Columns that are no features.
        id_name: Column that names the rows; by default item, id or row.
        columns: Columns of a long table of votes.
        normalize: Whether label columns hold amounts, each row of which is to be divided by its sum.
        groups: Columns that hold the groups of rows; they are read beside the features.
    """

    labels: list[str] | None
    features: list[str] | None
    drop: list[str]
    id_name: str | None
    columns: tuple[str, str, str]
    normalize: bool
    groups: list[str]
    _ids_name_groups: bool = False  # of the rows so far

    def __post_init__(self) -> None:
        if self.features is not None:
            self.features = [*self.features, *(name for name in self.groups if name not in self.features)]

    def _feature_columns(self, columns: list[str], others: set[str], file: Path) -> list[str]:
        """The features the user named, or every column that is nothing else."""
        from snefy_ldl.datasets.labelled import is_answer

        if missing := [name for name in [*self.groups, *(self.features or []), *self.drop] if name not in columns]:
            named = {"--groups": self.groups, "--drop": self.drop}
            option = next((option for option, names in named.items() if missing[0] in names), "--features")
            raise input_error(f"{option} {missing[0]}: {file.name} has no such column. It has: {', '.join(columns)}.")
        if self.features is not None:
            return [name for name in self.features if name not in self.drop]
        answers = [name for name in columns if is_answer(name, self.labels or [])]
        if answers:
            note(f"{file.name}: {answers[0]} and the other columns that query wrote are not used as features")
        names = [name for name in columns if name not in {*others, *self.drop, *answers, *self.groups}]
        if not names:
            raise input_error(
                f"{file.name} has no feature columns. Name the table with the votes, --vote-file FILE, and give the "
                "table with the features as TABLE."
            )
        return [*names, *self.groups]

    def shares(self, table: Path, counts: bool, further: bool) -> Labelled:
        """A table with features and one column per label; where further files follow, it need not name its rows."""
        from snefy_ldl.datasets.dataset import column_list
        from snefy_ldl.datasets.labelled import find_id, names_groups
        from snefy_ldl.datasets.tables import TableSource

        source = TableSource(table)
        self.labels = column_list(self.labels or [], "--labels", source.columns)
        if self.id_name is not None and not further:
            source.need([self.id_name], "--id")
        key = find_id(source.columns, self.id_name, [*self.labels, *(self.features or []), *self.groups])
        by_name = key is not None and self.features is None and self.id_name is None and key not in self.drop
        others = {*self.labels, *([] if key is None else [key])}
        self.features = self._feature_columns(source.columns, others, table)
        if both := [name for name in self.features if name in self.labels]:
            raise input_error(f"{table.name}: column {both[0]!r} is named both as a label and as a feature.")
        with progress_bar("read") as progress:
            form: Form = "counts" if counts else "shares"
            rows = self._read(table, form, self.labels, self.features, progress=progress)
        if by_name and not names_groups(rows):
            note(f"{table.name}: column {key!r} names the rows and is not a feature; --features overrides this")
        return rows

    def votes(self, file: Path, form: Form, items: Path | None) -> Labelled:
        """Votes, with their features in the same table or in another one."""
        from snefy_ldl.datasets.labelled import find_id, join_features
        from snefy_ldl.datasets.tables import TableSource

        columns = [] if file.suffix.lower() == ".json" else TableSource(file).columns
        table = None if items is None else TableSource(items)
        if form in ("auto", "long"):
            self.columns = _detected_columns(file, self.columns, form, self.labels, self.id_name, items)
        key = find_id(columns, self.id_name, self.features)
        if table is None:
            if form == "wide" and self.features is None:
                raise typer.BadParameter("--votes wide in one table: name the feature columns with --features.")
            self.features = self._feature_columns(columns, {*self.columns, *([key] if key else [])}, file)
        else:
            same = self.columns[0] if self.columns[0] in table.columns else None
            name = find_id(table.columns, self.id_name or same, self.features)
            self.features = self._feature_columns(
                table.columns, {*([name] if name else []), *(self.labels or [])}, table.file
            )
        if form == "counts" and self.labels is None:
            self.labels = [column for column in columns if column not in (key, *self.features)]
        rows = self._read(file, form, self.labels, None if items is not None else self.features)
        self.labels = rows.label_names
        if items is None:
            return rows
        with progress_bar("join") as progress:
            return join_features(rows, items, self.features, self.id_name, progress)

    def _read(
        self, file: Path, form: Form, labels: list[str] | None, features: list[str] | None, **more: Any
    ) -> Labelled:
        from snefy_ldl.datasets.labelled import read_labelled

        options: dict[str, Any] = {"id_name": self.id_name, "vote_columns": self.columns, "normalize": self.normalize}
        rows = read_labelled(file, labels, features, form=form, **options, **more)
        if form not in ("auto", "shares") and not rows.are_counts:
            raise input_error(f"{file.name} holds shares, not votes; leave out --votes.")
        return rows

    def append(self, base: Labelled, file: Path, pool: Path | None, table: Path) -> Labelled:
        """The rows so far and those of one more file."""
        from snefy_ldl.datasets.labelled import JOINED, append_rows, join_features, last_of_each, names_groups
        from snefy_ldl.errors import InputError

        assert self.features is not None
        new = self._read(file, "auto", self.labels, self.features, prefer_counts=base.are_counts)
        self._ids_name_groups = self._ids_name_groups or names_groups(base)
        if new.features is None or (base.ids is not None and not self._ids_name_groups):
            new = last_of_each(new)  # its names are those of single rows
        if new.features is None:
            missing = (
                f"{file.name} has labels but no features ({', '.join(self.features[:3])} ...): name the table the rows "
                "were chosen from with --pool FILE."
            )
            if pool is None and (base.id_name is None or base.id_name == JOINED):
                raise input_error(missing)
            with progress_bar("join") as progress:
                try:
                    new = join_features(new, pool or table, self.features, self.id_name, progress)
                except InputError as error:
                    raise (error if pool is not None else InputError(missing)) from None
        report_rows(new)
        if new.are_counts and not base.are_counts:
            note(f"{file.name}: votes become shares, like those of {base.source}; the number of votes is lost")
        joined, replaced = append_rows(base, new)
        remark = f", {replaced} of them in place of earlier ones" if replaced else ""
        typer.echo(f"{file.name}: {len(new):,} labelled rows added{remark}")
        return joined


def report_rows(rows: Labelled) -> None:
    """Print on standard error what is in the votes, if there are any, and what is odd about the rows.

    Args:
        rows: Labelled rows.
    """
    from snefy_ldl.votes.tables import Votes

    if rows.votes is not None:
        votes = Votes.of(rows.votes)
        for line in str(votes.agreement()).splitlines():
            say(line, "")
        for finding in votes.preflight():
            say(str(finding), {"error": "red", "warning": "yellow"}.get(finding.level, ""))
    for remark in rows.remarks:
        note(f"{rows.source}: {remark}")


def read_for_model(
    model: SnefyLDL, file: Path, options: opt.LabelOptions, new_groups: str | None = None
) -> tuple[Labelled, Any]:
    """Labelled rows, and their features as a model takes them.

    Args:
        model: A fitted model.
        file: Table with features and labels, or with features alone.
        options: Where the labels are.
        new_groups: Column with the groups of the rows; by default the columns by which the model knows groups.

    Returns:
        The rows, and a table (N, d) for the model, with the rows' groups where the model knows groups by a column of
        the file.

    Raises:
        InputError: A file lacks a column, or a label breaks a rule; the message names row and column.
    """
    from snefy_ldl.datasets.groups import in_groups
    from snefy_ldl.datasets.labelled import find_id, join_features, read_labelled
    from snefy_ldl.datasets.tables import TableSource

    form: Any = options.form
    if form not in ("auto", "shares", "counts", "long", "wide"):
        raise input_error(f"--votes {form}: use counts, long or wide.")
    labels = _named_labels(split(options.labels), label_names(model))
    table, alone = TableSource(file), options.vote_file is None
    columns, labelled = vote_columns(options.columns), options.vote_file or file
    if form in ("auto", "long") and not (alone and set(labels) <= set(table.columns)):
        columns = _detected_columns(labelled, columns, form, labels, options.id_name, None if alone else file)
    same = columns[0] if columns[0] in table.columns else None
    key = find_id(table.columns, options.id_name or same, known_features(model, options.features))
    names = feature_names(model, options.features, table, (*labels, *columns, *([key] if key else [])))
    groups = group_columns(model, table) if new_groups is None else [new_groups]
    table.need(groups, "--new-groups")
    wanted = [*names, *(name for name in groups if name not in names)]
    rows = read_labelled(
        labelled,
        labels,
        wanted if alone else None,
        form=form,
        id_name=options.id_name,
        vote_columns=columns,
        normalize=options.normalize,
    )
    if rows.features is None:
        with progress_bar("join") as progress:
            rows = join_features(rows, file, wanted, options.id_name, progress)
    report_rows(rows)
    groups_of = table_groups(model, rows.features) if new_groups is None else rows.features[groups]
    X = in_groups(model_rows(model, rows.features, names), groups_of)
    return (replace(rows, features=rows.features[names]) if groups else rows), X


def _named_labels(named: list[str], known: list[str]) -> list[str]:
    """The label columns in the model's order: a model's own names may be typed in any, other names stand in its order.

    >>> _named_labels(["b", "a"], ["a", "b"]), _named_labels(["x", "y"], ["a", "b"]), _named_labels([], ["a", "b"])
    (['a', 'b'], ['x', 'y'], ['a', 'b'])
    """
    if not named or (set(named) == set(known) and len(named) == len(known)):
        return known
    if len(set(named)) < len(named) or len(named) != len(known):
        raise input_error(
            f"--labels {','.join(named)}: name {len(known)} different columns, one for each label of the model "
            f"({shorten(known, 10)}), in this order."
        )
    return named


def group_columns(model: SnefyLDL, source: TableSource) -> list[str]:
    """Columns of a table by which a model knows groups; prints on standard error whether rows have groups.

    Args:
        model: A fitted model.
        source: The table.

    Returns:
        The columns, none where the model was fitted without groups.
    """
    levels = group_levels(model)
    there = [name for name in levels if name in source.columns]
    if there:
        note(f"{source.file.name}: column {', '.join(map(repr, there))} holds the groups of the rows")
    missing = [name for name in levels if name not in there]
    if missing and getattr(model, "group_effects_", None) is not None:
        note(f"{source.file.name} has no column {', '.join(map(repr, missing))}: those groups are not known")
    return there


def _detected_columns(
    file: Path,
    columns: tuple[str, str, str],
    form: Any,
    labels: list[str] | None,
    id_name: str | None,
    items: Path | None,
) -> tuple[str, str, str]:
    """Columns of a table with one vote per row; prints how they were recognised."""
    from snefy_ldl.datasets.votes import find_vote_columns

    if file.suffix.lower() == ".json":
        return columns
    columns, remark = find_vote_columns(file, columns, form, labels, id_name, items)
    if remark:
        note(f"{file.name}: {remark}")
    return columns


#: Items whose laws are computed at a time.
BLOCK_ITEMS = 4096


class Items:
    """Items with their features and votes, read a block at a time; all checks come first.

    Args:
        model: Folder of a saved model.
        items: Table with the items' names and features.
        votes: Votes so far, a table or a Label Studio export; None where there are none.
        options: How the votes are written down.
        backbone: Text of ``--backbone``, for a model with a custom network.

    Raises:
        InputError: An option, the items or the votes break a rule.
    """

    def __init__(
        self, model: Path, items: Path, votes: Path | None, options: opt.VoteOptions, backbone: str | None = None
    ) -> None:
        from snefy_ldl.datasets.labelled import ID_NAMES, find_id
        from snefy_ldl.datasets.tables import TableSource

        if options.form not in ("auto", "long", "wide", "counts"):
            raise input_error(f"--votes {options.form}: use auto, long, wide or counts.")
        self.source, self.model = TableSource(items), load_model(model, backbone)
        self.labels = label_names(self.model)
        key = find_id(self.source.columns, options.id_name, known_features(self.model, None))
        self._features = feature_names(self.model, options.features, self.source, (key,) if key else ())
        self._key, self.id_name = key, key or ID_NAMES[-1]
        names = self.source.whole([] if key else self._features[:1], [key] if key else [])
        ids = [str(row) for row in range(len(names))] if key is None else list(names[key])
        self.n_items = len(ids)
        if len(set(ids)) < len(ids):
            twice = next(name for name, times in Counter(ids).items() if times > 1)
            raise input_error(f"{items.name}: two items are named {twice!r} (column {key!r}); names must be unique.")
        rows = None if votes is None else read_votes(votes, self.labels, options, set(ids), items.name, key)
        self._votes = {} if rows is None else dict(zip(rows.ids or (), rows.labels))
        self.single_votes = None if rows is None else rows.votes

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
    file: Path, labels: list[str], options: opt.VoteOptions, items: set[str], table: str, key: str | None
) -> Labelled:
    """Votes on items; prints on standard error what is odd about them.

    Args:
        file: A table, or a Label Studio export.
        labels: Names of the labels (L).
        options: How the votes are written down.
        items: Names of all items.
        table: Name of the table of the items, for messages.
        key: Its column of names; None where items go by their row number.

    Returns:
        Numbers of votes per item, with the items' names, and the single votes where the file holds those.

    Raises:
        InputError: The file holds no votes, or none on these items.
    """
    from snefy_ldl.datasets.labelled import ID_NAMES, last_of_each, read_labelled

    form: Any = options.form
    columns = vote_columns(options.columns)
    rows = last_of_each(
        read_labelled(file, labels, form=form, id_name=options.id_name, vote_columns=columns, prefer_counts=True)
    )
    if not rows.are_counts:
        raise input_error(f"{file.name} holds shares; update and next need votes.")
    if rows.ids is None:
        raise input_error(f"{file.name} has no column that names the items (item, id or row); name it with --id.")
    report_rows(rows)
    missing = [name for name in rows.ids if name not in items]
    if len(missing) == len(rows.ids):
        raise input_error(
            f"no item of {file.name} (the first is {rows.ids[0]!r}) is in {table}, which names its items by "
            f"{key or ID_NAMES[-1]!r}. Name the column of names with --id."
        )
    if missing:
        note(f"votes on {len(missing)} items that {table} lacks: {shorten(missing, 5)}")
    return rows
