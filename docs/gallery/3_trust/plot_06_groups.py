"""
Coverage by group
=================

The guarantee of a conformal interval holds on average. Here, the coverage of districts near the centre and far from
it is shown separately.
"""

import numpy as np

from snefy_ldl import SnefyLDL
from snefy_ldl.conformal import ConformalIntervals, coverage_report
from snefy_ldl.datasets import make_city_districts
from snefy_ldl.plots.conformal import plot_group_coverage

city = make_city_districts(n=400, random_state=0)
model = SnefyLDL(epochs=15, guides=None, random_state=0).fit(city.X[:300], city.D[:300])
X, D = city.X[300:], city.D[300:]

calibrated = ConformalIntervals(model, 0.9).conformalize(X[:50], D[:50])
where = np.where(X[50:, 0] < np.median(X[:, 0]), "near the centre", "far out")
plot_group_coverage(coverage_report(calibrated, X[50:], D[50:], groups=where))
