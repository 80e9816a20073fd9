"""What a report says about a model on rows whose labels are known, in numbers: no pictures, no page.

- :mod:`~snefy_ldl.apps.reports.answers`: predictions, intervals and probability transforms per row.
- :mod:`~snefy_ldl.apps.reports.scores`: measures, simple rivals with paired differences, and
  :func:`~snefy_ldl.apps.reports.scores.evaluate`, the short form of a report.
- :mod:`~snefy_ldl.apps.reports.report`: coverage before and after calibration, important columns, failures, and
  :func:`~snefy_ldl.apps.reports.report.make_report`, which puts everything together.
"""

from __future__ import annotations

from snefy_ldl.apps.reports.answers import LEVEL, Answers, JudgedRows, Part, ask, cross_fit
from snefy_ldl.apps.reports.report import GroupMiss, Report, RowMiss, Trust, make_report
from snefy_ldl.apps.reports.scores import Difference, ScoreLine, evaluate
from snefy_ldl.explain.importance import Importance

__all__ = [
    "LEVEL",
    "Answers",
    "Difference",
    "GroupMiss",
    "Importance",
    "JudgedRows",
    "Part",
    "Report",
    "RowMiss",
    "ScoreLine",
    "Trust",
    "ask",
    "cross_fit",
    "evaluate",
    "make_report",
]
