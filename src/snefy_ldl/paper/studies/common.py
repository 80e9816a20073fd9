"""What all studies share: models by recipe, splits by repeat, scores under the paper's names, and outcomes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snefy_ldl._internal.types import Array
from snefy_ldl.errors import InputError
from snefy_ldl.estimator import SnefyLDL
from snefy_ldl.metrics.points import score
from snefy_ldl.paper.config import Active, Ensemble, Study

__all__ = ["SHORT_NAMES", "Outcome", "held_out_rows", "make_model", "parted_rows", "scores", "task_of"]

Rows = NDArray[np.intp]
#: The paper's short names of the six measures, in its order.
SHORT_NAMES = {
    "cheby": "chebyshev",
    "clark": "clark",
    "canb": "canberra",
    "kl": "kl_divergence",
    "cos": "cosine",
    "inter": "intersection",
}


@dataclass(frozen=True)
class Outcome:
    """The figures of one repeat with one recipe."""

    recipe: str
    repeat: int
    figures: dict[str, Any]


def task_of(study: Study) -> Any:
    """The paper's name for this kind of experiment, which sets its batch size."""
    return {Active: "active", Ensemble: "ensemble"}.get(type(study.protocol), "conformal")


#: The default recipe of the studies: one network on the features themselves, as when their results were made. Guides, a
#: centre and modelled zeros are another model, and the studies are about this one.
PLAIN: dict[str, Any] = {"guides": None, "centre": None, "zeros": "shrink"}


def make_model(study: Study, recipe: str, seed: int | None = None, **changes: Any) -> SnefyLDL:
    """An unfitted density: ``SnefyLDL.paper(task)``, or ``SnefyLDL()`` on the features alone.

    Args:
        study: what it is for.
        recipe: ``"paper"`` or ``"default"``.
        seed: its random state.
        changes: further settings, which go before those of the study.
    """
    settings: dict[str, Any] = {**dict(study.model), **changes, "random_state": seed, "device": "cpu"}
    if recipe == "paper":
        return SnefyLDL.paper(task_of(study), **settings)
    if recipe == "default":
        return SnefyLDL(**{**PLAIN, **settings})
    raise InputError(f'recipe={recipe!r}: use "paper" or "default".')


def parted_rows(n: int, repeat: int, train: float, calibration: float) -> tuple[Rows, Rows, Rows]:
    """Training, calibration and test rows of one repeat; they depend on n and the repeat's number alone.

    Example:
        >>> [len(part) for part in parted_rows(20, 0, 0.5, 0.25)]
        [10, 5, 5]
    """
    order = _order(n, repeat)
    first, second = int(train * n), int(train * n) + int(calibration * n)
    return order[:first], order[first:second], order[second:]


def held_out_rows(n: int, repeat: int, share: float) -> tuple[Rows, Rows]:
    """Training and test rows of one repeat.

    Example:
        >>> [len(part) for part in held_out_rows(20, 0, 0.1)]
        [18, 2]
    """
    order, held = _order(n, repeat), round(share * n)
    return order[held:], order[:held]


def _order(n: int, repeat: int) -> Rows:
    return np.random.default_rng([repeat, n]).permutation(n).astype(np.intp)


def scores(D: Array, predicted: Array) -> dict[str, float]:
    """The six measures of tables 4 to 7, averaged over rows.

    Example:
        >>> scores(np.array([[0.5, 0.5]]), np.array([[0.5, 0.5]]))["inter"]
        1.0
    """
    measures = score(D, predicted)
    return {short: float(measures[name]) for short, name in SHORT_NAMES.items()}
