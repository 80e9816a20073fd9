"""
Calibration at every level
==========================

How often central intervals of each level contain a share, and how often central regions contain all shares of a row.
"""

import numpy as np

from snefy_ldl import SnefyLDL, plots
from snefy_ldl.datasets import make_city_districts
from snefy_ldl.metrics import coverage_level, reliability

city = make_city_districts(n=400, random_state=0)
model = SnefyLDL(epochs=15, guides=None, random_state=0).fit(city.X[:300], city.D[:300])
X, D = city.X[300:], city.D[300:]

shares = reliability(coverage_level(model, X, D).ravel())
mixes = reliability(coverage_level(model, X, D, joint=True))
curves = np.stack([shares.coverage, mixes.coverage], axis=1)
plots.calibration_curve(shares.levels, curves, labels=["each share", "all together"], n_rows=len(X))
