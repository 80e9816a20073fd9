"""LogRatioLDL: guides for the mean log-ratios and for presence, and a mixture for the residuals.

Amounts of the labels are there or not; a label distribution closes those that are there. Point learners ("guides")
predict the log-amounts, ``c(x)``, and the log odds of presence, ``b(x)``, of every row without having seen it;
every label weighs them by likelihood and divergence. What is left is whitened by a covariance of all labels, learned
from the contrasts that rows show, and a small network of the guides' predictions, not of x, moves, scales and reweights
one mixture of presences and Gaussians (:mod:`snefy_ldl.networks.mixture`).

The mixture starts as the Student distribution that fits held-out residuals best, which training can only improve. Five
members each leave out one fold and stop at one common step: every row is a validation row once. Where training gains
nothing, the Student distribution stays, as one member.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import numpy as np
import torch
from scipy.linalg import helmert
from scipy.special import log_expit, logsumexp
from sklearn.base import clone
from torch import Tensor

from snefy_ldl._internal.progress import Progress
from snefy_ldl._internal.rows import count_rows
from snefy_ldl._internal.seen import SeenRows
from snefy_ldl._internal.types import Array, Index
from snefy_ldl._internal.validation import check_sample_weight, check_table, common_denominator
from snefy_ldl.datasets.cells import frame_of
from snefy_ldl.datasets.grouping import group_folds, read_groups
from snefy_ldl.datasets.zeros import ZeroPolicy
from snefy_ldl.distributions.bounds import Bounds
from snefy_ldl.distributions.logratio import LogRatioRows, LogRatioSimplex, Mixture, sobol
from snefy_ldl.errors import InputError
from snefy_ldl.learners.learner import Learner
from snefy_ldl.learners.log_amounts import (
    FACTORS,
    FREEDOMS,
    SHRINKAGES,
    Frames,
    LogAmounts,
    Shape,
    Supports,
    choose_shape,
    shrink,
    weigh_guides,
)
from snefy_ldl.learners.ratio_guides import Forest, GuideNet, Ridge, fit_slopes, presence_loss, share_loss
from snefy_ldl.learners.trees import TreesLDL
from snefy_ldl.networks.mixture import MixtureNet, Rows, Trained, train
from snefy_ldl.prediction import DistributionPredictor

#: Folds of the cross-fitting, and so members of the density.
N_FOLDS = 5
#: Rows below which guides are cross-fitted in more folds.
FEW_ROWS, FEW_ROWS_FOLDS = 500, 10
#: With fewer rows than this there is one member without guides, around the mean.
FEWEST_ROWS = 8
#: Directions of whitened log-ratios in which components differ, where labels may be absent.
MOST_AXES = 32
#: Neighbours' worth of the mean of all rows in neighbours' shares and presence.
PRIOR_NEIGHBOURS = 2.0
#: Inputs of the network are clipped here.
INPUT_CLIP = 4.0
#: Rounds in which hidden parts are drawn, all but the last one with ridge alone as a guide, and draws of a row that
#: :data:`COPIES` are picked from, by weight. With Student residuals and 12 rounds hidden shares of six made-up tables
#: with 40 % below limits are covered by 90 % intervals at .90; with Gaussian ones and 8 rounds at .87.
ROUNDS, CANDIDATES = 13, 16
#: Rows that share the smallest positive value of a column, at least, and their part of its positive rows, if that value
#: is taken for a limit of detection.
FEWEST_TIES, TIED_ROWS = 3, 0.02
#: Draws of every row with hidden parts that are learned from, one after the other.
COPIES = 5
#: Rows whose distributions are held at a time.
DIST_ROWS = 2048
#: Rows that a fit learns from at most, drawn at random: 100,000 of made-up tables gained -.01 to .01 nats.
MOST_ROWS = 50_000

#: Times that the guides are weighed where labels may be absent.
ABSENT_ROUNDS = 3

GUIDES = ("ridge", "scores", "trees", "network")


@dataclass(eq=False, repr=False, kw_only=True)
class LogRatioLDL(Learner, DistributionPredictor):  # type: ignore[misc]  # score is the learners', minus KL
    """Density of compositions in log-ratio space, with exact zeros: one half of :class:`~snefy_ldl.AutoLDL`.

    With ``n_components=1`` and ``guides=["ridge"]`` it is logistic-normal regression: ridge regression of isometric
    log-ratios, and one Gaussian for what is left. Labels may be absent: a share of zero is one that is not there.

    Args:
        n_components: Components of each member.
        guides: Learners of the mean: ``"ridge"`` on standardised features, ``"scores"`` (ridge on their normal scores),
            ``"trees"`` (extremely randomised trees) and ``"network"`` (small ones of the features and the other
            guides' predictions); the last two also predict which labels are there. ``"auto"`` is all.
        n_members: Members, each without a part of the rows; ``"auto"`` is five.
        n_trees: Trees of the forest.
        max_iter: Most training steps.
        random_state: Seed, generator or None.
        columns: What the columns of a DataFrame are, as in :class:`~snefy_ldl.SnefyLDL`.
        zeros: What a share of exactly zero means: ``"presence"``, a label that is absent; ``"below"``, one below the
            smallest positive value of its column; ``"auto"`` takes the second where that value is shared by many rows,
            as it is where a limit, or rounding, cuts values off (``training_["zeros"]`` has the reason).
        verbose: 1 shows a progress bar.

    Attributes:
        guide_weights_: Weight of every guide in the mean of each label, (G, L); what they lack to one is the mean's.
        slopes_: How far the log odds of presence by trees and network are trusted, where labels may be absent.
        shape_: How far the covariance was shrunk toward a sphere, and degrees of freedom and squared scale of the
            Student distribution that the mixture starts from, (3,).
        n_iter_: The common stopping step; 0 where nothing improved on the start.
        validation_log_prob_: Log density of every training row by the member that left it out, (N,); NaN for those of
            more than 50,000 rows that were not drawn.
        training_: What the fit did, in the words of :class:`~snefy_ldl.SnefyLDL`.
        seen_rows_: Fingerprints of the training rows (:class:`snefy_ldl._internal.seen.SeenRows`).

    References:
        Aitchison, The Statistical Analysis of Compositional Data, 1986.

    Example:
        >>> import numpy as np
        >>> random = np.random.default_rng(0)
        >>> X = random.normal(size=(60, 1))
        >>> D = np.exp(np.hstack([X, -X, 0 * X]) + 0.1 * random.normal(size=(60, 3)))
        >>> D = D / D.sum(axis=1, keepdims=True)
        >>> model = LogRatioLDL(n_trees=10, random_state=0).fit(X, D)
        >>> dist = model.predict_dist([[0.5]])
        >>> dist.prob_greater(0, 1).round(decimals=2), model.predict_interval([[0.5]]).shape
        (tensor([1.], dtype=torch.float64), (1, 3, 2))
    """

    n_components: int = 48
    guides: Any = "auto"
    n_members: Any = "auto"
    n_trees: int = 100
    max_iter: int = 1500
    random_state: Any = None
    columns: Any = "auto"
    zeros: str = "presence"
    verbose: int = 0

    _choices: ClassVar[dict[str, tuple[Any, ...]]] = {
        "n_members": ("auto", *range(2, 21)),
        "zeros": ("presence", "below", "auto"),
    }

    def _check_params(self) -> None:
        super()._check_params()
        names = self._guide_names()
        if not names or sorted(set(names) & set(GUIDES)) != sorted(names):
            raise InputError(f'guides={self.guides!r}: use "auto", or a list of {", ".join(GUIDES)}, each once.')

    def _guide_names(self) -> list[str]:
        if isinstance(self.guides, (list, tuple)):
            return list(self.guides)
        return list(GUIDES) if isinstance(self.guides, str) and self.guides == "auto" else []

    #: No backbone lies before the density: the explorer and the service ask.
    backbone = None

    # -- fit ---------------------------------------------------------------------------------------------------------

    def fit(
        self,
        X: Any,
        D: Any = None,
        *,
        below: Any = None,
        between: Any = None,
        groups: Any = None,
        sample_weight: Any = None,
        y: Any = None,
    ) -> LogRatioLDL:
        """Learn from features and label distributions, or amounts of which some lie below a limit.

        With limits the hidden amounts are drawn under the distribution that was fitted to the row of before, given the
        row's exact parts, and the model is fitted to the completed rows (stochastic EM). Exact values and limits are
        shares of one whole or amounts in one unit, and a row's total carries no information: its shares need not sum
        to one, and close again with each draw. A hidden part is there, in a small amount; a zero without a limit is
        absent.

        Args:
            X: features (N, d): array, DataFrame (text and gaps are read) or sparse matrix; NaN is a missing cell.
            D: label distributions (N, L), rows that sum to one; with limits also amounts; None if all are ``between``.
            below: limits (N, L), NaN where exact: a part is hidden unless its value is larger. Or a limit for each
                label, (L,), a dict, or one number: parts that are NaN or smaller are hidden.
            between: lower and upper ends of hidden parts, (N, L) each, NaN where D is exact; equal ends are exact, too,
                and zeros absent.
            groups: the group of each row (N,), which no fold splits.
            sample_weight: how much each row counts (N,), in the fit and when held out; all alike by default.
            y: another name of D.

        Returns:
            The learner itself.

        Raises:
            InputError: rows, labels, limits or hyperparameters break a rule.
        """
        D, bounds, why = y if D is None else D, None, ""
        if below is None and between is None and self.zeros in ("below", "auto"):
            below, why = read_zeros(D, self.zeros)
        if below is not None or between is not None:
            bounds = Bounds.of(D, below, between)
            D = bounds.start() if bounds.names is None else frame_of(bounds.start(), bounds.names, X)
        self._fit_to(X, D, bounds=bounds, groups=groups, sample_weight=sample_weight)
        if why:
            self.training_["zeros"] = why
        return self

    def fit_in_groups(self, X: Any, groups: Any, **labels: Any) -> LogRatioLDL:
        """Fit with folds that keep groups together, for :class:`~snefy_ldl.GroupedLDL`; labels as :meth:`fit` takes."""
        return self.fit(X, groups=read_groups(groups, count_rows(X)).first, **labels)

    def _fit(
        self,
        X: Array,
        D: Array,
        random: np.random.RandomState,
        bounds: Bounds | None = None,
        groups: Any = None,
        sample_weight: Any = None,
    ) -> None:
        started = time.perf_counter()
        weights = check_sample_weight(sample_weight, len(D))
        weights = np.ones(len(D)) if weights is None else weights
        if len(D) > MOST_ROWS:
            drawn = np.sort(random.permutation(np.flatnonzero(weights))[:MOST_ROWS])
            if bounds is not None:
                bounds = replace(bounds, **{name: vars(bounds)[name][drawn] for name in ("values", "low", "high")})
            groups = None if groups is None else np.asarray(groups)[drawn]
            self._fit(X[drawn], D[drawn], random, bounds, groups, weights[drawn])
            held_out = np.full(len(D), np.nan)
            held_out[drawn] = self.validation_log_prob_
            self.validation_log_prob_: Array = held_out
            self.training_["given_rows"] = len(D)
            return
        n_folds = min(N_FOLDS if self.n_members == "auto" else self.n_members, len(D))
        folds = deal(len(D), n_folds, random, groups)
        seed = int(random.randint(2**31 - 1))
        parts = folds
        if len(D) < FEW_ROWS:  # a guide that lacks a fifth of so few rows is clearly worse than that of all rows
            parts = deal(len(D), FEW_ROWS_FOLDS, np.random.RandomState(seed), groups)
        whole = D[None]
        with Progress("log-ratios", 3, show=self.verbose >= 1) as progress:
            if bounds is not None and bounds.hidden.any():
                whole = self._complete(X, whole, bounds, weights, folds, parts, seed, progress)
            self._learn(X, whole, weights, folds, parts, seed, progress)
        self._remember(X, D, weights, time.perf_counter() - started)
        if bounds is not None:
            self.training_["hidden"] = bounds.hidden.sum(0).tolist()
            self.training_["labels"] = f"completed {self.training_['labels']}"

    def _complete(
        self, X: Array, D: Array, bounds: Bounds, weights: Array, folds: Index, parts: Index, seed: int, bar: Progress
    ) -> Array:
        """Draws of the rows (C, N, L) whose hidden parts follow the distribution fitted to the draws of before."""
        rows = torch.arange(D.shape[1])[:, None]
        for number in range(ROUNDS):
            guides = ["ridge"] if number < ROUNDS - 1 else self.guides
            model = clone(self).set_params(guides=guides, max_iter=0)
            model.n_labels_ = self.n_labels_
            dists = LogRatioRows(model._mixture(*model._learn(X, D, weights, folds, parts, seed, bar)))
            random = torch.Generator().manual_seed(seed + number)
            even = torch.as_tensor(sobol(2 * D.shape[2], CANDIDATES, seed + number))[:, None]
            even = (even + torch.rand(1, D.shape[1], even.shape[2], generator=random, dtype=torch.float64)) % 1.0
            drawn = dists.draw_between(bounds, even.unflatten(2, (-1, 2)))
            picked = torch.multinomial(torch.softmax(drawn.log_weights, 0).T, COPIES, generator=random)
            D = drawn.draws[picked, rows].transpose(0, 1).numpy()
        return D

    def _learn(
        self, X: Array, D: Array, row_weights: Array, folds: Index, parts: Index, seed: int, bar: Progress
    ) -> tuple[Array, Array | None]:
        """Fit guides and mixture to draws of rows (C, N, L); what guides that did not see them predict."""
        copies, _, n_labels = D.shape
        there = D[0] > 0.0
        logs = np.log(D, where=there, out=np.zeros_like(D))
        bar.update(0, "guides")
        guides, odds = self._fit_guides(X, D.mean(0), logs.mean(0), row_weights, Supports(there), folds, parts, seed)
        # from here on every draw is a row
        supports, owner = Supports(np.tile(there, (copies, 1))), np.tile(folds, copies)
        flat, weights = logs.reshape(-1, n_labels), np.tile(row_weights / copies, copies)
        answers = np.tile(guides, (1, copies, 1))
        all_odds = None if odds is None else np.tile(odds, (copies, 1))
        bar.update(1, "covariance")
        gap, covs = self._fit_mean(answers, all_odds, flat, supports, owner, weights)
        frames = self._whiten(gap, covs, supports, owner, weights)
        inputs = self._raw_inputs(guides, odds)
        spread = inputs.std(0)
        self.input_mean_, self.input_scale_ = inputs.mean(0), np.where(spread > 1e-9, 1 / np.maximum(spread, 1e-9), 0)
        tables = [self._scaled_inputs(inputs), self._combine(guides), None if supports.complete else there, odds]
        tables = [None if one is None else np.tile(one, (copies, 1)) for one in tables]
        values = (*tables, *vars(frames).values(), D.reshape(-1, n_labels))
        order = ("inputs", "centre", "there", "odds", "point", "square", "inner", "log_det", "size", "shares")
        fields: Any = {k: v if v is None else torch.as_tensor(v).float() for k, v in zip(order, values)}
        bar.update(2, "mixture")
        trained = self._train(Rows(**fields), row_weights, folds, seed)
        bar.update(3)
        self.n_iter_ = trained.step
        for name, value in vars(trained.net).items():
            setattr(self, f"net_{name}_", value.detach().double().numpy())
        self.validation_log_prob_ = trained.log_prob - logs.sum(2).mean(0) - 0.5 * np.log(there.sum(1))
        self.feature_mean_ = X.mean(0)
        return guides, odds

    def _train(self, rows: Rows, weights: Array, folds: Index, seed: int) -> Trained:
        _, freedom, spread = self.shape_
        n_members = int(folds.max()) + 1
        alone = self.n_components == 1 or len(folds) < FEWEST_ROWS
        back = helmert(self.n_labels_).T @ self.back_

        net = MixtureNet.start(rows, n_members, self.n_components, freedom, spread, seed)
        trained = train(net, rows, back, weights, folds, 0 if alone else self.max_iter, seed)
        if trained.step == 0:  # one member is as good as several, and answers faster
            trained.net = trained.net.member(0)
        return trained

    def _remember(self, X: Array, D: Array, weights: Array, seconds: float) -> None:
        """Note what the fit did and which rows it saw."""
        self.row_prints_ = SeenRows.of(X, D).prints.view(np.int64)
        judged = self.n_components > 1 and len(X) >= FEWEST_ROWS  # by members that had left the row out
        loss = -float(np.average(self.validation_log_prob_, weights=weights)) if judged else None
        self.training_: dict[str, Any] = {
            "rows": len(X),
            "epochs": self.n_iter_,
            "steps": self.n_iter_,
            "validation_loss": [loss],
            "seconds": round(seconds, 3),
            "device": "cpu",
            "labels": "shares with zeros" if (D == 0.0).any() else "shares",
        }

    @property
    def seen_rows_(self) -> SeenRows:
        """Fingerprints of the training rows."""
        return SeenRows(self.row_prints_.view(np.uint64), self.training_["rows"])

    def _fit_guides(
        self, X: Array, D: Array, logs: Array, weights: Array, supports: Supports, folds: Index, parts: Index, seed: int
    ) -> tuple[Array, Array | None]:
        """Fit the guides on all rows; log-amounts (G, N, L) and log odds (N, L) of rows that they did not see."""
        names = self._guide_names() if len(D) >= FEWEST_ROWS else []
        there = supports.there
        mean_shares = np.average(D, 0, weights)
        # labels that are absent count as half the smallest share, for a first target of the trees
        lowest = np.min(D, axis=0, where=there, initial=1.0) / 2.0
        first = np.where(there, logs, np.log(lowest))
        first -= first.mean(1, keepdims=True)
        filled, answers, sources = first, [], []
        if "trees" in names:
            forest, neighbours = Forest.fit(X, first, weights, parts, self.n_trees, seed)
            self.trees_, self.tree_rows_, self.tree_counts_ = forest.trees, forest.rows, forest.counts
            self.tree_targets_ = first
        if not supports.complete:
            self.mean_shares_ = np.maximum(mean_shares, 0.5 / len(D) * lowest)
            self.mean_presence_ = (weights @ there + 0.5) / (len(D) + 1.0)
            self.neighbours_ = self.n_trees / len(np.unique(parts))
            centre = np.broadcast_to(np.log(self.mean_shares_ / self.mean_presence_), D.shape)
            if "trees" in names:
                centre, near = self._ask_neighbours(neighbours @ np.hstack([D, there]))
                answers.append(centre)
                sources.append(near)
            first_fit = LogAmounts.fit(there * (logs - centre), supports, weights)
            filled = centre + first_fit.filled
            filled = filled - filled.mean(1, keepdims=True)
            self.tree_targets_ = np.hstack([filled, D, there])
        for name in names:
            if name == "trees":
                answers.append(neighbours @ filled)
            elif name != "network":
                ridge, held_out = Ridge.fit(X, filled, weights, parts, name == "scores")
                answers.append(held_out)
                self._keep(ridge, name)
        seen = np.hstack([X, *answers, *sources])
        if not supports.complete:
            if "network" in names:
                target, start = there.astype(float), self._base_odds
                net, net_odds = GuideNet.fit(seen, target, start, weights, folds, seed, presence_loss)
                sources.append(net_odds)
                self._keep(net, "presence")
            extra = np.array(sources).reshape(-1, *D.shape) - self._base_odds
            self.slopes_ = fit_slopes(extra, self._base_odds, there.astype(float), weights)
        odds = self._combine_odds(sources, len(D))
        if "network" in names:
            start = np.log(np.maximum(mean_shares, 1e-9))
            net, net_logs = GuideNet.fit(seen, D, start, weights, folds, seed, share_loss)
            answers.append(self._net_amounts(net_logs, odds))
            self._keep(net, "network")
        self.guide_names_ = names
        self.centre_ = np.average(filled, 0, weights)
        return np.array(answers).reshape(-1, *D.shape), odds

    def _keep(self, guide: Ridge | GuideNet, name: str) -> None:
        for key, value in vars(guide).items():
            if value is not None:
                setattr(self, f"{name}_{key}_", value)

    @property
    def _base_odds(self) -> Array:
        return np.log(self.mean_presence_) - np.log1p(-self.mean_presence_)

    def _combine_odds(self, sources: list[Array], n_rows: int) -> Array | None:
        """Log odds of presence (N, L), from those of trees and network; None if no label may be absent."""
        if not hasattr(self, "mean_presence_"):
            return None
        base = self._base_odds
        extra = [slope * (odds - base) for slope, odds in zip(self.slopes_, sources)]
        return np.asarray(base + sum(extra, np.zeros((n_rows, len(base)))))

    @staticmethod
    def _net_amounts(outputs: Array, odds: Array | None) -> Array:
        """Log-amounts of labels that are there, of the network's shares."""
        logs = outputs - logsumexp(outputs, axis=1, keepdims=True)
        return centred(logs if odds is None else logs - log_expit(odds))

    def _ask_neighbours(self, means: Array) -> tuple[Array, Array]:
        """Log-amounts of labels that are there, and log odds that they are, from means of neighbours (N, 2 L)."""
        shares, presence = np.split(means, 2, axis=1)
        weight = self.neighbours_ / (self.neighbours_ + PRIOR_NEIGHBOURS)
        shares = weight * shares + (1.0 - weight) * self.mean_shares_
        presence = weight * presence + (1.0 - weight) * self.mean_presence_
        amounts = np.log(shares / presence)
        return amounts - amounts.mean(1, keepdims=True), np.log(presence) - np.log1p(-presence)

    def _fit_mean(
        self, guides: Array, odds: Array | None, logs: Array, supports: Supports, folds: Index, weights: Array
    ) -> tuple[Array, list[Array]]:
        """Combine the guides; what is left of the log shares, and its covariance with and without each fold."""
        there = supports.there
        shares = np.where(there, np.exp(logs), 0.0)
        log_presence = 0.0 if odds is None else log_expit(odds)
        self.guide_centres_ = np.average(guides, 1, weights)
        self.guide_weights_ = np.full((len(guides), logs.shape[1]), 1.0 / max(len(guides), 1))

        def look() -> tuple[Array, LogAmounts]:
            gap = there * (logs - self._combine(guides))
            return gap, LogAmounts.fit(gap, supports, weights, moves=not supports.complete)

        gap, fitted = look()
        # expected log-amounts of absent labels follow the weights
        for _ in range(0 if len(guides) < 2 else 1 if supports.complete else ABSENT_ROUNDS):
            centre = self.centre_ + fitted.mean
            whole, around = self._combine(guides) + fitted.filled - centre, guides - self.guide_centres_[:, None]
            self.guide_weights_ = weigh_guides(
                around, whole, fitted.cov, self.guide_weights_, centre + log_presence, shares, weights
            )
            gap, fitted = look()
        self.centre_ = self.centre_ + fitted.mean
        gap = there * (gap - fitted.mean)
        covs = [fitted.cov]
        for fold in range(folds.max() + 1):
            kept = folds != fold
            if weights.sum() < FEWEST_ROWS:
                covs.append(fitted.cov)
            else:
                covs.append(LogAmounts.fit(gap[kept], supports.take(kept), weights[kept], moves=False).cov)
        return gap, covs

    def _whiten(self, gap: Array, covs: list[Array], supports: Supports, folds: Index, weights: Array) -> Frames:
        """Settle the shape of the residuals by held-out rows, and whiten every row by the covariance of the others."""
        n_rows, n_labels = gap.shape
        basis = helmert(n_labels)
        flat = [basis @ cov @ basis.T for cov in covs]
        parts = [(fold, np.flatnonzero(folds == fold)) for fold in range(len(covs) - 1)]
        alone = self.n_components == 1
        shape = Shape()
        if weights.sum() >= FEWEST_ROWS:
            tried = []
            for amount in SHRINKAGES:
                frames = Frames.empty(n_rows, 0, True)
                for fold, at in parts:
                    root = matrix_root(shrink(flat[fold + 1], amount))
                    frames.put(at, gap[at], supports.take(at), root, inside=False)
                tried.append((frames.square, frames.log_det))
            squares, log_dets = (np.array(part) for part in zip(*tried))
            choices = (FREEDOMS[-1:], np.ones(1)) if alone else (FREEDOMS, FACTORS)
            shape = choose_shape(squares, log_dets, frames.size, weights, *choices)
        self.shape_ = np.array([shape.shrinkage, shape.freedom, shape.spread])
        values, axes = np.linalg.eigh(shrink(flat[0], shape.shrinkage))
        self.back_ = (axes * np.sqrt(values))[:, ::-1].copy()  # a view turned round is no tensor
        frames = Frames.empty(
            n_rows, n_labels - 1 if supports.complete else min(n_labels - 1, MOST_AXES), supports.complete
        )
        for fold, at in parts:  # symmetric roots, turned alike: separate axes would differ from fold to fold
            back = matrix_root(shrink(flat[fold + 1], shape.shrinkage)) @ axes[:, ::-1]
            frames.put(at, gap[at], supports.take(at), back)
        return frames

    def _combine(self, guides: Array) -> Array:
        """Mean log-amounts (N, L) from the guides' (G, N, L)."""
        return self.centre_ + np.einsum("gl,gnl->nl", self.guide_weights_, guides - self.guide_centres_[:, None])

    def _raw_inputs(self, guides: Array, odds: Array | None) -> Array:
        """What the network sees before scaling: the guides' whitened mean, and log odds of presence."""
        if not len(guides):
            return np.zeros((guides.shape[1], 1))
        white = np.linalg.solve(self.back_, helmert(guides.shape[2]))  # (P, L)
        mean = (self._combine(guides) - self.centre_) @ white.T
        return mean if odds is None else np.hstack([mean, odds])

    def _scaled_inputs(self, raw: Array) -> Array:
        return np.clip((raw - self.input_mean_) * self.input_scale_, -INPUT_CLIP, INPUT_CLIP)

    # -- predictions -------------------------------------------------------------------------------------------------

    def _ask_guides(self, X: Array) -> tuple[Array, Array | None]:
        """Log-amounts (G, N, L) and log odds of presence (N, L) that the fitted guides predict."""
        answers, sources = [], []
        n_labels = self.n_labels_
        if "trees" in self.guide_names_:
            forest = Forest(self.trees_, self.tree_rows_, self.tree_counts_, len(self.tree_targets_))
            means = forest.weigh(X) @ self.tree_targets_
            if hasattr(self, "mean_presence_"):
                centre, near = self._ask_neighbours(means[:, n_labels:])
                answers.append(centre)
                sources.append(near)
        for name in self.guide_names_:
            if name == "trees":
                answers.append(means[:, :n_labels])
            elif name != "network":
                answers.append(Ridge(**self._fitted(Ridge, name)).predict(X))
        seen = np.hstack([X, *answers, *sources])
        if hasattr(self, "presence_out_"):
            sources.append(GuideNet(**self._fitted(GuideNet, "presence")).predict(seen))
        odds = self._combine_odds(sources, len(X))
        if "network" in self.guide_names_:
            outputs = GuideNet(**self._fitted(GuideNet, "network")).predict(seen)
            answers.append(self._net_amounts(outputs, odds))
        return np.array(answers).reshape(-1, len(X), n_labels), odds

    def _fitted(self, kind: type[Any], name: str) -> dict[str, Any]:
        return {field.name: getattr(self, f"{name}_{field.name}_", None) for field in fields(kind)}

    def _net(self) -> MixtureNet:
        names = ("hidden", "hidden_bias", "out", "out_bias", "centres", "log_widths", "turn", "odds")
        return MixtureNet(*(torch.as_tensor(getattr(self, f"net_{name}_")) for name in names))

    def _mixture(self, guides: Array, odds: Array | None) -> Mixture:
        """The distributions of rows by what guides predict."""
        net = self._net()
        inputs = torch.as_tensor(self._scaled_inputs(self._raw_inputs(guides, odds)))
        with torch.no_grad():
            log_scale, shift, logits, extra = net(inputs)
            log_weights = torch.log_softmax(logits, -1)
            maps = net.maps() if odds is None else None
        n_members, n_axes = len(net.centres), net.centres.shape[-1]
        back = torch.as_tensor(self.back_)
        mean = torch.as_tensor(self._combine(guides) @ helmert(self.n_labels_).T)
        location = mean + shift @ back[:, :n_axes].T  # (M, N, P)
        centres = torch.nn.functional.pad(net.centres, (0, len(back) - n_axes))
        presence: dict[str, Tensor] = {}
        if maps is not None:
            back = back @ torch.linalg.inv(maps)
            factor = back[:, None] * log_scale.exp()[:, :, None]  # (M, N, P, P)
            factor = factor.transpose(0, 1).contiguous()  # rows first
        else:
            factor, presence["scale"] = back, log_scale[..., 0].exp().T.contiguous()
        parts = [log_weights - math.log(n_members), location]
        log_weights, location = (part.transpose(0, 1).contiguous() for part in parts)
        if odds is not None:
            presence["row_odds"] = (torch.as_tensor(odds) + extra).transpose(0, 1).contiguous()
            presence["odds"] = net.odds[:, net.patterns]
        return Mixture(log_weights, location, factor, centres, net.log_widths, **presence)

    def _dist(self, X: Array) -> LogRatioSimplex:
        return LogRatioSimplex(self._mixture(*self._ask_guides(X))).named(self.label_names_)

    def encode(self, X: Any) -> Array:
        """The numbers that the model makes of a table: text, dates and gaps as the fit read them.

        Args:
            X: Features (N, d).

        Returns:
            Numbers (N, d').
        """
        return self._check_X(X)

    def predict_dist(self, X: Any) -> LogRatioSimplex:
        """The predicted distributions, one per row.

        Args:
            X: Features (N, d).

        Returns:
            Distributions with batch (N,) and event (L,).
        """
        return self._dist(self._check_X(X))

    def _blocks(self, X: Any, what: str = "predict", **context: Any) -> Iterator[tuple[slice, LogRatioSimplex]]:
        features = self._check_X(X)
        for start in range(0, len(features), DIST_ROWS):
            rows = slice(start, min(start + DIST_ROWS, len(features)))
            yield rows, self._dist(features[rows])

    predict = DistributionPredictor.predict  # takes rows with their predicted distributions, too

    def _predict(self, X: Array) -> Array:
        blocks = [self._dist(X[start : start + DIST_ROWS]).mean.numpy() for start in range(0, len(X), DIST_ROWS)]
        return np.concatenate(blocks)

    @property
    def zero_policy_(self) -> ZeroPolicy:  # type: ignore[override]
        """Shares of zero stay zero."""
        return ZeroPolicy("model", 0.0)

    # -- files -------------------------------------------------------------------------------------------------------

    def stored(self) -> dict[str, Any]:
        """What a file holds: all but the validation rows' densities."""
        return {name: value for name, value in super().stored().items() if name != "validation_log_prob_"}

    def _find_damage(self) -> str | None:
        if "trees" in self.guide_names_:
            if not isinstance(getattr(self, "trees_", None), TreesLDL):
                return "trees_ is missing"
            if (damage := self.trees_.find_damage()) is not None:
                return f"trees_.{damage}"
            counts, rows = self.tree_counts_, self.tree_rows_
            if len(counts) != len(self.trees_.children_) or counts.min() < 0 or counts.sum() != len(rows):
                return "tree_counts_ does not fit trees_"
            if rows.min(initial=0) < 0 or rows.max(initial=-1) >= len(self.tree_targets_):
                return "tree_rows_ names rows that are not there"
        training = getattr(self, "training_", None)
        if not isinstance(training, dict) or not isinstance(training.get("rows"), int):
            return "training_ does not name the number of rows"
        prints = getattr(self, "row_prints_", None)
        if not isinstance(prints, np.ndarray) or prints.dtype != np.int64 or len(prints) > training["rows"]:
            return "row_prints_ are no fingerprints of the training rows"
        return None


def deal(n_rows: int, n_folds: int, random: np.random.RandomState, groups: Any = None) -> Index:
    """The fold of every row; folds are made of whole groups, if any."""
    if groups is None:
        return random.permutation(np.arange(n_rows) % min(n_folds, n_rows))
    return group_folds(np.asarray(groups), n_folds, np.random.default_rng(random.randint(2**31 - 1)))


def read_zeros(D: Any, zeros: str) -> tuple[Array | None, str]:
    """Limits of columns with zeros (L,) if these are values below a limit, else None; and the reason in a sentence.

    Example:
        >>> D = np.array([[0.0, 9.1], [0.2, 7.4], [0.2, 6.3], [0.2, 8.8], [0.4, 5.2], [0.5, 7.7]])
        >>> read_zeros(D, "auto")[1]
        'below a limit: in 1 of 1 columns with zeros many rows share the smallest positive value'
    """
    table, _ = check_table(D, "D", "labels")
    zero = table == 0.0
    if not zero.any():
        return None, "no zeros"
    limits = np.where(zero.any(0) & (table > 0.0).any(0), np.min(table, 0, where=table > 0.0, initial=np.inf), np.nan)
    if zeros == "below":
        return limits, "below a limit, as asked for"
    some = np.flatnonzero(~np.isnan(limits))
    ties = (table[:, some] == limits[some]).sum(0)
    piled = (ties >= FEWEST_TIES) & (ties >= TIED_ROWS * (table[:, some] > 0.0).sum(0))
    tally = f"in {piled.sum()} of {len(some)} columns with zeros many rows share the smallest positive value"
    votes = common_denominator(table) if np.allclose(table.sum(1), 1.0) else None
    if votes is not None:
        return None, f"absent labels: the shares are multiples of 1/{votes}, as of votes"
    if 2 * piled.sum() > len(some):
        return limits, f"below a limit: {tally}"
    return None, f"absent labels: {tally}"


def centred(logs: Array) -> Array:
    """Logarithms minus their mean over labels."""
    return logs - logs.mean(1, keepdims=True)


def matrix_root(cov: Array) -> Array:
    """The symmetric root of a covariance."""
    values, axes = np.linalg.eigh(cov)
    root: Array = (axes * np.sqrt(np.maximum(values, 0.0))) @ axes.T
    return root
