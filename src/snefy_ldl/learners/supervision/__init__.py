"""Little or noisy supervision: rows without labels, and labels that are not quite right.

- ``rankmatch``, ``pseudo``: few rows with labels, many without.
- ``noise``, ``generative``: label distributions with noise.
"""

from __future__ import annotations

from snefy_ldl.learners.supervision.generative import GenerativeCalibrator
from snefy_ldl.learners.supervision.noise import LabelCalibrator, estimate_votes, votes_of_repeats
from snefy_ldl.learners.supervision.pseudo import SemiSnefyLDL
from snefy_ldl.learners.supervision.rankmatch import RankMatch

__all__ = [
    "GenerativeCalibrator",
    "LabelCalibrator",
    "RankMatch",
    "SemiSnefyLDL",
    "estimate_votes",
    "votes_of_repeats",
]
