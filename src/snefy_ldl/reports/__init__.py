"""What a report says about a model on rows whose labels are known, in numbers: no pictures, no page.

:func:`~snefy_ldl.reports.report.make_report` puts it together: predictions a row
(:mod:`~snefy_ldl.reports.answers`), simple rivals (:mod:`~snefy_ldl.reports.rivals`), measures with paired
differences (:mod:`~snefy_ldl.reports.scores`), which columns matter (:mod:`~snefy_ldl.reports.importance`),
coverage before and after calibration (:mod:`~snefy_ldl.reports.trust`), and where it fails
(:mod:`~snefy_ldl.reports.failures`). :func:`~snefy_ldl.reports.evaluation.evaluate` is the short form.
"""

from __future__ import annotations

from snefy_ldl.reports.answers import LEVEL, Answers, JudgedRows, Part, ask, cross_fit
from snefy_ldl.reports.evaluation import evaluate
from snefy_ldl.reports.failures import GroupMiss, RowMiss, worst_groups, worst_rows
from snefy_ldl.reports.importance import Importance, permutation_importance
from snefy_ldl.reports.report import Report, make_report
from snefy_ldl.reports.rivals import Rival, fit_rivals
from snefy_ldl.reports.scores import Difference, ScoreLine, score_lines
from snefy_ldl.reports.trust import Trust, judge_coverage

__all__ = [
    "LEVEL",
    "Answers",
    "Difference",
    "GroupMiss",
    "Importance",
    "JudgedRows",
    "Part",
    "Report",
    "Rival",
    "RowMiss",
    "ScoreLine",
    "Trust",
    "ask",
    "cross_fit",
    "evaluate",
    "fit_rivals",
    "judge_coverage",
    "make_report",
    "permutation_importance",
    "score_lines",
    "worst_groups",
    "worst_rows",
]
