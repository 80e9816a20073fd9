"""
Rows worth labelling
====================

Twenty districts that ``query`` chooses from a pool, given forty that are labelled. They are mostly near the centre,
where uses change quickly.
"""

import matplotlib.pyplot as plt

from snefy_ldl import SnefyLDL
from snefy_ldl.active import query
from snefy_ldl.datasets import make_city_districts
from snefy_ldl.plots import style

city = make_city_districts(n=400, random_state=0)
X, D, pool = city.X[:40], city.D[:40], city.X[40:]
model = SnefyLDL(epochs=10, random_state=0).fit(X, D)
rows = query("lcmd", pool, 20, model=model, X_labeled=X, random_state=0)

fig, ax = plt.subplots(figsize=(6, 3.8), layout="constrained")
groups = {"pool": (pool, style.FRAME), "labelled": (X, style.MODEL), "chosen": (pool[rows], style.TRUTH)}
for name, (points, color) in groups.items():
    ax.scatter(points[:, 0], points[:, 1], s=26, color=color, label=name)
ax.set(xlabel=city.feature_names[0], ylabel=city.feature_names[1])
style.quiet(ax, "both")
style.legend(ax)
