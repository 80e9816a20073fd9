"""
Weighted ensembles
==================

The effective number of members per row, when each of ten members is weighted by the density at its prediction.
"""

import matplotlib.pyplot as plt

from snefy_ldl import SnefyLDL
from snefy_ldl.datasets import make_city_districts
from snefy_ldl.ensemble import DensityWeightedBagging
from snefy_ldl.learners import SABFGS
from snefy_ldl.plots import style

city = make_city_districts(n=300, random_state=0)
density = SnefyLDL(epochs=8, guides=None, random_state=0)
bag = DensityWeightedBagging(SABFGS(), density, n_members=10, random_state=0).fit(city.X[:200], city.D[:200])
fig, ax = plt.subplots(figsize=(6, 3.4), layout="constrained")
ax.hist(bag.effective_members(city.X[200:]), bins=20, range=(1, 10), color=style.MODEL, rwidth=0.9)
ax.set(xlabel="effective number of members", ylabel="rows")
style.quiet(ax, "y")
