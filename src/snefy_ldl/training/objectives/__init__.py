"""What members must explain, one kind of label a file: shares, shares with gaps, votes."""

from __future__ import annotations

from snefy_ldl.training.objectives.base import Objective
from snefy_ldl.training.objectives.counts import Counts, log_probability
from snefy_ldl.training.objectives.gaps import Gaps
from snefy_ldl.training.objectives.shares import Shares, log_density
from snefy_ldl.training.objectives.zeros import ZeroObjective

__all__ = ["Counts", "Gaps", "Objective", "Shares", "ZeroObjective", "log_density", "log_probability"]
