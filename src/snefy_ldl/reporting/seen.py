"""Which rows trained a model: a few fingerprints beside it, so that a report on the training table says so."""

from __future__ import annotations

import hashlib
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from snefy_ldl._types import Array
from snefy_ldl.errors import ModelFileError, TableNote
from snefy_ldl.files import read_config, read_json, write_json
from snefy_ldl.validation.rows import as_rows, take_rows

__all__ = ["SEEN", "feature_numbers", "save_seen", "share_seen"]

#: The file in a model folder.
SEEN = "seen.json"
#: Training rows that get a fingerprint, evenly spaced over the table.
MOST_ROWS = 500
#: Digits after the point that count; the same file read again gives them all.
DECIMALS = 6


def feature_numbers(model: Any, X: Any) -> Array:
    """Features as numbers, encoded as the model encodes them.

    Args:
        model: A fitted model.
        X: Its features, (N, d).

    Returns:
        Numbers (N, k) without gaps.
    """
    columns = getattr(model, "columns_", None)
    with warnings.catch_warnings():  # whoever asks the model for predictions is told what is odd about the table
        warnings.simplefilter("ignore", TableNote)
        numbers = X if columns is None else columns.transform(X)
    return np.asarray(numbers, dtype=np.float64)


def save_seen(folder: Path, model: Any, X: Any, labels: Array) -> None:
    """Put fingerprints of some training rows beside a saved model.

    Args:
        folder: Of the model, which is saved already.
        model: The fitted model.
        X: The features it was fitted to, (N, d).
        labels: Shares or numbers of votes, (N, L).

    Example:
        >>> import tempfile
        >>> from snefy_ldl import SnefyLDL
        >>> X, D = np.random.default_rng(0).normal(size=(40, 2)), np.random.default_rng(1).dirichlet([2.0, 2.0], 40)
        >>> model = SnefyLDL(epochs=1, random_state=0).fit(X, D)
        >>> with tempfile.TemporaryDirectory() as place:
        ...     save_seen(model.save(place), model, X, D)
        ...     share_seen(Path(place), model, X, D), share_seen(Path(place), model, X + 1.0, D)
        (1.0, 0.0)
    """
    n = len(labels)
    rows = np.unique(np.linspace(0, n - 1, min(n, MOST_ROWS)).astype(np.intp))
    prints = sorted(_prints(feature_numbers(model, take_rows(as_rows(X), rows)), labels[rows]))
    config = read_config(folder)
    write_json(folder / SEEN, {"weights_sha256": config["weights"]["sha256"], "rows": n, "fingerprints": prints})


def share_seen(folder: Path, model: Any, X: Any, labels: Array) -> float:
    """How much of a table trained a model, as far as the folder tells.

    Args:
        folder: Of the model.
        model: The fitted model.
        X: Features of the table, (N, d).
        labels: Shares or numbers of votes, (N, L).

    Returns:
        The share of the table's rows that are among the training rows, estimated from the fingerprints; 0 where there
        are none.

    Example:
        >>> import tempfile
        >>> from snefy_ldl import SnefyLDL
        >>> from snefy_ldl.synthetic import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> model = SnefyLDL(epochs=1, guides=None, random_state=0).fit(city.X[:30], city.D[:30])
        >>> with tempfile.TemporaryDirectory() as name:
        ...     folder = model.save(Path(name) / "model")
        ...     save_seen(folder, model, city.X[:30], city.D[:30])
        ...     share_seen(folder, model, city.X[:30], city.D[:30]), share_seen(folder, model, city.X[30:], city.D[30:])
        (1.0, 0.0)
    """
    try:
        stored = read_json(folder / SEEN)
        current = stored["weights_sha256"] == read_config(folder)["weights"]["sha256"]
        prints, n_rows = set(stored["fingerprints"]), int(stored["rows"])
    except (ModelFileError, OSError, KeyError, TypeError, ValueError):
        return 0.0  # a folder without them, or with a file of somebody else's
    if not current or not prints:
        return 0.0
    common = len(prints & set(_prints(feature_numbers(model, X), labels)))
    return min(1.0, common / len(prints) * n_rows / len(labels))


def _prints(numbers: Array, labels: Array) -> list[str]:
    """A short fingerprint of each row's features and labels."""
    table = np.ascontiguousarray(np.hstack([numbers, np.asarray(labels, dtype=np.float64)]).round(DECIMALS) + 0.0)
    return [hashlib.blake2b(row.tobytes(), digest_size=6).hexdigest() for row in table]
