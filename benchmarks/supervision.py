"""Few labels and noisy labels: what rows without labels and a model of the noise are worth.

    SNEFY_LDL_DATA=... python benchmarks/supervision.py            # writes results/supervision.json and supervision.md

Few labels: at most 1,000 rows, 70 % to train, of which 5, 10 or 20 % keep their labels; KL of the test rows, paired
over splits. Noisy labels: at most 800 rows whose label distributions are replaced by the mean of n votes drawn from
them; KL of what was recovered from the true ones. Times are CPU seconds of one thread.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import warnings
from pathlib import Path

import numpy as np
from scipy.stats import t as student

os.environ.setdefault("OMP_NUM_THREADS", "1")
RESULTS = Path(__file__).parent / "results"
FEW = (("sjaffe", "sbu_3dfe", "movie"), (0.05, 0.1, 0.2), 5)
NOISY = (("sjaffe", "sbu_3dfe", "movie", "natural_scene"), (5, 20, 100), 3)


def few_labels(name: str, part: float, seed: int) -> dict[str, dict]:
    from snefy_ldl import SnefyLDL, load_dataset
    from snefy_ldl.learners import SABFGS
    from snefy_ldl.learners.supervision import SemiSnefyLDL
    from snefy_ldl.metrics import kl_divergence

    ds = load_dataset(name)
    rows = np.random.default_rng(seed).permutation(len(ds.X))[:1000]
    train, test = np.split(rows, [int(0.7 * len(rows))])
    known, rest = np.split(train, [max(8, round(part * len(train)))])
    models = {
        "SnefyLDL, labels alone": (SnefyLDL(random_state=seed, device="cpu"), False),
        "SemiSnefyLDL": (SemiSnefyLDL(random_state=seed), True),
        "SABFGS, labels alone": (SABFGS(), False),
    }
    answers = {}
    for title, (model, more) in models.items():
        started = time.process_time()
        arguments = (ds.X[known], ds.D[known], ds.X[rest]) if more else (ds.X[known], ds.D[known])
        P = np.asarray(model.fit(*arguments).predict(ds.X[test]))
        answers[title] = {"kl": kl_divergence(ds.D[test], P), "seconds": time.process_time() - started}
    return answers


def noisy_labels(name: str, votes: int, seed: int) -> dict[str, dict]:
    from snefy_ldl import load_dataset
    from snefy_ldl.learners import SABFGS
    from snefy_ldl.learners.supervision import LabelCalibrator
    from snefy_ldl.metrics import kl_divergence

    ds = load_dataset(name)
    random = np.random.default_rng(seed)
    rows = random.permutation(len(ds.X))[:800]
    X, D = ds.X[rows], ds.D[rows]
    counts = random.multinomial(votes, D)
    noisy = counts / votes
    n_labels = D.shape[1]
    answers = {"as observed, half a vote a label more": ((counts + 0.5) / (votes + 0.5 * n_labels), 0.0)}
    for title, model in {
        "SABFGS, fitted rows": SABFGS(),
        "LabelCalibrator": LabelCalibrator(votes=votes, random_state=seed),
        "LabelCalibrator, votes unknown": LabelCalibrator(random_state=seed),
    }.items():
        started = time.process_time()
        model.fit(X, noisy)
        P = np.asarray(model.transform() if hasattr(model, "transform") else model.predict(X))
        answers[title] = (P, time.process_time() - started)
    return {title: {"kl": kl_divergence(D, P), "seconds": s} for title, (P, s) in answers.items()}


def interval(gaps) -> str:
    """Mean of paired gaps with a 95 % interval by Student's t."""
    gaps = np.asarray(gaps)
    half = student.ppf(0.975, len(gaps) - 1) * gaps.std(ddof=1) / len(gaps) ** 0.5 if len(gaps) > 1 else np.nan
    return f"{gaps.mean():+.4f} [{gaps.mean() - half:+.4f}, {gaps.mean() + half:+.4f}]"


def report(records: dict) -> str:
    lines = ["# Few labels and noisy labels", "", "`benchmarks/supervision.py`, CPU seconds of one thread.", ""]
    lines += ["## Few labels", "", "KL of test rows, mean over splits; differences to the same learner on the labelled"]
    lines += ["rows alone, paired, with 95 % intervals (below zero: rows without labels help).", ""]
    lines += ["| set | labelled | SnefyLDL | SemiSnefyLDL | difference | SABFGS | s |"]
    lines += ["|---" * 7 + "|"]
    for name in FEW[0]:
        for part in FEW[1]:
            runs = [v for k, v in records.items() if k.startswith(f"few/{name}/{part}/")]
            if not runs:
                continue
            kl = {title: np.array([run[title]["kl"] for run in runs]) for title in runs[0]}
            own, semi, plain = (kl[title] for title in kl)
            seconds = np.mean([run["SemiSnefyLDL"]["seconds"] for run in runs])
            lines.append(
                f"| {name} | {part:.0%} | {own.mean():.4f} | {semi.mean():.4f} | {interval(semi - own)} | "
                f"{plain.mean():.4f} | {seconds:.1f} |"
            )
    lines += ["", "## Noisy labels", "", "KL of the recovered from the true label distributions, mean over splits.", ""]
    titles: list[str] = []
    for name in NOISY[0]:
        for votes in NOISY[1]:
            runs = [v for k, v in records.items() if k.startswith(f"noisy/{name}/{votes}/")]
            if not runs:
                continue
            if not titles:
                titles = list(runs[0])
                lines += ["| set | votes | " + " | ".join(titles) + " | s |", "|---" * (len(titles) + 3) + "|"]
            means = [np.mean([run[title]["kl"] for run in runs]) for title in titles]
            shown = [f"**{m:.4f}**" if m == min(means) else f"{m:.4f}" for m in means]
            seconds = np.mean([run["LabelCalibrator"]["seconds"] for run in runs])
            lines.append(f"| {name} | {votes} | " + " | ".join(shown) + f" | {seconds:.1f} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", nargs="*", default=["few", "noisy"])
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--suffix", default="")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    file = RESULTS / f"supervision{arguments.suffix}.json"
    records = json.loads(file.read_text()) if file.exists() else {}
    for task in arguments.tasks:
        sets, values, n_seeds = FEW if task == "few" else NOISY
        for name in sets:
            for seed in range(arguments.first, arguments.first + n_seeds):
                for value in values:
                    key = f"{task}/{name}/{value}/{seed}"
                    if key in records:
                        continue
                    records[key] = (few_labels if task == "few" else noisy_labels)(name, value, seed)
                    file.write_text(json.dumps(records, indent=0) + "\n")
                    print(key, {t: round(a["kl"], 4) for t, a in records[key].items()}, flush=True)
    (RESULTS / f"supervision{arguments.suffix}.md").write_text(report(records))


if __name__ == "__main__":
    main()
