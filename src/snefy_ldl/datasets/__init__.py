"""Data sets: named public ones, your own tables, labelled files, votes, and made-up ones of known distribution."""

from __future__ import annotations

from snefy_ldl.datasets.dataset import dataset_names, load_dataset, load_table
from snefy_ldl.datasets.grouping import in_groups
from snefy_ldl.datasets.synthetic import make_annotators, make_city_districts, make_groups
from snefy_ldl.datasets.texture import USDA, texture_classes

__all__ = [
    "USDA",
    "dataset_names",
    "in_groups",
    "load_dataset",
    "load_table",
    "make_annotators",
    "make_city_districts",
    "make_groups",
    "texture_classes",
]
