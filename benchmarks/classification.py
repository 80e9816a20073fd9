"""One label out of a distribution: LDL-HR, LDLM, the maximum entropy model and the density's decision.

    SNEFY_LDL_DATA=... python benchmarks/classification.py        # writes results/classification.md

Accuracy of the largest label, and the mean share of the chosen label (one minus the error probability of the field).
"""

from __future__ import annotations

import os
import time
import warnings
from pathlib import Path

import numpy as np

os.environ.setdefault("OMP_NUM_THREADS", "1")
RESULTS = Path(__file__).parent / "results"
SETS, ROWS, SPLITS = ("sjaffe", "sbu_3dfe", "natural_scene", "movie"), 1000, 2


def decisions(X, D, new):
    from snefy_ldl import SnefyLDL
    from snefy_ldl.learners import LDLHR, LDLM, SABFGS
    from snefy_ldl.learners.classification import LabelDecision

    for learner in (SABFGS(), LDLHR(), LDLM()):
        started = time.process_time()
        chosen = learner.fit(X, D).predict(new).argmax(axis=1)
        yield type(learner).__name__, chosen, time.process_time() - started
    started = time.process_time()
    model = SnefyLDL(random_state=0).fit(X, D)
    seconds = time.process_time() - started
    yield "SnefyLDL, largest mean", model.predict(new).argmax(axis=1), seconds
    chosen = np.asarray(LabelDecision(model).predict(new))
    yield "SnefyLDL, LabelDecision", chosen, time.process_time() - started


def main() -> None:
    from snefy_ldl import load_dataset

    lines = ["# One label out of a distribution", ""]
    lines += [
        f"`benchmarks/classification.py`: at most {ROWS} rows, half to train, mean of {SPLITS} splits; accuracy of"
    ]
    lines += ["the largest label / mean share of the chosen label, higher is better; CPU seconds of the last set.", ""]
    lines += ["| learner | " + " | ".join(SETS) + " | s |", "|---" * (len(SETS) + 2) + "|"]
    cells: dict[str, dict[str, list[tuple[float, float]]]] = {}
    times: dict[str, float] = {}
    for name in SETS:
        ds = load_dataset(name)
        for seed in range(SPLITS):
            rows = np.random.default_rng(seed).permutation(len(ds.X))[:ROWS]
            train, test = rows[: len(rows) // 2], rows[len(rows) // 2 :]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                for learner, chosen, seconds in decisions(ds.X[train], ds.D[train], ds.X[test]):
                    hit = float((chosen == ds.D[test].argmax(axis=1)).mean())
                    share = float(ds.D[test][np.arange(len(test)), chosen].mean())
                    cells.setdefault(learner, {}).setdefault(name, []).append((hit, share))
                    times[learner] = seconds
                    print(name, seed, learner, round(hit, 4), round(share, 4), round(seconds, 2), flush=True)
    for learner, by_set in cells.items():
        shown = ["{:.3f} / {:.3f}".format(*np.mean(by_set[name], axis=0)) for name in SETS]
        lines.append(f"| {learner} | " + " | ".join(shown) + f" | {times[learner]:.1f} |")
    (RESULTS / "classification.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
