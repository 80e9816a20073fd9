"""
Label enhancement
=================

Label distributions recovered from labels that are zero or one, compared with the truth.
"""

import numpy as np

from snefy_ldl import plots
from snefy_ldl.datasets import make_city_districts
from snefy_ldl.learners.enhancement import GLLE, binarise

city = make_city_districts(n=150, random_state=0)
logical = binarise(city.D)
recovered = GLLE(random_state=0).fit_transform(city.X, logical)
rows = np.stack([city.D[:3], logical[:3] / logical[:3].sum(1, keepdims=True), np.asarray(recovered)[:3]], 1).reshape(
    9, 3
)
names = [f"row {row}, {what}" for row in range(3) for what in ("truth", "labels", "recovered")]
plots.label_bars(rows, city.label_names, row_names=names)
