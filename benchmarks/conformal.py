"""Conformal intervals on real data: coverage on average and where it is lowest, width and interval score over splits.

    python benchmarks/conformal.py --splits 100 --jobs 16 --minutes 6    # resumable: one line per split
    python benchmarks/conformal.py --report                              # tables from what is there
    python benchmarks/conformal.py --records FILE --paper FOLDER         # the paper's records, for its report
    python benchmarks/conformal.py --speed                               # 100,000 rows x 9 labels

Each split is 50 % training, 25 % calibration, 25 % test, as in the paper, with the rows of ``reproduction``: one fit of
the default model serves this study and the paper's tables 2 and 3; figure A1 is run as well. The data sets come from
``snefy_ldl.load_dataset`` (set SNEFY_LDL_DATA to a folder that holds them, or let it fetch them). Work is ordered by
split, so that a run that is cut has about as many splits of each data set (of Movie, whose fits take longest, one for
six of the others). "told" is the score that "auto" chose, given the feature of the groups:
``conditional_on=Splines(0)``, the first feature.

Nothing was chosen on the splits that are reported, 0 to 99: the scores of "auto", the factor of "outlying" and the rows
that are set aside were chosen on splits 100 to 113 of SBU_3DFE and Natural_Scene and 100 to 109 of GEMAS_texture.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
import warnings
from collections import deque
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import numpy as np
import torch
from sklearn.ensemble import ExtraTreesRegressor

import density_data
import snefy_ldl
from common import machine, stamp
from snefy_ldl import SnefyLDL, load_dataset, metrics
from snefy_ldl.conformal import ConformalIntervals, Splines
from snefy_ldl.datasets import dataset_names
from snefy_ldl.errors import CalibrationWarning, LabelWarning
from snefy_ldl.learners import DirichletLDL

sys.path.append(str(Path(__file__).parent.parent))
from reproduction import runner, studies
from reproduction.config import STUDIES

DATA = ("sbu_3dfe", "natural_scene", "movie", "GEMAS_texture")
#: The data sets of the paper's tables 2 and 3, whose worst groups it prints: SNEFY-LDL, mean over labels, G = 2, 4, 8.
PRINTED = {"sbu_3dfe": (0.889, 0.859, 0.692), "natural_scene": (0.868, 0.774, 0.732)}
#: The tables of the paper that the same fits serve.
TABLES = {"natural_scene": "table2", "sbu_3dfe": "table3"}
METHODS = {"SNEFY": ("chebyshev", "quantile", "beta", "auto", "told"), "Dirichlet": ("chebyshev",)}
#: Splits of the others for one of Movie, and for one of figure A1.
MOVIE_EVERY, FIGURE_EVERY = 6, 5
GROUPS = (2, 4, 8)
LEVEL = 0.9
#: ERT is measured given this many principal components of the standardised features.
COMPONENTS = 10
#: Change it when a record would mean something else: old ones are then not reused.
VERSION = 4
RESULTS = Path(__file__).parent / "results"


@lru_cache(maxsize=2)
def load_rows(name):
    """Features (gaps as medians) and label distributions of a data set."""
    if name in dataset_names():
        return load_dataset(name)
    table = density_data.load(name)
    X = np.where(np.isnan(table.X), np.nanmedian(table.X, axis=0), table.X)
    return SimpleNamespace(X=X, D=table.D)


def fit_model(name, seed, X, D, device):
    """A fitted model; trained on the device, it answers on the processor."""
    if name == "Dirichlet":
        return DirichletLDL(random_state=seed).fit(X, D)
    model = SnefyLDL(random_state=seed, device=device).fit(X, D)
    if device == "cpu":
        return model
    with TemporaryDirectory() as folder:
        model.save(Path(folder) / "model")
        return SnefyLDL.load(Path(folder) / "model", device="cpu")


def make_intervals(model, method, chosen):
    """Unfitted intervals; ``chosen`` is what "auto" took on the same rows."""
    if method == "told":  # the rows set aside depend on their number alone, so auto would choose the same again
        return ConformalIntervals(model, LEVEL, chosen, conditional_on=Splines(0))
    return ConformalIntervals(model, LEVEL, method)


def split_rows(n, seed):
    """Training, calibration and test rows: 50 %, 25 %, 25 %."""
    order = np.random.default_rng([seed, n]).permutation(n)
    half, quarter = n // 2, n // 4
    return order[:half], order[half : half + quarter], order[half + quarter :]


def components(X):
    """The first principal components of the standardised features."""
    spread = X.std(axis=0)
    Z = (X - X.mean(axis=0)) / np.where(spread > 0.0, spread, 1.0)
    left, sizes, _ = np.linalg.svd(Z, full_matrices=False)
    return left[:, :COMPONENTS] * sizes[:COMPONENTS]


def excess_risk(features, covered, seed=0):
    """Excess risk of the target coverage (Braun et al., 2025), (L,): how well the features tell which rows are missed.

    ``E[(Z - c)^2] - E[(Z - h(x))^2]``, Z whether a row is covered and h a forest fitted without the row's fold; 0 or
    less where coverage does not depend on x.
    """
    rng = np.random.default_rng(seed)
    folds, predicted = rng.permutation(len(features)) % 5, np.empty_like(covered)
    for k in range(5):
        forest = ExtraTreesRegressor(50, min_samples_leaf=10, bootstrap=True, random_state=int(rng.integers(2**31)))
        forest.fit(features[folds != k], covered[folds != k])
        predicted[folds == k] = forest.predict(features[folds == k]).reshape(-1, covered.shape[1])
    return ((covered - LEVEL) ** 2 - (covered - predicted) ** 2).mean(axis=0)


def measure(X, D, ends):
    """Every figure of several sets of intervals, by their names; a list over labels where there is one.

    Slabs and forests are searched once for all sets together, so that differences between them are paired.
    """
    found = {}
    for key, pair in ends.items():
        found[key] = {
            "coverage": metrics.coverage(D, pair, per_label=True).tolist(),
            "width": metrics.interval_width(pair, per_label=True).tolist(),
            "score": metrics.interval_score(D, pair, LEVEL, per_label=True).tolist(),
            "whole": float(((pair[..., 0] <= 0.0) & (pair[..., 1] >= 1.0)).mean()),
        }
        for count in GROUPS:
            found[key][f"fsc_{count}"] = metrics.feature_stratified_coverage(X[:, 0], D, pair, count).tolist()
    every, labels = np.concatenate(list(ends.values()), axis=1), np.tile(D, (1, len(ends)))
    slabs = [metrics.worst_slab_coverage(X, labels, every, random_state=k) for k in range(4)]
    inside = (every[..., 0] <= labels) & (labels <= every[..., 1])
    risks = excess_risk(components(X), inside.astype(np.float64))
    for number, key in enumerate(ends):
        columns = slice(number * D.shape[1], (number + 1) * D.shape[1])
        found[key] |= {"slab": np.mean(slabs, axis=0)[columns].tolist(), "ert": risks[columns].tolist()}
    return found


def run_split(name, seed, device):
    """Fit, calibrate and measure every model on one split; returns its record."""
    began = time.perf_counter()
    data = load_rows(name)
    train, cal, test = split_rows(len(data.D), seed)
    X, D = data.X[test], data.D[test]
    ends, seconds, chosen = {}, {}, None
    for model_name, methods in METHODS.items():
        start = time.perf_counter()
        model = fit_model(model_name, seed, data.X[train], data.D[train], device)
        seconds[model_name] = time.perf_counter() - start
        for method in methods:
            start = time.perf_counter()
            intervals = make_intervals(model, method, chosen).conformalize(data.X[cal], data.D[cal])
            ends[f"{model_name} {method}"] = intervals.predict_interval(X)
            seconds[f"{model_name} {method}"] = time.perf_counter() - start
            chosen = intervals.method if method == "auto" else chosen
    ceiling = {f"fsc_{count}": metrics.conditional.fsc_ceiling(X[:, 0], count, LEVEL) for count in GROUPS}
    ceiling["slab"] = LEVEL  # other rows measure the slab than those that found it
    perfect = (np.random.default_rng(0).random((len(X), 5)) < LEVEL).astype(np.float64)
    ceiling["ert"] = excess_risk(components(X), perfect).mean()
    figures = measure(X, D, ends)
    record = {"rows": [len(train), len(cal), len(test)], "ceiling": ceiling, "chosen": chosen, "figures": figures}
    record["seconds"] = seconds | {"all": time.perf_counter() - began}
    if name in TABLES:
        study = STUDIES[TABLES[name]]
        one, other = (
            studies.interval_figures(study.protocol, D, X[:, 0], ends[f"SNEFY {method}"])
            for method in (study.protocol.score, study.protocol.extra_score)
        )
        record["table"] = {
            "fingerprint": runner.fingerprint(study, "default", runner.data_digest(data)),
            "figures": {
                "models": {"snefy": one},
                "methods": {f"snefy_{study.protocol.extra_score}": other},
                "ceiling": studies.ceilings(study.protocol, X[:, 0]),
                "labels": [str(label) for label in data.label_names],
            },
        }
    return record


def run_figure(part, repeat, device):
    """One setting of figure A1 on one split; returns its record."""
    began, study = time.perf_counter(), STUDIES["figureA1"]
    data, trained = load_rows(study.dataset), replace(study, model=(("device", device),))
    (outcome,) = studies.run_sensitivity(trained, "default", part, [repeat], data)
    fingerprint = runner.fingerprint(study, "default", runner.data_digest(data))
    return {
        "part": part,
        "fingerprint": fingerprint,
        "figures": outcome.figures,
        "seconds": time.perf_counter() - began,
    }


def work(task, device):
    """A record of one task: (data set, split), or ("figureA1", split, setting)."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", LabelWarning)
    warnings.simplefilter("ignore", CalibrationWarning)  # rows at the rim get [0, 1]: counted as "whole"
    name, seed = task[:2]
    record = run_figure(task[2], seed, device) if name == "figureA1" else run_split(name, seed, device)
    return {"version": VERSION, "snefy_ldl": snefy_ldl.__version__, "data": name, "seed": seed, **record}


def plan(names, splits):
    """Tasks in the order of the splits."""
    tasks = []
    for seed in range(splits):
        tasks += [(name, seed) for name in names if name not in ("movie", "figureA1")]
        if "movie" in names and (seed + 1) % MOVIE_EVERY == 0:
            tasks.append(("movie", seed // MOVIE_EVERY))
        if "figureA1" in names and seed % FIGURE_EVERY == 0 and seed // FIGURE_EVERY < STUDIES["figureA1"].repeats:
            parts = studies.grid_parts(STUDIES["figureA1"], "default")
            tasks += [("figureA1", seed // FIGURE_EVERY, part) for part in parts]
    return tasks


def key_of(record):
    """The task that a record answers."""
    return (record["data"], record["seed"], *([record["part"]] if "part" in record else []))


def run(tasks, jobs, minutes, path, device):
    """Every task that is missing, until the time is up; each record is a line of the file as soon as it is known."""
    done = {key_of(record) for record in read(path)}
    left, began, longest = deque(task for task in tasks if task not in done), time.perf_counter(), {}
    pool, running, count = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")), {}, 0
    with path.open("a", encoding="utf-8") as file:
        while left or running:
            remaining = 60.0 * minutes - (time.perf_counter() - began)
            while left and len(running) < jobs:
                task = left.popleft()
                if remaining > 1.1 * longest.get((task[0], *task[2:]), 0.0):  # what would not end in time is left out
                    running[pool.submit(work, task, device)] = task, time.perf_counter()
            ended, _ = wait(running, timeout=max(remaining, 0.0), return_when=FIRST_COMPLETED)
            if not ended:
                break
            for future in ended:
                task, start = running.pop(future)
                kind, spent = (task[0], *task[2:]), time.perf_counter() - start
                longest[kind], count = max(spent, longest.get(kind, 0.0)), count + 1
                if future.exception() is not None:
                    print(f"{' '.join(map(str, task))} failed: {future.exception()!r}", flush=True)
                    continue
                file.write(json.dumps(future.result()) + "\n")
                file.flush()
                print(f"{count}: {' '.join(map(str, task))}, {spent:.0f} s, {remaining:.0f} s left", flush=True)
    pool.shutdown(wait=False, cancel_futures=True)
    for child in multiprocessing.active_children():  # tasks that nobody waits for
        child.terminate()


def read(path):
    """Records of the current version; a line that was cut short is left out."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if record["version"] == VERSION:
            found.append(record)
    return found


def write_paper(records, out):
    """Records of tables 2 and 3 and of figure A1 as ``python -m reproduction`` writes them."""
    for record in records:
        about = {"version": runner.VERSION, "recipe": "default", "repeat": record["seed"]}
        if record["data"] in TABLES:
            study, table = STUDIES[TABLES[record["data"]]], record["table"]
            figures, seconds = table["figures"], record["seconds"]["SNEFY"]
        elif record["data"] == "figureA1":
            study, table = STUDIES["figureA1"], record
            path = runner.record_path(out, study.name, "default", record["seed"])
            held = json.loads(path.read_text()) if path.exists() else {"figures": None, "seconds": 0.0}
            figures = studies.merge_part(study, "default", record["part"], held["figures"], record["figures"])
            seconds = held["seconds"] + record["seconds"]
        else:
            continue
        about |= {"study": study.name, "dataset": study.dataset, "fingerprint": table["fingerprint"]}
        about |= {"snefy_ldl": record["snefy_ldl"], "seconds": round(seconds, 3), "figures": figures}
        path = runner.record_path(out, study.name, "default", record["seed"])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(about))


# -- report ------------------------------------------------------------------------------------------------------------


def by_data(records, names, splits):
    """Records by data set, in the order of the splits."""
    found = {name: [r for r in records if r["data"] == name and r["seed"] < splits] for name in names}
    return {name: sorted(part, key=lambda r: r["seed"]) for name, part in found.items() if part and name != "figureA1"}


def column(records, model, method, key):
    """Figures (splits,): the mean over labels."""
    return np.array([np.mean(r["figures"][f"{model} {method}"][key]) for r in records])


def mean_error(values, digits=3):
    """Mean over splits and its standard error, as text."""
    values = np.asarray(values)
    if len(values) < 2:
        return f"{values.mean():.{digits}f}"
    return f"{values.mean():.{digits}f} ± {values.std(ddof=1) / np.sqrt(len(values)):.{digits}f}"


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)]) + "\n"


KEYS = {
    "coverage": "coverage",
    "width": "width",
    "score": "interval score",
    "fsc_2": "FSC 2",
    "fsc_4": "FSC 4",
    "fsc_8": "FSC 8",
    "slab": "worst slab",
    "ert": "ERT",
    "whole": "whole of [0, 1]",
}
DIGITS = {"ert": 5}


def report(found, facts):
    """Markdown with every table."""
    trained = f", networks trained on {facts['gpu']}" if facts.get("device") == "cuda" else ""
    out = [
        "# Conformal intervals: results",
        "",
        f"Written by `benchmarks/conformal.py` (snefy-ldl {snefy_ldl.__version__}, {facts['processor']}, torch "
        f"{facts['torch']}, Python {facts['python']}, one thread per split{trained}). "
        f"Level {LEVEL:g}; 50/25/25 "
        "splits as in the paper; mean over labels and splits, ± one standard error over splits. Splits overlap in "
        "their rows, so these errors speak about the splits of these data sets, not about new ones. FSC: coverage in "
        "the worst of G equal-width groups of the first feature; worst slab: of random directions of all features; "
        f"ERT: excess risk of the target coverage given the first {COMPONENTS} principal components of the features "
        "(lower is better). The ceiling is what intervals with perfect conditional coverage would show. *auto* is not "
        "told what the groups are made of; *told* is `conditional_on=Splines(0)`.",
        "",
    ]
    for name, records in found.items():
        out += [f"## {name} ({len(records)} splits of {'/'.join(map(str, records[0]['rows']))} rows)", ""]
        rows = []
        for model, methods in METHODS.items():
            for method in methods:
                rows.append(
                    [
                        model,
                        method,
                        *(mean_error(column(records, model, method, key), DIGITS.get(key, 3)) for key in KEYS),
                    ]
                )
        if name in PRINTED:
            printed = dict(zip(("fsc_2", "fsc_4", "fsc_8"), PRINTED[name]))
            rows.append(["the paper's SNEFY", "printed", *(f"{printed[k]:.3f}" if k in printed else "" for k in KEYS)])
        ceiling = {key: np.mean([r["ceiling"][key] for r in records]) for key in records[0]["ceiling"]}
        rows.append(
            ["ceiling", "", *(f"{ceiling[key]:.{DIGITS.get(key, 3)}f}" if key in ceiling else "" for key in KEYS)]
        )
        out += [table(["model", "method", *KEYS.values()], rows), ""]
        picks = [r["chosen"] for r in records]
        counts = ", ".join(f"{kind} {picks.count(kind)} times" for kind in sorted(set(picks)))
        out += [f"auto chose {counts}.", "", table(["asked", "answer"], verdicts(name, records, ceiling)), ""]
    return "\n".join(out)


def yes_no(holds):
    return "yes" if holds else "NO"


def verdicts(name, records, ceiling):
    """The study's own questions, answered with the figures at hand."""

    def get(key, method, model="SNEFY"):
        return column(records, model, method, key)

    def error(values):
        return values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else 0.0

    rows = []
    for method in ("auto", "told"):
        value = get("coverage", method).mean()
        rows.append(
            [f"{method}: coverage within {LEVEL:g} ± 0.01", f"{yes_no(abs(value - LEVEL) <= 0.01)}: {value:.4f}"]
        )
    if name in PRINTED:
        best = min(("chebyshev", "quantile"), key=lambda method: -get("fsc_8", method).mean())
        base = get("width", best).mean()
        for place, count in enumerate(GROUPS):
            ours, gap = (
                get(f"fsc_{count}", "auto"),
                get(f"fsc_{count}", "auto") - get(f"fsc_{count}", "chebyshev", "Dirichlet"),
            )
            rows.append(
                [
                    f"auto: FSC {count} at least the Dirichlet's, up to one standard error of the paired difference",
                    f"{yes_no(gap.mean() >= -error(gap))}: {gap.mean():+.3f} ± {error(gap):.3f}",
                ]
            )
            printed = PRINTED[name][place]
            rows.append(
                [
                    f"auto: FSC {count} at least the paper's printed SNEFY-LDL, up to one standard error",
                    f"{yes_no(ours.mean() >= printed - error(ours))}: {ours.mean():.3f} against {printed:.3f}",
                ]
            )
            told = get(f"fsc_{count}", "told").mean()
            top = ceiling[f"fsc_{count}"]
            rows.append(
                [
                    f"told: FSC {count} within 0.02 of the ceiling",
                    f"{yes_no(told >= top - 0.02)}: {told:.3f} of {top:.3f}",
                ]
            )
        auto, told = get("width", "auto").mean(), get("width", "told").mean()
        rows.append(
            [
                f"auto: at most 10 % wider than {best}, best at G = 8",
                f"{yes_no(auto <= 1.1 * base)}: {auto / base - 1:+.1%}",
            ]
        )
        rows.append(["told: at most 15 % wider than auto", f"{yes_no(told <= 1.15 * auto)}: {told / auto - 1:+.1%}"])
        rows.append(["auto against chebyshev: width", f"{auto / get('width', 'chebyshev').mean() - 1:+.1%}"])
    for method in ("auto", "beta"):
        for key, sign, words in (("slab", 1.0, "worst slab higher"), ("ert", -1.0, "ERT lower")):
            gap = get(key, method) - get(key, "chebyshev")
            figure = f"{gap.mean():+.{DIGITS.get(key, 4)}f} ± {error(gap):.{DIGITS.get(key, 4)}f}"
            rows.append([f"{method}: {words} than chebyshev's", f"{yes_no(sign * gap.mean() > 0)}: {figure}"])
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
    for method in ("chebyshev", "quantile", "cdf", "auto"):
        ci = ConformalIntervals(model, LEVEL, method).conformalize(data.X[cal], data.D[cal])
        start = time.perf_counter()
        ci.predict_interval(X)
        print(f"{method}: {time.perf_counter() - start:.2f} s", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--splits", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=1e6, help="stop by itself after this time")
    parser.add_argument("--device", default="cpu", help="where networks are trained: cpu or cuda")
    parser.add_argument("--data", nargs="+", default=[*DATA, "figureA1"])
    parser.add_argument("--records", type=Path, default=RESULTS / "conformal" / "records.jsonl")
    parser.add_argument("--report", action="store_true", help="only write the tables")
    parser.add_argument("--paper", type=Path, help="only write the paper's records into this folder")
    parser.add_argument("--speed", action="store_true", help="only time 100,000 rows")
    asked = parser.parse_args()
    if asked.speed:
        speed()
        return
    kept = asked.records.with_suffix(".machine.json")
    if not asked.report and not asked.paper:
        asked.records.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(machine(1) | {"device": asked.device}))
        run(plan(asked.data, asked.splits), asked.jobs, asked.minutes, asked.records, asked.device)
        return
    records = read(asked.records)
    if asked.paper:
        write_paper(records, asked.paper)
        return
    found, facts = by_data(records, asked.data, asked.splits), json.loads(kept.read_text())
    text = report(found, facts)
    summary = {
        name: {
            model: {m: {key: column(records, model, m, key).tolist() for key in KEYS} for m in methods}
            for model, methods in METHODS.items()
        }
        for name, records in found.items()
    }
    seeds = {name: [r["seed"] for r in records] for name, records in found.items()}
    content = {"snefy_ldl": snefy_ldl.__version__, "machine": facts, "splits": seeds, "figures": summary}
    (RESULTS / "conformal.json").write_text(json.dumps(content) + "\n")
    (RESULTS / "conformal.md").write_text(text.rstrip() + "\n")
    stamp("conformal.json", "conformal.md")
    print(text)


if __name__ == "__main__":
    main()
