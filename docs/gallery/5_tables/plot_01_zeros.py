"""
Exact zeros
===========

A third of the shares are exactly zero: the label is not there. The model predicts the probability of that, and the
shares of the labels that are there. Left: it falls with the number of night bus lines. Right: draws of one district lie
inside the triangle, on its edges (one label absent) and in its corners (one label alone).
"""

import matplotlib.pyplot as plt
import mpltern  # noqa: F401 - registers the projection "ternary"
import numpy as np

from snefy_ldl import AutoLDL
from snefy_ldl.datasets import make_city_districts
from snefy_ldl.plots import style

city = make_city_districts(n=300, random_state=0)
there = np.random.default_rng(0).random(city.D.shape) < 1 / (1 + np.exp(1.0 - 0.6 * city.X[:, [3]]))
D = np.where(there | (np.arange(3) == 2), city.D, 0.0)
D /= D.sum(1, keepdims=True)
model = AutoLDL(random_state=0).fit(city.X, D)  # zeros: log-ratios with presence
absent = model.predict_zero(city.X)
fig = plt.figure(figsize=(9, 3.8), layout="constrained")
ax = fig.add_subplot(1, 2, 1)
for label in range(2):
    ax.scatter(city.X[:, 3], absent[:, label], s=14, color=style.label_color(label), label=city.label_names[label])
ax.set(xlabel="night bus lines", ylabel="P(share is exactly zero)")
style.quiet(ax, "y")
style.legend(ax)
triangle = style.ternary_axes(fig.add_subplot(1, 2, 2, projection="ternary"), city.label_names)
row = int(np.abs(absent[:, 0] - 0.5).argmin())
triangle.scatter(*model.sample(city.X[[row]], 500, random_state=0)[:, 0].T, s=9, alpha=0.4, color=style.MODEL)
