"""The public names of the library, by subject: the contents of the reference, which a test compares with the code.

Packages that are not listed here are internal; their public names are re-exported by a package that is listed.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

#: Subject -> modules whose ``__all__`` is public. A name exported by two modules is described in the first.
SUBJECTS: dict[str, list[str]] = {
    "Model and tables": [
        "snefy_ldl",
        "snefy_ldl.snefy",
        "snefy_ldl.datasets",
        "snefy_ldl.errors",
    ],
    "The density": ["snefy_ldl.distributions", "snefy_ldl.learners.classification", "snefy_ldl.logratios"],
    "Intervals with a guarantee": ["snefy_ldl.conformal"],
    "Votes": ["snefy_ldl.votes"],
    "Active learning": ["snefy_ldl.active"],
    "Model selection and ensembles": ["snefy_ldl.ensemble", "snefy_ldl.learners.comparison"],
    "Other learners": ["snefy_ldl.learners", "snefy_ldl.learners.enhancement"],
    "Metrics, explanations, reports": ["snefy_ldl.metrics", "snefy_ldl.explain", "snefy_ldl.apps.reports"],
    "Plots": [
        "snefy_ldl.plots",
        "snefy_ldl.plots.votes",
    ],
    "Integrations": [
        "snefy_ldl.apps.integrations.onnx",
    ],
    "Services and clusters": [
        "snefy_ldl.apps.serve.app",
        "snefy_ldl.apps.cluster.fit_files",
    ],
}
#: Internal packages, and what they are for.
INTERNAL: dict[str, str] = {
    "prediction": "what estimators that predict distributions share",
    "networks": "parts of the model; Backbone and SnefyHead are exported at the top",
    "training": "how a fit is done; SnefyLDL.fit calls it",
}
#: Descriptions of public names that are neither classes nor functions.
CONSTANTS: dict[str, str] = {
    "MEASURES": "Name of every measure of point predictions, and whether higher is better.",
    "STRATEGIES": "Name of every query strategy, and its class.",
    "USDA": "Names of the twelve soil-texture classes of the United States Department of Agriculture.",
}


def names_of(module: ModuleType) -> list[str]:
    """Return the public names of a module, sorted: ``__all__``, or the classes and functions it defines."""
    if hasattr(module, "__all__"):
        names = module.__all__
    else:
        names = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
    return sorted((name for name in names if not name.startswith("_")), key=str.lower)


def public_names() -> dict[str, list[str]]:
    """Return the names in the reference, by module: each object once, in the first module that exports it."""
    seen: dict[int, str] = {}
    names: dict[str, list[str]] = {}
    for modules in SUBJECTS.values():
        for path in modules:
            module = import_module(path)
            names[path] = []
            for name in names_of(module):
                value = getattr(module, name)
                if callable(value) and id(value) in seen:
                    continue
                seen[id(value)] = path
                names[path].append(name)
    return names
