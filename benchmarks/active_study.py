"""Does choosing rows pay? Learning curves of batches on kernels against random rows, on ten pools.

    python benchmarks/active_study.py run --out study --workers 16 --seconds 520  # as much of the plan as that carries
    python benchmarks/active_study.py report --out study                          # tables from what is there
    python benchmarks/active_study.py keep --out study                            # as results/active_study.json
    python benchmarks/active_study.py report                                      # tables from that file
    python benchmarks/active_study.py million --threads 1                         # 256 of a million rows of 50 features
    python benchmarks/active_study.py votes                                       # new rows, or votes on fewer rows?
    python benchmarks/active_study.py peer                                        # the same batches as bmdal_reg's?

A shard is one split of one pool with all its strategies, which share test rows, first labels and first model, so that
differences are paired; will_it_help is asked once, with the first labels. Shards run in the order of splits, so that a
run that is cut leaves as many splits of each pool. Records go to ``records.jsonl``, a line per curve; a further run
with the same folder goes on where the last one stopped. ``rule`` is the curve that will_it_help's answer leads to: the
recommended strategy's if it says that choosing pays, that of random rows elsewhere. ``oracle`` fits after each of 50
random batches, takes the best by one half of the test rows, fits it again with other seeds, and measures these on the
other half: what choosing one batch could win at most of 50 tries, without the luck of seeds and test rows.

The model is the default one with fewer neurons and epochs, and with scaling, centre and zeros settled as the default
settles them on most splits: a fifth of the default's time. Real data lies in the folder that SNEFY_LDL_DATA names.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time
import warnings
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from scipy.special import rel_entr
from scipy.stats import rankdata, spearmanr, t
from sklearn.isotonic import isotonic_regression

from common import RESULTS, area_under_curve, stamp
from density_data import load
from snefy_ldl import SnefyLDL
from snefy_ldl.active import query, will_it_help
from snefy_ldl.active.batches import bait, lcmd
from snefy_ldl.votes import next_vote

#: Change it when a record would mean something else: old ones are then not reused.
VERSION = 3
REAL = ("Movie", "Natural_Scene", "SBU_3DFE", "Yeast_alpha", "KonIQ10k", "GEMAS_elements", "IMDb_movies", "ECAM")
SYNTHETIC = ("clustered", "long_tail")
POOLS = (*REAL, *SYNTHETIC)
#: Settings that stand in for the default's search.
MODEL = {"n_neurons": 16, "n_readouts": 8, "epochs": 12, "zeros": "shrink", "standardize": "unit", "device": "cpu"}
GEOMETRIC = ("GEMAS_elements", "ECAM")
#: Strategy, its options, and the part of each batch that it chooses (the rest is random).
STRATEGIES = {
    "random": ("random", {}, 1.0),
    "bait": ("bait", {}, 1.0),
    "lcmd": ("lcmd", {}, 1.0),
    "half bait": ("bait", {}, 0.5),
    "lcmd fisher": ("lcmd", {"kernel": "fisher"}, 1.0),
}
#: Strategies that the choosing splits compare, and the batches of their curves there.
CONTENDERS, CHOOSING_BATCHES = ("bait", "lcmd"), 4
#: Splits below this number choose, the others report.
CHOOSING, SPLITS = 5, 20
MEASURES = ("kl", "nll", "worst")
START, SIZE, BATCHES = 64, 64, 7
MOST_TEST, MOST_POOL, NLL_ROWS = 1000, 2000, 200
ORACLE_BATCHES, ORACLE_SEEDS, ORACLE_SPLITS = 50, 6, (5,)
#: A shard needs so long for its first model and will_it_help.
START_SECONDS = 12
#: Records without the numbers of labelled rows, which anybody may report from.
KEPT = RESULTS / "active_study.json"
#: Share of labels that choosing rows should save.
WANTED = 0.15
DIAGNOSED = ("helps", "slope", "rmse_mae", "foreseen", "redundancy", "epistemic_share", "score")


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


# -- running -----------------------------------------------------------------------------------------------------------


class Shard:
    """One split of one pool."""

    def __init__(self, data, split, deadline=float("inf")):
        torch.set_num_threads(1)
        warnings.simplefilter("ignore")
        self.data, self.split, self.deadline = data, split, deadline
        self.X, self.D = read(data)
        self.pool, self.test = split_rows(len(self.D), split)
        self.size = min(SIZE, (len(self.pool) // 2 - START) // BATCHES)

    @property
    def late(self):
        return time.time() > self.deadline

    def fit(self, rows, seed):
        centre = "geometric" if self.data in GEOMETRIC else None
        return SnefyLDL(random_state=seed, centre=centre, **MODEL).fit(self.X[rows], self.D[rows])

    def kl(self, model):
        """KL divergence of each test row."""
        return rel_entr(self.D[self.test], np.maximum(model.predict(self.X[self.test]), 1e-12)).sum(1)

    def measure(self, model):
        """Mean KL, mean negative log likelihood, and mean KL of the worst twentieth of rows."""
        kl, few = self.kl(model), self.test[:NLL_ROWS]
        worst = np.sort(kl)[-max(1, len(kl) // 20) :].mean()
        nll = -float(np.mean(model.log_prob(self.X[few], self.D[few])))
        return {"kl": float(kl.mean()), "nll": nll, "worst": float(worst)}

    def choose(self, name, model, labeled, seed):
        """The labelled rows with those that a strategy asks for next."""
        strategy, options, part = STRATEGIES[name]
        free, n = np.setdiff1d(self.pool, labeled), round(part * self.size)
        chance = np.random.default_rng(seed).permutation(free)
        rows = free[query(strategy, self.X[free], n, model, self.X[labeled], seed, **options)]
        return np.concatenate([labeled, rows, chance[~np.isin(chance, rows)][: self.size - n]])

    def curves(self, records):
        """Learning curves of the strategies of some records, as far as the time carries; yields finished records."""
        seed, start = 1000 * self.split, self.pool[:START]
        first = self.fit(start, seed)
        shared = next((r["scores"][:1] for r in records if r["scores"]), None) or [self.measure(first)]
        for record in records:
            if record["strategy"] == "random" and record["diagnosis"] is None:
                found = will_it_help(first, self.X[start], self.D[start], self.X[self.pool[START:]], seed)
                record["diagnosis"] = {key: float(getattr(found, key)) for key in DIAGNOSED}
            record["scores"] = record["scores"] or shared
            labeled, model = np.array(record["labeled"] or start.tolist()), None
            batches = CHOOSING_BATCHES if self.split < CHOOSING else BATCHES
            while len(record["scores"]) <= batches and not self.late:
                began, step = time.process_time(), len(record["scores"])
                if model is None:
                    model = first if step == 1 else self.fit(labeled, seed + step - 1)
                labeled = self.choose(record["strategy"], model, labeled, seed + step)
                model = self.fit(labeled, seed + step)
                record["scores"] = [*record["scores"], self.measure(model)]
                record["labeled"] = labeled.tolist()
                record["seconds"] += time.process_time() - began
            record["finished"] = len(record["scores"]) > batches
            if len(record["scores"]) > 1:
                yield record

    def oracle(self, records):
        """KL after each of some random batches by both halves of the test rows, then of the best one with new seeds."""
        (record,) = records
        seed, half = 1000 * self.split + 1, len(self.test) // 2
        record["scores"] = list(record["scores"])

        def both(batch, seed):
            rows = np.random.default_rng([self.split, batch]).choice(self.pool[START:], self.size, replace=False)
            kl = self.kl(self.fit(np.concatenate([self.pool[:START], rows]), seed))
            return [float(kl[:half].mean()), float(kl[half:].mean())]

        while len(record["scores"]) < ORACLE_BATCHES + ORACLE_SEEDS and not self.late:
            batch = len(record["scores"])
            if batch < ORACLE_BATCHES:
                record["scores"].append(both(batch, seed + batch))
            else:
                best = int(np.argmin([one[0] for one in record["scores"][:ORACLE_BATCHES]]))
                record["scores"].append(both(best, seed + batch))
        record["finished"] = len(record["scores"]) == ORACLE_BATCHES + ORACLE_SEEDS
        yield record


def run_shard(data, split, records, deadline):
    shard = Shard(data, split, deadline)
    work = shard.oracle if records[0]["strategy"] == "oracle" else shard.curves
    return list(work(records))


def read_records(out):
    """The last record of each (data, split, strategy) of a folder."""
    found, path = {}, Path(out) / "records.jsonl"
    for line in path.read_text().splitlines() if path.exists() else []:
        record = json.loads(line)
        if record["version"] == VERSION:
            found[record["data"], record["split"], record["strategy"]] = record
    return found


def keep(args):
    """Write the records of a folder and what the choosing splits said as one result file."""
    records = []
    for record in read_records(args.out).values():
        told = record["diagnosis"] and {k: None if np.isnan(v) else v for k, v in record["diagnosis"].items()}
        short = {key: value for key, value in record.items() if key != "labeled"}
        records.append(short | {"n_labeled": len(record["labeled"]), "diagnosis": told})
    choosing = Path(args.out) / "choosing.json"
    facts = {"choosing": json.loads(choosing.read_text()) if choosing.exists() else None, "records": records}
    KEPT.write_text(json.dumps(facts, default=float) + "\n")
    stamp(KEPT.name)


def kept_records():
    """The records of the result file, by (data, split, strategy)."""
    return {(r["data"], r["split"], r["strategy"]): r for r in json.loads(KEPT.read_text())["records"]}


def plan(args):
    """Shards in their order, (split, data, strategies); those of reporting splits are settled by the choosing ones."""
    everywhere = [(split, data) for split in range(args.splits) for data in args.sets]
    choosing = [(*one, ("random", *CONTENDERS)) for one in everywhere if one[0] < CHOOSING]
    oracles = [(split, data, ("oracle",)) for split in ORACLE_SPLITS for data in args.sets]
    return choosing + oracles + [(*one, None) for one in everywhere if one[0] >= CHOOSING]


def recommended(records):
    """The contender with the lowest area under the KL curve on choosing splits: the mean over pools of its change
    against random rows, of which at most 10 % count, so that no pool decides alone."""
    found = curves(records, range(CHOOSING))
    change = {
        name: np.mean(
            [
                np.clip(
                    area_under_curve(t["n"], t[name]["kl"]).mean() / area_under_curve(t["n"], t["random"]["kl"]).mean()
                    - 1.0,
                    -0.1,
                    0.1,
                )
                for t in found.values()
            ]
        )
        for name in CONTENDERS
    }
    return min(CONTENDERS, key=change.__getitem__)


def open_records(known, split, data, names):
    """The records of a shard that are not finished, new ones if there are none."""
    records = []
    for name in names:
        new = {"version": VERSION, "data": data, "split": split, "strategy": name}
        new |= {"labeled": [], "scores": [], "diagnosis": None, "seconds": 0.0, "finished": False}
        records.append(known.get((data, split, name), new))
    return [record for record in records if not record["finished"]]


def run(args):
    deadline = time.time() + args.seconds
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    known, waiting, running = read_records(out), plan(args), {}
    n_shards = len(waiting)
    with (
        ProcessPoolExecutor(args.workers, mp_context=get_context("spawn")) as workers,
        (out / "records.jsonl").open("a") as file,
    ):
        while waiting or running:
            while waiting and len(running) < args.workers:
                split, data, names = waiting[0]
                if names is None and any(other < CHOOSING for _, other in running.values()):
                    break  # what to report is not chosen yet
                del waiting[0]
                records = open_records(known, split, data, names or ("random", recommended(known)))
                if records and time.time() < deadline - START_SECONDS:
                    running[workers.submit(run_shard, data, split, records, deadline)] = data, split
            for done in wait(running, return_when=FIRST_COMPLETED).done:
                data, split = running.pop(done)
                try:
                    records = done.result()
                except Exception as error:
                    print(f"{data} {split} failed: {type(error).__name__}: {error}", flush=True)
                    continue
                for record in records:
                    known[data, split, record["strategy"]] = record
                    file.write(json.dumps(record) + "\n")
                file.flush()
                told = ", ".join(f"{r['strategy']} {len(r['scores'])}" for r in records)
                print(f"{n_shards - len(waiting)}/{n_shards} {data} {split}: {told}", flush=True)
    print(f"recommended: {recommended(known)}", flush=True)


# -- reporting ---------------------------------------------------------------------------------------------------------


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


def curves(records, splits):
    """data -> strategy -> measure -> (splits, batches + 1), of splits on which all strategies but the oracle ended."""
    names = {key[2] for key in records if key[2] != "oracle" and key[1] in splits}
    found = {}
    if "random" not in names:
        return found
    for data in POOLS:
        both = [s for s in splits if all(records.get((data, s, name), {}).get("finished") for name in names)]
        if len(both) < 2:
            continue
        ended = {name: [records[data, s, name] for s in both] for name in names}
        found[data] = {
            name: {key: np.array([[one[key] for one in record["scores"]] for record in these]) for key in MEASURES}
            for name, these in ended.items()
        }
        first = ended["random"][0]
        last = first["n_labeled"] if "n_labeled" in first else len(first["labeled"])
        found[data]["n"] = np.linspace(START, last, len(first["scores"]))
        found[data]["diagnosis"] = {
            key: np.array([r["diagnosis"][key] for r in ended["random"]], dtype=float) for key in DIAGNOSED
        }
    return found


def compare(these, name):
    """Measure -> difference to random rows and half-width of its 95 % interval; "saved": % of labels, standard error
    and half-width."""
    n, found = these["n"], {}
    for key in MEASURES:
        mine, other = (area_under_curve(n, these[who][key]) for who in (name, "random"))
        unit = 1.0 if key == "nll" else 0.01 * other.mean()
        found[key] = tuple(map(float, paired_interval(mine / unit, other / unit)))
    saved, error = jackknife(lambda a, b: 100.0 * labels_saved(n, a, b), these[name]["kl"], these["random"]["kl"])
    return found | {"saved": (saved, error, float(t.ppf(0.975, len(mine) - 1)) * error)}


def table_of_gains(found, chosen):
    """Lines of the main table and of what it counts, and the gain of the recommended strategy, % of random rows' KL."""
    heads = [f"{key}, {'nats' if key == 'nll' else '%'} less random" for key in MEASURES]
    lines = ["| pool | strategy | splits | " + " | ".join(heads) + " | labels saved, % |", "|---" * 7 + "|"]
    names = sorted({name for these in found.values() for name in these} - {"random", "n", "diagnosis"})
    compared = {(data, name): compare(these, name) for data, these in found.items() for name in names}
    for (data, name), one in compared.items():
        cells = [f"{one[key][0]:+.2f} ± {one[key][1]:.2f}" for key in MEASURES]
        cells.append(f"{one['saved'][0]:+.0f} ± {one['saved'][1]:.0f}")
        lines.append(f"| {data} | {name} | {len(found[data][name]['kl'])} | {' | '.join(cells)} |")
    for name in names:
        these = {data: one for (data, who), one in compared.items() if who == name}

        def pools(holds, these=these):
            chosen = [data for data, one in these.items() if holds(one)]
            return f"{len(chosen)} ({', '.join(chosen)})" if chosen else "0"

        lines += ["", f"Pools of {len(these)} where {name}"]
        lines.append(f"- saves {WANTED:.0%} of the labels: {pools(lambda one: one['saved'][0] >= 100 * WANTED)}")
        lines.append(f"- saves labels, clear of zero: {pools(lambda one: one['saved'][0] > one['saved'][2])}")
        lines.append(f"- needs more labels, clear of zero: {pools(lambda one: -one['saved'][0] > one['saved'][2])}")
        for key in MEASURES:
            lower, higher = (pools(lambda one, k=key, s=s: s * one[k][0] > one[k][1]) for s in (-1.0, 1.0))
            lines.append(f"- has a {key} clearly lower: {lower}; clearly higher: {higher}")
    return lines, {data: -one["kl"][0] for (data, name), one in compared.items() if name == chosen}


def table_of_oracles(records):
    lines = ["| pool | spread of KL over 50 batches, % | best of 50, % | the same without luck, % |", "|---" * 4 + "|"]
    for (data, _, name), record in sorted(records.items(), key=lambda pair: POOLS.index(pair[0][0])):
        if name == "oracle" and record["finished"]:
            kl = np.array(record["scores"])
            tried, again = kl[:ORACLE_BATCHES], kl[ORACLE_BATCHES:, 1]
            level = tried.mean(0)
            error = again.std(ddof=1) / np.sqrt(len(again))
            cells = tried.mean(1).std() / level.mean(), tried.mean(1).min() / level.mean() - 1.0
            real = f"{100 * (again.mean() / level[1] - 1.0):+.1f} ± {100 * error / level[1]:.1f}"
            lines.append(f"| {data} | {100 * cells[0]:.1f} | {100 * cells[1]:+.1f} | {real} |")
    return lines


def table_of_ranks(found, gains):
    """How the figures of will_it_help rank the pools: over all, without each of them, and with each left out.

    Left out: the figure that ranks the other pools best gives a pool its rank.
    """
    facts = {data: {key: these["diagnosis"][key].mean() for key in DIAGNOSED} for data, these in found.items()}
    won = np.array(list(gains.values()))
    figures = [key for key in DIAGNOSED[1:-1] if all(np.isfinite(facts[data][key]) for data in gains)]
    table = np.array([[facts[data][key] for key in figures] for data in gains])
    lines = ["| figure | rank correlation with the gain | without one pool, least |", "|---" * 3 + "|"]
    without = np.array(
        [[_rank_correlation(np.delete(values, k), np.delete(won, k)) for values in table.T] for k in range(len(won))]
    )
    for number, key in enumerate(figures):
        lines.append(f"| {key} | {_rank_correlation(table[:, number], won):.2f} | {without[:, number].min():.2f} |")
    lines += [f"| {key} | not measured | not measured |" for key in DIAGNOSED[1:-1] if key not in figures]
    best = without.argmax(1)
    ranks = rankdata(table, axis=0)[np.arange(len(won)), best]
    names = ", ".join(f"{figures[k]} for {np.sum(best == k)}" for k in np.unique(best))
    lines += ["", f"Leaving out one pool at a time: {_rank_correlation(ranks, won):.2f} ({names}).", ""]
    lines += ["| pool | gain, % of KL | " + " | ".join(DIAGNOSED) + " |", "|---" * (2 + len(DIAGNOSED)) + "|"]
    for data, gain in sorted(gains.items(), key=lambda pair: -pair[1]):
        cells = [f"{facts[data][key]:.2f}" if np.isfinite(facts[data][key]) else "not measured" for key in DIAGNOSED]
        lines.append(f"| {data} | {gain:.1f} | " + " | ".join(cells) + " |")
    return lines


def _rank_correlation(first, second):
    return float(spearmanr(first, second)[0]) if np.ptp(first) > 0.0 else 0.0


def report(args):
    """Areas under the curves against random rows, labels saved, oracles, and how will_it_help ranks the pools."""
    records = read_records(args.out) if args.out else kept_records()
    reported = {name for _, split, name in records if split >= CHOOSING} & set(CONTENDERS)
    chosen = reported.pop() if len(reported) == 1 else recommended(records)
    print(f"Recommended by the choosing splits: {chosen}\n")
    for title, splits in (("Reporting", range(CHOOSING, SPLITS)), ("Choosing", range(CHOOSING))):
        found = curves(records, splits)
        for these in found.values():
            helps = these["diagnosis"]["helps"].astype(bool)[:, None]
            these["rule"] = {key: np.where(helps, these[chosen][key], these["random"][key]) for key in MEASURES}
        if not found:
            continue
        lines, gains = table_of_gains(found, chosen)
        print(f"## {title} splits\n", *lines, "", sep="\n")
        if len(gains) > 2:
            print(*table_of_ranks(found, gains), "", sep="\n")
    print("## Oracle\n", *table_of_oracles(records), sep="\n")


def million(args):
    """Time and peak memory of one batch of 256 from a long pool, on the trees of the guides' forest."""
    torch.set_num_threads(args.threads)
    random = np.random.default_rng(0)
    X = random.normal(size=(500, 50))
    mean = np.exp(X @ random.normal(size=(50, 6)) / 4.0)
    D = np.stack([random.dirichlet(30.0 * row / row.sum() + 0.3) for row in mean])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = SnefyLDL(random_state=0).fit(X, D)
    pool = random.standard_normal((args.rows, 50), dtype=np.float32)
    began, spent = time.perf_counter(), time.process_time()
    rows = query(args.strategy, pool, 256, model=model, X_labeled=X, random_state=0, kernel="trees")
    seconds, spent = time.perf_counter() - began, time.process_time() - spent
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"{len(set(rows))} of {args.rows:,} rows: {seconds:.1f} s, {spent:.1f} s of processor, peak {peak:.2f} GB")


def buy(data, split, way, total=1000, step=100):
    """KL of test rows after so many votes, bought by so many per row or one at a time, and how many rows were asked.

    One at a time: after every 100 votes a small model on features says of all rows, asked or new, where one more vote
    is worth most (``next_vote``); so are votes that are left over. The model that is measured is of the study's kind.
    """
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    root = Path(os.environ["SNEFY_LDL_DATA"]) / "votes" / data
    X, counts = np.load(root / "features.npy").astype(float), np.load(root / "counts.npy").astype(np.int64)
    pool, test = split_rows(len(X), split)
    random, bought = np.random.default_rng([split, len(data)]), np.zeros_like(counts)
    votes = [random.permutation(np.repeat(np.arange(counts.shape[1]), counts[row])) for row in pool]

    def give(numbers):
        for number in numbers:
            row = pool[number]
            bought[row, votes[number][bought[row].sum()]] += 1

    if isinstance(way, int):
        give(np.repeat(np.arange(min(total // way, len(pool))), way))
    else:
        give(np.arange(2 * step))
    small = SnefyLDL(random_state=split, guides=None, n_members=3, **MODEL)
    while (left := total - int(bought.sum())) > 0:
        asked = pool[bought[pool].sum(1) > 0]
        model = small.fit(X[asked], counts=bought[asked])
        give(next_vote(model, X[pool], bought[pool], n=min(step, left)))
    asked = pool[bought[pool].sum(1) > 0]
    model = SnefyLDL(random_state=split, **MODEL).fit(X[asked], counts=bought[asked])
    shares = counts[test] / counts[test].sum(1, keepdims=True)
    return rel_entr(shares, np.maximum(model.predict(X[test]), 1e-12)).sum(1).mean(), len(asked)


def votes(args):
    """Votes compete with rows for one budget: a table of test errors, paired with one vote per row."""
    ways = (1, 2, 4, 8, 16, "one at a time")
    print("| 1,000 votes | per row | rows | KL, ± standard error | less one vote per row |\n|---|---|---|---|---|")
    for data in ("ChaosNLI_SNLI", "KonIQ10k"):
        found = np.array([[buy(data, split, way) for way in ways] for split in range(args.splits)])
        for way, (kl, rows) in zip(ways, found.transpose(1, 2, 0)):
            gap = kl - found[:, 0, 0]
            error, gap_error = (values.std(ddof=1) / len(values) ** 0.5 for values in (kl, gap))
            cells = f"{kl.mean():.4f} ± {error:.4f} | {gap.mean():+.4f} ± {gap_error:.4f}"
            print(f"| {data} | {way} | {rows.mean():.0f} | {cells} |", flush=True)


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
    one = commands.add_parser("run")
    one.add_argument("--out", required=True, help="folder of records.jsonl")
    one.add_argument("--sets", nargs="+", default=list(POOLS))
    one.add_argument("--splits", type=int, default=SPLITS)
    one.add_argument("--workers", type=int, default=1)
    one.add_argument("--seconds", type=float, default=float("inf"), help="start nothing new after so many")
    two = commands.add_parser("report")
    two.add_argument("--out", help="folder of records.jsonl; else results/active_study.json is reported")
    commands.add_parser("keep").add_argument("--out", required=True)
    three = commands.add_parser("million")
    three.add_argument("--rows", type=int, default=1_000_000)
    three.add_argument("--strategy", default="lcmd")
    three.add_argument("--threads", type=int, default=2)
    four = commands.add_parser("votes")
    four.add_argument("--splits", type=int, default=5)
    commands.add_parser("peer")
    args = parser.parse_args()
    {"run": run, "report": report, "keep": keep, "million": million, "votes": votes, "peer": peer}[args.command](args)


if __name__ == "__main__":
    main()
