"""Votes of annotators: tables, agreement, scores, and whom to ask next."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
    from snefy_ldl.votes.tables import PartialCounts, Votes, counts_from_shares, load_votes

__all__ = [
    "Agreement",
    "CountCalibration",
    "Finding",
    "NoiseCeiling",
    "PartialCounts",
    "Votes",
    "brier_score",
    "calibrate_counts",
    "counts_from_shares",
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

#: Where each public name lives; loaded when first asked for, so that tables and agreement do without torch.
_HOMES = {
    "Agreement": "snefy_ldl.votes.agreement",
    "CountCalibration": "snefy_ldl.votes.scores",
    "Finding": "snefy_ldl.votes.agreement",
    "NoiseCeiling": "snefy_ldl.votes.scores",
    "PartialCounts": "snefy_ldl.votes.tables",
    "Votes": "snefy_ldl.votes.tables",
    "brier_score": "snefy_ldl.votes.scores",
    "calibrate_counts": "snefy_ldl.votes.scores",
    "counts_from_shares": "snefy_ldl.votes.tables",
    "evaluate": "snefy_ldl.votes.scores",
    "expected_width": "snefy_ldl.votes.allocation",
    "krippendorff_alpha": "snefy_ldl.votes.agreement",
    "load_votes": "snefy_ldl.votes.tables",
    "log_likelihood": "snefy_ldl.votes.scores",
    "next_vote": "snefy_ldl.votes.allocation",
    "noise_ceiling": "snefy_ldl.votes.scores",
    "predictive_cdf": "snefy_ldl.votes.scores",
    "update": "snefy_ldl.votes.allocation",
    "vote_value": "snefy_ldl.votes.allocation",
    "votes_needed": "snefy_ldl.votes.allocation",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
