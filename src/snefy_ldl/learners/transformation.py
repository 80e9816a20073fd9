"""Problem transformation: each row becomes one weighted copy a label, for a single-label classifier."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import expit, softmax
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import KFold
from sklearn.svm import LinearSVC

from snefy_ldl._internal.types import Array
from snefy_ldl.learners.linear import ScaledLearner, principal_axes

#: An unused label still has this weight, in rows, so that its mean and variance exist.
_PHANTOM_ROWS = 1e-6
#: Smoothing of PT-Bayes and penalty of PT-SVM, as multiples of the penalty that suits a softmax-linear model.
_SMOOTHING_PER_L2, _MARGIN_PER_L2 = 3.0, 25.0


@dataclass(eq=False, repr=False)
class PTBayes(ScaledLearner):
    """Gaussian naive Bayes on weighted single-label copies (PT-Bayes).

    Row i counts for label j with weight ``d_ij``: ``p_j(x) ∝ π_j Π_k N(x_k; μ_jk, v_k + s)`` with
    ``π_j = mean_i d_ij``, ``μ_jk = Σ_i d_ij x_ik / Σ_i d_ij``, ``v_k`` the mean of the labels' weighted variances and
    ``s`` the smoothing.

    The paper draws a resample by the weights; here they enter the sums, which is its limit for ever larger resamples,
    so the fit is exact, deterministic, and needs no copies. Plain naive Bayes counts evidence again for every feature
    that repeats another; here the features are therefore principal components, which do not, and all labels share one
    variance a component.

    Args:
        var_smoothing: ``s``; ``"auto"`` is ``3 L λ / N`` with the ``λ`` that suits :class:`SABFGS`.
        standardize: Scale features and clip them at five standard deviations; ``"auto"`` also settles the scaling.
        random_state: Accepted by every learner; unused here.

    Attributes:
        prior_: ``π``, (L,).
        mean_: ``μ``, (L, r).
        variance_: ``v + s``, (r,).
        centre_: Mean of the scaled features, (d,).
        axes_: Principal axes, (d, r).
        l2_: The ``λ`` that the smoothing comes from.

    References:
        Geng, Label distribution learning, IEEE TKDE 28(7), 2016, section 3.1.

    Example:
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> PTBayes().fit(city.X, city.D).predict(city.X[:2]).shape
        (2, 3)
    """

    var_smoothing: float | str = "auto"
    standardize: bool | str = "auto"
    random_state: Any = None

    def _fit(self, X: Array, D: Array, random: np.random.RandomState) -> None:
        scaled = self._prepare(X, D)
        self.centre_ = scaled.mean(axis=0)
        self.axes_ = principal_axes(scaled - self.centre_)[1]
        features = (scaled - self.centre_) @ self.axes_
        weight = D + _PHANTOM_ROWS / len(D)
        total = weight.sum(axis=0)[:, None]  # (L, 1)
        self.prior_ = total[:, 0] / total.sum()
        self.mean_ = weight.T @ features / total  # (L, r)
        variance = np.stack([w @ (features - m) ** 2 for w, m in zip(weight.T, self.mean_)]) / total
        smoothing = self.var_smoothing
        if smoothing == "auto":
            smoothing = _SMOOTHING_PER_L2 * D.shape[1] * self.l2_ / len(D)
        self.variance_ = self.prior_ @ variance + smoothing

    def _predict(self, X: Array) -> Array:
        features = (self._scaled(X) - self.centre_) @ self.axes_
        weights = self.mean_ / self.variance_
        return softmax(np.log(self.prior_) + features @ weights.T - 0.5 * (weights * self.mean_).sum(axis=1), axis=-1)


@dataclass(eq=False, repr=False)
class PTSVM(ScaledLearner):
    """Linear support vector machines on weighted single-label copies (PT-SVM).

    For each label j a machine with squared hinge loss separates the rows as members, with weight ``d_ij``, from the
    same rows as non-members, with weight ``1 - d_ij``:
    ``½‖w_j‖² + C Σ_i [d_ij (1 - f_ij)₊² + (1 - d_ij) (1 + f_ij)₊²]``. Platt's sigmoid turns ``f_ij`` into a
    probability, and the probabilities are divided by their sum.

    Choices taken here: one against the rest with weights instead of a resample; the squared hinge, whose minimiser
    ``f = 2 d - 1`` is informative for shares below one half, where the plain hinge is constant; and sigmoids fitted
    on decision values from cross-validation.

    Args:
        C: Weight of the losses against the margin; ``"auto"`` is ``1 / (25 λ)`` with the ``λ`` that
            suits :class:`SABFGS`.
        n_folds: Folds that supply the decision values for the sigmoids.
        max_iter: Most iterations of each machine.
        standardize: Scale features and clip them at five standard deviations; ``"auto"`` also settles the scaling.
        random_state: Seeds the folds.

    Attributes:
        coef_: Weights of the machines, (d, L), for scaled features.
        intercept_: Their intercepts, (L,).
        sigmoid_: Slopes and intercepts of the sigmoids, (2, L).
        C_: The ``C`` in use.

    References:
        Geng, Label distribution learning, IEEE TKDE 28(7), 2016, section 3.1; Geng & Xia, CVPR 2014.

    Example:
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> PTSVM().fit(city.X, city.D).predict(city.X[:2]).shape
        (2, 3)
    """

    C: float | str = "auto"
    n_folds: int = 3
    max_iter: int = 1000
    standardize: bool | str = "auto"
    random_state: Any = None

    def _fit(self, X: Array, D: Array, random: np.random.RandomState) -> None:
        scaled = self._prepare(X, D)
        self.C_ = 1.0 / (_MARGIN_PER_L2 * self.l2_) if self.C == "auto" else float(self.C)
        self.coef_, self.intercept_ = self._machines(scaled, D)
        values = scaled @ self.coef_ + self.intercept_
        n_folds = min(self.n_folds, len(D))
        if n_folds > 1:
            for train, held_out in KFold(n_folds, shuffle=True, random_state=random).split(scaled):
                coef, intercept = self._machines(scaled[train], D[train])
                values[held_out] = scaled[held_out] @ coef + intercept
        self.sigmoid_ = platt_sigmoids(values, D)

    def _machines(self, X: Array, D: Array) -> tuple[Array, Array]:
        """Weights (d, L) and intercepts (L,) of one machine a label."""
        copies = np.concatenate([X, X])
        member = np.repeat([1, 0], len(X))
        coef, intercept = np.empty((X.shape[1], D.shape[1])), np.empty(D.shape[1])
        for j, share in enumerate(D.T):
            machine = LinearSVC(C=self.C_, dual=False, max_iter=self.max_iter, intercept_scaling=10.0)
            machine.fit(copies, member, sample_weight=np.concatenate([share, 1.0 - share]))
            coef[:, j], intercept[j] = machine.coef_[0], machine.intercept_[0]
        return coef, intercept

    def _predict(self, X: Array) -> Array:
        values = self._scaled(X) @ self.coef_ + self.intercept_
        P = expit(self.sigmoid_[0] * values + self.sigmoid_[1])
        return P / P.sum(axis=1, keepdims=True)


def platt_sigmoids(values: Array, D: Array) -> Array:
    """Sigmoids of decision values that minimise the cross entropy of ``D`` column by column.

    Args:
        values: Decision values, (N, L).
        D: Label distributions, (N, L).

    Returns:
        Slopes and intercepts, (2, L).
    """
    centre, scale = values.mean(axis=0), values.std(axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    # Platt's prior of one row a side keeps the targets, and so the sigmoid, away from 0 and 1.
    target = (len(D) * D + 1.0 / D.shape[1]) / (len(D) + 1.0)
    member, slope, intercept = np.repeat([1, 0], len(D)), np.empty(D.shape[1]), np.empty(D.shape[1])
    for j, unit in enumerate(((values - centre) / scale).T):
        weight = np.concatenate([target[:, j], 1.0 - target[:, j]])
        line = LogisticRegression(C=1e12, tol=1e-6).fit(np.tile(unit, 2)[:, None], member, sample_weight=weight)
        slope[j], intercept[j] = line.coef_[0, 0], line.intercept_[0]
    return np.stack([slope / scale, intercept - slope / scale * centre])
