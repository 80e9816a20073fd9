"""
Density of one row
==================

The predicted density of one district over all mixes of three uses. The diamond is the observed mix.
"""

from snefy_ldl import SnefyLDL, plots
from snefy_ldl.datasets import make_city_districts

city = make_city_districts(n=400, random_state=0)
model = SnefyLDL(epochs=15, guides=None, random_state=0).fit(city.X[:300], city.D[:300])
X, D = city.X[300:], city.D[300:]

plots.ternary_density(model.predict_dist(X), row=3, labels=city.label_names, truth=D[3])
