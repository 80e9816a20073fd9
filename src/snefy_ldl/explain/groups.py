"""What groups of rows explain: shares of the variance between and within groups."""

from __future__ import annotations

from typing import Any

import numpy as np

from snefy_ldl._internal.validation import check_confidence
from snefy_ldl.errors import InputError
from snefy_ldl.explain.quantities import frame_or_columns, label_names


def group_variance(model: Any, confidence_level: float = 0.95, n_draws: int = 100, random_state: Any = 0) -> Any:
    """Share of each label's variance that lies between the groups of each level, and within groups.

    The variance is that of log-ratios around what the features predict. Intervals are bias-corrected percentiles of a
    parametric bootstrap: effects and rows are drawn from the fitted mixed model, in groups as large as those of the
    fit, and its variances are estimated again. They do not count that the directions in which groups differ were
    chosen from the same rows.

    Args:
        model: a :class:`~snefy_ldl.SnefyLDL` that was fitted with groups and has group effects.
        confidence_level: of the intervals.
        n_draws: draws of the bootstrap.
        random_state: seed of the draws.

    Returns:
        A DataFrame with the columns level, label, share, low and high: one row per level and label, the level "within
        groups" last; a dict of arrays where pandas is not installed.

    Raises:
        InputError: the model has no group effects.

    Example:
        >>> from snefy_ldl import SnefyLDL
        >>> from snefy_ldl.datasets import make_groups
        >>> data = make_groups(n_groups=12, n_rows=20, random_state=0)
        >>> model = SnefyLDL(epochs=5, random_state=0).fit(data.X, data.D, groups=data.groups)
        >>> table = group_variance(model, n_draws=20)
        >>> list(table["level"]), round(float(table["share"][0] + table["share"][3]), 6)
        (['group', 'group', 'group', 'within groups', 'within groups', 'within groups'], 1.0)
    """
    effects = getattr(model, "group_effects_", None)
    if effects is None:
        raise InputError("the model has no group effects: fit it with fit(X, D, groups=...), to groups that differ.")
    check_confidence(confidence_level)
    shares, low, high = effects.variance_shares(confidence_level, n_draws, random_state)
    labels = label_names([model], None)
    columns = {
        "level": np.repeat(np.array([*effects.levels, "within groups"], dtype=object), len(labels)),
        "label": np.tile(np.array(labels, dtype=object), len(shares)),
        **{name: table.ravel() for name, table in (("share", shares), ("low", low), ("high", high))},
    }
    return frame_or_columns(columns)
