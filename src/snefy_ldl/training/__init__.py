"""Training: jobs in, fitted states out, through one entry (:func:`snefy_ldl.training.fit.fit`)."""

from __future__ import annotations

from snefy_ldl.training.data import TrainingData
from snefy_ldl.training.plan import Job
from snefy_ldl.training.settings import Settings, resolve_device
from snefy_ldl.training.state import FittedState, Inputs, network_inputs

__all__ = ["FittedState", "Inputs", "Job", "Settings", "TrainingData", "network_inputs", "resolve_device"]
