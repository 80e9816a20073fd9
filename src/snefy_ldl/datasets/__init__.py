"""Data sets: named public ones, tables and labelled files."""

from __future__ import annotations

from snefy_ldl.datasets.named import Dataset, cache_folder, dataset_names, load_dataset, load_table

__all__ = [
    "Dataset",
    "cache_folder",
    "dataset_names",
    "load_dataset",
    "load_table",
]
