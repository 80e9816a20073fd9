"""Calibration at every level: how far the densities of the density benchmark are from what they promise.

    python benchmarks/calibration.py --jobs 16       # five tables, three splits; about 25 minutes of one core
    python benchmarks/calibration.py --report        # the table from what is there

For each share the level of the smallest central interval that contains it, and for each row that of the smallest
region of highest density, by 512 draws; ours have exact marginals. From half of the test rows the levels of the other
half are recalibrated: a level u becomes the share of calibration levels up to u, conformally counted. ECE is the mean
gap between curve and diagonal, "gap" the largest; "worst bin" the coverage of 90 % intervals in the worst of ten bins
of the predicted share, mean over labels, with what perfect intervals would show. ± is one standard error over the
splits of a table; without it there was one split. The first table averages over data sets, splits and labels.
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

import density
from common import RESULTS, machine, markdown, write
from snefy_ldl.errors import InputError
from snefy_ldl.metrics import coverage_level, reliability

DATA = ("SJAFFE", "SBU_3DFE", "Natural_Scene", "Yeast_spo5", "GEMAS_texture")
METHODS = [name for name, (_, variants) in density.METHODS.items() if "plain" in variants and "given" not in name]
METHODS = [name for name in METHODS if name not in ("SA-BFGS", "extra trees", "TabICL", "TabPFN")]
DRAWS, LEVEL, BINS, SEEDS = 512, 0.9, 10, 3
#: Rows whose levels are computed.
ROWS = 1000


def draws_of(model, X):
    """Draws (draws, rows, L) of a density of ours or of a peer."""
    if isinstance(model, density.Ours):
        return np.asarray(model.model.sample(X, DRAWS, random_state=0))
    return model.draws(X, DRAWS)


def levels(model, X, D):
    """Levels of the shares (N, L) and of the rows (N,), and the mean (N, L); none of rows without a density."""
    marginal, joint, means = [], [], []
    for start in range(0, len(X), 100):
        rows, shares = X[start : start + 100], D[start : start + 100]
        drawn = draws_of(model, rows)
        means.append(drawn.mean(0))
        try:
            if not isinstance(model, density.Ours):
                raise InputError("by draws")
            marginal.append(coverage_level(model.model, rows, shares))
        except InputError:
            marginal.append(np.abs(2.0 * (drawn < shares).mean(0) - 1.0))
        if hasattr(model, "log_prob"):
            flat = drawn.reshape(-1, D.shape[1])
            density_at = np.asarray(model.log_prob(np.tile(rows, (DRAWS, 1)), flat)).reshape(DRAWS, len(rows))
            joint.append((density_at > np.asarray(model.log_prob(rows, shares))).mean(0))
    return np.concatenate(marginal), np.concatenate(joint) if joint else None, np.concatenate(means)


def recalibrated(known, new):
    """New levels by their conformal rank among known ones: (N,) or (N, L) by column."""
    if new.ndim == 2:
        return np.stack([recalibrated(*pair) for pair in zip(known.T, new.T)], axis=1)
    return np.searchsorted(np.sort(known), new, side="right") / (len(known) + 1)


def worst_bin(levels, means):
    """Coverage of 90 % intervals in the worst of ten bins of the predicted share, mean over labels."""
    lowest = []
    for level, mean in zip(levels.T, means.T):
        bins = np.array_split(np.argsort(mean, kind="stable"), BINS)
        lowest.append(min((level[rows] <= LEVEL).mean() for rows in bins))
    return float(np.mean(lowest))


def measure(name, method, seed):
    """Figures of one density on one split, raw and recalibrated."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    X, D, X_test, D_test, _, keep = density.split(name, "plain", seed)
    torch.manual_seed(seed)
    start = time.perf_counter()
    try:
        model = density.METHODS[method][0]("plain", bool((density.load(name).D == 0).any()), seed)
        model.fit(X, D, keep)
    except density.peers.LeftOut as reason:
        return {"skipped": str(reason)}
    marginal, joint, means = levels(model, X_test[:ROWS], D_test[:ROWS])
    half = len(marginal) // 2
    uniform = np.random.default_rng(0).random((len(marginal) - half, D.shape[1]))
    figures = {"perfect worst bin": worst_bin(uniform, means[half:]), "seconds": time.perf_counter() - start}
    for kind, table in (("share", marginal), ("row", joint)):
        if table is None:
            continue
        for way, new in (("raw", table[half:]), ("recalibrated", recalibrated(table[:half], table[half:]))):
            curve = reliability(new)
            figures[f"{kind} ECE, {way}"] = float(np.mean(curve.ece))
            figures[f"{kind} gap, {way}"] = float(np.mean(curve.largest_gap))
            if kind == "share":
                figures[f"worst bin, {way}"] = worst_bin(new, means[half:])
    return figures


def work(folder, case):
    """Measures one case and writes it."""
    path = folder / ("-".join(map(str, case)).replace(" ", "_").replace(",", "") + ".json")
    if not path.exists():
        path.write_text(json.dumps({"case": case, "figures": measure(*case)}))
    return case


def run(folder, jobs, minutes, data, methods, seeds):
    """Every case that is missing, the slow ones first; none is started after the time is up."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "machine.txt").write_text(json.dumps(machine(1)))
    weight = {method: rank for rank, method in enumerate(density.SLOW)}
    cases = [(name, method, seed) for seed in range(seeds) for method in methods for name in data]
    cases.sort(key=lambda case: (case[2], weight.get(case[1], len(weight))))
    began, pool = time.perf_counter(), ProcessPoolExecutor(jobs, get_context("spawn"))
    waiting = {pool.submit(work, folder, case): case for case in cases}
    try:
        for future in as_completed(waiting, timeout=60.0 * minutes):
            error = future.exception()
            print(
                *waiting[future], f"failed: {error!r}" if error else f"{time.perf_counter() - began:.0f} s", flush=True
            )
    except TimeoutError:
        print("time is up: what is there is kept")
        for process in pool._processes.values():
            process.terminate()
    pool.shutdown(wait=False, cancel_futures=True)


def report(folder):
    """Means over tables and splits for each density, and the same table by table, into the results."""
    records = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    found = {tuple(record["case"]): record["figures"] for record in records if "skipped" not in record["figures"]}
    names = [name for name in DATA if any(case[0] == name for case in found)]
    keys = [key for key in next(iter(found.values())) if key not in ("seconds", "perfect worst bin")]
    text = ["# Calibration at every level", "", __doc__.split("\n\n")[2].strip(), ""]
    for name in ("all tables", *names):
        rows = []
        for method in METHODS:
            held = [f for case, f in found.items() if case[1] == method and name in ("all tables", case[0])]
            if not held or (name == "all tables" and {case[0] for case in found if case[1] == method} != set(names)):
                continue
            cells = {"density": method}
            for key in keys:
                values = [figures[key] for figures in held if key in figures]
                cells[key] = f"{np.mean(values):.3f}" if values else "–"
                if len(values) > 1 and name != "all tables":
                    cells[key] += f" ± {np.std(values, ddof=1) / len(values) ** 0.5:.3f}"
            rows.append(cells | {"splits of a table": len(held) // (len(names) if name == "all tables" else 1)})
        ceiling = [f["perfect worst bin"] for case, f in found.items() if name in ("all tables", case[0])]
        some = sorted({case[1] for case in found} - {row["density"] for row in rows}) if name == "all tables" else []
        note = [f"Only on some tables, below: {', '.join(some)}.", ""] if some else []
        text += [
            f"## {name}",
            "",
            markdown(rows),
            "",
            *note,
            f"Worst bin of perfect intervals: {np.mean(ceiling):.3f}.",
            "",
        ]
    facts = {"machine": json.loads((folder / "machine.txt").read_text()), "records": records}
    write("calibration", facts, "\n".join(text))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=1e4)
    parser.add_argument("--data", nargs="+", default=DATA)
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--folder", type=Path, default=RESULTS / "calibration")
    parser.add_argument("--report", action="store_true", help="only write the table")
    asked = parser.parse_args()
    if not asked.report:
        run(asked.folder, asked.jobs, asked.minutes, asked.data, asked.methods, asked.seeds)
    report(asked.folder)


if __name__ == "__main__":
    main()
