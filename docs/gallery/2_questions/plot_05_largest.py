"""
Which label is the largest?
===========================

The probability that each label has the largest share, for a few rows.
"""

from snefy_ldl import SnefyLDL, plots
from snefy_ldl.datasets import make_city_districts
from snefy_ldl.learners.classification import LabelDecision

city = make_city_districts(n=400, random_state=0)
model = SnefyLDL(epochs=15, guides=None, random_state=0).fit(city.X[:300], city.D[:300])
X, D = city.X[300:], city.D[300:]

chances = LabelDecision(model).probabilities(X[:8])
plots.label_bars(chances, city.label_names, row_names=[f"row {row}" for row in range(8)])
