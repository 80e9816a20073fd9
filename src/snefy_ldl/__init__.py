"""SNEFY-LDL: label distribution learning with a probability density over the simplex, in closed form."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from snefy_ldl._internal.version import __version__ as __version__

if TYPE_CHECKING:
    from snefy_ldl.annotators import AnnotatorLDL as AnnotatorLDL
    from snefy_ldl.auto import AutoLDL as AutoLDL
    from snefy_ldl.datasets import load_dataset as load_dataset
    from snefy_ldl.distributions import LogRatioSimplex as LogRatioSimplex
    from snefy_ldl.distributions import SimplexDistribution as SimplexDistribution
    from snefy_ldl.distributions import SnefySimplex as SnefySimplex
    from snefy_ldl.grouped import GroupedLDL as GroupedLDL
    from snefy_ldl.learners.comparison import compare as compare
    from snefy_ldl.logratio import LogRatioLDL as LogRatioLDL
    from snefy_ldl.networks.custom import Backbone as Backbone
    from snefy_ldl.networks.head import SnefyHead as SnefyHead
    from snefy_ldl.persistence import load as load
    from snefy_ldl.pipeline import LDLPipeline as LDLPipeline
    from snefy_ldl.snefy import SnefyLDL as SnefyLDL
    from snefy_ldl.snefy import fit_many as fit_many
    from snefy_ldl.votes.annotator_tables import Votes as Votes

#: The public names of each module; loaded when first asked for, so that the command line answers without torch.
_HOMES = {
    "snefy": ("SnefyLDL", "fit_many"),
    "logratio": ("LogRatioLDL",),
    "auto": ("AutoLDL",),
    "grouped": ("GroupedLDL",),
    "annotators": ("AnnotatorLDL",),
    "distributions": ("SimplexDistribution", "SnefySimplex", "LogRatioSimplex"),
    "networks.custom": ("Backbone",),
    "networks.head": ("SnefyHead",),
    "votes.annotator_tables": ("Votes",),
    "pipeline": ("LDLPipeline",),
    "learners.comparison": ("compare",),
    "datasets": ("load_dataset",),
    "persistence": ("load",),
}
__all__ = ["__version__", *(name for names in _HOMES.values() for name in names)]


def __getattr__(name: str) -> Any:
    home = next((module for module, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value = getattr(import_module(f"snefy_ldl.{home}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
