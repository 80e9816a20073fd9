"""Conformal prediction for label distributions: guarantees that do not depend on the model being right.

Any model with ``predict_dist(X)`` serves: :class:`~snefy_ldl.SnefyLDL`, ``DirichletLDL``, or your own. The order is
fit, ``conformalize`` on rows the model has not seen, then ask; asking first raises
:class:`~sklearn.exceptions.NotFittedError`. The model is never changed.

- :class:`ConformalIntervals`: an interval for each label's share.
- :class:`NewGroupIntervals`: intervals for rows of groups that nobody has seen.
- :class:`ConformalRegion`: a set of whole label distributions.
- :class:`LabelScore`, :class:`RegionScore`: what a conformity score is; write your own in one file.
- :class:`Groups`, :class:`Bins`, :class:`Splines`, :class:`LawFeatures`, :class:`RadialBasis`: what coverage may be
  conditioned on.
- :func:`watch`: whether new labelled rows are still like the calibration rows.
- :func:`coverage_report`: what intervals or regions did on rows with known labels.

References:
    Angelopoulos & Bates, A gentle introduction to conformal prediction, 2021. Romano, Patterson & Candès, Conformalized
    quantile regression, NeurIPS 2019. Chernozhukov, Wüthrich & Zhu, Distributional conformal prediction, PNAS 2021.
    Barber et al., Predictive inference with the jackknife+, Annals of Statistics 2021. Tibshirani et al., Conformal
    prediction under covariate shift, NeurIPS 2019.
"""

from __future__ import annotations

from snefy_ldl.conformal.choice import ScoreChoice
from snefy_ldl.conformal.conditional import Basis, Bins, Columns, Groups, LawFeatures, RadialBasis, Splines
from snefy_ldl.conformal.grouped import NewGroupIntervals
from snefy_ldl.conformal.intervals import ConformalIntervals
from snefy_ldl.conformal.regions import ConformalRegion
from snefy_ldl.conformal.report import CoverageReport, coverage_report
from snefy_ldl.conformal.scores import LabelScore, RegionScore
from snefy_ldl.conformal.watch import ChangeWatch, watch
from snefy_ldl.errors import CalibrationWarning

__all__ = [
    "Basis",
    "Bins",
    "CalibrationWarning",
    "ChangeWatch",
    "Columns",
    "ConformalIntervals",
    "ConformalRegion",
    "CoverageReport",
    "Groups",
    "LabelScore",
    "LawFeatures",
    "NewGroupIntervals",
    "RadialBasis",
    "RegionScore",
    "ScoreChoice",
    "Splines",
    "coverage_report",
    "watch",
]
