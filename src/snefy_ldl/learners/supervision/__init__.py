"""Little or noisy supervision: few rows with labels and many without, and labels that are not quite right."""

from __future__ import annotations

from snefy_ldl.learners.supervision.density import (
    GenerativeCalibrator,
    LabelCalibrator,
    SemiSnefyLDL,
    estimate_votes,
    votes_of_repeats,
)

__all__ = [
    "GenerativeCalibrator",
    "LabelCalibrator",
    "SemiSnefyLDL",
    "estimate_votes",
    "votes_of_repeats",
]
