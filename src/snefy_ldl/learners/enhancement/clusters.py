"""Enhancers that ask how near a row is to the centre of each label's rows: FCM and KM."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import softmax
from sklearn.cluster import kmeans_plusplus
from sklearn.metrics import pairwise_distances

from snefy_ldl._internal.special.tolerances import SMALLEST_POSITIVE
from snefy_ldl._internal.types import Array, Mask
from snefy_ldl._internal.validation import check_count, check_number
from snefy_ldl.errors import InputError
from snefy_ldl.learners.enhancement.base import Enhancer

__all__ = ["FCM", "KM", "mean_distance"]

#: Rows whose distances to all others are held at once.
_CHUNK = 1000


class FCM(Enhancer):
    """Fuzzy clustering (FCM): labels are rows of a cluster-by-label matrix, mixed by a row's memberships.

    Memberships ``u_ik`` of row i in cluster k by fuzzy c-means; ``A_kr = Σ_{i has r} u_ik / #{i has r}``; and
    ``d_i = softmax_r(max_k u_ik A_kr)``, the fuzzy composition of both.

    Args:
        n_clusters: Clusters, or fewer where there are fewer rows.
        fuzziness: Exponent β > 1 of fuzzy c-means.
        max_iter: Most rounds.
        tol: Rounds end when no membership changes by more than this.
        random_state: Seeds the first centres.

    Attributes:
        centres_: Cluster centres, (clusters, d), for scaled features.
        association_: ``A``, (clusters, L).
        label_distributions_: Recovered distributions of the fitted rows, (N, L).

    References:
        El Gayar, Schwenker, Palm, A study of the robustness of kNN classifiers trained using soft labels, ANNPR 2006.

    Example:
        >>> from snefy_ldl.learners.enhancement import binarise
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> FCM(n_clusters=5, random_state=0).fit_transform(city.X, binarise(city.D)).shape
        (60, 3)
    """

    def __init__(
        self,
        n_clusters: int = 20,
        fuzziness: float = 2.0,
        max_iter: int = 200,
        tol: float = 1e-5,
        random_state: Any = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.fuzziness = fuzziness
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state

    def _check_params(self) -> None:
        check_count("n_clusters", self.n_clusters)
        check_count("max_iter", self.max_iter)
        check_number("tol", self.tol, strict=True)
        if check_number("fuzziness", self.fuzziness) <= 1.0:
            raise InputError(f"fuzziness={self.fuzziness!r} must be above 1.")

    def _enhance(self, X: Array, relevant: Mask, random: np.random.RandomState) -> Array:
        centres, _ = kmeans_plusplus(X, min(self.n_clusters, len(X)), random_state=random)
        memberships = self._memberships(X, centres)
        for _ in range(self.max_iter):
            weight = memberships**self.fuzziness
            centres = (weight.T @ X) / np.maximum(weight.sum(axis=0), SMALLEST_POSITIVE)[:, None]
            before, memberships = memberships, self._memberships(X, centres)
            if np.abs(memberships - before).max() < self.tol:
                break
        self.centres_ = centres
        self.association_ = memberships.T @ relevant / np.maximum(relevant.sum(axis=0), 1)
        return self._compose(memberships)

    def _memberships(self, X: Array, centres: Array) -> Array:
        """``u_ik ∝ distance^(-2/(β-1))``."""
        logs = -2.0 / (self.fuzziness - 1.0) * np.log(np.maximum(pairwise_distances(X, centres), SMALLEST_POSITIVE))
        shares: Array = softmax(logs, axis=1)
        return shares

    def _compose(self, memberships: Array) -> Array:
        values = np.stack([(memberships * column).max(axis=1) for column in self.association_.T], axis=1)
        shares: Array = softmax(values, axis=1)
        return shares

    def _predict(self, X: Array) -> Array:
        return self._compose(self._memberships(self._scaled(X), self.centres_))


class KM(Enhancer):
    """Kernel method (KM): a label weighs the more, the nearer a row is to the centre of its rows in kernel space.

    With a Gaussian kernel of width the mean distance, ``s²_ir`` the squared distance to the centre of label r's rows
    and ``R_r`` the largest of them, ``d_i = softmax_r(l_ir (1 - s_ir / R_r))``.

    Args:
        standardize: Divide each feature by its spread and clip it at five; by default features keep their units, as
            the kernel of the paper has it, which is right where all are of one kind (pixels, responses of filters).
        random_state: Accepted by every enhancer; unused here.

    Attributes:
        label_distributions_: Recovered distributions of the fitted rows, (N, L).

    References:
        Jiang, Yi, Lv, Fuzzy SVM with a new fuzzy membership function, Neural Computing and Applications 15, 2006.

    Example:
        >>> from snefy_ldl.learners.enhancement import binarise
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> KM().fit_transform(city.X, binarise(city.D)).shape
        (60, 3)
    """

    def __init__(self, standardize: bool = False, random_state: Any = None) -> None:
        self.standardize = standardize
        self.random_state = random_state

    def _enhance(self, X: Array, relevant: Mask, random: np.random.RandomState) -> Array:
        width = mean_distance(X)
        share = relevant / np.maximum(relevant.sum(axis=0), 1)  # (N, L), columns sum to one
        near = np.empty(relevant.shape)  # mean kernel value with the rows of each label
        for start in range(0, len(X), _CHUNK):
            rows = slice(start, start + _CHUNK)
            near[rows] = np.exp(-0.5 * (pairwise_distances(X[rows], X) / width) ** 2) @ share
        squared = np.maximum(1.0 - 2.0 * near + (share * near).sum(axis=0), 0.0)
        largest = np.sqrt(np.maximum(squared.max(axis=0), SMALLEST_POSITIVE))
        shares: Array = softmax(relevant * (1.0 - np.sqrt(squared) / largest), axis=1)
        return shares


def mean_distance(X: Array) -> float:
    """Mean distance of two rows, from at most 1,000 of them; 1 where all are equal.

    Args:
        X: Rows, (N, d).

    Returns:
        A positive number.

    Example:
        >>> mean_distance(np.array([[0.0], [3.0]]))
        3.0
    """
    rows = X if len(X) <= _CHUNK else X[np.linspace(0, len(X) - 1, _CHUNK).astype(int)]
    n = len(rows)
    total = float(pairwise_distances(rows).sum())
    return total / (n * (n - 1)) if total > 0.0 else 1.0
