"""
Labels of very different size
=============================

Trace elements next to silica: log-ratios do not depend on units, so shares that differ by factors of a thousand are
predicted with the same care.
"""

import matplotlib.pyplot as plt
import numpy as np

from snefy_ldl import LogRatioLDL
from snefy_ldl.datasets import make_city_districts
from snefy_ldl.plots import style

city = make_city_districts(n=300, random_state=0)
D = city.D * [1.0, 1e-2, 1e-4]
D /= D.sum(1, keepdims=True)
model = LogRatioLDL(random_state=0).fit(city.X[:250], D[:250])
ends = model.predict_interval(city.X[250:262], 0.9)
fig, ax = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
for label, name in enumerate(("silica", "minor", "trace")):
    place = np.arange(12) + 0.22 * (label - 1)
    ax.vlines(place, ends[:, label, 0], ends[:, label, 1], color=style.label_color(label), lw=3, label=name)
    ax.plot(place, D[250:262, label], "D", ms=4, color=style.INK)
ax.set(yscale="log", xlabel="row", ylabel="share, 90% interval and observed")
style.quiet(ax, "y")
style.legend(ax, ncols=3)
