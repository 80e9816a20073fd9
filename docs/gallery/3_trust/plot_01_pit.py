"""
Calibration of one share
========================

The probability integral transform of the observed shares: flat means calibrated, a hump underconfident, a bowl
overconfident.
"""

import torch

from snefy_ldl import SnefyLDL, plots
from snefy_ldl.datasets import make_city_districts

city = make_city_districts(n=400, random_state=0)
model = SnefyLDL(epochs=15, guides=None, random_state=0).fit(city.X[:300], city.D[:300])
X, D = city.X[300:], city.D[300:]

dist = model.predict_dist(X)
plots.calibration(dist.marginal(0).cdf(torch.as_tensor(D[:, 0])))
