"""
Soil-texture classes
====================

Maps of soil give the mean and the quantiles of sand, silt and clay at 5, 50 and 95 %. ``from_quantiles`` makes one
distribution of them for every pixel, and its draws give the probability of each of the twelve classes of the United
States Department of Agriculture. The class of the mean alone would be one answer out of several.
"""

import matplotlib.pyplot as plt
import mpltern  # noqa: F401 - registers the projection "ternary"
import numpy as np

from snefy_ldl import LogRatioSimplex, plots
from snefy_ldl.datasets import USDA, texture_classes
from snefy_ldl.plots import style

SOIL = ["sand", "silt", "clay"]
means = [[0.42, 0.36, 0.22], [0.18, 0.47, 0.35]]  # two pixels
quantiles = [
    [[0.22, 0.42, 0.62], [0.21, 0.35, 0.53], [0.11, 0.21, 0.36]],  # 5, 50 and 95 % of each label
    [[0.07, 0.17, 0.32], [0.32, 0.47, 0.62], [0.21, 0.34, 0.51]],
]
dist = LogRatioSimplex.from_quantiles(means=means, quantiles=quantiles, names=SOIL)
assert float(dist.misfit.max()) < 0.02  # no quantile is missed by more

number = texture_classes(dist.sample((20_000,)))  # (draws, pixels)
chances = np.stack([(number == k).mean(0) for k in range(len(USDA))])

fig = plt.figure(figsize=(9.4, 4.2), layout="constrained")
triangle = fig.add_subplot(1, 2, 1, projection="ternary")
plots.ternary_density(dist, labels=SOIL, classes="USDA", ax=triangle)
ax = fig.add_subplot(1, 2, 2)
likely = [k for k in np.argsort(chances[:, 0]) if chances[k, 0] > 0.005]
ax.barh([USDA[k] for k in likely], 100 * chances[likely, 0], color=style.MODEL)
ax.set(xlabel="probability of the class, %")
style.quiet(ax, "x")
