"""
Several modes
=============

A distribution may have several modes: between the centre and the campus, a district is one or the other, and rarely
half of each. A mean alone would hide this. The plot shows the row whose draws are most clearly separated.
"""

import numpy as np

from snefy_ldl import SnefyLDL, plots
from snefy_ldl.datasets import make_city_districts

city = make_city_districts(n=400, random_state=0)
model = SnefyLDL(epochs=15, guides=None, random_state=0).fit(city.X[:300], city.D[:300])
X, D = city.X[300:], city.D[300:]

draws = model.sample(X, 400, random_state=0)  # (400, 100, 3)
middle = ((draws[..., 0] > 0.25) & (draws[..., 0] < 0.55)).mean(0)
edges = np.minimum((draws[..., 0] < 0.25).mean(0), (draws[..., 0] > 0.55).mean(0))
row = int((edges - middle).argmax())
plots.ternary_density(model.predict_dist(X), row=row, labels=city.label_names, points=draws[:60, row])
