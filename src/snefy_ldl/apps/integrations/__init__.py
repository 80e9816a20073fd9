"""Fitted models in other runtimes and libraries: one module per integration, each with its own extra.

============================================== =========== ============================================================
module                                         extra       what it provides
============================================== =========== ============================================================
:mod:`snefy_ldl.apps.integrations.onnx`          ``onnx``    mean, variance and quantiles as an ONNX file
:mod:`snefy_ldl.apps.integrations.hub`           ``hub``     model folders with a card, to and from the Hugging Face Hub
:mod:`snefy_ldl.apps.integrations.mlflow`        ``mlflow``  means and intervals as an MLflow ``pyfunc`` model
:mod:`snefy_ldl.apps.integrations.label_studio`  none        rows as Label Studio tasks with predicted distributions
============================================== =========== ============================================================
"""

from __future__ import annotations
