"""The file from which a killed fit continues."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import joblib
import numpy as np
import scipy.sparse as sp
import torch

from snefy_ldl._internal.files import format_tensors, load_tensors, write_bytes
from snefy_ldl.errors import TrainingError
from snefy_ldl.networks.custom import Backbone
from snefy_ldl.training.steps import live_tensors

if TYPE_CHECKING:
    from snefy_ldl.training.prepare import Task
    from snefy_ldl.training.train import Course

#: Settings that do not change the result.
PASSING = ("verbose", "checkpoint_dir", "warm_start", "columns", "guides", "candidates")
#: Name of the file in ``checkpoint_dir``.
FILE_NAME = "checkpoint.safetensors"


class Checkpoint:
    """The file from which a killed fit goes on.

    Args:
        path: where it is, or will be.
        course: members while they train.
        task: their data and settings, whose digest names the file's fit.
        what: the candidate in words.

    Raises:
        TrainingError: the file belongs to another fit.
    """

    def __init__(self, path: Path, course: Course, task: Task, what: str) -> None:
        self.path, self.course, self.fingerprint = path, course, fingerprint(task, what)
        self.tensors = live_tensors(course.net, course.optimizer) | dict(course.net.named_buffers())
        self.tensors |= {f"best:{name}": value for name, value in course.best.values.items()}
        if path.exists():
            self._resume()

    def save(self) -> None:
        """Write everything to a temporary name, then rename."""
        meta = {"fingerprint": self.fingerprint, "run": json.dumps(asdict(self.course.run))}
        write_bytes(self.path, format_tensors(self.tensors, meta))

    @torch.no_grad()
    def _resume(self) -> None:
        """Put what the file holds into the course: net, optimiser, best weights and run."""
        tensors, meta = load_tensors(self.path)
        if meta.get("fingerprint") != self.fingerprint:
            raise TrainingError(
                f"the checkpoint {self.path} belongs to other data or settings. Remove it, or use another "
                "checkpoint_dir."
            )
        for name, value in self.tensors.items():
            value.copy_(tensors[name])
        self.course.run = replace(self.course.run, **json.loads(meta["run"]))


def fingerprint(task: Task, what: str) -> str:
    """A digest of a task's settings, seed and data, and of the candidate in words."""
    settings = {name: repr(value) for name, value in vars(task.settings).items() if name not in PASSING}
    if task.settings.backbone is not None:
        settings["backbone"] = repr(Backbone.of(task.settings.backbone))
    data = task.data
    features = data.features if isinstance(data.features, np.ndarray) or sp.issparse(data.features) else None
    return str(joblib.hash((settings, task.seed, what, data.labels, task.rows, data.weights, features)))
