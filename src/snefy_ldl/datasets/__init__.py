"""Data sets: named public ones, tables of your own, labelled files and votes."""

from __future__ import annotations

from snefy_ldl.datasets.dataset import Dataset
from snefy_ldl.datasets.from_table import load_table
from snefy_ldl.datasets.named import cache_folder, dataset_names, load_dataset

__all__ = [
    "Dataset",
    "cache_folder",
    "dataset_names",
    "load_dataset",
    "load_table",
]
