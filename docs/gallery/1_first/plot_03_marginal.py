"""
Distribution of one share
=========================

Density of the share of business in one district, with its mean and its 90 % interval.
"""

from snefy_ldl import SnefyLDL, plots
from snefy_ldl.datasets import make_city_districts

city = make_city_districts(n=400, random_state=0)
model = SnefyLDL(epochs=15, guides=None, random_state=0).fit(city.X[:300], city.D[:300])
X, D = city.X[300:], city.D[300:]

plots.marginal_density(model.predict_dist(X), label=0, row=3, name="business", truth=D[3, 0])
