"""A small model and its rows in Parquet files, for the tests of clusters."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from snefy_ldl import SnefyLDL
from snefy_ldl.datasets import make_city_districts

CITY = make_city_districts(n=800, random_state=0)
FEATURES, LABELS = list(CITY.feature_names), list(CITY.label_names)


def city_frame() -> pd.DataFrame:
    """Names, features and labels of all rows."""
    frame = pd.DataFrame(CITY.X, columns=FEATURES).join(pd.DataFrame(CITY.D, columns=LABELS))
    frame.insert(0, "id", [f"r{k}" for k in range(len(frame))])
    return frame


def fill_folder(folder: Path) -> Path:
    """A folder with ``model``, and rows as ``all.parquet`` or as ``a.parquet`` and ``b.parquet``."""
    frame = city_frame()
    settings = {"epochs": 3, "guides": None, "n_neurons": 16, "n_readouts": 8, "random_state": 0}
    SnefyLDL(**settings).fit(frame[FEATURES], frame[LABELS]).save(folder / "model")
    frame.to_parquet(folder / "all.parquet", row_group_size=100)
    frame[:500].to_parquet(folder / "a.parquet", row_group_size=100)
    frame[500:].reset_index(drop=True).to_parquet(folder / "b.parquet", row_group_size=100)
    return folder
