"""Every exception and warning the library raises on purpose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sklearn.exceptions import NotFittedError

__all__ = [
    "CalibrationWarning",
    "ClosureNote",
    "DataNotFoundError",
    "InputError",
    "ModelFileError",
    "NotConformalizedError",
    "NotFittedError",
    "SeenRowsWarning",
    "SnefyError",
    "TableNote",
    "TrainingError",
    "TrainingWarning",
    "ZeroLabelWarning",
]


class SnefyError(Exception):
    """Base of the library's own errors.

    Args:
        message: What is wrong, where, and what to do.
        command: The same for the command line, if the message is about arguments in Python.
    """

    def __init__(self, message: str = "", *, command: str | None = None) -> None:
        super().__init__(message)
        self.command = command


class InputError(SnefyError, ValueError):
    """The data or an argument breaks a rule; the message names the row, the column and the rule."""


class ModelFileError(SnefyError, ValueError):
    """A saved model is missing, damaged, foreign, or written by a newer version."""


class DataNotFoundError(SnefyError, FileNotFoundError):
    """A named data set is not on this machine and could not be fetched; the message says where to put it."""


class TrainingError(SnefyError, RuntimeError):
    """Training could not go on; the message holds a diagnosis."""


class NotConformalizedError(SnefyError, NotFittedError):  # type: ignore[misc]
    """``predict_interval`` was called before ``conformalize``."""


class ZeroLabelWarning(UserWarning):
    """Some label distributions hold exact zeros and were shrunk toward the uniform."""


class MissingLabelWarning(UserWarning):
    """Some label distributions hold unknown shares (NaN) and count by the density of what is known."""


class ClosureNote(UserWarning):
    """Label distributions came as percentages or as rounded shares, and were divided by their sums."""


class TableNote(UserWarning):
    """How a table was read: columns left out, cells unlike those of the fit.

    Args:
        words: What to tell.
        odd_cells: The odd cells behind the words, so that notes on parts of one table can be added up.
    """

    def __init__(self, words: str, odd_cells: Sequence[Any] = ()) -> None:
        super().__init__(words)
        self.odd_cells = tuple(odd_cells)


class TrainingWarning(UserWarning):
    """Training met trouble and repaired it."""


class SeenRowsWarning(UserWarning):
    """A model was scored on rows that it learned from."""


class CalibrationWarning(UserWarning):
    """A guarantee could be kept only by an uninformative answer, or only in a weaker form."""
