"""What an active learner remembers: its rounds, its history, and the folder that keeps both through a crash.

Each round is one JSON file, renamed into place after every step: the rows to ask for are written before anyone is
asked, a row is marked before its question goes out, and an answer is written as soon as it is there.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from snefy_ldl._internal.files import read_json, write_json
from snefy_ldl._internal.types import Array, Index, Mask
from snefy_ldl.errors import InputError, ModelFileError

#: Change it when a state folder would mean something else.
STATE_VERSION = 1

Interrupted = Literal["set_aside", "ask_again"]


@dataclass
class Round:
    """One batch of questions.

    Args:
        round: its number, from 0 on.
        rows: row numbers of the pool that were chosen.
        utilities: their utilities; None where one is not finite.
        seconds: how long choosing took.
        out: rows whose question is out at this moment.
        set_aside: rows that are given up on.
        answered: rows that have labels, in the order these came.
        answers: the labels.

    Example:
        >>> Round(0, [4, 7], [0.5, 0.25], 0.1, answered=[7], answers=[[0.5, 0.5]]).open_rows()
        [4]
    """

    round: int
    rows: list[int]
    utilities: list[float | None]
    seconds: float
    out: list[int] = field(default_factory=list)
    set_aside: list[int] = field(default_factory=list)
    answered: list[int] = field(default_factory=list)
    answers: list[list[float]] = field(default_factory=list)

    def open_rows(self) -> list[int]:
        """Rows that wait for an answer, in the order they were chosen."""
        done = {*self.answered, *self.set_aside}
        return [row for row in self.rows if row not in done]

    def take_answer(self, row: int, answer: list[float]) -> None:
        """Note the label of a row, which is then neither out nor set aside."""
        self.set_aside = [other for other in self.set_aside if other != row]
        self.out = [other for other in self.out if other != row]
        self.answered.append(row)
        self.answers.append(answer)


class LearnerState:
    """Rounds and history of an active learner, in a folder or in memory.

    Args:
        folder: where the state is kept; None keeps it in memory.

    Attributes:
        rounds: all rounds, the last one perhaps open.
        history: one dict a closed round.

    Example:
        >>> state = LearnerState(None)
        >>> state.start_round([3, 5], [0.2, 0.1], 0.0)
        >>> state.take_answers([5], [[0.5, 0.5]])
        >>> state.open_round.open_rows(), state.labeled
        ([3], array([5]))
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.rounds: list[Round] = []
        self.history: list[dict[str, Any]] = []

    # -- what is known -----------------------------------------------------------------------------------------------

    @property
    def open_round(self) -> Round | None:
        """The round that has no entry in the history yet, or None."""
        return self.rounds[-1] if len(self.rounds) > len(self.history) else None

    @property
    def labeled(self) -> Index:
        """Row numbers of the pool that have labels, in the order they came."""
        return np.array([row for one in self.rounds for row in one.answered], dtype=np.intp)

    @property
    def answers(self) -> Array:
        """Their labels (k, L)."""
        rows = [answer for one in self.rounds for answer in one.answers]
        return np.array(rows, dtype=np.float64) if rows else np.zeros((0, 0))

    @property
    def set_aside(self) -> Index:
        """Row numbers that were asked for and are given up on."""
        return np.array([row for one in self.rounds for row in one.set_aside], dtype=np.intp)

    @property
    def n_asked(self) -> int:
        """Rows that were chosen so far."""
        return sum(len(one.rows) for one in self.rounds)

    def chosen(self, n_pool: int) -> Mask:
        """Mask (n_pool,) of the rows that were chosen so far."""
        mask = np.zeros(n_pool, dtype=bool)
        mask[[row for one in self.rounds for row in one.rows]] = True
        return mask

    # -- steps, each on disk before the next ---------------------------------------------------------------------------

    def start_round(self, rows: list[int], utilities: list[float | None], seconds: float) -> None:
        """Open a round with the rows that were chosen.

        Args:
            rows: row numbers of the pool; none for a round that only fits.
            utilities: their utilities.
            seconds: how long choosing took.
        """
        self.rounds.append(Round(len(self.rounds), rows, utilities, seconds))
        self._write_round(self.rounds[-1])

    def mark_out(self, rows: list[int]) -> None:
        """Note which question is about to go out; an empty list when it came back without an answer."""
        if self.open_round is not None:
            self.open_round.out = rows
            self._write_round(self.open_round)

    def take_answers(self, rows: Sequence[int], answers: Sequence[list[float]]) -> None:
        """Note the labels of rows that were asked for.

        Args:
            rows: row numbers.
            answers: their labels.

        Raises:
            InputError: a row has its label already, or was not asked for; nothing is noted then.
        """
        known = set(self.labeled.tolist())
        for row in rows:
            if row in known or list(rows).count(row) > 1:
                raise InputError(f"row {row} already has its label.")
            if not any(row in one.rows for one in self.rounds):
                raise InputError(f"row {row} was not asked for.")
        touched: dict[int, Round] = {}
        for row, answer in zip(rows, answers):
            home = next(one for one in self.rounds if row in one.rows)
            home.take_answer(row, answer)
            touched[home.round] = home
        for number in sorted(touched):
            self._write_round(touched[number])

    def close_round(self, entry: dict[str, Any], model: Any) -> None:
        """Write a round's figures and its model; the round is then closed, and older models are removed.

        Args:
            entry: what the history says about the round.
            model: the fitted model; it is kept where it can be saved.
        """
        name = self._model_name(len(self.history))
        if self.folder is not None and hasattr(model, "save"):
            model.save(self.folder / name)
        self.history.append(entry)
        if self.folder is not None:
            write_json(self.folder / "history.json", self.history)
            for old in self.folder.glob("model-*"):
                if old.name != name:
                    shutil.rmtree(old, ignore_errors=True)

    def load_model(self, kind: type[Any]) -> Any:
        """The model of the last closed round.

        Args:
            kind: class of the model.

        Returns:
            The model, or None where none was saved or it cannot be read.
        """
        folder = None if self.folder is None else self.folder / self._model_name(len(self.history) - 1)
        if folder is None or not folder.is_dir() or not hasattr(kind, "load"):
            return None
        try:
            return kind.load(folder)
        except ModelFileError:  # its code is not saved, or the disk lost it
            return None

    def resume(self, about: dict[str, Any], interrupted: Interrupted) -> None:
        """Read the folder, or start it.

        Args:
            about: the learner's settings as JSON holds them; a folder of other settings is refused.
            interrupted: what becomes of rows whose question was out when the process died.

        Raises:
            InputError: the folder belongs to something else, or to a learner with other settings.
            ModelFileError: the folder is damaged.
        """
        if self.folder is None:
            return
        path = self.folder / "learner.json"
        if not path.is_file():
            if self.folder.exists() and (self.folder.is_file() or any(self.folder.iterdir())):
                raise InputError(
                    f"{self.folder} holds no active learner's state and was left alone; choose another folder."
                )
            write_json(path, about)
            return
        before = read_json(path)
        for key, value in about.items():
            if before.get(key) != value:
                raise InputError(
                    f"{self.folder} was made with another {key} ({before.get(key)!r}; now {value!r}). "
                    "Use the same arguments to go on, or another folder to start afresh."
                )
        self._read()
        current = self.open_round
        if current is None:
            return
        lost = [row for row in current.out if row not in current.answered]
        current.out = []
        if interrupted == "set_aside":
            current.set_aside += lost
        self._write_round(current)
        if not current.rows:
            self.rounds.pop()  # the starting fit without a batch was cut off: it is simply made again

    def _read(self) -> None:
        assert self.folder is not None
        try:
            self.rounds = [Round(**read_json(file)) for file in sorted(self.folder.glob("round-*.json"))]
        except TypeError as error:
            raise ModelFileError(f"{self.folder} is damaged: a round is not what it should be ({error}).") from None
        history = self.folder / "history.json"
        self.history = read_json(history) if history.is_file() else []
        if len(self.rounds) < len(self.history) or any(one.round != k for k, one in enumerate(self.rounds)):
            raise ModelFileError(f"{self.folder} is damaged: its rounds and its history do not belong together.")

    @staticmethod
    def _model_name(number: int) -> str:
        return f"model-{number:04d}"

    def _write_round(self, one: Round) -> None:
        if self.folder is not None:
            write_json(self.folder / f"round-{one.round:04d}.json", asdict(one))
