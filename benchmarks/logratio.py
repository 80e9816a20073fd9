"""LogRatioLDL, SnefyLDL and the classic, on small and on wide tables.

    python benchmarks/logratio.py run --jobs 16                 # everything, splits 0..9; goes on where it stopped
    python benchmarks/logratio.py report                        # the table from what is there
    python benchmarks/logratio.py run --data Jura --splits 0..1 --methods LogRatioLDL --folder /tmp/try

The data are looked for in ``SNEFY_LDL_DATA``. Tables that :mod:`density_data` knows are split in halves as there, the
others 70 to 30. One JSON per case lies in ``--folder``; ``--jobs`` cases run side by side, each on one thread. The test
rows of some splits were looked at while the defaults were chosen (:data:`SEEN_SPLITS`); the report leaves those out
unless ``--all`` asks for them.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy and torch are loaded: every fit is timed on one thread

import argparse
import time
import traceback
import warnings
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch

import common
import density_data
from snefy_ldl import SnefyLDL
from snefy_ldl._internal.files import read_json, write_json
from snefy_ldl.logratio import LogRatioLDL
from snefy_ldl.metrics import coverage, interval_width, kl_divergence

#: Change it when a result file would mean something else: old files are then not reused.
VERSION = 1
FOLDER = common.RESULTS / "logratio"
SMALL = ("HouseholdExp", "Fairclough_timeuse", "Jura")
HALVES = ("ArcticLake", "GEMAS_texture", "GEMAS_elements", "Yeast_alpha")
#: How many splits, from 0 on, were looked at while the defaults were chosen.
SEEN_SPLITS = {
    "HouseholdExp": 6,
    "Fairclough_timeuse": 4,
    "Jura": 4,
    "ArcticLake": 5,
    "GEMAS_texture": 2,
    "GEMAS_elements": 2,
    "Yeast_alpha": 1,
}
#: What the mean negative log-likelihood must reach.
TARGETS = {"HouseholdExp": -4.9, "Fairclough_timeuse": -13.0, "Jura": -17.0, "GEMAS_elements": -110.0}
METHODS = {
    "LogRatioLDL": lambda seed: LogRatioLDL(random_state=seed),
    "SnefyLDL": lambda seed: SnefyLDL(random_state=seed, device="cpu"),
    "logistic normal": lambda seed: LogRatioLDL(n_components=1, guides=["ridge"], random_state=seed),
}


def split(name, seed):
    """Training and test rows of features and shares."""
    if name in HALVES:
        X, D, X_test, D_test, _, _ = density_data.split(name, "plain", seed)
        return X, D, X_test, D_test
    folder = Path(os.environ["SNEFY_LDL_DATA"]) / "composition" / name
    X, D = np.load(folder / "features.npy"), np.load(folder / "labels.npy")
    order = np.random.default_rng([seed, 13]).permutation(len(D))
    n_train = round(0.7 * len(D))
    train, test = np.sort(order[:n_train]), np.sort(order[n_train:])
    X, X_test = density_data.filled(X[train], X[test])
    return X, D[train], X_test, D[test]


def measure(name, seed, method):
    X, D, X_test, D_test = split(name, seed)
    model = METHODS[method](seed)
    busy = time.process_time()
    model.fit(X, D)
    seconds = time.process_time() - busy
    busy = time.process_time()
    mean, interval = model.predict(X_test), model.predict_interval(X_test, 0.9)
    asked = time.process_time() - busy
    log_prob = model.log_prob(X_test, D_test)
    return {
        "version": VERSION,
        "data": name,
        "split": seed,
        "method": method,
        "rows": len(X),
        "features": X.shape[1],
        "parts": D.shape[1],
        "nll": -float(log_prob.mean()),
        "worst_nll": -float(log_prob.min()),
        "kl": float(kl_divergence(D_test, mean)),
        "coverage": float(coverage(D_test, interval)),
        "width": float(interval_width(interval)),
        "fit_seconds": seconds,
        "answer_seconds_per_1000": 1000.0 * asked / len(X_test),
    }


def path_of(folder, case):
    return folder / ("-".join(str(part).replace(" ", "_") for part in case) + ".json")


def work(folder, case):
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    try:
        record = measure(*case)
    except Exception:
        return case, traceback.format_exc()
    write_json(path_of(folder, case), record)
    return case, f"nll {record['nll']:.3f}  kl {record['kl']:.5f}  {record['fit_seconds']:.1f} s"


def run(options):
    options.folder.mkdir(parents=True, exist_ok=True)
    write_json(options.folder / "machine.json", common.machine(1))
    cases = [(name, seed, method) for name in options.data for seed in options.splits for method in options.methods]
    todo = [c for c in cases if not (path_of(options.folder, c).is_file() and _current(path_of(options.folder, c)))]
    with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
        futures = [pool.submit(work, options.folder, case) for case in todo]
        for number, future in enumerate(as_completed(futures), 1):
            case, words = future.result()
            print(f"{number}/{len(todo)}  {' | '.join(map(str, case))}:  {words}", flush=True)


def _current(path):
    return read_json(path).get("version") == VERSION


def report(options):
    records = [read_json(path) for path in sorted(options.folder.glob("*-*.json"))]
    records = [r for r in records if r["version"] == VERSION and (options.all or r["split"] >= SEEN_SPLITS[r["data"]])]
    rows = []
    for name in dict.fromkeys(r["data"] for r in records):
        by_split = {}
        for record in records:
            if record["data"] == name:
                by_split.setdefault(record["method"], {})[record["split"]] = record
        ours = by_split.get("LogRatioLDL", {})
        for method, found in by_split.items():
            row = {"data": name, "method": method, "splits": len(found)}
            for key, digits in (("nll", 3), ("kl", 5), ("coverage", 3), ("fit_seconds", 1)):
                values = np.array([record[key] for record in found.values()])
                error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else float("nan")
                row[key] = f"{values.mean():.{digits}f} ± {error:.{digits}f}"
            both = sorted(set(ours) & set(found))
            gaps = np.array([found[s]["nll"] - ours[s]["nll"] for s in both])
            paired = len(gaps) > 1 and method != "LogRatioLDL"
            row["NLL more than LogRatioLDL's"] = (
                f"{gaps.mean():+.3f} ± {gaps.std(ddof=1) / np.sqrt(len(gaps)):.3f}" if paired else ""
            )
            row["target"] = TARGETS.get(name, "") if method == "LogRatioLDL" else ""
            rows.append(row)
    if not rows:
        raise SystemExit(f"{options.folder} holds no results yet: run first.")
    machine = read_json(options.folder / "machine.json")
    text = "# Log-ratio densities\n\n" + __doc__.split("\n")[0] + "\n\n" + common.markdown(rows)
    text += f"\n\nMean ± standard error over splits; one thread of {machine['processor']}.\n"
    common.write("logratio", {"machine": machine, "records": records}, text)


def splits_of(text):
    first, _, last = text.partition("..")
    return list(range(int(first), int(last or first) + 1))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "report"))
    parser.add_argument("--data", nargs="+", choices=SMALL + HALVES, default=SMALL + HALVES)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--splits", type=splits_of, default=splits_of("0..9"))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--all", action="store_true", help="report the splits of the choice, too")
    options = parser.parse_args()
    {"run": run, "report": report}[options.what](options)


if __name__ == "__main__":
    main()
