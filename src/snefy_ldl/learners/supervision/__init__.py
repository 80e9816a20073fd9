"""Little or noisy supervision: rows without labels, and labels that are not quite right.

- ``pseudo``: few rows with labels, many without.
- ``noise``: label distributions with noise.
"""

from __future__ import annotations

from snefy_ldl.learners.supervision.noise import GenerativeCalibrator, LabelCalibrator, estimate_votes, votes_of_repeats
from snefy_ldl.learners.supervision.pseudo import SemiSnefyLDL

__all__ = [
    "GenerativeCalibrator",
    "LabelCalibrator",
    "SemiSnefyLDL",
    "estimate_votes",
    "votes_of_repeats",
]
