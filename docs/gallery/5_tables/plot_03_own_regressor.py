"""
Your own regressor
==================

A random forest as a guide: a density is fitted around its predictions.
"""

from sklearn.ensemble import RandomForestRegressor

from snefy_ldl import SnefyLDL, plots
from snefy_ldl.datasets import make_city_districts

city = make_city_districts(n=300, random_state=0)
forest = RandomForestRegressor(20, min_samples_leaf=3, random_state=0)
model = SnefyLDL(guides=[forest], epochs=8, random_state=0).fit(city.X[:260], city.D[:260])
X, D = city.X[260:], city.D[260:]
plots.intervals(model.predict_interval(X, 0.9), D, model.predict(X), city.label_names, rows=[0, 1, 2, 3])
