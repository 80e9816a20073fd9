"""
Calibration of counts
=====================

The probability integral transform for counts: flat means calibrated.
"""

from snefy_ldl import SnefyLDL
from snefy_ldl.datasets import make_annotators
from snefy_ldl.plots.votes import plot_calibration
from snefy_ldl.votes import calibrate_counts

items = make_annotators(n=400, votes=(1, 12), random_state=0)
model = SnefyLDL(n_neurons=24, epochs=6, random_state=0).fit(items.X[:300], counts=items.counts[:300])
X, K = items.X[300:], items.counts[300:]

plot_calibration(calibrate_counts(model.predict_dist(X), K))
