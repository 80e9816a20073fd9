"""Data whose conditional law is known exactly, to check every estimate against the truth."""

from __future__ import annotations

from snefy_ldl.datasets.synthetic.annotators import make_annotators
from snefy_ldl.datasets.synthetic.city import make_city_districts
from snefy_ldl.datasets.synthetic.data import SyntheticData
from snefy_ldl.datasets.synthetic.motifs import MotifGraph, make_motif_graphs
from snefy_ldl.datasets.synthetic.tiles import draw_tiles, make_city_tiles
from snefy_ldl.datasets.synthetic.truth import TrueConditional

__all__ = [
    "MotifGraph",
    "SyntheticData",
    "TrueConditional",
    "draw_tiles",
    "make_annotators",
    "make_city_districts",
    "make_city_tiles",
    "make_motif_graphs",
]
