"""
Exact zeros
===========

A third of the shares are exactly zero. The model predicts the probability of a zero.
"""

import matplotlib.pyplot as plt
import numpy as np

from snefy_ldl import SnefyLDL
from snefy_ldl.datasets import make_city_districts
from snefy_ldl.plots import style

city = make_city_districts(n=300, random_state=0)
there = np.random.default_rng(0).random(city.D.shape) < 1 / (1 + np.exp(1.0 - 0.6 * city.X[:, [3]]))
D = np.where(there | (np.arange(3) == 2), city.D, 0.0)
D /= D.sum(1, keepdims=True)
model = SnefyLDL(zeros="model", n_neurons=16, epochs=8, guides=None, random_state=0).fit(city.X, D)
absent = model.predict_zero(city.X)
fig, ax = plt.subplots(figsize=(6, 3.6), layout="constrained")
for label in range(2):
    ax.scatter(city.X[:, 3], absent[:, label], s=14, color=style.label_color(label), label=city.label_names[label])
ax.set(xlabel="night bus lines", ylabel="P(share is exactly zero)")
style.quiet(ax, "y")
style.legend(ax)
