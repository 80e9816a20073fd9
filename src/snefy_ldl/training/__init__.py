"""Training: tasks in, fitted models out, through one entry (:func:`snefy_ldl.training.choose.fit`)."""

from __future__ import annotations

from snefy_ldl.training.choose import FittedModel
from snefy_ldl.training.data import TrainingData
from snefy_ldl.training.policy import CandidateSpec, Inputs, Settings, resolve_device
from snefy_ldl.training.prepare import Task

__all__ = ["CandidateSpec", "FittedModel", "Inputs", "Settings", "Task", "TrainingData", "resolve_device"]
