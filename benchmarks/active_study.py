"""Does choosing rows pay? Learning curves of batches on kernels against random rows, on ten pools.

    python benchmarks/active_study.py run --folder study --jobs 2                 # all cases, side by side
    python benchmarks/active_study.py run --folder study --sets Movie ECAM --splits 5 --start 64
    python benchmarks/active_study.py report --folder study --chosen-on 5         # tables from what is there
    python benchmarks/active_study.py million --threads 1                         # 256 of a million rows of 50 features
    python benchmarks/active_study.py budget --folder study --jobs 2              # new rows, or votes on fewer rows?
    python benchmarks/active_study.py peer                                        # the same batches as bmdal_reg's?

One case is a pool, a split and a strategy, and one JSON file in the folder: what is there is not made again, and a case
that was cut off goes on after its last batch. All strategies of a split share its test rows and its first labels, so
that differences are paired. Every split asks will_it_help once, with the first labels; ``rule`` is the curve that its
answer leads to: the chosen strategy's where it says that choosing pays, that of random rows elsewhere. ``oracle`` fits
after each of 50 random batches: how far they spread is what choosing could win at most in one step. Real data lies in
the folder that SNEFY_LDL_DATA names.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time
import warnings
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from scipy.special import rel_entr
from scipy.stats import spearmanr

from common import area_under_curve
from density_data import load
from snefy_ldl import SnefyLDL
from snefy_ldl._internal.files import write_json
from snefy_ldl.active import query, will_it_help
from snefy_ldl.active.batches import bait, lcmd, maxdet
from snefy_ldl.plots.active import paired_interval

#: Change it when a result file would mean something else: old files are then not reused.
VERSION = 2
REAL = ("Movie", "Natural_Scene", "SBU_3DFE", "Yeast_alpha", "KonIQ10k", "GEMAS_elements", "IMDb_movies", "ECAM")
SYNTHETIC = ("clustered", "long_tail")
STRATEGIES = {
    "random": ("random", {}),
    "lcmd": ("lcmd", {}),
    "lcmd fisher": ("lcmd", {"kernel": "fisher"}),
    "bait": ("bait", {}),
    "half lcmd": ("lcmd", {}),
}
MEASURES = ("kl", "nll", "worst")
MOST_TEST, MOST_POOL, ORACLE_BATCHES = 1000, 2000, 50


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


def fit(X, D, seed):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return SnefyLDL(random_state=seed, device=DEVICE).fit(X, D)


DEVICE = os.environ.get("STUDY_DEVICE", "cpu")


def measure(model, X, D):
    """Mean KL, mean negative log likelihood, and mean KL of the worst twentieth of rows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kl = rel_entr(D, np.maximum(model.predict(X), 1e-12)).sum(1)
        nll = -float(np.mean(model.log_prob(X, D)))
    return {"kl": float(kl.mean()), "nll": nll, "worst": float(np.sort(kl)[-max(1, len(kl) // 20) :].mean())}


def choose(name, model, X, labeled, free, n, seed):
    """Rows of the pool that a strategy asks for next."""
    strategy, options = STRATEGIES[name]
    chance = np.random.default_rng(seed).permutation(free)
    asked = n // 2 if name == "half lcmd" else n
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rows = free[query(strategy, X[free], asked, model=model, X_labeled=X[labeled], random_state=seed, **options)]
    return np.concatenate([rows, chance[~np.isin(chance, rows)][: n - asked]])


DIAGNOSED = ("helps", "slope", "rmse_mae", "foreseen", "redundancy", "epistemic_share", "score")


def run_case(folder, data, split, name, start, batches, size):
    """One strategy on one split of one pool; the file is written after every batch."""
    torch.set_num_threads(1)
    path = Path(folder) / f"{data}-{start}-{split:02d}-{name.replace(' ', '_')}.json"
    about = {"version": VERSION, "data": data, "split": split, "strategy": name, "start": start, "size": size}
    record = about | {"labeled": [], "scores": [], "diagnosis": None, "seconds": 0.0}
    if path.exists():
        saved = json.loads(path.read_text())
        if {key: saved.get(key) for key in about} == about:
            record = saved
    X, D = read(data)
    pool, test = split_rows(len(D), split)
    if name == "oracle":
        return oracle(path, record, X, D, pool, test)
    most = min(start + batches * size, len(pool) // 2)
    labeled, model = np.array(record["labeled"] or pool[:start].tolist()), None
    while len(record["scores"]) <= (most - start) // size:
        began = time.process_time()
        seed = 1000 * split + len(record["scores"])
        if record["scores"]:
            free = np.setdiff1d(pool, labeled)
            model = model or fit(X[labeled], D[labeled], seed - 1)
            labeled = np.concatenate([labeled, choose(name, model, X, labeled, free, size, seed)])
        model = fit(X[labeled], D[labeled], seed)
        if name == "random" and not record["scores"]:
            found = will_it_help(model, X[labeled], D[labeled], X[np.setdiff1d(pool, labeled)], seed)
            record["diagnosis"] = {key: float(getattr(found, key)) for key in DIAGNOSED}
        record["scores"].append(measure(model, X[test], D[test]))
        record["labeled"] = labeled.tolist()
        record["seconds"] += time.process_time() - began
        write_json(path, record)
    return path.name


def oracle(path, record, X, D, pool, test):
    """KL after each of some random batches that follow the first labels, all fitted with one seed."""
    start, size, seed = record["start"], record["size"], 1000 * record["split"] + 1
    random = np.random.default_rng(seed)
    while len(record["scores"]) < ORACLE_BATCHES:
        rows = np.concatenate([pool[:start], random.choice(pool[start:], size, replace=False)])
        record["scores"].append(measure(fit(X[rows], D[rows], seed), X[test], D[test]))
    write_json(path, record)
    return path.name


def run(args):
    folder = Path(args.folder)
    folder.mkdir(parents=True, exist_ok=True)
    names = args.strategies or list(STRATEGIES)
    cases = [(data, split, name) for split in range(args.first, args.splits) for data in args.sets for name in names]
    with ProcessPoolExecutor(args.jobs, mp_context=get_context("spawn")) as workers:
        waiting = {
            workers.submit(run_case, folder, *case, args.start, args.batches, args.size or args.start): case
            for case in cases
        }
        for number, done in enumerate(as_completed(waiting), 1):
            try:
                print(f"{number}/{len(cases)} {done.result()}", flush=True)
            except Exception as error:
                print(f"{number}/{len(cases)} {waiting[done]} failed: {type(error).__name__}: {error}", flush=True)


def curves(folder, start):
    """(data, strategy) -> {split: record}, of finished and unfinished cases."""
    found = {}
    for path in sorted(Path(folder).glob(f"*-{start}-*.json")):
        record = json.loads(path.read_text())
        if record["version"] == VERSION and record["start"] == start:
            found.setdefault((record["data"], record["strategy"]), {})[record["split"]] = record
    return found


def labels_saved(n, curve, baseline):
    """Share of the baseline's labels that a curve needs to reach the baseline's last value, by interpolation."""
    reached = np.flatnonzero(curve <= baseline[-1])
    if not len(reached):
        return 0.0
    k = int(reached[0])
    if k == 0:
        return float(1.0 - n[0] / n[-1])
    part = (curve[k - 1] - baseline[-1]) / max(curve[k - 1] - curve[k], 1e-12)
    return float(1.0 - (n[k - 1] + part * (n[k] - n[k - 1])) / n[-1])


def with_rule(found, gain_of):
    """Adds the curves that will_it_help's answers lead to."""
    for (data, name), records in list(found.items()):
        if name == gain_of:
            base = found.get((data, "random"), {})
            both = sorted(set(records) & set(base))
            helps = {split: bool(base[split]["diagnosis"]["helps"]) for split in both}
            found[data, "rule"] = {split: (records if helps[split] else base)[split] for split in both}
    return found


def report(args):
    """Tables of the areas under the curves against random rows, labels saved, and how will_it_help ranks the pools."""
    found = with_rule(curves(args.folder, args.start), args.gain_of)
    lines = [
        "| pool | strategy | splits | "
        + " | ".join(f"{m}, {'nats' if m == 'nll' else '%'} less random" for m in MEASURES)
        + " | labels saved, % |"
    ]
    lines.append("|---|---|---|" + "---|" * (len(MEASURES) + 1))
    gains, facts = {}, {}
    for (data, name), records in sorted(found.items()):
        base = found.get((data, "random"), {})
        both = [s for s in records if s in base and args.chosen_on <= s < args.up_to]
        if name in ("random", "oracle") or len(both) < 2:
            continue
        length = min(min(len(r[s]["scores"]) for r in (records, base)) for s in both)
        if length < 2:
            continue
        n = args.start + records[both[0]]["size"] * np.arange(length)
        cells = []
        for key in MEASURES:
            mine, other = (
                np.array([[entry[key] for entry in r[s]["scores"][:length]] for s in both]) for r in (records, base)
            )
            areas = area_under_curve(n, mine), area_under_curve(n, other)
            unit = 1.0 if key == "nll" else 0.01 * areas[1].mean()
            mean, half = paired_interval(areas[0] / unit, areas[1] / unit)
            cells.append(f"{float(mean):+.2f} ± {float(half):.2f}")
            if key == "kl":
                saved = [100.0 * labels_saved(n, mine.mean(0), other.mean(0))]
                if name == args.gain_of:
                    gains[data] = -float(mean)
                    facts[data] = {f: np.mean([base[s]["diagnosis"][f] for s in both]) for f in DIAGNOSED}
        lines.append(f"| {data} | {name} | {len(both)} | {' | '.join(cells)} | {saved[0]:+.0f} |")
    lines += [
        "",
        "KL after one batch: standard deviation over 50 random batches, and the best of them, % of their mean:",
    ]
    for (data, name), records in sorted(found.items()):
        if name == "oracle":
            kl = np.array([[entry["kl"] for entry in record["scores"]] for record in records.values()])
            kl = 100.0 * (kl / kl.mean(1, keepdims=True) - 1.0)
            lines.append(f"- {data}: {kl.std(1).mean():.1f}, {kl.min(1).mean():+.1f} ({len(kl)} splits)")
    if len(gains) > 2:
        lines += ["", f"Rank correlation, over {len(gains)} pools, of the gain of {args.gain_of} with"]
        for key in DIAGNOSED[1:]:
            rank = spearmanr([facts[data][key] for data in gains], list(gains.values()))[0]
            lines.append(f"- {key}: {rank:.2f}")
        lines += ["", "| pool | gain, % of KL | " + " | ".join(DIAGNOSED) + " |", "|---|---|" + "---|" * len(DIAGNOSED)]
        for data, gain in sorted(gains.items(), key=lambda pair: -pair[1]):
            lines.append(f"| {data} | {gain:.1f} | " + " | ".join(f"{facts[data][f]:.2f}" for f in DIAGNOSED) + " |")
    print("\n".join(lines))


def million(args):
    """Time and peak memory of one batch of 256 from a long pool, on the trees of the guides' forest."""
    torch.set_num_threads(args.threads)
    random = np.random.default_rng(0)
    X = random.normal(size=(500, 50))
    mean = np.exp(X @ random.normal(size=(50, 6)) / 4.0)
    D = np.stack([random.dirichlet(30.0 * row / row.sum() + 0.3) for row in mean])
    model = fit(X, D, 0)
    pool = random.standard_normal((args.rows, 50), dtype=np.float32)
    began, spent = time.perf_counter(), time.process_time()
    rows = query(args.strategy, pool, 256, model=model, X_labeled=X, random_state=0, kernel="trees")
    seconds, spent = time.perf_counter() - began, time.process_time() - spent
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"{len(set(rows))} of {args.rows:,} rows: {seconds:.1f} s, {spent:.1f} s of processor, peak {peak:.2f} GB")


def spend(folder, data, split, budget, votes):
    """One budget of votes, spent on so many per row: KL of the test rows' shares, and how many rows were asked."""
    torch.set_num_threads(1)
    path = Path(folder) / f"budget-{data}-{budget}-{votes:02d}-{split:02d}.json"
    if not path.exists():
        root = Path(os.environ["SNEFY_LDL_DATA"]) / "votes" / data
        X, counts = np.load(root / "features.npy").astype(float), np.load(root / "counts.npy").astype(np.int64)
        pool, test = split_rows(len(X), split, most=len(X))
        random = np.random.default_rng([split, votes, budget])
        rows = pool[: budget // votes]
        drawn = np.stack([random.multivariate_hypergeometric(row, min(votes, row.sum())) for row in counts[rows]])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = SnefyLDL(random_state=split, device=DEVICE).fit(X[rows], counts=drawn)
            shares = counts[test] / counts[test].sum(1, keepdims=True)
            kl = rel_entr(shares, np.maximum(model.predict(X[test]), 1e-12)).sum(1).mean()
        write_json(path, {"data": data, "split": split, "budget": budget, "votes": votes, "rows": len(rows), "kl": kl})
    return path.name


def budget(args):
    """Votes compete with rows: the same number of votes on many rows or on few; a table of test errors."""
    folder = Path(args.folder)
    folder.mkdir(parents=True, exist_ok=True)
    cases = [
        (data, split, total, votes)
        for split in range(args.splits)
        for data in ("ChaosNLI_SNLI", "KonIQ10k")
        for total in (1000, 4000)
        for votes in (1, 2, 4, 8, 16, 32)
        if total // votes <= (1100 if data == "ChaosNLI_SNLI" else 9000)
    ]
    with ProcessPoolExecutor(args.jobs, mp_context=get_context("spawn")) as workers:
        for name in workers.map(spend, [folder] * len(cases), *zip(*cases)):
            print(name, flush=True)
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("budget-*.json"))]
    print("| votes in all | per row | rows | KL, ± standard error |\n|---|---|---|---|")
    for key in sorted({(one["data"], one["budget"], one["votes"], one["rows"]) for one in found}):
        kl = np.array([one["kl"] for one in found if (one["data"], one["budget"], one["votes"]) == key[:3]])
        print(
            f"| {key[0]}, {key[1]:,} | {key[2]} | {key[3]} | {kl.mean():.4f} ± {kl.std(ddof=1) / len(kl) ** 0.5:.4f} |"
        )


def peer(args):
    """Batches of 64 of 20,000 rows by bmdal_reg and by ours: the same rows, and seconds of one processor."""
    setattr(np, "Inf", np.inf)  # bmdal_reg 3.0 was written for NumPy 1  # noqa: B010
    from bmdal_reg.bmdal import selection
    from bmdal_reg.bmdal.feature_data import TensorFeatureData
    from bmdal_reg.bmdal.feature_maps import IdentityFeatureMap
    from bmdal_reg.bmdal.features import Features

    torch.set_num_threads(1)
    random, n, noise = np.random.default_rng(0), 64, 1e-3
    Z, labeled = (random.normal(size=(rows, 96)) * np.geomspace(1.0, 0.05, 96) for rows in (20_000, 64))
    Z, labeled = (part / np.sqrt((Z**2).sum(1).mean()) for part in (Z, labeled))
    root = np.linalg.cholesky(np.linalg.inv(np.eye(96) + labeled.T @ labeled / noise))  # BAIT there forgets labels

    def theirs(method, root=None, **options):
        parts = [Z, labeled] if root is None else [Z @ root, labeled @ root]
        features = [Features(IdentityFeatureMap(96), TensorFeatureData(torch.as_tensor(part))) for part in parts]
        options = {"sel_with_train": root is None, "verbosity": 0} | options
        return lambda: getattr(selection, method)(*features, **options).select(n).numpy()

    sigma = {"noise_sigma": noise**0.5}
    both = {
        "lcmd": (lcmd, theirs("LargestClusterMaxDistSelectionMethod")),
        "maxdet": (maxdet, theirs("MaxDetFeatureSpaceSelectionMethod", **sigma)),
        "bait": (bait, theirs("BaitFeatureSpaceSelectionMethod", root, overselection_factor=2.0, **sigma)),
    }
    for name, (ours, other) in both.items():
        began = time.process_time()
        mine = ours(Z, n, labeled)[0]
        between = time.process_time()
        rows = other()
        seconds = between - began, time.process_time() - between
        same = len(set(mine.tolist()) & set(rows.tolist()))
        print(f"{name}: {same} of {n} rows the same; {seconds[0]:.2f} s against {seconds[1]:.2f} s")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    both = argparse.ArgumentParser(add_help=False)
    both.add_argument("--folder", required=True)
    both.add_argument("--start", type=int, default=64, help="first labels, 64 or 256")
    one = commands.add_parser("run", parents=[both])
    one.add_argument("--sets", nargs="+", default=[*REAL, *SYNTHETIC])
    one.add_argument("--strategies", nargs="+", help="also: oracle")
    one.add_argument("--first", type=int, default=0, help="first split")
    one.add_argument("--splits", type=int, default=20)
    one.add_argument("--batches", type=int, default=8)
    one.add_argument("--size", type=int, help="rows per batch; as many as first labels by default")
    one.add_argument("--jobs", type=int, default=1)
    two = commands.add_parser("report", parents=[both])
    two.add_argument("--chosen-on", type=int, default=0, help="splits below this number chose, the others report")
    two.add_argument("--up-to", type=int, default=1000, help="splits from this number on are left out")
    two.add_argument("--gain-of", default="lcmd")
    three = commands.add_parser("million")
    three.add_argument("--rows", type=int, default=1_000_000)
    three.add_argument("--strategy", default="bait")
    three.add_argument("--threads", type=int, default=2)
    four = commands.add_parser("budget", parents=[both])
    four.add_argument("--splits", type=int, default=5)
    four.add_argument("--jobs", type=int, default=1)
    commands.add_parser("peer")
    args = parser.parse_args()
    {"run": run, "report": report, "million": million, "budget": budget, "peer": peer}[args.command](args)


if __name__ == "__main__":
    main()
