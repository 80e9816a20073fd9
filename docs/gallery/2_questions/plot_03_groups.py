"""
Groups of labels
================

The distribution of the sum of business and entertainment is exact, and so is that of any group of labels.
"""

import matplotlib.pyplot as plt

from snefy_ldl import SnefyLDL, plots
from snefy_ldl.datasets import make_city_districts

city = make_city_districts(n=400, random_state=0)
model = SnefyLDL(epochs=15, guides=None, random_state=0).fit(city.X[:300], city.D[:300])
X, D = city.X[300:], city.D[300:]

dist = model.predict_dist(X)
groups = dist.amalgamate([[0, 1], [2]])  # a distribution of two labels
fig, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained", sharey=True)
plots.marginal_density(dist, label=0, row=3, ax=axes[0], name="business")
plots.marginal_density(groups, label=0, row=3, ax=axes[1], name="business and entertainment")
