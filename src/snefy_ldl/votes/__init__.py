"""Votes of annotators: tables, agreement, scores, and whom to ask next."""

from __future__ import annotations

from snefy_ldl.votes.agreement import Agreement, Finding, krippendorff_alpha
from snefy_ldl.votes.allocation import expected_width, next_vote, update, vote_value, votes_needed
from snefy_ldl.votes.scores import (
    CountCalibration,
    NoiseCeiling,
    brier_score,
    calibrate_counts,
    evaluate,
    log_likelihood,
    noise_ceiling,
    predictive_cdf,
)
from snefy_ldl.votes.tables import PartialCounts, Votes, load_votes

__all__ = [
    "Agreement",
    "CountCalibration",
    "Finding",
    "NoiseCeiling",
    "PartialCounts",
    "Votes",
    "brier_score",
    "calibrate_counts",
    "evaluate",
    "expected_width",
    "krippendorff_alpha",
    "load_votes",
    "log_likelihood",
    "next_vote",
    "noise_ceiling",
    "predictive_cdf",
    "update",
    "vote_value",
    "votes_needed",
]
