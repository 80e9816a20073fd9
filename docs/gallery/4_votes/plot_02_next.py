"""
The next vote
=============

The value of one more vote on each item, against the number of votes it has: items with few votes come first, but
not all of them.
"""

import matplotlib.pyplot as plt

from snefy_ldl import SnefyLDL
from snefy_ldl.datasets import make_annotators
from snefy_ldl.plots import style
from snefy_ldl.votes import update, vote_value

items = make_annotators(n=400, votes=(1, 12), random_state=0)
model = SnefyLDL(n_neurons=24, epochs=6, random_state=0).fit(items.X[:300], counts=items.counts[:300])
X, K = items.X[300:], items.counts[300:]

value = vote_value(update(model, X, K))
fig, ax = plt.subplots(figsize=(6, 3.6), layout="constrained")
ax.scatter(K.sum(1), value, c=style.MODEL, s=22, alpha=0.7)
ax.set(xlabel="votes so far", ylabel="value of one more vote")
style.quiet(ax, "y")
