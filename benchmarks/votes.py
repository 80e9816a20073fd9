"""Learning from votes: counts against smoothed proportions, against two other count models, and fewer votes by choice.

    python benchmarks/votes.py --splits 10            # resumable: one JSON a data set, study and split
    python benchmarks/votes.py --report               # tables and pictures from what is there
    python benchmarks/votes.py --speed                # a training step on counts against one on proportions
    python benchmarks/votes.py --splits 1 --tiny      # everything once, small, to see that it runs

Data: the folders LIDC, ChaosNLI_SNLI and KonIQ10k (features.npy, counts.npy; LIDC also rows.csv) under ``votes`` in the
folder that SNEFY_LDL_DATA names. LIDC is split by study, so that no patient is on both sides.

Rivals see the same features through the same backbone with the same optimiser, and keep the best of four settings
(scaling, weight decay) by their validation likelihood; SnefyLDL chooses its scaling alone.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import time
import warnings
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from scipy import stats
from scipy.special import gammaln, xlogy
from torch import nn

import common
from snefy_ldl import SnefyLDL
from snefy_ldl.allocation import vote_value
from snefy_ldl.errors import ZeroLabelWarning
from snefy_ldl.scaling import fit_scaling
from snefy_ldl.synthetic import make_annotators
from snefy_ldl.training import Recipe
from snefy_ldl.vote_scores import brier_score, evaluate, noise_ceiling

DATA = ("LIDC", "ChaosNLI_SNLI", "KonIQ10k")
SUBSAMPLED = ("ChaosNLI_SNLI", "KonIQ10k")
SIMULATED = ("ChaosNLI_SNLI", "annotators")
VOTES = (1, 2, 4, 8, 16, 32)
#: Change it when a result file would mean something else: old files are then not reused.
VERSION = 1
TRAIN_SHARE = 0.7
FOLDER = common.RESULTS / "votes"


# -- data ------------------------------------------------------------------------------------------------------------


def load(name, tiny=False):
    """Features, counts and the group each row belongs to."""
    if name == "annotators":
        data = make_annotators(n=400 if tiny else 1500, n_labels=4, votes=100, random_state=0)
        return data.X, data.counts, np.arange(len(data.X))
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


def split_rows(groups, seed):
    """Training and test rows, whole groups on one side."""
    names = np.unique(groups)
    order = np.random.default_rng([seed, len(names)]).permutation(names)
    train = np.isin(groups, order[: round(TRAIN_SHARE * len(names))])
    return np.flatnonzero(train), np.flatnonzero(~train)


def draw_votes(counts, n, rng):
    """n of each row's votes, without replacement."""
    return np.stack([rng.multivariate_hypergeometric(row.astype(int), min(n, int(row.sum()))) for row in counts])


# -- models ----------------------------------------------------------------------------------------------------------


class Rival(nn.Module):
    """An MLP with the backbone of SnefyLDL whose L outputs are softmax logits, or log concentrations."""

    def __init__(self, n_features, n_labels, kind):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(n_features, 64), nn.SiLU(), nn.Linear(64, n_labels))
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
        centre, scale, limit = fit_scaling(X[rows], scaling)
        x = torch.as_tensor(np.clip((X - np.asarray(centre)) / np.asarray(scale), -limit, limit), dtype=torch.float32)
        k = torch.as_tensor(counts)
        for decay in (1.0, 0.01):
            torch.manual_seed(seed)
            net = Rival(X.shape[1], counts.shape[1], kind)
            optimizer = torch.optim.AdamW(net.parameters(), lr=5e-3, weight_decay=decay)
            recipe = Recipe(epochs, size, 5e-3)
            steps = max(1, len(rows) // size)
            for epoch in range(epochs):
                shuffled = rng.permutation(rows)
                for step in range(steps):
                    for group in optimizer.param_groups:
                        group["lr"] = 5e-3 * recipe.rate((epoch * steps + step) / (epochs * steps))
                    batch = shuffled[step * size : (step + 1) * size]
                    optimizer.zero_grad()
                    (-net.log_prob(x[batch], k[batch]).mean()).backward()
                    optimizer.step()
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


def fit_and_score(method, X, counts, X_test, k_test, seed, settings):
    """Every figure of one method on held-out votes."""
    started = time.perf_counter()
    if method in ("Dirichlet-multinomial", "softmax"):
        predict = fit_rival(method, X, counts, seed, settings["epochs"])
        seconds = time.perf_counter() - started
        mean, log_p = predict(X_test, k_test)
        log_p = log_p + coefficient(k_test)
        found = {"log_likelihood": float(log_p.mean()), "brier": float(brier_score(mean, k_test).mean())}
        loss = -xlogy(k_test / k_test.sum(1, keepdims=True), mean).sum(1)
        return found | {"log_loss": float(loss.mean()), "seconds": seconds}
    model = SnefyLDL(random_state=seed, device="cpu", **settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ZeroLabelWarning)
        if method == "counts":
            model.fit(X, counts=counts)
        elif method == "proportions":
            model.fit(X, counts / counts.sum(1, keepdims=True))
        else:
            model.fit(X, smoothed(counts, float(method.split("+")[1])))
    seconds = time.perf_counter() - started
    return evaluate(model.predict_dist(X_test), k_test) | {"seconds": seconds}


METHODS = ("counts", "proportions+0.5", "proportions+0.05", "proportions", "Dirichlet-multinomial", "softmax")


# -- studies ---------------------------------------------------------------------------------------------------------


def settings_of(tiny):
    return {"epochs": 3, "n_neurons": 12, "n_readouts": 6} if tiny else {"epochs": 30}


def study_methods(name, seed, tiny, record, save):
    """Held-out vote likelihood of every method on one split."""
    X, counts, groups = load(name, tiny)
    train, test = split_rows(groups, seed)
    record["rows"] = [len(train), len(test)]
    ceiling = noise_ceiling(counts[test])
    record["ceiling"] = {"brier": ceiling.brier, "log_loss": ceiling.log_loss}
    for method in METHODS:
        if method not in record["found"]:
            found = fit_and_score(method, X[train], counts[train], X[test], counts[test], seed, settings_of(tiny))
            record["found"][method] = found
            save()


def study_subsample(name, seed, tiny, record, save):
    """The same when only a few votes of each training item are seen; the test rows keep all of theirs."""
    X, counts, groups = load(name, tiny)
    train, test = split_rows(groups, seed)
    if len(train) > 2500:
        train = train[:2500]
    for n in VOTES[:2] if tiny else VOTES:
        few = draw_votes(counts[train], n, np.random.default_rng([seed, n])).astype(float)
        for method in METHODS:
            key = f"{method} {n}"
            if key not in record["found"]:
                found = fit_and_score(method, X[train], few, X[test], counts[test], seed, settings_of(tiny))
                record["found"][key] = found
                save()


def study_next_vote(name, seed, tiny, record, save):
    """Replay: votes given out in rounds, uniformly or by value, on items the model was not fitted on.

    Test items start without votes; a round takes one more of an item's real votes, in a random order, for a tenth of
    the items. What is estimated is the proportions of all its votes, and which label is the most frequent.
    """
    if record["found"]:
        return
    X, counts, groups = load(name, tiny)
    train, test = split_rows(groups, seed)
    rng = np.random.default_rng([seed, 3])
    model = SnefyLDL(random_state=seed, device="cpu", **settings_of(tiny)).fit(X[train], counts=counts[train])
    truth = counts[test] / counts[test].sum(1, keepdims=True)
    queue = [rng.permutation(np.repeat(np.arange(counts.shape[1]), row.astype(int))) for row in counts[test]]
    budget = (5 if tiny else 20) * len(test)
    law, curves = model.predict_dist(X[test]), {}
    for how in ("uniform", "variance", "information"):
        curves |= replay(law, truth, queue, how, budget, np.random.default_rng([seed, 5]))
    record["found"] = curves
    save()


GOALS = ("majority wrong", "squared error", "KL divergence")


def accuracy(mean, truth):
    """The three figures of :data:`GOALS`."""
    wrong = float((mean.argmax(1) != truth.argmax(1)).mean())
    divergence = float((xlogy(truth, truth) - xlogy(truth, np.maximum(mean, 1e-12))).sum(1).mean())
    return [wrong, float(np.square(mean - truth).sum(1).mean()), divergence]


def replay(law, truth, queue, how, budget, rng):
    """After every round the votes spent an item and the figures; for uniform rounds also of the votes alone."""
    seen, size = np.zeros_like(truth), len(truth)
    batch = max(1, size // 10)
    mean, value = law.mean.numpy().copy(), np.zeros(size)
    if how != "uniform":
        value = vote_value(law, how)
    curves = {how: []} | ({"uniform, votes alone": []} if how == "uniform" else {})
    lengths, order = np.array([len(votes) for votes in queue]), rng.permutation(size)
    for spent in range(0, budget, batch):
        if how == "uniform":
            rows = order[np.arange(spent, spent + batch) % size]
        else:
            rows = np.argsort(-np.where(seen.sum(1) < lengths, value, -np.inf), kind="stable")[:batch]
        for i in rows[seen[rows].sum(1) < lengths[rows]]:
            seen[i, queue[i][int(seen[i].sum())]] += 1
        after = law_rows(law, rows).posterior(torch.as_tensor(seen[rows]))
        mean[rows] = after.mean.numpy()
        if how != "uniform":
            value[rows] = vote_value(after, how)
        curves[how].append([(spent + batch) / size, *accuracy(mean, truth)])
        if how == "uniform":
            curves["uniform, votes alone"].append([(spent + batch) / size, *accuracy(smoothed(seen, 0.5), truth)])
    return curves


def law_rows(law, rows):
    from snefy_ldl import SnefySimplex

    return SnefySimplex(law.exponents, law.readout, law.log_scale[torch.as_tensor(rows)], validate_args=False)


STUDIES = {"methods": (study_methods, DATA), "subsample": (study_subsample, SUBSAMPLED)}
STUDIES["next"] = (study_next_vote, SIMULATED)


def run_one(study, name, seed, tiny):
    """One study of one data set on one split; goes on from its file."""
    torch.set_num_threads(1)
    folder = FOLDER / "tiny" if tiny else FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{study}-{name}-{seed:03d}.json"
    record = {"version": VERSION, "study": study, "data": name, "seed": seed, "found": {}}
    if path.exists():
        saved = json.loads(path.read_text())
        if saved.get("version") == VERSION:
            record = saved

    def save():
        partial = path.with_suffix(".part")
        partial.write_text(json.dumps(record))
        os.replace(partial, path)

    STUDIES[study][0](name, seed, tiny, record, save)
    return str(path)


# -- speed -----------------------------------------------------------------------------------------------------------


def speed():
    """Median time of a training step on counts and on proportions: n = 64, L = 5, batch 64, up to 110 votes."""
    from snefy_ldl.fitting import Job, TrainingData, build_net, make_target
    from snefy_ldl.training import _Loop

    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2000, 8))
    table = rng.multinomial(rng.integers(93, 111, 2000), rng.dirichlet(np.full(5, 0.7), 2000)).astype(float)
    rows = []
    for standardize, members in (("unit", 1), ("auto", 2)):
        seconds = {}
        for kind in ("proportions", "counts"):
            model = SnefyLDL(random_state=0, standardize=standardize, device="cpu", batch_size=64)
            shares = None if kind == "counts" else smoothed(table, 0.5)
            data = TrainingData(X, shares, table if kind == "counts" else None, None, False)
            job = Job(model, data)
            plan, device = job.plan(), torch.device("cpu")
            net = build_net(plan)
            target, parts = make_target(net, plan, device), [member.split for member in plan]
            seeds = [member.shuffle_seed for member in plan]
            loop = _Loop(net, data.tensor(device), target, parts, job.recipe(), seeds, None, None, None)
            place = iter(range(10**6))

            def step(loop=loop, place=place):
                first = (next(place) % 25) * 64
                loop.index.copy_(loop.train_rows[:, first : first + 64])
                loop.step()

            seconds[kind] = common.median_seconds(step, repeats=200, warm=20)
        rows.append(
            {
                "members": members,
                "proportions, ms": round(1e3 * seconds["proportions"], 2),
                "counts, ms": round(1e3 * seconds["counts"], 2),
                "ratio": round(seconds["counts"] / seconds["proportions"], 2),
            }
        )
    facts = {"machine": common.machine(1), "rows": rows}
    common.write("votes_speed", facts, "# A training step on counts\n\n" + common.markdown(rows))


# -- report ----------------------------------------------------------------------------------------------------------


def records(study, tiny):
    folder = FOLDER / "tiny" if tiny else FOLDER
    found = [json.loads(path.read_text()) for path in sorted(folder.glob(f"{study}-*.json"))]
    return [record for record in found if record.get("version") == VERSION and record["found"]]


def paired(first, second):
    """Mean difference, its standard error over splits, and the p-value of a paired t test."""
    gap = np.asarray(first) - np.asarray(second)
    if len(gap) < 2:
        return float(gap.mean()), float("nan"), float("nan")
    error = gap.std(ddof=1) / np.sqrt(len(gap))
    return float(gap.mean()), float(error), float(stats.ttest_1samp(gap, 0.0).pvalue)


def report(tiny):
    """Tables (Markdown, JSON) and pictures of what is there."""
    text, facts = ["# Learning from votes", ""], {"machine": common.machine(1)}
    done = records("methods", tiny)
    for name in DATA:
        own = [r for r in done if r["data"] == name and set(METHODS) <= set(r["found"])]
        if not own:
            continue
        rows = []
        counts = [r["found"]["counts"]["log_likelihood"] for r in own]
        for method in METHODS:
            values = [r["found"][method] for r in own]
            gap, error, p = paired(counts, [v["log_likelihood"] for v in values])
            rows.append(
                {
                    "method": method,
                    "log likelihood": f"{np.mean([v['log_likelihood'] for v in values]):.4f}",
                    "counts above it": "" if method == "counts" else f"{gap:+.4f} ± {error:.4f} (p {p:.1g})",
                    "Brier": f"{np.mean([v['brier'] for v in values]):.4f}",
                    "calibration error": f"{np.mean([v.get('calibration_error', np.nan) for v in values]):.4f}",
                    "s": f"{np.mean([v['seconds'] for v in values]):.1f}",
                }
            )
        floor = np.mean([r["ceiling"]["brier"] for r in own])
        text += [f"## {name}: {len(own)} splits, noise floor of the Brier score {floor:.4f}", "", common.markdown(rows)]
        text.append("")
        facts[name] = rows
    text += report_subsample(records("subsample", tiny), facts) + report_next(records("next", tiny), facts)
    common.write("votes_tiny" if tiny else "votes", facts, "\n".join(text))


def report_subsample(done, facts):
    text, curves = [], {}
    for name in SUBSAMPLED:
        own = [r for r in done if r["data"] == name]
        numbers = [n for n in VOTES if own and all(f"{m} {n}" in r["found"] for m in METHODS for r in own)]
        if not numbers:
            continue
        rows = []
        for method in METHODS:
            means = [np.mean([r["found"][f"{method} {n}"]["log_likelihood"] for r in own]) for n in numbers]
            curves.setdefault(name, {})[method] = (numbers, means)
            rows.append({"method": method} | {f"{n} votes": f"{mean:.3f}" for n, mean in zip(numbers, means)})
        text += [f"## {name}: log likelihood of all votes, trained on a few ({len(own)} splits)", ""]
        text += [common.markdown(rows), ""]
        facts[f"{name} subsampled"] = rows
    if curves:
        from snefy_ldl.vote_plots import plot_curves

        for name, lines in curves.items():
            ax = plot_curves(lines, xlabel="votes a training item", ylabel="held-out log likelihood", title=name)
            ax.set_xscale("log", base=2)
            ax.figure.savefig(common.RESULTS / f"votes_{name}.png", dpi=150, bbox_inches="tight")
    return text


def saving(curve, base, at):
    """Share of votes saved when a curve (votes, value) reaches the value that the base has after ``at`` votes."""
    x, y = np.array(base).T
    goal = float(np.interp(at, x, y))
    u, v = np.array(curve).T
    lowest = np.minimum.accumulate(v)
    reached = np.flatnonzero(lowest <= goal)
    if not len(reached):
        return float("nan")
    k = int(reached[0])
    needed = u[k] if k == 0 else np.interp(goal, [lowest[k], lowest[k - 1]], [u[k], u[k - 1]])
    return 1.0 - float(needed) / at


def report_next(done, facts):
    rows, text = [], []
    for name in SIMULATED:
        own = [r["found"] for r in done if r["data"] == name]
        if not own:
            continue
        curves = {how: np.mean([found[how] for found in own], 0) for how in own[0]}  # (rounds, 1 + goals)
        for goal, title in enumerate(GOALS, 1):
            for at in (2, 4, 8, 16):
                if curves["uniform"][-1, 0] < at:
                    continue
                row = {"data": name, "goal": title, "votes an item": at}
                for how in ("variance", "information"):
                    for base in ("uniform", "uniform, votes alone"):
                        saved = saving(curves[how][:, [0, goal]], curves[base][:, [0, goal]], at)
                        row[f"{how} against {base}"] = f"{saved:.0%}"
                rows.append(row)
        from snefy_ldl.vote_plots import plot_curves

        lines = {how: (curve[:, 0], curve[:, 1]) for how, curve in curves.items()}
        ax = plot_curves(lines, xlabel="votes an item", ylabel="majority label wrong", title=name)
        ax.figure.savefig(common.RESULTS / f"votes_next_{name}.png", dpi=150, bbox_inches="tight")
    if rows:
        words = "Votes saved when reaching what uniform allocation reaches, curves averaged over the splits."
        text = ["## next_vote", "", words, "", common.markdown(rows), ""]
        facts["next"] = rows
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--splits", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--studies", nargs="+", default=list(STUDIES), choices=list(STUDIES))
    parser.add_argument("--data", nargs="+", default=[*DATA, "annotators"])
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--speed", action="store_true")
    options = parser.parse_args()
    common.RESULTS.mkdir(exist_ok=True)
    if options.speed:
        speed()
    tasks = [
        (study, name, seed, options.tiny)
        for seed in range(options.splits)
        for study in options.studies
        for name in STUDIES[study][1]
        if name in options.data
    ]
    if options.jobs > 1:
        with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
            for done in as_completed([pool.submit(run_one, *task) for task in tasks]):
                print(done.result(), flush=True)
    else:
        for task in tasks:
            print(run_one(*task), flush=True)
    if options.report or tasks:
        report(options.tiny)


if __name__ == "__main__":
    main()
