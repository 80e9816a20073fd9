"""Every exception and warning that the library raises on purpose.

Before a fit, and before ``conformalize``, methods raise :class:`sklearn.exceptions.NotFittedError`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = [
    "CalibrationWarning",
    "DataNotFoundError",
    "InputError",
    "LabelWarning",
    "ModelFileError",
    "SnefyError",
    "TableNote",
    "TrainingError",
    "TrainingWarning",
]


class SnefyError(Exception):
    """Base of the library's own errors; the message names what is wrong, where, and what to do."""


class InputError(SnefyError, ValueError):
    """The data or an argument breaks a rule; the message names the row, the column and the rule."""


class ModelFileError(SnefyError, ValueError):
    """A saved model is missing, damaged, foreign, or written by a newer version."""


class DataNotFoundError(SnefyError, FileNotFoundError):
    """A named data set is not on this machine and could not be fetched; the message names the folder to put it in."""


class TrainingError(SnefyError, RuntimeError):
    """Training could not continue; the message holds a diagnosis."""


class LabelWarning(UserWarning):
    """Label distributions were changed or are incomplete: zeros shrunk, percentages divided, shares missing."""


class TableNote(UserWarning):
    """How a table was read: columns left out, cells unlike those of the fit.

    Args:
        words: The message.
        odd_cells: The odd cells behind it, so that notes on parts of one table can be added up.
    """

    def __init__(self, words: str, odd_cells: Sequence[Any] = ()) -> None:
        super().__init__(words)
        self.odd_cells = tuple(odd_cells)


class TrainingWarning(UserWarning):
    """Training met trouble that it could work around."""


class CalibrationWarning(UserWarning):
    """A guarantee or a score means less than it seems: the answer is uninformative, or rows were seen in training."""
