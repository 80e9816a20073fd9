"""More rows out of few: SSG-LDL, and draws of a fitted law at interpolated features."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from scipy.spatial.distance import cdist

from snefy_ldl._internal.random import numpy_random
from snefy_ldl._internal.types import Array
from snefy_ldl._internal.validation import check_count, check_distributions, check_features, check_number
from snefy_ldl.errors import InputError
from snefy_ldl.learners.linear import apply_scale, column_scale

__all__ = ["Law", "density_oversample", "ssg_oversample"]


class Law(Protocol):
    """A fitted model with ``sample(X, n, random_state=...)``, such as ``SnefyLDL`` or ``DirichletLDL``."""

    def sample(self, X: Any, n: int, random_state: Any = None) -> Any:
        """Draws (n, N, L)."""


def ssg_oversample(
    X: Any,
    D: Any,
    n_new: int,
    *,
    n_neighbors: int = 5,
    feature_weight: float = 0.5,
    label_weight: float = 0.5,
    random_state: Any = None,
) -> tuple[Array, Array]:
    """New rows between rare rows and their neighbours (SSG-LDL).

    The distance of two rows is ``f_x ‖x_i - x_l‖ + f_y ‖d_i - d_l‖``, each part here divided by its mean. A seed is
    drawn with probability proportional to its mean distance to all rows, so that rare rows are drawn more often; one of
    its nearest rows is drawn, and a number u from 0 to 1. The new features are ``x + u (x' - x)``, the new labels
    ``d + u (d' - d)``, which stay on the simplex. (That the labels move by the same u is a choice taken here.)

    Args:
        X: Features, (N, d), finite numbers.
        D: Label distributions, (N, L).
        n_new: Number of rows to make.
        n_neighbors: Nearest rows out of which the second one is drawn.
        feature_weight: ``f_x``.
        label_weight: ``f_y``.
        random_state: Draws seeds, neighbours and u.

    Returns:
        The new features (n_new, d) and label distributions (n_new, L), without the old rows.

    Raises:
        InputError: Rows that break a rule, fewer than two rows, or weights that are both zero.

    References:
        González, Luengo, Cano, García, Synthetic sample generation for label distribution learning, Information
        Sciences 544, 2021.

    Example:
        >>> X, D = np.array([[0.0], [1.0], [5.0]]), np.array([[0.5, 0.5], [0.6, 0.4], [0.9, 0.1]])
        >>> new_X, new_D = ssg_oversample(X, D, 4, n_neighbors=1, random_state=0)
        >>> new_X.shape, new_D.sum(axis=1).round(6).tolist()
        ((4, 1), [1.0, 1.0, 1.0, 1.0])
    """
    features, labels = _check(X, D)
    seeds, others, u = _pairs(
        features, labels, n_new, n_neighbors, feature_weight, label_weight, numpy_random(random_state)
    )
    return _between(features, seeds, others, u), _between(labels, seeds, others, u)


def density_oversample(
    model: Law,
    X: Any,
    D: Any,
    n_new: int,
    *,
    n_neighbors: int = 5,
    feature_weight: float = 0.5,
    label_weight: float = 0.5,
    random_state: Any = None,
) -> tuple[Array, Array]:
    """New rows whose features lie as in :func:`ssg_oversample` and whose labels are draws of a law given them.

    Interpolated labels are too smooth: they vary less about their mean than real ones. Draws vary as the law says.

    Args:
        model: A fitted model with ``sample``.
        X: Features it was fitted to, (N, d), finite numbers.
        D: Label distributions, (N, L); they say which rows are rare.
        n_new: Number of rows to make.
        n_neighbors: As in :func:`ssg_oversample`.
        feature_weight: As in :func:`ssg_oversample`.
        label_weight: As in :func:`ssg_oversample`.
        random_state: Draws seeds, neighbours, u and labels.

    Returns:
        The new features (n_new, d) and label distributions (n_new, L), without the old rows.

    Raises:
        InputError: Rows that break a rule, fewer than two rows, or weights that are both zero.

    Example:
        >>> from snefy_ldl.learners import DirichletLDL
        >>> X, D = np.linspace(0.0, 1.0, 8)[:, None], np.linspace([0.2, 0.8], [0.7, 0.3], 8)
        >>> law = DirichletLDL(random_state=0).fit(X, D)
        >>> density_oversample(law, X, D, 3, random_state=0)[1].shape
        (3, 2)
    """
    features, labels = _check(X, D)
    random = numpy_random(random_state)
    seeds, others, u = _pairs(features, labels, n_new, n_neighbors, feature_weight, label_weight, random)
    made = _between(features, seeds, others, u)
    draws = np.asarray(model.sample(made, 1, random_state=int(random.randint(2**31 - 1))), dtype=float)
    return made, draws[0]


def _check(X: Any, D: Any) -> tuple[Array, Array]:
    features = np.asarray(check_features(X), dtype=float)
    labels, _ = check_distributions(D, n_rows=len(features))
    if len(features) < 2:
        raise InputError("oversampling needs at least 2 rows.")
    return features, labels


def _between(rows: Array, seeds: Any, others: Any, u: Array) -> Array:
    return rows[seeds] + u[:, None] * (rows[others] - rows[seeds])


def _pairs(
    X: Array, D: Array, n_new: int, n_neighbors: int, feature_weight: float, label_weight: float, random: Any
) -> tuple[Any, Any, Array]:
    """Seeds, their partners and the parts of the way between them, (n_new,) each."""
    check_count("n_new", n_new)
    check_count("n_neighbors", n_neighbors)
    check_number("feature_weight", feature_weight)
    check_number("label_weight", label_weight)
    if feature_weight + label_weight == 0:
        raise InputError("feature_weight and label_weight are both zero: no row is near another.")
    scaled = apply_scale(X, *column_scale(X))
    distance = sum(
        weight * apart / (apart.mean() or 1.0)
        for weight, apart in ((feature_weight, cdist(scaled, scaled)), (label_weight, cdist(D, D)))
    )
    mean = np.asarray(distance).mean(axis=1)
    chance = mean / mean.sum() if mean.sum() > 0 else np.full(len(X), 1.0 / len(X))
    seeds = random.choice(len(X), n_new, p=chance)
    near = np.array(distance)
    np.fill_diagonal(near, np.inf)
    nearest = np.argsort(near, axis=1, kind="stable")[:, : min(n_neighbors, len(X) - 1)]
    others = nearest[seeds, random.randint(nearest.shape[1], size=n_new)]
    return seeds, others, random.random_sample(n_new)
