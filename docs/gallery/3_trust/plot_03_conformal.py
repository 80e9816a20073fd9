"""
Intervals with a guarantee
==========================

Conformal intervals for a few new rows, calibrated on rows that the model has not seen.
"""

from snefy_ldl import SnefyLDL
from snefy_ldl.conformal import ConformalIntervals
from snefy_ldl.datasets import make_city_districts
from snefy_ldl.plots.conformal import plot_intervals

city = make_city_districts(n=400, random_state=0)
model = SnefyLDL(epochs=15, guides=None, random_state=0).fit(city.X[:300], city.D[:300])
X, D = city.X[300:], city.D[300:]

calibrated = ConformalIntervals(model, 0.9).conformalize(X[:60], D[:60])
plot_intervals(calibrated, X[60:], D[60:], rows=[0, 1, 2, 3], labels=city.label_names)
