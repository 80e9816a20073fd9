"""Files: written to a temporary name and renamed, read without running code."""

from __future__ import annotations

from snefy_ldl.files.atomic import load_tensors, read_json, save_tensors, write_bytes, write_json

__all__ = [
    "load_tensors",
    "read_json",
    "save_tensors",
    "write_bytes",
    "write_json",
]
