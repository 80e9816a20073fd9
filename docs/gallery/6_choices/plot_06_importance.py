"""
Which columns matter?
=====================

The likelihood lost when a column is shuffled.
"""

import pandas as pd

from snefy_ldl import SnefyLDL
from snefy_ldl.datasets import make_city_districts
from snefy_ldl.explain import permutation_importance

city = make_city_districts(n=300, random_state=0)
table = pd.DataFrame(city.X, columns=city.feature_names)
model = SnefyLDL(epochs=10, guides=None, random_state=0).fit(table[:200], city.D[:200])
permutation_importance(model, table[200:].reset_index(drop=True), city.D[200:]).plot()
