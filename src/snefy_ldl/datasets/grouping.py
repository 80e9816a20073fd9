"""Groups of rows: which rows belong together, and splits that keep them together.

Rows of one child, field, person or village are more alike than rows of two. A split that puts some of them on either
side answers "how well are further rows of these groups predicted?"; a split of whole groups answers the same for rows
of new groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.model_selection import GroupKFold

from snefy_ldl._internal.types import Index
from snefy_ldl.datasets.cells import cell_text
from snefy_ldl.errors import InputError


@dataclass(frozen=True)
class Groups:
    """Groups of some rows.

    Args:
        codes: number of each row's group (N,); -1 if it has none.
        names: of the groups.
        column: name of the column that holds them.
    """

    codes: Index
    names: tuple[str, ...]
    column: str

    def __len__(self) -> int:
        return len(self.codes)

    def take(self, rows: Any) -> Groups:
        """The groups of some rows."""
        return Groups(self.codes[rows], self.names, self.column)

    @property
    def first(self) -> Index:
        """The group of each row (N,), by which rows are split; rows without one stand alone."""
        codes, alone = self.codes.copy(), self.codes < 0
        codes[alone] = len(self.names) + np.arange(alone.sum())
        return codes

    def renamed(self, names: Sequence[str]) -> Index:
        """Codes (N,) in another list of names; -1 for groups that it does not hold."""
        number = {name: place for place, name in enumerate(names)}
        return np.array([*(number.get(name, -1) for name in self.names), -1])[self.codes]


@dataclass(frozen=True)
class GroupedRows:
    """Rows of features together with the groups they belong to, to be used as X wherever a SnefyLDL is asked.

    Args:
        X: features of N rows.
        groups: as a user gives them (N,).

    Example:
        >>> rows = GroupedRows(np.eye(3), np.array(["a", "b", "a"]))
        >>> rows[1:].n_rows, rows[np.array([0, 2])].groups.tolist()
        (2, ['a', 'a'])
    """

    X: Any
    groups: Any

    @property
    def n_rows(self) -> int:
        """N."""
        from snefy_ldl._internal.rows import count_rows  # torch, which tables do without

        return count_rows(self.X)

    def __getitem__(self, rows: Any) -> GroupedRows:
        """Some of the rows: a slice with both ends given, or row numbers."""
        from snefy_ldl._internal.rows import as_rows, take_rows  # torch, which tables do without

        rows = np.arange(self.n_rows)[rows]
        groups = self.groups if hasattr(self.groups, "iloc") else np.array(self.groups, dtype=object)
        return GroupedRows(take_rows(as_rows(self.X), rows), take_rows(groups, rows))


def in_groups(X: Any, groups: Any) -> Any:
    """X together with the groups of its rows, if there are any.

    Args:
        X: features (N, d), or rows that have groups already.
        groups: of the rows (N,); None for none.

    Returns:
        X itself, or :class:`GroupedRows`, which conformal prediction, reports and explanations pass on to the model.

    Example:
        >>> in_groups(np.eye(2), ["a", "b"]).n_rows
        2
    """
    return X if groups is None else GroupedRows(X.X if isinstance(X, GroupedRows) else X, groups)


def split_rows(X: Any) -> tuple[Any, Any]:
    """The features of rows, and their groups or None."""
    return (X.X, X.groups) if isinstance(X, GroupedRows) else (X, None)


def read_groups(groups: Any, n_rows: int) -> Groups:
    """Groups as a user gives them, checked.

    Args:
        groups: one name or number per row (N,): array, list, Series, or a DataFrame of one column. None and NaN stand
            for a group that is not known.
        n_rows: N.

    Returns:
        The groups; names are texts, so that 3, 3.0 and "3" are the same group.

    Raises:
        InputError: there is not one group per row.

    Example:
        >>> read_groups(["a", "b", "a"], 3).codes
        array([0, 1, 0])
    """
    name = [*getattr(groups, "columns", []), getattr(groups, "name", None) or "group"][0]
    try:
        table = np.array(groups.to_numpy() if hasattr(groups, "to_numpy") else groups, dtype=object)
    except ValueError:
        raise InputError("groups must hold one name per row (N,).") from None
    table = table[:, 0] if table.ndim == 2 and table.shape[1] == 1 else table
    if table.ndim != 1:
        rule = "one name per row (N,): of several columns the one whose groups will be new"
        raise InputError(f"groups must hold {rule}; got shape {table.shape}.")
    if len(table) != n_rows:
        raise InputError(f"X and groups must have the same number of rows; got {n_rows} and {len(table)}.")
    known, where = np.unique([cell_text(value) for value in table], return_inverse=True)
    empty = int("" in known[:1])  # sorted first
    return Groups(where - empty, tuple(known[empty:].tolist()), str(name))


def split_groups(first: Index, fraction: float, order: Index, seed: int) -> tuple[Index, Index]:
    """Training and validation rows that have no group in common.

    Args:
        first: the group of every row (N,).
        fraction: of the rows that should be held back, about.
        order: the rows to be split.
        seed: of the order in which groups are held back; which groups these are depends on nothing else but sizes.

    Returns:
        Training rows and validation rows, each in the given order. With a single group, rows are split one by one.

    Example:
        >>> split_groups(np.array([0, 0, 1, 1, 2, 2]), 0.3, np.array([3, 0, 5, 1, 4, 2]), seed=0)
        (array([3, 5, 4, 2]), array([0, 1]))
    """
    which, wanted = first[order], fraction * len(order)
    fold = group_folds(which, max(2, round(1.0 / fraction)), np.random.default_rng(seed))
    held = np.abs(np.bincount(fold) - wanted).argmin()  # the fold of about as many rows as are wanted
    return order[fold != held], order[fold == held]


def group_folds(first: Index, n_folds: int, random: np.random.Generator) -> Index:
    """The fold of every row (N,): folds are made of whole groups and have about as many rows each.

    Args:
        first: the group of every row (N,).
        n_folds: how many folds there are, at most.
        random: source of the order of groups of one size.

    Returns:
        Numbers from 0; if there is a single group, rows are dealt out one by one.

    Example:
        >>> folds = group_folds(np.array([0, 0, 1, 1, 2, 2]), 3, np.random.default_rng(0))
        >>> sorted(folds[::2].tolist()), (folds[::2] == folds[1::2]).all()
        ([0, 1, 2], np.True_)
    """
    groups, which = np.unique(first, return_inverse=True)
    if len(groups) < 2:
        return random.permutation(np.arange(len(first)) % n_folds)
    shuffled = random.permutation(len(groups))[which]
    fold = np.empty(len(first), dtype=np.int64)
    for k, (_, rows) in enumerate(GroupKFold(min(n_folds, len(groups))).split(fold, groups=shuffled)):
        fold[rows] = k
    return fold


def leave_groups_out(groups: Any, n_rows: int, n_folds: int, random_state: Any = None) -> Iterator[tuple[Index, Index]]:
    """Training and test rows of each fold, whole groups at a time.

    Args:
        groups: as ``fit`` takes them.
        n_rows: N.
        n_folds: how many folds.
        random_state: seed of the order of the groups.

    Yields:
        Row numbers to train on and to test on.

    Raises:
        InputError: there are fewer groups than folds.

    Example:
        >>> [test.tolist() for _, test in leave_groups_out(["a", "b", "a"], 3, 2)]
        [[0, 2], [1]]
    """
    first = read_groups(groups, n_rows).first
    found = len(np.unique(first))
    if found < n_folds:
        raise InputError(f"{n_folds} folds by group need as many groups; got {found}.")
    fold = group_folds(first, n_folds, np.random.default_rng(random_state))
    for k in range(n_folds):
        yield np.flatnonzero(fold != k), np.flatnonzero(fold == k)
