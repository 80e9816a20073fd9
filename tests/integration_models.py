"""Small fitted models of every kind that an integration must take."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import numpy as np

from snefy_ldl import LogRatioLDL, SnefyLDL
from snefy_ldl.datasets import make_city_districts
from snefy_ldl.learners import SABFGS
from snefy_ldl.learners.trees import TreesLDL

CITY = make_city_districts(n=160, random_state=0)


def with_gaps(X: Any) -> Any:
    return np.where(np.random.default_rng(1).random(X.shape) < 0.2, np.nan, X)


#: What each kind of model is fitted with.
KINDS: dict[str, dict[str, Any]] = {
    "plain": {"guides": None},
    # given base learners, and no validation rows to choose by: the network sees both
    "guides": {
        "n_neurons": 6,
        "validation_fraction": 0.0,
        "guides": [SABFGS(), TreesLDL(n_trees=20, random_state=0)],
    },
    "gaps": {"guides": None, "features": with_gaps},
}


@cache
def fitted(kind: str) -> tuple[Any, Any, Any]:
    """A model of a kind, its features and its labels."""
    settings = dict(KINDS.get(kind, {}))
    X, D = settings.pop("features", np.asarray)(CITY.X), CITY.D
    settings = {"n_neurons": 10, "epochs": 3, "random_state": 0} | settings
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if kind == "ratios":
            return LogRatioLDL(n_trees=10, max_iter=20, random_state=0).fit(X, D), X, D
        model = SnefyLDL.paper(n_neurons=10, epochs=3, random_state=0) if kind == "paper" else SnefyLDL(**settings)
        return model.fit(X, D), X, D


#: Levels of the quantiles in the table.
LEVELS = (0.05, 0.5, 0.95)


@cache
def table(kind: str, n_rows: int = 5) -> dict[str, Any]:
    """Python's answers for the first rows of a model, which the exported graph and the page must give, too."""
    model, X, _ = fitted(kind)
    dist = model.predict_dist(X[:n_rows])
    return {
        "X": X[:n_rows],
        "mean": dist.mean.numpy(),
        "covariance": dist.covariance_matrix.numpy(),
        "quantiles": dist.quantiles(LEVELS).numpy(),
        "greater": dist.prob_greater(0, 1).numpy(),
    }
