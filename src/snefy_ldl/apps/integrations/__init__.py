"""Fitted models in other runtimes: :mod:`snefy_ldl.apps.integrations.onnx` writes mean and variance as an ONNX file."""

from __future__ import annotations
