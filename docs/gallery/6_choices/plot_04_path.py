"""
Dependence in the triangle
==========================

The mean mix as a feature increases, as a path through the triangle; grey lines are single rows.
"""

import pandas as pd

from snefy_ldl import SnefyLDL
from snefy_ldl.datasets import make_city_districts
from snefy_ldl.explain import dependence

city = make_city_districts(n=300, random_state=0)
table = pd.DataFrame(city.X, columns=city.feature_names)
model = SnefyLDL(epochs=10, guides=None, random_state=0).fit(table, pd.DataFrame(city.D, columns=city.label_names))
dependence(model, table, "students_per_km2", grid=8, max_rows=60).plot(kind="ternary")
