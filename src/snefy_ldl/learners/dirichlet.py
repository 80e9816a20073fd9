"""Dirichlet baselines: a point learner with one concentration, Dirichlet regression, and a mixture of Dirichlets."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from scipy.special import gammaln
from torch import Tensor
from torch.distributions import MixtureSameFamily as Mixture

from snefy_ldl._internal.types import Array
from snefy_ldl.datasets.zeros import ZeroOption, ZeroPolicy
from snefy_ldl.distributions import SnefySimplex
from snefy_ldl.errors import InputError
from snefy_ldl.learners.learner import Learner, close_rows, seeded_clone
from snefy_ldl.learners.linear import Design, PenalisedLearner, minimise
from snefy_ldl.learners.maxent import SABFGS
from snefy_ldl.prediction import DistributionPredictor

#: Range of log concentrations that is searched or predicted; both ends lie far outside any data.
_LOG_RANGE = (-15.0, 25.0)
#: No predicted concentration parameter is smaller than this.
_SMALLEST_CONCENTRATION = 1e-6
#: Penalty of Dirichlet regression against that of a softmax-linear model, on top of the factor ``s₀``.
PENALTY_FACTOR = 4.0


class DirichletLearner(PenalisedLearner, DistributionPredictor):  # type: ignore[misc]  # score is minus KL, as of learners
    """Base of learners that predict one Dirichlet distribution per row; subclasses write ``_alpha``."""

    zeros: ZeroOption

    @abstractmethod
    def _alpha(self, features: Array) -> Array:
        """Concentrations (N, L) of clean features."""

    def _log_labels(self, D: Array) -> Array:
        """Logarithms of label distributions (N, L), whose zeros the policy has lifted."""
        policy = ZeroPolicy.from_data(D, self.zeros)
        self.zero_mode_, self.zero_floor_ = policy.mode, policy.floor
        return np.log(policy.apply(D, warn=True, names=self.label_names_))

    def _predict(self, X: Array) -> Array:
        alpha = self._alpha(X)
        return alpha / alpha.sum(axis=1, keepdims=True)

    def predict_concentration(self, X: Any) -> Array:
        """Concentrations ``α(x)`` of the predicted Dirichlet distributions.

        Args:
            X: Features (N, d).

        Returns:
            Concentrations, (N, L).
        """
        return self._alpha(self._check_X(X))

    # The density, as SnefyLDL offers it -----------------------------------------------------------------------------

    def predict_dist(self, X: Any) -> SnefySimplex:
        """The predicted distributions as one :class:`~snefy_ldl.SnefySimplex`.

        Args:
            X: Features (N, d).

        Returns:
            Distributions with batch (N,) and event (L,).
        """
        alpha = torch.from_numpy(self.predict_concentration(X))
        n_rows, n_labels = alpha.shape
        one = torch.ones(1, 1, dtype=torch.float64)
        zero = torch.zeros(1, n_labels, dtype=torch.float64)
        dist = SnefySimplex(zero, one, torch.zeros(n_rows, 1, dtype=torch.float64), offset=alpha - 1.0)
        return dist.named(self.label_names_)

    @property
    def zero_policy_(self) -> ZeroPolicy:  # type: ignore[override]
        """What happens to shares of zero, chosen in fit."""
        return ZeroPolicy(self.zero_mode_, self.zero_floor_)

    def _blocks(self, X: Any, what: str = "predict", **context: Any) -> Iterator[tuple[slice, SnefySimplex]]:
        dist = self.predict_dist(X)
        yield slice(0, dist.batch_shape[0]), dist


@dataclass(eq=False, repr=False)
class DirichletLDL(DirichletLearner):
    """Dirichlet distribution of the label distribution given the features.

    ``method="centred"``: ``ℓ | x ~ Dirichlet(s m(x))`` with ``m`` a point learner and one concentration ``s``, which
    maximises ``Σ_i log Dirichlet(d_i; s m(x_i))`` on the training labels. This is the paper's baseline, with SA-BFGS as
    ``m``; the maximum-likelihood ``s`` is the choice taken here where the paper names none.

    ``method="regression"``: ``ℓ | x ~ Dirichlet(α(x))`` with ``log α_j(x) = x θ_j + b_j``, which minimises
    ``-Σ_i log Dirichlet(d_i; α(x_i)) + 2 λ s₀ ‖θ‖²``. ``s₀`` is the concentration of the best Dirichlet without
    features: it makes ``λ`` mean about what it does in :class:`SABFGS`, whose loss is smaller by that factor.

    Args:
        method: ``"centred"`` or ``"regression"``.
        mean: The point learner of ``"centred"``; None is ``SABFGS()``.
        l2: ``λ`` of ``"regression"``; ``"auto"`` takes it from leave-one-out losses on the training rows.
        max_iter: Most L-BFGS iterations of ``"regression"``.
        tol: Largest gradient entry at which ``"regression"`` stops.
        zeros: Policy for shares of zero, whose logarithm the density needs: ``"shrink"``, ``"error"`` or a floor.
        standardize: Centre and scale the features of ``"regression"``, and clip them at five standard deviations.
        random_state: Seeds the point learner if it has no seed.

    Attributes:
        mean_learner_: The fitted point learner of ``"centred"``.
        concentration_: Its ``s``.
        coef_: ``θ`` of ``"regression"``, (d, L), for scaled features.
        intercept_: Its ``b``, (L,).
        zero_policy_: What happens to shares of zero.
        l2_: The ``λ`` in use with ``"regression"``.

    References:
        Hijazi & Jernigan, Modelling compositional data using Dirichlet regression models, JAPS 4(1), 2009.

    Example:
        >>> import numpy as np
        >>> X = np.linspace(0, 1, 20)[:, None]
        >>> D = np.concatenate([0.2 + 0.5 * X, 0.8 - 0.5 * X], axis=1)
        >>> model = DirichletLDL(method="regression").fit(X, D)
        >>> model.predict([[0.5]]).round(2)
        array([[0.45, 0.55]])
        >>> model.predict_interval([[0.5]], confidence_level=0.9).shape
        (1, 2, 2)
    """

    method: Literal["centred", "regression"] = "centred"
    mean: Learner | None = None
    zeros: ZeroOption = "shrink"
    _: KW_ONLY
    tol: float = 1e-5

    _choices = {"method": ("centred", "regression")}  # noqa: RUF012 - never changed

    def _check_params(self) -> None:
        if self.mean is not None and not (hasattr(self.mean, "fit") and hasattr(self.mean, "predict")):
            raise InputError(f"mean must be a label distribution learner or None; got {self.mean!r}.")
        super()._check_params()

    def _fit(self, X: Array, D: Array, random: np.random.RandomState) -> None:
        log_D = self._log_labels(D)
        if self.method == "centred":
            mean = SABFGS() if self.mean is None else self.mean
            self.mean_learner_ = seeded_clone(mean, int(random.randint(2**31 - 1)), keep=True).fit(X, D)
            self.concentration_ = fit_concentration(np.asarray(self.mean_learner_.predict(X)), log_D)
        else:
            self._regress(X, D, log_D)

    def _regress(self, X: Array, D: Array, log_D: Array) -> None:
        scaled = self._prepare(X, D)
        centre = close_rows(D.mean(axis=0)[None], self.share_floor_)
        total = fit_concentration(np.broadcast_to(centre, D.shape), log_D)
        penalty = PENALTY_FACTOR * total * self.l2_
        design = Design.of(scaled, penalty, curvature=max(total / D.shape[1], 1e-3))
        start = np.zeros((design.Z.shape[1], D.shape[1]))
        start[-1] = np.log(total * centre[0]) / design.constant
        Z, labels = torch.from_numpy(design.Z), torch.from_numpy(np.exp(log_D))
        ridge = torch.from_numpy(penalty / len(D) * design.ridge[:, None])

        def loss(weights: list[Tensor]) -> Tensor:
            alpha = (Z @ weights[0]).clamp(*_LOG_RANGE).exp()
            fitted = torch.distributions.Dirichlet(alpha, validate_args=False).log_prob(labels).mean()
            return 0.5 * (ridge * weights[0].square()).sum() - fitted

        (w,), self.n_iter_ = minimise(loss, [start], self.max_iter, self.tol)
        self.coef_, self.intercept_ = design.weights(w)

    def _alpha(self, features: Array) -> Array:
        """Concentrations (N, L)."""
        if self.method == "centred":
            alpha = self.concentration_ * np.asarray(self.mean_learner_.predict(features))
        else:
            alpha = np.exp(np.clip(self._scaled(features) @ self.coef_ + self.intercept_, *_LOG_RANGE))
        return np.maximum(alpha, _SMALLEST_CONCENTRATION)

    def _predict(self, X: Array) -> Array:
        return np.asarray(self.mean_learner_.predict(X)) if self.method == "centred" else super()._predict(X)


@dataclass(eq=False, repr=False)
class LDLDPM(PenalisedLearner):
    """Mixture of Dirichlets with stick-breaking weights (LDL-DPM).

    ``p(ℓ|x) = Σ_k π_k(x) Dirichlet(ℓ; s m_k(x))`` with ``π_k(x) ∝ w_k exp(x γ_k + c_k)`` and
    ``m_kj(x) ∝ softplus(x θ_kj + b_kj)`` minimises ``-mean_i log p(d_i|x_i) + λ/(2N) (4 s ‖θ‖² + ‖γ‖²)``. The weights
    are those of broken sticks, ``w_k = v_k Π_{l<k} (1 - v_l)``, ``v_k`` the mean of ``Beta(1 + n_k, c + Σ_{l>k} n_l)``
    and ``n_k`` the rows that component k is expected to explain: components that explain none fade.

    The density and the prior of its weights are the paper's (as python-ldl states them). Ours: expected rows in a
    truncated process instead of slice sampling, L-BFGS instead of Adam, the penalty, and ``s`` from the data (theirs
    is 3).

    Args:
        n_components: Components at most.
        concentration: ``c`` of the process: more of it spreads weight over more components.
        strength: ``s``; ``"auto"`` is the concentration of a Dirichlet around :class:`SABFGS`.
        n_rounds: Alternations of weights and the rest.
        zeros: Policy for shares of zero: ``"shrink"``, ``"error"`` or a floor.
        l2: ``λ``; ``"auto"`` takes it from leave-one-out losses on the training rows.
        max_iter: Most L-BFGS iterations of a round.
        tol: Largest gradient entry at which a round's search stops.
        standardize: Scale features and clip them at five standard deviations; ``"auto"`` also settles the scaling.
        random_state: Seeds the start.

    Attributes:
        weights_: ``w``, (K,).
        strength_: ``s``.
        coef_: ``θ``, (d, K L), for scaled features; ``intercept_`` its ``b``.
        gate_coef_: ``γ``, (d, K); ``gate_intercept_`` its ``c``.
        l2_: The ``λ`` in use.

    References:
        Wang et al., Label distribution learning with a Dirichlet process mixture model, 2026.

    Example:
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> model = LDLDPM(n_components=2, random_state=0).fit(city.X, city.D)
        >>> model.predict(city.X[:2]).shape, model.predict_dist(city.X[:2]).event_shape
        ((2, 3), torch.Size([3]))
    """

    n_components: int = 5
    concentration: float = 1.0
    strength: float | str = "auto"
    n_rounds: int = 5
    zeros: ZeroOption = "shrink"
    _: KW_ONLY
    max_iter: int = 50
    tol: float = 1e-5

    def _fit(self, X: Array, D: Array, random: np.random.RandomState) -> None:
        scaled, n_parts = self._prepare(X, D), self.n_components
        positive = ZeroPolicy.from_data(D, self.zeros).apply(D, warn=True, names=self.label_names_)
        centred = np.asarray(SABFGS(l2=self.l2_).fit(X, D).predict(X))
        strength = fit_concentration(centred, np.log(positive)) if self.strength == "auto" else self.strength
        self.strength_ = float(strength)
        theta_l2 = PENALTY_FACTOR * self.strength_ * self.l2_
        design = Design.of(scaled, theta_l2, curvature=max(self.strength_ / D.shape[1], 1e-3))
        Z, labels = torch.from_numpy(design.Z), torch.from_numpy(positive)
        ridge = torch.from_numpy(design.ridge[:, None] / len(D))
        means = np.vstack([D.mean(axis=0), 0.5 * D.mean(axis=0) + 0.5 * D[random.choice(len(D), n_parts - 1)]]) + 1e-3
        weights = [np.zeros((len(ridge), means.size)), np.zeros((len(ridge), n_parts))]
        weights[0][-1] = np.log(np.expm1(means)).ravel() / design.constant
        self.weights_ = np.full(n_parts, 1.0 / n_parts)

        def loss(weights: list[Tensor]) -> Tensor:
            theta, gate = weights
            penalty = theta_l2 * (ridge * theta.square()).sum() + self.l2_ * (ridge * gate.square()).sum()
            return 0.5 * penalty - self._mixture(Z @ theta, Z @ gate).log_prob(labels).mean()

        for _ in range(self.n_rounds):
            weights, _ = minimise(loss, weights, self.max_iter, self.tol)
            theta, gate = (torch.from_numpy(w) for w in weights)
            mixture = self._mixture(Z @ theta, Z @ gate)
            parts = mixture.component_distribution.log_prob(labels[:, None]) + mixture.mixture_distribution.logits
            self.weights_ = stick_weights(parts.softmax(dim=1).sum(dim=0).numpy(), self.concentration)
        self.coef_, self.intercept_ = design.weights(weights[0])
        self.gate_coef_, self.gate_intercept_ = design.weights(weights[1])

    def _mixture(self, outputs: Tensor, gate: Tensor) -> Mixture:
        sizes = torch.nn.functional.softplus(outputs).reshape(len(outputs), len(self.weights_), -1)
        alpha = (self.strength_ * sizes / sizes.sum(dim=-1, keepdim=True)).clamp_min(_SMALLEST_CONCENTRATION)
        parts = torch.distributions.Dirichlet(alpha, validate_args=False)
        choice = torch.distributions.Categorical(
            logits=torch.from_numpy(np.log(self.weights_)) + gate, validate_args=False
        )
        return Mixture(choice, parts, validate_args=False)

    def _mixture_of(self, features: Array) -> Mixture:
        scaled = self._scaled(features)
        outputs = scaled @ self.coef_ + self.intercept_, scaled @ self.gate_coef_ + self.gate_intercept_
        return self._mixture(*(torch.from_numpy(output) for output in outputs))

    def _predict(self, X: Array) -> Array:
        return np.asarray(self._mixture_of(X).mean.numpy())

    def predict_dist(self, X: Any) -> Mixture:
        """The predicted mixtures of Dirichlets, as torch's own distribution: batch (N,), event (L,).

        Args:
            X: Features (N, d).

        Returns:
            A ``torch.distributions.MixtureSameFamily``.
        """
        return self._mixture_of(self._check_X(X))


def stick_weights(explained: Array, concentration: float) -> Array:
    """Weights of broken sticks, given how many rows each component explains.

    Args:
        explained: ``n``, (K,).
        concentration: ``c``.

    Returns:
        ``w``, (K,), that sum to one: the last stick takes the rest.

    Example:
        >>> stick_weights(np.array([8.0, 1.0, 0.0]), 1.0).round(3)
        array([0.818, 0.121, 0.061])
    """
    later = explained.sum() - np.cumsum(explained)
    broken = (1.0 + explained) / (1.0 + explained + concentration + later)
    broken[-1] = 1.0
    return broken * np.cumprod(np.append(1.0, 1.0 - broken[:-1]))


def fit_concentration(mean: Array, log_D: Array) -> float:
    """The ``s`` that maximises ``Σ_i log Dirichlet(d_i; s m_i)``; concave in s, so one search does.

    Args:
        mean: Means ``m``, (N, L).
        log_D: Logarithms of the label distributions, (N, L).

    Returns:
        The concentration.

    Example:
        >>> labels = np.random.default_rng(0).dirichlet([4.0, 4.0, 4.0], 2000)
        >>> round(fit_concentration(np.full(labels.shape, 1 / 3), np.log(labels)))
        12
    """
    cross = float((mean * log_D).sum()) / len(mean)

    def loss(log_s: float) -> float:
        s = np.exp(log_s)
        return float(gammaln(s * mean).sum() / len(mean) - gammaln(s) - s * cross)

    best = minimize_scalar(loss, bounds=_LOG_RANGE, method="bounded", options={"xatol": 1e-8})
    return float(np.exp(best.x))
