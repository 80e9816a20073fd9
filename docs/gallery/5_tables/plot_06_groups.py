"""
Rows in groups
==============

Samples of one field are alike. The same soil sample, predicted in fields of the training data and in a new field.
"""

import numpy as np

from snefy_ldl import GroupedLDL, LogRatioLDL, plots
from snefy_ldl.datasets import make_groups

data = make_groups(n_groups=20, n_rows=15, random_state=0)
model = GroupedLDL(LogRatioLDL(random_state=0)).fit(data.X, data.D, groups=data.groups)

sample, fields = data.X[:1], [7, 10, 11, 14]
shares = np.vstack([model.predict(sample, groups=[field]) for field in [*fields, 99]])
names = [*(f"field {field}" for field in fields), "a new field"]
plots.label_bars(shares, ["sand", "silt", "clay"], row_names=names)
