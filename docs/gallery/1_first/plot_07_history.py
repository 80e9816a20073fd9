"""
Learning curve
==============

Training and validation loss by epoch; the weights of the best epoch are kept.
"""

from snefy_ldl import SnefyLDL, plots
from snefy_ldl.datasets import make_city_districts

city = make_city_districts(n=400, random_state=0)
model = SnefyLDL(epochs=15, guides=None, random_state=0).fit(city.X[:300], city.D[:300])
X, D = city.X[300:], city.D[300:]

plots.learning_curve(model.history_)
