"""Ratings in five grades (KonIQ-10k): ordinal losses and heads beside the maximum entropy model and the density.

    SNEFY_LDL_DATA=... python benchmarks/ordinal.py        # writes results/ordinal.md

Shares are the raters' votes divided by their number. Times are CPU seconds.
"""

from __future__ import annotations

import os
import time
import warnings
from pathlib import Path

import numpy as np

os.environ.setdefault("OMP_NUM_THREADS", "1")
RESULTS = Path(__file__).parent / "results"
MEASURES = {
    "CAD": "cumulative_absolute_distance",
    "RPS": "ranked_probability_score",
    "QFD": "quadratic_form_distance",
    "CJS": "cumulative_jensen_shannon",
    "KL": "kl_divergence",
    "Cheby": "chebyshev",
}
SPLITS, TRAIN, TEST = 3, 1000, 5000


def learners():
    from snefy_ldl import SnefyLDL
    from snefy_ldl.learners import SABFGS, OrdinalLDL, TreesLDL

    made = {"SABFGS": SABFGS(), "TreesLDL": TreesLDL(random_state=0)}
    for loss in ("cad", "emd", "cjs"):
        made[f"OrdinalLDL({loss})"] = OrdinalLDL(loss)
    for loss in ("kl", "cad", "emd"):
        made[f"OrdinalLDL({loss}, unimodal)"] = OrdinalLDL(loss, "unimodal")
    return {**made, "SnefyLDL": SnefyLDL(random_state=0)}


def main() -> None:
    from snefy_ldl import metrics

    folder = Path(os.environ["SNEFY_LDL_DATA"]) / "votes" / "KonIQ10k"
    X, counts = np.load(folder / "features.npy").astype(float), np.load(folder / "counts.npy").astype(float)
    D = counts / counts.sum(axis=1, keepdims=True)
    scores: dict[str, list[list[float]]] = {}
    for seed in range(SPLITS):
        rows = np.random.default_rng(seed).permutation(len(X))
        train, test = rows[:TRAIN], rows[TRAIN : TRAIN + TEST]
        for name, model in learners().items():
            started = time.process_time()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                P = np.asarray(model.fit(X[train], D[train]).predict(X[test]))
            seconds = time.process_time() - started
            row = [getattr(metrics, measure)(D[test], P) for measure in MEASURES.values()]
            scores.setdefault(name, []).append([*row, seconds])
            print(seed, name, np.round(scores[name][-1], 4), flush=True)
    means = {name: np.mean(values, axis=0) for name, values in scores.items()}
    best = np.min(list(means.values()), axis=0)
    lines = [
        "# Ratings in five grades: KonIQ-10k",
        "",
        f"`benchmarks/ordinal.py`: {TRAIN} rows to train, {TEST} to test, mean of {SPLITS} splits; lower is better.",
        "CPU seconds a fit, one thread of a shared machine.",
        "",
        "| learner | " + " | ".join(MEASURES) + " | s |",
        "|---" * (len(MEASURES) + 2) + "|",
    ]
    for name, row in means.items():
        cells = [f"**{v:.4f}**" if v == b else f"{v:.4f}" for v, b in zip(row[:-1], best)]
        lines.append(f"| {name} | " + " | ".join(cells) + f" | {row[-1]:.2f} |")
    (RESULTS / "ordinal.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
