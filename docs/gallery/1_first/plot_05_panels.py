"""
Many rows at a glance
=====================

One small panel per row: intervals, means and observed shares.
"""

from snefy_ldl import SnefyLDL, plots
from snefy_ldl.datasets import make_city_districts

city = make_city_districts(n=400, random_state=0)
model = SnefyLDL(epochs=15, guides=None, random_state=0).fit(city.X[:300], city.D[:300])
X, D = city.X[300:], city.D[300:]

plots.interval_panels(
    model.predict_interval(X, 0.9), D, model.predict(X), labels=city.label_names, rows=[0, 1, 2, 3, 4, 5]
)
