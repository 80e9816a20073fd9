"""
Dependence on a feature
=======================

Mean shares against the number of night buses, with bands for the members' disagreement. One label alone,
`.plot(labels="business")`, also shows how its share varies.
"""

import pandas as pd

from snefy_ldl import SnefyLDL
from snefy_ldl.datasets import make_city_districts
from snefy_ldl.explain import dependence

city = make_city_districts(n=300, random_state=0)
table = pd.DataFrame(city.X, columns=city.feature_names)
model = SnefyLDL(n_members=3, epochs=10, guides=None, random_state=0)
model.fit(table, pd.DataFrame(city.D, columns=city.label_names))
dependence(model, table, "night_bus_lines", grid=8, max_rows=80).plot()
