"""
Best point predictions
======================

The best point prediction depends on the loss: predictions for three losses differ if a distribution is skewed.
"""

import numpy as np

from snefy_ldl import SnefyLDL, plots
from snefy_ldl.datasets import make_city_districts

city = make_city_districts(n=400, random_state=0)
model = SnefyLDL(epochs=15, guides=None, random_state=0).fit(city.X[:300], city.D[:300])
X, D = city.X[300:], city.D[300:]

dist = model.predict_dist(X)
answers = np.stack([dist.bayes_point(loss)[3] for loss in ("kl", "l1", "reverse_kl")])
plots.label_bars(answers, city.label_names, row_names=["KL: the mean", "absolute error", "reverse KL"])
