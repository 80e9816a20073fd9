"""ActiveLearner: the loop of choosing, asking, fitting and measuring, in a folder that survives a crash.

What it remembers, and when that is written, is in :mod:`snefy_ldl.active.state`.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import clone

from snefy_ldl._internal.rows import as_rows, count_rows
from snefy_ldl._internal.types import Array, Index
from snefy_ldl._internal.validation import check_choice, check_count, check_counts, check_distributions, check_number
from snefy_ldl.active.pool import Pool, stack_rows
from snefy_ldl.active.query import RandomSampling, Strategy, make_strategy
from snefy_ldl.active.state import STATE_VERSION, Interrupted, LearnerState, Round
from snefy_ldl.errors import InputError
from snefy_ldl.metrics import score

Oracle = Callable[[Index], Any]


class ActiveLearner:
    """Learn from as few labels as possible: choose rows, ask for their labels, fit, measure, until a stop.

    With an ``oracle`` (a function from row numbers to labels), :meth:`run` does it all. Where people answer at any
    pace, :meth:`ask` gives the rows that are wanted, the same ones until they are answered, and :meth:`tell` takes
    the answers. With ``state_dir`` a process that was killed goes on where it was: build the learner again with the
    same arguments.

    Args:
        model: an unfitted model; each round fits a clone of it to all labels.
        X_pool: unlabelled rows, as for :func:`~snefy_ldl.active.query.query` (but no bare iterator).
        oracle: gets row numbers (k,) and returns their label distributions (k, L); None for ask and tell.
        strategy: a name or a strategy object.
        options: settings of a strategy given by name.
        budget: how many rows may be asked for.
        batch_size: rows per round; a list gives one number per round, the last one repeated.
        initial: rows of the first round, chosen at random; the batch size by default, 0 rows when ``X_labeled`` is
            given.
        X_labeled: rows with labels to start from.
        D_labeled: their label distributions (or votes).
        X_val: rows on which each round is measured; never trained on.
        D_val: their label distributions (or votes).
        patience: stop after this many rounds without progress of the validation likelihood; None never.
        tolerance: nats a row that count as progress.
        votes: labels are vote counts, fitted with ``fit(X, counts=...)``.
        ask_size: rows a call of the oracle gets.
        interrupted: rows whose question was out when the process died: ``"set_aside"`` never asks for them again (they
            are in ``unanswered_``, and :meth:`tell` still takes their labels); ``"ask_again"`` does, and then the
            result is the one of an undisturbed run.
        state_dir: folder of the state; None keeps it in memory.
        random_state: seed (a whole number).
        verbose: 1 prints a line a round.

    Attributes:
        model_: the model fitted last, also after a restart; None before the first fit.
        history_: one dict a round: labels, validation likelihood and the six measures, seconds.
        labeled_: row numbers with labels, in the order they came; ``answers_`` holds the labels.
        unanswered_: row numbers that were set aside without an answer.
        n_asked_: how many rows were chosen so far, which is what the budget counts.
        stopped_: why the loop ended: ``"budget"``, ``"plateau"``, ``"pool"``, or None while it has not.

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
        oracle: Oracle | None = None,
        strategy: str | Strategy = "auto",
        *,
        options: dict[str, Any] | None = None,
        budget: int,
        batch_size: int | Sequence[int] = 100,
        initial: int | None = None,
        X_labeled: Any = None,
        D_labeled: Any = None,
        X_val: Any = None,
        D_val: Any = None,
        patience: int | None = None,
        tolerance: float = 0.0,
        votes: bool = False,
        ask_size: int = 1,
        interrupted: Interrupted = "set_aside",
        state_dir: str | Path | None = None,
        random_state: int = 0,
        verbose: int = 0,
    ) -> None:
        self.model, self.oracle, self.votes, self.verbose = model, oracle, votes, verbose
        self.strategy = make_strategy(strategy, options)
        self.budget = check_count("budget", budget)
        self.batch_sizes = _check_sizes(batch_size)
        self.ask_size = check_count("ask_size", ask_size)
        self.patience = None if patience is None else check_count("patience", patience)
        self.tolerance = check_number("tolerance", tolerance)
        check_choice("interrupted", interrupted, ("set_aside", "ask_again"))
        self.interrupted = interrupted
        self.random_state = check_count("random_state", random_state, low=0)  # a number, so that a run can go on
        check_pair(X_labeled, D_labeled, "labeled")
        check_pair(X_val, D_val, "val")
        self.X_val, self.D_val = X_val, D_val
        if patience is not None and X_val is None:
            raise InputError("patience needs X_val and D_val: the stopping rule looks at the validation likelihood.")
        self.X_labeled = X_labeled
        self.D_labeled = None if D_labeled is None else self._check_labels(D_labeled)
        self.initial = 0 if initial is None and X_labeled is not None else initial
        if self.initial is not None:
            check_count("initial", self.initial, low=0)
        if self.initial == 0 and X_labeled is None:
            raise InputError("initial=0 needs X_labeled and D_labeled: the first model must be fitted to something.")
        names = getattr(X_labeled, "columns", None)
        self.pool = Pool(X_pool, None if names is None else [str(c) for c in names], verbose=bool(verbose))
        if self.pool.once:
            raise InputError("ActiveLearner reads X_pool many times; pass a function that returns the iterator.")
        self.n_pool = self.pool.count()
        self.stopped_: str | None = None
        self._model: Any = None
        self._state = LearnerState(None if state_dir is None else Path(state_dir))
        if state_dir is not None:
            self._state.resume(self._about(), interrupted)
            self._close_if_complete()
            self._check_stop()

    # -- what is known -----------------------------------------------------------------------------------------------

    @property
    def model_(self) -> Any:
        """The model fitted last; read from the folder, or fitted again, after a restart. None before the first fit."""
        if self._model is None and self._state.history:
            self._model = self._state.load_model(type(self.model))
            X, labels = self._training_rows()
            if self._model is None and X is not None:
                self._model = self._fit_model(X, labels)
        return self._model

    @property
    def history_(self) -> list[dict[str, Any]]:
        """One dict a round: labels, validation likelihood and the six measures, seconds."""
        return self._state.history

    @property
    def rounds_(self) -> list[Round]:
        """All rounds, the last one perhaps still open."""
        return self._state.rounds

    @property
    def labeled_(self) -> Index:
        """Row numbers of the pool that have labels, in the order they came."""
        return self._state.labeled

    @property
    def answers_(self) -> Array:
        """Their labels (k, L)."""
        return self._state.answers

    @property
    def unanswered_(self) -> Index:
        """Row numbers that were asked for and set aside without an answer."""
        return self._state.set_aside

    @property
    def n_asked_(self) -> int:
        """Rows that were chosen so far, which is what the budget counts."""
        return self._state.n_asked

    # -- the loop ----------------------------------------------------------------------------------------------------

    def run(self, max_rounds: int | None = None) -> ActiveLearner:
        """Go on until the budget, a plateau or the end of the pool.

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
            for start in range(0, len(rows), self.ask_size):
                part = rows[start : start + self.ask_size]
                self._state.mark_out(part.tolist())
                try:
                    self.tell(part, self.oracle(part))
                except Exception:
                    # the oracle says that it failed, so it will not be surprised to be asked again
                    self._state.mark_out([])
                    raise
            left = None if left is None else left - 1
        return self

    def ask(self) -> Index:
        """Rows whose labels are wanted now: the same ones until :meth:`tell` takes their labels.

        Returns:
            Row numbers (k,); none when the loop has ended.
        """
        if self.stopped_ is None and self._state.open_round is None:
            self._next_round()
        current = self._state.open_round
        return np.array([] if current is None else current.open_rows(), dtype=np.intp)

    def tell(self, rows: Any, labels: Any) -> ActiveLearner:
        """Take the labels of rows that were asked for; when a round is complete, the model is fitted and measured.

        Args:
            rows: row numbers (k,), of the present round or set aside earlier.
            labels: their label distributions, or votes, (k, L).

        Returns:
            The learner itself.

        Raises:
            InputError: a row was not asked for or has its label already, or a label is not what it must be.
        """
        index = np.atleast_1d(np.asarray(rows)).astype(np.intp)
        table = self._check_labels(labels, len(index))
        self._state.take_answers(index.tolist(), table.tolist())
        self._close_if_complete()
        return self

    def rows(self, indices: Any) -> Any:
        """Features of some rows of the pool, to show to whoever labels them.

        Args:
            indices: row numbers (k,).

        Returns:
            The k rows in the form the pool has.
        """
        return self.pool.take(np.asarray(indices, dtype=np.intp))

    # -- one round ---------------------------------------------------------------------------------------------------

    def _next_round(self) -> None:
        if not self.rounds_ and self.initial == 0:
            # a starting point for the history, and the model that chooses the first batch
            self._state.start_round([], [], 0.0)
            self._fit(0.0)
        number = len(self.rounds_)
        first = self.initial != 0 and not len(self.labeled_) and (number == 0 or self.X_labeled is None)
        taken = self._state.chosen(self.n_pool)
        size = min(self._batch_size(number, first), self.budget - self.n_asked_, int((~taken).sum()))
        if self.stopped_ is not None or size < 1:
            self.stopped_ = self.stopped_ or ("budget" if self.n_asked_ >= self.budget else "pool")
            return
        chooser = RandomSampling() if first else self.strategy
        began = time.perf_counter()
        seed = np.random.RandomState(np.random.SeedSequence([self.random_state, number]).generate_state(4))
        known, _ = self._training_rows() if not first or self.X_labeled is not None else (None, None)
        chosen, utilities = chooser.choose(
            self.pool,
            size,
            model=None if first else self.model_,
            X_labeled=known,
            random=seed,
            exclude=taken if taken.any() else None,
        )
        values = [None if not np.isfinite(value) else float(value) for value in utilities[chosen]]
        self._state.start_round(chosen.tolist(), values, time.perf_counter() - began)

    def _batch_size(self, number: int, first: bool) -> int:
        """Rows of a round; a first round of a size given apart does not use up one of the batch sizes."""
        if first and self.initial:
            return self.initial
        later = number if self.initial is None else number - 1
        return self.batch_sizes[min(later, len(self.batch_sizes) - 1)]

    def _close_if_complete(self) -> None:
        current = self._state.open_round
        if current is not None and not current.open_rows():
            self._fit(float(current.seconds))

    def _fit(self, seconds_choosing: float) -> None:
        """Fit to all labels, measure, and write the history: the round is then closed."""
        number = len(self.history_)
        began = time.perf_counter()
        X, labels = self._training_rows()
        entry: dict[str, Any] = {"round": number, "n_labeled": len(labels), "n_asked": self.n_asked_}
        entry["seconds_choosing"] = round(seconds_choosing, 3)
        if X is not None:  # else every row of the first round was set aside, and the next one starts anew
            self._model = self._fit_model(X, labels)
            entry["seconds_fitting"] = round(time.perf_counter() - began, 3)
            entry |= self._measure(self._model)
        self._state.close_round(entry, self._model)
        if self.verbose:
            shown = entry.get("validation_log_likelihood")
            print(f"round {number}: {entry['n_labeled']} labels" + ("" if shown is None else f", {shown:.4f} nats"))
        self._check_stop()

    def _check_stop(self) -> None:
        if self.patience is not None and self.history_:
            best, since = -np.inf, 0
            for value in (entry["validation_log_likelihood"] for entry in self.history_ if entry["n_labeled"]):
                best, since = (value, 0) if value > best + self.tolerance else (best, since + 1)
            if since >= self.patience:
                self.stopped_ = "plateau"
        if self.stopped_ is None and self.n_asked_ >= self.budget:
            self.stopped_ = "budget"

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
        elif self.patience is not None:
            raise InputError(f"patience needs a model with log_prob; {type(model).__name__} has none.")
        table = self._check_labels(self.D_val)
        return figures | score(table / table.sum(axis=1, keepdims=True), np.asarray(model.predict(self.X_val)))

    def _training_rows(self) -> tuple[Any, Array]:
        """Features and labels of everything that is labelled; no features (None) where nothing is."""
        index, answers = self.labeled_, self.answers_
        if not len(index):
            return self.X_labeled, np.zeros((0, 2)) if self.D_labeled is None else self.D_labeled
        answered = self.pool.take(index)
        if self.X_labeled is None or self.D_labeled is None:
            return answered, answers
        return stack_rows([as_rows(self.X_labeled), answered]), np.concatenate([self.D_labeled, answers])

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
            "batch_sizes": self.batch_sizes,
            "votes": self.votes,
            "random_state": self.random_state,
        }
        return json.loads(json.dumps(about))


def _check_sizes(batch_size: int | Sequence[int]) -> list[int]:
    sizes = list(batch_size) if isinstance(batch_size, Sequence) else [batch_size]
    if not sizes:
        raise InputError("batch_size must hold at least one number.")
    return [check_count("batch_size", size) for size in sizes]


def check_pair(X: Any, D: Any, what: str) -> None:
    """Raise unless features and labels are both given or both not, with as many rows.

    Args:
        X: features, or None.
        D: labels, or None.
        what: the end of both names, for the message.

    Raises:
        InputError: they do not go together.
    """
    if (X is None) != (D is None):
        raise InputError(f"X_{what} and D_{what} go together; one of them is missing.")
    if X is not None and count_rows(as_rows(X)) != len(D):
        raise InputError(f"X_{what} has {count_rows(as_rows(X))} rows, D_{what} {len(D)}.")
