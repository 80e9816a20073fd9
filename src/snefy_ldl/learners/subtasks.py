"""Learners that also learn the proportions within sets of labels, as tasks of their own: S-LDL."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
import torch
from scipy.special import expit, softmax
from torch import Tensor

from snefy_ldl._internal.types import Array
from snefy_ldl.errors import InputError
from snefy_ldl.learners.base import Learner, close_rows
from snefy_ldl.learners.linear import minimise, rounded_size
from snefy_ldl.learners.neighbours import LDLHVLC
from snefy_ldl.learners.networks import Network
from snefy_ldl.learners.ordinal import loss_ratio, ordinal_loss

#: A label belongs to a subtask where its membership ends above this.
_MEMBER = 0.9
LOSSES = ("kl", "lrr", "cjs", "qfd")


def choose_subtasks(mean: Array, n_subtasks: int, overlap: float, random: np.random.RandomState) -> list[list[int]]:
    """Sets of labels that are learned as tasks of their own.

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
    share = torch.from_numpy(np.asarray(mean, dtype=np.float64))
    first, second = torch.triu_indices(n_subtasks, n_subtasks, 1)

    def loss(weights: list[Tensor]) -> Tensor:
        W = torch.sigmoid(weights[0])
        large = torch.exp(-(W * share).mean(dim=1)).mean()
        unit = W / W.norm(dim=1, keepdim=True)
        alike = (unit[first] * unit[second]).sum(dim=1)
        return large + (overlap * alike.mean() if n_subtasks > 1 else 0.0)

    (U,), _ = minimise(loss, [random.standard_normal((n_subtasks, len(mean)))], 500, 1e-6)
    sets = {tuple(np.flatnonzero(row).tolist()) for row in expit(U) > _MEMBER}
    return [list(labels) for labels in sorted(sets) if 1 < len(labels) < len(mean)]


def subtask_shares(D: Array, labels: list[int]) -> tuple[Array, Array]:
    """Proportions within a set of labels, and what the set holds of each row; even where it holds nothing.

    Args:
        D: Label distributions, (N, L).
        labels: The set, K labels.

    Returns:
        Proportions (N, K) and weights (N,).

    Example:
        >>> subtask_shares(np.array([[0.1, 0.3, 0.6]]), [0, 1])
        (array([[0.25, 0.75]]), array([0.4]))
    """
    part = D[:, labels]
    whole = part.sum(axis=1)
    even = np.full(part.shape, 1.0 / len(labels))
    return np.divide(part, whole[:, None], out=even, where=whole[:, None] > 0), whole


@dataclass(eq=False, repr=False)
class SLDL(Network):
    """Network that learns subtasks, the proportions within sets of labels, beside the label distribution (S-LDL).

    Hidden units ``h = σ(x W + a)`` feed a head a subtask, whose softmax learns the proportions within its set, and the
    heads' outputs feed the prediction beside the hidden units: ``p = softmax([h, φ(h A)] U + b)``, φ a leaky
    rectifier. The loss is ``loss(d, p) + μ Σ_t mean_i w_it mean_j |q_itj - q̂_itj| + penalties`` with ``w_it`` what
    set t holds of row i. ``loss`` is KL (S-KLD), KL with the ranking loss of LDL-LRR (S-LRR), or for labels in an
    order the cumulative Jensen-Shannon divergence (S-CJS) or the quadratic form distance (S-QFD²).

    An ordinal loss is divided by its curvature at the mean label in units of KL, so that one ``λ`` suits all.

    S-SCL, the fifth of the family, is left out: its clusters are those of :class:`LDLSCL`, whose free correlations
    explain any label by themselves (see there). Ours: one hidden layer instead of three, the penalties, L-BFGS.

    Args:
        loss: ``"kl"``, ``"lrr"``, ``"cjs"`` or ``"qfd"``.
        n_subtasks: Sets that are looked for; see ``choose_subtasks`` of this module.
        overlap: How much sets must differ.
        subtask_weight: ``μ``.
        ranking: Weight of the ranking loss with ``"lrr"``.
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

    loss: str = "kl"
    n_subtasks: int = 10
    overlap: float = 0.2
    subtask_weight: float = 0.1
    ranking: float = 1e-3
    _: KW_ONLY
    max_iter: int = 80

    _choices = {"loss": LOSSES}  # noqa: RUF012 - never changed

    def _fit(self, X: Array, D: Array, random: np.random.RandomState) -> None:
        design = self._inputs(X, D)
        n_labels = D.shape[1]
        self.subtasks_ = choose_subtasks(D.mean(axis=0), self.n_subtasks, self.overlap, random)
        ends = np.cumsum([0] + [len(labels) for labels in self.subtasks_])
        Z, penalty, main = torch.from_numpy(design.Z), self._penalty(design), self._main_loss(torch.from_numpy(D))
        tasks: list[tuple[slice, Tensor, Tensor]] = []
        for t, labels in enumerate(self.subtasks_):
            shares, whole = subtask_shares(D, labels)
            tasks.append((slice(int(ends[t]), int(ends[t + 1])), torch.from_numpy(shares), torch.from_numpy(whole)))

        def loss(weights: list[Tensor]) -> Tensor:
            first, heads, last, bias = weights
            hidden = torch.sigmoid(Z @ first)
            code = hidden @ heads
            features = torch.cat([hidden, torch.nn.functional.leaky_relu(code)], dim=1)
            total = main(torch.log_softmax(features @ last + bias, dim=1)) + penalty(first, [heads, last])
            for columns, shares, whole in tasks:
                gap = torch.softmax(code[:, columns], dim=1) - shares
                miss = rounded_size(gap).mean(dim=1)
                total = total + self.subtask_weight * (whole * miss).mean()
            return total

        start = [
            self._first_layer(design, self.n_hidden, random),
            0.1 * random.standard_normal((self.n_hidden, ends[-1])) / np.sqrt(self.n_hidden),
            0.1 * random.standard_normal((self.n_hidden + ends[-1], n_labels)) / np.sqrt(self.n_hidden),
            np.log(D.mean(axis=0) + 1.0 / D.size),
        ]
        (first, self.subtask_coef_, self.output_coef_, self.output_intercept_), self.n_iter_ = minimise(
            loss, start, self.max_iter, self.tol
        )
        self.coef_, self.intercept_ = design.weights(first)

    def _main_loss(self, true: Tensor) -> Callable[[Tensor], Tensor]:
        """The loss of the label distribution itself, of log shares."""
        if self.loss in ("cjs", "qfd"):
            ordered, ratio = ordinal_loss(self.loss, true), loss_ratio(self.loss, true.numpy())
            return lambda log_P: ordered(log_P) / ratio
        plain = ordinal_loss("kl", true)
        if self.loss == "kl" or not self.ranking:
            return plain
        first, second = torch.triu_indices(true.shape[1], true.shape[1], 1)
        gap = true[:, first] - true[:, second]
        above, weight = (gap.sign() + 1.0) / 2.0, gap.square()

        def ranked(log_P: Tensor) -> Tensor:
            P = log_P.exp()
            margin = 100.0 * (P[:, first] - P[:, second])  # the sharpness of LDLLRR
            cross = torch.nn.functional.softplus(margin) - above * margin
            return plain(log_P) + self.ranking * (weight * cross).sum() / len(P)

        return ranked

    def _predict(self, X: Array) -> Array:
        hidden = expit(self._scaled(X) @ self.coef_ + self.intercept_)
        code = hidden @ self.subtask_coef_
        features = np.concatenate([hidden, np.where(code > 0, code, 0.01 * code)], axis=1)
        shares: Array = softmax(features @ self.output_coef_ + self.output_intercept_, axis=1)
        return shares


@dataclass(eq=False, repr=False)
class ShallowSLDL(Learner):
    """Any learner, told what clones of it predict within sets of labels (shallow S-LDL).

    A clone a set of labels learns the proportions within the set; their predictions are further features of a last
    clone, which learns the label distribution. The sets are those of :class:`SLDL`.

    Args:
        base: A learner of this package; None takes :class:`LDLHVLC`, which is not linear.
        n_subtasks: Sets that are looked for.
        overlap: How much sets must differ.
        random_state: Seeds sets and clones.

    Attributes:
        subtasks_: Labels of each set.
        last_: The learner of the label distribution.
        task_0_: The learner of the first set; ``task_1_`` and so on of the others.

    References:
        Wu, Li, Jia, Exploiting subtasks for label distribution learning (S-LDL), ICML 2025.

    Example:
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> ShallowSLDL(random_state=0).fit(city.X, city.D).predict(city.X[:2]).shape
        (2, 3)
    """

    base: Learner | None = None
    n_subtasks: int = 10
    overlap: float = 0.2
    random_state: Any = None

    def _check_params(self) -> None:
        super()._check_params()
        if self.base is not None and not isinstance(self.base, Learner):
            raise InputError(f"base must be a learner of this package, or None; got {self.base!r}.")

    def _new(self, random: np.random.RandomState) -> Learner:
        base = LDLHVLC() if self.base is None else self.base
        learner: Learner = type(base)(**base.get_params(deep=False))
        learner.set_params(random_state=int(random.randint(2**31 - 1)))
        return learner

    def _fit(self, X: Array, D: Array, random: np.random.RandomState) -> None:
        self.subtasks_ = choose_subtasks(D.mean(axis=0), self.n_subtasks, self.overlap, random)
        for number, labels in enumerate(self.subtasks_):
            setattr(self, f"task_{number}_", self._new(random).fit(X, subtask_shares(D, labels)[0]))
        self.last_ = self._new(random).fit(self._widened(X), D)

    def _widened(self, X: Array) -> Array:
        answers = [getattr(self, f"task_{number}_").predict(X) for number in range(len(self.subtasks_))]
        return np.concatenate([X, *answers], axis=1)

    def _predict(self, X: Array) -> Array:
        return close_rows(np.asarray(self.last_.predict(self._widened(X))), self.share_floor_)
