"""
Which rows to label next
========================

The pool in two dimensions, coloured by the model's uncertainty; circles mark the selected rows.
"""

from snefy_ldl import SnefyLDL
from snefy_ldl.active import query
from snefy_ldl.datasets import make_city_districts
from snefy_ldl.plots.active import plot_pool

city = make_city_districts(n=400, random_state=0)
model = SnefyLDL(epochs=10, guides=None, random_state=0).fit(city.X[:60], city.D[:60])
rows, scores = query("entropy", city.X[60:], 15, model=model, return_utilities=True, random_state=0)
plot_pool(city.X[60:], scores, rows, X_labeled=city.X[:60], label="entropy")
