"""Small fitted models of every kind that an integration must take."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import numpy as np

from snefy_ldl import SnefyLDL
from snefy_ldl.datasets import make_city_districts
from snefy_ldl.learners import SABFGS
from snefy_ldl.learners.trees import TreesLDL

CITY = make_city_districts(n=160, random_state=0)


def with_zeros(D: Any) -> Any:
    """Shares of which a third are exactly zero."""
    kept = np.where(np.random.default_rng(0).random(D.shape) < 0.3, 0.0, D)
    kept[kept.sum(1) == 0.0] = [1.0, 0.0, 0.0]
    return kept / kept.sum(1, keepdims=True)


def unequal(D: Any) -> Any:
    """Parts of very unequal size."""
    parts = D * np.array([1.0, 0.01, 30.0])
    return parts / parts.sum(1, keepdims=True)


def with_gaps(X: Any) -> Any:
    return np.where(np.random.default_rng(1).random(X.shape) < 0.2, np.nan, X)


#: What each kind of model is fitted with.
KINDS: dict[str, dict[str, Any]] = {
    "plain": {"guides": None, "centre": None},
    "members": {"guides": None, "centre": None, "n_members": 3, "n_neurons": 6, "hidden_sizes": (8, 8)},
    "centre": {"guides": None, "centre": "geometric", "labels": unequal},
    "zeros": {"guides": None, "zeros": "model", "labels": with_zeros},
    "zeros and centre": {
        "guides": None,
        "zeros": "model",
        "centre": np.array([1.0, 0.05, 5.0]),
        "labels": with_zeros,
    },
    # given guides, and no validation rows to choose by: the network sees both
    "guides": {
        "centre": None,
        "n_neurons": 6,
        "validation_fraction": 0.0,
        "guides": [SABFGS(), TreesLDL(n_trees=20, random_state=0)],
    },
    "gaps": {"guides": None, "centre": None, "features": with_gaps},
    "no hidden layer": {"guides": None, "centre": None, "hidden_sizes": ()},
}


@cache
def fitted(kind: str) -> tuple[SnefyLDL, Any, Any]:
    """A model of a kind, its features and its labels."""
    settings = dict(KINDS[kind]) if kind != "paper" else {}
    labels, features = settings.pop("labels", None), settings.pop("features", None)
    X = CITY.X if features is None else features(CITY.X)
    D = CITY.D if labels is None else labels(CITY.D)
    settings = {"n_neurons": 10, "epochs": 3, "random_state": 0} | settings
    model = SnefyLDL.paper(n_neurons=10, epochs=3, random_state=0) if kind == "paper" else SnefyLDL(**settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.fit(X, D), X, D


@cache
def moving(zeros: bool) -> tuple[SnefyLDL, Any]:
    """A model of many labels, some far smaller than others, whose guides move the law of each row."""
    random = np.random.default_rng(0)
    X = random.normal(size=(160, 4))
    score = X @ random.normal(size=(4, 22)) * 0.6 + random.normal(size=22) * 1.5
    amount = random.gamma(2.0, size=score.shape) * np.exp(score)
    if zeros:
        amount *= random.random(score.shape) < 0.7
        amount[np.arange(len(X)), score.argmax(1)] += 0.1
    guides = [SABFGS(), TreesLDL(n_trees=15, random_state=0)]
    settings = {"n_neurons": 4, "n_members": 2, "epochs": 2, "guides": guides, "random_state": 0}
    model = SnefyLDL(**settings).fit(X, amount / amount.sum(1, keepdims=True))
    assert model.inputs_ == "moving"
    assert model.net_.has_presence == zeros
    return model, X
