"""Data and rival models of the benchmarks on votes.

Data: the folders LIDC, ChaosNLI_SNLI and KonIQ10k (features.npy, counts.npy; LIDC also rows.csv) under ``votes`` in the
folder that SNEFY_LDL_DATA names; POPQUORN's ratings under ``annotators``.
LIDC is split by study, so that no patient is on both sides.

Rivals see the same features through the same backbone with the same optimiser, and keep the best of four settings
(scaling, weight decay) by their validation likelihood; SnefyLDL chooses its scaling alone.
"""

from __future__ import annotations

import csv
import os
import time
import warnings
from pathlib import Path

import numpy as np
import torch
from scipy.special import gammaln, xlogy
from torch import nn

from snefy_ldl import SnefyLDL
from snefy_ldl.datasets import make_annotators
from snefy_ldl.errors import LabelWarning
from snefy_ldl.metrics import cumulative_absolute_distance, ranked_probability_score
from snefy_ldl.networks.backbones import column_moments, scaling_of
from snefy_ldl.votes import evaluate
from snefy_ldl.votes.held_out import brier_score, log_likelihood

TRAIN_SHARE = 0.7


# -- data ------------------------------------------------------------------------------------------------------------


def load(name, tiny=False):
    """Features, counts and the group each row belongs to."""
    if name == "annotators":
        data = make_annotators(n=400 if tiny else 1500, n_labels=4, votes=100, random_state=0)
        return data.X, data.counts, np.arange(len(data.X))
    if name == "POPQUORN":
        X, counts = load_popquorn()
        return (X[:300], counts[:300], np.arange(300)) if tiny else (X, counts, np.arange(len(X)))
    folder = Path(os.environ["SNEFY_LDL_DATA"]) / "votes" / name
    X, counts = np.load(folder / "features.npy").astype(np.float64), np.load(folder / "counts.npy").astype(np.float64)
    groups = np.arange(len(X))
    if name == "LIDC":
        with (folder / "rows.csv").open() as file:
            studies = [row["StudyInstanceUID"] for row in csv.DictReader(file)]
        groups = np.unique(studies, return_inverse=True)[1]
    if tiny:
        X, counts, groups = X[:300], counts[:300], groups[:300]
    return X, counts, groups


def load_popquorn():
    """Embeddings of the texts and the votes for each of the five ratings."""
    if "VOTES_POPQUORN" in os.environ:
        arrays = np.load(os.environ["VOTES_POPQUORN"])
        return arrays["X"].astype(np.float64), arrays["counts"].astype(np.float64)
    folder = Path(os.environ["SNEFY_LDL_DATA"]) / "annotators" / "POPQUORN_offensiveness"
    with (folder / "text.csv").open() as file:
        place = {row["item"]: number for number, row in enumerate(csv.DictReader(file))}
    counts = np.zeros((len(place), 5))
    with (folder / "votes.csv").open() as file:
        for row in csv.DictReader(file):
            counts[place[row["item"]], int(row["label"]) - 1] += 1.0
    return np.load(folder / "embeddings.npy").astype(np.float64), counts


def split_rows(groups, seed, share=TRAIN_SHARE):
    """Training and test rows, whole groups on one side."""
    names = np.unique(groups)
    order = np.random.default_rng([seed, len(names)]).permutation(names)
    train = np.isin(groups, order[: round(share * len(names))])
    return np.flatnonzero(train), np.flatnonzero(~train)


def draw_votes(counts, n, rng):
    """n of each row's votes, without replacement."""
    return np.stack([rng.multivariate_hypergeometric(row.astype(int), min(n, int(row.sum()))) for row in counts])


# -- models ----------------------------------------------------------------------------------------------------------


class Rival(nn.Module):
    """An MLP with the backbone of SnefyLDL whose L outputs are softmax logits, or log concentrations."""

    def __init__(self, n_features, n_labels, kind):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(n_features, 64), nn.ReLU(), nn.Linear(64, n_labels))
        self.kind = kind

    def log_prob(self, x, k):
        out = self.body(x).double()
        if self.kind == "softmax":
            return (k * torch.log_softmax(out, -1)).sum(-1)
        alpha = out.clamp(-6.0, 10.0).exp()
        total, n = alpha.sum(-1), k.sum(-1)
        ratio = (torch.lgamma(alpha + k) - torch.lgamma(alpha)).sum(-1)
        return ratio + torch.lgamma(total) - torch.lgamma(total + n)

    def mean(self, x):
        out = self.body(x).double()
        return torch.softmax(out if self.kind == "softmax" else out.clamp(-6.0, 10.0), -1)


def fit_rival(kind, X, counts, seed, epochs):
    """The best of four settings by validation likelihood; returns a function from X to (mean, log_prob of counts)."""
    rng = np.random.default_rng([seed, 7])
    order = rng.permutation(len(X))
    held = order[: max(1, round(0.15 * len(X)))]
    rows = order[len(held) :]
    best = (-np.inf, None)
    size = 16 if len(rows) < 200 else 32 if len(rows) < 500 else 64
    for scaling in ("unit", "pooled"):
        centre, scale, limit = scaling_of(*column_moments(X[rows]), scaling)
        x = torch.as_tensor(np.clip((X - np.asarray(centre)) / np.asarray(scale), -limit, limit), dtype=torch.float32)
        k = torch.as_tensor(counts)
        for decay in (1.0, 0.01):
            torch.manual_seed(seed)
            net = Rival(X.shape[1], counts.shape[1], kind)
            optimizer = torch.optim.AdamW(net.parameters(), lr=5e-3, weight_decay=decay)
            steps = max(1, len(rows) // size)
            rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=epochs * steps)
            for _ in range(epochs):
                shuffled = rng.permutation(rows)
                for step in range(steps):
                    batch = shuffled[step * size : (step + 1) * size]
                    optimizer.zero_grad()
                    (-net.log_prob(x[batch], k[batch]).mean()).backward()
                    optimizer.step()
                    rate.step()
                with torch.no_grad():
                    value = float(net.log_prob(x[held], k[held]).mean())
                if value > best[0]:
                    state = {name: part.clone() for name, part in net.state_dict().items()}
                    best = (value, (state, centre, scale, limit))
    state, centre, scale, limit = best[1]
    net = Rival(X.shape[1], counts.shape[1], kind)
    net.load_state_dict(state)

    def predict(new, k):
        z = np.clip((new - np.asarray(centre)) / np.asarray(scale), -limit, limit)
        z = torch.as_tensor(z, dtype=torch.float32)
        with torch.no_grad():
            return net.mean(z).numpy(), net.log_prob(z, torch.as_tensor(k)).numpy()

    return predict


def coefficient(k):
    return gammaln(k.sum(1) + 1.0) - gammaln(k + 1.0).sum(1)


def smoothed(counts, amount):
    table = counts + amount
    return table / table.sum(1, keepdims=True)


def ordinal_figures(mean, point, counts):
    """Ordinal scores against the proportions of the held-out votes: of the mean, and of the point made for CAD."""
    shares = counts / counts.sum(1, keepdims=True)
    figures = {"rps": ranked_probability_score(shares, mean), "cad": cumulative_absolute_distance(shares, point)}
    return figures | {"cad of the mean": cumulative_absolute_distance(shares, mean)}


def fit_and_score(method, X, counts, X_test, k_test, seed, settings, ordinal=False, brief=False):
    """Every figure of one method on held-out votes; the scores of ordered labels if they have an order.

    ``brief`` leaves out what needs more than means and likelihoods: calibration and points for ordered labels. Seconds
    are those of the processor.
    """
    started = time.process_time()
    if method in ("Dirichlet-multinomial", "softmax"):
        predict = fit_rival(method, X, counts, seed, settings["epochs"])
        seconds = time.process_time() - started
        mean, log_p = predict(X_test, k_test)
        log_p = log_p + coefficient(k_test)
        found = {"log_likelihood": float(log_p.mean()), "brier": float(brier_score(mean, k_test).mean())}
        loss = -xlogy(k_test / k_test.sum(1, keepdims=True), mean).sum(1)
        found |= ordinal_figures(mean, mean, k_test) if ordinal else {}
        return found | {"log_loss": float(loss.mean()), "seconds": seconds}
    guides = None if method.endswith("no guides") else "auto"
    model = SnefyLDL(random_state=seed, device="cpu", guides=guides, **settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LabelWarning)
        if method.startswith("counts"):
            model.fit(X, counts=counts)
        elif method == "proportions":
            model.fit(X, counts / counts.sum(1, keepdims=True))
        else:
            model.fit(X, smoothed(counts, float(method.split("+")[1])))
    seconds = time.process_time() - started
    dist = model.predict_dist(X_test)
    if brief:
        mean = dist.mean.numpy()
        found = {"log_likelihood": float(log_likelihood(dist, k_test).mean())}
        found |= {"brier": float(brier_score(mean, k_test).mean())}
        found |= {"rps": ranked_probability_score(k_test / k_test.sum(1, keepdims=True), mean)} if ordinal else {}
        return found | {"seconds": seconds, "inputs": model.inputs_}
    found = evaluate(dist, k_test) | {"seconds": seconds}
    if ordinal:
        found |= ordinal_figures(dist.mean.numpy(), dist.bayes_point("cad").numpy(), k_test)
    return found


METHODS = ("counts", "proportions+0.5", "proportions+0.05", "proportions", "Dirichlet-multinomial", "softmax")
