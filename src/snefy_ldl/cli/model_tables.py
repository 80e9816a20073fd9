"""Tables for a fitted model: which columns it takes, how rows reach it, and what was odd about them."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from snefy_ldl.cli.common import note, split
from snefy_ldl.cluster.rows import model_rows, takes_gaps

if TYPE_CHECKING:
    from snefy_ldl.datasets.tables import TableSource
    from snefy_ldl.estimator import SnefyLDL


@contextlib.contextmanager
def table_notes() -> Iterator[None]:
    """Add up what is odd about the parts of a table, and say it when all are done."""
    from snefy_ldl.errors import TableNote

    odd: list[Any] = []

    def show(message: Warning | str, *rest: Any, **more: Any) -> None:
        if isinstance(message, TableNote):
            odd.extend(message.surprises)
        else:
            usual(message, *rest, **more)

    with warnings.catch_warnings():
        usual, warnings.showwarning = warnings.showwarning, show
        warnings.simplefilter("always", TableNote)
        yield
    say_odd_cells(odd)


def say_odd_cells(odd: list[Any]) -> None:
    """Say what is odd about the cells of a table.

    Args:
        odd: What :func:`odd_cells` listed for all its parts.
    """
    from snefy_ldl.datasets.surprises import describe_surprises

    for line in describe_surprises(odd).splitlines():
        note(line)


def odd_cells(model: SnefyLDL, table: Any, names: list[str]) -> list[Any]:
    """What is odd about the cells of a table, for a model that reads text and gaps.

    Args:
        model: A fitted model.
        table: A DataFrame that has these columns.
        names: The columns to feed the model.

    Returns:
        Entries that :func:`say_odd_cells` adds up.
    """
    from snefy_ldl.datasets.columns import TableEncoder

    columns = model.columns_
    return columns.surprises(model_rows(model, table, names)) if isinstance(columns, TableEncoder) else []


@contextlib.contextmanager
def no_table_notes() -> Iterator[None]:
    """Say nothing about a table that was looked at before."""
    from snefy_ldl.errors import TableNote

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TableNote)
        yield


def known_features(model: SnefyLDL, option: str | None) -> list[str] | None:
    """The feature columns of a model, as far as they are known by name.

    Args:
        model: A fitted model.
        option: Text of ``--features``, or None.

    Returns:
        The names in the option, else those the model was fitted with, else None.
    """
    from snefy_ldl.datasets.columns import TableEncoder

    if isinstance(model.columns_, TableEncoder):
        return split(option) or model.columns_.names_used
    known = getattr(model, "feature_names_in_", None)
    return split(option) or (None if known is None else [str(name) for name in known])


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
    from snefy_ldl.errors import InputError

    names = known_features(model, option)
    if names is None:
        labels = [str(label) for label in model.label_names_]
        names = [c for c in source.columns if c not in (*labels, *others) and not is_answer(c, labels)]
    source.need(names, "features of the model")
    if model.backbone is not None:  # only the user's own network knows what it takes
        return names
    wanted = len(known_features(model, None) or []) if takes_gaps(model) else model.n_features_in_
    if len(names) != wanted:
        raise InputError(
            f"{source.file.name}: the model takes {wanted} features, and there are {len(names)} columns "
            "for them. Name the right ones with --features."
        )
    return names
