"""Parts below a limit of detection: LogRatioLDL with limits next to tables that were completed first.

    python benchmarks/below.py run --jobs 16                    # everything, seeds 0..9; goes on where it stopped
    python benchmarks/below.py report                           # the tables from what is there
    python benchmarks/below.py run --seeds 0..1 --cases made-0.2-2 --folder /tmp/try

Made-up tables have six parts, whose log-ratios follow a curved function of five features with Student noise; limits
hide 5, 20 or 40 % of the cells of one to four of them. The real tables (in ``SNEFY_LDL_DATA``) get limits at the 10 or
30 % quantile of three parts. Every method ends in a fit of LogRatioLDL and is judged by test rows without limits.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy and torch are loaded: every fit is timed on one thread

import argparse
import time
import warnings
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from scipy.linalg import helmert
from scipy.stats import norm, t

import common
from snefy_ldl._internal.files import read_json, write_json
from snefy_ldl.logratio import LogRatioLDL

#: Change it when a result file would mean something else: old files are then not reused.
VERSION = 2
FOLDER = common.RESULTS / "below"
PARTS, FEATURES, TRAIN, TEST = 6, 5, 400, 1000
CASES = [f"made-{part}-{columns}" for part in (0.05, 0.2, 0.4) for columns in (1, 2, 3, 4)]
CASES += [f"{name}-{part}-3" for name in ("GEMAS_elements", "Jura") for part in (0.1, 0.3)]
#: What the coverage is to be read with.
REMARK = (
    "If test rows have limits, too, their likelihood is the density of what is exact times the probability of lying "
    "below. On GEMAS_elements it is that of a fit without limits, while intervals of hidden shares are too narrow: "
    "rows below a limit do not show how far below they lie, and these elements have longer tails than a Student "
    "distribution fitted to what is above."
)
#: What customary replacements put in place of a hidden value, as a part of its limit.
CUSTOMARY = 0.65


def make(seed):
    """Features, shares and expected log-ratios of training and test rows."""
    random = np.random.default_rng(seed)
    slopes = 0.4 * random.normal(size=(FEATURES, PARTS - 1))
    factor = 0.5 * (np.eye(PARTS - 1) + 0.4 * random.normal(size=(PARTS - 1, PARTS - 1)))
    X = random.normal(size=(TRAIN + TEST, FEATURES))
    mean = X @ slopes + 0.3 * np.tanh(2.0 * X[:, :1])
    amounts = np.exp((mean + random.standard_t(6, size=mean.shape) @ factor) @ helmert(PARTS))
    D = amounts / amounts.sum(1, keepdims=True)
    return X[:TRAIN], D[:TRAIN], X[TRAIN:], D[TRAIN:], (mean @ helmert(PARTS))[TRAIN:]


def read(name, seed):
    """The same of a real table, 70 to 30, without expected log-ratios."""
    folder = Path(os.environ["SNEFY_LDL_DATA"]) / "composition" / name
    X, D = np.load(folder / "features.npy"), np.load(folder / "labels.npy")
    X = np.where(np.isnan(X), np.nanmedian(X, axis=0), X)
    order = np.random.default_rng([seed, 13]).permutation(len(D))
    train, test = np.split(order, [round(0.7 * len(D))])
    return X[train], D[train], X[test], D[test], None


# -- completions -------------------------------------------------------------------------------------------------------


def substitute(D, limits):
    """.65 times the limit, and closed."""
    whole = np.where(np.isnan(D), CUSTOMARY * limits, D)
    return whole / whole.sum(1, keepdims=True)


def replace_multiplicatively(D, limits):
    """Martín-Fernández et al. (2003), equation 5: hidden shares become δ, others x (1 - Σ δ) / Σ x."""
    hidden = np.isnan(D)
    delta = np.where(hidden, CUSTOMARY * limits, 0.0)
    rest = D / np.nansum(D, 1, keepdims=True) * (1.0 - delta.sum(1, keepdims=True))
    return np.where(hidden, delta, rest)


def truncated_mean(mean, width, end):
    """``E[y | y < end]`` of a normal variable."""
    place = (end - mean) / width
    return mean - width * np.exp(norm.logpdf(place) - norm.logcdf(place))


def impute_by_regression(D, limits, X, rounds=30):
    """Log-ratio EM (Palarea-Albaladejo and Martín-Fernández, 2007): each hidden log-ratio to a part that is never
    hidden is the mean, below its limit, of a regression on the other log-ratios; here also on the features.
    """
    hidden = np.isnan(D)
    base = int(np.flatnonzero(~hidden.any(0))[-1])
    others = [r for r in range(D.shape[1]) if r != base]
    ends = np.log(np.broadcast_to(limits, D.shape) / D[:, [base]])
    logs = np.log(np.where(hidden, CUSTOMARY * limits, D) / D[:, [base]])
    for _ in range(rounds):
        for r in others:
            gaps = hidden[:, r]
            if not gaps.any():
                continue
            table = np.column_stack([np.ones(len(D)), logs[:, [s for s in others if s != r]], X])
            coef = np.linalg.lstsq(table, logs[:, r], rcond=None)[0]
            errors = logs[:, r] - table @ coef
            place = (ends[gaps, r] - table[gaps] @ coef) / max(errors.std(), 1e-9)
            ratio = np.exp(norm.logpdf(place) - norm.logcdf(place))
            # what a truncated variable varies by is missing in the errors of imputed values (EM)
            variance = (errors[~gaps] ** 2).sum() + (errors[gaps] ** 2).sum()
            variance += (errors.var() * np.maximum(1.0 - ratio * (place + ratio), 0.0)).sum()
            width = np.sqrt(variance / max(len(D) - table.shape[1], 1))
            logs[gaps, r] = truncated_mean(table[gaps] @ coef, width, ends[gaps, r])
    amounts = np.exp(logs)
    return amounts / amounts.sum(1, keepdims=True)


# -- one case ----------------------------------------------------------------------------------------------------------


def measure(case, seed):
    name, part, columns = case.split("-")
    X, D, X_test, D_test, expected = make(seed) if name == "made" else read(name, seed)
    chosen = np.random.default_rng([seed, 5]).permutation(D.shape[1] - 2)[: int(columns)]
    limits = np.full(D.shape[1], np.nan)
    limits[chosen] = np.quantile(D[:, chosen], float(part), axis=0)
    shown = np.where(limits > D, np.nan, D)
    tables = {
        "no limits": D,
        "below=": shown,
        "substitution": substitute(shown, limits),
        "multiplicative": replace_multiplicatively(shown, limits),
        "regression": impute_by_regression(shown, limits, X),
    }
    record = {"version": VERSION, "case": case, "seed": seed, "rows": len(D), "methods": {}}
    for method, table in tables.items():
        busy = time.process_time()
        bounds = {"below": limits} if method == "below=" else {}
        model = LogRatioLDL(random_state=seed).fit(X, table, **bounds)
        seconds = time.process_time() - busy
        dist = model.predict_dist(X_test)
        row = {"log_prob": float(dist.log_prob(D_test).mean()), "fit_seconds": seconds}
        free = [r for r in range(D.shape[1]) if np.isnan(limits[r])]
        wanted = np.log(D_test) if expected is None else expected
        last = free.pop()
        ratios = [dist.log_ratio(r, last).mean.numpy() - wanted[:, r] + wanted[:, last] for r in free]
        row["bias"] = np.mean(ratios, axis=1).tolist()
        hidden = D_test < limits
        if method in ("no limits", "below="):
            blocks = [slice(start, start + 100) for start in range(0, len(D_test), 100)]
            given = [dist[block].condition_bounds(D_test[block], below=limits) for block in blocks]
            low, high = np.concatenate([one.quantiles([0.05, 0.95]).numpy() for one in given])[hidden].T
            row["coverage"] = float(((D_test[hidden] >= low) & (D_test[hidden] <= high)).mean())
            row["hidden"] = int(hidden.sum())
            row["log_prob_known"] = float(np.concatenate([one.log_prob_known.numpy() for one in given]).mean())
        record["methods"][method] = row
    return record


def path_of(folder, case):
    return folder / f"{case[0]}-{case[1]}.json"


def work(folder, case):
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    record = measure(*case)
    write_json(path_of(folder, case), record)
    return case, "  ".join(f"{name} {row['log_prob']:.3f}" for name, row in record["methods"].items())


def run(options):
    options.folder.mkdir(parents=True, exist_ok=True)
    write_json(options.folder / "machine.json", common.machine(1))
    cases = [(case, seed) for case in reversed(options.cases) for seed in options.seeds]  # large tables first
    todo = [case for case in cases if not path_of(options.folder, case).is_file()]
    with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
        futures = [pool.submit(work, options.folder, case) for case in todo]
        for number, future in enumerate(as_completed(futures), 1):
            case, words = future.result()
            print(f"{number}/{len(todo)}  {case[0]} {case[1]}:  {words}", flush=True)


# -- report ------------------------------------------------------------------------------------------------------------


def interval(values):
    """Mean and 95 % interval by Student's distribution over seeds, in words."""
    values = np.asarray(values)
    if len(values) < 2:
        return f"{values.mean():+.3f}"
    half = t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / len(values) ** 0.5
    return f"{values.mean():+.3f} ± {half:.3f}"


def report(options):
    found = {}
    for path in sorted(options.folder.glob("*-*.json")):
        record = read_json(path)
        if record["version"] == VERSION:
            found.setdefault(record["case"], []).append(record)
    if not found:
        raise SystemExit(f"{options.folder} holds no results yet: run first.")
    rows = []
    for case in [case for case in CASES if case in found]:
        name, part, columns = case.split("-")
        methods = [record["methods"] for record in found[case]]

        def values(method, key, methods=methods):
            return np.array([one[method][key] for one in methods])

        ours, exact = values("below=", "log_prob"), values("no limits", "log_prob")
        row = {"table": name, "hidden": f"{float(part):.0%} of {columns}", "seeds": len(methods)}
        row["log likelihood without limits"] = f"{exact.mean():.3f}"
        row["below= minus that"] = interval(ours - exact)
        row["loss, %"] = f"{100 * float((exact - ours).mean() / abs(exact.mean())):.1f}"
        for method in ("substitution", "multiplicative", "regression"):
            row[f"below= minus {method}"] = interval(ours - values(method, "log_prob"))
        row["the same where test rows have limits, too"] = interval(
            values("below=", "log_prob_known") - values("no limits", "log_prob_known")
        )
        counts = values("below=", "hidden")
        for method, name in (("below=", "90 % coverage of hidden shares"), ("no limits", "the same without limits")):
            row[name] = f"{(values(method, 'coverage') * counts).sum() / counts.sum():.3f}"
        moved = [np.subtract(one["below="]["bias"], one["no limits"]["bias"]).mean() for one in methods]
        row["bias of others' log-ratios, minus without limits"] = interval(moved)
        ratio = values("below=", "fit_seconds") / values("no limits", "fit_seconds")
        row["fit, times as long"] = f"{np.median(ratio):.1f}"
        rows.append(row)
    machine = read_json(options.folder / "machine.json")
    text = "# Parts below a limit\n\n" + __doc__.split("\n\n")[0] + "\n\n" + __doc__.split("\n\n")[2].strip()
    text += "\n\nMean log likelihood of a test row in nats; ± is a paired 95 % interval over seeds.\n\n"
    text += common.markdown(rows) + f"\n\n{REMARK}\n\nOne thread of {machine['processor']}.\n"
    records = [record for case in CASES for record in found.get(case, [])]
    common.write("below", {"machine": machine, "rows": rows, "records": records}, text)


def seeds_of(text):
    first, _, last = text.partition("..")
    return list(range(int(first), int(last or first) + 1))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "report"))
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES)
    parser.add_argument("--seeds", type=seeds_of, default=seeds_of("0..9"))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    options = parser.parse_args()
    {"run": run, "report": report}[options.what](options)


if __name__ == "__main__":
    main()
