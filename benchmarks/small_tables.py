"""Densities of tables cut to 30, 50, 100 and 200 rows: SnefyLDL, log-ratio regressions, and the guides' means.

    python benchmarks/small_tables.py run --jobs 8                      # everything; goes on where it stopped
    python benchmarks/small_tables.py run --only SnefyLDL --name before # a run of another version, under that name
    python benchmarks/small_tables.py report                            # the tables from what is there
    python benchmarks/small_tables.py run --data ArcticLake --rows 30 --splits 0..0 --folder /tmp/try

The data are looked for in ``SNEFY_LDL_DATA``. Each split is a permutation of a table's rows: the first ones train, up
to 500 of the others test, so that all methods and all sizes of a split are paired. Settings were chosen by splits 0, 1
and 100 to 102; the report leaves those out unless ``--all`` asks for them. One JSON lines file per data set and size
lies in ``--folder``; ``--jobs`` of them are made side by side, each on one thread.

Peers: *ridge* is ridge regression of isometric log-ratios, its penalties by leave-one-out errors, with the covariance
of five-fold residuals; *Gaussian process* has one isotropic kernel per log-ratio, whose predictive variances are joined
by the correlation of leave-one-out residuals. Guides are point learners: SA-BFGS and extremely randomised trees, fitted
to all training rows.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy and torch are loaded: every fit is timed on one thread

import argparse
import json
import time
import traceback
import warnings
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from scipy.stats import multivariate_normal
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

import common
import density_data
import density_peers
from snefy_ldl import SnefyLDL
from snefy_ldl.datasets.zeros import ZeroPolicy
from snefy_ldl.learners import SABFGS, TreesLDL
from snefy_ldl.logratio import LogRatioLDL
from snefy_ldl.metrics import coverage, kl_divergence

#: Change it when a result would mean something else.
VERSION = 1
FOLDER = common.RESULTS / "small_tables"
DATA = ("GEMAS_texture", "SJAFFE", "Yeast_spo5", "Jura", "ArcticLake", "HouseholdExp", "Fairclough_timeuse")
#: The tables that the targets of SnefyLDL are about.
CUT = DATA[:5]
ROWS = (30, 50, 100, 200)
#: Larger cuts of tables that have the rows for it.
MORE_ROWS = {"GEMAS_texture": [400], "Yeast_spo5": [400], "Jura": [300]}
TEST_ROWS, FEWEST_TEST_ROWS = 500, 9
#: Splits by which settings were chosen.
SEEN_SPLITS = 2
#: Nats that SnefyLDL may be behind the better regression, up to so many parts, and the part by which its KL may be
#: above that of the better guide.
NLL_MARGIN, FEW_PARTS, KL_MARGIN = 0.25, 5, 0.02


class RidgePeer:
    """Ridge on log-ratios and a Gaussian of five-fold residuals."""

    def __init__(self, seed):
        self.peer = density_peers.RidgeGaussian(seed)

    def fit(self, X, D):
        self.peer.fit(X, D, None)
        return self

    def log_prob(self, X, D):
        return self.peer.log_prob(X, D)


class GaussianProcess:
    """One Gaussian process per log-ratio, joined by the correlation of leave-one-out residuals."""

    def __init__(self, seed):
        self.seed = seed

    def fit(self, X, D):
        self.scale, z = density_peers.Scale(X, clip=5.0), density_peers.ilr(D)
        x = self.scale(X)
        self.models, residuals = [], []
        for target in z.T:
            kernel = ConstantKernel() * RBF(x.shape[1] ** 0.5, (0.1, 1e3)) + WhiteKernel(0.5, (1e-3, 1e2))
            model = GaussianProcessRegressor(kernel, normalize_y=True, random_state=self.seed).fit(x, target)
            inverse = np.linalg.inv(model.L_ @ model.L_.T)
            residuals.append(model.alpha_.ravel() / np.sqrt(np.diag(inverse)))
            self.models.append(model)
        self.correlation = np.atleast_2d(np.corrcoef(residuals))
        return self

    def log_prob(self, X, D):
        z, answers = density_peers.ilr(D), [model.predict(self.scale(X), return_std=True) for model in self.models]
        gaps = z - np.stack([mean for mean, _ in answers], 1)
        widths = np.stack([width for _, width in answers], 1)
        density = multivariate_normal(np.zeros(z.shape[1]), self.correlation, allow_singular=True)
        log_p = np.atleast_1d(density.logpdf(gaps / widths)) - np.log(widths).sum(1)
        return log_p - np.log(D).sum(1) - 0.5 * np.log(D.shape[1])


METHODS = {
    "SnefyLDL": lambda seed: SnefyLDL(random_state=seed, device="cpu"),
    "LogRatioLDL": lambda seed: LogRatioLDL(random_state=seed),
    "ridge": RidgePeer,
    "Gaussian process": GaussianProcess,
    "SA-BFGS": lambda seed: SABFGS(),
    "trees": lambda seed: TreesLDL(n_trees=200, random_state=seed),
}
PEERS, GUIDES = ("ridge", "Gaussian process"), ("SA-BFGS", "trees")


def load(name):
    """Features and shares of all rows, zeros lifted."""
    if name in ("Jura", "HouseholdExp", "Fairclough_timeuse"):
        folder = Path(os.environ["SNEFY_LDL_DATA"]) / "composition" / name
        X, D = np.load(folder / "features.npy"), np.load(folder / "labels.npy")
    else:
        table = density_data.load(name)
        X, D = table.X, table.D
    return X, ZeroPolicy.from_data(D, "shrink").apply(D)


def split(name, n_rows, seed):
    X, D = load(name)
    order = np.random.default_rng([seed, 29]).permutation(len(D))
    first = max(n_rows, max(ROWS)) if len(D) > max(ROWS) + 50 else n_rows
    train, test = order[:n_rows], order[first:][:TEST_ROWS]
    X_train, X_test = density_data.filled(X[train], X[test])
    return X_train, D[train], X_test, D[test]


def sizes(name):
    """Cuts that leave enough rows to test; 70 % of a table that has no others."""
    total = len(load(name)[0])
    if name not in CUT:
        return [round(0.7 * total)]
    return [n for n in ROWS if total - n >= FEWEST_TEST_ROWS] + MORE_ROWS.get(name, [])


def measure(name, n_rows, seed, method):
    X, D, X_test, D_test = split(name, n_rows, seed)
    model = METHODS[method](seed)
    busy = time.process_time()
    model.fit(X, D)
    record = {"version": VERSION, "data": name, "rows": n_rows, "split": seed, "parts": D.shape[1]}
    record["fit_seconds"] = time.process_time() - busy
    if hasattr(model, "log_prob"):
        log_prob = model.log_prob(X_test, D_test)
        record |= {"nll": -float(log_prob.mean()), "worst_nll": -float(log_prob.min())}
    if hasattr(model, "predict"):
        record["kl"] = float(kl_divergence(D_test, model.predict(X_test)))
    if hasattr(model, "predict_interval"):
        record["coverage"] = float(coverage(D_test[:50], model.predict_interval(X_test[:50], 0.9)))
    if hasattr(model, "candidates_"):
        record["chosen"] = next((one["name"] for one in model.candidates_ if one["outcome"] == "kept"), None)
    return record


def work(folder, name, n_rows, seeds, methods, alias):
    """All splits and methods of one size of a table, in one process."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    path = folder / f"{name}-{n_rows}.jsonl"
    done = {(r["split"], r["method"]) for r in read(path)}
    for seed in seeds:
        for method in methods:
            title = f"{method} {alias}" if alias else method
            if (seed, title) in done:
                continue
            try:
                record = measure(name, n_rows, seed, method) | {"method": title}
            except Exception:
                print(name, n_rows, seed, method, traceback.format_exc(), flush=True)
                continue
            with path.open("a") as file:
                file.write(json.dumps(record) + "\n")
    return f"{name}-{n_rows}"


def read(path):
    lines = path.read_text().splitlines() if path.is_file() else []
    return [record for record in map(json.loads, lines) if record["version"] == VERSION]


def run(options):
    options.folder.mkdir(parents=True, exist_ok=True)
    (options.folder / "machine.json").write_text(json.dumps(common.machine(1)))
    methods = options.only or list(METHODS)
    cases = [(name, n) for name in options.data for n in sizes(name) if options.rows is None or n in options.rows]
    with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
        # a split of all tables first: a run that is cut has something of everything
        for seed in options.splits:
            waiting = [pool.submit(work, options.folder, *case, [seed], methods, options.name) for case in cases]
            for future in as_completed(waiting):
                print(seed, future.result(), flush=True)


def mean_error(values, digits):
    values = np.asarray(values)
    error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else float("nan")
    return f"{values.mean():.{digits}f} ± {error:.{digits}f}"


def tables(records):
    """Log likelihoods and divergences as rows of two tables, and what misses its target."""
    likelihoods, divergences, missed = [], [], []
    for name, n_rows in dict.fromkeys((r["data"], r["rows"]) for r in records):
        found = {}
        for record in records:
            if (record["data"], record["rows"]) == (name, n_rows):
                found.setdefault(record["method"], {})[record["split"]] = record
        ours = found.get("SnefyLDL", {})
        parts = next(iter(next(iter(found.values())).values()))["parts"]
        head = {"data": name, "rows": n_rows, "parts": parts, "splits": len(ours)}
        line, point = dict(head), dict(head)
        for method in [m for m in ("SnefyLDL before", "SnefyLDL", "LogRatioLDL", *PEERS)]:
            values = [r["nll"] for r in found.get(method, {}).values()]
            line[method] = mean_error(values, 3) if values else ""
        for method in [m for m in ("SnefyLDL before", "SnefyLDL", "LogRatioLDL", *GUIDES)]:
            values = [r["kl"] for r in found.get(method, {}).values()]
            point[method] = mean_error(values, 4) if values else ""
        for rivals, key, target, title in (
            (PEERS, "nll", line, "behind the better"),
            (GUIDES, "kl", point, "KL ratio"),
        ):
            rivals = [m for m in rivals if set(found.get(m, {})) >= set(ours)]
            if not ours or not rivals:
                continue
            best = min(rivals, key=lambda m: np.mean([found[m][s][key] for s in ours]))
            gaps = np.array([ours[s][key] - found[best][s][key] for s in ours])
            level = np.mean([found[best][s][key] for s in ours])
            if key == "nll":
                target[title] = mean_error(gaps, 3)
                if parts <= FEW_PARTS and name in CUT and gaps.mean() > NLL_MARGIN:
                    missed.append(f"{name}, {n_rows} rows: {gaps.mean():+.3f} nats behind {best}")
            else:
                target[title] = mean_error(1.0 + gaps / level, 3)
                if name in CUT and gaps.mean() > KL_MARGIN * level:
                    missed.append(f"{name}, {n_rows} rows: KL {gaps.mean() / level:+.1%} above {best}")
        line["coverage"] = mean_error([r["coverage"] for r in ours.values()], 3) if ours else ""
        line["fit seconds"] = f"{np.mean([r['fit_seconds'] for r in ours.values()]):.1f}" if ours else ""
        likelihoods.append(line)
        divergences.append(point)
    return likelihoods, divergences, missed


def report(options):
    records = [r for path in sorted(options.folder.glob("*.jsonl")) for r in read(path)]
    records = [r for r in records if options.all or SEEN_SPLITS <= r["split"] < 100]
    if not records:
        raise SystemExit(f"{options.folder} holds no results yet: run first.")
    order = {name: number for number, name in enumerate(DATA)}
    records.sort(key=lambda r: (order[r["data"]], r["rows"], r["split"]))
    likelihoods, divergences, missed = tables(records)
    machine = json.loads((options.folder / "machine.json").read_text())
    text = "# Small tables\n\n" + __doc__.split("\n")[0] + "\n\n## Negative log-likelihood\n\n"
    text += "*Behind the better* compares SnefyLDL with the better of both regressions, paired over splits.\n\n"
    text += common.markdown(likelihoods) + "\n\n## KL divergence of the mean\n\n"
    text += "*KL ratio* is SnefyLDL's divergence by that of the better guide.\n\n"
    text += common.markdown(divergences)
    text += "\n\nTargets that are missed (means over splits): " + ("; ".join(missed) if missed else "none") + ".\n"
    text += f"\nMean ± standard error over splits; one thread of {machine['processor']}.\n"
    common.write("small_tables", {"machine": machine, "records": records}, text)


def splits_of(text):
    first, _, last = text.partition("..")
    return list(range(int(first), int(last or first) + 1))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "report"))
    parser.add_argument("--data", nargs="+", choices=DATA, default=DATA)
    parser.add_argument("--rows", nargs="+", type=int)
    parser.add_argument("--only", nargs="+", choices=METHODS)
    parser.add_argument("--name", default="", help="added to the names of the methods")
    parser.add_argument("--splits", type=splits_of, default=splits_of("0..9"))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--all", action="store_true", help="report the splits of the choice, too")
    options = parser.parse_args()
    {"run": run, "report": report}[options.what](options)


if __name__ == "__main__":
    main()
