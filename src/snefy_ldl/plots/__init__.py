"""Pictures of one style: densities, shares, calibration, conformal prediction, votes.

Each function draws one picture on ``ax``, its last argument (a new figure if that is None), returns it, and leaves
matplotlib's settings alone. Needs the extra ``plot``: ``pip install 'snefy-ldl[plot]'``.
"""

from __future__ import annotations

from snefy_ldl.plots.bars import intervals, label_bars, share_ranges
from snefy_ldl.plots.calibration import calibration, calibration_curve
from snefy_ldl.plots.densities import marginal_density, share_ridges, ternary_density

__all__ = [
    "calibration",
    "calibration_curve",
    "intervals",
    "label_bars",
    "marginal_density",
    "share_ranges",
    "share_ridges",
    "ternary_density",
]
