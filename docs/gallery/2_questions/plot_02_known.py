"""
A known share
=============

The share of business is measured as 40 %. The plot shows the distribution of entertainment before and after.
"""

import matplotlib.pyplot as plt
import numpy as np

from snefy_ldl import SnefyLDL
from snefy_ldl.datasets import make_city_districts
from snefy_ldl.plots import style

city = make_city_districts(n=400, random_state=0)
model = SnefyLDL(epochs=15, guides=None, random_state=0).fit(city.X[:300], city.D[:300])
X, D = city.X[300:], city.D[300:]

dist = model.predict_dist(X[:1])
given = dist.condition({0: 0.4})
levels = np.linspace(0.002, 0.998, 250)
fig, ax = plt.subplots(figsize=(6, 3.6), layout="constrained")
for one, name, color in ((dist, "features alone", style.QUIET), (given, "business is 40 %", style.MODEL)):
    share = np.asarray(one.quantiles(levels))[0, 1]
    ax.plot(0.5 * (share[1:] + share[:-1]), np.diff(levels) / np.diff(share), color=color, label=name)
ax.set(xlabel="share of entertainment", ylabel="density")
style.quiet(ax, "y")
style.legend(ax)
