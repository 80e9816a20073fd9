"""Ways out of Python, and into other libraries' ways of working: each module one door, each door an extra.

========================================= =========== ===============================================================
module                                    extra       what goes through
========================================= =========== ===============================================================
:mod:`snefy_ldl.integrations.onnx`               ``onnx``    mean, variance and quantiles as an ONNX file
:mod:`snefy_ldl.integrations.program`            none        the same as a program of ``torch.export``
:mod:`snefy_ldl.integrations.hub`                ``hub``     model folders with a card, to and from the Hugging Face Hub
:mod:`snefy_ldl.integrations.mlflow`             ``mlflow``  means and intervals as a model of MLflow's kind ``pyfunc``
:mod:`snefy_ldl.integrations.skpro`              ``skpro``   a probabilistic regressor of skpro
========================================= =========== ===============================================================
"""

from __future__ import annotations
