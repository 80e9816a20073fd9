"""Shares that are not known: WInLDL, a fit to completed rows, and the exact likelihood of what is known.

    SNEFY_LDL_DATA=... python benchmarks/incomplete.py        # writes results/incomplete.md

Of the training shares 10 to 90 % are hidden at random; every row keeps one. Test rows are whole.
Times are CPU seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import warnings
from pathlib import Path

import numpy as np

os.environ.setdefault("OMP_NUM_THREADS", "1")
RESULTS = Path(__file__).parent / "results"
SETS, PARTS, ROWS = ("sjaffe", "sbu_3dfe", "yeast_spo5", "movie"), (0.1, 0.3, 0.5, 0.7, 0.9), 800


class Completed:
    """SA-BFGS on rows whose unknown shares divide the rest evenly: what a user does without a method."""

    def fit(self, X, D):
        from snefy_ldl._internal.validation import check_distributions
        from snefy_ldl.learners import SABFGS

        D, _ = check_distributions(D, missing=True)
        gaps = np.isnan(D)
        rest = 1.0 - np.nansum(D, axis=1, keepdims=True)
        self.model = SABFGS().fit(X, np.where(gaps, rest / np.maximum(gaps.sum(axis=1, keepdims=True), 1), D))
        return self

    def predict(self, X):
        return self.model.predict(X)


def learners(seed: int):
    from snefy_ldl import SnefyLDL
    from snefy_ldl.learners import WInLDL

    return {
        "WInLDL": WInLDL(),
        "SABFGS, rest spread evenly": Completed(),
        "SnefyLDL, exact likelihood": SnefyLDL(random_state=seed),
    }


def hide(D, part: float, seed: int):
    random = np.random.default_rng(seed)
    hidden = random.random(D.shape) < part
    hidden[np.arange(len(D)), random.integers(0, D.shape[1], len(D))] = False
    return np.where(hidden, np.nan, D)


def main() -> None:
    from snefy_ldl import load_dataset
    from snefy_ldl.metrics import cosine, kl_divergence

    parser = argparse.ArgumentParser()
    parser.add_argument("--sets", nargs="*", default=list(SETS))
    parser.add_argument("--seeds", type=int, default=2)
    options = parser.parse_args()
    file = RESULTS / "incomplete.json"
    records = json.loads(file.read_text()) if file.exists() else []
    done = {(r["set"], r["part"], r["seed"], r["learner"]) for r in records}
    for name in options.sets:
        ds = load_dataset(name)
        for seed in range(options.seeds):
            rows = np.random.default_rng(seed).permutation(len(ds.X))[:ROWS]
            train, test = rows[: len(rows) // 2], rows[len(rows) // 2 :]
            for part in PARTS:
                D = hide(ds.D[train], part, seed)
                for learner, model in learners(seed).items():
                    if (name, part, seed, learner) in done:
                        continue
                    started = time.process_time()
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        P = np.asarray(model.fit(ds.X[train], D).predict(ds.X[test]))
                    record = {"set": name, "part": part, "seed": seed, "learner": learner}
                    record["seconds"] = time.process_time() - started
                    record["kl"], record["cosine"] = kl_divergence(ds.D[test], P), cosine(ds.D[test], P)
                    records.append(record)
                    print(record, flush=True)
            file.write_text(json.dumps(records, indent=0))
    (RESULTS / "incomplete.md").write_text(report(records))


def report(records) -> str:
    lines = [
        "# Unknown shares: KL of whole test rows, by the part of the training shares that is hidden",
        "",
        "`benchmarks/incomplete.py`: at most 800 rows a set, half of them to train, mean over splits; one thread of a",
        "shared machine, CPU seconds a fit.",
        "",
    ]
    for name in dict.fromkeys(r["set"] for r in records):
        mine = [r for r in records if r["set"] == name]
        n_seeds = len({r["seed"] for r in mine})
        lines += [
            f"## {name} ({n_seeds} splits)",
            "",
            "| learner | " + " | ".join(f"{p:.0%}" for p in PARTS) + " | s |",
        ]
        lines.append("|---" * (len(PARTS) + 2) + "|")
        best = {p: min(mean(mine, learner, p, "kl") for learner in learners(0)) for p in PARTS}
        for learner in learners(0):
            cells = [mean(mine, learner, p, "kl") for p in PARTS]
            shown = [f"**{c:.4f}**" if c == best[p] else f"{c:.4f}" for c, p in zip(cells, PARTS)]
            seconds = np.mean([mean(mine, learner, p, "seconds") for p in PARTS])
            lines.append(f"| {learner} | " + " | ".join(shown) + f" | {seconds:.2f} |")
        lines.append("")
    return "\n".join(lines)


def mean(records, learner: str, part: float, what: str) -> float:
    values = [r[what] for r in records if r["learner"] == learner and r["part"] == part]
    return float(np.mean(values)) if values else float("nan")


if __name__ == "__main__":
    main()
