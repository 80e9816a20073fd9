"""Held-out likelihood and mean prediction on the paper's four data sets, one member and six, and the worst rows.

    SNEFY_LDL_DATA=... python benchmarks/accuracy.py

A random half trains (Movie: 500 rows), the rest tests; nothing is chosen on test rows. The tail compares the mean log
likelihood of the 1 % worst test rows with that of one Dirichlet fitted to the training labels.
"""

from __future__ import annotations

import argparse
import time
import warnings

import numpy as np
import torch

from common import machine, markdown, write
from snefy_ldl import SnefyLDL, load_dataset
from snefy_ldl.metrics import kl_divergence
from snefy_ldl.networks.net import fit_dirichlet

NAMES = {"sbu_3dfe": None, "sjaffe": None, "natural_scene": None, "movie": 500}
#: Recipe and members of each row; the paper's model with raw and with standardised features.
RECIPES = (("default", 1), ("default", 6), ("raw", 1), ("standard", 1))


def worst(values: np.ndarray) -> float:
    """Mean of the 1 % lowest."""
    return float(np.sort(values)[: max(1, len(values) // 100)].mean())


def dirichlet_log_prob(train: np.ndarray, test: np.ndarray) -> np.ndarray:
    """One Dirichlet, fitted by maximum likelihood to the training labels, at the test labels."""
    shares = torch.as_tensor(train)
    alpha = fit_dirichlet(shares)
    return torch.distributions.Dirichlet(alpha).log_prob(torch.as_tensor(test)).numpy()


def run(name: str, rows: int | None, n_members: int, seed: int, recipe: str) -> dict[str, float]:
    data = load_dataset(name)
    order = np.random.default_rng(seed).permutation(len(data.X))
    half = rows or len(order) // 2
    train, test = order[:half], order[half:]
    start = time.perf_counter()
    model = (
        SnefyLDL(n_members=n_members, random_state=seed)
        if recipe == "default"
        else SnefyLDL.paper("conformal", scaling=recipe, n_members=n_members, random_state=seed)
    )
    model.fit(data.X[train], data.D[train])
    seconds = time.perf_counter() - start
    log_p = model.log_prob(data.X[test], data.D[test])
    policy = model.zero_policy_
    single = dirichlet_log_prob(policy.apply(data.D[train]), policy.apply(data.D[test]))
    return {
        "nll": -log_p.mean(),
        "kl": kl_divergence(data.D[test], model.predict(data.X[test])),
        "tail": worst(log_p) - worst(single),
        "finite": bool(np.isfinite(log_p).all()),
        "seconds": seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--names", nargs="*", default=list(NAMES))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    rows, raw = [], []
    for name in arguments.names:
        for recipe, n_members in RECIPES:
            runs = [run(name, NAMES[name], n_members, seed, recipe) for seed in range(arguments.seeds)]
            raw.append({"data": name, "recipe": recipe, "members": n_members, "runs": runs})
            mean = {key: float(np.mean([r[key] for r in runs])) for key in runs[0]}
            rows.append(
                {
                    "data": name,
                    "recipe": recipe,
                    "members": n_members,
                    "test NLL": f"{mean['nll']:.3f}",
                    "test KL": f"{mean['kl']:.4f}",
                    "1 % worst rows": f"{mean['tail']:+.2f} (worst seed {min(r['tail'] for r in runs):+.2f})",
                    "fit s": f"{mean['seconds']:.1f}",
                }
            )
            print(rows[-1], flush=True)
    facts = {"machine": machine(1), "runs": raw}
    text = (
        "# Held-out likelihood and mean prediction\n\n"
        f"`SNEFY_LDL_DATA=... python benchmarks/accuracy.py`, one thread, {arguments.seeds} random splits, means. NLL "
        "is the mean negative log density of the test labels (nats, lower is better); KL compares the mean prediction "
        "with them. The last but one column is how much higher (+) the mean log likelihood of the 1 % worst test rows "
        f"lies than that of one Dirichlet fitted to the training labels; -3 is the limit.\n\n{markdown(rows)}\n"
    )
    write("accuracy", facts, text)


if __name__ == "__main__":
    main()
