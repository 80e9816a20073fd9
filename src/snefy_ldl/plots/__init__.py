"""Pictures of one family: densities, conformal, active learning, votes."""

from __future__ import annotations

from snefy_ldl.plots.densities import (
    LABEL_COLORS,
    calibration,
    calibration_curve,
    intervals,
    label_bars,
    learning_curve,
    marginal_density,
    ternary_density,
)

__all__ = [
    "LABEL_COLORS",
    "calibration",
    "calibration_curve",
    "intervals",
    "label_bars",
    "learning_curve",
    "marginal_density",
    "ternary_density",
]
