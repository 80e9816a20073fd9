"""SNEFY-LDL: label distribution learning with a probability density over the simplex, in closed form."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from snefy_ldl._internal.version import __version__

if TYPE_CHECKING:
    from snefy_ldl.annotators import AnnotatorLDL
    from snefy_ldl.apps.reports import evaluate
    from snefy_ldl.auto import AutoLDL
    from snefy_ldl.datasets import load_dataset, load_table
    from snefy_ldl.distributions import LogRatioSimplex, SimplexDistribution, SnefySimplex
    from snefy_ldl.grouped import GroupedLDL
    from snefy_ldl.learners.comparison import compare
    from snefy_ldl.logratio import LogRatioLDL
    from snefy_ldl.networks.custom import Backbone
    from snefy_ldl.networks.head import SnefyHead
    from snefy_ldl.persistence import load
    from snefy_ldl.pipeline import LDLPipeline
    from snefy_ldl.snefy import SnefyLDL, fit_many, fit_stream
    from snefy_ldl.tuning import tune
    from snefy_ldl.votes.tables import Votes

__all__ = [
    "AnnotatorLDL",
    "AutoLDL",
    "Backbone",
    "GroupedLDL",
    "LDLPipeline",
    "LogRatioLDL",
    "LogRatioSimplex",
    "SimplexDistribution",
    "SnefyHead",
    "SnefyLDL",
    "SnefySimplex",
    "Votes",
    "__version__",
    "compare",
    "evaluate",
    "fit_many",
    "fit_stream",
    "load",
    "load_dataset",
    "load_table",
    "tune",
]

#: Where each public name lives; loaded when first asked for, so that the command line answers without torch.
_HOMES = {
    "AnnotatorLDL": "snefy_ldl.annotators",
    "AutoLDL": "snefy_ldl.auto",
    "GroupedLDL": "snefy_ldl.grouped",
    "LDLPipeline": "snefy_ldl.pipeline",
    "LogRatioLDL": "snefy_ldl.logratio",
    "LogRatioSimplex": "snefy_ldl.distributions",
    "Backbone": "snefy_ldl.networks.custom",
    "SimplexDistribution": "snefy_ldl.distributions",
    "SnefyHead": "snefy_ldl.networks.head",
    "SnefyLDL": "snefy_ldl.snefy",
    "SnefySimplex": "snefy_ldl.distributions",
    "compare": "snefy_ldl.learners.comparison",
    "evaluate": "snefy_ldl.apps.reports",
    "fit_many": "snefy_ldl.snefy",
    "fit_stream": "snefy_ldl.snefy",
    "load": "snefy_ldl.persistence",
    "load_dataset": "snefy_ldl.datasets",
    "load_table": "snefy_ldl.datasets",
    "Votes": "snefy_ldl.votes.tables",
    "tune": "snefy_ldl.tuning",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
