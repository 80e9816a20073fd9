"""Pictures of one style: densities, shares, calibration, conformal prediction, active learning, votes.

Each function draws one picture on ``ax``, its last argument (a new figure if that is None), returns it, and leaves
matplotlib's settings alone. Needs the extra ``plot``: ``pip install 'snefy-ldl[plot]'``.
"""

from __future__ import annotations

from snefy_ldl.plots.comparison import learning_curve
from snefy_ldl.plots.densities import marginal_density, share_ridges, ternary_density
from snefy_ldl.plots.explain import pixel_gradients
from snefy_ldl.plots.reliability import calibration, calibration_curve
from snefy_ldl.plots.shares import intervals, label_bars, share_ranges

__all__ = [
    "calibration",
    "calibration_curve",
    "intervals",
    "label_bars",
    "learning_curve",
    "marginal_density",
    "pixel_gradients",
    "share_ranges",
    "share_ridges",
    "ternary_density",
]
