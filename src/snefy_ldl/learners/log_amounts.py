"""Log-amounts of which some labels are absent: their mean and covariance, and the frame of every row.

Amounts ``g`` are log-normal, and a row shows the closure of those that are there, its support S. For an orthonormal
basis H of the contrasts on S, ``Hᵀ log ℓ_S`` is a linear map of ``log g``; so a covariance of all labels (L, L), whose
rows sum to zero, is fitted to the contrasts that the rows show.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import helmert
from scipy.optimize import minimize
from scipy.special import gammaln, log_softmax, xlogy

from snefy_ldl._internal.types import Array, Index, Mask

#: Steps of the search for a covariance: those after the twelfth change the likelihood of mites and ECAM by .01.
EM_STEPS = 12
#: Rows' worth of a sphere that each covariance holds, which steadies the labels that are hardly ever there.
SPHERE_ROWS = 2.0
#: Rows' worth of evidence for equal weights of the guides, and for the same one in all labels, which steadies the
#: choice on small tables.
EQUAL_WEIGHT_ROWS, SAME_WEIGHT_ROWS = 5.0, 80.0
#: What the divergence of shares counts in these weights, next to the likelihood (KL of ECAM without it 1.00, at 2 .96).
SHARE_WEIGHT = 2.0
#: What the first shape is chosen from: shares of a sphere in the covariance, degrees of freedom, and factors of it.
SHRINKAGES = np.array([0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 1.0])
FREEDOMS = np.array([2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 20.0, 40.0, 100.0, 1e4])
FACTORS = np.geomspace(0.4, 1.5, 14)
#: Eigenvalues of a covariance below this part of the largest are lifted to it.
SMALLEST_EIGENVALUE = 1e-9


class Supports:
    """Which labels are there in each row, equal supports and equal sizes together.

    Args:
        there: (N, L).

    Attributes:
        patterns: the different supports (U, L).
        which: support of every row (N,).
        blocks: for every size s of two or more: numbers of supports (u,), and their labels (u, s).
    """

    def __init__(self, there: Mask) -> None:
        self.there = there
        packed = np.packbits(there, axis=1)
        _, first, which = np.unique(packed, axis=0, return_index=True, return_inverse=True)
        self.patterns, self.which = there[first], which.reshape(-1)
        sizes = self.patterns.sum(1)
        self.blocks: list[tuple[Index, Index]] = []
        for size in np.unique(sizes[sizes > 1]):
            chosen = np.flatnonzero(sizes == size)
            self.blocks.append((chosen, np.nonzero(self.patterns[chosen])[1].reshape(-1, size)))

    @property
    def complete(self) -> bool:
        """Whether every label is there in every row."""
        return bool(self.there.all())

    def take(self, rows: Index | Mask) -> Supports:
        """The supports of some rows."""
        return Supports(self.there[rows])

    def rows_of(self, chosen: Index) -> tuple[Index, Index]:
        """Rows whose support is one of some, and where among these theirs stands."""
        place = np.full(len(self.patterns), -1)
        place[chosen] = np.arange(len(chosen))
        at = place[self.which]
        rows = np.flatnonzero(at >= 0)
        return rows, at[rows]

    def solve(self, cov: Array, gap: Array) -> tuple[Array, list[Array]]:
        """``H (Hᵀ Σ_SS H)⁻¹ Hᵀ`` times what rows show, zero where a label is absent, and these matrices themselves.

        Args:
            cov: Σ of all labels (L, L).
            gap: deviations of log-amounts, zero where absent (N, L), or several (G, N, L).

        Returns:
            As ``gap``; for every block (u, s, s).
        """
        out, matrices = np.zeros_like(gap), []
        for chosen, labels in self.blocks:
            basis = helmert(labels.shape[1])
            lower = np.linalg.cholesky(basis @ cov[labels[:, :, None], labels[:, None]] @ basis.T)
            half = np.linalg.solve(lower, np.broadcast_to(basis, (len(labels), *basis.shape)))
            matrix = half.transpose(0, 2, 1) @ half
            matrices.append(matrix)
            rows, at = self.rows_of(chosen)
            places = rows[:, None], labels[at]
            out[(..., *places)] = times(gap[(..., *places)], matrix, at)
        return out, matrices


def times(values: Array, matrices: Array, which: Index) -> Array:
    """Rows (..., N, s) times the matrix (u, s, t) of each: one product where all have the same."""
    if len(matrices) == 1:
        return np.asarray(values @ matrices[0])
    return np.asarray(np.einsum("...ns,nst->...nt", values, matrices[which], optimize=True))


@dataclass
class LogAmounts:
    """Mean (L,) and covariance (L, L) of log-amounts about a centre, and what rows are expected to hold.

    Args:
        mean: of the deviations from the centre.
        cov: their covariance; rows sum to zero.
        filled: expected deviations of all labels of every row (N, L), rows that sum to zero.
    """

    mean: Array
    cov: Array
    filled: Array

    @classmethod
    def fit(cls, gap: Array, supports: Supports, weights: Array, moves: bool = True) -> LogAmounts:
        """Expectation and maximisation over the contrasts that rows show.

        Args:
            gap: deviations of log shares from a centre (N, L), zero where a label is absent.
            supports: of the rows.
            weights: of the rows (N,), which sum to how many they stand for.
            moves: whether the mean is learned, or stays at zero.

        Returns:
            The fit.
        """
        n_labels = gap.shape[1]
        sphere = np.eye(n_labels) - 1.0 / n_labels
        there = supports.there
        total = weights.sum()
        sizes = there.sum(1, keepdims=True)
        level = gap.sum(1, keepdims=True) / sizes
        spread = float((there * (gap - level) ** 2).sum() / max(float((sizes - 1.0).sum()), 1.0)) or 1.0
        mean, cov = np.zeros(n_labels), spread * sphere
        steps = 2 if supports.complete else EM_STEPS
        counts = np.bincount(supports.which, weights, len(supports.patterns))
        for _ in range(steps):
            solved, matrices = supports.solve(cov, there * (gap - mean))
            inner = (weights[:, None] * solved).T @ solved
            for (chosen, labels), matrix in zip(supports.blocks, matrices):
                place = labels[:, :, None] * n_labels + labels[:, None]
                mass = np.bincount(place.ravel(), (counts[chosen, None, None] * matrix).ravel(), n_labels**2)
                inner -= mass.reshape(n_labels, n_labels)
            filled = solved @ cov
            learned = cov + cov @ inner @ cov / total
            if moves:
                step = weights @ filled / total
                mean, learned = mean + step, learned - np.outer(step, step)
            size = max(float(np.trace(learned)) / (n_labels - 1), 1e-12)
            cov = (total * learned + SPHERE_ROWS * size * sphere) / (total + SPHERE_ROWS)
            cov = sphere @ (0.5 * (cov + cov.T)) @ sphere
        solved, _ = supports.solve(cov, there * (gap - mean))
        return cls(mean, cov, mean + solved @ cov)


def shrink(cov: Array, amount: float) -> Array:
    """A covariance of log-ratios (P, P), drawn toward a sphere of the same size and lifted off singularity."""
    n_ratios = len(cov)
    size = float(np.trace(cov)) / n_ratios
    if size <= 0.0:
        return np.eye(n_ratios)
    values, axes = np.linalg.eigh((1.0 - amount) * cov + amount * size * np.eye(n_ratios))
    return (axes * np.maximum(values, SMALLEST_EIGENVALUE * values.max())) @ axes.T


def weigh_guides(
    guides: Array, logs: Array, cov: Array, start: Array, centre: Array, shares: Array, weights: Array
) -> Array:
    """Weights of guides for each label (G, L): the most likely ones under which shares are predicted well, too.

    They minimise squared distances of whitened log-amounts and the KL divergence of shares, each in units of what it is
    at the start. Small labels count as much as large ones in the first; the second is about large ones.

    Args:
        guides: predictions of guides for rows they did not see, without its mean (G, N, L).
        logs: log-amounts without their mean, expected ones where a label is absent (N, L).
        cov: of log-amounts (L, L).
        start: the first weights (G, L).
        centre: what is added to the combined guides before shares are compared (N, L) or (L,).
        shares: label distributions (N, L).
        weights: of the rows (N,).

    Returns:
        Non-negative weights, drawn toward the same one for all labels, and these toward equal ones.
    """
    n_guides, total = len(guides), weights.sum()
    basis = helmert(guides.shape[2])
    metric = basis.T @ np.linalg.solve(basis @ cov @ basis.T, basis)
    scale = np.einsum("n,gnl->g", weights, guides @ metric * guides)[:, None] / (guides.shape[2] * total)
    first = np.einsum("gl,gnl->nl", start, guides)
    size = 0.5 * weights @ ((first - logs) @ metric * (first - logs)).sum(1)
    apart_at_first = weights @ (xlogy(shares, shares) - shares * log_softmax(centre + first, 1)).sum(1)
    unit = SHARE_WEIGHT * size / max(apart_at_first, 1e-12)

    def loss(flat: Array) -> tuple[float, Array]:
        factors = flat.reshape(start.shape)
        common = factors.mean(1, keepdims=True)
        apart, level = factors - common, common - 1.0 / n_guides
        combined = np.einsum("gl,gnl->nl", factors, guides)
        log_p, gap = log_softmax(centre + combined, 1), combined - logs
        white = gap @ metric
        value = weights @ (0.5 * gap * white - unit * shares * log_p).sum(1)
        value += 0.5 * (scale * (SAME_WEIGHT_ROWS * apart**2 + EQUAL_WEIGHT_ROWS * level**2)).sum()
        slope = np.einsum("n,nl,gnl->gl", weights, white + unit * (np.exp(log_p) - shares), guides, optimize=True)
        slope += scale * (SAME_WEIGHT_ROWS * apart + EQUAL_WEIGHT_ROWS * level)
        return value / total, slope.ravel() / total

    bounds, most = [(0.0, None)] * start.size, {"maxiter": 50}
    found = minimize(loss, start.ravel(), jac=True, method="L-BFGS-B", bounds=bounds, options=most)
    return np.asarray(found.x, dtype=np.float64).reshape(start.shape)


@dataclass
class Frames:
    """What rows show, whitened: ``r = R⁻¹ Hᵀ gap`` has p numbers, and ``Q`` maps all P whitened log-ratios to them.

    Args:
        point: ``Qᵀ r`` (N, Q).
        square: ``‖r‖²`` (N,).
        inner: ``QᵀQ`` (N, Q, Q); None if every label is always there and it is one.
        log_det: of the map from contrasts to r (N,).
        size: p (N,).
    """

    point: Array
    square: Array
    inner: Array | None
    log_det: Array
    size: Array

    @classmethod
    def empty(cls, n_rows: int, n_axes: int, complete: bool) -> Frames:
        """Frames of rows that show nothing."""
        inner = None if complete else np.zeros((n_rows, n_axes, n_axes))
        return cls(np.zeros((n_rows, n_axes)), np.zeros(n_rows), inner, np.zeros(n_rows), np.zeros(n_rows))

    def put(self, at: Index, gap: Array, supports: Supports, back: Array, inside: bool = True) -> None:
        """Fill in the frames of some rows.

        Args:
            at: their numbers (n,).
            gap: deviations of their log shares from the centre, zero where absent (n, L).
            supports: of them.
            back: from all P whitened log-ratios to log-ratios (P, P).
            inside: whether ``point`` and ``inner`` are filled in, too.
        """
        n_axes = self.point.shape[1]
        turned = helmert(gap.shape[1]).T @ back  # (L, P)
        cov = turned @ turned.T
        self.size[at] = np.maximum(supports.there.sum(1) - 1.0, 0.0)
        for chosen, labels in supports.blocks:
            basis = helmert(labels.shape[1])
            lower = np.linalg.cholesky(basis @ cov[labels[:, :, None], labels[:, None]] @ basis.T)
            half = np.linalg.solve(lower, np.broadcast_to(basis, (len(labels), *basis.shape)))  # R⁻¹ Hᵀ
            rows, place = supports.rows_of(chosen)
            seen = gap[rows[:, None], labels[place]]
            white = times(seen, half.transpose(0, 2, 1), place)
            to = at[rows]
            self.square[to] = (white**2).sum(1)
            self.log_det[to] = -np.log(np.diagonal(lower, axis1=1, axis2=2)).sum(1)[place]
            if not inside:
                continue
            maps = half @ turned[labels][..., :n_axes]  # Q (u, p, n_axes)
            self.point[to] = times(white, maps, place)
            if self.inner is not None:
                self.inner[to] = (maps.transpose(0, 2, 1) @ maps)[place]


@dataclass(frozen=True)
class Shape:
    """Shrinkage of the covariance, and degrees of freedom and squared scale of a Student distribution."""

    shrinkage: float = 1.0
    freedom: float = 3.0
    spread: float = 1.0


def choose_shape(
    squares: Array, log_dets: Array, sizes: Array, weights: Array, freedoms: Array = FREEDOMS, factors: Array = FACTORS
) -> Shape:
    """The shape of residuals under which held-out rows are most likely.

    All combinations are averaged by their likelihood, so that a small table does not settle on an extreme one.

    Args:
        squares: whitened squared distances of rows under every one of :data:`SHRINKAGES` (A, N).
        log_dets: of the whitening (A, N).
        sizes: numbers of log-ratios of every row (N,).
        weights: of the rows (N,).
        freedoms: degrees of freedom to choose from.
        factors: squared scales to choose from.

    Returns:
        The shape.
    """
    total = np.zeros((len(squares), len(freedoms), len(factors)))
    for f, freedom in enumerate(freedoms):
        norm = gammaln((freedom + sizes) / 2) - gammaln(freedom / 2)
        for s, factor in enumerate(factors):
            tail = 0.5 * (freedom + sizes) * np.log1p(squares / (freedom * factor))
            total[:, f, s] = (norm - 0.5 * sizes * np.log(freedom * np.pi * factor) + log_dets - tail) @ weights
    chance = np.exp(total - total.max())
    chance /= chance.sum()
    return Shape(
        float(chance.sum((1, 2)) @ SHRINKAGES[: len(squares)]),
        float(1.0 / (chance.sum((0, 2)) @ (1.0 / freedoms))),
        float(np.exp(chance.sum((0, 1)) @ np.log(factors))),
    )
