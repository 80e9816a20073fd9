"""Do intervals of effects contain the true effects as often as they state?

    python benchmarks/effects.py            # some minutes; results/effects.json and .md
    python benchmarks/effects.py --quick    # fewer tables, to see that it runs

Tables are drawn from known models, so every average effect of a step or of another level is known. The model that is
explained is the truth itself: intervals do not depend on it, and its own effects are the true ones.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch and NumPy are loaded

import numpy as np
from scipy.special import softmax

from common import machine, markdown, write
from snefy_ldl.datasets import make_city_districts
from snefy_ldl.datasets.grouping import split_rows
from snefy_ldl.explain import effects

LEVEL, ROWS, TABLES = 0.9, (60, 200, 1000), 100
#: Rows over which effects are averaged, rows of a group, and the spread of the noise of log-ratios.
AVERAGED, GROUP_ROWS, NOISE = 100, 10, 0.6


class LogRatios:
    """Log-ratios that depend on three numbers in mixed units and one yes-or-no column, with normal noise."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.noise = NOISE * np.random.default_rng(0).normal(size=(300, 3))
        if kind == "grouped":
            self.noise = self.noise + 0.5 * np.random.default_rng(1).normal(size=(300, 3))

    def scores(self, X: Any) -> Any:
        a, b, c, d = X[:, 0], X[:, 1] / 10 - 5, X[:, 2] / 100, X[:, 3]
        if self.kind == "curved":
            return np.stack([0.8 * np.tanh(a) - 0.2 * b * (a > 0), 0.3 * b + 0.2 * b**2, 0.5 * d * np.tanh(c)], 1)
        return np.stack([0.5 * a - 0.2 * b, 0.3 * b + 0.3 * d, -0.4 * c], 1)

    def predict(self, X: Any) -> Any:
        X = split_rows(X)[0]
        return softmax(self.scores(X)[:, None] + self.noise, axis=-1).mean(1)

    def draw(self, n: int, rng: np.random.Generator) -> tuple[Any, Any, Any]:
        groups = np.arange(n) // GROUP_ROWS if self.kind == "grouped" else None
        a = rng.normal(size=n)
        if groups is not None:  # half of the first column is the group's
            a = np.sqrt(0.5) * (a + rng.normal(size=groups.max() + 1)[groups])
        X = np.column_stack([a, 50 + 4 * a + 10 * rng.normal(size=n), 100 * rng.normal(size=n), rng.random(n) < 0.4])
        noise = NOISE * rng.normal(size=(n, 3))
        if groups is not None:
            noise += 0.5 * rng.normal(size=(groups.max() + 1, 3))[groups]
        return X, softmax(self.scores(X) + noise, axis=-1), groups


class City:
    """The synthetic city districts: skewed features and mixtures of Dirichlet distributions."""

    def predict(self, X: Any) -> Any:
        return self.truth.mean(np.asarray(X))

    def draw(self, n: int, rng: np.random.Generator) -> tuple[Any, Any, Any]:
        city = make_city_districts(n=n, random_state=int(rng.integers(2**31)))
        self.truth = city.truth
        return city.X, city.D, None


#: What the tables are, and the truth behind them; steps are one standard deviation, in the city half of one.
KINDS = {
    "straight log-ratios": (lambda: LogRatios("straight"), 1.0),
    "curves and products": (lambda: LogRatios("curved"), 1.0),
    "rows in groups of ten": (lambda: LogRatios("grouped"), 1.0),
    "city districts": (City, 0.5),
}


def measure(kind: str, n: int, tables: int) -> dict[str, Any]:
    """Coverage and width over tables of one kind and size."""
    make, size = KINDS[kind]
    covered, widths, started = [], [], time.perf_counter()
    for table in range(tables):
        truth = make()
        X, D, groups = truth.draw(n, np.random.default_rng([table, n]))
        step = {number: float(size * X[:, number].std()) for number in range(X.shape[1])}
        found = effects(truth, X, None, D, step=step, max_rows=AVERAGED, groups=groups)
        entries = found.entries
        covered.append(np.mean([not one.is_outside for one in entries]))
        widths.append(np.mean([one.conf_high - one.conf_low for one in entries]))
    return {
        "truth": kind,
        "rows": n,
        "coverage": round(float(np.mean(covered)), 3),
        "standard error": round(float(np.std(covered, ddof=1) / np.sqrt(tables)), 3),
        "width, points": round(100 * float(np.mean(widths)), 1),
        "seconds": round((time.perf_counter() - started) / tables, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    tables = 4 if parser.parse_args().quick else TABLES
    facts = machine(1)
    rows = []
    for kind in KINDS:
        for n in ROWS:
            rows.append(measure(kind, n, tables))
            print(rows[-1], flush=True)
    text = f"""# Intervals of effects

`python benchmarks/effects.py` ({facts["processor"]}, one thread). {LEVEL:.0%} intervals of `effects(model, X, D=D)` on
{tables} made-up tables each: four or five columns, three labels, all steps and labels counted. The true effects are
known. Standard errors are over tables.

{markdown(rows)}

With 60 rows in groups of ten there are six groups.
"""
    write("effects", facts | {"rows": rows, "level": LEVEL, "tables": tables}, text)


if __name__ == "__main__":
    main()
