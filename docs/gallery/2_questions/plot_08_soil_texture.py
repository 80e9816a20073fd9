"""
Soil-texture classes
====================

The triangle of the United States Department of Agriculture has twelve classes of soil. A predicted distribution gives
the probability of each of them, with ``dist.probability``: any condition on shares is a function of draws. The class of
the mean alone would be one answer out of several.
"""

import matplotlib.pyplot as plt
import mpltern  # noqa: F401 - registers the projection "ternary"
import numpy as np
import torch

from snefy_ldl import SnefyLDL, plots
from snefy_ldl.plots import style

CLASSES = {  # in percent; the conditions are those of the USDA Soil Survey Manual
    "sand": lambda sand, silt, clay: silt + 1.5 * clay < 15,
    "loamy sand": lambda sand, silt, clay: (silt + 1.5 * clay >= 15) & (silt + 2 * clay < 30),
    "sandy loam": lambda sand, silt, clay: (
        (silt + 2 * clay >= 30) & (clay < 20) & (sand > 52) & (clay >= 7)
        | (silt + 2 * clay >= 30) & (clay < 7) & (silt < 50)
    ),
    "loam": lambda sand, silt, clay: (clay >= 7) & (clay < 27) & (silt >= 28) & (silt < 50) & (sand <= 52),
    "silt loam": lambda sand, silt, clay: (silt >= 50) & ((clay >= 12) & (clay < 27) | (clay < 12) & (silt < 80)),
    "silt": lambda sand, silt, clay: (silt >= 80) & (clay < 12),
    "sandy clay loam": lambda sand, silt, clay: (clay >= 20) & (clay < 35) & (silt < 28) & (sand > 45),
    "clay loam": lambda sand, silt, clay: (clay >= 27) & (clay < 40) & (sand > 20) & (sand <= 45),
    "silty clay loam": lambda sand, silt, clay: (clay >= 27) & (clay < 40) & (sand <= 20),
    "sandy clay": lambda sand, silt, clay: (clay >= 35) & (sand > 45),
    "silty clay": lambda sand, silt, clay: (clay >= 40) & (silt >= 40),
    "clay": lambda sand, silt, clay: (clay >= 40) & (sand <= 45) & (silt < 40),
}

random = np.random.default_rng(0)
depth = random.uniform(0, 2, (300, 1))
amounts = random.gamma(np.exp([1.6, 1.0, 0.4] + depth * [-0.6, 0.2, 0.6]) * 2)
shares = amounts / amounts.sum(1, keepdims=True)
model = SnefyLDL(random_state=0).fit(depth, shares)
dist = model.predict_dist([[0.5]])  # one sample, half a metre deep

chances = {}
for name, holds in CLASSES.items():
    chance, error = dist.probability(lambda draws, holds=holds: holds(*(100 * draws).unbind(-1)), n=20_000)
    chances[name] = float(chance)
assert abs(sum(chances.values()) - 1) < 0.03  # each class has its own draws

fig = plt.figure(figsize=(9.4, 4.2), layout="constrained")
triangle = fig.add_subplot(1, 2, 1, projection="ternary")
plots.ternary_density(dist, labels=["sand", "silt", "clay"], ax=triangle)
grid = torch.tensor([(i, j, 300 - i - j) for i in range(301) for j in range(301 - i)]) / 300.0
number = sum(k * holds(*(100 * grid).unbind(-1)).double() for k, holds in enumerate(CLASSES.values()))
triangle.tricontour(*grid.T, number, levels=np.arange(11) + 0.5, colors=style.QUIET, linewidths=0.4)
ax = fig.add_subplot(1, 2, 2)
likely = sorted((name for name in chances if chances[name] > 0.005), key=chances.get)
ax.barh(likely, [100 * chances[name] for name in likely], color=style.MODEL)
ax.set(xlabel="probability of the class, %")
style.quiet(ax, "x")
