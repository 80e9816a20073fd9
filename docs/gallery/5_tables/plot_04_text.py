"""
Text and missing cells
======================

A table with a column of text and empty cells. How the model uses each column is recorded in ``columns_``.
"""

import numpy as np
import pandas as pd

from snefy_ldl import SnefyLDL, plots

rng = np.random.default_rng(0)
soil = pd.DataFrame({"rock": rng.choice(["lime", "granite", "marl"], 200), "ph": rng.normal(6, 1, 200)})
soil.loc[::9, "ph"] = np.nan
amounts = rng.gamma(
    4 * np.exp(np.stack([soil.rock == "granite", soil.ph.fillna(6) / 9, soil.rock == "marl"], 1).astype(float))
)
shares = pd.DataFrame(amounts / amounts.sum(1, keepdims=True), columns=["sand", "silt", "clay"])
model = SnefyLDL(epochs=8, guides=None, random_state=0).fit(soil, shares)
print(model.columns_.names_out)
ask = pd.DataFrame({"rock": ["lime", "granite", "marl"], "ph": [6.0, np.nan, 6.0]})
plots.intervals(
    model.predict_interval(ask, 0.9), None, model.predict(ask), list(shares), row_names=["lime", "granite", "marl"]
)
