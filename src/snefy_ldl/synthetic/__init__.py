"""Data whose conditional law is known exactly, to check every estimate against the truth."""

from __future__ import annotations

from snefy_ldl.synthetic.annotators import make_annotators
from snefy_ldl.synthetic.city import make_city_districts
from snefy_ldl.synthetic.data import SyntheticData
from snefy_ldl.synthetic.truth import TrueConditional

__all__ = [
    "SyntheticData",
    "TrueConditional",
    "make_annotators",
    "make_city_districts",
]
