"""What the tests of query strategies share."""

from __future__ import annotations

from typing import Any

import numpy as np

from snefy_ldl.active import STRATEGIES, LawStrategy, query

ON_LAWS = [name for name, kind in STRATEGIES.items() if issubclass(kind, LawStrategy)]
ON_FEATURES = [name for name, kind in STRATEGIES.items() if not kind.needs_model]


def ask(name: str, pool: Any, n: int, model: Any, **options: Any) -> Any:
    """A query with few draws, so that it is quick."""
    draws = {"entropy": {"n_draws": 50}, "epistemic": {"n_draws": 16}}
    return query(name, pool, n, model=model, random_state=0, **(draws.get(name, {}) | options))


def seeded(seed: int = 0) -> np.random.RandomState:
    """A source of randomness."""
    return np.random.RandomState(seed)
