"""Conformity scores: how unlike its predicted law a label distribution is, one label at a time or as a whole."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from scipy.special import gammaln

from snefy_ldl._types import Array
from snefy_ldl.distributions.blocks import draw_from, tensor_for, to_numpy
from snefy_ldl.distributions.mixture import SignedDirichletMixture
from snefy_ldl.errors import InputError

Seed = Callable[[], int]

#: Eigenvalues of a covariance below this share of the largest are taken for rounding and lifted to it.
SMALLEST_EIGENVALUE = 1e-10


# -- one label at a time -----------------------------------------------------------------------------------------------


class LabelScore(ABC):
    """One-sided scores of a block of rows at confidence level number a.

    ``below(y, a)`` falls and ``above(y, a)`` grows with the share y; the conformity score is the larger of the two, and
    ``ends(q)`` are the shares at which they reach a threshold q. All three vectorise over (rows, labels).
    """

    #: A score for each level (True), or one that serves all of them.
    per_level = True

    @abstractmethod
    def __init__(self, law: Any, levels: list[float]) -> None: ...

    @abstractmethod
    def below(self, y: Array, a: int) -> Array:
        """How far shares y (b, L) lie below the law."""

    @abstractmethod
    def above(self, y: Array, a: int) -> Array:
        """How far shares y (b, L) lie above the law."""

    @abstractmethod
    def ends(self, q: Array) -> tuple[Array, Array]:
        """Lower and upper ends (b, L, A) for thresholds q (1 or b, 1 or L, A)."""

    def score(self, y: Array, a: int) -> Array:
        """The conformity score (b, L)."""
        return np.maximum(self.below(y, a), self.above(y, a))


class _Chebyshev(LabelScore):
    """``s = |ℓ - E[ℓ]| / (k sd)`` with ``1/k² = 1 - c``, the paper's Eq. for s(x, ℓ); ends ``E[ℓ] ± k q sd``."""

    def __init__(self, law: Any, levels: list[float]) -> None:
        moments = law.mean_and_variance() if hasattr(law, "mean_and_variance") else (law.mean, law.variance)
        self.mean, variance = (to_numpy(moment) for moment in moments)
        self.sd = np.sqrt(np.maximum(variance, 0.0))
        self.k = 1.0 / np.sqrt(1.0 - np.asarray(levels))

    def _scaled(self, difference: Array, a: int) -> Array:
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = difference / (self.k[a] * self.sd)
        # a law without spread is right (0) or infinitely wrong
        return np.where((self.sd == 0.0) & (difference == 0.0), 0.0, ratio)

    def below(self, y: Array, a: int) -> Array:
        return self._scaled(self.mean - y, a)

    def above(self, y: Array, a: int) -> Array:
        return self._scaled(y - self.mean, a)

    def ends(self, q: Array) -> tuple[Array, Array]:
        reach = self.sd[:, :, None] * (self.k * q)
        return self.mean[:, :, None] - reach, self.mean[:, :, None] + reach


class _Marginals(LabelScore):
    """Scores made of each label's own law."""

    def __init__(self, law: Any, levels: list[float]) -> None:
        if not callable(getattr(law, "marginal", None)):
            raise InputError(
                f'a {type(law).__name__} has no marginal(label); use method="chebyshev", which needs only its mean and '
                "variance."
            )
        self.law = law
        self.marginals = [law.marginal(r) for r in range(law.event_shape[0])]

    def quantiles(self, alpha: Array) -> Array:
        """Quantiles of every label: alpha (A,), or (1 or b, L, A) -> (b, L, A)."""
        if isinstance(self.law, SignedDirichletMixture):
            if alpha.ndim == 3:
                alpha = np.broadcast_to(alpha, (*self.law.batch_shape, *alpha.shape[1:]))
            return to_numpy(self.law.quantiles(alpha))
        columns = []
        for r, marginal in enumerate(self.marginals):
            levels = alpha if alpha.ndim == 1 else alpha[:, r]
            column = levels[:, None] if alpha.ndim == 1 else levels.T
            columns.append(to_numpy(marginal.icdf(torch.as_tensor(column))).T)
        return np.stack(columns, axis=1)


class _Quantile(_Marginals):
    """``s = max(Q_lo - ℓ, ℓ - Q_hi)`` with exact quantiles at ``(1 ∓ c)/2`` (Romano et al., 2019); ends ``Q ∓ q``."""

    def __init__(self, law: Any, levels: list[float]) -> None:
        super().__init__(law, levels)
        tails = [(1.0 - level) / 2.0 for level in levels]
        alpha = [*tails, *(1.0 - tail for tail in tails)]
        both = self.quantiles(np.asarray(alpha))
        self.low, self.high = both[..., : len(levels)], both[..., len(levels) :]  # (b, L, A) each

    def below(self, y: Array, a: int) -> Array:
        out: Array = self.low[..., a] - y
        return out

    def above(self, y: Array, a: int) -> Array:
        out: Array = y - self.high[..., a]
        return out

    def ends(self, q: Array) -> tuple[Array, Array]:
        return self.low - q, self.high + q


class _Cdf(_Marginals):
    """``s = |F(ℓ) - 1/2|`` (Chernozhukov et al., 2021); ends ``F⁻¹(1/2 ∓ q)``, exact."""

    per_level = False

    def cdf(self, y: Array) -> Array:
        columns = [to_numpy(m.cdf(torch.as_tensor(y[:, r]))) for r, m in enumerate(self.marginals)]
        return np.stack(columns, axis=1)

    def below(self, y: Array, a: int) -> Array:
        return 0.5 - self.cdf(y)

    def above(self, y: Array, a: int) -> Array:
        return self.cdf(y) - 0.5

    def score(self, y: Array, a: int) -> Array:
        return np.abs(self.cdf(y) - 0.5)

    def ends(self, q: Array) -> tuple[Array, Array]:
        n_labels, n_levels = len(self.marginals), q.shape[2]
        reach = np.broadcast_to(np.minimum(q, 0.5), (q.shape[0], n_labels, n_levels))
        both = self.quantiles(np.concatenate([0.5 - reach, 0.5 + reach], axis=2))  # (b, L, 2A)
        return both[..., :n_levels], both[..., n_levels:]


LABEL_SCORES: dict[str, type[LabelScore]] = {"chebyshev": _Chebyshev, "quantile": _Quantile, "cdf": _Cdf}


# -- all labels at once ------------------------------------------------------------------------------------------------


class RegionScore(ABC):
    """Scores of a block of rows: the region of row i at threshold q is ``{ℓ: score_i(ℓ) <= q_i}``."""

    def __init__(self, law: Any, n_draws: int, seed: Seed) -> None:
        self.law = law
        self.n_labels = int(law.event_shape[0])

    @abstractmethod
    def score(self, points: Array) -> Array:
        """Scores (..., b) of one point a row, points (..., b, L)."""

    @abstractmethod
    def score_shared(self, points: Array) -> Array:
        """Scores (S, b) of the same points (S, L) for every row."""

    @abstractmethod
    def adapted_volume(self, q: Array, n: int, seed: Seed) -> tuple[Array, Array]:
        """Share of the simplex (b,) and its standard error, by draws that follow the region."""


class _Density(RegionScore):
    """``s = -log p(ℓ|x)``."""

    def log_density(self, points: Array) -> Array:
        return to_numpy(self.law.log_prob(tensor_for(self.law, points)))

    def log_density_shared(self, points: Array) -> Array:
        table = tensor_for(self.law, points)
        if isinstance(self.law, SignedDirichletMixture):
            rows = slice(0, len(self.law))
            return to_numpy(self.law.log_prob_grid(table.log(), rows))
        return to_numpy(self.law.log_prob(table[:, None, :]))

    def _from_log_density(self, log_p: Array) -> Array:
        return -log_p

    def score(self, points: Array) -> Array:
        return self._from_log_density(self.log_density(points))

    def score_shared(self, points: Array) -> Array:
        return self._from_log_density(self.log_density_shared(points))

    def adapted_volume(self, q: Array, n: int, seed: Seed) -> tuple[Array, Array]:
        # ∫_R dℓ = E_p[1{ℓ in R} / p(ℓ)] over a simplex of volume 1/(L-1)!; in a superlevel set of p, 1/p is bounded
        draws = to_numpy(draw_from(self.law, n, seed))
        log_p = self.log_density(draws)
        inside = self._from_log_density(log_p) <= q
        share = np.exp(np.where(inside, gammaln(self.n_labels) - log_p, -np.inf))
        return share.mean(axis=0), share.std(axis=0, ddof=1) / math.sqrt(n)


class _Hpd(_Density):
    """``s = P(p(Y|x) >= p(ℓ|x))``, Y a draw of the law: the probability of the smallest level set that holds ℓ.

    Below all draws the content is 1 and says no more; there the score goes on with the nats below the lowest draw.
    """

    def __init__(self, law: Any, n_draws: int, seed: Seed) -> None:
        super().__init__(law, n_draws, seed)
        draws = to_numpy(draw_from(law, n_draws, seed))
        self.levels = np.sort(self.log_density(draws), axis=0)  # (n_draws, b)

    def _from_log_density(self, log_p: Array) -> Array:
        flat = log_p.reshape(-1, log_p.shape[-1])
        n, out = len(self.levels), np.empty_like(flat)
        for row in range(flat.shape[1]):
            out[:, row] = 1.0 - np.searchsorted(self.levels[:, row], flat[:, row], side="left") / n
        lowest = self.levels[0]
        with np.errstate(invalid="ignore"):
            out = np.where(flat < lowest, 1.0 + (lowest - flat), out)
        return out.reshape(log_p.shape)


class _Mahalanobis(RegionScore):
    """``s = (ℓ - E ℓ)ᵀ Cov⁺ (ℓ - E ℓ)``: an ellipsoid in the plane of the simplex."""

    def __init__(self, law: Any, n_draws: int, seed: Seed) -> None:
        super().__init__(law, n_draws, seed)
        self.mean = to_numpy(law.mean)
        covariance = to_numpy(_covariance(law))
        # an orthonormal basis of the plane Σ ℓ = const
        self.plane = np.linalg.svd(np.ones((1, self.n_labels)))[2][1:].T  # (L, L-1)
        values, vectors = np.linalg.eigh(self.plane.T @ covariance @ self.plane)
        top = np.maximum(values[:, -1:], np.finfo(np.float64).tiny)
        self.values = np.maximum(values, SMALLEST_EIGENVALUE * top)  # (b, L-1)
        self.axes = self.plane @ vectors  # (b, L, L-1)

    def score(self, points: Array) -> Array:
        along = np.einsum("...bl,blk->...bk", points - self.mean, self.axes)
        out: Array = (along**2 / self.values).sum(axis=-1)
        return out

    def score_shared(self, points: Array) -> Array:
        return self.score(points[:, None, :])

    def adapted_volume(self, q: Array, n: int, seed: Seed) -> tuple[Array, Array]:
        # uniform points of the ellipsoid; its own volume is known
        d = self.n_labels - 1
        rng = np.random.default_rng(seed())
        ball = rng.normal(size=(n, d))
        ball *= (rng.random((n, 1)) ** (1.0 / d)) / np.linalg.norm(ball, axis=1, keepdims=True)
        finite = np.where(np.isfinite(q), q, 0.0)
        steps = np.einsum("sk,blk->sbl", ball, self.axes * np.sqrt(self.values * finite[:, None])[:, None, :])
        hit = (self.mean + steps >= 0.0).all(axis=-1).mean(axis=0)
        log_ball = 0.5 * d * math.log(math.pi) - gammaln(0.5 * d + 1.0)
        log_simplex = 0.5 * math.log(self.n_labels) - gammaln(self.n_labels)
        with np.errstate(divide="ignore"):
            log_size = log_ball + 0.5 * (np.log(self.values).sum(axis=1) + d * np.log(finite)) - log_simplex
        return np.exp(log_size) * hit, np.exp(log_size) * hit_error(hit, n)


def _covariance(law: Any) -> Any:
    matrix = getattr(law, "covariance_matrix", None)
    if matrix is not None:
        return matrix
    if isinstance(law, torch.distributions.Dirichlet):
        total = law.concentration.sum(-1)[..., None, None]
        return (torch.diag_embed(law.mean) - law.mean[..., :, None] * law.mean[..., None, :]) / (total + 1.0)
    raise InputError(f'a {type(law).__name__} has no covariance_matrix; use method="density" or "hpd".')


def hit_error(share: Array, n: int) -> Array:
    """Binomial standard error of a share of n draws; half a draw is added so that 0 hits are not taken for certain."""
    settled = (share * n + 0.5) / (n + 1.0)
    out: Array = np.sqrt(settled * (1.0 - settled) / n)
    return out


REGION_SCORES: dict[str, type[RegionScore]] = {"density": _Density, "hpd": _Hpd, "mahalanobis": _Mahalanobis}
