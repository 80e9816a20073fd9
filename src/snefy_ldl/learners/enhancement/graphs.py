"""Enhancers that let neighbouring rows have similar distributions: LP, ML and GLLE."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.optimize import minimize
from scipy.sparse.linalg import cg
from scipy.special import softmax
from sklearn.metrics import pairwise_distances
from sklearn.neighbors import NearestNeighbors

from snefy_ldl._internal.types import Array, Mask
from snefy_ldl._internal.validation import check_count, check_number
from snefy_ldl.errors import InputError
from snefy_ldl.learners.enhancement.base import Enhancer
from snefy_ldl.learners.enhancement.clusters import mean_distance

__all__ = ["GLLE", "LP", "ML", "neighbour_graph", "reconstruction_weights"]

#: Ridge of the local least squares of ML against the trace of its matrix, as in locally linear embedding.
_LOCAL_RIDGE = 1e-3


def neighbour_graph(X: Array, n_neighbors: int, width: float) -> Any:
    """Gaussian weights ``exp(-‖x_i - x_j‖²/(2 w²))`` between rows of which one is among the other's nearest.

    Args:
        X: Rows, (N, d).
        n_neighbors: Neighbours; all other rows where there are fewer.
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


class LP(Enhancer):
    """Label propagation (LP): logical labels spread over a graph of similar rows.

    ``F = (1 - α) (I - α P)⁻¹ L`` with ``P = Δ^(-1/2) A Δ^(-1/2)`` of weights ``A`` and their row sums ``Δ``,
    the limit of the paper's rounds; ``d_i = softmax(F_i)``. The paper's graph is complete with unit width; here rows
    are joined to their neighbours, and the width is the mean distance, so that scale and number of rows do not matter.

    Args:
        alpha: α in [0, 1): how much comes from neighbours.
        n_neighbors: Neighbours of a row in the graph.
        standardize: Divide each feature by its spread and clip it at five; False keeps units, which suits features of
            one kind better where some that vary little are noise (Movie).
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

    def __init__(
        self, alpha: float = 0.5, n_neighbors: int = 20, standardize: bool = True, random_state: Any = None
    ) -> None:
        self.alpha = alpha
        self.n_neighbors = n_neighbors
        self.standardize = standardize
        self.random_state = random_state

    def _check_params(self) -> None:
        super()._check_params()
        check_count("n_neighbors", self.n_neighbors)
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
        shares: Array = softmax(spread, axis=1)
        return shares


def reconstruction_weights(X: Array, n_neighbors: int) -> Any:
    """Weights that rebuild each row from its neighbours, rows of which sum to one, as in locally linear embedding.

    Args:
        X: Rows, (N, d).
        n_neighbors: Neighbours; all other rows where there are fewer.

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


class ML(Enhancer):
    """Manifold learning (ML): numerical labels that can be rebuilt from neighbours as the features can.

    ``μ`` minimises ``Σ_i ‖μ_i - Σ_j W_ij μ_j‖²`` where ``W`` rebuilds each row's features from its neighbours, with
    ``μ_ir ≥ β`` where label r applies and ``μ_ir ≤ -β`` where it does not; ``d_i = softmax(μ_i)``. Bounded L-BFGS
    solves the quadratic programme of each label.

    Args:
        margin: β > 0.
        n_neighbors: Neighbours that rebuild a row; None takes one more than there are labels.
        max_iter: Most L-BFGS iterations a label.
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

    def __init__(
        self,
        margin: float = 1.0,
        n_neighbors: int | None = None,
        max_iter: int = 200,
        standardize: bool = True,
        random_state: Any = None,
    ) -> None:
        self.margin = margin
        self.standardize = standardize
        self.n_neighbors = n_neighbors
        self.max_iter = max_iter
        self.random_state = random_state

    def _check_params(self) -> None:
        super()._check_params()
        check_number("margin", self.margin, strict=True)
        check_count("max_iter", self.max_iter)
        if self.n_neighbors is not None:
            check_count("n_neighbors", self.n_neighbors)

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
        shares: Array = softmax(np.stack(values, axis=1), axis=1)
        return shares


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

    def __init__(
        self,
        smoothness: float = 0.01,
        ridge: float = 0.1,
        n_neighbors: int | None = None,
        n_landmarks: int = 1000,
        random_state: Any = None,
    ) -> None:
        self.smoothness = smoothness
        self.ridge = ridge
        self.n_neighbors = n_neighbors
        self.n_landmarks = n_landmarks
        self.random_state = random_state

    def _check_params(self) -> None:
        check_number("smoothness", self.smoothness)
        check_number("ridge", self.ridge, strict=True)
        check_count("n_landmarks", self.n_landmarks)
        if self.n_neighbors is not None:
            check_count("n_neighbors", self.n_neighbors)

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
        values: Array = np.exp(-0.5 * (pairwise_distances(X, self.landmarks_) / self.width_) ** 2)
        return values

    def _shares(self, kernel: Array) -> Array:
        shares: Array = softmax(kernel @ self.coef_ + self.intercept_, axis=1)
        return shares

    def _predict(self, X: Array) -> Array:
        return self._shares(self._kernel(self._scaled(X)))
