"""Training: tasks in, fitted models out, through one entry (:func:`snefy_ldl.training.fit.fit`)."""

from __future__ import annotations

from snefy_ldl.training.data import TrainingData
from snefy_ldl.training.model import FittedModel, network_inputs
from snefy_ldl.training.prepare import Task
from snefy_ldl.training.settings import CandidateSpec, Inputs, Settings, resolve_device

Job, FittedState = Task, FittedModel

__all__ = [
    "CandidateSpec",
    "FittedModel",
    "FittedState",
    "Inputs",
    "Job",
    "Settings",
    "Task",
    "TrainingData",
    "network_inputs",
    "resolve_device",
]
