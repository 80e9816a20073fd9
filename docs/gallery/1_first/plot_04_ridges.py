"""
All shares of a row
===================

The density of each share, one above the other.
"""

from snefy_ldl import SnefyLDL, plots
from snefy_ldl.datasets import make_city_districts

city = make_city_districts(n=400, random_state=0)
model = SnefyLDL(epochs=15, guides=None, random_state=0).fit(city.X[:300], city.D[:300])
X, D = city.X[300:], city.D[300:]

plots.share_ridges(model.predict_dist(X), row=5, labels=city.label_names, truth=D[5])
