"""How far groups of rows lie from where their features put them: a linear mixed model of log-ratio residuals.

With r_i the log-ratio residual of row i from a prediction that has not seen its group,

    r_i = μ + Σ_levels u_g(i) + e_i,     u_g ~ N(0, T_level),  e_i ~ N(0, S).

A change of basis V with ``VᵀSV = 1`` and VᵀTV diagonal makes directions of it that do not depend on each other, each
with one variance ratio per level. Those are settled by maximum marginal likelihood (empirical Bayes), and directions
in which groups do not differ are dropped. Given the ratios, the posterior of all effects is one linear system per
direction; with a single level it is a division.

What the network sees of a row's group is the posterior mean of its effect, and the part of the variance between groups
that is still open. It learns from rows whose own label had no part in either, so that its law is that of a further row
of such a group: the uncertainty about the effect is in the law, and every closed form stays exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.linalg import eigh
from scipy.optimize import minimize
from scipy.sparse.linalg import splu
from scipy.stats import norm

from snefy_ldl._internal.types import Array, Index, Mask
from snefy_ldl.datasets.grouping import Groups
from snefy_ldl.errors import InputError, ModelFileError
from snefy_ldl.training.guides import Guides, mixed_mean, pack_guides, unpack_guides

#: Directions of effects, at most.
MOST_DIRECTIONS = 8
#: How much larger than with shuffled rows twice the log likelihood ratio of a direction must be, and how many times the
#: rows are shuffled: directions are those in which groups differ most, and with many labels some differ by chance.
LEAST_RATIO, SHUFFLES = 4.0, 5
#: Logarithms of the smallest and largest ratio of variances between and within groups.
RATIO_RANGE = (-9.0, 6.0)
#: Part of the mean variance that every direction is given, so that residuals of a constant share have a scale.
RIDGE = 1e-3
#: A row of whose groups a larger part of the variance is open is one of unknown groups.
NOTHING_KNOWN = 1.0 - 1e-9
#: Arrays of a mixed model, in the order in which it takes them.
MODEL_ARRAYS = ("mean", "weights", "directions", "ratios", "within")
#: Groups with at least two rows that an estimate needs.
LEAST_GROUPS = 4


@dataclass(frozen=True)
class MixedModel:
    """The fitted linear mixed model.

    Args:
        mean: ``μ`` (L,).
        weights: from residuals to directions (L, q).
        directions: back, from directions to log-ratios (L, q); the within-group variance of each is one.
        ratios: variance of the effects of each level, in units of the variance within groups (k, q).
        within: ``S`` (L, L).
    """

    mean: Array
    weights: Array
    directions: Array
    ratios: Array
    within: Array

    def scores(self, residuals: Array) -> Array:
        """Residuals (N, L) in the directions of the effects (N, q)."""
        scores: Array = (residuals - self.mean) @ self.weights
        return scores

    def covariance(self, level: int) -> Array:
        """``T`` of one level (L, L): covariance of its effects as shifts of log-ratios."""
        covariance: Array = (self.directions * self.ratios[level]) @ self.directions.T
        return covariance


@dataclass(frozen=True)
class GroupEffects:
    """What a fit knows about groups of rows.

    Args:
        model: the linear mixed model.
        levels: names of the levels.
        names: of the groups of each level.
        means: posterior means of each level's effects, in the directions of the model (G, q).
        counts: rows that each of these groups had (G,).
        base: point learners from whose predictions residuals are taken.
        mix: weights of those learners (B,).
        pull: part of the prediction that is mixed into shares before their logarithm, so that a zero has one.
        log_centre: logarithm of what shares are divided by before they are compared with the learners (L,), or None.
        guides: point learners that see the effects beside the features, for rows of known groups; None where the
            network has no guides.
        default: codes of the groups (k,) of rows that come without groups, after :meth:`~snefy_ldl.SnefyLDL.adapt`.
        cells: with several levels, the combinations of codes that training rows had, and how many rows had them in the
            last column (M, k + 1); None with one level.
    """

    model: MixedModel
    levels: tuple[str, ...]
    names: tuple[tuple[str, ...], ...]
    means: tuple[Array, ...]
    counts: tuple[Array, ...]
    base: Guides
    mix: Array
    pull: float
    log_centre: Array | None = None
    guides: Guides | None = None
    default: Index | None = None
    cells: Index | None = None

    @property
    def n_columns(self) -> int:
        """Columns that the network sees of a group."""
        return int(self.model.ratios.shape[1]) + 1

    def residuals(self, table: Array, labels: Array) -> Array:
        """Log-ratio residuals (N, L) of shares from the base learners' predictions, centred logs (N, B L)."""
        return log_residuals(table, labels, self.mix, self.pull)

    def codes(self, groups: Groups | None, n_rows: int) -> Index:
        """Numbers of the rows' groups among those that are known (N, k); -1 for others.

        Raises:
            InputError: the groups have another number of levels than those of the fit.
        """
        if groups is None:
            none = np.full(len(self.levels), -1, dtype=np.intp) if self.default is None else self.default
            return np.tile(none, (n_rows, 1))
        if len(groups.levels) != len(self.levels):
            raise InputError(
                f"the model was fitted with groups of {len(self.levels)} level(s) ({', '.join(self.levels)}); got "
                f"{len(groups.levels)} column(s). Use None for a group that is not known."
            )
        return groups.renamed(self.names)

    def columns(self, groups: Groups | None, n_rows: int) -> Array:
        """What the network sees of the groups of some rows (N, q + 1)."""
        return group_columns(self.codes(groups, n_rows), self.means, self.counts, self.model.ratios)

    def inputs(self, guides: Guides | None, kind: str, X: Any, columns: Array) -> Array:
        """What the network takes of some rows.

        Args:
            guides: of rows whose groups are not known, or None.
            kind: what the network sees.
            X: features (N, d).
            columns: what it sees of the groups (N, q + 1).

        Returns:
            Its inputs (N, d' + q + 1).
        """
        if guides is None or self.guides is None:
            return np.hstack([_dense(X), columns])
        known = columns[:, -1] < NOTHING_KNOWN
        seen = np.empty((len(columns), guides_width(guides, self.model)))
        for rows, learners, table in (
            (~known, guides, X),
            (known, self.guides, beside(X, columns[:, :-1])),
        ):
            if rows.any():
                seen[rows] = learners.features(table[rows])
        return np.hstack([_dense(X), seen, columns]) if kind == "both" else np.hstack([seen, columns])

    def learn(self, codes: Index, X: Any, labels: Array, name: Sequence[str]) -> GroupEffects:
        """These effects with one more group in the levels in which it is new, from a few of its rows.

        Args:
            codes: groups of the rows in the levels where they are known (k,), -1 where the group is new.
            X: features (n, d).
            labels: label distributions (n, L).
            name: of the group, one per level.

        Returns:
            The effects; the new groups have the last numbers of their levels.
        """
        new = codes < 0
        if self.log_centre is not None:
            labels = labels / np.exp(self.log_centre)
            labels = labels / labels.sum(1, keepdims=True)
        scores = self.model.scores(self.residuals(self.base.features(X), labels))
        for level in np.flatnonzero(~new).tolist():
            scores = scores - self.means[level][codes[level]]
        rows, n = np.zeros((len(scores), int(new.sum())), dtype=np.intp), len(scores)
        found = posterior_means(scores, rows, [1] * rows.shape[1], self.model.ratios[new])
        names, means, counts = list(self.names), list(self.means), list(self.counts)
        for place, level in enumerate(np.flatnonzero(new).tolist()):
            names[level] = (*names[level], name[level])
            means[level] = np.vstack([means[level], found[place]])
            counts[level] = np.append(counts[level], float(n))
        return replace(self, names=tuple(names), means=tuple(means), counts=tuple(counts))

    def redraw(self, codes: Index, random: np.random.Generator) -> Array:
        """Changes of the rows' effects (N, q) that make each row one of a group of its own.

        The posterior mean of a row's effect is taken out, to which the row itself belongs, so that ``1 - t/(1 + n t)``
        of the variance ``1 + t`` is left, t the ratio and n the rows of the group. A draw makes up for the rest.

        Args:
            codes: of the rows' groups (N, k), -1 where one is not known.
            random: source of the draws.

        Returns:
            The changes, in the directions of the model.
        """
        change = np.zeros((len(codes), self.model.ratios.shape[1]))
        for level, ratio in enumerate(self.model.ratios):
            known = codes[:, level] >= 0
            at = codes[known, level]
            rows = self.counts[level][at, None]
            deviation = np.sqrt(ratio + ratio / (1.0 + rows * ratio))
            change[known] += random.normal(size=deviation.shape) * deviation - self.means[level][at]
        return change

    def shifts(self, level: int = 0) -> tuple[Array, Array]:
        """How far each group of a level shifts the log-ratios of its rows.

        Args:
            level: its number.

        Returns:
            Posterior means and standard deviations (G, L); with several levels, the deviations are those for known
            effects of the other levels.
        """
        ratio, counts = self.model.ratios[level], self.counts[level][:, None]
        left = ratio / (1.0 + counts * ratio)
        return self.means[level] @ self.model.directions.T, np.sqrt(left @ self.model.directions.T**2)

    def variance_shares(
        self, confidence_level: float = 0.95, n_draws: int = 100, random_state: Any = 0
    ) -> tuple[Array, Array, Array]:
        """Shares of the variance of log-ratios, given the features, between the groups of each level and within groups.

        Intervals are bias-corrected percentiles of a parametric bootstrap: effects and rows are drawn from the fitted
        model, in groups as large as those of the fit, and the variances are estimated again. The directions in which
        groups differ are taken as they are, and others have no variance between groups.

        Args:
            confidence_level: of the intervals.
            n_draws: draws of the bootstrap.
            random_state: seed of the draws.

        Returns:
            Shares, and the lower and upper ends of their intervals, (k + 1, L) each: one row per level, and the
            variance within groups last. Shares of one label sum to one.

        Raises:
            InputError: the model has several levels and was saved by a version that did not store how they cross.
        """
        model, k = self.model, len(self.levels)
        cells = self.cells
        if cells is None:
            if k > 1:
                raise InputError("the model file does not hold how its levels of groups cross; fit the model again.")
            cells = np.column_stack([np.arange(len(self.counts[0])), self.counts[0]]).astype(np.int64)
        squares = model.directions**2
        rest = np.maximum(np.diag(model.within) - squares.sum(1), 0.0)
        random = np.random.default_rng(random_state)
        sizes = [len(names) for names in self.names]
        draws = np.empty((n_draws, k + 1, len(rest)))
        for draw in draws:
            between, variances = _draw_variances(cells, sizes, model.ratios, random)
            draw[:k] = np.maximum(np.einsum("li,kij,lj->kl", model.directions, between, model.directions), 0.0)
            draw[k] = rest + squares @ variances
        draws /= draws.sum(1, keepdims=True)
        shares: Array = np.vstack([model.ratios @ squares.T, rest + squares.sum(1)])
        shares = shares / shares.sum(0)
        return shares, *_corrected_ends(shares, draws, confidence_level)


def _draw_variances(cells: Index, sizes: list[int], ratios: Array, random: np.random.Generator) -> tuple[Array, Array]:
    """Draw rows of the model, and estimate its variances from them.

    Args:
        cells: combinations of groups, and their numbers of rows (M, k + 1).
        sizes: groups of each level.
        ratios: of the model (k, q).
        random: source of the draws.

    Returns:
        Covariances of the effects of each level in the directions (k, q, q), and the variances within groups (q,).
    """
    cells = cells[cells[:, -1] > 0]
    rows, table = cells[:, -1].astype(float), design(cells[:, :-1], sizes)
    weighted = sp.diags(rows) @ table
    gram, n, q = (table.T @ weighted).tocsc(), int(rows.sum()), ratios.shape[1]
    effects = random.normal(size=(sum(sizes), q)) * np.repeat(np.sqrt(ratios), sizes, axis=0)
    means = table @ effects + random.normal(size=(len(rows), q)) / np.sqrt(rows)[:, None]
    means -= rows @ means / n
    totals = rows @ means**2 + random.gamma((n - len(rows)) / 2.0, 2.0, size=q)
    sums = weighted.T @ means
    parts = [_best_ratios(n, float(total), part, gram, sizes) for total, part in zip(totals, sums.T)]
    variances = np.array([variance for _, _, variance in parts])
    counts = np.maximum(gram.diagonal(), 1.0)
    between = np.empty((len(sizes), q, q))
    for level, groups in enumerate(np.split(np.arange(len(sums)), np.cumsum(sizes)[:-1])):
        between[level] = (sums[groups].T / counts[groups]) @ sums[groups] / counts[groups].sum()
        np.fill_diagonal(between[level], [best[level] * variance for best, _, variance in parts])
    return between, variances


def _corrected_ends(values: Array, draws: Array, level: float) -> tuple[Array, Array]:
    """Percentiles of draws (B, k + 1, L), moved where draws lie to one side of the values that they were drawn from.

    Estimates of variances between groups are too small on average, so that of those ends are only moved up, and of the
    variance within groups (the last) down.
    """
    below = (draws < values).mean(0)
    below = np.vstack([np.clip(below[:-1], 0.5, 0.7), np.clip(below[-1:], 0.3, 0.5)])
    shift, half = 2.0 * norm.ppf(below), norm.ppf(0.5 + level / 2.0)
    ordered = np.sort(draws, axis=0)

    def end(probability: Array) -> Array:
        place = np.clip(np.round(probability * len(draws) - 0.5), 0, len(draws) - 1).astype(np.intp)
        value: Array = np.take_along_axis(ordered, place[None], axis=0)[0]
        return value

    return end(norm.cdf(shift - half)), end(norm.cdf(shift + half))


def pack_effects(effects: GroupEffects, guides: Guides | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Group effects as plain JSON values and arrays.

    Args:
        effects: to be written.
        guides: of the model; where the base learners are these, they are not written again.

    Returns:
        The description, and the arrays by name, which all begin with ``effect.``.
    """
    model = effects.model
    arrays: dict[str, Any] = {f"effect.{name}": getattr(model, name) for name in MODEL_ARRAYS} | {
        "effect.mix": effects.mix
    }
    if effects.log_centre is not None:
        arrays["effect.log_centre"] = effects.log_centre
    if effects.cells is not None:
        arrays["effect.cells"] = effects.cells
    for level, (means, counts) in enumerate(zip(effects.means, effects.counts)):
        arrays |= {f"effect.means.{level}": means, f"effect.counts.{level}": counts}
    description: dict[str, Any] = {
        "levels": list(effects.levels),
        "names": [list(names) for names in effects.names],
        "n_columns": effects.n_columns,
        "pull": effects.pull,
        "default": None if effects.default is None else effects.default.tolist(),
    }
    shared = guides is not None and guides.learners is effects.base.learners
    for part, learners in (("base", None if shared else effects.base), ("known", effects.guides)):
        description[part] = None
        if learners is not None:
            description[part], packed = pack_guides(learners)
            arrays |= {f"effect.{part}.{name}": array for name, array in packed.items()}
    return description, arrays


def unpack_effects(
    description: dict[str, Any], arrays: dict[str, Any], guides: Guides | None, n_features: int, n_labels: int
) -> GroupEffects:
    """The effects that :func:`pack_effects` described.

    Args:
        description: as it was.
        arrays: all arrays of the file.
        guides: of the model, or None.
        n_features: d, that base learners see.
        n_labels: L.

    Returns:
        The effects.

    Raises:
        ModelFileError: where an array is missing, of another shape or not finite.
    """
    own = {name.removeprefix("effect."): np.asarray(value) for name, value in arrays.items()}
    names = tuple(tuple(str(name) for name in level) for level in description["names"])
    q, n_levels = own["ratios"].shape[-1], len(names)
    shapes: dict[str, tuple[int, ...]] = {
        **{"mean": (n_labels,), "weights": (n_labels, q), "directions": (n_labels, q)},
        **{"ratios": (n_levels, q), "within": (n_labels, n_labels)},
        **{f"means.{level}": (len(part), q) for level, part in enumerate(names)},
        **{f"counts.{level}": (len(part),) for level, part in enumerate(names)},
    }
    for name, shape in shapes.items():
        if name not in own or own[name].shape != shape or not np.isfinite(own[name]).all():
            raise ModelFileError(f"effect.{name} does not hold finite numbers of shape {shape}.")
    cells = own.get("cells")
    if cells is not None and (
        cells.ndim != 2
        or cells.shape[1] != n_levels + 1
        or cells.dtype.kind != "i"
        or not (cells[:, :-1] < [len(part) for part in names]).all()
        or not (cells[:, :-1] >= -1).all()
        or not (cells[:, -1] > 0).all()
    ):
        raise ModelFileError("effect.cells does not hold combinations of groups and their numbers of rows.")
    if description["n_columns"] != q + 1:
        raise ModelFileError(f"the network sees {description['n_columns']} columns of groups, and there are {q + 1}.")
    if (
        len(description["levels"]) != n_levels
        or not (own["ratios"] > 0.0).all()
        or not 0.0 <= description["pull"] < 1.0
    ):
        raise ModelFileError("the group effects do not fit each other.")
    parts: dict[str, Guides | None] = {}
    for part, width in (("base", n_features), ("known", n_features + q)):
        prefix = f"{part}."
        inside = {name.removeprefix(prefix): value for name, value in own.items() if name.startswith(prefix)}
        entry = description[part]
        parts[part] = None if entry is None else unpack_guides(entry, inside, width, n_labels)
    base = parts["base"] or guides
    if base is None or len(own["mix"]) != len(base.learners):
        raise ModelFileError("the group effects have no learners to take residuals from.")
    default = None if description["default"] is None else np.array(description["default"], dtype=np.intp)
    if default is not None and not all(0 <= code < len(level) for code, level in zip(default, names)):
        raise ModelFileError("effects.default names a group that is not there.")
    return GroupEffects(
        MixedModel(*(own[name] for name in MODEL_ARRAYS)),
        tuple(description["levels"]),
        names,
        tuple(own[f"means.{level}"] for level in range(n_levels)),
        tuple(own[f"counts.{level}"] for level in range(n_levels)),
        base,
        own["mix"],
        float(description["pull"]),
        own.get("log_centre"),
        parts["known"],
        default,
        cells,
    )


def log_residuals(table: Array, labels: Array, mix: Array, pull: float) -> Array:
    """Log-ratios between shares (N, L) and the mean of some learners' predictions, centred logs (N, B L).

    Args:
        table: the predictions.
        labels: the shares.
        mix: weights of the learners (B,).
        pull: part of the mean that is mixed into the shares; above zero where shares may be zero. Small ratios stay
            what they are.

    Returns:
        (N, L); rows sum to zero.
    """
    mean = mixed_mean(table, mix)
    ratios = (np.log((1.0 - pull) * labels + pull * mean) - np.log(mean)) / (1.0 - pull)
    centred: Array = ratios - ratios.mean(1, keepdims=True)
    return centred


def group_columns(codes: Index, means: Sequence[Array], counts: Sequence[Array], ratios: Array) -> Array:
    """What the network sees of groups: posterior means in units of the prior's deviation, and what part of it is open.

    Args:
        codes: of the rows' groups (N, k), -1 where one is not known.
        means: posterior means of every level's effects (G, q).
        counts: rows behind them (G,).
        ratios: prior variances (k, q).

    Returns:
        (N, q + 1); a row of unknown groups has zeros, and a last entry of one.
    """
    total = ratios.sum(0)
    effect, left = np.zeros((len(codes), len(total))), np.zeros((len(codes), len(total)))
    for level, ratio in enumerate(ratios):
        known = codes[:, level] >= 0
        at = codes[known, level]
        effect[known] += means[level][at]
        left += ratio
        left[known] -= ratio - ratio / (1.0 + counts[level][at, None] * ratio)
    return np.hstack([effect / np.sqrt(total), left.sum(1, keepdims=True) / total.sum()])


def beside(X: Any, columns: Array) -> Any:
    """Features (N, d) and further columns side by side; sparse where X is."""
    return sp.hstack([X, columns]).tocsr() if sp.issparse(X) else np.hstack([X, columns])


def guides_width(guides: Guides, model: MixedModel) -> int:
    """Columns that the network sees of the guides."""
    return len(guides.learners) * len(model.mean)


def _dense(X: Any) -> Any:
    return X.toarray() if sp.issparse(X) else X


def design(codes: Index, sizes: list[int]) -> Any:
    """Which effects each row has: a sparse matrix (N, Σ G) of zeros and ones; codes of -1 have none."""
    offsets = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    rows, levels = np.nonzero(codes >= 0)
    columns = codes[rows, levels] + offsets[levels]
    return sp.csr_matrix((np.ones(len(rows)), (rows, columns)), shape=(len(codes), int(sum(sizes))))


def posterior_means(scores: Array, codes: Index, sizes: list[int], ratios: Array) -> Array:
    """Posterior means of all effects, levels one below the other.

    Args:
        scores: of the rows that were observed (N, q), with variance one within groups.
        codes: their groups (N, k).
        sizes: groups of each level.
        ratios: prior variances (k, q).

    Returns:
        (Σ G, q).

    Example:
        >>> posterior_means(np.array([[1.0], [3.0]]), np.array([[0], [0]]), [2], np.array([[1.0]])).ravel().round(3)
        array([1.333, 0.   ])
    """
    table = design(codes, sizes)
    sums = table.T @ scores
    if len(sizes) == 1:
        rows = np.asarray(table.sum(0)).ravel()[:, None]
        means: Array = sums / (rows + 1.0 / ratios[0])
        return means
    gram = (table.T @ table).tocsc()
    out: Array = np.empty_like(sums)
    for j in range(scores.shape[1]):
        root = np.repeat(np.sqrt(ratios[:, j]), sizes)
        out[:, j] = root * _factor(gram, root).solve(root * sums[:, j])
    return out


def _factor(gram: Any, root: Array) -> Any:
    """The factors of ``1 + Λ½ ZᵀZ Λ½``, sparse."""
    scaled = sp.diags(root) @ gram @ sp.diags(root) + sp.identity(len(root))
    return splu(scaled.tocsc(), permc_spec="MMD_AT_PLUS_A", options={"SymmetricMode": True})


def _log_likelihood(
    n: int, total: float, sums: Array, gram: Any, sizes: list[int], ratios: Array
) -> tuple[float, float]:
    """Log marginal likelihood of one direction with the best variance within groups, and that variance.

    Args:
        n: rows.
        total: sum of their squared scores.
        sums: of the scores of each group (Σ G,).
        gram: rows that two groups have in common (Σ G, Σ G).
        sizes: groups of each level.
        ratios: prior variances (k,).
    """
    root = np.repeat(np.sqrt(ratios), sizes)
    if len(sizes) == 1:
        diagonal = 1.0 + ratios[0] * gram.diagonal()
        log_det, explained = float(np.log(diagonal).sum()), float((ratios[0] * sums**2 / diagonal).sum())
    else:
        factors, right = _factor(gram, root), root * sums
        log_det, explained = float(np.log(np.abs(factors.U.diagonal())).sum()), float(right @ factors.solve(right))
    variance = max((total - explained) / n, 1e-300)
    return -0.5 * (n * np.log(variance) + log_det), variance


def fit_mixed_model(residuals: Array, groups: Groups, seed: int = 0) -> MixedModel | None:
    """Fit the linear mixed model.

    Args:
        residuals: log-ratio residuals (N, L), each row summing to zero.
        groups: of the rows.
        seed: of shuffled rows, by which it is seen how much groups differ by chance.

    Returns:
        The model, or None where groups do not differ by more than chance, or are too few.
    """
    codes, sizes = groups.codes, [len(names) for names in groups.names]
    counts = [np.bincount(codes[codes[:, k] >= 0, k], minlength=size) for k, size in enumerate(sizes)]
    repeated = [int((count >= 2).sum()) for count in counts]
    if max(repeated) < LEAST_GROUPS:
        return None
    mean = residuals.mean(0)
    centred = residuals - mean
    random = np.random.default_rng(seed)
    shuffled = (_directions(centred[random.permutation(len(centred))], codes, sizes, 1) for _ in range(SHUFFLES))
    threshold = LEAST_RATIO + max(float(part.gains.max()) for part in shuffled)
    found = _directions(centred, codes, sizes, MOST_DIRECTIONS)
    kept = found.gains > threshold
    if not kept.any():
        return None
    weights, directions = found.basis[:, kept] / found.scales[kept], found.back[:, kept] * found.scales[kept]
    return MixedModel(mean, weights, directions, found.ratios[:, kept], found.within)


@dataclass(frozen=True)
class _Directions:
    """Directions in which groups differ most, ``basis`` and ``back`` (L, q), and how much, (q,) or (k, q)."""

    basis: Array
    back: Array
    ratios: Array
    gains: Array
    scales: Array
    within: Array


def _directions(centred: Array, codes: Index, sizes: list[int], most: int) -> _Directions:
    """The directions in which groups differ most, each with its best ratios of variances."""
    n_labels = centred.shape[1]
    counts = [np.bincount(codes[codes[:, k] >= 0, k], minlength=size) for k, size in enumerate(sizes)]
    within = _within(centred, codes, sizes)
    between = sum(_between(centred, codes[:, k], counts[k], within) for k in range(len(sizes)))
    scale = within + (RIDGE * np.trace(within) / n_labels + 1e-12) * np.eye(n_labels)
    values, basis = eigh(between, scale)
    basis = basis[:, np.argsort(-values)[: min(most, n_labels - 1)]]
    table = design(codes, sizes)
    gram, scores = (table.T @ table).tocsc(), centred @ basis
    parts = [_best_ratios(len(z), float(z @ z), sums, gram, sizes) for z, sums in zip(scores.T, (table.T @ scores).T)]
    ratios, gains, variances = (np.array(part) for part in zip(*parts))
    return _Directions(basis, scale @ basis, ratios.T, gains, np.sqrt(variances), within)


def _within(centred: Array, codes: Index, sizes: list[int]) -> Array:
    """Covariance within groups (L, L): of what is left when the means of all levels are taken out in turns."""
    left, used = centred.copy(), 0
    for _ in range(1 if len(sizes) == 1 else 10):
        for level, size in enumerate(sizes):
            known: Mask = codes[:, level] >= 0
            table = design(codes[known, level : level + 1], [size])
            rows = np.maximum(np.asarray(table.sum(0)).ravel(), 1.0)
            left[known] -= table @ ((table.T @ left[known]) / rows[:, None])
    used = min(sum(len(np.unique(codes[codes[:, k] >= 0, k])) for k in range(len(sizes))), int(0.9 * len(left)))
    covariance: Array = left.T @ left / max(1, len(left) - used)
    return covariance


def _between(centred: Array, codes: Index, counts: Index, within: Array) -> Array:
    """Covariance between the groups of one level (L, L), by the analysis of variance."""
    known = codes >= 0
    table = design(codes[known][:, None], [len(counts)])
    there = counts > 0
    means = (table.T @ centred[known])[there] / counts[there, None]
    n, rows = counts[there].astype(float), float(known.sum())
    typical = (rows - (n**2).sum() / rows) / max(1.0, len(n) - 1.0)
    covariance: Array = ((means * n[:, None]).T @ means / max(1.0, len(n) - 1.0) - within) / max(typical, 1.0)
    return covariance


def _best_ratios(n: int, total: float, sums: Array, gram: Any, sizes: list[int]) -> tuple[Array, float, float]:
    """Ratios of variances of one direction (k,), twice the log likelihood they gain, and the variance within groups."""

    def loss(logs: Array) -> float:
        return -_log_likelihood(n, total, sums, gram, sizes, np.exp(logs))[0]

    start = np.full(len(sizes), -1.5)
    bounds = [RATIO_RANGE] * len(sizes)
    answer = minimize(loss, start, method="Nelder-Mead", bounds=bounds, options={"xatol": 0.01, "fatol": 0.01})
    none = _log_likelihood(n, total, sums, gram, sizes, np.full(len(sizes), np.exp(RATIO_RANGE[0])))[0]
    ratios = np.exp(answer.x)
    value, variance = _log_likelihood(n, total, sums, gram, sizes, ratios)
    return ratios, 2.0 * (value - none), variance
