"""
Careless annotators
===================

Annotator 7 always answers yes. Left: the probability that an annotator guesses. Right: predicted votes of a careful
annotator and of annotator 7 on the same two items.
"""

import matplotlib.pyplot as plt
import numpy as np

from snefy_ldl import AnnotatorLDL, SnefyLDL, Votes, plots
from snefy_ldl.datasets import make_annotators
from snefy_ldl.plots import style

items = make_annotators(n=60, n_labels=3, votes=5, n_annotators=10, long_table=True, random_state=0)
table = {name: np.array(column) for name, column in items.votes.items()}
table["label"][table["annotator"] == 7] = "label_2"
votes = Votes.from_long(table)
X = items.X[votes.items]
model = AnnotatorLDL(SnefyLDL(n_neurons=8, epochs=3, guides=None, random_state=0)).fit(X, votes)

fig, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
axes[0].barh([str(name) for name in model.annotators_.names], model.annotators_["spam_score"], color=style.MODEL)
axes[0].set(xlim=(0, 1), xlabel="probability of guessing", ylabel="annotator")
style.quiet(axes[0], "x")
shares = np.vstack([model.predict(X[:2], of=name) for name in (0, 7)])
rows = ["item 1, careful", "item 2, careful", "item 1, annotator 7", "item 2, annotator 7"]
plots.label_bars(shares, ["no", "maybe", "yes"], row_names=rows, ax=axes[1])
