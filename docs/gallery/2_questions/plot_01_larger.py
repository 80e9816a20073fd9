"""
Which share is larger?
======================

The probability that there is more education than business, row by row, against the number of students.
"""

import matplotlib.pyplot as plt

from snefy_ldl import SnefyLDL
from snefy_ldl.datasets import make_city_districts
from snefy_ldl.plots import style

city = make_city_districts(n=400, random_state=0)
model = SnefyLDL(epochs=15, guides=None, random_state=0).fit(city.X[:300], city.D[:300])
X, D = city.X[300:], city.D[300:]

chance = model.predict_dist(X).prob_greater(2, 0).numpy()
fig, ax = plt.subplots(figsize=(6, 3.6), layout="constrained")
ax.scatter(X[:, 2], chance, c=style.MODEL, s=22, alpha=0.7)
ax.set(xlabel="students per km²", ylabel="P(education > business)", ylim=(-0.02, 1.02))
style.quiet(ax, "y")
