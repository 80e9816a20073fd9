"""Does choosing rows pay? Learning curves of `lcmd`, which query("auto") takes, against random rows, on ten pools.

    python benchmarks/active_study.py run --jobs 16 --minutes 5    # goes on where the last run stopped
    python benchmarks/active_study.py report                       # the page from what is there

A case is one split of one pool: both strategies share test rows, first labels and first model, so that differences are
paired. ``rule`` is the curve that will_it_help's answer leads to: that of ``lcmd`` if it recommends choosing, that of
random rows otherwise. The model is the default one with fewer neurons and epochs. ``lcmd`` was chosen among strategies
on splits of an earlier study, 0 to 4; here splits from 5 on are reported. Real data are in SNEFY_LDL_DATA.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy and torch are loaded

import argparse
import json
import time
import warnings
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from scipy.special import rel_entr
from scipy.stats import spearmanr, t
from sklearn.isotonic import isotonic_regression

from common import RESULTS, area_under_curve, machine, markdown, write
from density_data import load
from snefy_ldl import SnefyLDL
from snefy_ldl.active import query, will_it_help

REAL = ("Movie", "Natural_Scene", "SBU_3DFE", "Yeast_alpha", "KonIQ10k", "GEMAS_elements", "IMDb_movies", "ECAM")
SYNTHETIC = ("clustered", "long_tail")
POOLS = (*REAL, *SYNTHETIC)
#: Settings that stand in for the default's search.
MODEL = {"n_neurons": 16, "n_readouts": 8, "epochs": 12, "zeros": "shrink", "standardize": "unit", "device": "cpu"}
STRATEGIES = ("random", "lcmd")
FIRST_SPLIT, SPLITS = 5, 8
MEASURES = ("kl", "nll", "worst")
START, SIZE, BATCHES = 64, 64, 7
MOST_TEST, MOST_POOL, NLL_ROWS = 1000, 2000, 200
DIAGNOSED = ("helps", "slope", "foreseen", "redundancy")
FOLDER = RESULTS / "active_study"


def paired_interval(first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and half-width of the 95 % interval (Student) of ``first - second`` over repeats that share their splits."""
    gap = first - second
    half = t.ppf(0.975, len(gap) - 1) * gap.std(axis=0, ddof=1) / np.sqrt(len(gap))
    return gap.mean(axis=0), half


def read(name):
    """Features and label distributions of one pool."""
    if name in SYNTHETIC:
        return synthetic(name)
    if name == "KonIQ10k":
        folder = Path(os.environ["SNEFY_LDL_DATA"]) / "votes" / name
        counts = np.load(folder / "counts.npy").astype(float)
        return np.load(folder / "features.npy").astype(float), counts / counts.sum(1, keepdims=True)
    table = load("ECAM_infant_microbiome" if name == "ECAM" else name)
    X = table.X
    return np.where(np.isnan(X), np.nanmean(X, 0), X), table.D


def synthetic(name, n=4000, d=10, n_labels=5):
    """Pools of known redundancy: tight clusters of very unequal size, or most rows alike and a long tail."""
    random = np.random.default_rng(len(name))
    if name == "clustered":
        centres, share = random.normal(size=(60, d)) * 2.0, 1.0 / np.arange(1, 61)
        X = centres[random.choice(60, n, p=share / share.sum())] + 0.05 * random.normal(size=(n, d))
    else:
        X = random.normal(size=(n, d)) * np.minimum(random.pareto(1.5, size=(n, 1)) * 0.3, 6.0)
    hidden = np.tanh(X @ random.normal(size=(d, 32)) / 2.0 + random.normal(size=32))
    mean = np.exp(hidden @ random.normal(size=(32, n_labels)) / 2.0)
    mean /= mean.sum(1, keepdims=True)
    return X, np.stack([random.dirichlet(60.0 * row + 0.5) for row in mean])


def split_rows(n_rows, split, most=MOST_POOL):
    order = np.random.default_rng([split, n_rows]).permutation(n_rows)
    n_test = min(MOST_TEST, n_rows // 4)
    return order[n_test : n_test + most], order[:n_test]


# -- running ---------------------------------------------------------------------------------------------------------


def measure(model, X, D):
    """Mean KL, mean negative log likelihood, and mean KL of the worst twentieth of rows."""
    kl = rel_entr(D, np.maximum(model.predict(X), 1e-12)).sum(1)
    nll = -float(np.mean(model.log_prob(X[:NLL_ROWS], D[:NLL_ROWS])))
    return {"kl": float(kl.mean()), "nll": nll, "worst": float(np.sort(kl)[-max(1, len(kl) // 20) :].mean())}


def curves(data, split):
    """Both learning curves of one split, and will_it_help's answer from the first labels."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    X, D = read(data)
    pool, test = split_rows(len(D), split)
    size, seed, start = min(SIZE, (len(pool) // 2 - START) // BATCHES), 1000 * split, pool[:START]

    def fit(rows, seed):
        return SnefyLDL(random_state=seed, **MODEL).fit(X[rows], D[rows])

    first = fit(start, seed)
    found = will_it_help(first, X[start], D[start], X[pool[START:]], seed)
    record = {"data": data, "split": split, "size": size, "diagnosis": {k: float(getattr(found, k)) for k in DIAGNOSED}}
    began = time.process_time()
    for name in STRATEGIES:
        labeled, model = start, first
        scores = [measure(first, X[test], D[test])]
        for step in range(1, BATCHES + 1):
            free = np.setdiff1d(pool, labeled)
            chosen = query(name, X[free], size, model, X[labeled], seed + step)
            labeled = np.concatenate([labeled, free[chosen]])
            model = fit(labeled, seed + step)
            scores.append(measure(model, X[test], D[test]))
        record[name] = {key: [one[key] for one in scores] for key in MEASURES}
    return record | {"seconds": time.process_time() - began}


def work(folder, data, split):
    """Measures one case and writes it."""
    path = folder / f"{data}-{split}.json"
    if not path.exists():
        record = curves(data, split)
        path.write_text(json.dumps(record))
    return data, split


def run(folder, sets, splits, jobs, minutes):
    """Every case that is missing, in the order of splits; what is under way when the time is up is lost."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "machine.txt").write_text(json.dumps(machine(1)))
    began, workers = time.perf_counter(), ProcessPoolExecutor(jobs, get_context("spawn"))
    cases = [(data, split) for split in range(FIRST_SPLIT, FIRST_SPLIT + splits) for data in sets]
    waiting = {workers.submit(work, folder, *case): case for case in cases}
    try:
        for future in as_completed(waiting, timeout=60.0 * minutes):
            error = future.exception()
            print(*waiting[future], repr(error) if error else f"{time.perf_counter() - began:.0f} s", flush=True)
    except TimeoutError:
        print("time is up: what is there is kept")
        for process in workers._processes.values():
            process.terminate()
    workers.shutdown(wait=False, cancel_futures=True)


# -- reporting -------------------------------------------------------------------------------------------------------


def labels_saved(n, curve, baseline):
    """Share of the baseline's labels that a curve does not need to reach the baseline's last value; minus: needs more.

    Curves (R, T) are averaged over splits and made to fall (isotonic), so that a lucky point does not count; where the
    baseline's value is not reached, the baseline's labels at the curve's last value are compared with all labels.
    """
    mine, other = (isotonic_regression(values.mean(0), increasing=False) for values in (curve, baseline))

    def labels_at(values, height):
        k = int(np.argmax(values <= height))
        if k == 0:
            return float(n[0])
        return float(n[k - 1] + (values[k - 1] - height) / (values[k - 1] - values[k]) * (n[k] - n[k - 1]))

    if mine[-1] <= other[-1]:
        return 1.0 - labels_at(mine, other[-1]) / labels_at(other, other[-1])
    return labels_at(other, mine[-1]) / labels_at(mine, mine[-1]) - 1.0


def jackknife(statistic, *tables):
    """A statistic of tables whose rows are splits, and its standard error by leaving out one split at a time."""
    n, keep = len(tables[0]), ~np.eye(len(tables[0]), dtype=bool)
    left = np.array([statistic(*(table[rows] for table in tables)) for rows in keep])
    return statistic(*tables), float(np.sqrt((n - 1) / n * ((left - left.mean()) ** 2).sum()))


def compare(n, mine, other):
    """Measure -> difference to random rows and half-width of its 95 % interval; "saved": % of labels, standard error
    and half-width."""
    found = {}
    for key in MEASURES:
        own, base = (area_under_curve(n, side[key]) for side in (mine, other))
        unit = 1.0 if key == "nll" else 0.01 * base.mean()
        found[key] = tuple(map(float, paired_interval(own / unit, base / unit)))
    saved, error = jackknife(lambda a, b: 100.0 * labels_saved(n, a, b), mine["kl"], other["kl"])
    return found | {"saved": (saved, error, float(t.ppf(0.975, len(own) - 1)) * error)}


def report(folder):
    """Areas under the curves against random rows, labels saved, and how will_it_help ranks the pools."""
    records = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    rows, answers, compared = [], [], {}
    for data in POOLS:
        these = [record for record in records if record["data"] == data]
        if len(these) < 2:
            continue
        n = START + these[0]["size"] * np.arange(BATCHES + 1.0)
        tables = {s: {key: np.array([one[s][key] for one in these]) for key in MEASURES} for s in STRATEGIES}
        told = {key: np.array([one["diagnosis"][key] for one in these]) for key in DIAGNOSED}
        helps = told["helps"].astype(bool)[:, None]
        tables["rule"] = {key: np.where(helps, tables["lcmd"][key], tables["random"][key]) for key in MEASURES}
        for name in ("lcmd", "rule"):
            one = compared[data, name] = compare(n, tables[name], tables["random"])
            row = {"pool": data, "strategy": name, "splits": len(these)}
            for key, unit in (("kl", "%"), ("nll", "nats"), ("worst", "%")):
                row[f"{key}, {unit} minus random"] = f"{one[key][0]:+.2f} ± {one[key][1]:.2f}"
            rows.append(row | {"labels saved, %": f"{one['saved'][0]:+.0f} ± {one['saved'][1]:.0f}"})
        means = {key: float(values.mean()) for key, values in told.items()}
        answers.append({"pool": data, "gain of lcmd, % of KL": -compared[data, "lcmd"]["kl"][0], **means})
    lines = []
    for name in ("lcmd", "rule"):
        ones = {data: one for (data, who), one in compared.items() if who == name}
        for key in MEASURES:
            for sign, word in ((-1.0, "lower"), (1.0, "higher")):
                where = [data for data, one in ones.items() if sign * one[key][0] > one[key][1]]
                lines.append(f"- `{name}` has a clearly {word} {key}: {len(where)} of {len(ones)} {', '.join(where)}")
        where = [data for data, one in ones.items() if one["saved"][0] > one["saved"][2]]
        lines.append(f"- `{name}` saves labels, clear of zero: {len(where)} of {len(ones)} {', '.join(where)}")
    gains = [row["gain of lcmd, % of KL"] for row in answers]
    ranks = [f"{key} {spearmanr([row[key] for row in answers], gains)[0]:.2f}" for key in DIAGNOSED[1:]]
    facts = {"machine": json.loads((folder / "machine.txt").read_text()), "records": records}
    text = [
        "# Does choosing rows pay?",
        "",
        f"`python benchmarks/active_study.py run` on {facts['machine']['processor']}. Start {START} rows, {BATCHES} "
        f"batches of {SIZE} (fewer on ECAM), pools of at most {MOST_POOL:,} rows; areas under the learning curves "
        "minus those of random rows on the same splits, with the half-width of their 95 % interval; minus is better. "
        "`worst`: mean KL of the worst 5 % of rows. Labels saved to reach the last KL of random rows: from mean curves "
        "made to fall, ± standard error by the jackknife. `rule` follows `will_it_help`, asked with the first labels.",
        "",
        markdown(rows),
        "",
        *lines,
        "",
        "## What `will_it_help` answers",
        "",
        f"Means over splits. Rank correlation with the gain over pools: {', '.join(ranks)}.",
        "",
        markdown([{k: f"{v:.2f}" if isinstance(v, float) else v for k, v in row.items()} for row in answers]),
    ]
    write("active_study", facts, "\n".join(text))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "report"))
    parser.add_argument("--sets", nargs="+", default=POOLS)
    parser.add_argument("--splits", type=int, default=SPLITS)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=1e4)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    asked = parser.parse_args()
    if asked.what == "run":
        run(asked.folder, asked.sets, asked.splits, asked.jobs, asked.minutes)
    report(asked.folder)


if __name__ == "__main__":
    main()
