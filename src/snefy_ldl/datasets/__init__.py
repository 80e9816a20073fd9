"""Data sets: named public ones, tables of your own, labelled files, votes, and made-up ones whose law is known."""

from __future__ import annotations

from snefy_ldl.datasets.dataset import Dataset, cache_folder, dataset_names, load_dataset, load_table
from snefy_ldl.datasets.groups import GroupedData, blocks, in_groups, make_groups
from snefy_ldl.datasets.synthetic import (
    MotifGraph,
    SyntheticData,
    draw_tiles,
    make_annotators,
    make_city_districts,
    make_city_tiles,
    make_motif_graphs,
)
from snefy_ldl.datasets.truth import TrueConditional

__all__ = [
    "Dataset",
    "GroupedData",
    "MotifGraph",
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
    "make_motif_graphs",
]
