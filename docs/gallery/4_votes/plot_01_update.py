"""
Updating with votes
===================

Mean and interval of each label from the features alone, and with the item's votes.
"""

import numpy as np

from snefy_ldl import SnefyLDL, plots
from snefy_ldl.datasets import make_annotators
from snefy_ldl.votes import update

items = make_annotators(n=400, votes=(1, 12), random_state=0)
model = SnefyLDL(n_neurons=24, epochs=6, random_state=0).fit(items.X[:300], counts=items.counts[:300])
X, K = items.X[300:], items.counts[300:]

row = int(K.sum(1).argmax())
both = [model.predict_dist(X[[row]]), update(model, X[[row]], K[[row]])]
ends, means = np.concatenate([dist.quantiles([0.05, 0.95]) for dist in both]), np.concatenate([d.mean for d in both])
plots.intervals(ends, mean=means, labels=items.label_names, row_names=["features", "and votes"])
