"""ActiveLearner: the loop of choosing, asking, fitting and measuring, in a folder that survives a crash.

Each round is one JSON file, renamed into place after every step: the rows to ask for are written before anyone is
asked, a row is marked before its question goes out, and an answer is written as soon as it is there.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from sklearn.base import clone

from snefy_ldl._types import Array, Index
from snefy_ldl.active.pool import Pool, stack_rows
from snefy_ldl.active.query import make_strategy
from snefy_ldl.active.strategies.features import Strategy
from snefy_ldl.errors import InputError, ModelFileError
from snefy_ldl.files.atomic import read_json, write_json
from snefy_ldl.metrics.points import score
from snefy_ldl.validation import check_count, check_counts, check_distributions, check_number
from snefy_ldl.validation.rows import as_rows, count_rows

#: Change it when a state folder would mean something else.
STATE_VERSION = 1

Oracle = Callable[[Index], Any]


class ActiveLearner:
    """Learn from as few labels as possible: choose rows, ask for their labels, fit, measure, until a stop.

    With an ``oracle`` (a function from row numbers to labels), :meth:`run` does it all. Where people answer at their
    own pace, :meth:`ask` gives the rows that are wanted, the same ones until they are answered, and :meth:`tell` takes
    the answers. With ``state_dir`` a process that was killed goes on where it was: build the learner again with the
    same arguments.

    Args:
        model: an unfitted model; each round fits a clone of it to all labels.
        X_pool: unlabelled rows, as for :func:`~snefy_ldl.active.query.query` (but no bare iterator).
        oracle: gets row numbers (k,) and returns their label distributions (k, L); None for ask and tell.
        strategy: a name or a strategy object.
        options: settings of a strategy given by name.
        budget: how many rows may be asked for.
        batch_size: rows a round; a list gives each round its own, the last one repeated.
        initial: rows of the first round, chosen by ``initial_strategy``; the batch size by default, 0 rows when
            ``X_labeled`` is given.
        initial_strategy: a strategy that needs no model.
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
        model_: the model fitted last.
        history_: one dict a round: labels, validation likelihood and the six measures, seconds.
        labeled_: row numbers with labels, in the order they came; ``answers_`` holds the labels.
        stopped_: why the loop ended: ``"budget"``, ``"plateau"``, ``"pool"``, or None while it has not.

    Example:
        >>> from snefy_ldl import SnefyLDL
        >>> from snefy_ldl.synthetic import make_city_districts
        >>> city = make_city_districts(n=200, random_state=0)
        >>> model = SnefyLDL(epochs=2, random_state=0)
        >>> learner = ActiveLearner(model, city.X, lambda rows: city.D[rows], "variance", budget=60, batch_size=20)
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
        initial_strategy: str | Strategy = "random",
        X_labeled: Any = None,
        D_labeled: Any = None,
        X_val: Any = None,
        D_val: Any = None,
        patience: int | None = None,
        tolerance: float = 0.0,
        votes: bool = False,
        ask_size: int = 1,
        interrupted: Literal["set_aside", "ask_again"] = "set_aside",
        state_dir: str | Path | None = None,
        random_state: int = 0,
        verbose: int = 0,
    ) -> None:
        self.model, self.oracle, self.votes, self.verbose = model, oracle, votes, verbose
        self.strategy = make_strategy(strategy, options)
        self.initial_strategy = make_strategy(initial_strategy)
        self.budget = check_count("budget", budget)
        sizes = list(batch_size) if isinstance(batch_size, Sequence) else [batch_size]
        if not sizes:
            raise InputError("batch_size must hold at least one number.")
        self.batch_sizes = [check_count("batch_size", size) for size in sizes]
        self.ask_size = check_count("ask_size", ask_size)
        self.patience = None if patience is None else check_count("patience", patience)
        self.tolerance = check_number("tolerance", tolerance)
        if interrupted not in ("set_aside", "ask_again"):
            raise InputError(f'interrupted={interrupted!r}: use "set_aside" or "ask_again".')
        self.interrupted = interrupted
        self.random_state = check_count("random_state", random_state, low=0)  # a number, so that a run can go on
        if self.initial_strategy.needs_model:
            raise InputError("initial_strategy chooses before there is a model; use random, kmeans or coreset.")
        self._check_given(X_labeled, D_labeled, "labeled")
        self._check_given(X_val, D_val, "val")
        if patience is not None and X_val is None:
            raise InputError("patience needs X_val and D_val: the stopping rule looks at the validation likelihood.")
        self.X_labeled, self.X_val, self.D_val = X_labeled, X_val, D_val
        self.D_labeled = None if D_labeled is None else self._labels(D_labeled, None)
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
        self.folder = None if state_dir is None else Path(state_dir)
        self.model_: Any = None
        self.history_: list[dict[str, Any]] = []
        self.rounds_: list[dict[str, Any]] = []
        self.stopped_: str | None = None
        if self.folder is not None:
            self._resume(self.folder)

    # -- what is known -----------------------------------------------------------------------------------------------

    @property
    def labeled_(self) -> Index:
        """Row numbers of the pool that have labels, in the order they came."""
        return np.array([row for one in self.rounds_ for row in one["answered"]], dtype=np.intp)

    @property
    def answers_(self) -> Array:
        """Their labels (k, L)."""
        rows = [answer for one in self.rounds_ for answer in one["answers"]]
        return np.array(rows, dtype=np.float64) if rows else np.zeros((0, 0))

    @property
    def unanswered_(self) -> Index:
        """Row numbers that were asked for and set aside without an answer."""
        return np.array([row for one in self.rounds_ for row in one["set_aside"]], dtype=np.intp)

    @property
    def n_asked_(self) -> int:
        """Rows that were chosen so far, which is what the budget counts."""
        return sum(len(one["rows"]) for one in self.rounds_)

    # -- the loop ----------------------------------------------------------------------------------------------------

    def run(self, max_rounds: int | None = None) -> ActiveLearner:
        """Go on until the budget, a plateau or the end of the pool, or for some rounds."""
        if self.oracle is None:
            raise InputError("run needs an oracle; without one use ask() and tell(rows, labels).")
        left = None if max_rounds is None else check_count("max_rounds", max_rounds)
        while left != 0 and len(rows := self.ask()):
            for start in range(0, len(rows), self.ask_size):
                part = rows[start : start + self.ask_size]
                self._mark_out(part.tolist())
                try:
                    self.tell(part, self.oracle(part))
                except Exception:
                    self._mark_out([])  # the oracle itself says it failed, so that asking again is no surprise to it
                    raise
            left = None if left is None else left - 1
        return self

    def ask(self) -> Index:
        """Row numbers whose labels are wanted now: the same until :meth:`tell`; none when the loop has ended."""
        if self.stopped_ is None and self._open_round() is None:
            self._next_round()
        current = self._open_round()
        if current is None:
            return np.zeros(0, dtype=np.intp)
        done = {*current["answered"], *current["set_aside"]}
        return np.array([row for row in current["rows"] if row not in done], dtype=np.intp)

    def tell(self, rows: Any, labels: Any) -> ActiveLearner:
        """Take the labels of rows that were asked for; when a round is complete, the model is fitted and measured.

        Args:
            rows: row numbers (k,), of the present round or set aside earlier.
            labels: their label distributions, or votes, (k, L).
        """
        index = np.atleast_1d(np.asarray(rows)).astype(np.intp)
        table = self._labels(labels, len(index))
        known = set(self.labeled_.tolist())
        for row in index.tolist():
            if row in known or index.tolist().count(row) > 1:
                raise InputError(f"row {row} already has its label.")
            if not any(row in one["rows"] for one in self.rounds_):
                raise InputError(f"row {row} was not asked for.")
        for row, answer in zip(index.tolist(), table.tolist()):
            home = next(one for one in self.rounds_ if row in one["rows"])
            for key in ("set_aside", "out"):
                home[key] = [other for other in home[key] if other != row]
            home["answered"].append(row)
            home["answers"].append(answer)
        for number in {next(k for k, one in enumerate(self.rounds_) if row in one["rows"]) for row in index.tolist()}:
            self._write_round(number)
        self._close_if_complete()
        return self

    def _mark_out(self, rows: list[int]) -> None:
        """Note on disk which question is about to go out."""
        current = self._open_round()
        if current is not None:
            current["out"] = rows
            self._write_round()

    def rows(self, indices: Any) -> Any:
        """Features of some rows of the pool, to show to whoever labels them."""
        return self.pool.take(np.asarray(indices, dtype=np.intp))

    # -- one round ---------------------------------------------------------------------------------------------------

    def _open_round(self) -> dict[str, Any] | None:
        """The round that has no entry in the history yet."""
        return self.rounds_[-1] if len(self.rounds_) > len(self.history_) else None

    def _next_round(self) -> None:
        number = len(self.rounds_)
        first = self.initial != 0 and not len(self.labeled_) and (number == 0 or self.X_labeled is None)
        if number == 0 and self.initial == 0:
            self._fit([], 0.0)  # a starting point for the history, and the model that chooses the first batch
            number = len(self.rounds_)
        given = self.initial is not None and self.initial > 0
        later = number - 1 if given or self.initial == 0 else number
        size = self.initial if first and given else self.batch_sizes[min(later, len(self.batch_sizes) - 1)]
        assert size is not None
        taken = np.zeros(self.n_pool, dtype=bool)
        taken[[row for one in self.rounds_ for row in one["rows"]]] = True
        size = min(size, self.budget - self.n_asked_, int((~taken).sum()))
        if self.stopped_ is not None or size < 1:
            self.stopped_ = self.stopped_ or ("budget" if self.n_asked_ >= self.budget else "pool")
            return
        chooser = self.initial_strategy if first else self.strategy
        began = time.perf_counter()
        seed = np.random.RandomState(np.random.SeedSequence([self.random_state, number]).generate_state(4))
        model = None if first else self._current_model()
        known, _ = self._training_rows() if not first or self.X_labeled is not None else (None, None)
        chosen, utilities = chooser.choose(
            self.pool, size, model=model, X_labeled=known, random=seed, exclude=taken if taken.any() else None
        )
        values = [None if not np.isfinite(value) else float(value) for value in utilities[chosen]]
        self.rounds_.append(_round(number, chosen.tolist(), values, time.perf_counter() - began))
        self._write_round()

    def _close_if_complete(self) -> None:
        current = self._open_round()
        if current is None or len(current["answered"]) + len(current["set_aside"]) < len(current["rows"]):
            return
        self._fit(current["rows"], float(current["seconds"]))

    def _fit(self, rows: list[int], choosing: float) -> None:
        """Fit to all labels, measure, and write the history: the round is then closed."""
        if not rows:
            self.rounds_.append(_round(0, [], [], 0.0))
            self._write_round()
        number = len(self.history_)
        began = time.perf_counter()
        X, labels = self._training_rows()
        entry: dict[str, Any] = {"round": number, "n_labeled": len(labels), "n_asked": self.n_asked_}
        entry["seconds_choosing"] = round(choosing, 3)
        if X is not None:  # else every row of the first round was set aside, and the next one starts anew
            self.model_ = self._fitted(X, labels)
            entry["seconds_fitting"] = round(time.perf_counter() - began, 3)
            entry |= self._measure()
        if self.folder is not None and hasattr(self.model_, "save"):
            self.model_.save(self.folder / f"model-{number:04d}")
        self.history_.append(entry)
        if self.folder is not None:
            write_json(self.folder / "history.json", self.history_)
            for old in self.folder.glob("model-*"):
                if old.name != f"model-{number:04d}":
                    shutil.rmtree(old, ignore_errors=True)
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

    def _training_rows(self) -> tuple[Any, Array]:
        """Features and labels of everything that is labelled."""
        index, answers = self.labeled_, self.answers_
        if not len(index):
            return self.X_labeled, np.zeros((0, 2)) if self.D_labeled is None else self.D_labeled
        own = self.pool.take(index)
        if self.X_labeled is None or self.D_labeled is None:
            return own, answers
        return stack_rows([as_rows(self.X_labeled), own]), np.concatenate([self.D_labeled, answers])

    def _fitted(self, X: Any, labels: Array) -> Any:
        model = clone(self.model)
        if "random_state" in model.get_params() and model.random_state is None:
            model.set_params(random_state=self.random_state)  # or a run could not be repeated
        return model.fit(X, counts=labels) if self.votes else model.fit(X, labels)

    def _current_model(self) -> Any:
        if self.model_ is None:
            folder = None if self.folder is None else self.folder / f"model-{len(self.history_) - 1:04d}"
            if folder is not None and folder.is_dir() and hasattr(type(self.model), "load"):
                try:
                    self.model_ = type(self.model).load(folder)
                except ModelFileError:  # its code is not saved, or the disk lost it: fit again
                    self.model_ = None
            if self.model_ is None:
                self.model_ = self._fitted(*self._training_rows())
        return self.model_

    def _measure(self) -> dict[str, float]:
        if self.X_val is None:
            return {}
        found = {}
        if hasattr(self.model_, "log_prob"):
            given = {"counts": self.D_val} if self.votes else {"D": self.D_val}
            found["validation_log_likelihood"] = float(np.mean(self.model_.log_prob(self.X_val, **given)))
        elif self.patience is not None:
            raise InputError(f"patience needs a model with log_prob; {type(self.model_).__name__} has none.")
        table = self._labels(self.D_val, None)
        return found | score(table / table.sum(axis=1, keepdims=True), np.asarray(self.model_.predict(self.X_val)))

    # -- state -------------------------------------------------------------------------------------------------------

    def _resume(self, folder: Path) -> None:
        """Read the folder, or start it."""
        about, path = self._about(), folder / "learner.json"
        if not path.is_file():
            if folder.exists() and (folder.is_file() or any(folder.iterdir())):
                raise InputError(f"{folder} holds no active learner's state and was left alone; choose another folder.")
            write_json(path, about)
            return
        before = read_json(path)
        for key, value in about.items():
            if before.get(key) != value:
                raise InputError(
                    f"{folder} was made with another {key} ({before.get(key)!r}; now {value!r}). "
                    "Use the same arguments to go on, or another folder to start afresh."
                )
        for file in sorted(folder.glob("round-*.json")):
            self.rounds_.append(read_json(file))
        history = folder / "history.json"
        self.history_ = read_json(history) if history.is_file() else []
        if len(self.rounds_) < len(self.history_) or any(one["round"] != k for k, one in enumerate(self.rounds_)):
            raise ModelFileError(f"{folder} is damaged: its rounds and its history do not belong together.")
        current = self._open_round()
        if current is not None:
            lost = [row for row in current["out"] if row not in current["answered"]]
            current["out"] = []
            if self.interrupted == "set_aside":
                current["set_aside"] += lost
            self._write_round()
        if current is not None and not current["rows"]:
            self.rounds_.pop()  # the starting fit without a batch was cut off: it is simply made again
        elif current is not None:
            self._close_if_complete()
        self._check_stop()

    def _about(self) -> dict[str, Any]:
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
            "initial_strategy": repr(self.initial_strategy),
            "initial": self.initial,
            "batch_sizes": self.batch_sizes,
            "votes": self.votes,
            "random_state": self.random_state,
        }
        return json.loads(json.dumps(about))  # type: ignore[no-any-return]

    def _write_round(self, number: int | None = None) -> None:
        if self.folder is not None:
            number = len(self.rounds_) - 1 if number is None else number
            write_json(self.folder / f"round-{number:04d}.json", self.rounds_[number])

    def _labels(self, labels: Any, n_rows: int | None) -> Array:
        if self.votes:
            return check_counts(labels, n_rows=n_rows)[0]
        return check_distributions(labels, n_rows=n_rows)[0]

    def _check_given(self, X: Any, D: Any, what: str) -> None:
        if (X is None) != (D is None):
            raise InputError(f"X_{what} and D_{what} go together; one of them is missing.")
        if X is not None and count_rows(as_rows(X)) != len(D):
            raise InputError(f"X_{what} has {count_rows(as_rows(X))} rows, D_{what} {len(D)}.")


def _round(number: int, rows: list[int], utilities: list[float | None], seconds: float) -> dict[str, Any]:
    """A fresh round: whom to ask, who was asked and has not answered, who is given up on, and the answers."""
    return {
        "round": number,
        "rows": rows,
        "utilities": utilities,
        "seconds": seconds,
        "out": [],
        "set_aside": [],
        "answered": [],
        "answers": [],
    }
