"""Enhancers by distances between rows: clusters (FCM), kernels (KM) and graphs of neighbours (LP, ML, GLLE)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.optimize import minimize
from scipy.sparse.linalg import cg
from scipy.special import softmax
from sklearn.cluster import kmeans_plusplus
from sklearn.metrics import pairwise_distances
from sklearn.neighbors import NearestNeighbors

from snefy_ldl._internal.tolerances import SMALLEST_POSITIVE
from snefy_ldl._internal.types import Array, Mask
from snefy_ldl._internal.validation import check_number
from snefy_ldl.errors import InputError
from snefy_ldl.learners.enhancement.enhancer import Enhancer

#: Rows whose distances to all others are held at once.
_CHUNK = 1000


@dataclass(eq=False, repr=False)
class FCM(Enhancer):
    """Fuzzy clustering (FCM): labels are rows of a cluster-by-label matrix, mixed by a row's memberships.

    Memberships ``u_ik`` of row i in cluster k by fuzzy c-means; ``A_kr = Σ_{i has r} u_ik / #{i has r}``; and
    ``d_i = softmax_r(max_k u_ik A_kr)``, the fuzzy composition of both.

    Args:
        n_clusters: Clusters, or fewer if there are fewer rows.
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

    n_clusters: int = 20
    fuzziness: float = 2.0
    max_iter: int = 200
    tol: float = 1e-5
    random_state: Any = None

    def _check_params(self) -> None:
        super()._check_params()
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
        return softmax(logs, axis=1)

    def _compose(self, memberships: Array) -> Array:
        values = np.stack([(memberships * column).max(axis=1) for column in self.association_.T], axis=1)
        return softmax(values, axis=1)

    def _predict(self, X: Array) -> Array:
        return self._compose(self._memberships(self._scaled(X), self.centres_))


@dataclass(eq=False, repr=False)
class KM(Enhancer):
    """Kernel method (KM): a label weighs the more, the nearer a row is to the centre of its rows in kernel space.

    With a Gaussian kernel of width the mean distance, ``s²_ir`` the squared distance to the centre of label r's rows
    and ``R_r`` the largest of them, ``d_i = softmax_r(l_ir (1 - s_ir / R_r))``.

    Args:
        standardize: Divide each feature by its spread and clip it at five; by default features keep their units, as
            the kernel of the paper has it, which is right if all are of one kind (pixels, responses of filters).
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

    standardize: bool = False
    random_state: Any = None

    def _enhance(self, X: Array, relevant: Mask, random: np.random.RandomState) -> Array:
        width = mean_distance(X)
        share = relevant / np.maximum(relevant.sum(axis=0), 1)  # (N, L), columns sum to one
        near = np.empty(relevant.shape)  # mean kernel value with the rows of each label
        for start in range(0, len(X), _CHUNK):
            rows = slice(start, start + _CHUNK)
            near[rows] = np.exp(-0.5 * (pairwise_distances(X[rows], X) / width) ** 2) @ share
        squared = np.maximum(1.0 - 2.0 * near + (share * near).sum(axis=0), 0.0)
        largest = np.sqrt(np.maximum(squared.max(axis=0), SMALLEST_POSITIVE))
        return softmax(relevant * (1.0 - np.sqrt(squared) / largest), axis=1)


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


#: Ridge of the local least squares of ML against the trace of its matrix, as in locally linear embedding.
_LOCAL_RIDGE = 1e-3


def neighbour_graph(X: Array, n_neighbors: int, width: float) -> Any:
    """Gaussian weights ``exp(-‖x_i - x_j‖²/(2 w²))`` between rows of which one is among the other's nearest.

    Args:
        X: Rows, (N, d).
        n_neighbors: Neighbours; all other rows if there are fewer.
        width: w.

    Returns:
        A symmetric sparse matrix (N, N) with an empty diagonal.

    Example:
        >>> neighbour_graph(np.array([[0.0], [1.0], [9.0]]), 1, 1.0).toarray().round(2)
        array([[0.  , 0.61, 0.  ],
               [0.61, 0.  , 0.  ],
               [0.  , 0.  , 0.  ]])
    """
    k = min(n_neighbors, len(X) - 1)
    if k < 1:
        return sp.csr_matrix((len(X), len(X)))
    graph = NearestNeighbors(n_neighbors=k).fit(X).kneighbors_graph(mode="distance").tocsr()
    graph.data = np.exp(-0.5 * (graph.data / width) ** 2)
    return graph.maximum(graph.T)


@dataclass(eq=False, repr=False)
class LP(Enhancer):
    """Label propagation (LP): logical labels spread over a graph of similar rows.

    ``F = (1 - α) (I - α P)⁻¹ L`` with ``P = Δ^(-1/2) A Δ^(-1/2)`` of weights ``A`` and their row sums ``Δ``,
    the limit of the paper's rounds; ``d_i = softmax(F_i)``. The paper's graph is complete with unit width; here rows
    are joined to their neighbours, and the width is the mean distance, so that scale and number of rows do not matter.

    Args:
        alpha: α in [0, 1): how much comes from neighbours.
        n_neighbors: Neighbours of a row in the graph.
        standardize: Divide each feature by its spread and clip it at five; False keeps units, which suits features of
            one kind better if some that vary little are noise (Movie).
        random_state: Accepted by every enhancer; unused here.

    Attributes:
        label_distributions_: Recovered distributions of the fitted rows, (N, L).

    References:
        Li, Zhang, Geng, Leveraging implicit relative labeling-importance information for effective multi-label
        learning, ICDM 2015.

    Example:
        >>> from snefy_ldl.learners.enhancement import binarise
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> LP().fit_transform(city.X, binarise(city.D)).shape
        (60, 3)
    """

    alpha: float = 0.5
    n_neighbors: int = 20
    standardize: bool = True
    random_state: Any = None

    def _check_params(self) -> None:
        super()._check_params()
        if not 0.0 <= check_number("alpha", self.alpha) < 1.0:
            raise InputError(f"alpha={self.alpha!r} must lie in [0, 1).")

    def _enhance(self, X: Array, relevant: Mask, random: np.random.RandomState) -> Array:
        graph = neighbour_graph(X, self.n_neighbors, mean_distance(X))
        degree = np.asarray(graph.sum(axis=1)).ravel()
        root = sp.diags(np.where(degree > 0.0, 1.0 / np.sqrt(np.where(degree > 0.0, degree, 1.0)), 0.0))
        system = sp.identity(len(X), format="csr") - self.alpha * (root @ graph @ root)
        spread = np.stack(
            [cg(system, (1.0 - self.alpha) * column, rtol=1e-8)[0] for column in 1.0 * relevant.T], axis=1
        )
        return softmax(spread, axis=1)


def reconstruction_weights(X: Array, n_neighbors: int) -> Any:
    """Weights that rebuild each row from its neighbours, rows of which sum to one, as in locally linear embedding.

    Args:
        X: Rows, (N, d).
        n_neighbors: Neighbours; all other rows if there are fewer.

    Returns:
        A sparse matrix (N, N).

    Example:
        >>> reconstruction_weights(np.array([[0.0], [1.0], [2.0]]), 2).toarray()[1].round(2)
        array([0.5, 0. , 0.5])
    """
    n, k = len(X), min(n_neighbors, len(X) - 1)
    if k < 1:
        return sp.csr_matrix((n, n))
    nearest = NearestNeighbors(n_neighbors=k).fit(X).kneighbors(return_distance=False)
    gaps = X[nearest] - X[:, None, :]  # (N, k, d)
    gram = gaps @ gaps.transpose(0, 2, 1)
    trace = np.trace(gram, axis1=1, axis2=2)
    gram[:, np.arange(k), np.arange(k)] += (_LOCAL_RIDGE * np.where(trace > 0.0, trace, 1.0))[:, None]
    weights = np.linalg.solve(gram, np.ones((n, k, 1)))[..., 0]
    weights /= weights.sum(axis=1, keepdims=True)
    rows = np.repeat(np.arange(n), k)
    return sp.csr_matrix((weights.ravel(), (rows, nearest.ravel())), shape=(n, n))


@dataclass(eq=False, repr=False)
class ML(Enhancer):
    """Manifold learning (ML): numerical labels that can be rebuilt from neighbours as the features can.

    ``μ`` minimises ``Σ_i ‖μ_i - Σ_j W_ij μ_j‖²`` where ``W`` rebuilds each row's features from its neighbours, with
    ``μ_ir ≥ β`` where label r applies and ``μ_ir ≤ -β`` where it does not; ``d_i = softmax(μ_i)``. Bounded L-BFGS
    solves the quadratic programme of each label.

    Args:
        margin: β > 0.
        n_neighbors: Neighbours that rebuild a row; None takes one more than there are labels.
        max_iter: Most L-BFGS iterations per label.
        standardize: Divide each feature by its spread and clip it at five; False keeps units, as for :class:`LP`.
        random_state: Accepted by every enhancer; unused here.

    Attributes:
        label_distributions_: Recovered distributions of the fitted rows, (N, L).

    References:
        Hou, Geng, Zhang, Multi-label manifold learning, AAAI 2016.

    Example:
        >>> from snefy_ldl.learners.enhancement import binarise
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> ML().fit_transform(city.X, binarise(city.D)).shape
        (60, 3)
    """

    margin: float = 1.0
    n_neighbors: int | None = None
    max_iter: int = 200
    standardize: bool = True
    random_state: Any = None

    def _enhance(self, X: Array, relevant: Mask, random: np.random.RandomState) -> Array:
        weights = reconstruction_weights(X, self.n_neighbors or relevant.shape[1] + 1)
        residual = (sp.identity(len(X), format="csr") - weights).tocsr()
        back = residual.T.tocsr()

        def objective(mu: Array) -> tuple[float, Array]:
            gap = residual @ mu
            return float(gap @ gap), 2.0 * (back @ gap)

        values = []
        for column in relevant.T:
            bounds = [(self.margin, None) if applies else (None, -self.margin) for applies in column]
            start = np.where(column, self.margin, -self.margin)
            options = {"maxiter": self.max_iter}
            values.append(minimize(objective, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options).x)
        return softmax(np.stack(values, axis=1), axis=1)


@dataclass(eq=False, repr=False)
class GLLE(Enhancer):
    """Graph Laplacian label enhancement (GLLE): a smooth function of the features that stays near the logical labels.

    ``f(x) = w φ(x) + b`` with Gaussian kernel features minimises
    ``Σ_i ‖f(x_i) - l_i‖² + λ Σ_ij A_ij ‖f(x_i) - f(x_j)‖² + ε ‖f‖²`` with ``A`` the neighbour graph and ``‖f‖`` the
    kernel's norm; ``d = softmax(f(x))``. The objective is quadratic and solved at once. Kernel features stand on
    at most ``n_landmarks`` rows, so memory and time grow with the rows, not with their square.

    Args:
        smoothness: λ of the graph.
        ridge: ε of the kernel's norm.
        n_neighbors: Neighbours of a row in the graph; None takes one more than there are labels.
        n_landmarks: Rows the kernel stands on.
        random_state: Seeds the choice of those rows.

    Attributes:
        landmarks_: (m, d), for scaled features.
        coef_: ``w``, (m, L).
        intercept_: ``b``, (L,).
        width_: Of the kernel: the mean distance.
        label_distributions_: Recovered distributions of the fitted rows, (N, L).

    References:
        Xu, Tao, Geng, Label enhancement for label distribution learning, IJCAI 2018; Xu, Liu, Geng, TKDE 33(4), 2021.

    Example:
        >>> from snefy_ldl.learners.enhancement import binarise
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> GLLE(random_state=0).fit(city.X, binarise(city.D)).predict(city.X[:2]).shape
        (2, 3)
    """

    smoothness: float = 0.01
    ridge: float = 0.1
    n_neighbors: int | None = None
    n_landmarks: int = 1000
    random_state: Any = None

    def _enhance(self, X: Array, relevant: Mask, random: np.random.RandomState) -> Array:
        n_rows, logical = len(X), relevant.astype(float)
        rows = np.sort(random.permutation(n_rows)[: self.n_landmarks])
        self.landmarks_, self.width_ = X[rows], mean_distance(X)
        kernel = self._kernel(X)  # (N, m)
        graph = neighbour_graph(X, self.n_neighbors or relevant.shape[1] + 1, self.width_)
        laplacian = sp.diags(np.asarray(graph.sum(axis=1)).ravel()) - graph
        self.intercept_ = logical.mean(axis=0)
        # the graph's term is blind to b, so b may stand at the labels' means
        system = kernel.T @ kernel + 2.0 * self.smoothness * (kernel.T @ (laplacian @ kernel))
        system += self.ridge * self._kernel(self.landmarks_)
        self.coef_ = np.linalg.lstsq(system, kernel.T @ (logical - self.intercept_), rcond=1e-10)[0]
        return self._shares(kernel)

    def _kernel(self, X: Array) -> Array:
        return np.exp(-0.5 * (pairwise_distances(X, self.landmarks_) / self.width_) ** 2)

    def _shares(self, kernel: Array) -> Array:
        return softmax(kernel @ self.coef_ + self.intercept_, axis=1)

    def _predict(self, X: Array) -> Array:
        return self._shares(self._kernel(self._scaled(X)))
