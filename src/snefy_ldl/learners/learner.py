"""The contract every learner keeps: checks, names in and out, scores, and files without pickle.

A learner states its objective in ``_fit`` and its answer in ``_predict``; both see clean float64 arrays only.
"""

from __future__ import annotations

import json
import numbers
import os
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import scipy.sparse as sp
from scipy.special import rel_entr
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted, validate_data

from snefy_ldl._internal.random import numpy_random
from snefy_ldl._internal.text import plain_names
from snefy_ldl._internal.threads import few_threads
from snefy_ldl._internal.types import Array
from snefy_ldl._internal.validation import (
    check_choice,
    check_count,
    check_distributions,
    check_features,
    check_number,
    check_same_index,
)
from snefy_ldl.datasets.cells import frame_of, is_frame
from snefy_ldl.datasets.columns import TableEncoder, has_gaps, learn_columns, read_encoder
from snefy_ldl.errors import InputError, ModelFileError, TrainingError
from snefy_ldl.persistence import Asked, read_model, save
from snefy_ldl.prediction import Estimator

#: Every learner class by name; a saved name outside it is refused.
REGISTRY: dict[str, type[Learner]] = {}
#: Hyperparameters that are whole numbers >= 2; >= 1, as are others that start with ``n_``; numbers > 0; numbers >= 0.
PARTS = frozenset({"n_folds", "n_parts"})
COUNTS = frozenset({"batch_size", "depth", "epochs", "max_iter", "min_leaf"})
POSITIVE = frozenset(
    {
        "C",
        "concentration",
        "floor",
        "learning_rate",
        "margin",
        "ridge",
        "sharpness",
        "temperature",
        "tol",
        "var_smoothing",
        "votes",
    }
)
NOT_NEGATIVE = frozenset({"alpha", "beta", "l2", "overlap", "smoothness", "strength", "subtask_weight", "weight"})
#: More features, or labels, than a file can reasonably name.
MOST_FEATURES, MOST_LABELS = 10**7, 10**6
#: What a fit leaves behind that may hold NaN.
MAY_HAVE_GAPS = ("out_of_bag_",)
#: No learner predicts a smaller share than this, so that logarithms of predictions always exist.
PREDICTED_SHARE_FLOOR = 1e-12
Self = TypeVar("Self", bound="Learner")


def is_fitted_name(name: str) -> bool:
    """Whether an attribute is part of what a fit leaves behind, by scikit-learn's convention."""
    return name.endswith("_") and not name.startswith("_")


def pack_learner(learner: Learner, arrays: dict[str, Any], prefix: str) -> dict[str, Any]:
    """A fitted learner as plain JSON values, its arrays added to others.

    Args:
        learner: a fitted learner.
        arrays: where its arrays go.
        prefix: of their names.

    Returns:
        What :func:`unpack_learner` takes.

    Raises:
        ModelFileError: a hyperparameter cannot be written as JSON.
    """
    fitted: dict[str, Any] = {}
    for name, value in learner.stored().items():
        if isinstance(value, np.ndarray) and value.dtype.kind in "OU":
            fitted[name] = {"names": [str(v) for v in value]}
        elif isinstance(value, np.ndarray):
            arrays[prefix + name] = np.ascontiguousarray(value)
        else:
            fitted[name] = _pack_value(value, name, arrays, f"{prefix}{name}.")
    params = {
        name: {"value": None}  # a generator object as random_state has no place in a file
        if name == "random_state" and not isinstance(value, numbers.Integral)
        else _pack_value(value, name, arrays, f"{prefix}{name}:param.")
        for name, value in learner.get_params(deep=False).items()
    }
    return {"class": _file_name(type(learner)), "prefix": prefix, "params": params, "fitted": fitted}


def _pack_value(value: Any, name: str, arrays: dict[str, Any], prefix: str) -> dict[str, Any]:
    if isinstance(value, Learner):
        return {"learner": pack_learner(value, arrays, prefix)}
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, TableEncoder):
        value = value.to_dict()
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        raise ModelFileError(f"{name}={value!r} cannot be written as JSON; save needs plain hyperparameters.") from None
    return {"value": value}


def _file_name(cls: type) -> str:
    """The name of a class in model files; a user's class never takes the name of one of this package."""
    return cls.__name__ if cls.__module__.startswith("snefy_ldl.") else f"own.{cls.__name__}"


def unpack_learner(state: dict[str, Any], arrays: dict[str, Any]) -> Learner:
    """The learner that :func:`pack_learner` described.

    Args:
        state: its description.
        arrays: all arrays, its own among them.

    Returns:
        A fitted learner.

    Raises:
        ModelFileError: the description names a learner that is not known here, or an entry that no fit leaves behind.
    """
    if state["class"] not in REGISTRY:
        raise ModelFileError(f"unknown learner {state['class']!r}; define or import your own classes before loading.")

    def read(entry: dict[str, Any]) -> Any:
        if "learner" in entry:
            return unpack_learner(entry["learner"], arrays)
        return np.array(entry["names"], dtype=object) if "names" in entry else entry["value"]

    learner = REGISTRY[state["class"]](**{name: read(entry) for name, entry in state["params"].items()})
    for name, entry in state["fitted"].items():
        if not is_fitted_name(name):
            raise ModelFileError(f"{state['prefix']}{name} is not what a fit leaves behind.")
        value = read(entry)
        if name == "columns_":
            value = read_encoder(value)
        setattr(learner, name, value)
    prefix = state["prefix"]
    for key, value in arrays.items():
        name = key.removeprefix(prefix)
        if key.startswith(prefix) and is_fitted_name(name) and "." not in name:
            setattr(learner, name, value)
    learner.restore()
    if hasattr(learner, "n_labels_"):
        if (damage := learner.find_damage()) is not None:
            raise ModelFileError(f"{prefix}{damage}.")
        learner.after_load()
        if (damage := learner.find_silence()) is not None:
            raise ModelFileError(f"{prefix.rstrip('.') or state['class']} {damage}.")
    return learner


def check_hyperparameters(learner: Learner) -> None:
    """Check hyperparameters by their names, and those that are one of a few words by what their class allows.

    None and "auto" are allowed if they are the default.

    Args:
        learner: Any learner; names that are in no rule are left to itself.

    Raises:
        InputError: A value is outside its range.
    """
    kind = type(learner)
    choices = {name: words for cls in reversed(kind.__mro__) for name, words in vars(cls).get("_choices", {}).items()}
    for name, value in learner.get_params(deep=False).items():
        default = getattr(kind, name, value)
        if name in choices:
            check_choice(name, value, choices[name])
        elif default is None and value is None:
            continue
        elif name in COUNTS or (name.startswith("n_") and name != "n_jobs"):
            check_count(name, value, low=2 if name in PARTS else 1)
        elif name in POSITIVE or name in NOT_NEGATIVE:
            sign = ">" if name in POSITIVE else ">="
            if default == "auto" and isinstance(value, str):
                if value != "auto":
                    raise InputError(f'{name}={value!r}: use "auto" or a number {sign} 0.')
                continue
            check_number(name, value, strict=name in POSITIVE)


def share_floor(D: Array) -> float:
    """Where predicted shares are lifted to: half the smallest positive observed one, at most 1e-12.

    Args:
        D: Label distributions (N, L), NaN if unknown.

    Returns:
        :data:`PREDICTED_SHARE_FLOOR`, or less if observed shares are as small as that.

    Example:
        >>> share_floor(np.array([[0.5, 0.5]])), share_floor(np.array([[1.0, 4e-14]]))
        (1e-12, 2e-14)
    """
    smallest = float(np.min(D, initial=1.0, where=D > 0.0))
    return min(smallest / 2.0, PREDICTED_SHARE_FLOOR) or smallest


def close_rows(P: Array, floor: float = PREDICTED_SHARE_FLOOR) -> Array:
    """Rows lifted to at least a floor and divided by their sums.

    Args:
        P: Shares that need not sum to one, (N, L).
        floor: Smallest share before that division.

    Returns:
        Positive rows that sum to one, (N, L).

    Example:
        >>> close_rows(np.array([[1.0, 3.0]]))
        array([[0.25, 0.75]])
    """
    P = np.maximum(P, floor)
    return P / P.sum(axis=1, keepdims=True)


class Learner(Estimator, ABC):
    """Base of all label distribution learners.

    Subclasses write ``_check_params()``, ``_fit(X, D, random)`` and ``_predict(X)``. Everything a fit leaves behind
    ends in an underscore and is an array, a plain value or another learner: that is what :meth:`save` writes.

    Attributes:
        n_features_in_: d.
        feature_names_in_: Names of the features, where ``fit`` saw a DataFrame.
        columns_: What makes numbers of a table with text or gaps (:mod:`snefy_ldl.datasets.columns`), or None.
        n_labels_: L.
        label_names_: Names of the labels, or None.
        share_floor_: Smallest share that is predicted, before rows are closed.

    Example:
        >>> from snefy_ldl.learners import AAKNN
        >>> isinstance(AAKNN(n_neighbors=1).fit([[0.0], [1.0]], [[0.2, 0.8], [0.4, 0.6]]), Learner)
        True
    """

    n_features_in_: int
    feature_names_in_: Any

    #: For learners that draw nothing, and so have no such argument.
    random_state: Any = None
    #: What the columns of a table are; a learner with this argument keeps what makes numbers of any table.
    columns: Any = None
    columns_: TableEncoder | None = None
    #: Where predicted shares are lifted to; a fit lowers it if observed shares are as small.
    share_floor_: float = PREDICTED_SHARE_FLOOR

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        REGISTRY[_file_name(cls)] = cls

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = True
        tags.target_tags.required = True
        tags.target_tags.multi_output = True
        return tags

    # What a learner states ------------------------------------------------------------------------------------------

    #: What each hyperparameter that is one of a few words may be; of all base classes together.
    _choices: ClassVar[dict[str, tuple[Any, ...]]] = {}

    def _check_params(self) -> None:
        """Raise InputError for a hyperparameter outside its range."""
        check_hyperparameters(self)

    @abstractmethod
    def _fit(self, X: Array, D: Array, random: np.random.RandomState) -> None:
        """Learn from clean arrays, and from what :meth:`fit` of a subclass passes on."""

    @abstractmethod
    def _predict(self, X: Array) -> Array:
        """Shares (N, L) of clean features."""

    def stored(self) -> dict[str, Any]:
        """What a file holds of a fit, by name: all that it left behind, or the same in a shorter form."""
        return {name: value for name, value in vars(self).items() if is_fitted_name(name)}

    def restore(self) -> None:
        """Undo the shorter form of :meth:`stored`; called as soon as a file is read."""

    def after_load(self) -> None:
        """Rebuild what is derived from the saved arrays (a search tree, say); called by :meth:`load`."""

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of arrays that a fit leaves behind, by name; files are held against them."""
        return {}

    def _find_damage(self) -> str | None:
        """What else is wrong with arrays of the right shapes that were read from a file, in words."""
        return None

    # The shared contract --------------------------------------------------------------------------------------------

    def fit(self: Self, X: Any, D: Any = None, *, y: Any = None) -> Self:
        """Learn from features and label distributions.

        Args:
            X: Features (N, d): array, DataFrame (text and gaps are read) or sparse matrix; NaN is a missing cell.
            D: Label distributions (N, L), rows that sum to one; the names of a DataFrame come back out of ``predict``.
            y: Another name of D.

        Returns:
            The learner itself.

        Raises:
            InputError: Rows, labels or hyperparameters that break a rule.
        """
        return self._fit_to(X, y if D is None else D)

    def _fit_to(self: Self, X: Any, D: Any, **more: Any) -> Self:
        """Check the tables, and learn from them and from what else there is."""
        self._check_params()
        columns = learn_columns(X, self.columns or "auto") if is_frame(X) or has_gaps(X) else None
        if columns is not None:
            columns.tell_left_out()
        features = _dense(check_features(X) if columns is None else columns.transform(X))
        check_same_index(X, D)
        labels, names = check_distributions(D, n_rows=features.shape[0])
        for name in [name for name in vars(self) if is_fitted_name(name)]:
            delattr(self, name)
        self._check_columns(X, reset=True)
        if columns is not None and (self.columns is not None or columns.has_gaps or not columns.is_plain):
            self.columns_ = columns
        self.n_labels_ = labels.shape[1]
        self.label_names_ = names
        if (floor := share_floor(labels)) < PREDICTED_SHARE_FLOOR:
            self.share_floor_ = floor
        with few_threads(features.size):
            self._fit(features, np.ascontiguousarray(labels), numpy_random(self.random_state), **more)
        return self

    def predict(self, X: Any) -> Any:
        """Predicted label distributions.

        Args:
            X: Features (N, d).

        Returns:
            Positive rows that sum to one, (N, L); a DataFrame when the labels of ``fit`` came as one.

        Raises:
            InputError: Rows that break a rule, or other features than those of ``fit``.
            TrainingError: The fitted weights give a share that is not a finite number.
        """
        return self._named(self._predict_array(self._check_X(X)), X)

    def score(self, X: Any, D: Any) -> float:
        """Minus the mean Kullback-Leibler divergence ``KL(D ‖ predict(X))``: larger is better, 0 is perfect.

        Args:
            X: Features (N, d).
            D: Observed label distributions (N, L).

        Returns:
            A number of at most 0.

        Raises:
            InputError: Rows or labels that break a rule.
        """
        check_same_index(X, D)
        features = self._check_X(X)
        labels, _ = check_distributions(D, n_rows=features.shape[0], n_labels=self.n_labels_, model=self)
        return -mean_kl(labels, self._predict_array(features))

    def _predict_array(self, features: Array) -> Array:
        shares = self._predict(features)
        if not np.isfinite(shares).all():
            row, label = (int(i) for i in np.argwhere(~np.isfinite(shares))[0])
            raise TrainingError(
                f"{type(self).__name__} predicts {shares[row, label]} for label {label} of row {row}: its weights grew "
                "without bound. Fit it again with a larger l2, or leave out labels that no row uses."
            )
        return close_rows(shares, self.share_floor_)

    def _check_X(self, X: Any) -> Array:
        check_is_fitted(self, "n_labels_")
        if self.columns_ is not None:
            return _dense(self.columns_.transform(X))
        features = _dense(check_features(X))
        self._check_columns(X, reset=False)
        return features

    def _check_columns(self, X: Any, *, reset: bool) -> None:
        """Remember the number and the names of the features, or hold new ones against them."""
        try:
            validate_data(self, X, reset=reset, skip_check_array=True)
        except ValueError as error:
            raise InputError(str(error)) from None

    def _named(self, P: Array, X: Any) -> Any:
        if self.label_names_ is None:
            return P
        return frame_of(P, plain_names(self.label_names_), X)

    def find_damage(self) -> str | None:
        """What no fit leaves behind in what was read from a file.

        Returns:
            A few words that begin with the entry's name; None if nothing is wrong.
        """
        for name, most in (("n_features_in_", MOST_FEATURES), ("n_labels_", MOST_LABELS)):
            value = getattr(self, name, None)
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
                return f"{name} is {shorten_text(value)}, not a whole number from 1 to {most}"
        names = getattr(self, "label_names_", ())
        if names is not None and (not isinstance(names, list) or len(names) != self.n_labels_):
            return f"label_names_ does not hold {self.n_labels_} names"
        try:
            self._check_params()
        except Exception as error:  # what a wrong type meets depends on the learner
            return f"params do not fit {type(self).__name__}: {shorten_text(error)}"
        for name, value in vars(self).items():
            if name in MAY_HAVE_GAPS or not isinstance(value, np.ndarray) or value.dtype.kind != "f":
                continue
            if not np.isfinite(value).all():
                return f"{name} holds numbers that are not finite"
        for name, shape in self._shapes().items():
            value = getattr(self, name, None)
            if not isinstance(value, np.ndarray):
                return f"{name} is missing"
            if value.shape != shape:
                return f"{name} has shape {value.shape}, not {shape}"
        return self._find_damage()

    def find_silence(self) -> str | None:
        """Why a learner that was read from a file does not answer, in words; None if it does."""
        try:
            answer = self._predict_array(np.zeros((1, self._width)))
        except InputError:  # an answer, too: some learners predict only the rows they were fitted to
            return None
        except Exception as error:  # what a damaged learner meets depends on the learner
            return f"does not answer: {type(error).__name__}: {shorten_text(error)}"
        return None if answer.shape == (1, self.n_labels_) else f"answers for {answer.shape[1:]} labels"

    @property
    def _width(self) -> int:
        """How many numbers a row has, once text and gaps are read."""
        return int(self.n_features_in_) if self.columns_ is None else self.columns_.n_out

    # Files ----------------------------------------------------------------------------------------------------------

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write the fitted learner to a folder: safetensors arrays and ``model.json``, no pickle.

        Args:
            folder: Where; a learner that is there is replaced, anything else is left alone.

        Returns:
            The folder.

        Raises:
            ModelFileError: The folder holds something else, or a hyperparameter cannot be written.
        """
        check_is_fitted(self, "n_labels_")
        place = Path(folder)
        visible = [path for path in place.glob("*") if not path.name.startswith(".")]
        if visible and not (place / "model.json").is_file():
            raise ModelFileError(f"{folder} exists and holds no saved model; it was left alone. Choose another folder.")
        return save(self, "Learner", place)

    def pack(self, arrays: dict[str, Any]) -> dict[str, Any]:
        """What JSON holds of the learner; its arrays are put into a dict (:mod:`snefy_ldl.persistence`)."""
        return {"learner": pack_learner(self, arrays, "")}

    @classmethod
    def unpack(cls: type[Self], config: dict[str, Any], arrays: dict[str, Any], asked: Asked) -> Self:
        """The learner that :meth:`pack` packed; raises for one of another class."""
        try:
            learner = unpack_learner(config["learner"], {name: value.numpy() for name, value in arrays.items()})
            if not hasattr(learner, "n_labels_"):
                raise ModelFileError("n_labels_ is missing.")
        except ModelFileError as error:
            raise ModelFileError(f"{asked.folder} is damaged: {error}") from None
        except Exception as error:  # what a damaged learner meets depends on the learner
            raise ModelFileError(f"{asked.folder} is damaged: {type(error).__name__}: {error}.") from None
        if not isinstance(learner, cls):
            raise ModelFileError(f"{asked.folder} holds a {type(learner).__name__}, not a {cls.__name__}.")
        return learner

    @classmethod
    def load(cls: type[Self], folder: str | os.PathLike[str]) -> Self:
        """Read a learner that :meth:`save` wrote; nothing in the folder is executed.

        Args:
            folder: Where it is.

        Returns:
            The fitted learner.

        Raises:
            ModelFileError: The folder is missing, damaged, foreign, of a newer version or of another learner.
        """
        config, arrays = read_model(Path(folder))
        if config["kind"] != "Learner":
            raise ModelFileError(f"{folder} holds a {config['kind']}, not a {cls.__name__}.")
        return cls.unpack(config, arrays, Asked(Path(folder)))


def shorten_text(value: Any) -> str:
    """A value in one line of at most 80 characters.

    >>> shorten_text([1, 2])
    '[1, 2]'
    """
    text = " ".join((str(value) if isinstance(value, Exception) else repr(value)).split())
    return text if len(text) <= 80 else f"{text[:77]}..."


def mean_kl(D: Array, P: Array) -> float:
    """Mean over rows of ``Σ_j d_j log(d_j / p_j)``, with ``0 log 0 = 0``.

    Args:
        D: Observed label distributions, (N, L).
        P: Predicted ones, positive, (N, L).

    Returns:
        The divergence in nats.

    Example:
        >>> round(mean_kl(np.array([[0.5, 0.5]]), np.array([[0.2, 0.8]])), 3)
        0.223
    """
    return float(rel_entr(D, P).sum(axis=1).mean())


def seeded_clone(model: Any, seed: int, keep: bool = False) -> Any:
    """A clone of a model with a seed for every random part of it; ``keep`` leaves seeds that were set."""
    copy = clone(model)
    seeds = {name: old for name, old in copy.get_params().items() if f"__{name}".endswith("__random_state")}
    return copy.set_params(**{name: seed for name, old in seeds.items() if old is None or not keep})


def _dense(X: Any) -> Array:
    """A C-ordered array: memory order would otherwise change the last bits of matrix products."""
    return np.ascontiguousarray(sp.csr_matrix(X).toarray() if sp.issparse(X) else X)
