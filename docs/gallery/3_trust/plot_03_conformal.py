"""
Intervals with a guarantee
==========================

Conformal intervals for a few new rows, calibrated on rows that the model has not seen.
"""

from snefy_ldl import SnefyLDL, plots
from snefy_ldl.conformal import ConformalIntervals
from snefy_ldl.datasets import make_city_districts

city = make_city_districts(n=400, random_state=0)
model = SnefyLDL(epochs=15, guides=None, random_state=0).fit(city.X[:300], city.D[:300])
X, D = city.X[300:], city.D[300:]

calibrated = ConformalIntervals(model, 0.9).conformalize(X[:60], D[:60])
plots.intervals(calibrated.predict_interval(X[60:64]), D[60:64], model.predict(X[60:64]), city.label_names)
