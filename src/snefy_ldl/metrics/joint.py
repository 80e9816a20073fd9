"""Joint calibration: are the shares of a row jointly distributed as predicted?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from snefy_ldl._internal.dists import dist_blocks, to_numpy
from snefy_ldl._internal.random import derive_seed, seed_from
from snefy_ldl._internal.tolerances import SMALLEST_POSITIVE
from snefy_ldl._internal.types import Array
from snefy_ldl._internal.validation import align_labels, as_float, check_confidence, check_distributions
from snefy_ldl.errors import InputError

#: Fewest rows of the test; with fewer the p-values of rank correlations are unreliable.
FEWEST_ROWS = 20


def joint_pit(model: Any, X: Any, D: Any, *, random_state: Any = 0) -> Array:
    """Joint probability integral transform ``u_k = F(ℓ_k | ℓ_1, …, ℓ_{k-1}, x)`` of observed shares.

    If the model is right, each column is uniform and the columns are independent; also if zeros are modelled: there
    the place of an absent label below its chance of absence is drawn.

    Args:
        model: A fitted model with ``predict_dist``; or a distribution with batch (N,), then X is not used.
        X: Rows that the fit has not seen; None with a distribution.
        D: Their label distributions, (N, L), aligned by name. Zeros are treated as the model's fit treated them.
        random_state: Seed or generator of what atoms leave open; without atoms it has no effect.

    Returns:
        (N, L-1), values in [0, 1].

    Raises:
        InputError: The rows do not fit, labels are unknown, or the predicted distribution has no Rosenblatt map.

    Example:
        >>> import torch
        >>> from snefy_ldl import SnefySimplex
        >>> flat = SnefySimplex.from_mixture(torch.ones(1, 1).double(), torch.ones(1, 3).double())
        >>> joint_pit(flat, None, [[0.5, 0.25, 0.25]])
        array([[0.75, 0.5 ]])
    """
    parts, seed = [], seed_from(random_state)
    for start, dist, shares in observed_blocks(model, X, D):
        if not hasattr(dist, "rosenblatt"):
            raise InputError(f"{type(dist).__name__} has no Rosenblatt map, which the joint transform needs.")
        # every block has its own draws, or rows of two blocks would hang together
        parts.append(to_numpy(dist.rosenblatt(shares, random_state=derive_seed(seed, start))))
    return np.concatenate(parts)


def observed_blocks(model: Any, X: Any, D: Any) -> Iterator[tuple[int, Any, Array]]:
    """Predicted distributions of some rows at a time, with the observed shares as the model's fit treats zeros.

    Args:
        model: A fitted model with ``predict_dist``; or a distribution with batch (N,), then X is not used.
        X: Rows; None with a distribution.
        D: Their label distributions, (N, L), aligned by name.

    Yields:
        Number of the first row, distribution with batch (b,), and shares (b, L).

    Raises:
        InputError: The rows do not fit, or labels are unknown.
    """
    known = getattr(model, "label_names_", getattr(model, "label_names", None))
    table, names = check_distributions(align_labels(D, known))
    policy, rows = getattr(model, "zero_policy_", None), 0
    table = table if policy is None else policy.apply(table, names=names)
    for block, dist in dist_blocks(model, X) if hasattr(model, "predict_dist") else [(slice(0, len(table)), model)]:
        rows = block.stop
        if rows <= len(table):
            yield block.start, dist, table[block]
    if rows != len(table):
        raise InputError(f"X and D must have the same number of rows; X has {rows} and D {len(table)}.")


@dataclass(frozen=True)
class JointCalibration:
    """Result of :func:`joint_calibration_test`.

    Attributes:
        p_value: Chance of figures at least this odd from a model that is right.
        false_alarm: P-values below this reject the model; a correct model is rejected at most this often.
        uniform: p-values (L-1,) of each column being uniform (Kolmogorov-Smirnov).
        independent: p-values (L-1, L-1) of each two columns being independent: the smaller of two rank correlations',
            doubled; 1 on the diagonal.
        correlation: rank correlations (L-1, L-1).
        n: Rows.

    Example:
        >>> print(joint_calibration_test((np.arange(100)[:, None] + 0.5) / 100))
        joint calibration: no evidence against it (p = 1, 100 rows, false alarms at most 1%)
    """

    p_value: float
    false_alarm: float
    uniform: Array
    independent: Array
    correlation: Array
    n: int

    @property
    def calibrated(self) -> bool:
        """Whether there is no evidence against the model."""
        return self.p_value >= self.false_alarm

    def __str__(self) -> str:
        verdict = "no evidence against it" if self.calibrated else "the model is off"
        chance = f"p = {self.p_value:.3g}" if self.p_value >= 1e-16 else "p < 1e-16"
        return f"joint calibration: {verdict} ({chance}, {self.n} rows, false alarms at most {self.false_alarm:.0%})"


def joint_calibration_test(pit: Any, *, false_alarm: float = 0.01) -> JointCalibration:
    """Test that a joint transform is uniform and its columns independent.

    Kolmogorov-Smirnov for each column; for each two columns Spearman's correlation of u, and of ``|u - 1/2|``, which
    sees that both are far out at the same time. Bonferroni within each of the two families, and between them: a model
    that is right is called off at most at the rate ``false_alarm``, however the tests depend on each other.

    Args:
        pit: What :func:`joint_pit` returns, (N, L-1).
        false_alarm: How often a model that is right may be called off, between 0 and 1.

    Returns:
        The p-value and where it comes from.

    Raises:
        InputError: Another shape, values outside [0, 1], fewer than 20 rows, or a rate outside (0, 1).

    Example:
        >>> grid = (np.arange(400) + 0.5) / 400
        >>> right = np.stack([grid, np.random.default_rng(0).permutation(grid)], 1)
        >>> joint_calibration_test(right).calibrated, joint_calibration_test(right**2).calibrated
        (True, False)
    """
    values = as_float(pit, "pit")
    if values.ndim != 2 or values.shape[1] < 1 or not ((values >= 0.0) & (values <= 1.0)).all():
        raise InputError(f"pit must be an (N, L-1) array of values in [0, 1]; got shape {values.shape}.")
    if len(values) < FEWEST_ROWS:
        raise InputError(f"the test of joint calibration needs at least {FEWEST_ROWS} rows; got {len(values)}.")
    check_confidence(false_alarm, "false_alarm")
    columns = values.shape[1]
    uniform = np.array([stats.kstest(values[:, k], "uniform").pvalue for k in range(columns)])
    correlation, straight = _rank_correlations(values)
    _, spread = _rank_correlations(np.abs(values - 0.5))
    independent = np.minimum(1.0, 2.0 * np.minimum(straight, spread))
    np.fill_diagonal(independent, 1.0)
    odd = min(1.0, columns * float(uniform.min()))
    if columns > 1:
        pairs = columns * (columns - 1) // 2
        odd = min(1.0, 2.0 * min(odd, pairs * float(independent.min())))
    return JointCalibration(odd, float(false_alarm), uniform, independent, correlation, len(values))


def _rank_correlations(values: Array) -> tuple[Array, Array]:
    """Spearman's correlation of every two columns and its p-value, (K, K) each; a constant column has none."""
    ranks = stats.rankdata(values, axis=0)
    ranks -= ranks.mean(axis=0)
    size = np.sqrt((ranks**2).sum(axis=0))
    ranks = np.divide(ranks, size, out=np.zeros_like(ranks), where=size > 0.0)
    correlation = np.clip(ranks.T @ ranks, -1.0, 1.0)
    free = len(values) - 2
    t = np.abs(correlation) * np.sqrt(free / np.maximum(1.0 - correlation**2, SMALLEST_POSITIVE))
    return correlation, 2.0 * stats.t.sf(t, free)
