"""What is explained: the mean mix, the probability that one label beats another, a log-ratio, an interval's width."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from scipy import stats
from scipy.special import logit

from snefy_ldl._internal.dists import dist_blocks, to_numpy
from snefy_ldl._internal.rows import count_rows, take_rows
from snefy_ldl._internal.types import Array
from snefy_ldl._internal.validation import check_confidence
from snefy_ldl.errors import InputError, TableNote


@dataclass(frozen=True, eq=False)
class Quantity:
    """Numbers that a predicted distribution is asked for.

    Args:
        words: what they are, for an axis.
        labels: one name per number (Q).
        values: distribution of b rows -> (b, Q).
        quantiles: distribution and levels (A,) -> (b, Q, A), how the thing itself varies; None if nothing varies.
        bounds: smallest and largest value there can be.
        is_share: whether it is a share or a probability, which people read in percentage points.
        observe: the same of observed label distributions, (N, L) -> (N, Q), NaN if it is not known; None if it
            is not observed.

    Example:
        >>> choose_quantity("mean", ["sand", "clay"]).labels
        ['sand', 'clay']
    """

    words: str
    labels: list[str]
    values: Callable[[Any], Array]
    quantiles: Callable[[Any, Array], Array] | None
    bounds: tuple[float, float]
    is_share: bool
    observe: Callable[[Array], Array] | None = None


@dataclass(frozen=True, eq=False)
class Answer:
    """What models answer for some rows.

    Args:
        values: (N, Q).
        members: what each member answers (K, N, Q); K is 1 where there is nothing to compare.
        quantiles: (N, Q, A), if they were asked for.

    Example:
        >>> Answer(np.zeros((2, 3)), np.zeros((1, 2, 3))).members.shape
        (1, 2, 3)
    """

    values: Array
    members: Array
    quantiles: Array | None = None


def check_model(model: Any) -> None:
    """Refuse what cannot predict.

    Raises:
        InputError: the model has neither ``predict_dist`` nor ``predict``.
    """
    if not (hasattr(model, "predict_dist") or hasattr(model, "predict")):
        raise InputError(f"model must have predict_dist(X) or predict(X); got {type(model).__name__}.")


def label_names(model: Any, X: Any) -> list[str]:
    """Names of the labels.

    Args:
        model: a fitted model.
        X: rows to ask for the number of labels, if the model has no names.

    Returns:
        The names (L); "label 0", "label 1", ... if there are none.

    Example:
        >>> class Fair:
        ...     def predict(self, X):
        ...         return np.full((len(X), 2), 0.5)
        >>> label_names(Fair(), np.zeros((3, 1)))
        ['label 0', 'label 1']
    """
    names = getattr(model, "label_names_", None)
    if names is not None:
        return [str(name) for name in names]
    few = take_rows(X, np.arange(min(2, count_rows(X))))
    point = not hasattr(model, "predict_dist")
    n_labels = np.shape(model.predict(few))[1] if point else int(model.predict_dist(few).event_shape[0])
    return [f"label {number}" for number in range(n_labels)]


def choose_quantity(of: Any, labels: Sequence[str], confidence_level: float = 0.9) -> Quantity:
    """The numbers that ``of`` names.

    Args:
        of: "mean"; ("greater", a, b), the probability that the share of a exceeds that of b; ("log_ratio", a, b), the
            mean of log(a / b); or "width", of each share's central interval. Labels by name or number.
        labels: names of all labels (L).
        confidence_level: of the interval whose width is asked for.

    Returns:
        The quantity.

    Raises:
        InputError: there is no such quantity or label.

    Example:
        >>> choose_quantity(("log_ratio", "sand", 1), ["sand", "clay"]).labels
        ['log(sand / clay)']
    """
    names = [str(label) for label in labels]
    if of == "mean":
        return Quantity("mean share", names, lambda dist: to_numpy(dist.mean), _quantiles, (0.0, 1.0), True, np.asarray)
    if of == "width":
        level = check_confidence(confidence_level)
        tails = np.array([0.5 - level / 2, 0.5 + level / 2])
        words = f"width of the {level:.0%} interval"
        return Quantity(words, names, lambda dist: np.diff(_quantiles(dist, tails), axis=2)[..., 0], None, (0, 1), True)
    if isinstance(of, (tuple, list)) and len(of) == 3 and of[0] in ("greater", "log_ratio"):
        a, b = (label_number(label, names) for label in of[1:])
        if a == b:
            raise InputError(f"of={of!r}: name two different labels.")
        if of[0] == "greater":
            title = f"P({names[a]} > {names[b]})"
            values, is_larger = partial(_greater, a, b), partial(_is_larger, a, b)
            return Quantity(title, [title], values, None, (0, 1), True, is_larger)
        title = f"log({names[a]} / {names[b]})"
        ratio, quantiles = partial(_log_ratio, a, b), partial(_log_ratio_quantiles, a, b)
        return Quantity(title, [title], ratio, quantiles, (-np.inf, np.inf), False, partial(_observed_ratio, a, b))
    raise InputError(f'of={of!r}: use "mean", "width", ("greater", a, b) or ("log_ratio", a, b).')


def answer(model: Any, X: Any, quantity: Quantity, *, levels: Array | None = None) -> Answer:
    """Ask a model for a quantity.

    Args:
        model: whose members are asked too.
        X: rows (N, d).
        quantity: the quantity.
        levels: levels of the distribution's quantiles (A,); None for none.

    Returns:
        The answers.

    Example:
        >>> from snefy_ldl import SnefyLDL
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> model = SnefyLDL(epochs=1, n_members=2, random_state=0).fit(city.X, city.D)
        >>> answer(model, city.X, choose_quantity("mean", city.label_names)).members.shape
        (2, 60, 3)
    """
    with warnings.catch_warnings():  # the same table is used again and again; the first fit warned about it
        warnings.simplefilter("ignore", TableNote)
        if not hasattr(model, "predict_dist"):
            if quantity.words != "mean share" or levels is not None:
                raise InputError(f"{type(model).__name__} predicts means alone, without a distribution around them.")
            mean = np.asarray(model.predict(X), dtype=np.float64)
            return Answer(mean, mean[None])
        values, each, spread = [], [], []
        for _, dist in dist_blocks(model, X):
            values.append(quantity.values(dist))
            dists = dist.members() if hasattr(dist, "members") else [dist]
            each.append(np.stack([quantity.values(one) for one in dists]) if len(dists) > 1 else values[-1][None])
            if levels is not None:
                assert quantity.quantiles is not None
                spread.append(quantity.quantiles(dist, levels))
    return Answer(np.concatenate(values), np.concatenate(each, axis=1), np.concatenate(spread) if spread else None)


def label_number(label: Any, names: Sequence[str]) -> int:
    """The number of a label.

    Args:
        label: name or number.
        names: names of all labels (L).

    Returns:
        The number, from 0 to L - 1.

    Raises:
        InputError: there is no such label.

    Example:
        >>> label_number("clay", ["sand", "clay"]), label_number(-1, ["sand", "clay"])
        (1, 1)
    """
    if isinstance(label, str):
        if label not in names:
            raise InputError(f"there is no label {label!r}; the labels are {', '.join(names)}.")
        return names.index(label)
    if not isinstance(label, (int, np.integer)) or not -len(names) <= label < len(names):
        raise InputError(f"label {label!r}: use a name, or a number from 0 to {len(names) - 1}.")
    return int(label) % len(names)


def _quantiles(dist: Any, levels: Array) -> Array:
    return np.clip(to_numpy(dist.quantiles(levels)), 0.0, 1.0)


def _greater(a: int, b: int, dist: Any) -> Array:
    return to_numpy(dist.prob_greater(a, b))[:, None]


def _is_larger(a: int, b: int, shares: Array) -> Array:
    gap = (shares[:, a] - shares[:, b])[:, None]
    return np.where(np.isnan(gap), np.nan, 0.5 * (1.0 + np.sign(gap)))


def _observed_ratio(a: int, b: int, shares: Array) -> Array:
    two = np.where(shares[:, [a, b]] > 0.0, shares[:, [a, b]], np.nan)
    return np.log(two[:, :1] / two[:, 1:])


def _log_ratio(a: int, b: int, dist: Any) -> Array:
    logs = to_numpy(dist.expected_log())[:, [a, b]]
    if np.isinf(logs).any():
        raise InputError('labels that may be absent have no mean log-ratio; use of=("greater", a, b) instead.')
    return logs[:, :1] - logs[:, 1:]


def _log_ratio_quantiles(a: int, b: int, dist: Any, levels: Array) -> Array:
    """log(a / b) is the logit of a's share among the two."""
    shares = to_numpy(dist.subcomposition([a, b]).quantiles(levels))[:, :1]
    return np.asarray(logit(shares), dtype=np.float64)


def member_band(estimate: Array, members: Array, confidence_level: float) -> Array:
    """Where one more member of an ensemble would fall: ``estimate ± t · s``, s the members' standard deviation.

    Args:
        estimate: average over rows by all members together (Q,).
        members: the same by each member (K, Q), K at least 2.
        confidence_level: strictly between 0 and 1.

    Returns:
        Both ends of the bands (Q, 2); t is Student's with K - 1 degrees of freedom.

    Example:
        >>> member_band(np.array([1.0]), np.array([[0.0], [2.0]]), 0.5).round(3)
        array([[-0.414,  2.414]])
    """
    reach = stats.t.ppf(0.5 + confidence_level / 2, len(members) - 1) * members.std(axis=0, ddof=1)
    return np.stack([estimate - reach, estimate + reach], axis=-1)


def frame_html(frame: Any) -> str:
    """A DataFrame as a table for a notebook."""
    return str(frame.to_html(index=False, float_format="{:.4g}".format))


def as_frame(columns: Mapping[str, Any]) -> Any:
    """Columns (name -> cells) as a DataFrame.

    Example:
        >>> as_frame({"a": [1, 2]})["a"].tolist()
        [1, 2]
    """
    import pandas  # an extra

    return pandas.DataFrame(dict(columns))
