"""
Effects of a step
=================

Average effect of a step of a feature on each share, in percentage points, with intervals.
"""

import pandas as pd

from snefy_ldl import SnefyLDL
from snefy_ldl.datasets import make_city_districts
from snefy_ldl.explain import effects

city = make_city_districts(n=300, random_state=0)
table = pd.DataFrame(city.X, columns=city.feature_names)
model = SnefyLDL(n_members=3, epochs=10, guides=None, random_state=0)
D = pd.DataFrame(city.D, columns=city.label_names)
found = effects(model.fit(table, D), table, "night_bus_lines", D, step=2)
print(found)
found.plot()
