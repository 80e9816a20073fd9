"""
Joint calibration of all shares
===============================

The Rosenblatt transform maps each row to independent uniform numbers, if the joint distribution is right.
"""

from snefy_ldl import SnefyLDL, plots
from snefy_ldl.datasets import make_city_districts
from snefy_ldl.metrics import joint_pit

city = make_city_districts(n=400, random_state=0)
model = SnefyLDL(epochs=15, guides=None, random_state=0).fit(city.X[:300], city.D[:300])
X, D = city.X[300:], city.D[300:]

plots.joint_calibration(joint_pit(model, X, D), labels=city.label_names)
