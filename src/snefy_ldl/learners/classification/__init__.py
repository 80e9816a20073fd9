"""One label out of a law: the probability that a label is the largest, decisions with a reject option, label sets."""

from __future__ import annotations

from snefy_ldl.learners.classification.decision import LabelDecision
from snefy_ldl.learners.classification.largest import component_largest, prob_largest, prob_largest_by_draws

__all__ = ["LabelDecision", "component_largest", "prob_largest", "prob_largest_by_draws"]
