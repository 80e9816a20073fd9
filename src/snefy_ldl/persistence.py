"""Reading saved models: one function for every estimator of this library."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from snefy_ldl._internal.model_files import read_head

__all__ = ["load"]

#: The class that reads a folder, by the name of its JSON file where that differs from a model's.
OTHER_FILES = {
    "pipeline.json": ("snefy_ldl.pipeline", "LDLPipeline"),
    "ensemble.json": ("snefy_ldl.ensemble", "DensityWeightedBagging"),
}
#: Modules whose import registers the classes of saved learners.
LEARNERS = (
    "snefy_ldl.learners",
    "snefy_ldl.logratio",
    "snefy_ldl.learners.enhancement",
    "snefy_ldl.learners.supervision",
)


def load(folder: str | Path, backbone: Any = None, device: str | None = None, guides: Any = None) -> Any:
    """Load a saved model, whichever estimator wrote it; nothing in the folder is executed.

    Args:
        folder: written by ``save`` of an estimator of this library, or by version 0.1.
        backbone: the custom network of a SnefyLDL, as :meth:`SnefyLDL.load` takes it.
        device: where a SnefyLDL computes; the GPU if available by default.
        guides: fitted guides of a SnefyLDL, if they could not be saved.

    Returns:
        The fitted estimator: a SnefyLDL, LogRatioLDL, AutoLDL, GroupedLDL, AnnotatorLDL, pipeline, ensemble or learner.

    Raises:
        ModelFileError: the folder is missing, damaged, foreign or of a newer version.

    Example:
        >>> import tempfile
        >>> from snefy_ldl import SnefyLDL
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     place = SnefyLDL(epochs=1, random_state=0).fit(city.X, city.D).save(f"{folder}/model")
        ...     type(load(place)).__name__
        'SnefyLDL'
    """
    place = Path(folder)
    for name, (module, kind) in OTHER_FILES.items():
        if (place / name).is_file():
            return getattr(import_module(module), kind).load(place)
    if read_head(place).is_learner:
        for module in LEARNERS:
            import_module(module)
        model = import_module("snefy_ldl.learners.base").Learner.load(place)
    else:
        model = _load_density(place, backbone, device, guides)
    return import_module("snefy_ldl.auto").AutoLDL.around(model)


def _load_density(folder: Path, backbone: Any, device: str | None, guides: Any) -> Any:
    """A SnefyLDL, or the estimator around one."""
    from snefy_ldl._internal.persistence import load_state
    from snefy_ldl.snefy import SnefyLDL

    parameters, state = load_state(folder, backbone, guides)
    people, effects = state.annotators, state.effects
    model = SnefyLDL.restore(folder, parameters, state, backbone, device)
    if effects is not None:
        from snefy_ldl.grouped import GroupedLDL

        return GroupedLDL(model).adopt(model, model.fitted_)
    if people is not None:
        from snefy_ldl.annotators import AnnotatorLDL

        return AnnotatorLDL(model).around(model.adopt(replace(state, annotators=None)), people)
    return model
