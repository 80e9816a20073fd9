"""Files: written to a temporary name and renamed, read without running code; model folders."""

from __future__ import annotations

from snefy_ldl._internal.files.atomic import load_tensors, read_json, save_tensors, write_bytes, write_json
from snefy_ldl._internal.files.models import load_calibration, read_config, read_model, save_calibration, write_model

__all__ = [
    "load_calibration",
    "load_tensors",
    "read_config",
    "read_json",
    "read_model",
    "save_calibration",
    "save_tensors",
    "write_bytes",
    "write_json",
    "write_model",
]
