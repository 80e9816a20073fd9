"""LogRatioLDL: guides for the mean log-ratios, and a mixture of Gaussians for what they leave.

Point learners ("guides") predict the isometric log-ratios z of every row without having seen it; non-negative least
squares combines them into ``μ(x)``. What is left is whitened by a covariance, and a small network of the guides'
predictions, not of x, moves, scales and reweights a mixture of Gaussians in the whitened space:

    ε = e^{-s(h)} ∘ A (z - μ(x) - A⁻¹ δ(h)),   p(ε) = Σ_i w_i(h) N(ε; c_i, σ_i² I).

The mixture starts as the Student law that fits held-out residuals best, so that training can only improve on it. Five
members each leave out one fold and stop at one common step: every row is a validation row once. Where training gains
less than a standard error, the Student law of all rows stays, as one member.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from scipy.optimize import nnls
from scipy.special import gammaln, ndtri
from scipy.stats import gamma
from sklearn.covariance import ledoit_wolf
from torch import Tensor

from snefy_ldl._internal.prediction import DensityPredictor
from snefy_ldl._internal.seen import SeenRows
from snefy_ldl._internal.types import Array, Index
from snefy_ldl._internal.validation import ZeroPolicy
from snefy_ldl.distributions.logratio import LogRatioSimplex, Mixture
from snefy_ldl.errors import InputError
from snefy_ldl.learners.base import Learner
from snefy_ldl.learners.linear import apply_scale, column_scale
from snefy_ldl.learners.trees import TreesLDL
from snefy_ldl.logratios import default_basis, refuse_zeros

#: Rows that the forest learns from at most.
FOREST_ROWS = 20_000
#: Folds of the cross-fitting, and so members of the density.
N_FOLDS = 5
#: Rows below which guides are cross-fitted in more folds.
FEW_ROWS, FEW_ROWS_FOLDS = 500, 10
#: With fewer rows than this there is one member without guides, around the mean.
FEWEST_ROWS = 8
#: Parts of the forest, each grown without one of as many parts of the rows.
TREE_PARTS = 10
#: Penalties that ridge guides choose from, for features of variance one.
RIDGE_PENALTIES = np.geomspace(1e-3, 1e5, 25)
#: Knots of the map from features to normal scores.
SCORE_KNOTS = 200
#: Rows' worth of evidence for equal weights of the guides, which steadies the choice on small tables.
EQUAL_WEIGHT_ROWS = 5.0
#: What the first shape is chosen from: shares of a sphere in the covariance, degrees of freedom, and factors of it.
SHRINKAGES = np.array([0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 1.0])
FREEDOMS = np.array([2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 20.0, 40.0, 100.0, 1e4])
FACTORS = np.geomspace(0.4, 1.5, 14)
#: Eigenvalues of a covariance below this part of the largest are lifted to it.
SMALLEST_EIGENVALUE = 1e-9
#: The Student law at the start is a mixture over its precision, in bins with these ends: narrow ones for far tails.
PRECISION_BINS = np.array([0.0, 0.001, 0.01, 0.04, 0.12, 0.3, 0.55, 0.8, 1.0])
#: What the other components weigh together at the start.
OTHER_WEIGHT = 0.2
#: How far the centres of the other components lie out at the start, in standard deviations.
LARGEST_OFFSET = 0.9
#: Inputs of the network are clipped here.
INPUT_CLIP = 4.0
LEARNING_RATE, WEIGHT_DECAY, WARM_UP, GRADIENT_NORM = 3e-3, 1e-2, 20, 5.0
#: Steps between two looks at the validation rows, and steps without progress after which training ends.
LOOK_EVERY, PATIENCE = 5, 60
#: Rows of one training step.
BATCH_ROWS = 2048
#: Rows whose laws are held at a time.
LAW_ROWS = 2048

GUIDES = ("ridge", "scores", "trees")


@dataclass(eq=False, repr=False)
class LogRatioLDL(Learner, DensityPredictor):  # type: ignore[misc]  # score is the learners', minus KL
    """Density of compositions in log-ratio space, for tables that are small or have many parts.

    With ``n_components=1`` and ``guides=["ridge"]`` it is logistic-normal regression: ridge regression of isometric
    log-ratios, and one Gaussian for what is left. Every share must be positive.

    Args:
        n_components: Gaussians of each member.
        guides: Learners of the mean: ``"ridge"`` on standardised features, ``"scores"`` (ridge on their normal scores)
            and ``"trees"`` (extremely randomised trees); ``"auto"`` is all three.
        n_hidden: Hidden units of the network that reshapes the mixture.
        n_trees: Trees of the forest.
        max_iter: Most training steps.
        random_state: Seed, generator or None.
        columns: What the columns of a DataFrame are, as in :class:`~snefy_ldl.SnefyLDL`.

    Attributes:
        guide_weights_: Weight of every guide in every member's mean, (M, G); what they lack to one is the mean's.
        shrinkage_: How far the covariance was shrunk toward a sphere, between 0 and 1.
        freedom_: Degrees of freedom of the Student law that the mixture starts from.
        n_iter_: The common stopping step; 0 where nothing improved on the start.
        validation_log_prob_: Log density of every training row by the member that left it out, (N,).
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
    n_hidden: int = 64
    n_trees: int = 300
    max_iter: int = 400
    random_state: Any = None
    columns: Any = "auto"

    def _check_params(self) -> None:
        super()._check_params()
        names = self._guide_names()
        if not names or len(set(names)) < len(names) or not set(names) <= set(GUIDES):
            raise InputError(f'guides={self.guides!r}: use "auto", or a list of {", ".join(GUIDES)}, each once.')

    def _guide_names(self) -> list[str]:
        named = isinstance(self.guides, (list, tuple)) and all(isinstance(name, str) for name in self.guides)
        names = list(self.guides) if named else [str(self.guides)]
        return list(GUIDES) if names == ["auto"] else names

    #: Nothing was tried but this density, and it has no network of the user's own.
    candidates_: ClassVar[tuple[Any, ...]] = ()
    backbone = None

    # -- fit ---------------------------------------------------------------------------------------------------------

    def _fit(self, X: Array, D: Array, random: np.random.RandomState) -> None:
        refuse_zeros(D <= 0.0, self.label_names_)
        started = time.perf_counter()
        logs = np.log(D)
        z = logs @ default_basis(D.shape[1]).matrix.T
        n_rows = len(z)
        folds = random.permutation(np.arange(n_rows) % min(N_FOLDS, n_rows))
        seed = int(random.randint(2**31 - 1))
        names = self._guide_names() if n_rows >= FEWEST_ROWS else []
        self.guide_names_ = names
        held_out = self._fit_guides(names, X, z, folds, seed)  # (G, N, P)
        alone = self.n_components == 1 or n_rows < FEWEST_ROWS
        whole = [np.ones(n_rows, dtype=bool)]
        trained = self._fit_members(held_out, z, folds, whole if alone else [folds != m for m in range(N_FOLDS)], seed)
        if trained.step == 0 and not alone:  # one member of all rows is as good as those of parts, and answers faster
            trained = replace(self._fit_members(held_out, z, folds, whole, seed), log_prob=trained.log_prob)
        self.n_iter_ = trained.step
        for name, value in vars(trained.net).items():
            setattr(self, f"net_{name}_", value.detach().double().numpy())
        self.validation_log_prob_ = trained.log_prob - logs.sum(1) - 0.5 * math.log(D.shape[1])
        self.feature_mean_ = X.mean(0)
        self._remember(X, D, time.perf_counter() - started)

    def _fit_members(self, held_out: Array, z: Array, folds: Index, members: list[Any], seed: int) -> Trained:
        """Fit members to some rows each, given what guides predict of rows they did not see (G, N, P)."""
        alone = len(members) == 1
        self.centre_ = np.array([z[keep].mean(0) for keep in members])
        self.guide_weights_ = np.array([stack_guides(held_out[:, keep], z[keep]) for keep in members])
        means = [self._combine(m, held_out) for m in range(len(members))]
        residuals = [z - mean for mean in means]
        self._whiten(residuals, folds, members)
        errors = np.array([(z - mean) @ white.T for mean, white in zip(means, self.white_)])  # (M, N, P)
        raw = np.array([self._raw_inputs(m, held_out) for m in range(len(members))])
        spread = raw.std(1)
        self.input_mean_, self.input_scale_ = raw.mean(1), np.where(spread > 1e-9, 1.0 / np.maximum(spread, 1e-9), 0.0)
        log_det = np.linalg.slogdet(self.white_)[1]
        net = MixtureNet.start(raw.shape[2], z.shape[1], self, seed)
        return train(
            net,
            torch.as_tensor(errors).float(),
            torch.as_tensor(self._scaled_inputs(raw)).float(),
            torch.as_tensor(log_det).float(),
            torch.as_tensor(np.array(members)),
            0 if alone else self.max_iter,
            seed,
        )

    def _remember(self, X: Array, D: Array, seconds: float) -> None:
        """Note what the fit did and which rows it saw."""
        self.row_prints_ = SeenRows.of(X, D).prints.view(np.int64)
        judged = self.n_components > 1 and len(X) >= FEWEST_ROWS  # by members that had left the row out
        loss = -float(self.validation_log_prob_.mean()) if judged else None
        self.training_: dict[str, Any] = {
            "rows": len(X),
            "epochs": self.n_iter_,
            "validation_loss": [loss],
            "seconds": round(seconds, 3),
            "device": "cpu",
            "labels": "shares",
        }

    @property
    def seen_rows_(self) -> SeenRows:
        """Fingerprints of the training rows."""
        return SeenRows(self.row_prints_.view(np.uint64), self.training_["rows"])

    def _fit_guides(self, names: list[str], X: Array, z: Array, folds: Index, seed: int) -> Array:
        """Fit the guides on all rows, and predict every row by guides that did not see it (G, N, P)."""
        answers, parts = [], folds
        if len(z) < FEW_ROWS:  # a guide that lacks a fifth of so few rows is clearly worse than that of all rows
            parts = np.random.default_rng(seed).permutation(np.arange(len(z)) % min(FEW_ROWS_FOLDS, len(z)))
        for name in names:
            if name == "trees":
                answers.append(self._fit_trees(X, z, seed))
                continue
            answer = np.empty_like(z)
            for fold in np.unique(parts):
                seen = parts != fold
                answer[~seen] = Ridge.fit(X[seen], z[seen], name == "scores").predict(X[~seen])
            answers.append(answer)
            for key, value in vars(Ridge.fit(X, z, name == "scores")).items():
                if value is not None:
                    setattr(self, f"{name}_{key}_", value)
        return np.array(answers).reshape(len(names), *z.shape)

    def _fit_trees(self, X: Array, z: Array, seed: int) -> Array:
        """The forest is a learner of shares: log-ratios are mapped to shares that they are linear in."""
        spread = z.std(0)
        spread = np.where(spread > 0.0, spread, 1.0)
        span = 2.2 * spread * max(float((np.abs(z - z.mean(0)) / spread).max()), 1.0)
        self.tree_scale_ = np.stack([z.mean(0) - 0.5 * span, span])
        unit = (z - self.tree_scale_[0]) / span
        shares = np.hstack([unit, 1.0 - unit]) / z.shape[1]
        used = np.arange(len(X))
        if len(X) > FOREST_ROWS:
            used = np.sort(np.random.default_rng(seed).choice(len(X), FOREST_ROWS, replace=False))
        forest = TreesLDL(n_trees=self.n_trees, n_parts=TREE_PARTS, random_state=seed).fit(X[used], shares[used])
        answer = self._trees_back(forest.predict(X))
        answer[used] = self._trees_back(forest.out_of_bag_)
        self.trees_ = copy.copy(forest)
        del self.trees_.out_of_bag_  # of use in training only
        return answer

    def _trees_back(self, shares: Array) -> Array:
        low, span = self.tree_scale_
        return low + span * shares[:, : len(low)] * len(low)

    def _whiten(self, residuals: list[Array], folds: Index, members: list[Any]) -> None:
        """Settle the shape of the residuals by held-out rows, and every member's whitening."""
        alone = len(members) == 1
        if len(residuals[0]) < FEWEST_ROWS:
            self.shrinkage_, self.freedom_, self.spread_ = 1.0, 3.0, 1.0
        elif not alone or self.n_components == 1:
            freedoms, factors = (FREEDOMS[-1:], np.ones(1)) if alone else (FREEDOMS, FACTORS)
            per_fold = [residuals[0] if alone else residuals[m] for m in range(N_FOLDS)]
            self.shrinkage_, self.freedom_, self.spread_ = choose_shape(per_fold, folds, freedoms, factors)
        white, back = [], []
        for residual, keep in zip(residuals, members):
            values, axes = spectrum(residual[keep])
            values = shrink(values, self.shrinkage_)
            white.append((axes / np.sqrt(values)).T)
            back.append(axes * np.sqrt(values))
        self.white_, self.back_ = np.array(white), np.array(back)

    def _combine(self, m: int, predicted: Array) -> Array:
        """A member's mean log-ratios (N, P) from the guides' (G, N, P)."""
        centre = self.centre_[m]
        return centre + np.tensordot(self.guide_weights_[m], predicted - centre, 1)

    def _raw_inputs(self, m: int, predicted: Array) -> Array:
        """The guides' predictions, whitened: what a member's network sees before scaling (N, G P)."""
        if not len(predicted):
            return np.zeros((predicted.shape[1], 1))
        return np.concatenate([(one - self.centre_[m]) @ self.white_[m].T for one in predicted], axis=1)

    def _scaled_inputs(self, raw: Array) -> Array:
        scaled = (raw - self.input_mean_[:, None]) * self.input_scale_[:, None]
        return np.clip(scaled, -INPUT_CLIP, INPUT_CLIP)

    # -- predictions -------------------------------------------------------------------------------------------------

    def _guide_predictions(self, X: Array) -> Array:
        """Log-ratios that the fitted guides predict (G, N, P)."""
        answers = []
        for name in self.guide_names_:
            if name == "trees":
                answers.append(self._trees_back(self.trees_.predict(X)))
            else:
                keys = ("mean", "inverse", "coef", "intercept", "knots")
                fitted: dict[str, Any] = {key: getattr(self, f"{name}_{key}_", None) for key in keys}
                answers.append(Ridge(**fitted).predict(X))
        return np.array(answers).reshape(len(answers), len(X), self.centre_.shape[1])

    def _law(self, X: Array) -> LogRatioSimplex:
        predicted = self._guide_predictions(X)
        n_members = len(self.centre_)
        mean = np.stack([self._combine(m, predicted) for m in range(n_members)])  # (M, N, P)
        inputs = self._scaled_inputs(np.array([self._raw_inputs(m, predicted) for m in range(n_members)]))
        names = ("hidden", "hidden_bias", "out", "out_bias", "centres", "log_widths")
        net = MixtureNet(*(torch.as_tensor(getattr(self, f"net_{name}_")) for name in names))
        with torch.no_grad():
            log_scale, shift, log_weights = net(torch.as_tensor(inputs))
        back = torch.as_tensor(self.back_)
        location = torch.as_tensor(mean) + shift @ back.transpose(1, 2)
        factor = back[:, None] * log_scale.exp()[:, :, None]  # (M, N, P, P)
        parts = (log_weights - math.log(n_members), location, factor)
        weights, location, factor = (part.transpose(0, 1).contiguous() for part in parts)  # rows first
        law = LogRatioSimplex(Mixture(weights, location, factor, net.centres, net.log_widths))
        return law.named(self.label_names_)

    def encode(self, X: Any) -> Array:
        """The numbers that the model makes of a table: text, dates and gaps as the fit read them.

        Args:
            X: Features (N, d).

        Returns:
            Numbers (N, d').
        """
        return self._check_X(X)

    def predict_dist(self, X: Any) -> LogRatioSimplex:
        """The predicted laws, one per row.

        Args:
            X: Features (N, d).

        Returns:
            Laws with batch (N,) and event (L,).
        """
        return self._law(self._check_X(X))

    def _blocks(self, X: Any, what: str = "predict") -> Iterator[tuple[slice, LogRatioSimplex]]:
        features = self._check_X(X)
        for start in range(0, len(features), LAW_ROWS):
            rows = slice(start, min(start + LAW_ROWS, len(features)))
            yield rows, self._law(features[rows])

    def _predict(self, X: Array) -> Array:
        blocks = [self._law(X[start : start + LAW_ROWS]).mean.numpy() for start in range(0, len(X), LAW_ROWS)]
        return np.concatenate(blocks)

    @property
    def zero_policy_(self) -> ZeroPolicy:  # type: ignore[override]
        """Shares of zero are refused."""
        return PositiveShares("error", 0.0)

    # -- files -------------------------------------------------------------------------------------------------------

    def stored(self) -> dict[str, Any]:
        """What a file holds: all but the validation rows' densities."""
        return {name: value for name, value in super().stored().items() if name != "validation_log_prob_"}

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        n_members = len(np.atleast_1d(getattr(self, "centre_", [])))
        n_ratios, n_guides = self.n_labels_ - 1, len(self.guide_names_)
        width, n_hidden, n_out = max(1, n_guides * n_ratios), self.n_hidden, 2 * n_ratios + self.n_components
        shapes: dict[str, tuple[int, ...]] = {
            "centre_": (n_members, n_ratios),
            "feature_mean_": (self._width,),
            "guide_weights_": (n_members, n_guides),
            "white_": (n_members, n_ratios, n_ratios),
            "back_": (n_members, n_ratios, n_ratios),
            "input_mean_": (n_members, width),
            "input_scale_": (n_members, width),
            "net_hidden_": (n_members, width, n_hidden),
            "net_hidden_bias_": (n_members, 1, n_hidden),
            "net_out_": (n_members, n_hidden, n_out),
            "net_out_bias_": (n_members, 1, n_out),
            "net_centres_": (n_members, self.n_components, n_ratios),
            "net_log_widths_": (n_members, self.n_components),
        }
        for name in set(self.guide_names_) - {"trees"}:
            shapes |= {f"{name}_coef_": (self._width, n_ratios), f"{name}_intercept_": (n_ratios,)}
            shapes |= {f"{name}_mean_": (self._width,), f"{name}_inverse_": (self._width,)}
        return shapes

    def _find_damage(self) -> str | None:
        if "trees" in self.guide_names_ and not isinstance(getattr(self, "trees_", None), TreesLDL):
            return "trees_ is missing"
        training = getattr(self, "training_", None)
        if not isinstance(training, dict) or not isinstance(training.get("rows"), int):
            return "training_ does not name the number of rows"
        prints = getattr(self, "row_prints_", None)
        if not isinstance(prints, np.ndarray) or prints.dtype != np.int64 or len(prints) > training["rows"]:
            return "row_prints_ are no fingerprints of the training rows"
        return None


@dataclass(frozen=True)
class PositiveShares(ZeroPolicy):
    """Refuses shares of zero, whose log-ratios do not exist."""

    def apply(self, D: Array, *, warn: bool = False, names: list[str] | None = None) -> Array:
        """The label distributions themselves.

        Raises:
            InputError: A share is zero.
        """
        refuse_zeros(D <= 0.0, names)
        return D


# -- guides ------------------------------------------------------------------------------------------------------------


@dataclass
class Ridge:
    """Ridge regression on standardised features or on their normal scores, its penalty by leave-one-out errors.

    Args:
        mean: of the features (or scores), (d,).
        inverse: reciprocal standard deviations (d,).
        coef: (d, P).
        intercept: (P,).
        knots: quantiles of the features (knots, d) that normal scores interpolate; None for the features themselves.

    Example:
        >>> X = np.arange(6.0)[:, None]
        >>> Ridge.fit(X, 2.0 * X).predict(X).round(2).ravel()
        array([ 0.,  2.,  4.,  6.,  8., 10.])
    """

    mean: Array
    inverse: Array
    coef: Array
    intercept: Array
    knots: Array | None = None

    @classmethod
    def fit(cls, X: Array, z: Array, scores: bool = False) -> Ridge:
        """Learn from features (N, d) and targets (N, P)."""
        knots = None
        if scores:
            n_knots = min(len(X), SCORE_KNOTS)
            knots = np.quantile(X, (np.arange(n_knots) + 0.5) / n_knots, axis=0)
            X = normal_scores(X, knots)
        mean, inverse = column_scale(X)
        scaled = apply_scale(X, mean, inverse)
        middle, target = scaled.mean(0), z.mean(0)
        scaled = scaled - middle
        # eigenvectors of the smaller of both products, several times as fast as singular vectors of a wide table
        wide = scaled.shape[1] > len(scaled)
        values, turn = np.linalg.eigh(scaled @ scaled.T if wide else scaled.T @ scaled)
        there = values > 1e-12 * max(values.max(initial=0.0), 1e-300)
        values, turn = values[there], turn[:, there]
        left = turn if wide else scaled @ turn / np.sqrt(values)  # (N, rank)
        turned = left.T @ (z - target)
        parts = values / (values + RIDGE_PENALTIES[:, None])  # (penalties, rank)
        leverage = 1.0 / len(X) + parts @ (left**2).T
        errors = [
            np.square(((z - target) - left @ (part[:, None] * turned)) / np.maximum(1.0 - lever, 1e-6)[:, None]).mean()
            for part, lever in zip(parts, leverage)
        ]
        best = int(np.argmin(errors))
        dual = left @ ((parts[best] / values)[:, None] * turned)  # (N, P)
        coef = scaled.T @ dual
        return cls(mean, inverse, coef, target - middle @ coef, knots)

    def predict(self, X: Array) -> Array:
        """Targets (N, P)."""
        if self.knots is not None:
            X = normal_scores(X, self.knots)
        return apply_scale(X, self.mean, self.inverse) @ self.coef + self.intercept


def normal_scores(X: Array, knots: Array) -> Array:
    """Features as quantiles of the standard normal law, (N, d); ties get the middle of their ranks.

    Args:
        X: Features (N, d).
        knots: Quantiles of the training features at ``(k + ½) / n`` (n, d).

    Returns:
        Scores (N, d).

    Example:
        >>> normal_scores(np.array([[2.0]]), np.array([[1.0], [2.0], [3.0]]))
        array([[0.]])
    """
    levels = ndtri((np.arange(len(knots)) + 0.5) / len(knots))
    out = np.empty_like(X)
    for column in range(X.shape[1]):
        values, at = X[:, column], knots[:, column]
        above = np.interp(values, at, levels)
        below = -np.interp(-values, -at[::-1], -levels[::-1])
        out[:, column] = 0.5 * (above + below)
    return out


def stack_guides(predicted: Array, z: Array) -> Array:
    """Non-negative weights of guides (G,) by least squares in whitened log-ratios, drawn toward equal ones.

    Args:
        predicted: What guides say of rows they did not see (G, N, P).
        z: What was observed (N, P).

    Returns:
        Weights; one for a guide that is alone.

    Example:
        >>> z = np.random.default_rng(0).normal(size=(50, 2))
        >>> stack_guides(np.stack([z, 0 * z]), z).round(2)
        array([0.95, 0.05])
    """
    n_guides = len(predicted)
    if n_guides < 2:
        return np.ones(n_guides)
    covariance = ledoit_wolf(z - predicted.mean(0))[0] if len(z) > 1 else np.eye(z.shape[1])
    values, axes = np.linalg.eigh(covariance)
    white = axes / np.sqrt(np.maximum(values, SMALLEST_EIGENVALUE * max(values.max(), 1e-12)))
    signal = (predicted - z.mean(0)) @ white
    target = (z - z.mean(0)) @ white
    prior = np.sqrt(EQUAL_WEIGHT_ROWS * (signal**2).sum(2).mean(1))
    rows = np.concatenate([signal.reshape(n_guides, -1).T, np.diag(prior)])
    return nnls(rows, np.concatenate([target.ravel(), prior / n_guides]))[0]


# -- the shape of residuals --------------------------------------------------------------------------------------------


def spectrum(residual: Array) -> tuple[Array, Array]:
    """Eigenvalues (P,) and eigenvectors (P, P) of ``E[r rᵀ]`` over rows (N, P)."""
    values, axes = np.linalg.eigh(residual.T @ residual / len(residual))
    return values, axes


def shrink(values: Array, amount: float) -> Array:
    """Eigenvalues of a covariance that is shrunk toward a sphere of the same size; all one where it is empty."""
    size = float(values.mean())
    if size <= 0.0:
        return np.ones_like(values)
    return np.maximum((1.0 - amount) * values + amount * size, SMALLEST_EIGENVALUE * values.max())


def choose_shape(residuals: list[Array], folds: Index, freedoms: Array, factors: Array) -> tuple[float, float, float]:
    """Shrinkage of the covariance, and degrees of freedom and squared scale of a Student law, by held-out rows.

    All combinations are averaged by their likelihood, so that a small table does not settle on an extreme one.

    Args:
        residuals: for every fold, residuals (N, P) of a mean that did not see it.
        folds: fold of every row (N,).
        freedoms: degrees of freedom to choose from.
        factors: squared scales to choose from.

    Returns:
        Shrinkage, degrees of freedom, squared scale.
    """
    n_ratios = residuals[0].shape[1]
    total = np.zeros((len(SHRINKAGES), len(freedoms), len(factors)))
    norm = gammaln((freedoms + n_ratios) / 2) - gammaln(freedoms / 2)
    norm = norm[:, None] - n_ratios / 2 * np.log(freedoms[:, None] * np.pi * factors)
    for fold, residual in enumerate(residuals):
        values, axes = spectrum(residual[folds != fold])
        turned = (residual[folds == fold] @ axes) ** 2
        for a, amount in enumerate(SHRINKAGES):
            shrunk = shrink(values, amount)
            distance = (turned / shrunk).sum(1)[:, None, None]
            tail = np.log1p(distance / (freedoms[:, None] * factors)).sum(0)
            total[a] += len(turned) * (norm - 0.5 * np.log(shrunk).sum())
            total[a] -= 0.5 * (freedoms[:, None] + n_ratios) * tail
    chance = np.exp(total - total.max())
    chance /= chance.sum()
    amount = float(chance.sum((1, 2)) @ SHRINKAGES)
    freedom = float(1.0 / (chance.sum((0, 2)) @ (1.0 / freedoms)))
    return amount, freedom, float(np.exp(chance.sum((0, 1)) @ np.log(factors)))


# -- the mixture and its network ---------------------------------------------------------------------------------------


@dataclass
class MixtureNet:
    """M members of a mixture of K Gaussians in P whitened log-ratios, reshaped by a network with one hidden layer.

    Args:
        hidden: (M, inputs, H).
        hidden_bias: (M, 1, H).
        out: (M, H, 2 P + K): log scales, shifts, and log weights.
        out_bias: (M, 1, 2 P + K).
        centres: (M, K, P).
        log_widths: (M, K).
    """

    hidden: Tensor
    hidden_bias: Tensor
    out: Tensor
    out_bias: Tensor
    centres: Tensor
    log_widths: Tensor

    @classmethod
    def start(cls, n_inputs: int, n_ratios: int, model: LogRatioLDL, seed: int) -> MixtureNet:
        """The Student law of a model's residuals, with further components near it that nearly sum up to it."""
        generator = torch.Generator().manual_seed(seed)
        n_members, n_components, n_hidden = len(model.centre_), model.n_components, model.n_hidden
        bins = PRECISION_BINS if n_components >= 2 * len(PRECISION_BINS) else np.array([0.0, 1.0])
        n_radial = len(bins) - 1
        hidden = torch.randn(n_members, n_inputs, n_hidden, generator=generator) / n_inputs**0.5
        # the further components: offsets of variance τ², and what is missing to one as their width
        offset = LARGEST_OFFSET * torch.rand(n_members, n_components, 1, generator=generator)
        centres = offset * torch.randn(n_members, n_components, n_ratios, generator=generator)
        log_widths = 0.5 * torch.log1p(-offset[..., 0].square())
        if n_radial > 1:
            precision = gamma.ppf(0.5 * (bins[1:] + bins[:-1]), model.freedom_ / 2, scale=2 / model.freedom_)
        else:
            precision = np.ones(1)
        centres[:, :n_radial], log_widths[:, :n_radial] = 0.0, torch.as_tensor(-0.5 * np.log(precision)).float()
        weights = np.concatenate([np.diff(bins), np.full(n_components - n_radial, OTHER_WEIGHT / n_components)])
        out_bias = torch.zeros(n_members, 1, 2 * n_ratios + n_components)
        out_bias[..., 2 * n_ratios :] = torch.as_tensor(np.log(weights)).float()
        size = model.spread_**0.5
        return cls(
            hidden,
            torch.zeros(n_members, 1, n_hidden),
            torch.zeros(n_members, n_hidden, out_bias.shape[-1]),
            out_bias,
            size * centres,
            log_widths + math.log(size),
        )

    def __call__(self, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Log scales and shifts (M, N, P) and log weights (M, N, K) of rows, inputs (M, N, I)."""
        n_ratios = self.centres.shape[-1]
        answer = torch.tanh(inputs @ self.hidden + self.hidden_bias) @ self.out + self.out_bias
        log_scale, shift, logits = answer.split([n_ratios, n_ratios, self.centres.shape[1]], -1)
        return log_scale, shift, torch.log_softmax(logits, -1)

    def log_prob(self, errors: Tensor, inputs: Tensor) -> Tensor:
        """Log density (M, N) of whitened residuals (M, N, P)."""
        log_scale, shift, log_weights = self(inputs)
        point = torch.exp(-log_scale) * (errors - shift)
        squares = point.square().sum(-1, keepdim=True) - 2.0 * point @ self.centres.transpose(1, 2)
        squares = squares + self.centres.square().sum(-1)[:, None]
        n_ratios, widths = point.shape[-1], self.log_widths[:, None]
        log_p = -0.5 * squares * torch.exp(-2.0 * widths) - n_ratios * (widths + 0.5 * math.log(2.0 * math.pi))
        return torch.logsumexp(log_p + log_weights, -1) - log_scale.sum(-1)


@dataclass
class Trained:
    """The net at the common stopping step, that step, and the held-out log densities of all rows (N,)."""

    net: MixtureNet
    step: int
    log_prob: Array


def train(
    net: MixtureNet, errors: Tensor, inputs: Tensor, log_det: Tensor, learns: Tensor, max_iter: int, seed: int
) -> Trained:
    """Train all members side by side, and go back to the step at which held-out rows were likeliest.

    Args:
        net: at its start.
        errors: whitened residuals of every member (M, N, P).
        inputs: of the network (M, N, I).
        log_det: log determinant of every member's whitening (M,).
        learns: which rows each member learns from (M, N); the others are its validation rows.
        max_iter: most steps.
        seed: of the rows of each step, where there are many.

    Returns:
        The trained net.
    """
    n_rows = errors.shape[1]
    random = torch.Generator().manual_seed(seed)
    alone = len(errors) == 1
    owner = torch.zeros(n_rows, dtype=torch.long) if alone else (~learns).long().argmax(0)

    @torch.no_grad()
    def held_out() -> Tensor:
        values = errors.new_empty(n_rows)
        for m in range(len(errors)):
            mine = owner == m
            one = MixtureNet(*(value[m : m + 1] for value in vars(net).values()))
            values[mine] = one.log_prob(errors[m : m + 1, mine], inputs[m : m + 1, mine])[0] + log_det[m]
        return values

    def kept() -> dict[str, Tensor]:
        return {name: value.detach().clone() for name, value in vars(net).items()}

    best, best_step, state = held_out(), 0, kept()
    start = best, 0, state
    if max_iter == 0:
        return Trained(net, 0, best.double().numpy())
    weights = [net.hidden.requires_grad_(), net.out.requires_grad_()]
    others = [value.requires_grad_() for name, value in vars(net).items() if name not in ("hidden", "out")]
    groups = [{"params": weights, "weight_decay": WEIGHT_DECAY}, {"params": others, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=(0.9, 0.98))
    for step in range(1, max_iter + 1):
        rate = LEARNING_RATE * min(1.0, step / WARM_UP) * (1.0 - 0.9 * step / max_iter)
        for group in optimiser.param_groups:
            group["lr"] = rate
        rows = slice(None) if n_rows <= BATCH_ROWS else torch.randperm(n_rows, generator=random)[:BATCH_ROWS]
        share = learns[:, rows].float()
        loss = -(net.log_prob(errors[:, rows], inputs[:, rows]) * share).sum() / share.sum()
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights + others, GRADIENT_NORM)
        optimiser.step()
        if step % LOOK_EVERY == 0:
            values = held_out()
            if float(values.mean()) > float(best.mean()):
                best, best_step, state = values, step, kept()
            elif step - best_step > PATIENCE:
                break
    gain = (best - start[0]).double()
    if best_step and float(gain.mean()) < float(gain.std()) / len(gain) ** 0.5:  # the best of many looks at few rows
        best, best_step, state = start
    return Trained(MixtureNet(**state), best_step, best.double().numpy())
