"""The study of active_study.py with a forest in place of the model: seconds per curve on one core.

    python benchmarks/active_forests.py curves --out study --splits 0 5     # to choose the kernel; 5 to 19 report
    python benchmarks/active_forests.py oracle --out study     # 50 random batches, the best of them without luck
    python benchmarks/active_forests.py report --out study

Start 64, four batches of 96, 50 extremely randomised trees; ``bait`` on what each tree predicts (the library's trees
kernel), and ``bait root`` on square roots of that, whose squared distances follow the KL divergence. The
oracle takes the best batch by half of the test rows, grows it anew with other seeds, and measures it on the other half.
What was made is kept in the folder and not made again.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from sklearn.ensemble import ExtraTreesRegressor

from active_study import POOLS, START, area_under_curve, jackknife, labels_saved, paired_interval, read, rel_entr
from active_study import split_rows as rows_of_split
from snefy_ldl._internal.files import write_json
from snefy_ldl.active.batches import bait

SIZE, BATCHES, TREES, WIDTH = 96, 4, 50, 96
STRATEGIES = ("random", "bait", "bait root")
ORACLE_BATCHES, ORACLE_SEEDS = 50, 20


class Forest:
    def __init__(self, X, D, seed):
        options = {"min_samples_leaf": 2, "max_features": 0.5, "bootstrap": True}
        self.trees = ExtraTreesRegressor(TREES, random_state=seed, **options).fit(X.astype(np.float32), D).estimators_

    def each(self, X):
        """What each tree predicts (trees, rows, labels)."""
        X = np.ascontiguousarray(X, dtype=np.float32)
        return np.stack([tree.tree_.predict(X).reshape(len(X), -1) for tree in self.trees])

    def kl(self, X, D):
        return rel_entr(D, np.maximum(self.each(X).mean(0), 1e-12)).sum(1)

    def features(self, X, random, power):
        """The trees' predictions, or their roots, less their mean, projected."""
        roots = self.each(X) ** power
        projections = random.standard_normal((len(roots), roots.shape[2], WIDTH)) / np.sqrt(len(roots) * WIDTH)
        return np.einsum("tnl,tlw->nw", roots - roots.mean(0), projections, optimize=True).astype(np.float32)


def curve(data, split, name):
    """Mean KL of test rows after each batch."""
    X, D = read(data)
    pool, test = rows_of_split(len(D), split)
    labeled, heights = pool[:START], []
    for step in range(BATCHES + 1):
        forest = Forest(X[labeled], D[labeled], split)
        heights.append(float(forest.kl(X[test], D[test]).mean()))
        free, seed = np.setdiff1d(pool, labeled), 100 * split + step
        if name == "random":
            rows = np.random.RandomState(seed).choice(len(free), SIZE, replace=False)
        else:
            power = 0.5 if name == "bait root" else 1.0
            Z = forest.features(X[np.concatenate([free, labeled])], np.random.default_rng(seed), power)
            rows = bait(Z[: len(free)], SIZE, Z[len(free) :])[0]
        labeled = np.concatenate([labeled, free[rows]])
    return heights


def oracle(data, split):
    """KL by both halves of the test rows after each random batch, then after the best one with new seeds."""
    X, D = read(data)
    pool, test = rows_of_split(len(D), split)
    half, scores = len(test) // 2, []
    for number in range(ORACLE_BATCHES + ORACLE_SEEDS):
        batch = number if number < ORACLE_BATCHES else int(np.argmin([one[0] for one in scores[:ORACLE_BATCHES]]))
        rows = np.random.default_rng([split, batch]).choice(pool[START:], SIZE, replace=False)
        rows = np.concatenate([pool[:START], rows])
        kl = Forest(X[rows], D[rows], number).kl(X[test], D[test])
        scores.append([float(kl[:half].mean()), float(kl[half:].mean())])
    return scores


def report(found):
    n = START + SIZE * np.arange(BATCHES + 1)
    print("| pool | strategy | splits | KL, % less random | labels saved, % |", "|---" * 5 + "|", sep="\n")
    for data, name, splits in ((d, who, s) for d in POOLS for who in STRATEGIES[1:] for s in (range(5), range(5, 20))):
        both = [s for s in splits if f"{data}|{s}|{name}" in found and f"{data}|{s}|random" in found]
        if len(both) > 1:
            mine, other = (np.array([found[f"{data}|{s}|{who}"] for s in both]) for who in (name, "random"))
            areas = area_under_curve(n, mine), area_under_curve(n, other)
            unit = 0.01 * areas[1].mean()
            mean, width = paired_interval(areas[0] / unit, areas[1] / unit)
            saved, error = jackknife(lambda a, b: 100.0 * labels_saved(n, a, b), mine, other)
            told = f"{len(both)}{' (choosing)' if splits[0] == 0 else ''}"
            print(f"| {data} | {name} | {told} | {mean:+.1f} ± {width:.1f} | {saved:+.0f} ± {error:.0f} |")
    print("\n| pool | spread of 50 batches, % | best of 50, % | without luck, % |", "|---" * 4 + "|", sep="\n")
    for data in POOLS:
        kept = [100.0 * _won(np.array(found[key])) for key in found if key.startswith(f"{data}|") and "oracle" in key]
        if kept:
            spread, best, real = np.mean(kept, axis=0)
            error = np.std([one[2] for one in kept], ddof=1) / len(kept) ** 0.5 if len(kept) > 1 else float("nan")
            print(f"| {data} ({len(kept)} splits) | {spread:.1f} | {best:+.1f} | {real:+.1f} ± {error:.1f} |")


def _won(scores):
    tried, again = scores[:ORACLE_BATCHES], scores[ORACLE_BATCHES:, 1]
    whole, level = tried.mean(1), tried[:, 1].mean()
    return np.array([whole.std() / whole.mean(), whole.min() / whole.mean() - 1.0, again.mean() / level - 1.0])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["curves", "oracle", "report"])
    parser.add_argument("--out", required=True)
    parser.add_argument("--splits", type=int, nargs=2, default=[5, 20])
    args = parser.parse_args()
    torch.set_num_threads(1)
    folder = Path(args.out)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{'oracle' if args.command == 'oracle' else 'curves'}.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    if args.command == "report":
        other = folder / "oracle.json"
        return report(found | (json.loads(other.read_text()) if other.exists() else {}))
    for split in range(*args.splits):
        for data in POOLS:
            for name in ["oracle"] if args.command == "oracle" else STRATEGIES:
                key = f"{data}|{split}|{name}"
                if key not in found:
                    found[key] = oracle(data, split) if name == "oracle" else curve(data, split, name)
                    write_json(path, found)


if __name__ == "__main__":
    main()
