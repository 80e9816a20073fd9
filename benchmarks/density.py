"""Conditional densities of label distributions: this library against the real alternatives, on real data.

    python benchmarks/density.py run --jobs 16                     # everything, seeds 0..4; goes on where it stopped
    python benchmarks/density.py report                            # tables and picture from what is there
    python benchmarks/density.py selftest                          # the measures, checked by quadrature and by fits
    python benchmarks/density.py run --data SJAFFE --seeds 100..100 --folder /tmp/try     # development

The data are looked for in ``SNEFY_LDL_DATA``. zuko and NGBoost come with the extra ``bench``, or from a folder that
``--peers-path`` names. XGBoostLSS asks for an older torch than it needs, so it is installed without dependencies:
``pip install --no-deps xgboostlss xgboost-cpu pyro-ppl pyro-api opt-einsum`` (with pandas and tqdm); Treeffuser with
``pip install --no-deps treeffuser lightgbm ml_collections absl-py contextlib2 einops jaxtyping wadler_lindig``. TabICL
and TabPFN fetch their weights when they are first fitted, TabPFN after its licence was accepted. A package or weights
that are missing are reported in one sentence.
One JSON per case lies in ``--folder``; ``--minutes`` starts no further case after that time; ``--jobs`` cases run side
by side, each on one thread.
Data: :mod:`density_data`; peers: :mod:`density_peers`; tables: :mod:`density_report`.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy and torch are loaded: every fit is timed on one thread

import argparse
import sys
import time
import traceback
import warnings
from concurrent.futures import ProcessPoolExecutor, as_completed
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from sklearn.ensemble import ExtraTreesRegressor

import common
import density_nets as nets
import density_peers as peers
import density_report
import density_selftest
from density_data import COMPOSITION, LDL, VOTES, load, split, training_groups, variants
from snefy_ldl import AutoLDL, GroupedLDL, SnefyLDL
from snefy_ldl._internal.files import read_json, write_json
from snefy_ldl.learners import SABFGS, DirichletLDL
from snefy_ldl.logratio import LogRatioLDL
from snefy_ldl.metrics import coverage, energy_score, interval_width, kl_divergence

#: Change it when a result file would mean something else: old files are then not reused.
VERSION = 1
FOLDER = common.RESULTS / "density"
DRAWS = 512
EVERY_TABLE = LDL + COMPOSITION + VOTES
LEVEL = 0.9
#: Two shares closer than this are one.
SAME = 1e-9
#: Entries of draws that are held at a time.
BLOCK = 4_000_000


# -- methods ---------------------------------------------------------------------------------------------------------


#: Test rows whose intervals are measured.
INTERVAL_ROWS = 500


class Ours:
    """A model of this library; its answers are exact."""

    def __init__(self, model):
        self.model, self.chosen = model, {}

    def fit(self, X, D, keep):
        self.model.fit(X, D)
        return self

    def log_prob(self, X, D):
        return self.model.log_prob(X, D)

    def mean_and_interval(self, X):
        for name in ("inputs_", "scaling_", "n_iter_", "guide_weights_", "shape_"):
            if (value := getattr(self.model, name, None)) is not None:
                self.chosen[name] = np.round(value, 4).tolist() if isinstance(value, np.ndarray) else value
        return self.model.predict(X), self.model.predict_interval(X[:INTERVAL_ROWS], LEVEL)


class Auto(Ours):
    """The distribution that :class:`snefy_ldl.AutoLDL` chooses; both have the seeds of the other methods.

    Its fits of the two are also the results of these methods, by ``parts``: name -> fitted model.
    """

    def __init__(self, seed):
        self.parts = parts = {}

        class Square(SnefyLDL):
            def fit(self, *args, **more):
                parts["SnefyLDL"] = super().fit(*args, **more)
                return self

        class Ratios(LogRatioLDL):
            def fit(self, *args, **more):
                parts["LogRatioLDL"] = super().fit(*args, **more)
                return self

        super().__init__(AutoLDL(snefy=Square(random_state=seed, device="cpu"), logratio=Ratios(random_state=seed)))

    def mean_and_interval(self, X):
        answers = super().mean_and_interval(X)
        choice = self.model.choice_
        self.chosen = {key: getattr(choice, key) for key in ("kept", "rows", "difference", "standard_error")}
        return answers


class Grouped(Ours):
    """Log-ratios whose folds keep the groups of the training rows together."""

    needs_groups = True

    def __init__(self, seed):
        super().__init__(GroupedLDL(LogRatioLDL(random_state=seed), effects=None))

    def fit(self, X, D, keep, groups):
        if groups is None:
            raise peers.LeftOut("rows without groups")
        self.model.fit(X, D, groups=groups)
        return self


class Point:
    """A learner of the mean alone."""

    def __init__(self, model):
        self.model, self.chosen = model, {}

    def fit(self, X, D, keep):
        self.model.fit(X, D)
        return self

    def mean_and_interval(self, X):
        return np.asarray(self.model.predict(X)), None


def snefy(variant, has_zeros, seed, **changes):
    """SnefyLDL with some changes to its defaults."""
    return Ours(SnefyLDL(random_state=seed, device="cpu", **changes))


def trees(seed):
    return ExtraTreesRegressor(300, max_features="sqrt", random_state=seed)


#: For each method: who makes it (variant, whether the labels held zeros, seed), and on which variants it runs.
DENSE, ZEROS = ("plain", "jitter"), ("zeros", "zeros jitter")
EVERY = DENSE + ZEROS
METHODS = {
    "SnefyLDL": (snefy, DENSE),
    "LogRatioLDL": (lambda v, z, s: Ours(LogRatioLDL(random_state=s)), EVERY),
    "AutoLDL": (lambda v, z, s: Auto(s), EVERY),
    "LogRatioLDL, groups given": (lambda v, z, s: Grouped(s), EVERY),
    "zuko NSF": (lambda v, z, s: peers.NetworkPeer(nets.SplineFlow, s), DENSE),
    "zuko GMM": (lambda v, z, s: peers.NetworkPeer(nets.ZukoMixture, s), DENSE),
    "MDN, logistic normals": (lambda v, z, s: peers.NetworkPeer(nets.LogisticNormals, s), DENSE),
    "MDN, Dirichlets": (lambda v, z, s: peers.NetworkPeer(nets.DirichletMixture, s), DENSE),
    "NGBoost Gaussian": (lambda v, z, s: peers.NGBoostGaussian(s), DENSE),
    "ridge Gaussian": (lambda v, z, s: peers.RidgeGaussian(s), DENSE),
    "XGBoostLSS Dirichlet": (lambda v, z, s: peers.BoostedDirichlet(s), DENSE),
    "Treeffuser": (lambda v, z, s: peers.BoostedDiffusion(s), DENSE),
    "distributional forest": (lambda v, z, s: peers.DistributionalForest(s), DENSE),
    "DirichletLDL": (lambda v, z, s: Ours(DirichletLDL(random_state=s)), DENSE),
    "Dirichlet regression": (lambda v, z, s: Ours(DirichletLDL(method="regression", random_state=s)), DENSE),
    "zeros MDN, Dirichlets": (lambda v, z, s: peers.NetworkPeer(nets.WithZeros, s), ZEROS),
    "zeros MDN, log-normals": (lambda v, z, s: peers.NetworkPeer(nets.LogNormalsWithZeros, s), ZEROS),
    "SA-BFGS": (lambda v, z, s: Point(SABFGS()), EVERY),
    "extra trees": (lambda v, z, s: Point(trees(s)), EVERY),
    "TabICL": (lambda v, z, s: peers.Pretrained("tabicl", "TabICLRegressor", s), EVERY),
    "TabPFN": (lambda v, z, s: peers.Pretrained("tabpfn", "TabPFNRegressor", s), EVERY),
}
NEEDS = {"zuko NSF": "zuko", "zuko GMM": "zuko", "NGBoost Gaussian": "ngboost", "XGBoostLSS Dirichlet": "xgboostlss"}
NEEDS |= {"Treeffuser": "treeffuser", "TabICL": "tabicl", "TabPFN": "tabpfn"}
#: The methods that take longest, which start first.
SLOW = ("AutoLDL", "zuko NSF", "NGBoost Gaussian", "distributional forest", "XGBoostLSS Dirichlet")


def by_draws(model, X, n_labels):
    """Mean (closed if available) and central interval of a peer, by draws, a block of rows at a time."""
    means, intervals = [], []
    step = 1 + BLOCK // (DRAWS * n_labels)
    for start in range(0, len(X), step):
        rows = X[start : start + step]
        drawn = model.draws(rows, DRAWS)  # (draws, rows, L)
        closed = model.mean(rows)
        means.append(drawn.mean(0) if closed is None else closed)
        tails = (0.5 * (1 - LEVEL), 0.5 * (1 + LEVEL))
        intervals.append(np.moveaxis(np.quantile(drawn, tails, axis=0), 0, -1))
    return np.concatenate(means), np.concatenate(intervals)


def randomised_coverage(drawn, D):
    """Coverage of central intervals, a share that has a probability of its own (0 or 1) counted in part.

    The level of a share is uniform between P(less) and P(less or equal), by draws (draws, rows, L).
    """
    less, equal = (drawn < D - SAME).mean(0), (np.abs(drawn - D) <= SAME).mean(0)
    low, high = np.maximum(less, 0.5 * (1 - LEVEL)), np.minimum(less + equal, 0.5 * (1 + LEVEL))
    inside = (less >= 0.5 * (1 - LEVEL)) & (less <= 0.5 * (1 + LEVEL))
    part = np.clip(high - low, 0.0, None) / np.where(equal > 0, equal, 1.0)
    return float(np.where(equal > 0, part, inside).mean())


def measure(name, variant, seed, method):
    """Records of one case: one, and for AutoLDL those of its parts; a peer that is left out gives its reason."""
    X, D, X_test, D_test, raw, keep = split(name, variant, seed)
    record = {"version": VERSION, "data": name, "variant": variant, "seed": seed, "method": method}
    record |= {"rows": [len(X), len(X_test)], "features": X.shape[1], "labels": D.shape[1]}
    torch.manual_seed(seed)
    try:
        model = METHODS[method][0](variant, bool((load(name).D == 0).any()), seed)
        start, busy = time.perf_counter(), time.process_time()
        groups = (training_groups(name, seed),) if getattr(model, "needs_groups", False) else ()
        model.fit(X, D, keep, *groups)
    except peers.LeftOut as reason:
        return [record | {"skipped": str(reason)}]
    whole = {"seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - busy}
    test = X_test, D_test, raw
    records = [record | whole | judge(model, *test)]
    for part, fitted in getattr(model, "parts", {}).items():
        if variant in METHODS[part][1]:
            seconds = {key: fitted.training_["seconds"] for key in whole}
            records.append(record | {"method": part} | seconds | judge(Ours(fitted), *test))
    return records


def judge(model, X, D, raw):
    """Likelihood, KL, coverage, width and energy score on test rows."""
    start = time.perf_counter()
    if hasattr(model, "mean_and_interval"):
        mean, intervals = model.mean_and_interval(X)
    else:
        mean, intervals = by_draws(model, X, D.shape[1])
    mean = np.maximum(mean, 0.0)
    record = {"kl": float(kl_divergence(raw, mean / mean.sum(1, keepdims=True)))}
    if hasattr(model, "log_prob"):
        values = model.log_prob(X, D)
        record |= {"nll": -float(np.mean(values)), "worst_nll": -float(np.min(values))}
    if intervals is not None:
        held = float(coverage(D[: len(intervals)], intervals))
        record |= {"coverage": held, "width": float(interval_width(intervals)), "interval_rows": len(intervals)}
        rows = X[:INTERVAL_ROWS]
        drawn = model.model.sample(rows, DRAWS, random_state=0) if isinstance(model, Ours) else model.draws(rows, DRAWS)
        record["energy"] = float(energy_score(D[: len(rows)], drawn))
        if (D == 0).any():
            record["randomised_coverage"] = randomised_coverage(drawn, D[: len(rows)])
    return record | {"seconds_scored": time.perf_counter() - start, "chosen": model.chosen}


# -- running ---------------------------------------------------------------------------------------------------------


def prepare(peers_path):
    """What every process does first."""
    if peers_path:
        sys.path.insert(0, str(Path(peers_path).resolve()))
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")


def path_of(folder, case):
    return Path(folder) / ("-".join(str(part).replace(" ", "_").replace(",", "") for part in case) + ".json")


def work(folder, case):
    """Measures one case and writes its records; a failure comes back as text and leaves no file."""
    try:
        records = measure(*case)
    except Exception:
        return case, {"failed": traceback.format_exc()}
    for record in records:
        write_json(path_of(folder, (*case[:3], record["method"])), record)
    return case, records[0]


def finished(folder, case):
    path = path_of(folder, case)
    return path.is_file() and read_json(path).get("version") == VERSION


def cases_of(options):
    """Everything that is to be done, the longest first so that the end is not one slow case."""
    cases = []
    for name in options.data:
        D = load(name).D
        for variant in set(variants(name)) & set(options.variants):
            for seed in options.seeds:
                methods = [m for m in options.methods if variant in METHODS[m][1]]
                if "AutoLDL" in methods:  # whose fits are theirs
                    methods = [m for m in methods if m not in ("SnefyLDL", "LogRatioLDL")]
                cases += [(len(D) * D.shape[1] * load(name).X.shape[1] ** 0.5, name, variant, seed, m) for m in methods]
    weight = {method: rank for rank, method in enumerate(SLOW)}
    cases.sort(key=lambda case: (weight.get(case[4], len(SLOW)), -case[0]))
    return [case[1:] for case in cases]


def describe(record):
    if "failed" in record:
        return "FAILED: " + record["failed"].strip().splitlines()[-1]
    if "skipped" in record:
        return f"skipped: {record['skipped']}"
    figures = [f"{key} {record[key]:.4f}" for key in ("nll", "kl", "coverage", "width") if key in record]
    return "  ".join([*figures, f"{record['seconds']:.1f} s"])


def run(options):
    options.folder.mkdir(parents=True, exist_ok=True)
    absent = [m for m in options.methods if m in NEEDS and find_spec(NEEDS[m]) is None]
    for method in absent:
        print(f"{method} is left out: the package {NEEDS[method]} is not installed and --peers-path does not hold it.")
    options.methods = [m for m in options.methods if m not in absent]
    write_json(options.folder / "machine.json", common.machine(1))
    todo = [c for c in cases_of(options) if c[3] in (options.redo or ()) or not finished(options.folder, c)]
    start, failures = time.perf_counter(), []

    def tell(number, case, record):
        minutes = (time.perf_counter() - start) / 60
        print(
            f"{number}/{len(todo)}  {minutes:5.1f} min  {' | '.join(map(str, case))}:  {describe(record)}", flush=True
        )
        if "failed" in record:
            failures.append((case, record["failed"]))

    def late():
        return options.minutes is not None and time.perf_counter() - start > 60 * options.minutes

    if options.jobs == 1:
        for number, case in enumerate(todo, 1):
            if late():
                break
            tell(number, *work(options.folder, case))
    else:
        with ProcessPoolExecutor(options.jobs, get_context("spawn"), prepare, (options.peers_path,)) as pool:
            futures = [pool.submit(work, options.folder, case) for case in todo]
            number = 0
            for future in as_completed(futures):
                if future.cancelled():
                    continue
                number += 1
                tell(number, *future.result())
                if late():
                    for waiting in futures:
                        waiting.cancel()
    for case, text in failures:
        print(f"\n{case}\n{text}")


def seeds_of(text):
    first, _, last = text.partition("..")
    return list(range(int(first), int(last or first) + 1))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "report", "selftest"))
    parser.add_argument("--data", nargs="+", choices=EVERY_TABLE, default=EVERY_TABLE)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--variants", nargs="+", choices=EVERY, default=EVERY)
    parser.add_argument("--seeds", type=seeds_of, default=seeds_of("0..4"))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--out", type=Path, default=common.RESULTS, help="where density.json, .md and .png go")
    parser.add_argument("--peers-path")
    parser.add_argument("--redo", nargs="+", choices=METHODS, help="methods whose results are made again")
    options = parser.parse_args()
    prepare(options.peers_path)
    if options.what == "selftest":
        density_selftest.check(randomised_coverage)
        return
    if options.what == "run":
        run(options)
    density_report.report(options.folder, options.out, VERSION)


if __name__ == "__main__":
    main()
