"""Simulated annotators: learn from their votes, update items, and choose where the next votes go.

python examples/votes.py [folder for the pictures]
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np

from snefy_ldl import SnefyLDL, plots
from snefy_ldl.datasets import make_annotators
from snefy_ldl.plots.votes import plot_calibration
from snefy_ldl.votes import Votes, calibrate_counts, evaluate, next_vote, update


def rounds(model, X, hidden, choose, n_rounds=40, seed=0):
    """Votes per item and share of items whose most frequent label is still wrong, after each round of votes."""
    rng = np.random.default_rng(seed)
    seen, size = np.zeros_like(hidden), len(hidden) // 10
    spent, wrong = [], []
    for number in range(n_rounds):
        rows = choose(seen, number, size)
        for row in rows:
            seen[row] += rng.multinomial(1, hidden[row])
        mean = update(model, X, seen).mean.numpy()
        spent.append(seen.sum() / len(hidden))
        wrong.append(float((mean.argmax(1) != hidden.argmax(1)).mean()))
    return spent, wrong


def main(folder: Path) -> None:
    """Fit, score, draw."""
    folder.mkdir(parents=True, exist_ok=True)
    data = make_annotators(n=900, n_labels=3, votes=(1, 12), long_table=True, random_state=0)
    votes = Votes.from_long(data.votes)
    print(votes.agreement(), *votes.preflight(), sep="\n")
    train, test = slice(0, 600), slice(600, 900)
    model = SnefyLDL(random_state=0).fit(data.X[train], counts=votes.counts[train])
    before, after = model.predict_dist(data.X[test]), update(model, data.X[test], votes.counts[test])
    for name, value in evaluate(before, votes.counts[test]).items():
        print(f"{name:20s} {value:.4f}")

    figure, axes = plt.subplots(1, 3, figsize=(15, 4))
    row = int(votes.counts[test].sum(1).argmax())
    both = [before[row : row + 1], after[row : row + 1]]
    ends, means = (np.concatenate(parts) for parts in zip(*((d.quantiles([0.05, 0.95]), d.mean) for d in both)))
    names = ["features", "and votes"]
    plots.intervals(ends, mean=means, labels=votes.label_names, row_names=names, ax=axes[0])
    plot_calibration(calibrate_counts(before, votes.counts[test]), ax=axes[1])
    X, hidden = data.X[test], data.latent[test]
    order = np.random.default_rng(1).permutation(len(X))
    curves = {
        "next_vote": rounds(model, X, hidden, lambda seen, number, size: next_vote(model, X, seen, size)),
        "uniform": rounds(
            model, X, hidden, lambda seen, number, size: order[np.arange(number * size, (number + 1) * size) % len(X)]
        ),
    }
    for name, (numbers, wrong) in curves.items():
        axes[2].plot(numbers, wrong, label=name)
    axes[2].set(xlabel="votes per item", ylabel="most frequent label wrong")
    axes[2].legend()
    figure.tight_layout()
    figure.savefig(folder / "votes.png", dpi=120)
    print(f"picture: {folder / 'votes.png'}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
