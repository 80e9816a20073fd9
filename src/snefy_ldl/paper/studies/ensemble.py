"""Tables 6 and 7: bags of learners that saw a few rows each, averaged plainly or weighted by the density."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from snefy_ldl import learners
from snefy_ldl.datasets.named import Dataset
from snefy_ldl.ensemble import DensityWeightedBagging
from snefy_ldl.estimator import fit_many
from snefy_ldl.paper.config import Ensemble, Study
from snefy_ldl.paper.studies.common import Outcome, held_out_rows, make_model, scores

__all__ = ["make_learner", "run"]


def run(study: Study, recipes: Sequence[str], repeats: Sequence[int], data: Dataset) -> list[Outcome]:
    """Both ensembles of every learner in some repeats, weighted by the density of each recipe.

    The members of a bag are fitted once: Average and every recipe's Weighted come from the same ones, so that their
    differences are paired.

    Args:
        study: whose protocol is an :class:`Ensemble`.
        recipes: whose densities weight the members.
        repeats: numbers of the splits; the densities of one recipe are trained together.
        data: features and label distributions.
    """
    protocol = study.protocol
    assert isinstance(protocol, Ensemble)
    splits = [held_out_rows(len(data.D), repeat, protocol.test) for repeat in repeats]
    seeds = [{"random_state": repeat} for repeat in repeats]
    densities = {
        recipe: fit_many(make_model(study, recipe), data.X, data.D, [train for train, _ in splits], seeds, n_jobs=1)
        for recipe in recipes
    }
    outcomes = []
    for number, (repeat, (train, test)) in enumerate(zip(repeats, splits)):
        X, D = data.X[test], data.D[test]
        figures: dict[str, dict[str, Any]] = {}
        for recipe in recipes:
            density = densities[recipe][number]
            alone = {**scores(D, np.asarray(density.predict(X))), "log_likelihood": float(density.score(X, D))}
            figures[recipe] = {"learners": {}, "density": alone, "effective_members": {}}
        for name, _ in protocol.learners:
            bag = DensityWeightedBagging(
                make_learner(protocol, name),
                n_members=protocol.members,
                n_samples=protocol.rows,
                weighting="uniform",
                random_state=repeat,
            ).fit(data.X[train], data.D[train])
            average = scores(D, bag.predict(X))
            bag.weighting = "density"
            for recipe in recipes:
                bag.density_ = densities[recipe][number]
                figures[recipe]["learners"][name] = {"Average": average, "Weighted": scores(D, bag.predict(X))}
                figures[recipe]["effective_members"][name] = float(bag.effective_members(X).mean())
        outcomes += [Outcome(recipe, repeat, figures[recipe]) for recipe in recipes]
    return outcomes


def make_learner(protocol: Ensemble, name: str) -> Any:
    """An unfitted base learner, by its name in the table."""
    return getattr(learners, dict(protocol.learners)[name])(**dict(protocol.settings))
