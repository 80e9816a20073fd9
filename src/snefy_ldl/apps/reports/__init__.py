"""Evaluation of a model on rows with known labels, in numbers: no pictures, no page.

:func:`evaluate` gives measures with standard errors, :func:`make_report` everything that ``snefy-ldl report`` shows.
"""

from __future__ import annotations

from snefy_ldl.apps.reports.measures import evaluate
from snefy_ldl.apps.reports.model_report import JudgedRows, make_report

__all__ = ["JudgedRows", "evaluate", "make_report"]
