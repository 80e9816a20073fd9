"""Which rows a model has learned from: a short fingerprint per row, so that scores on them are recognised."""

from __future__ import annotations

import hashlib
import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from snefy_ldl._internal.rows import count_rows, take_rows
from snefy_ldl._internal.types import Array, Index
from snefy_ldl.errors import CalibrationWarning, InputError, TableNote

#: Rows that get a fingerprint, at most, evenly spaced over the table; and numbers that are read for them, at most.
MOST_ROWS, MOST_NUMBERS = 20_000, 1 << 25
#: Share of training rows in a table from which it is no test of the model.
MOST_SEEN = 0.1
#: Fewest fingerprints of a table.
FEWEST_PRINTS = 5
#: Chance of so many matches among new rows below which they are no coincidence, for a refusal and for a warning.
COINCIDENCE, UNLIKELY = 1e-4, 1e-2


@dataclass(frozen=True, eq=False)
class SeenRows:
    """Fingerprints of training rows: a 64-bit hash of each row's features and labels, as float32.

    Rows that are not numbers (texts, graphs, rows of a data set that are fetched one by one) have none.

    Args:
        prints: The fingerprints (n,), uint64, in the order of the rows.
        rows: Training rows there were; more than n in a large table.

    Example:
        >>> X, D = np.arange(20.0).reshape(10, 2), np.full((10, 2), 0.5)
        >>> seen = SeenRows.of(X, D)
        >>> seen.count_in(X[:6], D[:6]), seen.count_in(X + 0.5, D)
        (6, 0)
    """

    prints: NDArray[np.uint64]
    rows: int

    @classmethod
    def of(cls, features: Any, labels: Array, rows: Index | None = None) -> SeenRows:
        """The fingerprints of a table.

        Args:
            features: Features as the model takes them, (N, ...).
            labels: Shares or numbers of votes (N, L), which count by their proportions; NaN where unknown.
            rows: The rows that count; all by default.

        Returns:
            The fingerprints.
        """
        index = np.arange(len(labels)) if rows is None else rows
        if (width := _width(features)) is None:
            return cls(np.empty(0, dtype=np.uint64), len(index))
        most = min(MOST_ROWS, max(FEWEST_PRINTS, MOST_NUMBERS // max(width, 1)))
        kept = index if len(index) <= most else index[np.linspace(0, len(index) - 1, most).astype(np.intp)]
        return cls(_prints(features, labels, kept), len(index))

    def part(self, rows: Index) -> SeenRows:
        """The fingerprints of some rows of a table every row of which has one."""
        return SeenRows(self.prints[rows], len(rows))

    def joined(self, other: SeenRows) -> SeenRows:
        """These rows and those of a further fit; a row of both counts once.

        Args:
            other: Rows that the model learned from later.

        Returns:
            All of them, at most as many fingerprints as one table keeps.
        """
        new = other.prints[~np.isin(other.prints, self.prints)]
        prints = np.concatenate([self.prints, new])
        rows = self.rows + round(other.rows * len(new) / max(len(other.prints), 1))
        if len(prints) > MOST_ROWS:
            prints = prints[np.linspace(0, len(prints) - 1, MOST_ROWS).astype(np.intp)]
        return SeenRows(prints, rows)

    @cached_property
    def twins(self) -> int:
        """Rows that have a twin among the others: their share is the chance that a new row matches by coincidence."""
        _, counts = np.unique(self.prints, return_counts=True)
        return int(counts[counts > 1].sum())

    def count_in(self, features: Any, labels: Array, chance: float = COINCIDENCE) -> int:
        """How many rows of another table are training rows, features and labels alike.

        With few distinct rows (some yes-or-no features, one vote each) new rows match by coincidence. Training rows
        tell how often: as often as they match each other; a beta-binomial model extends this to new rows. Only what
        clearly exceeds that counts.

        Args:
            features: Features as the model takes them, (N, ...).
            labels: Shares or numbers of votes, (N, L).
            chance: Of so many matches among new rows, below which they are no coincidence.

        Returns:
            The number, estimated if the table that trained the model was too large to keep every row; 0 if coincidence
            explains the matches.
        """
        n = len(labels)
        if not len(self.prints) or n == 0 or _width(features) is None:
            return 0
        matches = int(np.isin(_prints(features, labels, np.arange(n)), self.prints).sum())
        pairs, single = self.twins / 2, (len(self.prints) - self.twins) / 2  # twins come in pairs: half as many facts
        if stats.betabinom.sf(matches - 1, n, pairs + 0.1, single + 0.5) > chance:
            return 0
        alike, kept = self.twins / len(self.prints), len(self.prints) / self.rows
        return min(n, round((matches - alike * n) / (kept * (1.0 - alike))))


def count_seen(model: Any, X: Any, labels: Array, chance: float = COINCIDENCE) -> int:
    """How many rows of a table a fitted model has learned from.

    Args:
        model: Fitted; one without a record of its training rows (another library's, an old file's) has seen none.
        X: Features as the model's ``predict`` takes them, (N, d).
        labels: Shares or numbers of votes, (N, L).
        chance: Of so many matches among new rows, below which they are no coincidence.

    Returns:
        The number, see :meth:`SeenRows.count_in`.
    """
    seen = getattr(model, "seen_rows_", None)
    if not isinstance(seen, SeenRows):
        return 0
    with warnings.catch_warnings():  # the model's own prediction warns about the table
        warnings.simplefilter("ignore", TableNote)
        features = model.encode(X)
    return seen.count_in(features, labels, chance)


def check_unseen(model: Any, X: Any, labels: Array) -> None:
    """Warn if some calibration rows trained the model, and raise from a tenth on.

    Args:
        model: Fitted.
        X: Features of the calibration rows, (N, d).
        labels: Their shares, (N, L).

    Raises:
        InputError: At least :data:`MOST_SEEN` of the rows trained the model.
    """
    seen = count_seen(model, X, labels, UNLIKELY)
    what = f"{seen:,} of the {len(labels):,} calibration rows trained this model: it is surer of them than of new rows"
    if seen >= MOST_SEEN * len(labels) and count_seen(model, X, labels) >= MOST_SEEN * len(labels):
        raise InputError(f"{what}, so the guarantee would not hold. Hold rows back from fit and calibrate on those.")
    if seen:
        warnings.warn(f"{what}, so coverage may be too low. Leave these rows out.", CalibrationWarning, stacklevel=4)


def _width(features: Any) -> int | None:
    """Numbers per row; None if rows are not numbers, or are fetched one by one."""
    numbers = features.dtype.kind in "fiub" if isinstance(features, np.ndarray) else isinstance(features, Tensor)
    return int(np.prod(features.shape[1:])) if numbers or sp.issparse(features) else None


def _prints(features: Any, labels: Array, rows: Index) -> NDArray[np.uint64]:
    """Fingerprints of some rows; as float32, so that a table in either precision gives the same."""
    part = take_rows(features, rows) if len(rows) < count_rows(features) else features
    if sp.issparse(part):
        part = part.toarray()
    elif isinstance(part, Tensor):
        part = part.detach().cpu().float().numpy()
    shares = np.asarray(labels, dtype=np.float64)[rows]
    shares = shares / np.maximum(np.nansum(shares, axis=1, keepdims=True), np.finfo(np.float64).tiny)
    with np.errstate(over="ignore"):
        numbers = np.asarray(part).reshape(len(rows), -1).astype(np.float32)
    table = np.hstack([numbers, shares.astype(np.float32)]) + np.float32(0.0)  # one zero, not two
    hashes = b"".join(hashlib.blake2b(row.tobytes(), digest_size=8).digest() for row in np.ascontiguousarray(table))
    return np.frombuffer(hashes, dtype="<u8").astype(np.uint64)
