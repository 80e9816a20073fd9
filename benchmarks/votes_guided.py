"""Votes with guides and members: against smoothed shares, against the fit without guides, and with few votes.

    python benchmarks/votes_guided.py run --jobs 8 --minutes 6     # five splits, half of the rows train
    python benchmarks/votes_guided.py report                       # tables from what is there
    python benchmarks/votes_guided.py run --seeds 0..0 --tiny      # everything once, small, to see that it runs

Study ``all`` trains on all votes of the training rows; study ``few`` on 1, 2, 4, ... votes of each of at most 2,500
training rows. Both are scored by the log likelihood of all votes of the test rows. On the ordered ratings KonIQ10k and
POPQUORN the ordinal scores of the predictions are measured as well. Everything is resumable: one JSON per case in
``--folder``; a case that was stopped goes on after its last method.

Data as in :mod:`votes_models`; POPQUORN is ``annotators/POPQUORN_offensiveness`` (votes.csv, text.csv, embeddings.npy),
or the arrays X and counts in the file that VOTES_POPQUORN names.
"""

from __future__ import annotations

import argparse
import json
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch

import common
from snefy_ldl._internal.files import write_json
from votes_models import draw_votes, fit_and_score, load, split_rows
from votes_report import paired

#: Change it when a result file would mean something else: old files are then not reused.
VERSION = 1
FOLDER = common.RESULTS / "votes_guided"
DATA = ("KonIQ10k", "ChaosNLI_SNLI", "LIDC", "POPQUORN")
BUDGETS = {
    "KonIQ10k": (1, 2, 4, 8, 16, 32),
    "ChaosNLI_SNLI": (1, 2, 4, 8, 16, 32),
    "LIDC": (1, 2),
    "POPQUORN": (1, 2, 4),
}
#: Data whose labels have an order.
ORDINAL = ("KonIQ10k", "POPQUORN")
PEER = "Dirichlet-multinomial"
METHODS = ("counts", "counts, no guides", "proportions+0.5", "proportions+0.05", "proportions", PEER)
FEW_METHODS = ("counts", "counts, no guides", PEER)
FEW_ROWS = 2500


def run_one(folder, study, name, seed, methods, cut, tiny, stop):
    """One study of one data set on one split; goes on from its file, and starts nothing after the time to stop.

    ``cut`` holds the numbers of votes of study ``few``, the most rows, and whether likelihoods and means are enough.
    """
    budgets, most_rows, brief = cut
    torch.set_num_threads(1)
    path = Path(folder) / f"{study}-{name}-{seed:03d}.json"
    record = {"version": VERSION, "study": study, "data": name, "seed": seed, "found": {}}
    if path.exists() and (saved := json.loads(path.read_text())).get("version") == VERSION:
        record = saved
    X, counts, groups = load(name, tiny)
    if len(X) > most_rows:
        kept = np.sort(np.random.default_rng([seed, 13]).permutation(len(X))[:most_rows])
        X, counts, groups = X[kept], counts[kept], groups[kept]
    train, test = split_rows(groups, seed, share=0.5)
    record["rows"] = [len(train), len(test)]
    settings = {"epochs": 3, "n_neurons": 12, "n_readouts": 6} if tiny else {"epochs": 30}
    cases = [(method, method, counts[train], train) for method in methods]
    if study == "few":
        train = np.random.default_rng([seed, 12]).permutation(train)[:FEW_ROWS]
        cases = []
        for n in BUDGETS[name][:1] if tiny else [n for n in BUDGETS[name] if n in budgets]:
            votes = draw_votes(counts[train], n, np.random.default_rng([seed, n])).astype(float)
            cases += [(f"{method} {n}", method, votes, train) for method in FEW_METHODS if method in methods]
    for key, method, votes, rows in cases:
        if key not in record["found"] and time.time() < stop:
            found = fit_and_score(method, X[rows], votes, X[test], counts[test], seed, settings, name in ORDINAL, brief)
            record["found"][key] = found
            write_json(path, record)


def run(folder, studies, names, seeds, methods, cut, jobs, minutes, tiny):
    """All cases, the long ones first, on several processes."""
    stop = time.time() + 60.0 * minutes
    tasks = [(study, name, seed) for name in DATA if name in names for study in studies for seed in seeds]
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(run_one, folder, *task, methods, cut, tiny, stop) for task in tasks]
        for future in futures:
            future.result()


def records(folder, study, name):
    """What a study of one data set left, one record per split."""
    found = [json.loads(path.read_text()) for path in sorted(Path(folder).glob(f"{study}-{name}-*.json"))]
    return [record["found"] for record in found if record["version"] == VERSION]


def rows_of(folder, study, name):
    """Training and test rows of a study's first split, and the numbers of its splits, in words."""
    found = [json.loads(path.read_text()) for path in sorted(Path(folder).glob(f"{study}-{name}-*.json"))]
    sizes = " and ".join(f"{number:,}" for number in found[0]["rows"])
    return f"{sizes} rows, splits {', '.join(str(record['seed']) for record in found)}"


def gap(own, key, base):
    """How far one method is above another on the same splits, in words."""
    mean, error, _ = paired(*([found[one]["log_likelihood"] for found in own] for one in (base, key)))
    return f"{mean:+.4f}" if len(own) < 2 else f"{mean:+.4f} ± {error:.4f}"


def report(folder, name):
    """Tables of what is there, into the results folder."""
    text, facts = ["# Votes with guides and members", ""], {"machine": common.machine(1)}
    text += ["Mean held-out log likelihood of an item's votes; half of the rows train. Differences are paired over the"]
    text += ["splits, with their standard errors.", ""]
    for data in DATA:
        own = [found for found in records(folder, "all", data) if found]
        rows = []
        for method in [method for method in METHODS if own and all(method in found for found in own)]:
            values = [found[method] for found in own]
            row = {"method": method, "log likelihood": f"{np.mean([v['log_likelihood'] for v in values]):.4f}"}
            row["counts above it"] = "" if method == "counts" else gap(own, method, "counts")
            row["Brier"] = f"{np.mean([v['brier'] for v in values]):.4f}"
            for key in ("rps", "cad", "cad of the mean"):  # of ordered labels, and unless the study was brief
                if all(key in value for value in values):
                    row[key] = f"{np.mean([v[key] for v in values]):.4f}"
            rows.append(row | {"s": f"{np.mean([v['seconds'] for v in values]):.1f}"})
        if rows:
            text += [
                f"## {data}: all votes, {rows_of(folder, 'all', data)}",
                "",
                common.markdown(rows),
                "",
            ]
            facts[data] = rows
    for data in DATA:
        own = records(folder, "few", data)
        rows = []
        for n in BUDGETS[data]:
            done = [found for found in own if all(f"{method} {n}" in found for method in ("counts", PEER))]
            if not done:
                continue
            methods = [method for method in FEW_METHODS if all(f"{method} {n}" in found for found in done)]
            row = {"votes per item": n, "splits": len(done)}
            for method in methods:
                row[method] = f"{np.mean([found[f'{method} {n}']['log_likelihood'] for found in done]):.4f}"
            for method in methods[1:]:
                row[f"above {method}"] = gap(done, f"{method} {n}", f"counts {n}")
            rows.append(row)
        if rows:
            text += [f"## {data}: few votes, {rows_of(folder, 'few', data)}", "", common.markdown(rows), ""]
            facts[f"{data}, few"] = rows
    common.write(name, facts, "\n".join(text))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("run", "report"))
    parser.add_argument("--studies", nargs="+", default=["all", "few"], choices=["all", "few"])
    parser.add_argument("--data", nargs="+", default=list(DATA))
    parser.add_argument("--seeds", default="0..4", help='splits, as "0..4"')
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--budgets", nargs="+", type=int, default=[1, 2, 4, 8, 16, 32], help="votes per item of few")
    parser.add_argument("--rows", type=int, default=10**9, help="cut larger data sets to so many rows, drawn at random")
    parser.add_argument("--brief", action="store_true", help="likelihoods and means alone")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=30.0, help="start no further fit after this time")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    folder = options.folder / "tiny" if options.tiny else options.folder
    if options.command == "report":
        report(folder, "votes_guided_tiny" if options.tiny else "votes_guided")
        return
    folder.mkdir(parents=True, exist_ok=True)
    first, _, last = options.seeds.partition("..")
    seeds = range(int(first), int(last or first) + 1)
    cut = options.budgets, options.rows, options.brief
    run(folder, options.studies, options.data, seeds, options.methods, cut, options.jobs, options.minutes, options.tiny)


if __name__ == "__main__":
    main()
