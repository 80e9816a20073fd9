"""Label Studio's JSON export as votes: one for each choice of each annotator.

:mod:`snefy_ldl.apps.integrations.label_studio` writes the tasks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from snefy_ldl._internal.types import Array, Index
from snefy_ldl.datasets.cells import cell_text
from snefy_ldl.errors import DataNotFoundError, InputError

__all__ = ["read_votes"]

#: Entry of a task's data that holds its row number.
ROW = "row"


def read_votes(
    source: str | Path | Sequence[Mapping[str, Any]], label_names: Sequence[str], *, from_name: str | None = None
) -> tuple[Index, Array]:
    """Votes out of Label Studio's JSON export: row numbers (n,) and counts (n, L) of the rows that have any.

    Each choice of each annotator is one vote. Skipped annotations do not count; of several by one annotator on one task
    the last one does. Both parts are what :meth:`snefy_ldl.active.ActiveLearner.tell` takes.

    Args:
        source: the exported file, or its content.
        label_names: the L labels, in the order of the columns.
        from_name: the ``<Choices>`` or ``<Rating>`` tag to count; by default the only one, or the one with labels.

    Returns:
        Row numbers (n,) and numbers of votes (n, L).

    Raises:
        DataNotFoundError: there is no such file.
        InputError: it is no export of tasks made by :func:`make_tasks`, or holds another choice than the labels.

    Example:
        >>> choice = [{"type": "choices", "value": {"choices": ["yes"]}}]
        >>> votes = [{"completed_by": who, "result": choice} for who in (1, 2)]
        >>> read_votes([{"data": {"row": 7}, "annotations": votes}], ["no", "yes"])
        (array([7]), array([[0., 2.]]))
    """
    names = [str(name) for name in label_names]
    if len(set(names)) < 2 or len(set(names)) < len(names):
        raise InputError("label_names must hold at least two different labels.")
    columns, _ = read_choices(source, ROW, from_name=from_name, label_names=names)
    counts: dict[str, Array] = {}
    for row, choice in zip(columns["item"], columns["label"]):
        if choice not in names:
            raise InputError(f"row {row} holds the choice {choice!r}; the labels are {', '.join(names)}.")
        counts.setdefault(row, np.zeros(len(names)))[names.index(choice)] += 1.0
    if odd := [row for row in counts if not row.isdecimal()]:
        raise InputError(f"{odd[0]!r} is no row number; the tasks were not made by make_tasks.")
    table = np.array(list(counts.values())).reshape(len(counts), len(names))
    return np.array([int(row) for row in counts], dtype=np.intp), table


def read_choices(
    source: str | Path | Sequence[Mapping[str, Any]],
    key: str | None = None,
    *,
    from_name: str | None = None,
    label_names: Sequence[str] | None = None,
) -> tuple[dict[str, list[str]], str]:
    """Single votes out of Label Studio's JSON export: columns item, annotator, label, and the key that names items.

    Args:
        source: the exported file, or its content.
        key: entry of a task's data that names the item; by default item, id or row, the first that all tasks have.
        from_name: the ``<Choices>`` or ``<Rating>`` tag to read; by default the only one, or the one that holds labels.
        label_names: the labels, if they are known.

    Returns:
        The columns as a long table of votes has them, and the key.

    Raises:
        DataNotFoundError: there is no such file.
        InputError: it is no export, or some task has no name.

    Example:
        >>> votes = [{"result": [{"type": "choices", "value": {"choices": ["yes"]}}], "completed_by": 4}]
        >>> read_choices([{"data": {"row": 7}, "annotations": votes}])
        ({'item': ['7'], 'annotator': ['4'], 'label': ['yes']}, 'row')
    """
    names, name_entry = read_names(source, key)
    parts = [(name, *part) for name, task in zip(names, _tasks(source)) for part in _parts(task)]
    control = from_name or _control(parts, label_names)
    columns: dict[str, list[str]] = {"item": [], "annotator": [], "label": []}
    for name, who, tag, choices in parts:
        for choice in choices if control in (None, tag) else ():
            columns["item"].append(name)
            columns["annotator"].append(who or f"unknown {len(columns['item'])}")
            columns["label"].append(choice)
    return columns, name_entry


def read_names(source: str | Path | Sequence[Mapping[str, Any]], key: str | None = None) -> tuple[list[str], str]:
    """What names the item of each task, as text, and the entry of the tasks' data that holds it.

    Args:
        source: the exported file, or its content.
        key: entry of a task's data that names the item; by default item, id or row, the first that all tasks have.

    Returns:
        One name per task, and the key.

    Raises:
        DataNotFoundError: there is no such file.
        InputError: it is no export, or some task has no name.

    Example:
        >>> read_names([{"data": {"row": 7}}, {"data": {"row": 9}}])
        (['7', '9'], 'row')
    """
    given = [task.get("data", {}) for task in _tasks(source)]
    keys = [name for name in ([key] if key is not None else []) + ["item", "id", ROW] if all(name in d for d in given)]
    if not given or not keys:
        wanted = f"data[{key!r}]" if key is not None else 'data["item"], data["id"] or data["row"]'
        raise InputError(f"the Label Studio export names no items: every task needs {wanted}.")
    return [cell_text(entry[keys[0]]) for entry in given], keys[0]


def _tasks(source: str | Path | Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    tasks = _read(Path(source)) if isinstance(source, (str, Path)) else source
    if not isinstance(tasks, Sequence) or not all(isinstance(task, Mapping) for task in tasks):
        raise InputError("a Label Studio export is a list of tasks; export as JSON.")
    if tasks and not any("data" in task or "annotations" in task for task in tasks):
        raise InputError("this Label Studio export holds no tasks, perhaps JSON-MIN; export as JSON.")
    return tasks


def _control(parts: Sequence[tuple[str, str, Any, list[str]]], label_names: Sequence[str] | None) -> str | None:
    """The tag whose choices are labels: the only one, or the one that holds nothing else."""
    seen: dict[str, set[str]] = {}
    for _, _, tag, choices in parts:
        seen.setdefault(str(tag), set()).update(choices)
    if len(seen) < 2:
        return None
    fitting = [name for name, choices in seen.items() if label_names and choices <= {str(one) for one in label_names}]
    fitting = fitting or [name for name in seen if name == "label"]
    if len(fitting) != 1:
        raise InputError(
            f"the Label Studio export has several controls ({', '.join(sorted(seen))}); name the one that holds the "
            "labels: from_name= in Python, the third name of --vote-columns on the command line."
        )
    return fitting[0]


def _parts(task: Mapping[str, Any]) -> Iterator[tuple[str, Any, list[str]]]:
    """Who chose what in a task, and in which tag; parts of another kind, such as boxes or remarks, are left out."""
    for annotation in _last_of_each(task.get("annotations", [])):
        who = annotation.get("completed_by")
        if isinstance(who, Mapping):  # exports name annotators by number, or by a record of them
            who = who.get("email") or who.get("id")
        for part in annotation.get("result", []):
            value = part.get("value", {})
            if part.get("type") == "choices":
                yield cell_text(who), part.get("from_name"), [str(choice) for choice in value.get("choices", [])]
            elif part.get("type") == "rating" and "rating" in value:
                yield cell_text(who), part.get("from_name"), [cell_text(value["rating"])]


def _last_of_each(annotations: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The last annotation of each annotator; those without a name count one by one."""
    last: dict[Any, Mapping[str, Any]] = {}
    for k, one in enumerate(sorted(annotations, key=lambda one: str(one.get("updated_at", "")))):
        if one.get("was_cancelled"):
            continue
        who = one.get("completed_by")
        last[json.dumps(who, sort_keys=True, default=str) if who is not None else k] = one
    return list(last.values())


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataNotFoundError(f"no file at {path}.") from None
    except ValueError as error:
        raise InputError(f"{path.name} is not valid JSON: {error}.") from None
