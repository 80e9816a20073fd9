"""Networks: from features to a law on the simplex."""

from __future__ import annotations

from snefy_ldl.networks.backbones import BackboneLike, CustomBackbone, StackedMLP
from snefy_ldl.networks.net import SnefyNet
from snefy_ldl.networks.scaling import Scaling, fit_scaling
from snefy_ldl.networks.starts import (
    fit_dirichlet,
    fit_faces,
    label_concentration,
    paper_init,
    presence_init,
    prototype_init,
)

__all__ = [
    "BackboneLike",
    "CustomBackbone",
    "Scaling",
    "SnefyNet",
    "StackedMLP",
    "fit_dirichlet",
    "fit_faces",
    "fit_scaling",
    "label_concentration",
    "paper_init",
    "presence_init",
    "prototype_init",
]
