"""ActiveLearner: the loop of choosing, asking, fitting and measuring, in a folder that survives a crash.

The state is one JSON file, replaced after every step: the rows to ask for are written before anyone is asked, and
answers as soon as they are there.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import clone

from snefy_ldl._internal.files import read_json, write_json
from snefy_ldl._internal.rows import as_rows, count_rows
from snefy_ldl._internal.types import Array, Index
from snefy_ldl._internal.validation import check_count, check_counts, check_distributions
from snefy_ldl.active.pool import Pool, stack_blocks
from snefy_ldl.active.query import RandomSampling, Strategy, make_strategy
from snefy_ldl.errors import InputError, ModelFileError
from snefy_ldl.metrics import score

#: Change it when a state file would mean something else.
STATE_VERSION = 2


class ActiveLearner:
    """Learn from as few labels as possible: choose rows, ask for their labels, fit, measure, until a stop.

    With an ``oracle`` (a function from row numbers to labels), :meth:`run` does it all. Where people answer at any
    pace, :meth:`ask` gives the rows that are wanted, the same ones until they are answered, and :meth:`tell` takes
    the answers. With ``state_dir`` a process that was killed goes on where it was: build the learner again with the
    same arguments.

    Args:
        model: an unfitted model; each round fits a clone of it to all labels.
        X_pool: unlabelled rows, as for :func:`~snefy_ldl.active.query.query`.
        oracle: gets row numbers (k,) and returns their label distributions (k, L); None for ask and tell.
        strategy: a name or a strategy object.
        options: settings of a strategy given by name.
        budget: how many rows may be asked for.
        batch_size: rows per round.
        initial: rows of the first round, chosen at random; the batch size by default, 0 rows when ``X_labeled`` is
            given.
        X_labeled: rows with labels to start from.
        D_labeled: their label distributions (or votes).
        X_val: rows on which each round is measured; never trained on.
        D_val: their label distributions (or votes).
        votes: labels are vote counts, fitted with ``fit(X, counts=...)``.
        state_dir: folder of the state; None keeps it in memory.
        random_state: seed (a whole number).
        verbose: 1 prints a line a round.

    Attributes:
        model_: the model fitted last; fitted again after a restart. None before the first fit.
        history_: one dict a round: labels, validation likelihood and the six measures, seconds.
        labeled_: row numbers with labels, in the order they came; ``answers_`` holds the labels.
        n_asked_: how many rows were chosen so far, which is what the budget counts.
        stopped_: why the loop ended: ``"budget"``, ``"pool"``, or None while it has not.

    Raises:
        InputError: a setting is out of its range, or the folder belongs to another run.
        ModelFileError: the folder is damaged.

    Example:
        >>> from snefy_ldl import SnefyLDL
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=200, random_state=0)
        >>> model = SnefyLDL(guides=None, epochs=2, random_state=0)
        >>> learner = ActiveLearner(model, city.X, lambda rows: city.D[rows], "auto", budget=60, batch_size=20)
        >>> learner = learner.run()
        >>> [entry["n_labeled"] for entry in learner.history_], learner.stopped_
        ([20, 40, 60], 'budget')
    """

    def __init__(
        self,
        model: Any,
        X_pool: Any,
        oracle: Callable[[Index], Any] | None = None,
        strategy: str | Strategy = "auto",
        *,
        options: dict[str, Any] | None = None,
        budget: int,
        batch_size: int = 100,
        initial: int | None = None,
        X_labeled: Any = None,
        D_labeled: Any = None,
        X_val: Any = None,
        D_val: Any = None,
        votes: bool = False,
        state_dir: str | Path | None = None,
        random_state: int = 0,
        verbose: int = 0,
    ) -> None:
        self.model, self.oracle, self.votes, self.verbose = model, oracle, votes, verbose
        self.strategy = make_strategy(strategy, options)
        self.budget = check_count("budget", budget)
        self.batch_size = check_count("batch_size", batch_size)
        self.random_state = check_count("random_state", random_state, low=0)  # a number, so that a run can go on
        _check_pair(X_labeled, D_labeled, "labeled")
        _check_pair(X_val, D_val, "val")
        self.X_val, self.D_val = X_val, D_val
        self.X_labeled = X_labeled
        self.D_labeled = None if D_labeled is None else self._check_labels(D_labeled)
        self.initial = 0 if initial is None and X_labeled is not None else initial
        if self.initial is not None:
            check_count("initial", self.initial, low=0)
        if self.initial == 0 and X_labeled is None:
            raise InputError("initial=0 needs X_labeled and D_labeled: the first model must be fitted to something.")
        names = getattr(X_labeled, "columns", None)
        self.pool = Pool(X_pool, None if names is None else [str(c) for c in names], verbose=bool(verbose))
        self.n_pool = self.pool.count()
        self.history_: list[dict[str, Any]] = []
        self._rounds: list[list[int]] = []  # the rows of each round; the last one is open while its history is missing
        self._answers: dict[int, list[float]] = {}
        self._seconds = 0.0
        self._model: Any = None
        self._file = None if state_dir is None else Path(state_dir) / "learner.json"
        if self._file is not None:
            self._resume(self._file)

    # -- what is known -----------------------------------------------------------------------------------------------

    @property
    def model_(self) -> Any:
        """The model fitted last; fitted again after a restart. None before the first fit."""
        if self._model is None and self.history_:
            self._model = self._fit_model(*self._training_rows())
        return self._model

    @property
    def labeled_(self) -> Index:
        """Row numbers of the pool that have labels, in the order they came."""
        return np.array(list(self._answers), dtype=np.intp)

    @property
    def answers_(self) -> Array:
        """Their labels (k, L)."""
        return np.array(list(self._answers.values()), dtype=np.float64)

    @property
    def n_asked_(self) -> int:
        """Rows that were chosen so far, which is what the budget counts."""
        return sum(map(len, self._rounds))

    @property
    def stopped_(self) -> str | None:
        """Why the loop ended: the budget or the end of the pool; None while it has not."""
        if len(self._rounds) > len(self.history_):
            return None
        return "budget" if self.n_asked_ >= self.budget else "pool" if self.n_asked_ >= self.n_pool else None

    # -- the loop ----------------------------------------------------------------------------------------------------

    def run(self, max_rounds: int | None = None) -> ActiveLearner:
        """Go on until the budget or the end of the pool.

        Args:
            max_rounds: rounds after which to pause; None goes on to the end.

        Returns:
            The learner itself.

        Raises:
            InputError: there is no oracle, or it gives something that is no label.
        """
        if self.oracle is None:
            raise InputError("run needs an oracle; without one use ask() and tell(rows, labels).")
        left = None if max_rounds is None else check_count("max_rounds", max_rounds)
        while left != 0 and len(rows := self.ask()):
            self.tell(rows, self.oracle(rows))
            left = None if left is None else left - 1
        return self

    def ask(self) -> Index:
        """Rows whose labels are wanted now: the same ones until :meth:`tell` takes their labels.

        Returns:
            Row numbers (k,); none when the loop has ended.
        """
        if not self._rounds and self.initial == 0:  # a starting point for the history, and the model that chooses first
            self._rounds.append([])
            self._close_if_answered()
        if len(self._rounds) == len(self.history_) and self.stopped_ is None:
            self._next_round()
        current = self._rounds[-1] if len(self._rounds) > len(self.history_) else []
        return np.array([row for row in current if row not in self._answers], dtype=np.intp)

    def tell(self, rows: Any, labels: Any) -> ActiveLearner:
        """Take the labels of rows that were asked for; when a round is complete, the model is fitted and measured.

        Args:
            rows: row numbers (k,) of the present round.
            labels: their label distributions, or votes, (k, L).

        Returns:
            The learner itself.

        Raises:
            InputError: a row was not asked for or has its label already, or a label is not what it must be.
        """
        index = [int(row) for row in np.atleast_1d(rows)]
        table = self._check_labels(labels, len(index))
        for row in index:
            if row in self._answers or index.count(row) > 1:
                raise InputError(f"row {row} already has its label.")
            if not any(row in chosen for chosen in self._rounds):
                raise InputError(f"row {row} was not asked for.")
        self._answers |= dict(zip(index, table.tolist()))
        self._write()
        self._close_if_answered()
        return self

    def rows(self, indices: Any) -> Any:
        """Features of some rows of the pool, to show to the people who label them.

        Args:
            indices: row numbers (k,).

        Returns:
            The k rows in the form the pool has.
        """
        return self.pool.take(np.asarray(indices, dtype=np.intp))

    # -- one round ---------------------------------------------------------------------------------------------------

    def _next_round(self) -> None:
        number, first = len(self._rounds), not self._rounds and self.initial != 0
        size = self.initial if first and self.initial else self.batch_size
        taken = np.zeros(self.n_pool, dtype=bool)
        taken[[row for rows in self._rounds for row in rows]] = True
        began = time.perf_counter()
        chosen, _ = (RandomSampling() if first else self.strategy).choose(
            self.pool,
            min(size, self.budget - self.n_asked_, int((~taken).sum())),
            model=None if first else self.model_,
            X_labeled=self._training_rows()[0],
            random=np.random.RandomState(np.random.SeedSequence([self.random_state, number]).generate_state(4)),
            exclude=taken,
        )
        self._rounds.append(chosen.tolist())
        self._seconds = time.perf_counter() - began
        self._write()

    def _close_if_answered(self) -> None:
        if len(self._rounds) > len(self.history_) and all(row in self._answers for row in self._rounds[-1]):
            self._fit()

    def _fit(self) -> None:
        """Fit to all labels, measure, and write the history: the round is then closed."""
        began = time.perf_counter()
        X, labels = self._training_rows()
        self._model = self._fit_model(X, labels)
        entry: dict[str, Any] = {
            "round": len(self.history_),
            "n_labeled": len(labels),
            "n_asked": self.n_asked_,
            "seconds_choosing": round(self._seconds, 3),
            "seconds_fitting": round(time.perf_counter() - began, 3),
        }
        self.history_.append(entry | self._measure(self._model))
        self._write()
        if self.verbose:
            shown = self.history_[-1].get("validation_log_likelihood")
            end = "" if shown is None else f", {shown:.4f} nats"
            print(f"round {entry['round']}: {entry['n_labeled']} labels{end}")

    def _check_labels(self, labels: Any, n_rows: int | None = None) -> Array:
        """Label distributions or votes (N, L) as numbers; an error names the cell that is none."""
        return (check_counts if self.votes else check_distributions)(labels, n_rows=n_rows)[0]

    def _fit_model(self, X: Any, labels: Array) -> Any:
        """A clone of the model, fitted."""
        model = clone(self.model)
        if "random_state" in model.get_params() and model.random_state is None:
            model.set_params(random_state=self.random_state)  # or a run could not be repeated
        return model.fit(X, counts=labels) if self.votes else model.fit(X, labels)

    def _measure(self, model: Any) -> dict[str, float]:
        """The mean log likelihood of the validation rows, where the model has one, and the six measures."""
        if self.X_val is None:
            return {}
        figures = {}
        if hasattr(model, "log_prob"):
            given = {"counts": self.D_val} if self.votes else {"D": self.D_val}
            figures["validation_log_likelihood"] = float(np.mean(model.log_prob(self.X_val, **given)))
        table = self._check_labels(self.D_val)
        return figures | score(table / table.sum(axis=1, keepdims=True), np.asarray(model.predict(self.X_val)))

    def _training_rows(self) -> tuple[Any, Any]:
        """Features and labels of everything that is labelled; the start alone, or None, where nothing was answered."""
        if not self._answers:
            return self.X_labeled, self.D_labeled
        answered = self.pool.take(self.labeled_)
        if self.D_labeled is None:
            return answered, self.answers_
        return stack_blocks([as_rows(self.X_labeled), answered]), np.concatenate([self.D_labeled, self.answers_])

    # -- the folder --------------------------------------------------------------------------------------------------

    def _write(self) -> None:
        if self._file is not None:
            answers = list(self._answers.items())
            state = {"rounds": self._rounds, "answers": answers, "history": self.history_, "seconds": self._seconds}
            write_json(self._file, self._about() | state)

    def _resume(self, file: Path) -> None:
        """Read the folder, or start it."""
        about = self._about()
        if not file.is_file():
            if file.parent.exists() and (file.parent.is_file() or any(file.parent.iterdir())):
                raise InputError(
                    f"{file.parent} holds no active learner's state and was left alone; choose another folder."
                )
            return
        before = read_json(file)
        for key, value in about.items():
            if before.get(key) != value:
                raise InputError(
                    f"{file.parent} was made with another {key} ({before.get(key)!r}; now {value!r}). "
                    "Use the same arguments to go on, or another folder to start afresh."
                )
        try:
            self._rounds, self.history_, self._seconds = before["rounds"], before["history"], before["seconds"]
            self._answers = {int(row): labels for row, labels in before["answers"]}
        except (KeyError, TypeError, ValueError) as error:
            raise ModelFileError(f"{file} is damaged ({type(error).__name__}: {error}).") from None
        self._close_if_answered()  # it was stopped while it fitted

    def _about(self) -> dict[str, Any]:
        """The settings that a state folder belongs to, as JSON holds them."""
        ends = self.pool.take(np.array([0, self.n_pool // 2, self.n_pool - 1], dtype=np.intp))
        given = [] if self.D_labeled is None else [np.asarray(self.D_labeled)]
        digest = hashlib.sha256()
        for part in [np.asarray(ends.toarray() if hasattr(ends, "toarray") else ends), *given]:
            digest.update(np.ascontiguousarray(part).tobytes())
        about = {
            "format": "snefy-ldl active learner",
            "version": STATE_VERSION,
            "pool_rows": self.n_pool,
            "data": digest.hexdigest()[:16],
            "model": repr(self.model),
            "strategy": repr(self.strategy),
            "initial": self.initial,
            "batch_size": self.batch_size,
            "votes": self.votes,
            "random_state": self.random_state,
        }
        return json.loads(json.dumps(about))


def _check_pair(X: Any, D: Any, what: str) -> None:
    """Raise unless features and labels are both given or both not, with as many rows."""
    if (X is None) != (D is None):
        raise InputError(f"X_{what} and D_{what} go together; one of them is missing.")
    if X is not None and count_rows(as_rows(X)) != len(D):
        raise InputError(f"X_{what} has {count_rows(as_rows(X))} rows, D_{what} {len(D)}.")
