"""Conformal prediction for label distributions: guarantees that do not depend on the model being right.

Any model with ``predict_dist(X)`` serves: :class:`~snefy_ldl.SnefyLDL`, ``DirichletLDL``, or your own. The order is
fit, ``conformalize`` on rows the model has not seen, ``predict_interval``; another order raises
:class:`~sklearn.exceptions.NotFittedError`. The model is never changed.

- :class:`ConformalIntervals`: an interval for each label's share.
- :class:`NewGroupIntervals`: intervals for rows of new groups.
- :class:`ConformalRegion`: a set of whole label distributions.
- :class:`LabelScore`, :class:`RegionScore`: what a conformity score is; write your own in one file.
- :class:`Groups`, :class:`Splines`: what coverage may be conditioned on.
- :func:`coverage_report`: how intervals or regions did on rows with known labels.

References:
    Angelopoulos & Bates, A gentle introduction to conformal prediction, 2021. Romano, Patterson & Candès, Conformalized
    quantile regression, NeurIPS 2019. Chernozhukov, Wüthrich & Zhu, Distributional conformal prediction, PNAS 2021.
    Barber et al., Predictive inference with the jackknife+, Annals of Statistics 2021. Tibshirani et al., Conformal
    prediction under covariate shift, NeurIPS 2019.
"""

from __future__ import annotations

from snefy_ldl.conformal.coverage_report import coverage_report
from snefy_ldl.conformal.label_intervals import ConformalIntervals
from snefy_ldl.conformal.local_thresholds import Groups, Splines
from snefy_ldl.conformal.new_groups import NewGroupIntervals
from snefy_ldl.conformal.regions import ConformalRegion
from snefy_ldl.conformal.scores import LabelScore, RegionScore

__all__ = [
    "ConformalIntervals",
    "ConformalRegion",
    "Groups",
    "LabelScore",
    "NewGroupIntervals",
    "RegionScore",
    "Splines",
    "coverage_report",
]
