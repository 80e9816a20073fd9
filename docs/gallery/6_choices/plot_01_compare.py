"""
Compare learners
================

The same folds for every learner, and intervals of the mean scores.
"""

from snefy_ldl import SnefyLDL, compare
from snefy_ldl.datasets import make_city_districts
from snefy_ldl.learners import AAKNN, SABFGS

city = make_city_districts(n=150, random_state=0)
learners = {"density": SnefyLDL(epochs=8, guides=None), "linear": SABFGS(), "neighbours": AAKNN()}
result = compare(learners, city.X, city.D, cv=4, repeats=2)
result.plot("kl_divergence")
