"""
Correlated shares
=================

Correlations of the shares under the predicted distribution. Under a Dirichlet they would all be negative.
"""

import matplotlib.pyplot as plt
import numpy as np

from snefy_ldl import SnefyLDL
from snefy_ldl.datasets import make_city_districts
from snefy_ldl.plots import style

city = make_city_districts(n=400, random_state=0)
model = SnefyLDL(epochs=15, guides=None, random_state=0).fit(city.X[:300], city.D[:300])
X, D = city.X[300:], city.D[300:]

covariance = model.predict_cov(X)
spread = np.sqrt(np.diagonal(covariance, axis1=1, axis2=2))
correlation = covariance / spread[:, :, None] / spread[:, None, :]
fig, ax = plt.subplots(figsize=(6, 3.4), layout="constrained")
pairs = {"business, entertainment": (0, 1), "business, education": (0, 2), "entertainment, education": (1, 2)}
for number, (name, (j, k)) in enumerate(pairs.items()):
    ax.hist(
        correlation[:, j, k], bins=20, range=(-1, 1), histtype="step", lw=2, color=style.label_color(number), label=name
    )
ax.set(xlabel="correlation of two shares", ylabel="rows")
style.quiet(ax, "y")
style.legend(ax)
