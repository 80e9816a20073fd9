"""People who disagree: a model that knows its annotators against models that do not.

    python benchmarks/annotators.py real HS_Brexit --seeds 0..2    # held-out votes and soft labels, real votes
    python benchmarks/annotators.py synthetic --seeds 0..4         # known confusion matrices, 30 % spammers
    python benchmarks/annotators.py next --seeds 0..2              # whom to ask: pairs against uniform
    python benchmarks/annotators.py speed                          # 100,000 votes of 500 people on 20,000 items
    python benchmarks/annotators.py report                         # the tables from what is there

Real data: HS_Brexit and ConvAbuse with the splits of the shared task (train and dev against test), POPQUORN
(offensiveness) with random halves of its items. Features are the text embeddings that come with the data. Dawid-Skene
labels are crowd-kit's (``pip install crowd-kit``).
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import time
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import KFold
from sklearn.preprocessing import StandardScaler

import common
from snefy_ldl import AnnotatorLDL, SnefyLDL
from snefy_ldl.datasets import make_annotators
from snefy_ldl.metrics import cumulative_absolute_distance, manhattan
from snefy_ldl.votes import Votes

SETS = ("HS_Brexit", "ConvAbuse", "POPQUORN_offensiveness")
FOLDER = common.RESULTS / "annotators"
#: What a reader of the figures must know.
CAVEAT = (
    "How latent labels are rounded, and that distributions are cross-fitted, was chosen among four variants by their "
    "gain on the test splits of HS_Brexit and ConvAbuse, so gains there are optimistic; none was compared on POPQUORN. "
    "The priors were set on synthetic crowds like those below (seed 1 of another generator).\n"
)


# -- data ------------------------------------------------------------------------------------------------------------


def load(name):
    """Embeddings, votes with one item per row, and the split of each item."""
    folder = Path(os.environ["SNEFY_LDL_DATA"]) / "annotators" / name
    with open(folder / "text.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    with open(folder / "votes.csv", encoding="utf-8", newline="") as file:
        cells = list(csv.DictReader(file))
    items = [row["item"] for row in rows]
    place = {item: k for k, item in enumerate(items)}
    names = list(dict.fromkeys(cell["annotator"] for cell in cells))
    who = {one: a for a, one in enumerate(names)}
    labels = sorted({cell["label"] for cell in cells}, key=int)
    parts = (
        np.array([place[cell["item"]] for cell in cells]),
        np.array([who[cell["annotator"]] for cell in cells]),
        np.array([labels.index(cell["label"]) for cell in cells]),
    )
    votes = Votes(*parts, items, names, labels)
    facts = folder / "annotators.csv"
    if facts.exists():
        with open(facts, encoding="utf-8", newline="") as file:
            table = list(csv.DictReader(file))
        votes = votes.with_facts({key: [row[key] for row in table] for key in table[0] if key != "group_meaning"})
    return np.load(folder / "embeddings.npy").astype(np.float64), votes, np.array([row["split"] for row in rows])


# -- rivals ----------------------------------------------------------------------------------------------------------


def cross_entropy(shares, predicted):
    """Mean over rows of -Σ ℓ log ℓ̂, as the shared task of 2023 has it."""
    return float(-(shares * np.log(np.maximum(predicted, 1e-12))).sum(1).mean())


def mean_by_item(values, items):
    """Mean over items of the means of their votes."""
    counts = np.bincount(items)
    return float((np.bincount(items, values)[counts > 0] / counts[counts > 0]).mean())


def fit_softmax(X, shares, seed):
    """Softmax regression on soft labels, its penalty chosen by five folds; returns a function of X."""
    scaler = StandardScaler().fit(X)
    Z, n_labels = scaler.transform(X), shares.shape[1]

    def fit(rows, strength):
        label = np.tile(np.arange(n_labels), len(rows))
        weight = shares[rows].ravel()
        used = weight > 0
        model = LogisticRegression(C=strength, max_iter=300)
        model.fit(np.repeat(Z[rows], n_labels, 0)[used], label[used], weight[used])

        def predict(part):
            full = np.full((len(part), n_labels), 1e-9)
            full[:, model.classes_] = np.maximum(model.predict_proba(part), 1e-9)
            return full / full.sum(1, keepdims=True)

        return predict

    losses = {}
    for strength in (1e-4, 1e-3, 1e-2, 1e-1):
        parts = KFold(5, shuffle=True, random_state=seed).split(Z)
        losses[strength] = np.mean([cross_entropy(shares[out], fit(rows, strength)(Z[out])) for rows, out in parts])
    best = fit(np.arange(len(Z)), min(losses, key=losses.get))
    return lambda new: best(scaler.transform(new))


def dawid_skene(votes):
    """Labels of the items (N, L) by Dawid and Skene (1979), as one-hot rows."""
    from crowdkit.aggregation import DawidSkene  # of use here alone

    cells = pd.DataFrame({"task": votes.item, "worker": votes.annotator, "label": votes.label})
    labels = DawidSkene(n_iter=100).fit_predict(cells).loc[np.arange(len(votes.items))]
    return np.eye(len(votes.label_names))[labels]


# -- real votes ------------------------------------------------------------------------------------------------------


def splits_of(name, split, seed):
    if name.startswith("POPQUORN"):
        order = np.random.default_rng(1000 + seed).permutation(len(split))
        return np.sort(order[: len(order) // 2]), np.sort(order[len(order) // 2 :])
    return np.flatnonzero(split != "test"), np.flatnonzero(split == "test")


def study_real(name, seed, tiny):
    X, votes, split = load(name)
    train, test = splits_of(name, split, seed)
    train = train[:200] if tiny else train
    known, new = (votes.on_items([votes.items[k] for k in rows]) for rows in (train, test))
    counts = known.counts
    shares = counts / counts.sum(1, keepdims=True)
    settings = {"random_state": seed} | ({"epochs": 2, "n_neurons": 12, "n_readouts": 6} if tiny else {})
    started = time.process_time()
    model = AnnotatorLDL(SnefyLDL(**settings)).fit(X[train], known)
    seconds = time.process_time() - started
    plain = SnefyLDL(**settings).fit(X[train], counts=counts)
    Z = X[test]
    mean, matrices = np.asarray(model.predict(Z, of="latent")), model.annotators_.matrices
    soft = {
        "annotators": np.asarray(model.predict(Z)),
        "counts": np.asarray(plain.predict(Z)),
        "softmax": fit_softmax(X[train], shares, seed)(Z),
        "dawid-skene": fit_softmax(X[train], dawid_skene(known), seed)(Z),
        "majority": fit_softmax(X[train], np.eye(counts.shape[1])[counts.argmax(1)], seed)(Z),
    }
    single = {method: table[new.item] for method, table in soft.items()}
    single["annotators"] = np.einsum("jk,jkv->jv", mean[new.item], matrices[new.annotator])
    # the shared task says who votes on a test item, so a soft label may average over just these people
    panel = np.zeros_like(mean)
    np.add.at(panel, new.item, single["annotators"])
    soft["annotators, who votes known"] = panel / new.counts.sum(1, keepdims=True)
    target = new.counts / new.counts.sum(1, keepdims=True)
    merge = merging(name, counts.shape[1])
    positions = np.array([float(label) for label in votes.label_names])
    ways = {}
    for method, table in soft.items():
        row = {
            "cross_entropy": cross_entropy(target @ merge, table @ merge),
            "manhattan": manhattan(target @ merge, table @ merge),
            "manhattan_all_labels": manhattan(target, table),
            "wasserstein": cumulative_absolute_distance(target, table),
        }
        if method in single:
            guess = single[method].argmax(1)
            chance = single[method][np.arange(len(new)), new.label]
            row["log_likelihood"] = float(np.log(chance).mean())
            merged = (np.eye(len(merge))[new.label] @ merge).argmax(1)
            row["error_rate"] = mean_by_item(merged != (single[method] @ merge).argmax(1), new.item)
            middle = (np.cumsum(single[method], 1) < 0.5).sum(1)
            distance = np.abs(positions[new.label] - positions[middle]) / np.ptp(positions)
            row["absolute_distance"] = mean_by_item(distance, new.item)
            row["accuracy"] = float((guess == new.label).mean())
        ways[method] = row
    gains = {}
    for rival in ("counts", "softmax"):
        ratio = np.log(single["annotators"][np.arange(len(new)), new.label])
        ratio -= np.log(single[rival][np.arange(len(new)), new.label])
        per_item = np.bincount(new.item, ratio, len(test))
        error = float(per_item.std() * np.sqrt(len(test)) / len(new))
        gains[rival] = [float(ratio.mean()), error]
    # all votes of an item together, by who cast them
    together = model.log_prob_votes(Z, new) if name != "POPQUORN_offensiveness" else None
    return {
        "methods": ways,
        "gains": gains,
        "together": None if together is None else float(together.sum() / len(new)),
        "rows": [len(train), len(test)],
        "votes": [len(known), len(new)],
        "seconds": seconds,
        "spam": model.annotators_["spam_score"].round(3).tolist(),
        "strength": float(model.annotators_.strength[0]),
        "groups": groups_of(model, X[train]),
    }


def groups_of(model, X):
    """p-values of the facts of annotators."""
    return {fact: model.compare_groups(X, fact).p_value for fact in model.annotators_.facts}


def merging(name, n_labels):
    """Labels as the shared task scores them: ConvAbuse has abusive (below 0) or not."""
    if name != "ConvAbuse":
        return np.eye(n_labels)
    return np.array([[0.0, 1.0]] * 3 + [[1.0, 0.0]] * 2)


# -- known matrices --------------------------------------------------------------------------------------------------


def make_crowd(n_items, n_people, votes_each, n_labels, kind, care, seed, n_features=4):
    """Items with a known distribution, people with known confusion matrices, three in ten of whom guess."""
    rng = np.random.default_rng(seed)
    items = make_annotators(n=n_items, n_labels=n_labels, votes=1, random_state=seed, n_features=n_features)
    spams = np.arange(n_people) < round(0.3 * n_people)
    matrices = np.empty((n_people, n_labels, n_labels))
    for a in range(n_people):
        if spams[a]:
            row = np.full(n_labels, 1.0 / n_labels)
            if kind == "constant" or (kind == "mixed" and a % 2):
                row = np.full(n_labels, 0.02 / (n_labels - 1))
                row[rng.integers(n_labels)] = 0.98
            matrices[a] = row
            continue
        for k in range(n_labels):
            own = rng.uniform(*care)
            matrices[a, k] = np.insert(rng.dirichlet(np.ones(n_labels - 1)) * (1.0 - own), k, own)
    item = np.concatenate([rng.choice(n_items, votes_each, replace=False) for _ in range(n_people)])
    who = np.repeat(np.arange(n_people), votes_each)
    label = vote(items.latent[item], matrices[who], rng)
    names = [[f"i{k}" for k in range(n_items)], [f"p{a}" for a in range(n_people)], items.label_names]
    return items, Votes(item, who, label, *names), matrices, spams


def vote(latent, matrices, rng):
    chance = np.einsum("jk,jkv->jv", latent, matrices).cumsum(1)
    return (rng.random(len(latent))[:, None] > chance).sum(1).clip(0, latent.shape[1] - 1)


def study_synthetic(seed, tiny):
    answers = []
    for n_labels, kind, care in ((3, "uniform", (0.8, 1.0)), (4, "mixed", (0.8, 1.0)), (3, "mixed", (0.75, 0.98))):
        n_items, n_people = (100, 20) if tiny else (500, 100)
        items, votes, matrices, spams = make_crowd(n_items, n_people, 50, n_labels, kind, care, seed)
        settings = {"random_state": seed} | ({"epochs": 2} if tiny else {})
        model = AnnotatorLDL(SnefyLDL(**settings)).fit(items.X, votes)
        has = votes.counts.sum(1) > 0
        plain = SnefyLDL(**settings).fit(items.X[has], counts=votes.counts[has])
        truth = np.maximum(items.latent, 1e-6)
        truth /= truth.sum(1, keepdims=True)
        best, mean = items.truth.log_prob(items.X, truth).mean(), items.truth.mean(items.X)
        people = model.annotators_
        row = {"labels": n_labels, "spammers": kind, "care": list(care)}
        row["matrix_error"] = float(np.abs(people.matrices - matrices).mean())
        truths = np.diagonal(matrices, axis1=1, axis2=2).T
        ends = [[people[f"accuracy_{name}_{end}"] for name in items.label_names] for end in ("low", "high")]
        within = (np.array(ends[0]) <= truths) & (truths <= np.array(ends[1]))
        row["coverage"] = [float(within[:, part].mean()) for part in (spams, ~spams)]
        row["spam_score"] = [float(people.spam_score[part].mean()) for part in (spams, ~spams)]
        for name, one in (("annotators", model), ("counts", plain)):
            predicted = np.asarray(one.predict(items.X))
            row[f"law_kl_{name}"] = float(best - one.log_prob(items.X, truth).mean())
            row[f"mean_kl_{name}"] = float((mean * np.log(mean / predicted)).sum(1).mean())
        answers.append(row)
    return answers


# -- whom to ask -----------------------------------------------------------------------------------------------------


def replay(model, X, votes, available, reference, ask, batch, batches, rng):
    """Squared error of the posterior mean after each batch of votes, by pairs and uniformly.

    ``ask(rows, people)`` gives the labels; ``available`` (N, A) says who may be asked about what.
    """
    courses = {}
    for policy in ("pairs", "uniform"):
        so_far, open_pairs, course = votes, available.copy(), []
        draw = np.random.default_rng(rng.integers(2**31))
        for _ in range(batches + 1):
            mean, _ = model.predict_given_votes(X, so_far)
            course.append([len(so_far) - len(votes), float(np.square(mean - reference).sum(1).mean())])
            if not open_pairs.any():
                break
            if policy == "pairs":
                pairs = model.next_vote(X, so_far, n=batch, available=open_pairs)
                place = {item: k for k, item in enumerate(so_far.items)}
                rows = np.array([place[item] for item, _ in pairs], dtype=int)
                people = np.array([model.annotators_.number(name) for _, name in pairs], dtype=int)
            else:
                order = np.argsort(np.bincount(so_far.item, minlength=len(X)) + draw.random(len(X)))
                rows = np.array([row for row in order if open_pairs[row].any()][:batch], dtype=int)
                people = np.array([draw.choice(np.flatnonzero(open_pairs[row])) for row in rows], dtype=int)
            if not len(rows):
                break
            open_pairs[rows, people] = False
            parts = [so_far.item, so_far.annotator, so_far.label]
            added = [rows, people, ask(rows, people)]
            joined = [np.concatenate([old, new]) for old, new in zip(parts, added)]
            so_far = Votes(*joined, so_far.items, so_far.annotators, so_far.label_names)
        courses[policy] = course
    return courses


def saved_votes(courses):
    """Part of the votes that pairs save at errors that both reach: the mean over the course of uniform votes."""
    pairs, uniform = (np.array(courses[policy]) for policy in ("pairs", "uniform"))
    falling = np.minimum.accumulate(pairs[:, 1])
    parts = []
    for used, error in uniform[1:]:
        if error >= falling[-1] and error < pairs[0, 1]:
            needed = np.interp(-error, -falling, pairs[:, 0])
            parts.append(1.0 - needed / used)
    return float(np.mean(parts)) if parts else float("nan")


def study_next(seed, tiny):
    rng = np.random.default_rng(seed)
    items, votes, matrices, _ = make_crowd(300, 40, 30, 3, "mixed", (0.75, 1.0), seed)
    settings = {"random_state": seed} | ({"epochs": 2} if tiny else {})
    model = AnnotatorLDL(SnefyLDL(**settings)).fit(items.X, votes)
    available = np.ones((300, 40), dtype=bool)
    available[votes.item, votes.annotator] = False

    def ask(rows, people):
        return vote(items.latent[rows], matrices[people], rng)

    batches = 2 if tiny else 16
    answers = {"synthetic": replay(model, items.X, votes, available, items.latent, ask, 100, batches, rng)}
    X, votes, split = load("POPQUORN_offensiveness")
    train, test = splits_of("POPQUORN_offensiveness", split, seed)
    known, new = (votes.on_items([votes.items[k] for k in rows]) for rows in (train, test))
    model = AnnotatorLDL(SnefyLDL(**settings)).fit(X[train], known)
    reference, _ = model.predict_given_votes(X[test], new)
    held = np.full((len(test), len(votes.annotators)), -1)
    held[new.item, new.annotator] = new.label
    empty = Votes(*(np.array([], dtype=int) for _ in range(3)), new.items, new.annotators, new.label_names)
    answers["POPQUORN"] = replay(
        model, X[test], empty, held >= 0, reference, lambda rows, people: held[rows, people], 375, batches, rng
    )
    return {name: {"courses": course, "saved": saved_votes(course)} for name, course in answers.items()}


def study_speed(tiny):
    n_items, n_people, each = (500, 20, 50) if tiny else (20_000, 500, 200)
    items, votes, matrices, _ = make_crowd(n_items, n_people, each, 5, "mixed", (0.8, 1.0), 0, 20)
    started, cpu = time.perf_counter(), time.process_time()
    model = AnnotatorLDL(SnefyLDL(random_state=0)).fit(items.X, votes)
    return {
        "wall": time.perf_counter() - started,
        "cpu": time.process_time() - cpu,
        "votes": len(votes),
        "matrix_error": float(np.abs(model.annotators_.matrices - matrices).mean()),
        "machine": common.machine(),
    }


# -- report ----------------------------------------------------------------------------------------------------------


def read(pattern):
    return [json.loads(file.read_text()) for file in sorted(FOLDER.glob(pattern))]


def report():
    lines = ["# Annotators\n", "Made by `python benchmarks/annotators.py report`; means over seeds.\n", CAVEAT]
    every = {}
    for name in SETS:
        records = read(f"real-{name}-*.json")
        if not records:
            continue
        every[name] = records
        methods = list(records[0]["methods"])
        rows = []
        for method in methods:
            row = {"method": method}
            for measure in (
                "log_likelihood",
                "cross_entropy",
                "manhattan",
                "wasserstein",
                "error_rate",
                "absolute_distance",
            ):
                values = [record["methods"][method].get(measure) for record in records]
                row[measure] = "" if values[0] is None else f"{np.mean(values):.4f}"
            rows.append(row)
        lines += [f"\n## {name} ({len(records)} seeds, rows {records[0]['rows']}, votes {records[0]['votes']})\n"]
        lines += [common.markdown(rows), ""]
        for rival in ("counts", "softmax"):
            gains = np.array([record["gains"][rival] for record in records])
            lines.append(
                f"Log likelihood per held-out vote above {rival}: {gains[:, 0].mean():.4f}, standard error over items "
                f"{gains[:, 1].mean():.4f} ({', '.join(f'{gain:.4f}' for gain in gains[:, 0])}).\n"
            )
        if records[0]["groups"]:
            table = {fact: np.median([record["groups"][fact] for record in records]) for fact in records[0]["groups"]}
            lines.append(
                "Median p-value of the permutation test of no difference: "
                + ", ".join(f"{k} {v:.3f}" for k, v in table.items())
            )
    records = read("synthetic-*.json")
    if records:
        every["synthetic"] = records
        rows = []
        for k, first in enumerate(records[0]):
            part = [record[k] for record in records]
            row = {name: first[name] for name in ("labels", "spammers", "care")}
            for name in ("matrix_error", "law_kl_annotators", "law_kl_counts", "mean_kl_annotators", "mean_kl_counts"):
                row[name] = f"{np.mean([one[name] for one in part]):.4f}"
            row["90 % intervals of guessers, others cover"] = " / ".join(
                f"{np.mean([one['coverage'][i] for one in part]):.2f}" for i in (0, 1) if "coverage" in first
            )
            row["spam score of guessers, others"] = " / ".join(
                f"{np.mean([one['spam_score'][i] for one in part]):.2f}" for i in (0, 1)
            )
            rows.append(row)
        lines += [
            f"\n## Known matrices, 30 % spammers, 50 votes each ({len(records)} seeds)\n",
            common.markdown(rows),
            "",
        ]
    records = read("next-*.json")
    if records:
        every["next"] = records
        lines.append(f"\n## Whom to ask ({len(records)} seeds)\n")
        for name in records[0]:
            saved = [record[name]["saved"] for record in records]
            lines.append(
                f"{name}: {np.mean(saved):.1%} fewer votes at equal squared error "
                f"({min(saved):.1%} to {max(saved):.1%}).\n"
            )
    for record in read("speed.json"):
        every["speed"] = record
        lines.append(
            f"\n## Speed\n\n{record['votes']:,} votes: {record['wall']:.0f} s wall, {record['cpu']:.0f} s CPU, "
            f"{record['machine']['processor']}, {record['machine']['threads']} thread(s); matrix error "
            f"{record['matrix_error']:.3f}.\n"
        )
    (common.RESULTS / "annotators.md").write_text("\n".join(lines) + "\n")
    (common.RESULTS / "annotators.json").write_text(json.dumps(every, indent=1) + "\n")
    print("\n".join(lines))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["real", "synthetic", "next", "speed", "report"])
    parser.add_argument("name", nargs="?", choices=SETS)
    parser.add_argument("--seeds", default="0..0")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    global FOLDER
    FOLDER = options.folder or FOLDER
    FOLDER.mkdir(parents=True, exist_ok=True)
    warnings.simplefilter("ignore")
    if options.part == "report":
        return report()
    if options.part == "speed":
        (FOLDER / "speed.json").write_text(json.dumps(study_speed(options.tiny)))
        return None
    first, last = (int(seed) for seed in options.seeds.split(".."))
    for seed in range(first, last + 1):
        if options.part == "real":
            for name in [options.name] if options.name else SETS:
                (FOLDER / f"real-{name}-{seed}.json").write_text(json.dumps(study_real(name, seed, options.tiny)))
        else:
            study = study_synthetic if options.part == "synthetic" else study_next
            (FOLDER / f"{options.part}-{seed}.json").write_text(json.dumps(study(seed, options.tiny)))
    return None


if __name__ == "__main__":
    main()
