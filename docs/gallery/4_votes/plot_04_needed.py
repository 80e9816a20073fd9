"""
Votes needed
============

The smallest number of further votes after which every interval of an item is expected to be narrower than 0.3.
"""

import matplotlib.pyplot as plt

from snefy_ldl import SnefyLDL
from snefy_ldl.datasets import make_annotators
from snefy_ldl.plots import style
from snefy_ldl.votes import votes_needed

items = make_annotators(n=400, votes=(1, 12), random_state=0)
model = SnefyLDL(n_neurons=24, epochs=6, random_state=0).fit(items.X[:300], counts=items.counts[:300])
X, K = items.X[300:], items.counts[300:]

more = votes_needed(model, X[:40], target_width=0.3, confidence_level=0.8, counts=K[:40])
fig, ax = plt.subplots(figsize=(6, 3.4), layout="constrained")
ax.hist(more, bins=12, color=style.MODEL, rwidth=0.9)
ax.set(xlabel="further votes needed", ylabel="items")
style.quiet(ax, "y")
