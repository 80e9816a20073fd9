"""
The labels of a data set
========================

The distribution of the shares of each label over the rows, before a model is fitted.
"""

from snefy_ldl import plots
from snefy_ldl.datasets import make_city_districts

city = make_city_districts(n=400, random_state=0)
plots.share_ranges(city.D, city.label_names)
