"""Votes of annotators: tables, agreement, scores, and whom to ask next."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from snefy_ldl.votes.agreement import Agreement, Finding, krippendorff_alpha
    from snefy_ldl.votes.allocation import (
        expected_width,
        next_vote,
        update,
        vote_quantiles,
        vote_value,
        votes_needed,
    )
    from snefy_ldl.votes.confusion import Annotators, GroupComparison
    from snefy_ldl.votes.likelihood import log_prob_annotated
    from snefy_ldl.votes.partial import PartialCounts
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
    from snefy_ldl.votes.tables import Votes, counts_from_shares, load_votes

__all__ = [
    "Agreement",
    "Annotators",
    "CountCalibration",
    "Finding",
    "GroupComparison",
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
    "log_prob_annotated",
    "next_vote",
    "noise_ceiling",
    "predictive_cdf",
    "update",
    "vote_quantiles",
    "vote_value",
    "votes_needed",
]

#: Where each public name lives; loaded when first asked for, so that tables and agreement do without torch.
_HOMES = {
    "votes.confusion": ("Annotators", "GroupComparison"),
    "votes.partial": ("PartialCounts",),
    "votes.allocation": (
        "expected_width",
        "next_vote",
        "update",
        "vote_quantiles",
        "vote_value",
        "votes_needed",
    ),
    "votes.agreement": ("Agreement", "Finding", "krippendorff_alpha"),
    "votes.likelihood": ("log_prob_annotated",),
    "votes.tables": ("Votes", "counts_from_shares", "load_votes"),
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = next((module for module, names in _HOMES.items() if name in names), "votes.scores")
    value = getattr(import_module(f"snefy_ldl.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
