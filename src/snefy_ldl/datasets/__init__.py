"""Data sets: named public ones, your own tables, labelled files, votes, and made-up ones of known distribution."""

from __future__ import annotations

from snefy_ldl.datasets.dataset import Dataset, cache_folder, dataset_names, load_dataset, load_table
from snefy_ldl.datasets.grouping import GroupedData, blocks, in_groups, make_groups
from snefy_ldl.datasets.synthetic import (
    SyntheticData,
    draw_tiles,
    make_annotators,
    make_city_districts,
    make_city_tiles,
)
from snefy_ldl.datasets.truth import TrueConditional

__all__ = [
    "Dataset",
    "GroupedData",
    "SyntheticData",
    "TrueConditional",
    "blocks",
    "cache_folder",
    "dataset_names",
    "draw_tiles",
    "in_groups",
    "load_dataset",
    "load_table",
    "make_annotators",
    "make_city_districts",
    "make_city_tiles",
    "make_groups",
]
