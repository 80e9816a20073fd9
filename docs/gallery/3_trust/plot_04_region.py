"""
Joint conformal regions
=======================

Joint conformal regions of two districts, one without students and one with many: each
contains the observed mix with probability 0.9.
"""

from snefy_ldl import SnefyLDL
from snefy_ldl.conformal import ConformalRegion
from snefy_ldl.datasets import make_city_districts
from snefy_ldl.plots.conformal import plot_region

city = make_city_districts(n=400, random_state=0)
model = SnefyLDL(epochs=15, guides=None, random_state=0).fit(city.X[:300], city.D[:300])
X, D = city.X[300:], city.D[300:]

region = ConformalRegion(model, 0.9).conformalize(X[:60], D[:60])
rows = 60 + X[60:, 2].argsort()[[0, -1]]
plot_region(region, X[rows], D[rows], labels=city.label_names, row_names=["no students", "most students"])
