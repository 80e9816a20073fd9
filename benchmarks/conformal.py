"""Conformal intervals on real data: coverage, width, adaptivity and interval score over many random splits.

    python benchmarks/conformal.py --splits 100 --jobs 2     # resumable: one JSON a split
    python benchmarks/conformal.py --report                  # tables from what is there
    python benchmarks/conformal.py --speed                   # 100,000 rows x 9 labels

Each split is 50 % training, 25 % calibration, 25 % test, as in the paper. The data sets come from
``snefy_ldl.load_dataset`` (set SNEFY_LDL_DATA to a folder that holds them, or let it fetch them).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
import warnings
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from scipy import stats

import snefy_ldl
from snefy_ldl import SnefyLDL, load_dataset, metrics
from snefy_ldl.conformal import ConformalIntervals
from snefy_ldl.errors import ZeroLabelWarning

DATA = ("sbu_3dfe", "natural_scene")
METHODS = ("chebyshev", "quantile", "cdf", "auto")
GROUPS = (2, 4, 8)
LEVEL = 0.9
#: Change it when a result file would mean something else: old files are then not reused.
VERSION = 2
RESULTS = Path(__file__).parent / "results"


def models():
    """Name -> a function of the seed that makes an unfitted model."""
    made = {
        "SNEFY": lambda seed: SnefyLDL(random_state=seed, device="cpu"),
        "SNEFY, paper": lambda seed: SnefyLDL.paper("conformal", random_state=seed, device="cpu"),
    }
    try:
        from snefy_ldl.learners import DirichletLDL
    except ImportError:
        return made
    made["Dirichlet"] = lambda seed: DirichletLDL(random_state=seed)
    made["Dirichlet regression"] = lambda seed: DirichletLDL(method="regression", random_state=seed)
    return made


def split_rows(n, seed):
    """Training, calibration and test rows: 50 %, 25 %, 25 %."""
    order = np.random.default_rng([seed, n]).permutation(n)
    half, quarter = n // 2, n // 4
    return order[:half], order[half : half + quarter], order[half + quarter :]


def measure(D, feature, ends):
    """Every figure of one set of intervals, a list over labels where there is one."""
    found = {
        "coverage": metrics.coverage(D, ends, per_label=True).tolist(),
        "width": metrics.interval_width(ends, per_label=True).tolist(),
        "score": metrics.interval_score(D, ends, LEVEL, per_label=True).tolist(),
        "joint": metrics.joint_coverage(D, ends),
        "ssc": metrics.size_stratified_coverage(D, ends, 4).tolist(),
        "ert": metrics.excess_risk_of_coverage(feature[:, None], D, ends, LEVEL).tolist(),
        "ssc_ceiling": metrics.ssc_ceiling(ends, 4, LEVEL).tolist(),
    }
    for count in GROUPS:
        found[f"fsc_{count}"] = metrics.feature_stratified_coverage(feature, D, ends, count).tolist()
    return found


def run_split(name, seed, folder):
    """Fit, calibrate and measure every model on one split; returns the path of its JSON file."""
    path = Path(folder) / f"{name}-{seed:03d}.json"
    wanted = models()
    record = {"version": VERSION, "data": name, "seed": seed, "models": {}}
    if path.exists():
        saved = json.loads(path.read_text())
        if saved.get("version") == VERSION:
            record = saved
    missing = [model for model in wanted if model not in record["models"]]
    if not missing:
        return str(path)
    torch.set_num_threads(1)
    data = load_dataset(name)
    train, cal, test = split_rows(len(data.D), seed)
    feature = data.X[test, 0]
    record["ceiling"] = {str(count): metrics.fsc_ceiling(feature, count, LEVEL) for count in GROUPS}
    record["rows"] = [len(train), len(cal), len(test)]
    record["labels"] = list(data.label_names)
    for model_name in missing:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ZeroLabelWarning)
            start = time.perf_counter()
            model = wanted[model_name](seed).fit(data.X[train], data.D[train])
            seconds = {"fit": time.perf_counter() - start}
        found = {}
        for method in METHODS:
            start = time.perf_counter()
            ci = ConformalIntervals(model, LEVEL, method).conformalize(data.X[cal], data.D[cal])
            found[method] = measure(data.D[test], feature, ci.predict_interval(data.X[test]))
            seconds[method] = time.perf_counter() - start
        found["not conformal"] = measure(data.D[test], feature, model.predict_interval(data.X[test], LEVEL))
        record["models"][model_name] = {"seconds": seconds, "methods": found}
        partial = path.with_suffix(".part")
        partial.write_text(json.dumps(record))
        os.replace(partial, path)
    return str(path)


def run(names, splits, jobs, folder):
    """All splits, those already measured left as they are."""
    folder.mkdir(parents=True, exist_ok=True)
    tasks = [(name, seed, str(folder)) for seed in range(splits) for name in names]
    if jobs == 1:
        for i, task in enumerate(tasks):
            print(f"{i + 1}/{len(tasks)} {run_split(*task)}", flush=True)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(run_split, *task) for task in tasks]
        for i, future in enumerate(as_completed(futures)):
            print(f"{i + 1}/{len(tasks)} {future.result()}", flush=True)


# -- report ------------------------------------------------------------------------------------------------------------


def load(names, folder, splits):
    """Records by data set, complete ones of the current version only."""
    wanted = set(models())
    found = {}
    for name in names:
        records = [json.loads(path.read_text()) for path in sorted(folder.glob(f"{name}-*.json"))]
        records = [r for r in records if r["version"] == VERSION and r["seed"] < splits and wanted <= set(r["models"])]
        if records:
            found[name] = records
    return found


def column(records, model, method, key):
    """Figures (splits, labels), or (splits, 1) for a single number."""
    return np.array([np.atleast_1d(r["models"][model]["methods"][method][key]) for r in records])


def mean_error(values):
    """Mean over splits and its 95 % half-width (Student), as text."""
    values = np.asarray(values)
    if len(values) < 2:
        return f"{values.mean():.4f}"
    half = stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
    return f"{values.mean():.4f} ± {half:.4f}"


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)]) + "\n"


def report(found):
    """Markdown with every table."""
    out = [
        "# Conformal intervals: results",
        "",
        f"Written by `benchmarks/conformal.py` (snefy-ldl {snefy_ldl.__version__}, torch {torch.__version__}, "
        f"Python {platform.python_version()}, one thread a split). Level {LEVEL:g}; 50/25/25 splits; figures after ± "
        "are 95 % half-widths over splits. Splits overlap in their rows, so these half-widths speak about the splits "
        "of these data sets, not about new ones. Widths and interval scores: lower is better. FSC: mean over labels, "
        "to be read beside its ceiling (what perfect conditional coverage would show) and the width.",
        "",
    ]
    for name, records in found.items():
        labels = records[0]["labels"]
        out += [f"## {name} ({len(records)} splits of {'/'.join(map(str, records[0]['rows']))} rows)", ""]
        ceilings = {count: np.mean([r["ceiling"][str(count)] for r in records]) for count in GROUPS}
        head = ["model", "method", "coverage", "width", "interval score", "joint", "SSC (ceiling)"]
        head += [f"FSC {count} (ceiling {ceilings[count]:.3f})" for count in GROUPS]
        rows = []
        for model in models():
            for method in (*METHODS, "not conformal"):
                get = lambda key, m=model, k=method, r=records: column(r, m, k, key).mean(axis=1)  # noqa: E731
                rows.append(
                    [model, method, mean_error(get("coverage")), mean_error(get("width")), mean_error(get("score"))]
                    + [f"{get('joint').mean():.3f}", f"{get('ssc').mean():.3f} ({get('ssc_ceiling').mean():.3f})"]
                    + [mean_error(get(f"fsc_{count}")) for count in GROUPS]
                )
        out += [table(head, rows), "### Coverage of each label", ""]
        rows = [
            [model, method, *(f"{value:.3f}" for value in column(records, model, method, "coverage").mean(axis=0))]
            for model in models()
            for method in METHODS
        ]
        out += [table(["model", "method", *labels], rows), "### Width of each label", ""]
        rows = [
            [model, method, *(f"{value:.3f}" for value in column(records, model, method, "width").mean(axis=0))]
            for model in models()
            for method in METHODS
        ]
        out += [table(["model", "method", *labels], rows), "### Paired comparisons, split by split", ""]
        out += [table(["comparison", "difference", "ratio of means"], paired(records)), "### Asked", ""]
        out += [table(["question", "answer"], verdicts(records)), ""]
    return "\n".join(out)


def paired(records):
    rows = []

    def compare(title, key, first, second):
        a, b = (column(records, *pair, key).mean(axis=1) for pair in (first, second))
        rows.append([title, mean_error(a - b), f"{a.mean() / b.mean():.3f}"])

    for method in METHODS:
        for other in models():
            if other != "SNEFY":
                compare(f"width, {method}: SNEFY - {other}", "width", ("SNEFY", method), (other, method))
                compare(f"interval score, {method}: SNEFY - {other}", "score", ("SNEFY", method), (other, method))
    for model in models():
        for method in METHODS[1:]:
            compare(f"interval score, {model}: {method} - chebyshev", "score", (model, method), (model, "chebyshev"))
    return rows


def yes_no(holds):
    return "yes" if holds else "NO"


def verdicts(records):
    """The study's own questions, answered with the figures at hand."""
    names = list(models())
    rows = []
    worst = max(
        (abs(value - LEVEL), model, method, records[0]["labels"][label], value)
        for model in names
        for method in METHODS
        for label, value in enumerate(column(records, model, method, "coverage").mean(axis=0))
    )
    told = f"{worst[4]:.4f} ({worst[1]}, {worst[2]}, {worst[3]})"
    rows.append([f"every coverage within {LEVEL:g} ± 0.01 (farthest)", f"{yes_no(worst[0] <= 0.01)}: {told}"])
    others = [name for name in names if name != "SNEFY"]
    for method in METHODS:
        width = {name: column(records, name, method, "width").mean() for name in names}
        for name in others:
            saved = 1.0 - width["SNEFY"] / width[name]
            rows.append([f"{method}: SNEFY narrower than {name}", f"{saved:+.1%}"])
        for count in GROUPS:
            fsc = {name: column(records, name, method, f"fsc_{count}").mean(axis=1) for name in names}
            lowest = min(others[:2], key=lambda name, f=fsc: f[name].mean())
            error = fsc[lowest].std(ddof=1) / np.sqrt(len(records)) if len(records) > 1 else 0.0
            holds = fsc["SNEFY"].mean() >= fsc[lowest].mean() - error
            rows.append(
                [
                    f"{method}: FSC {count} of SNEFY at least the smaller of the others' less one standard error",
                    f"{yes_no(holds)}: {fsc['SNEFY'].mean():.4f} against {fsc[lowest].mean():.4f} ({lowest})",
                ]
            )
    score = {method: column(records, "SNEFY", method, "score").mean() for method in METHODS}
    best = min(METHODS[1:], key=score.__getitem__)
    rows.append(
        [
            "SNEFY: cdf or quantile beats chebyshev on the interval score",
            f"{yes_no(score[best] < score['chebyshev'])}: {best} {score[best] / score['chebyshev'] - 1.0:+.1%}",
        ]
    )
    return rows


# -- speed -------------------------------------------------------------------------------------------------------------


def speed(n_rows=100_000, threads=2):
    """Seconds for intervals of many rows, by the default model fitted on Natural_Scene."""
    torch.set_num_threads(threads)
    data = load_dataset("natural_scene")
    train, cal, test = split_rows(len(data.D), 0)
    model = SnefyLDL(random_state=0, device="cpu").fit(data.X[train], data.D[train])
    X = data.X[np.resize(test, n_rows)]
    print(f"{n_rows} rows x {data.D.shape[1]} labels, {threads} threads, {model.n_neurons} neurons")
    for method in METHODS:
        ci = ConformalIntervals(model, LEVEL, method).conformalize(data.X[cal], data.D[cal])
        start = time.perf_counter()
        ci.predict_interval(X)
        print(f"{method}: {time.perf_counter() - start:.2f} s", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--splits", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--data", nargs="+", default=list(DATA))
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--report", action="store_true", help="only write the tables")
    parser.add_argument("--speed", action="store_true", help="only time 100,000 rows")
    asked = parser.parse_args()
    if asked.speed:
        speed()
        return
    if not asked.report:
        run(asked.data, asked.splits, asked.jobs, asked.out / "conformal")
    found = load(asked.data, asked.out / "conformal", asked.splits)
    asked.out.mkdir(parents=True, exist_ok=True)
    (asked.out / "conformal.md").write_text(report(found))
    print(f"wrote {asked.out / 'conformal.md'}")


if __name__ == "__main__":
    main()
