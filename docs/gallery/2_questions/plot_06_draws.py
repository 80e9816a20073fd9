"""
Draws
=====

Exact draws from the distribution of one row, on top of its density.
"""

from snefy_ldl import SnefyLDL, plots
from snefy_ldl.datasets import make_city_districts

city = make_city_districts(n=400, random_state=0)
model = SnefyLDL(epochs=15, guides=None, random_state=0).fit(city.X[:300], city.D[:300])
X, D = city.X[300:], city.D[300:]

draws = model.sample(X[:1], 150, random_state=0)[:, 0]
plots.ternary_density(model.predict_dist(X[:1]), labels=city.label_names, points=draws)
