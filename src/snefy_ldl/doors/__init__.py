"""Ways out of Python, and into other libraries' ways of working: each module one door, each door an extra.

========================================= =========== ===============================================================
module                                    extra       what goes through
========================================= =========== ===============================================================
:mod:`snefy_ldl.doors.onnx`               ``onnx``    mean, variance and quantiles as an ONNX file
:mod:`snefy_ldl.doors.program`            none        the same as a program of ``torch.export``
:mod:`snefy_ldl.doors.hub`                ``hub``     model folders with a card, to and from the Hugging Face Hub
:mod:`snefy_ldl.doors.mlflow`             ``mlflow``  means and intervals as a model of MLflow's kind ``pyfunc``
:mod:`snefy_ldl.doors.skpro`              ``skpro``   a probabilistic regressor of skpro
========================================= =========== ===============================================================
"""

from __future__ import annotations
