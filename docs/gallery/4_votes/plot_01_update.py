"""
Updating with votes
===================

Mean and interval of each label from the features alone, and with the item's votes.
"""

from snefy_ldl import SnefyLDL
from snefy_ldl.datasets import make_annotators
from snefy_ldl.plots.votes import plot_update
from snefy_ldl.votes import update

items = make_annotators(n=400, votes=(1, 12), random_state=0)
model = SnefyLDL(n_neurons=24, epochs=6, random_state=0).fit(items.X[:300], counts=items.counts[:300])
X, K = items.X[300:], items.counts[300:]

row = int(K.sum(1).argmax())
plot_update(model.predict_dist(X), update(model, X, K), row, labels=items.label_names, counts=K)
