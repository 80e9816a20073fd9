"""
Coverage at every level
=======================

Coverage against the nominal level; a calibrated model lies on the diagonal.
"""

from snefy_ldl import SnefyLDL
from snefy_ldl.datasets import make_city_districts
from snefy_ldl.plots.conformal import plot_calibration_curve

city = make_city_districts(n=400, random_state=0)
model = SnefyLDL(epochs=15, guides=None, random_state=0).fit(city.X[:300], city.D[:300])
X, D = city.X[300:], city.D[300:]

plot_calibration_curve({"density": model}, X, D)
