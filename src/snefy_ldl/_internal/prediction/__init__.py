"""Every ``predict_*`` of an estimator with a conditional density, written once."""

from __future__ import annotations

from snefy_ldl._internal.prediction.density import DensityPredictor
from snefy_ldl._internal.prediction.votes import VotePredictor

__all__ = ["DensityPredictor", "VotePredictor"]
