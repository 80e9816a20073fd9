"""Fitted models in other runtimes and libraries: one module per integration, each with its own extra.

============================================== =========== ============================================================
module                                         extra       what it provides
============================================== =========== ============================================================
:mod:`snefy_ldl.apps.integrations.onnx`          ``onnx``    mean, variance and quantiles as an ONNX file
:mod:`snefy_ldl.apps.integrations.mlflow`        ``mlflow``  model folders as MLflow ``pyfunc`` models
============================================== =========== ============================================================
"""

from __future__ import annotations
