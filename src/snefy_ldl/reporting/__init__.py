"""What a report says about a model on rows whose labels are known, in numbers: no pictures, no page.

:func:`~snefy_ldl.reporting.report.make_report` puts it together: predictions a row
(:mod:`~snefy_ldl.reporting.answers`), simple rivals (:mod:`~snefy_ldl.reporting.rivals`), measures with paired
differences (:mod:`~snefy_ldl.reporting.scores`), which columns matter (:mod:`~snefy_ldl.reporting.importance`),
coverage before and after calibration (:mod:`~snefy_ldl.reporting.trust`), and where it fails
(:mod:`~snefy_ldl.reporting.failures`). :func:`~snefy_ldl.reporting.evaluation.evaluate` is the short form.
"""

from __future__ import annotations

from snefy_ldl.reporting.answers import LEVEL, Answers, JudgedRows, Part, ask, cross_fit
from snefy_ldl.reporting.evaluation import evaluate
from snefy_ldl.reporting.failures import GroupMiss, RowMiss, worst_groups, worst_rows
from snefy_ldl.reporting.importance import Importance, permutation_importance
from snefy_ldl.reporting.report import Report, make_report
from snefy_ldl.reporting.rivals import Rival, fit_rivals
from snefy_ldl.reporting.scores import Difference, ScoreLine, score_lines
from snefy_ldl.reporting.trust import Trust, judge_coverage

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
