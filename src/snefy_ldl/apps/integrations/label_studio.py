"""Label Studio tasks: rows for annotators, each with its predicted distribution as a pre-annotation.

:func:`snefy_ldl.datasets.label_studio.read_votes` reads the votes that come back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

import numpy as np

from snefy_ldl._internal.files import write_json
from snefy_ldl.datasets.label_studio import ROW
from snefy_ldl.errors import InputError

__all__ = ["write_tasks"]

#: Entries of a task's data that hold its score and its predicted shares.
SCORE, SHARES = "utility", "predicted"
#: Names of the set-up's control with the labels, and of the thing that it is about.
CHOICES, SHOWN = "label", "item"


def make_tasks(
    rows: Any,
    data: Sequence[Mapping[str, Any]] | None = None,
    *,
    predicted: Any = None,
    utilities: Any = None,
    label_names: Sequence[str] | None = None,
) -> list[dict[str, Any]]:
    """Tasks for Label Studio, one per row.

    Args:
        rows: row numbers of the pool (n,), as ``query`` gives them.
        data: what annotators see, one dict per row (``{"text": ...}``, ``{"image": url}``).
        predicted: predicted label distributions (n, L): shown, and the most probable label suggested.
        utilities: scores of these rows (n,).
        label_names: the L labels, as the labelling set-up spells its choices.

    Returns:
        n tasks as Label Studio imports them.

    Raises:
        InputError: a list has another length than ``rows``.

    Example:
        >>> tasks = make_tasks([7], [{"text": "hello"}], predicted=[[0.25, 0.75]], label_names=["no", "yes"])
        >>> tasks[0]["data"]
        {'text': 'hello', 'row': 7, 'predicted': {'no': 0.25, 'yes': 0.75}}
    """
    index = [int(row) for row in np.atleast_1d(np.asarray(rows))]
    shares = None if predicted is None else np.asarray(predicted, dtype=np.float64)
    names = list(label_names) if label_names is not None else [str(c) for c in getattr(predicted, "columns", [])]
    if shares is not None and shares.shape != (len(index), len(names)):
        raise InputError(f"predicted must be (rows, labels) = ({len(index)}, {len(names)}); got {shares.shape}.")
    for what, given in (("data", data), ("utilities", utilities)):
        if given is not None and len(given) != len(index):
            raise InputError(f"{what} must have one entry per row ({len(index)}); got {len(given)}.")
    tasks = []
    for k, row in enumerate(index):
        task: dict[str, Any] = {"data": {**({} if data is None else data[k]), ROW: row}}
        if utilities is not None:
            task["data"][SCORE] = float(utilities[k])
        if shares is not None:
            task["data"][SHARES] = {name: round(float(share), 6) for name, share in zip(names, shares[k])}
            best = int(shares[k].argmax())
            choice = {"from_name": CHOICES, "to_name": SHOWN, "type": "choices", "value": {"choices": [names[best]]}}
            task["predictions"] = [{"model_version": "snefy-ldl", "score": float(shares[k, best]), "result": [choice]}]
        tasks.append(task)
    return tasks


def write_tasks(path: str | Path, *args: Any, **settings: Any) -> Path:
    """Write tasks to a JSON file for Label Studio's import.

    Args:
        path: the file; it is whole or not there, never a part.
        args: as for :func:`make_tasks`.
        settings: as for :func:`make_tasks`.

    Returns:
        The file.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_tasks(Path(folder) / "tasks.json", [7, 9]).name
        'tasks.json'
    """
    write_json(Path(path), make_tasks(*args, **settings))
    return Path(path)


def make_config(label_names: Sequence[str], shown: Sequence[str] = ("text",), *, images: Sequence[str] = ()) -> str:
    """The labelling set-up that fits :func:`make_tasks`: Label Studio's page for it takes the text as it is.

    Args:
        label_names: the L labels, as choices.
        shown: entries of a task's data that annotators see.
        images: those of them that hold addresses of pictures.

    Returns:
        XML.

    Raises:
        InputError: there are fewer than two labels, or nothing is shown.

    Example:
        >>> print(make_config(["no", "yes"], ["text"]))
        <View>
          <Text name="item" value="$text"/>
          <Choices name="label" toName="item" choice="single">
            <Choice value="no"/>
            <Choice value="yes"/>
          </Choices>
        </View>
    """
    if len(label_names) < 2 or not shown:
        raise InputError("a labelling set-up needs at least two labels, and something to show.")
    lines = ["<View>"]
    for k, column in enumerate(shown):
        tag, name = "Image" if column in images else "Text", SHOWN if k == 0 else f"shown_{k}"
        if len(shown) > 1:
            lines.append(f"  <Header value={quoteattr(str(column))}/>")
        lines.append(f"  <{tag} name={quoteattr(name)} value={quoteattr(f'${column}')}/>")
    lines.append(f'  <Choices name="{CHOICES}" toName="{SHOWN}" choice="single">')
    lines += [f"    <Choice value={quoteattr(str(name))}/>" for name in label_names]
    return "\n".join([*lines, "  </Choices>", "</View>"])
