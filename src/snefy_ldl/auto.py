"""Which density: SnefyLDL or LogRatioLDL, by the likelihood of rows that neither has seen."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, Literal

import numpy as np
from sklearn.base import clone
from sklearn.model_selection import KFold

from snefy_ldl._internal.model_files import read_head
from snefy_ldl._internal.random import numpy_random
from snefy_ldl._internal.rows import as_rows, take_rows
from snefy_ldl._internal.types import Array
from snefy_ldl._internal.validation import check_choice, check_distributions
from snefy_ldl.errors import InputError, TableNote, TrainingWarning
from snefy_ldl.logratio import LogRatioLDL
from snefy_ldl.snefy import SnefyLDL, fit_folds

__all__ = ["ANSWERS", "fit_density", "load_density"]

#: Rows above which the two densities are compared on one fold only.
MANY_ROWS = 5_000
#: Rows below which nothing can be compared.
FEWEST_ROWS = 12
#: Standard errors of a lead that ends the comparison before all parts were left out, and rows that it takes at least.
CLEAR_LEAD, CLEAR_ROWS = 4.0, 100
#: Standard errors by which the log-ratio density must lead: the other one answers more questions.
LEAST_LEAD = 1.0
#: What each density can answer that the other cannot.
ANSWERS = {
    "snefy": "exact means, intervals and sums of shares; votes, gaps in labels, and shares of exactly zero",
    "logratio": "exact laws of log-ratios and of ratios of shares; means and intervals of shares by 4,096 quasi-random "
    "draws; no votes, no zeros, no joint law of sums of shares",
}


def fit_density(
    X: Any,
    D: Any = None,
    density: Literal["auto", "snefy", "logratio"] = "auto",
    *,
    counts: Any = None,
    cv: int = 5,
    random_state: Any = None,
    snefy: SnefyLDL | None = None,
    logratio: LogRatioLDL | None = None,
) -> Any:
    """Fit the density that suits the rows: :class:`~snefy_ldl.SnefyLDL` or :class:`~snefy_ldl.LogRatioLDL`.

    ``"auto"`` fits both without each of ``cv`` parts of the rows (one part of more than 5,000 rows), compares the log
    densities of the parts left out, row by row, until one density leads by far, and fits the better one to all rows.
    The log-ratio density must lead by one standard error, since it answers fewer questions. With zeros, votes or
    unknown shares there is nothing to compare: ``SnefyLDL`` is fitted.

    Args:
        X: Features (N, d), as :meth:`SnefyLDL.fit` takes them.
        D: Label distributions (N, L); or ``counts``.
        density: "auto", or the density to fit without a comparison.
        counts: Votes (N, L) instead, for "snefy" and "auto".
        cv: Parts of the rows.
        random_state: Seed of the parts, and of the estimators where these are not given.
        snefy: An unfitted SnefyLDL with other settings; by default those of ``SnefyLDL()``.
        logratio: An unfitted LogRatioLDL with other settings.

    Returns:
        The fitted model. Its ``density_choice_`` is a dict: ``kept`` ("snefy" or "logratio"), ``reason`` in words,
        ``answers`` (what each can answer), and after a comparison ``rows`` compared, ``log_likelihood`` (mean of each),
        ``difference`` (log-ratio minus snefy) and ``standard_error`` of that paired difference; otherwise None.

    Raises:
        InputError: The rows break a rule, or a log-ratio density is asked for where there are zeros, votes or gaps.

    Example:
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> quick = SnefyLDL(epochs=2, guides=None, random_state=0), LogRatioLDL(n_trees=10, random_state=0)
        >>> model = fit_density(city.X, city.D, cv=2, random_state=0, snefy=quick[0], logratio=quick[1])
        >>> model.density_choice_["kept"], model.density_choice_["rows"]
        ('snefy', 60)
    """
    check_choice("density", density, ("auto", "snefy", "logratio"))
    if cv < 2:
        raise InputError(f"cv={cv!r}: rows are compared in at least 2 parts.")
    if density == "logratio" and counts is not None:
        raise InputError('density="logratio": a log-ratio density knows no votes; use density="snefy".')
    seed = int(numpy_random(random_state).randint(2**31 - 1))
    models: dict[str, Any] = {
        "snefy": SnefyLDL(random_state=seed) if snefy is None else clone(snefy),
        "logratio": LogRatioLDL(random_state=seed) if logratio is None else clone(logratio),
    }
    if density != "auto":
        choice = _choice(density, "asked for, without a comparison")
    elif (obstacle := _obstacle(D, counts)) is not None:
        choice = _choice("snefy", f"{obstacle}, which a log-ratio density does not know")
    else:
        choice = _compare(models, X, D, cv, seed)
    model = models[choice["kept"]]
    if counts is not None:
        model.fit(X, counts=counts)
    else:
        model.fit(X, D)
    model.training_ = {**model.training_, "density": choice}
    return model


def load_density(folder: str | Path, backbone: Any = None, device: str | None = None) -> Any:
    """Load a saved density, whichever it is.

    Args:
        folder: That ``save`` wrote.
        backbone: A custom network of a SnefyLDL, as :meth:`SnefyLDL.load` takes it.
        device: Where a SnefyLDL computes.

    Returns:
        A fitted SnefyLDL or LogRatioLDL.

    Raises:
        ModelFileError: The folder is missing, damaged, foreign, of a newer version, or holds a learner without a
            density.

    Example:
        >>> import tempfile
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     place = SnefyLDL(epochs=1, random_state=0).fit(city.X, city.D).save(f"{folder}/model")
        ...     type(load_density(place)).__name__
        'SnefyLDL'
    """
    if read_head(Path(folder)).is_learner:
        return LogRatioLDL.load(folder)
    return SnefyLDL.load(folder, backbone, device)


def _choice(kept: str, reason: str, **comparison: Any) -> dict[str, Any]:
    empty = {"rows": None, "log_likelihood": None, "difference": None, "standard_error": None}
    return {"kept": kept, "reason": reason, "answers": dict(ANSWERS), **empty, **comparison}


def _obstacle(D: Any, counts: Any) -> str | None:
    """Why there is nothing to compare, in words; None where both densities can be fitted."""
    if counts is not None:
        return "the labels are votes"
    labels, _ = check_distributions(D, missing=True)
    if np.isnan(labels).any():
        return "some shares are not known"
    if (labels <= 0.0).any():
        return f"{int((labels <= 0.0).any(1).sum()):,} of {len(labels):,} rows hold a share of exactly zero"
    if len(labels) < FEWEST_ROWS:
        return f"{len(labels)} rows are too few for a comparison, and the default is kept"
    return None


def _compare(models: dict[str, Any], X: Any, D: Any, cv: int, seed: int) -> dict[str, Any]:
    """The choice by rows that were left out."""
    X, D = as_rows(X), as_rows(D)
    labels, _ = check_distributions(D)
    parts = list(KFold(min(cv, len(labels)), shuffle=True, random_state=seed).split(labels))
    if len(labels) > MANY_ROWS:
        parts = parts[:1]
    scores: dict[str, Array] = {name: np.empty(0) for name in models}
    with warnings.catch_warnings():  # the fit on all rows warns of what is odd about them
        for category in (TableNote, TrainingWarning):
            warnings.simplefilter("ignore", category)
        for train, test in parts:
            for name, model in models.items():
                fitted = fit_folds(clone(model), X, D, [train])[0]
                scores[name] = np.append(scores[name], fitted.log_prob(take_rows(X, test), take_rows(D, test)))
            gain = scores["logratio"] - scores["snefy"]
            difference, error = float(gain.mean()), float(gain.std(ddof=1) / len(gain) ** 0.5)
            if len(gain) >= CLEAR_ROWS and abs(difference) > CLEAR_LEAD * error:
                break
    kept = "logratio" if difference > LEAST_LEAD * error else "snefy"
    apart = f"{abs(difference):.3f} ± {error:.3f} nats per row"
    if kept == "logratio":
        reason = f"rows left out are likelier under the log-ratio density, by {apart}"
    elif difference < -LEAST_LEAD * error:
        reason = f"rows left out are likelier under the snefy density, by {apart}"
    else:
        reason = f"rows left out tell no clear difference ({apart}), and the snefy density answers more questions"
    means = {name: float(values.mean()) for name, values in scores.items()}
    return _choice(kept, reason, rows=len(gain), log_likelihood=means, difference=difference, standard_error=error)
