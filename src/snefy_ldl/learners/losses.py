"""Softmax-linear models with another loss: δ-LDL, LDL-DVS, LDL4C, LDL-HR, LDLM, LDL-LRR and LDL-DPA."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.special import entr, expit, xlogy
from scipy.stats import rankdata
from torch import Tensor
from torch.nn.functional import softplus

from snefy_ldl._internal.types import Array, Index
from snefy_ldl.errors import InputError
from snefy_ldl.learners.linear import (
    ROUNDING,
    RowLinear,
    RowLoss,
    SoftmaxLinear,
    Term,
    curvature_ratio,
    filled_mean,
    kl_rows,
    rounded_size,
)


@dataclass(eq=False, repr=False)
class DeltaLDL(RowLinear):
    """Softmax-linear model that wants most rows nearly right (δ-LDL).

    ``mean_i ∫₀^δ₀ σ(s (KL_i - δ)) dδ + λ/(2N) ‖θ‖²`` with ``KL_i = KL(d_i ‖ p_i)`` and ``δ₀`` the mean KL divergence of
    the rows from even shares: a soft count of the rows that are not right within δ, over all δ up to δ₀, so that rows
    that are far off do not decide. The integral is in closed form,
    ``[softplus(s KL_i) - softplus(s (KL_i - δ₀))]/s``; it is divided by its slope at a row that is right, so that one
    ``λ`` suits all learners. :func:`snefy_ldl.metrics.delta_mu` is the measure that belongs to it.

    The paper's model is a network; ours is linear, with a penalty. Its sigmoid has ``s = 1``.

    Args:
        sharpness: ``s``, against ``δ₀``: the sigmoid's steepness is ``s / δ₀`` (python-ldl has ``δ₀`` here, which
            makes the loss all but equal to the KL divergence).
        l2: ``λ``; ``"auto"`` takes it from leave-one-out losses on the training rows.
        max_iter: Most L-BFGS iterations.
        tol: Largest gradient entry at which the search stops.
        standardize: Scale features and clip them at five standard deviations; ``"auto"`` also settles the scaling.
        random_state: Accepted by every learner; unused here.

    Attributes:
        coef_: ``θ``, (d, L), for scaled features.
        intercept_: ``b``, (L,).
        l2_: The ``λ`` in use.
        n_iter_: Iterations taken.

    References:
        Li et al., Approximately correct label distribution learning, ICML 2025.

    Example:
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> DeltaLDL().fit(city.X, city.D).predict(city.X[:2]).shape
        (2, 3)
    """

    sharpness: float = 0.3

    def _rows(self, D: Array) -> RowLoss:
        true = torch.from_numpy(D)
        size = max(float((xlogy(D, D).sum(axis=1) + np.log(D.shape[1])).mean()), 1e-9)  # even rows: any size will do
        steep = self.sharpness / size
        slope = 0.5 - 1.0 / (1.0 + np.exp(self.sharpness))  # of the integral at KL = 0

        def rows(P: Tensor) -> Tensor:
            miss = kl_rows(true, P)
            loss: Tensor = (softplus(steep * miss) - softplus(steep * (miss - size))) / (steep * slope)
            return loss

        return rows


def soft_least(first: Tensor, second: Tensor, sharpness: float) -> Tensor:
    """``(a e^{-ka} + b e^{-kb}) / (e^{-ka} + e^{-kb})``, a smooth minimum of two numbers.

    Args:
        first: a, any shape.
        second: b, the same shape.
        sharpness: k.

    Returns:
        Smooth minima.

    Example:
        >>> round(float(soft_least(torch.tensor(0.1), torch.tensor(0.9), 10.0)), 3)
        0.1
    """
    part = torch.sigmoid(sharpness * (second - first))
    return part * first + (1.0 - part) * second


@dataclass(eq=False, repr=False)
class LDLDVS(RowLinear):
    """Softmax-linear model that keeps how far opposed labels divide a row (LDL-DVS).

    ``mean_i [KL(d_i ‖ p_i) + α mean_{jk} a_j b_k |ψ(d_ij, d_ik) - ψ(p_ij, p_ik)|] + λ/(2N) ‖θ‖²`` over pairs of a label
    j for and a label k against, ``ψ`` a smooth minimum: what two labels that oppose each other both have. The paper
    argues for pairs instead of whole groups, whose gradients fight each other.

    The paper is known by its summary and by python-ldl's form. That compares the pairs of the prediction with the whole
    groups of the label; here pairs are compared with pairs.

    Args:
        alpha: ``α``, the weight of the divisiveness.
        sharpness: Of the smooth minimum.
        positive: Weights ``a`` of the labels for, (L,); None: every pair of labels opposes each other.
        negative: Weights ``b`` of the labels against, (L,); give both or none.
        l2: ``λ``; ``"auto"`` takes it from leave-one-out losses on the training rows.
        max_iter: Most L-BFGS iterations.
        tol: Largest gradient entry at which the search stops.
        standardize: Scale features and clip them at five standard deviations; ``"auto"`` also settles the scaling.
        random_state: Accepted by every learner; unused here.

    Attributes:
        coef_: ``θ``, (d, L), for scaled features.
        intercept_: ``b``, (L,).
        l2_: The ``λ`` in use.
        n_iter_: Iterations taken.

    References:
        Lu et al., Divisiveness-consistent label distribution learning, ICML 2026.

    Example:
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> LDLDVS(positive=[1, 0, 0], negative=[0, 0, 1]).fit(city.X, city.D).predict(city.X[:2]).shape
        (2, 3)
    """

    alpha: float = 0.1
    sharpness: float = 10.0
    positive: list[float] | None = None
    negative: list[float] | None = None

    def _check_params(self) -> None:
        super()._check_params()
        if (self.positive is None) != (self.negative is None):
            raise InputError("give positive and negative weights, or neither.")

    def _pairs(self, n_labels: int) -> tuple[Index, Index, Array]:
        """Labels for, labels against, and the weight of each such pair."""
        if self.positive is None:
            first, second = np.triu_indices(n_labels, 1)
            return first, second, np.ones(len(first))
        weights = [np.asarray(w, dtype=np.float64) for w in (self.positive, self.negative)]
        for name, values in zip(("positive", "negative"), weights):
            if values.shape != (n_labels,) or not np.isfinite(values).all() or (values < 0).any():
                raise InputError(f"{name} must be {n_labels} numbers of at least 0, one per label.")
        table = np.outer(*weights)
        np.fill_diagonal(table, 0.0)
        first, second = np.nonzero(table)
        if not len(first):
            raise InputError("no label with a positive weight opposes another with a negative one.")
        return first, second, table[first, second]

    def _rows(self, D: Array) -> RowLoss:
        first, second, weight = (torch.from_numpy(values) for values in self._pairs(D.shape[1]))
        true = torch.from_numpy(D)
        known = soft_least(true[:, first], true[:, second], self.sharpness)

        def rows(P: Tensor) -> Tensor:
            gap = known - soft_least(P[:, first], P[:, second], self.sharpness)
            return kl_rows(true, P) + self.alpha * (weight * rounded_size(gap)).mean(dim=1)

        return rows


def _excess(z: Tensor) -> Tensor:
    """``max(z, 0)``, its corner rounded."""
    return 0.5 * (z + (z.square() + ROUNDING**2).sqrt())


def margin_loss(P: Tensor, largest: Tensor, margin: float) -> Tensor:
    """``max(0, 1 - (p_y - max_{j≠y} p_j)/ρ)`` per row, y the label that should be the largest; its corner is rounded.

    Args:
        P: Shares, (N, L).
        largest: ``y``, (N,).
        margin: ``ρ``.

    Returns:
        Losses, (N,).

    Example:
        >>> P = torch.tensor([[0.7, 0.3], [0.45, 0.55]])
        >>> margin_loss(P, torch.tensor([0, 0]), 0.2).numpy().round(2)
        array([0. , 1.5], dtype=float32)
    """
    right = P.gather(1, largest[:, None])[:, 0]
    rest = P.scatter(1, largest[:, None], -1.0).amax(dim=1)
    return _excess(1.0 - (right - rest) / margin)


class _MarginLinear(RowLinear):
    """Softmax-linear model with absolute losses of the predicted shares."""

    def _ratio(self, D: Array) -> float:
        """Of the absolute loss, whose curvature is one over the mean gap of each label."""
        mean = filled_mean(D)
        return curvature_ratio(mean, np.diag(1.0 / (np.abs(D - mean).mean(axis=0) + ROUNDING)))


@dataclass(eq=False, repr=False)
class LDL4C(_MarginLinear):
    """Softmax-linear model for classification: absolute loss, rows weighted by entropy, a margin (LDL4C).

    ``mean_i e_i [Σ_j |p_ij - d_ij| + C max(0, 1 - (p_iy - max_{j≠y} p_ij)/ρ)] + λ/(2N) ‖θ‖²``, y the largest label of
    ``d_i`` and ``e_i`` its entropy, divided by the mean entropy. |·| and max are rounded within a thousandth. If no row
    has an entropy, all rows weigh the same.

    The three parts are the paper's: absolute loss, entropy weights, large margin. Ours are how they are put together
    (the margin, too, is weighted by entropy, and runs against the largest of all other labels), the rounding, the
    intercept, the choice of ``λ``, and the values of ``C`` and ``ρ``.

    Args:
        alpha: ``C``, the weight of the margin.
        margin: ``ρ``, by how much the largest share should exceed the others.
        l2: ``λ``; ``"auto"`` takes the penalty that suits the KL divergence times the ratio of the losses' curvatures.
        max_iter: Most L-BFGS iterations.
        tol: Largest gradient entry at which the search stops, in units of the KL divergence.
        standardize: Scale features and clip them at five standard deviations; ``"auto"`` also settles the scaling.
        random_state: Accepted by every learner; unused here.

    Attributes:
        coef_: ``θ``, (d, L), for scaled features.
        intercept_: ``b``, (L,).
        l2_: The ``λ`` in use.
        n_iter_: Iterations taken.

    References:
        Wang, Geng, Classification with label distribution learning, IJCAI 2019.

    Example:
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> LDL4C().fit(city.X, city.D).predict(city.X[:2]).shape
        (2, 3)
    """

    alpha: float = 0.1
    margin: float = 0.05

    def _rows(self, D: Array) -> RowLoss:
        entropy = entr(D).sum(axis=1)
        weight = torch.from_numpy(entropy / entropy.mean() if entropy.any() else np.ones(len(D)))
        true, largest = torch.from_numpy(D), torch.from_numpy(D.argmax(axis=1))

        def rows(P: Tensor) -> Tensor:
            return weight * (rounded_size(P - true).sum(dim=1) + self.alpha * margin_loss(P, largest, self.margin))

        return rows


@dataclass(eq=False, repr=False)
class LDLHR(_MarginLinear):
    """Softmax-linear model of the highest label and the rest of the description degrees (LDL-HR).

    ``mean_i [Σ_j |p_ij - e_ij| + α max(0, 1 - (p_iy - max_{j≠y} p_ij)/ρ) + β Σ_{j≠y} |p_ij - d_ij|] + λ/(2N) ‖θ‖²``, y
    the largest label of ``d_i`` and ``e_i`` all of the share on it. |·| and max are rounded within a thousandth.

    The first two terms draw the largest share upwards, so predictions are sharper than the label distributions: this
    is a classifier, to be judged by its largest label.

    The three terms are the paper's. Ours are the rounding, the margin against the largest of the other labels instead
    of a sum over all of them, the intercept, the choice of ``λ``, and the values of ``α``, ``β`` and ``ρ``.

    Args:
        alpha: ``α``, the weight of the margin.
        beta: ``β``, the weight of the other labels' shares.
        margin: ``ρ``, by how much the largest share should exceed the others.
        l2: ``λ``; ``"auto"`` takes the penalty that suits the KL divergence times the ratio of the losses' curvatures.
        max_iter: Most L-BFGS iterations.
        tol: Largest gradient entry at which the search stops, in units of the KL divergence.
        standardize: Scale features and clip them at five standard deviations; ``"auto"`` also settles the scaling.
        random_state: Accepted by every learner; unused here.

    Attributes:
        coef_: ``θ``, (d, L), for scaled features.
        intercept_: ``b``, (L,).
        l2_: The ``λ`` in use.
        n_iter_: Iterations taken.

    References:
        Wang, Geng, Learn the highest label and rest label description degrees, IJCAI 2021.

    Example:
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> LDLHR().fit(city.X, city.D).predict(city.X[:2]).shape
        (2, 3)
    """

    alpha: float = 0.1
    beta: float = 1.0
    margin: float = 0.05

    def _rows(self, D: Array) -> RowLoss:
        y = D.argmax(axis=1)
        true, largest = torch.from_numpy(D), torch.from_numpy(y)
        single = torch.from_numpy(np.eye(D.shape[1])[y])

        def rows(P: Tensor) -> Tensor:
            rest = ((1.0 - single) * rounded_size(P - true)).sum(dim=1)
            highest = rounded_size(P - single).sum(dim=1) + self.alpha * margin_loss(P, largest, self.margin)
            return highest + self.beta * rest

        return rows


@dataclass(eq=False, repr=False)
class LDLM(_MarginLinear):
    """Label distribution learning machine (LDLM): margins for the largest label, and room for the others.

    ``mean_i [max(0, ‖p_i - e_i‖₁ - ρ) + α Σ_{j≠y} max(0, 1 - (p_iy - p_ij)/ρ) + β max(0, Σ_{j≠y} |p_ij - d_ij| - δ_i)]
    + λ/(2N) ‖θ‖²``, y the largest label of ``d_i``, ``e_i`` all of the share on it, and ``δ_i`` the gap between the
    second and the third largest share: an error of the rest that cannot change their order costs nothing. |·| and max
    are rounded within a thousandth.

    The first term is the paper's support vector regression to the largest label, the last its adaptive margin. The
    terms follow the form that python-ldl gives them; the paper's own text could be read in part only. Ours are the
    rounding, means instead of sums, the intercept, the choice of ``λ``, and the values of ``α``, ``β`` and ``ρ``.

    Args:
        alpha: ``α``, the weight of the margins against each other label.
        beta: ``β``, the weight of the other labels' shares.
        margin: ``ρ``, by how much the largest share should exceed the others.
        l2: ``λ``; ``"auto"`` takes the penalty that suits the KL divergence times the ratio of the losses' curvatures.
        max_iter: Most L-BFGS iterations.
        tol: Largest gradient entry at which the search stops, in units of the KL divergence.
        standardize: Scale features and clip them at five standard deviations; ``"auto"`` also settles the scaling.
        random_state: Accepted by every learner; unused here.

    Attributes:
        coef_: ``θ``, (d, L), for scaled features.
        intercept_: ``b``, (L,).
        l2_: The ``λ`` in use.
        n_iter_: Iterations taken.

    References:
        Wang, Geng, Label distribution learning machine, ICML 2021.

    Example:
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> LDLM().fit(city.X, city.D).predict(city.X[:2]).shape
        (2, 3)
    """

    alpha: float = 0.03
    beta: float = 1.0
    margin: float = 0.2

    def _rows(self, D: Array) -> RowLoss:
        y = D.argmax(axis=1)
        true, largest = torch.from_numpy(D), torch.from_numpy(y)[:, None]
        single = torch.from_numpy(np.eye(D.shape[1])[y])
        ranked = np.sort(np.concatenate([D, np.zeros((len(D), 1))], axis=1), axis=1)[:, ::-1]  # two labels: third is 0
        room = torch.from_numpy(ranked[:, 1] - ranked[:, 2])

        def rows(P: Tensor) -> Tensor:
            first = _excess(rounded_size(P - single).sum(dim=1) - self.margin)
            hinges = (1.0 - single) * _excess(1.0 - (P.gather(1, largest) - P) / self.margin)
            rest = _excess(((1.0 - single) * rounded_size(P - true)).sum(dim=1) - room)
            return first + self.alpha * hinges.sum(dim=1) + self.beta * rest

        return rows


@dataclass(eq=False, repr=False)
class LDLLRR(SoftmaxLinear):
    """Softmax-linear model that keeps the label ranking relation (LDL-LRR).

    ``mean_i [KL(d_i ‖ p_i) + α/2 Σ_jk (d_ij - d_ik)² CE(o_ijk, σ(s (p_ij - p_ik)))] + λ/(2N) ‖θ‖²``, where CE is the
    binary cross entropy and ``o_ijk`` is 1, ½ or 0 as ``d_ij`` is above, at or below ``d_ik``.

    Args:
        alpha: ``α``, the weight of the ranking loss.
        sharpness: ``s``, how steeply a difference of shares turns into an order; left open by the paper.
        l2: ``λ``; ``"auto"`` takes it from leave-one-out losses on the training rows.
        max_iter: Most L-BFGS iterations.
        tol: Largest gradient entry at which the search stops.
        standardize: Scale features and clip them at five standard deviations; ``"auto"`` also settles the scaling.
        random_state: Accepted by every learner; unused here.

    Attributes:
        coef_: ``θ``, (d, L), for scaled features.
        intercept_: ``b``, (L,).
        l2_: The ``λ`` in use.
        n_iter_: Iterations taken.

    References:
        Jia, Shen, Li, Lu, Zhang, Label distribution learning by maintaining label ranking relation, IEEE
        TKDE 35(2), 2023.

    Example:
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> LDLLRR().fit(city.X, city.D).predict(city.X[:2]).shape
        (2, 3)
    """

    alpha: float = 1e-3
    sharpness: float = 100.0

    def _extra(self, D: Array) -> Term | None:
        return ranking_term(D, self.alpha, self.sharpness) if self.alpha else None


def ranking_term(D: Array, alpha: float, sharpness: float) -> Term:
    """``α/(2N) Σ_ijk (d_ij - d_ik)² CE(o_ijk, σ(s (p_ij - p_ik)))`` over all ordered label pairs."""
    n_rows, n_labels = D.shape
    first, second = np.triu_indices(n_labels, 1)
    gap = D[:, first] - D[:, second]  # (N, pairs); a pair counts twice, which the ½ of the formula undoes
    above = (np.sign(gap) + 1.0) / 2.0
    weight = (alpha / n_rows) * gap**2
    incidence = np.zeros((len(first), n_labels))
    incidence[np.arange(len(first)), first] = 1.0
    incidence[np.arange(len(first)), second] = -1.0

    def term(P: Array) -> tuple[float, Array]:
        margin = sharpness * (P[:, first] - P[:, second])
        cross_entropy = np.logaddexp(0.0, margin) - above * margin
        pull = sharpness * weight * (expit(margin) - above)
        return float((weight * cross_entropy).sum()), pull @ incidence

    return term


@dataclass(eq=False, repr=False)
class LDLDPA(SoftmaxLinear):
    """Softmax-linear model with description-degree percentile averages (LDL-DPA).

    ``mean_i [KL(d_i ‖ p_i) - α/L Σ_j r_ij p_ij + β (var_j d_ij - var_j p_ij)²] + λ/(2N) ‖θ‖²``, where ``r_ij`` is the
    rank of label j within ``d_i`` (1 for the smallest share; ties share their mean rank, a choice taken here).

    Args:
        alpha: ``α``, the weight of the rank-weighted shares.
        beta: ``β``, the weight of the match of variances.
        l2: ``λ``; ``"auto"`` takes it from leave-one-out losses on the training rows.
        max_iter: Most L-BFGS iterations.
        tol: Largest gradient entry at which the search stops.
        standardize: Scale features and clip them at five standard deviations; ``"auto"`` also settles the scaling.
        random_state: Accepted by every learner; unused here.

    Attributes:
        coef_: ``θ``, (d, L), for scaled features.
        intercept_: ``b``, (L,).
        l2_: The ``λ`` in use.
        n_iter_: Iterations taken.

    References:
        Jia, Qin, Lu, Li, Adaptive weighted ranking-oriented label distribution learning, IEEE TNNLS 35(8), 2023.

    Example:
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> LDLDPA().fit(city.X, city.D).predict(city.X[:2]).shape
        (2, 3)
    """

    alpha: float = 1e-3
    beta: float = 1e-3

    def _extra(self, D: Array) -> Term | None:
        return percentile_term(D, self.alpha, self.beta)


def percentile_term(D: Array, alpha: float, beta: float) -> Term:
    """``1/N Σ_i [-α/L Σ_j r_ij p_ij + β (var d_i - var p_i)²]``."""
    n_rows, n_labels = D.shape
    rank_pull = -(alpha / (n_rows * n_labels)) * rankdata(D, axis=1)
    variance = D.var(axis=1)

    def term(P: Array) -> tuple[float, Array]:
        centred = P - P.mean(axis=1, keepdims=True)
        excess = (centred**2).mean(axis=1) - variance
        value = float((rank_pull * P).sum()) + (beta / n_rows) * float((excess**2).sum())
        gradient = rank_pull + (4.0 * beta / (n_rows * n_labels)) * excess[:, None] * centred
        return value, gradient

    return term
