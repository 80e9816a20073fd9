"""Networks: from features to distributions on the simplex."""

from __future__ import annotations

from snefy_ldl.networks.backbones import StackedMLP
from snefy_ldl.networks.net import SnefyNet

__all__ = ["SnefyNet", "StackedMLP"]
