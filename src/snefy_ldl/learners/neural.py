"""Learners with hidden units: AA-BP, evidential and conditional probability networks, S-LDL, soft forests (LDLF)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from scipy.special import expit, softmax
from torch import Tensor
from torch.nn.functional import leaky_relu, softplus

from snefy_ldl._internal.types import Array
from snefy_ldl.datasets.zeros import ZeroOption
from snefy_ldl.learners.dirichlet import PENALTY_FACTOR, DirichletLearner, fit_concentration
from snefy_ldl.learners.learner import close_rows
from snefy_ldl.learners.linear import Design, PenalisedLearner, minimise

#: Curvature of the loss in a first-layer weight, by order of magnitude; it scales the inputs.
_CURVATURE = 0.05
#: Outputs (N, L) to a loss.
TensorLoss = Callable[[Tensor], Tensor]
#: |z| is taken as √(z² + ε²) in the loss of subtasks, so that it has a gradient everywhere.
ROUNDING = 1e-3
#: Rows times labels times units, or rows times trees times leaves, held at once while predicting.
_CHUNK = 4_000_000


class UnitLearner(PenalisedLearner):
    """Base of learners whose first layer is linear units on scaled features, under a ridge penalty.

    The penalties are parts of the ``λ`` that suits a softmax-linear model: one for the first layer, one for
    those above.
    """

    _first_share: ClassVar[float] = 0.5
    _upper_share: ClassVar[float] = 0.015

    def _inputs(self, X: Array, D: Array) -> Design:
        scaled = self._prepare(X, D)
        return Design.of(scaled, self._first_share * self.l2_, _CURVATURE)

    def _first_layer(self, design: Design, n_units: int, random: np.random.RandomState) -> Array:
        """Start weights (r + 1, units): Gaussian in the scaled features; a unit's input has variance about one."""
        w: Array = random.standard_normal((design.Z.shape[1], n_units))
        w = w / np.sqrt(np.maximum(design.ridge, 0.0) * self.n_features_in_ + (design.ridge == 0))[:, None]
        w[-1] = 0.0
        return w

    def _penalty(self, design: Design) -> Callable[[Tensor, Sequence[Tensor]], Tensor]:
        """``λ/(2N) (first share · ‖first layer‖² + upper share · ‖layers above‖²)``."""
        share = self.l2_ / len(design.Z)
        ridge, upper = torch.from_numpy(self._first_share * share * design.ridge[:, None]), self._upper_share * share

        def penalty(first: Tensor, above: Sequence[Tensor]) -> Tensor:
            total = (ridge * first.square()).sum()
            for layer in above:
                total = total + upper * layer.square().sum()
            return 0.5 * total

        return penalty


@dataclass(eq=False, repr=False, kw_only=True)
class Network(UnitLearner):
    """A learner with a hidden layer: ``H`` sigmoid units on scaled features, ridge penalties, full-batch L-BFGS."""

    n_hidden: int = 64
    max_iter: int = 150
    tol: float = 1e-5

    def _small(self, shape: tuple[int, ...], random: np.random.RandomState) -> Array:
        """Start weights of a layer above the first."""
        return 0.1 * random.standard_normal(shape) / np.sqrt(self.n_hidden)


class OneLayer(Network):
    """Base of networks with one hidden layer, ``o = σ(x W + a) U + c``, and a loss of their outputs.

    Args:
        n_hidden: Sigmoid units.
        l2: ``λ``; ``"auto"`` takes it from leave-one-out losses on the training rows.
        max_iter: Most L-BFGS iterations.
        tol: Largest gradient entry at which the search stops.
        standardize: Scale features and clip them at five standard deviations; ``"auto"`` also settles the scaling.
        random_state: Seeds the start weights.

    Attributes:
        coef_: ``W``, (d, H), for scaled features; ``intercept_`` its ``a``.
        output_coef_: ``U``, (H, L); ``output_intercept_`` its ``c``.

    Example:
        >>> issubclass(AABP, OneLayer) and issubclass(EvidentialLDL, OneLayer)
        True
    """

    def _train(
        self, design: Design, loss: TensorLoss, shift: Array, random: np.random.RandomState, factor: float = 1.0
    ) -> None:
        """Fit all weights; ``shift`` starts ``c``, and ``factor`` multiplies the penalty."""
        Z, penalty = torch.from_numpy(design.Z), self._penalty(design)

        def objective(weights: list[Tensor]) -> Tensor:
            first, second, last = weights
            return loss(torch.sigmoid(Z @ first) @ second + last) + factor * penalty(first, [second])

        start = [self._first_layer(design, self.n_hidden, random), self._small((self.n_hidden, len(shift)), random)]
        weights, self.n_iter_ = minimise(objective, [*start, shift], self.max_iter, self.tol)
        first, self.output_coef_, self.output_intercept_ = weights
        self.coef_, self.intercept_ = design.weights(first)

    def _outputs(self, X: Array) -> Array:
        hidden = expit(self._scaled(X) @ self.coef_ + self.intercept_)
        outputs: Array = hidden @ self.output_coef_ + self.output_intercept_
        return outputs


class AABP(OneLayer):
    """Three-layer network with squared error (AA-BP).

    ``p_i = softmax(σ(x_i W + a) U + b)`` minimises ``L/2 mean_i ‖p_i - d_i‖² + λ/(2N) (½ ‖W‖² + 0.015 ‖U‖²)``.

    The factor ``L/2`` puts the error on the scale of the KL divergence, so that one ``λ`` suits all learners. The paper
    trains by back-propagation with a step size; here L-BFGS uses the same gradients and needs none.

    Args:
        n_hidden: Sigmoid units.
        l2: ``λ``; ``"auto"`` takes it from leave-one-out losses on the training rows.
        max_iter: Most L-BFGS iterations.
        tol: Largest gradient entry at which the search stops.
        standardize: Scale features and clip them at five standard deviations; ``"auto"`` also settles the scaling.
        random_state: Seeds the start weights.

    Attributes:
        coef_: ``W``, (d, H), for scaled features.
        intercept_: ``a``, (H,).
        output_coef_: ``U``, (H, L).
        output_intercept_: ``b``, (L,).
        l2_: The ``λ`` in use.
        n_iter_: Iterations taken.

    References:
        Geng, Label distribution learning, IEEE TKDE 28(7), 2016, section 3.2.

    Example:
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> AABP().fit(city.X, city.D).predict(city.X[:2]).shape
        (2, 3)
    """

    def _fit(self, X: Array, D: Array, random: np.random.RandomState) -> None:
        design, target = self._inputs(X, D), torch.from_numpy(D)

        def loss(outputs: Tensor) -> Tensor:
            return 0.5 * D.shape[1] * (torch.softmax(outputs, dim=1) - target).square().sum() / len(D)

        self._train(design, loss, np.log(D.mean(axis=0) + 1.0 / D.size), random)

    def _predict(self, X: Array) -> Array:
        return softmax(self._outputs(X), axis=-1)


@dataclass(eq=False, repr=False)
class EvidentialLDL(DirichletLearner, OneLayer):  # type: ignore[misc]  # as in DirichletLearner
    """Evidential Dirichlet network (EDL): ``ℓ | x ~ Dirichlet(1 + e(x))`` with non-negative evidence ``e``.

    ``e(x) = softplus(s₀ (σ(x W + a) U + b))`` minimises ``mean_i loss(d_i, α_i) + f λ/(2N) (½ ‖W‖² + 0.015 ‖U‖²)``;
    see :func:`evidential_loss`. ``s₀`` is the concentration of the best Dirichlet without features, so that one ``λ``
    suits all data; ``f`` is ``4 s₀`` with ``"likelihood"``, as in Dirichlet regression, and 1 with ``"mse"``.

    The evidence and the losses are the paper's. Ours: label distributions instead of classes, the ridge penalty instead
    of a penalty on wrong evidence (with ``"mse"`` it alone bounds the evidence), L-BFGS, the scale ``s₀``.

    Args:
        loss: ``"likelihood"`` or ``"mse"``, the expected squared error (Bayes risk).
        zeros: Policy for shares of zero, whose logarithm the likelihood needs: ``"shrink"``, ``"error"`` or a floor.
        n_hidden: Sigmoid units.
        l2: ``λ``; ``"auto"`` takes it from leave-one-out losses on the training rows.
        max_iter: Most L-BFGS iterations.
        tol: Largest gradient entry at which the search stops.
        standardize: Scale features and clip them at five standard deviations; ``"auto"`` also settles the scaling.
        random_state: Seeds the start weights.

    Attributes:
        coef_: ``W``, (d, H), for scaled features.
        intercept_: ``a``, (H,).
        output_coef_: ``s₀ U``, (H, L).
        output_intercept_: ``s₀ b``, (L,).
        l2_: The ``λ`` in use.
        n_iter_: Iterations taken.

    References:
        Sensoy, Kaplan, Kandemir, Evidential deep learning to quantify classification uncertainty, NeurIPS 2018.

    Example:
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> model = EvidentialLDL(n_hidden=8, random_state=0).fit(city.X, city.D)
        >>> model.predict_interval(city.X[:2]).shape, bool((model.predict_concentration(city.X) >= 1.0).all())
        ((2, 3, 2), True)
    """

    loss: str = "likelihood"
    zeros: ZeroOption = "shrink"

    _choices = {"loss": ("likelihood", "mse")}  # noqa: RUF012 - never changed

    def _fit(self, X: Array, D: Array, random: np.random.RandomState) -> None:
        design, log_D = self._inputs(X, D), self._log_labels(D)
        mean = close_rows(D.mean(axis=0)[None], self.share_floor_)[0]
        scale = fit_concentration(np.broadcast_to(mean, D.shape), log_D)
        target = torch.from_numpy(np.exp(log_D))

        def loss(outputs: Tensor) -> Tensor:
            return evidential_loss(1.0 + softplus(scale * outputs), target, self.loss).mean()

        evidence = np.maximum(scale * mean - 1.0, 0.1)
        shift = (evidence + np.log(-np.expm1(-evidence))) / scale  # inverse of softplus
        self._train(design, loss, shift, random, PENALTY_FACTOR * scale if self.loss == "likelihood" else 1.0)
        self.output_coef_, self.output_intercept_ = scale * self.output_coef_, scale * self.output_intercept_

    def _alpha(self, features: Array) -> Array:
        return np.asarray(1.0 + np.logaddexp(0.0, self._outputs(features)))


def evidential_loss(alpha: Tensor, D: Tensor, kind: str) -> Tensor:
    """Loss of Dirichlets at label distributions, row by row.

    Args:
        alpha: Concentrations, (N, L), with sum ``S`` and mean ``p = α / S``.
        D: Label distributions, (N, L), positive for ``"likelihood"``.
        kind: ``"likelihood"``: ``-log Dirichlet(d; α)``. ``"mse"``: ``L/2 E‖d - ℓ‖²``, which is
            ``L/2 Σ_j [(d_j - p_j)² + p_j (1 - p_j) / (S + 1)]``.

    Returns:
        Losses, (N,).

    Example:
        >>> evidential_loss(torch.ones(1, 2), torch.tensor([[0.5, 0.5]]), "mse").numpy().round(4)
        array([0.1667], dtype=float32)
    """
    if kind == "likelihood":
        return -torch.distributions.Dirichlet(alpha, validate_args=False).log_prob(D)
    total = alpha.sum(dim=1, keepdim=True)
    p = alpha / total
    return 0.5 * D.shape[1] * ((D - p).square() + p * (1.0 - p) / (total + 1.0)).sum(dim=1)


#: A label belongs to a subtask if its membership ends above this.
_MEMBER = 0.9


def choose_subtasks(mean: Array, n_subtasks: int, overlap: float, random: np.random.RandomState) -> list[list[int]]:
    """Sets of labels that are learned as separate tasks.

    Memberships ``W = σ(U)`` (T, L) minimise ``mean_t exp(-mean_j W_tj m_j) + λ mean_{s<t} cos(W_s, W_t)``, ``m`` the
    mean label distribution: sets hold large labels and differ from each other. Labels above 0.9 are in; sets of one
    label, of none or of all, and sets that come twice, are left out.

    Args:
        mean: ``m``, (L,).
        n_subtasks: T, before any are left out.
        overlap: ``λ``.
        random: Where the search starts.

    Returns:
        Sorted labels of each set; none for two labels.

    Example:
        >>> sets = choose_subtasks(np.full(4, 0.25), 6, 0.2, np.random.RandomState(0))
        >>> all(1 < len(labels) < 4 for labels in sets), len(sets) > 1
        (True, True)
    """
    share = torch.from_numpy(mean)
    pairs = torch.triu_indices(n_subtasks, n_subtasks, 1)

    def loss(weights: list[Tensor]) -> Tensor:
        W = torch.sigmoid(weights[0])
        unit = W / W.norm(dim=1, keepdim=True)
        alike = (unit[pairs[0]] * unit[pairs[1]]).sum() / max(pairs.shape[1], 1)
        return torch.exp(-(W * share).mean(dim=1)).mean() + overlap * alike

    (U,), _ = minimise(loss, [random.standard_normal((n_subtasks, len(mean)))], 500, 1e-6)
    sets = {tuple(np.flatnonzero(row).tolist()) for row in expit(U) > _MEMBER}
    return [list(labels) for labels in sorted(sets) if 1 < len(labels) < len(mean)]


@dataclass(eq=False, repr=False)
class SLDL(Network):
    """Network that also learns subtasks, the proportions within sets of labels (S-LDL, here S-KLD).

    Hidden units ``h = σ(x W + a)`` feed a head per subtask, whose softmax learns the proportions ``q̂_t`` within its
    set, and the heads' outputs feed the prediction next to the hidden units: ``p = softmax([h, φ(h A)] U + b)``, φ a
    leaky rectifier. The loss is ``mean_i KL(d_i ‖ p_i) + μ Σ_t mean_i w_it mean_j |q_itj - q̂_itj|`` and the penalties
    of :class:`AABP`, with ``q_it`` the proportions of row i within set t and ``w_it`` the sum of its shares there.

    Ours: one hidden layer instead of three, the penalties, L-BFGS, and w |q - q̂| rounded within a thousandth.

    Args:
        n_subtasks: Sets that are looked for; see :func:`choose_subtasks`.
        overlap: How much sets must differ.
        subtask_weight: ``μ``.
        n_hidden: Sigmoid units.
        l2: ``λ``; ``"auto"`` takes it from leave-one-out losses on the training rows.
        max_iter: Most L-BFGS iterations; many fit the noise of wide tables.
        tol: Largest gradient entry at which the search stops.
        standardize: Scale features and clip them at five standard deviations; ``"auto"`` also settles the scaling.
        random_state: Seeds sets and start weights.

    Attributes:
        subtasks_: Labels of each set.
        coef_: ``W``, (d, H), for scaled features.
        intercept_: ``a``, (H,).
        subtask_coef_: ``A``, (H, sum of the sets' sizes).
        output_coef_: ``U``, (H + sum of the sets' sizes, L).
        output_intercept_: ``b``, (L,).
        l2_: The ``λ`` in use.
        n_iter_: Iterations taken.

    References:
        Wu, Li, Jia, Exploiting subtasks for label distribution learning (S-LDL), ICML 2025.

    Example:
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> SLDL(n_hidden=8, random_state=0).fit(city.X, city.D).predict(city.X[:2]).shape
        (2, 3)
    """

    n_subtasks: int = 10
    overlap: float = 0.2
    subtask_weight: float = 0.1
    _: KW_ONLY
    max_iter: int = 80

    def _fit(self, X: Array, D: Array, random: np.random.RandomState) -> None:
        design = self._inputs(X, D)
        self.subtasks_ = choose_subtasks(D.mean(axis=0), self.n_subtasks, self.overlap, random)
        sizes = [len(labels) for labels in self.subtasks_]
        Z, true, penalty = torch.from_numpy(design.Z), torch.from_numpy(D), self._penalty(design)

        def loss(weights: list[Tensor]) -> Tensor:
            first, heads, last, bias = weights
            hidden = torch.sigmoid(Z @ first)
            code = hidden @ heads
            log_P = torch.log_softmax(torch.cat([hidden, leaky_relu(code)], dim=1) @ last + bias, dim=1)
            total = -(true * log_P).sum(dim=1)
            for labels, outputs in zip(self.subtasks_, code.split(sizes, dim=1)):
                gap = true[:, labels] - true[:, labels].sum(dim=1, keepdim=True) * torch.softmax(outputs, dim=1)
                total = total + self.subtask_weight * (gap.square() + ROUNDING**2).sqrt().mean(dim=1)
            return total.mean() + penalty(first, [heads, last])

        start = [
            self._first_layer(design, self.n_hidden, random),
            self._small((self.n_hidden, sum(sizes)), random),
            self._small((self.n_hidden + sum(sizes), D.shape[1]), random),
            np.log(D.mean(axis=0) + 1.0 / D.size),
        ]
        weights, self.n_iter_ = minimise(loss, start, self.max_iter, self.tol)
        first, self.subtask_coef_, self.output_coef_, self.output_intercept_ = weights
        self.coef_, self.intercept_ = design.weights(first)

    def _predict(self, X: Array) -> Array:
        hidden = expit(self._scaled(X) @ self.coef_ + self.intercept_)
        code = hidden @ self.subtask_coef_
        features = np.concatenate([hidden, np.where(code > 0, code, 0.01 * code)], axis=1)
        return softmax(features @ self.output_coef_ + self.output_intercept_, axis=1)


class CPNN(Network):
    """Conditional probability neural network with a numeric label (CPNN).

    ``p_ij = softmax_j(u · σ(x_i W + c_j V + a))`` minimises
    ``mean_i KL(d_i ‖ p_i) + λ/(2N) (½ ‖W‖² + 0.005 ‖V‖² + 0.005 ‖u‖²)``, where the code ``c_j`` of label j is
    its number, so that neighbouring labels get similar shares.

    ``x W`` is computed once for all labels of a row. The paper trains by RProp on the label numbers as they are; here
    the numbers are standardised and L-BFGS is used.

    Args:
        n_hidden: Sigmoid units.
        l2: ``λ``; ``"auto"`` takes it from leave-one-out losses on the training rows.
        max_iter: Most L-BFGS iterations.
        tol: Largest gradient entry at which the search stops.
        standardize: Scale features and clip them at five standard deviations; ``"auto"`` also settles the scaling.
        random_state: Seeds the start weights.

    Attributes:
        coef_: ``W``, (d, H), for scaled features.
        intercept_: ``a``, (H,).
        label_code_: ``c``, (L, code).
        label_input_: ``c V``, (L, H).
        output_coef_: ``u``, (H,).
        l2_: The ``λ`` in use.
        n_iter_: Iterations taken.

    References:
        Geng, Yin, Zhou, Facial age estimation by learning from label distributions, IEEE TPAMI 35(10), 2013.

    Example:
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> CPNN().fit(city.X, city.D).predict(city.X[:2]).shape
        (2, 3)
    """

    _upper_share: ClassVar[float] = 0.005

    def _label_code(self, n_labels: int) -> Array:
        number = np.arange(n_labels, dtype=float)
        code: Array = (number - number.mean()) / number.std()
        return code[:, None]

    def _targets(self, D: Array) -> Array:
        """Non-negative weights (N, L) of the log shares in the loss."""
        return D

    def _fit(self, X: Array, D: Array, random: np.random.RandomState) -> None:
        design = self._inputs(X, D)
        self.label_code_ = self._label_code(D.shape[1])
        Z, codes, target = (torch.from_numpy(part) for part in (design.Z, self.label_code_, self._targets(D)))
        penalty = self._penalty(design)

        def loss(weights: list[Tensor]) -> Tensor:
            first, label, output = weights
            hidden = torch.sigmoid((Z @ first)[:, None, :] + codes @ label)  # (N, L, H)
            return -(target * torch.log_softmax(hidden @ output, dim=1)).sum() / len(Z) + penalty(
                first, [label, output]
            )

        start = [
            self._first_layer(design, self.n_hidden, random),
            random.standard_normal((self.label_code_.shape[1], self.n_hidden)),
            self._small((self.n_hidden,), random),
        ]
        (first, label, self.output_coef_), self.n_iter_ = minimise(loss, start, self.max_iter, self.tol)
        self.coef_, self.intercept_ = design.weights(first)
        self.label_input_ = self.label_code_ @ label  # (L, H)

    def _predict(self, X: Array) -> Array:
        inputs = self._scaled(X) @ self.coef_ + self.intercept_  # (N, H)
        step = max(1, _CHUNK // self.label_input_.size)
        parts = [
            expit(inputs[i : i + step, None, :] + self.label_input_) @ self.output_coef_ for i in range(0, len(X), step)
        ]
        return softmax(np.concatenate(parts), axis=-1)


class BCPNN(CPNN):
    """Conditional probability network with a binary label code (BCPNN).

    The objective of :class:`CPNN` with ``c_j`` the j-th unit vector: labels have no order, each its own weights.

    Args:
        n_hidden: Sigmoid units.
        l2: ``λ``; ``"auto"`` takes it from leave-one-out losses on the training rows.
        max_iter: Most L-BFGS iterations.
        tol: Largest gradient entry at which the search stops.
        standardize: Scale features and clip them at five standard deviations; ``"auto"`` also settles the scaling.
        random_state: Seeds the start weights.

    Attributes:
        coef_: ``W``, (d, H), for scaled features.
        intercept_: ``a``, (H,).
        label_code_: ``c``, (L, code).
        label_input_: ``c V``, (L, H).
        output_coef_: ``u``, (H,).
        l2_: The ``λ`` in use.
        n_iter_: Iterations taken.

    References:
        Yang, Sun, Sun, Learning visual sentiment distributions via augmented conditional probability neural network,
        AAAI 2017.

    Example:
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> BCPNN().fit(city.X, city.D).predict(city.X[:2]).shape
        (2, 3)
    """

    def _label_code(self, n_labels: int) -> Array:
        return np.eye(n_labels)


@dataclass(eq=False, repr=False)
class ACPNN(BCPNN):
    """Conditional probability network on augmented label distributions (ACPNN).

    Each row enters ``v = 1..V`` times with its dominant share multiplied by ``1 + s/v``; otherwise as :class:`BCPNN`.

    The loss is linear in the label distribution, so the copies of a row are one row with the mean of their labels: the
    fit costs no more than BCPNN's. The paper does not settle the strength ``s``; a small one is the default because the
    augmentation moves the predictions toward the dominant label. Tied dominant labels share it.

    Args:
        n_copies: ``V``.
        strength: ``s``.
        n_hidden: Sigmoid units.
        l2: ``λ``; ``"auto"`` takes it from leave-one-out losses on the training rows.
        max_iter: Most L-BFGS iterations.
        tol: Largest gradient entry at which the search stops.
        standardize: Scale features and clip them at five standard deviations; ``"auto"`` also settles the scaling.
        random_state: Seeds the start weights.

    Attributes:
        coef_: ``W``, (d, H), for scaled features.
        intercept_: ``a``, (H,).
        label_code_: ``c``, (L, code).
        label_input_: ``c V``, (L, H).
        output_coef_: ``u``, (H,).
        l2_: The ``λ`` in use.
        n_iter_: Iterations taken.

    References:
        Yang, Sun, Sun, Learning visual sentiment distributions via augmented conditional probability neural network,
        AAAI 2017.

    Example:
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> ACPNN().fit(city.X, city.D).predict(city.X[:2]).shape
        (2, 3)
    """

    n_copies: int = 5
    strength: float = 0.1

    def _targets(self, D: Array) -> Array:
        largest = D.max(axis=1, keepdims=True)
        dominant = (largest == D).astype(float)
        dominant /= dominant.sum(axis=1, keepdims=True)
        boost = self.strength * float(np.mean(1.0 / np.arange(1, self.n_copies + 1)))
        return D * (1.0 + boost * dominant)


#: Leaf shares start and stay above this, since the leaf update can never raise an exact zero; above less if
#: observed shares are smaller.
_LEAF_FLOOR = 1e-6
_LEAF_UPDATES = 10


@dataclass(eq=False, repr=False)
class LDLForest(UnitLearner):
    """Label distribution learning forest (LDLF): soft trees over shared linear units.

    Split node n of tree t sends a row left with probability ``s_n(x) = σ(x w_φ(n) + b_φ(n))``, where ``φ`` gives each
    node one of ``n_units`` units; leaf ℓ, reached with probability ``μ_ℓ(x)``, holds a label distribution ``q_ℓ``.
    ``p(x) = mean_t Σ_ℓ μ_ℓ(x) q_ℓ``, and the objective is ``mean_t mean_i KL(d_i ‖ Σ_ℓ μ_ℓ(x_i) q_ℓ)`` with the ridge
    penalty ``λ/(10 N) ‖w‖²`` on the units.

    Rounds alternate L-BFGS steps for the units and the paper's leaf update
    ``q_ℓj ∝ Σ_i d_ij μ_ℓ(x_i) q_ℓj / p_j(x_i)``, which never raises the loss. The paper takes gradient steps on
    batches; the rounds replace its step size.

    Args:
        n_trees: Trees, all of one depth, with their own ``φ``.
        depth: Levels of split nodes; a tree has ``2^depth`` leaves.
        n_units: Linear units the split nodes draw from.
        l2: ``λ``; ``"auto"`` takes it from leave-one-out losses on the training rows.
        n_rounds: Alternations of units and leaves.
        max_iter: L-BFGS iterations in a round.
        tol: Largest gradient entry at which a round's search stops.
        standardize: Scale features and clip them at five standard deviations; ``"auto"`` also settles the scaling.
        random_state: Seeds ``φ`` and the start weights.

    Attributes:
        coef_: Weights of the units, (d, units), for scaled features.
        intercept_: Their intercepts, (units,).
        unit_of_split_: ``φ``, (trees, split nodes).
        leaves_: ``q``, (trees, leaves, L).
        l2_: The ``λ`` in use.

    References:
        Shen, Zhao, Guo, Yuille, Label distribution learning forests, NeurIPS 2017.

    Example:
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> LDLForest().fit(city.X, city.D).predict(city.X[:2]).shape
        (2, 3)
    """

    _first_share: ClassVar[float] = 0.2

    n_trees: int = 5
    depth: int = 5
    n_units: int = 64
    n_rounds: int = 8
    _: KW_ONLY
    max_iter: int = 15
    tol: float = 1e-5

    def _fit(self, X: Array, D: Array, random: np.random.RandomState) -> None:
        design = self._inputs(X, D)
        floor = min(_LEAF_FLOOR, float(np.min(D, initial=1.0, where=D > 0.0)) / 2.0)
        Z, target, penalty = torch.from_numpy(design.Z), torch.from_numpy(D), self._penalty(design)
        n_splits, n_leaves = 2**self.depth - 1, 2**self.depth
        draws = -(-n_splits // self.n_units)
        self.unit_of_split_ = np.stack(
            [
                np.concatenate([random.permutation(self.n_units) for _ in range(draws)])[:n_splits]
                for _ in range(self.n_trees)
            ]
        )
        chosen = torch.from_numpy(self.unit_of_split_)
        noise = random.dirichlet(np.ones(D.shape[1]), size=(self.n_trees, n_leaves))
        leaves = torch.from_numpy(_close(0.5 * D.mean(axis=0) + 0.5 * noise, floor))
        units = self._first_layer(design, self.n_units, random)

        def loss(weights: list[Tensor]) -> Tensor:
            reach = leaf_probabilities(Z @ weights[0], chosen, self.depth)  # (N, T, leaves)
            P = torch.einsum("ntl,tlk->ntk", reach, leaves)
            return -(target[:, None] * P.log()).sum() / (len(Z) * self.n_trees) + penalty(weights[0], [])

        for _ in range(self.n_rounds):
            leaves = self._update_leaves(torch.from_numpy(units), Z, target, chosen, leaves, floor)
            (units,), _ = minimise(loss, [units], self.max_iter, self.tol)
        self.leaves_ = self._update_leaves(torch.from_numpy(units), Z, target, chosen, leaves, floor).numpy()
        self.coef_, self.intercept_ = design.weights(units)

    def _update_leaves(
        self, units: Tensor, Z: Tensor, target: Tensor, chosen: Tensor, leaves: Tensor, floor: float
    ) -> Tensor:
        reach = leaf_probabilities(Z @ units, chosen, self.depth)
        for _ in range(_LEAF_UPDATES):
            ratio = target[:, None] / torch.einsum("ntl,tlk->ntk", reach, leaves)
            leaves = _close(leaves * torch.einsum("ntl,ntk->tlk", reach, ratio), floor)
        return leaves

    def _predict(self, X: Array) -> Array:
        values = torch.from_numpy(self._scaled(X) @ self.coef_ + self.intercept_)
        chosen, leaves = torch.from_numpy(self.unit_of_split_), torch.from_numpy(self.leaves_)
        step = max(1, _CHUNK // (self.n_trees * 2**self.depth))
        parts = [
            torch.einsum("ntl,tlk->nk", leaf_probabilities(part, chosen, self.depth), leaves) / self.n_trees
            for part in torch.split(values, step)
        ]
        return np.asarray(torch.cat(parts).numpy())


def _close(leaves: Any, floor: float) -> Any:
    leaves = leaves / leaves.sum(-1)[..., None] + floor
    return leaves / leaves.sum(-1)[..., None]


def leaf_probabilities(values: Tensor, unit_of_split: Tensor, depth: int) -> Tensor:
    """Probabilities (N, T, 2^depth) of reaching each leaf, from unit values (N, units).

    Split nodes are numbered level by level; node n's children are 2n + 1 (left) and 2n + 2.
    """
    logits = values[:, unit_of_split]  # (N, T, splits)
    left, right = torch.sigmoid(logits), torch.sigmoid(-logits)
    reach = logits.new_ones(*logits.shape[:2], 1)
    for level in range(depth):
        nodes = slice(2**level - 1, 2 ** (level + 1) - 1)
        reach = torch.stack([reach * left[..., nodes], reach * right[..., nodes]], dim=-1).flatten(2)
    return reach
