"""The study of active_study.py with networks trained together on a GPU.

    python benchmarks/active_gpu.py --out study --workers 14 --seconds 385   # then: active_study.py report --out study

What a batch on trees asks for depends on the guides alone, so processes beside the GPU make the guides and the labelled
rows of whole curves, and ``fit_many`` trains the networks that see these guides: all splits and strategies of a pool at
once. The model is the default's candidate "guides". Five splits choose the strategy by the error of the guides' mean;
fifteen others report random rows and that strategy.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from functools import cache
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from scipy.special import rel_entr
from snefy_ldl.training.search import _guidance as guidance

from active_study import (
    CHOOSING,
    CONTENDERS,
    DIAGNOSED,
    GEOMETRIC,
    ORACLE_BATCHES,
    ORACLE_SEEDS,
    POOLS,
    START,
    VERSION,
    query,
    read,
    split_rows,
    will_it_help,
)
from snefy_ldl import SnefyLDL
from snefy_ldl.snefy import fit_many
from snefy_ldl.training import Job, TrainingData

SIZE, BATCHES = 54, 8
#: Splits whose networks are trained together, in the order in which they matter.
BLOCKS = (range(5, 13), range(13, 20), range(CHOOSING))
#: Few neurons: every fitted law is checked against its draws, a quarter of a fit on a CPU with the default's 64.
MODEL = {"guides": None, "zeros": "shrink", "standardize": "unit", "n_neurons": 16, "n_readouts": 8, "n_members": 5}
NLL_ROWS = 300


@cache
def labels_of(data):
    return read(data)[1]


class Rows:
    """One split of one pool."""

    def __init__(self, data, split):
        torch.set_num_threads(1)
        warnings.simplefilter("ignore")
        self.data, self.split = data, split
        self.X, self.D = read(data)
        self.pool, self.test = split_rows(len(self.D), split)
        self.size = min(SIZE, (len(self.pool) // 2 - START) // BATCHES)

    def guides(self, labeled, seed):
        """Guides as the default makes them, what a network sees of labelled and test rows, and the guides' own KL."""
        settings = SnefyLDL(random_state=seed, zeros="shrink", device="cpu").settings()
        found = guidance(Job(settings, TrainingData(self.X[labeled], self.D[labeled], None, None, custom=False)))
        seen = found.guides.features(self.X[self.test])
        logs = seen.reshape(len(seen), len(found.guides.learners), -1).mean(1)
        logs = logs if found.log_centre is None else logs + found.log_centre
        mean = np.exp(logs - logs.max(1, keepdims=True))
        kl = rel_entr(self.D[self.test], np.maximum(mean / mean.sum(1, keepdims=True), 1e-12)).sum(1).mean()
        return found.guides, {"rows": labeled, "table": np.float32(found.table), "test": np.float32(seen), "kl": kl}


class Guided:
    """As much of a fitted model as the trees kernel asks for."""

    def __init__(self, guides):
        self.guides_ = guides

    def encode(self, X):
        return X

    def predict_dist(self, X):
        raise NotImplementedError


def follow(data, split, strategy):
    """The labelled rows and guides of one curve, and what will_it_help says of its first rows."""
    here, steps, diagnosis = Rows(data, split), [], None
    labeled, began = here.pool[:START], time.process_time()
    while True:
        seed = 1000 * split + len(steps)
        guides, step = here.guides(labeled, seed)
        model = Guided(guides)
        if strategy == "random" and not steps:
            found = will_it_help(model, here.X[labeled], here.D[labeled], here.X[here.pool[START:]], seed)
            diagnosis = {key: float(getattr(found, key)) for key in DIAGNOSED}
        steps.append(step)
        if len(steps) > BATCHES:
            return steps, diagnosis, time.process_time() - began
        free = np.setdiff1d(here.pool, labeled)
        rows = query(strategy, here.X[free], here.size, model, here.X[labeled], seed)
        labeled = np.concatenate([labeled, free[rows]])


def try_batches(data, split, batches):
    """Guides after the first labels and one random batch each, given as (number of the batch, seed)."""
    here, steps = Rows(data, split), []
    for batch, seed in batches:
        rows = np.random.default_rng([split, batch]).choice(here.pool[START:], here.size, replace=False)
        steps.append(here.guides(np.concatenate([here.pool[:START], rows]), seed)[1])
    return steps


def train(data, steps, seeds, device):
    """Networks on the guides of some steps, trained together; for each the KL of test rows and their mean -log p."""
    D, rows = labels_of(data), [step["rows"] for step in steps]
    ends = np.cumsum([0] + [len(one) for one in rows])
    base = SnefyLDL(centre="geometric" if data in GEOMETRIC else None, device=device, **MODEL)
    parts = [np.arange(a, b) for a, b in pairwise(ends)]
    table = np.concatenate([step["table"] for step in steps])
    params = [{"random_state": int(seed)} for seed in seeds]
    models = fit_many(base, table, D[np.concatenate(rows)], parts, params, n_jobs=1)
    results = []
    for model, step in zip(models, steps):
        truth = D[step["tested"]]
        kl = rel_entr(truth, np.maximum(model.predict(step["test"]), 1e-12)).sum(1)
        results.append((kl, -float(np.mean(model.log_prob(step["test"][:NLL_ROWS], truth[:NLL_ROWS])))))
    return results


def measures(kl, nll):
    return {"kl": float(kl.mean()), "nll": nll, "worst": float(np.sort(kl)[-max(1, len(kl) // 20) :].mean())}


class Study:
    """What is planned, what processes found, and what the networks measured."""

    def __init__(self, args):
        self.args, self.curves = args, {}
        self.deadline = time.time() + args.seconds
        self.out = Path(args.out)
        self.out.mkdir(parents=True, exist_ok=True)

    def write(self, records):
        with (self.out / "records.jsonl").open("a") as file:
            for record in records:
                file.write(json.dumps(record) + "\n")

    def tested(self, data, split):
        return split_rows(len(labels_of(data)), split)[1]

    def chosen(self):
        """The contender whose guides' mean has the lowest area on choosing splits; at most 10 % of a pool count."""

        def change(name):
            areas = [
                [
                    np.mean([[step["kl"] for step in self.curves[data, split, who][0]] for split in range(CHOOSING)])
                    for who in (name, "random")
                ]
                for data in self.args.sets
            ]
            return np.mean([np.clip(mine / other - 1.0, -0.1, 0.1) for mine, other in areas])

        changes = {name: float(change(name)) for name in CONTENDERS}
        print("changes on choosing splits:", changes, flush=True)
        (self.out / "choosing.json").write_text(json.dumps(changes) + "\n")
        return min(changes, key=changes.get)

    def train_block(self, data, splits, names):
        """Networks of all curves of some splits of a pool, step by step."""
        keys = [(data, split, name) for split in splits for name in names]
        scores = {key: [] for key in keys}
        for number in range(BATCHES + 1):
            if self.left() < 0:
                return
            began = time.time()
            steps = [self.curves[key][0][number] | {"tested": self.tested(*key[:2])} for key in keys]
            results = train(data, steps, [1000 * key[1] + number for key in keys], self.args.device)
            for key, result in zip(keys, results):
                scores[key].append(measures(*result))
            print(f"{data}, batch {number}: {len(keys)} models in {time.time() - began:.1f} s", flush=True)
        self.write(
            {"version": VERSION, "data": data, "split": key[1], "strategy": key[2], "scores": scores[key]}
            | {"labeled": self.curves[key][0][-1]["rows"].tolist(), "diagnosis": self.curves[key][1], "finished": True}
            | {"seconds": self.curves[key][2], "guides": [float(step["kl"]) for step in self.curves[key][0]]}
            for key in keys
        )

    def train_oracle(self, data, split, steps):
        """Random batches by both halves of the test rows, then the best of them with new seeds."""
        tested = self.tested(data, split)
        steps = [step | {"tested": tested} for step in steps]
        seeds = [1000 * split + number for number in range(len(steps) + ORACLE_SEEDS)]
        half = len(tested) // 2

        def halves(results):
            return [[float(kl[:half].mean()), float(kl[half:].mean())] for kl, _ in results]

        scores = halves(train(data, steps, seeds[: len(steps)], self.args.device))
        best = int(np.argmin([one[0] for one in scores]))
        again = try_batches(data, split, [(best, seed) for seed in seeds[len(steps) :]])
        again = [step | {"tested": tested} for step in again]
        scores += halves(train(data, again, seeds[len(steps) :], self.args.device))
        record = {"version": VERSION, "data": data, "split": split, "strategy": "oracle", "scores": scores}
        self.write([record | {"finished": True, "diagnosis": None, "labeled": [], "seconds": 0.0}])

    def run(self):
        args, waiting, running = self.args, [], {}
        for split in range(CHOOSING):
            waiting += [(follow, (data, split, name)) for data in args.sets for name in ("random", *CONTENDERS)]
        first = BLOCKS[0][0]
        batches = [(number, 1000 * first + number) for number in range(ORACLE_BATCHES)]
        waiting += [(try_batches, (data, first, batches)) for data in args.sets]
        for block in BLOCKS[:2]:
            waiting += [(follow, (data, split, None)) for data in args.sets for split in block]
        oracles, chosen, ready = {}, None, []
        blocks = [(data, block) for block in BLOCKS for data in args.sets]
        with ProcessPoolExecutor(args.workers, mp_context=get_context("spawn")) as workers:
            while (waiting or running or blocks or oracles) and time.time() < self.deadline:
                while waiting and len(running) < args.workers + 2:
                    work, case = waiting[0]
                    if case[-1] is None:
                        if chosen is None:
                            break  # what to report is not chosen yet
                        for name in ("random", chosen):
                            running[workers.submit(follow, *case[:2], name)] = (*case[:2], name)
                    else:
                        running[workers.submit(work, *case)] = case
                    del waiting[0]
                for done in wait(running, timeout=0.05, return_when=FIRST_COMPLETED).done:
                    case = running.pop(done)
                    try:
                        if isinstance(case[-1], str):
                            self.curves[case] = done.result()
                        else:
                            oracles[case[:2]] = done.result()
                    except Exception as error:
                        print(f"{case[:2]} failed: {type(error).__name__}: {error}", flush=True)
                if chosen is None and sum(key[1] < CHOOSING for key in self.curves) == CHOOSING * len(args.sets) * 3:
                    chosen = self.chosen()
                    print(f"{self.left():.0f} s left: recommended {chosen}", flush=True)
                if chosen is None:
                    continue
                ready = [
                    (data, block)
                    for data, block in blocks
                    if all((data, s, name) in self.curves for s in block for name in ("random", chosen))
                    and (block is not BLOCKS[2] or not waiting)
                ]
                try:
                    if ready:
                        blocks.remove(ready[0])
                        data, block = ready[0]
                        self.train_block(data, block, ("random", *(CONTENDERS if block is BLOCKS[2] else [chosen])))
                    elif oracles:
                        (data, split), steps = oracles.popitem()
                        ready = [(data, "oracle")]
                        self.train_oracle(data, split, steps)
                    elif not waiting and not running:
                        break
                    if ready:
                        print(
                            f"{self.left():.0f} s left: {ready[0]}, {len(running) + len(waiting)} to come", flush=True
                        )
                except Exception as error:
                    print(f"{ready[0]} failed: {type(error).__name__}: {error}", flush=True)
            for future in running:
                future.cancel()

    def left(self):
        return self.deadline - time.time()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True)
    parser.add_argument("--sets", nargs="+", default=list(POOLS))
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--seconds", type=float, default=385)
    parser.add_argument("--device", default="cuda")
    warnings.simplefilter("ignore")
    Study(parser.parse_args()).run()


if __name__ == "__main__":
    main()
