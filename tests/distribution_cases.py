"""One table of answers of predicted distributions, which the exported graph and the explorer's page must give, too.

``distribution_cases.json`` holds features and Python's answers for small models of every kind. Their weights come from
a formula and not from a fit, so that the numbers do not depend on the machine. Write the table again if the
distribution itself has changed::

    python tests/distribution_cases.py
"""

from __future__ import annotations

import json
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from snefy_ldl import SnefyLDL

FILE = Path(__file__).with_name("distribution_cases.json")
LEVELS = (0.05, 0.5, 0.95)
#: Settings of each kind.
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "members": {"n_members": 3, "hidden_sizes": (4, 4)},
    "linear": {"hidden_sizes": ()},
}
#: Weights that a formula replaces; scales and means come from the features.
LEARNED = (
    "raw_exponents",
    "readout",
    "head_weight",
    "head_bias",
    "backbone.weights",
    "backbone.biases",
)


def wave(*shape: int, scale: float = 1.0, start: float = 0.0) -> Any:
    """Numbers that look irregular and are the same everywhere."""
    return scale * np.sin(start + 1.7 * np.arange(1, np.prod(shape, dtype=int) + 1) ** 1.3).reshape(shape)


@cache
def model_of(kind: str) -> SnefyLDL:
    """A model of a kind, its weights set by a formula."""
    X, amounts = wave(40, 3), np.exp(wave(40, 3, start=1.0))
    settings = {"n_neurons": 4, "n_readouts": 3, "hidden_sizes": (4,), "guides": None} | KINDS[kind]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = SnefyLDL(epochs=1, validation_fraction=0.0, random_state=0, **settings)
        model.fit(X, amounts / amounts.sum(1, keepdims=True))
    with torch.no_grad():
        learned = sorted((name, w) for name, w in model.net_.state_dict().items() if name.startswith(LEARNED))
        for number, (_, weight) in enumerate(learned):
            weight.copy_(torch.as_tensor(wave(*weight.shape, scale=2.0, start=float(number))))
    return model


def answers_of(model: SnefyLDL, X: Any) -> dict[str, Any]:
    """What the distributions of some rows answer."""
    dist = model.predict_dist(X)
    return {
        "mean": dist.mean,
        "covariance": dist.covariance_matrix,
        "quantiles": dist.quantiles(list(LEVELS)),
        "greater": dist.prob_greater(0, 1),
    }


@cache
def table() -> dict[str, dict[str, Any]]:
    """The cases: features and answers, by kind."""
    content = json.loads(FILE.read_text(encoding="utf-8"))
    return {kind: {name: np.array(values) for name, values in case.items()} for kind, case in content.items()}


def write() -> None:
    """Write the table."""
    X = wave(4, 3, scale=1.5, start=3.0).round(3)
    cases = {kind: {"X": X} | answers_of(model_of(kind), X) for kind in KINDS}
    lines = [
        f'"{kind}": ' + json.dumps({name: np.asarray(values).round(9).tolist() for name, values in case.items()})
        for kind, case in cases.items()
    ]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    write()
