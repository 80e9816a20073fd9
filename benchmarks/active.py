"""Active learning on real data: the paper's protocol, long learning curves, speed, and a million-row pool.

    python benchmarks/active.py paper --repeats 10 --jobs 2      # 400 labels + 100 queried, both recipes
    python benchmarks/active.py long --repeats 10 --jobs 2       # 100 -> 2,000 labels and the like
    python benchmarks/active.py report                           # tables from what is there
    python benchmarks/active.py pictures                         # pictures alone, from what is there or was kept
    python benchmarks/active.py speed                            # entropy of Movie's pool, and its error
    python benchmarks/active.py million --folder pools           # query on a Parquet file, time and peak memory

Resumable: one JSON a repeat (the long run also keeps finished rounds). Every strategy of a repeat shares its split and
its first labels, so that differences are paired; models of all strategies are trained in one stack. Test rows are only
scored. The data sets come from ``snefy_ldl.load_dataset``.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
import warnings
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch

from common import RESULTS, area_under_curve, machine
from snefy_ldl import SnefyLDL, load_dataset
from snefy_ldl._internal.files import write_json
from snefy_ldl.active import query
from snefy_ldl.errors import LabelWarning
from snefy_ldl.learners import DirichletLDL
from snefy_ldl.metrics import score
from snefy_ldl.plots.active import paired_interval
from snefy_ldl.snefy import fit_many

#: Change it when a result file would mean something else: old files are then not reused.
VERSION = 1
METRICS = ("chebyshev", "clark", "canberra", "kl_divergence", "cosine", "intersection")
#: Name -> strategy and its options.
STRATEGIES = {
    "random": ("random", {}),
    "kmeans": ("kmeans", {}),
    "coreset": ("coreset", {}),
    "graph_density": ("graph_density", {}),
    "dirichlet": ("dirichlet", {}),
    "entropy": ("entropy", {}),
    "entropy, uniform": ("entropy", {"method": "uniform"}),
    "entropy, shared": ("entropy", {"method": "shared"}),
    "variance": ("variance", {}),
    "epistemic": ("epistemic", {}),
    "epistemic, vote": ("epistemic", {"target": "vote"}),
    "entropy, diverse": ("entropy", {"method": "shared", "diverse": True}),
    "variance, diverse": ("variance", {"diverse": True}),
    "variance, kmeans": ("variance", {"diverse": "kmeans"}),
    "epistemic, diverse": ("epistemic", {"target": "vote", "diverse": True}),
    "epistemic, kmeans": ("epistemic", {"target": "vote", "diverse": "kmeans"}),
}
#: Data set -> first labels, last labels, step.
LONG = {"movie": (100, 2000, 100), "natural_scene": (50, 1000, 50), "yeast_alpha": (30, 600, 30)}
PAPER = {"movie": (400, 500, 100), "natural_scene": (400, 500, 100)}
#: Members of the model that ``epistemic`` asks; every strategy is scored with a model of one member.
MEMBERS = 4


def recipe(name, seed):
    if name == "paper":
        return SnefyLDL.paper("active", random_state=seed, device="cpu")
    if name == "features":  # the default as it was before guides, a centre and zeros: quick enough for many rounds
        return SnefyLDL(random_state=seed, device="cpu", guides=None, centre=None, zeros="shrink")
    return SnefyLDL(random_state=seed, device="cpu")


def options_of(name, kind):
    """The paper's recipe leaves features as they are, and so do its feature strategies."""
    strategy, options = STRATEGIES[name]
    if kind == "paper" and strategy in ("kmeans", "coreset", "graph_density"):
        options = options | {"standardize": False}
    return strategy, options


def ask(name, kind, n, X, D, labeled, pool, model, seed):
    """Rows of X that a strategy asks for next."""
    strategy, options = options_of(name, kind)
    asked = model
    if strategy == "dirichlet":  # the paper's baseline: its mean from SA-BFGS, one concentration by likelihood
        asked = DirichletLDL(random_state=seed).fit(X[labeled], D[labeled])
    elif strategy == "epistemic":
        asked = recipe(kind, seed).set_params(n_members=MEMBERS).fit(X[labeled], D[labeled])
    rows = query(strategy, X[pool], n, model=asked, X_labeled=X[labeled], random_state=seed, **options)
    return pool[rows]


def run_repeat(run, data_name, kind, repeat, names, plan, folder):
    """All strategies of one repeat: 90/10 split, first labels, then rounds; the file is written after every round."""
    warnings.simplefilter("ignore", LabelWarning)
    torch.set_num_threads(1)
    first, last, step = plan
    path = Path(folder) / f"{run}-{data_name}-{kind}-{repeat:03d}.json"
    about = {"version": VERSION, "run": run, "data": data_name, "recipe": kind, "repeat": repeat, "plan": list(plan)}
    record = about | {"labels": {}, "scores": {}, "seconds": {}}
    if path.exists():
        saved = json.loads(path.read_text())
        if {key: saved.get(key) for key in about} == about:
            record = saved
    data = load_dataset(data_name)
    order = np.random.default_rng([repeat, len(data.D)]).permutation(len(data.D))
    n_test = round(0.1 * len(order))
    test, train = order[:n_test], order[n_test:]
    X, D = data.X, data.D
    sizes = list(range(first, last + 1, step))
    for name in names:
        record["labels"].setdefault(name, train[:first].tolist())
        record["scores"].setdefault(name, [])
        record["seconds"].setdefault(name, 0.0)
    models = {}

    def train_stack(wanted):
        # strategies with the same rows (the first round) share one fit
        distinct = list(dict.fromkeys(tuple(record["labels"][name]) for name in wanted))
        fitted = fit_many(recipe(kind, repeat), X, D, [np.array(rows) for rows in distinct], n_jobs=1)
        by_rows = dict(zip(distinct, fitted))
        return {name: by_rows[tuple(record["labels"][name])] for name in wanted}

    for number, size in enumerate(sizes):
        behind = [name for name in names if len(record["scores"][name]) == number]
        if not behind:
            continue
        for name in behind:
            if len(record["labels"][name]) == size:
                continue
            if name not in models:  # resumed: the model that chose is fitted again
                models |= train_stack([other for other in behind if other not in models])
            labeled = np.array(record["labels"][name])
            pool = np.setdiff1d(train, labeled)
            began = time.perf_counter()
            rows = ask(name, kind, size - len(labeled), X, D, labeled, pool, models[name], 1000 * repeat + number)
            record["seconds"][name] += time.perf_counter() - began
            record["labels"][name] += rows.tolist()
        models |= train_stack(behind)
        seen = {}
        for name in behind:
            model = models[name]
            if id(model) not in seen:
                found = score(D[test], model.predict(X[test]))
                found["log_likelihood"] = model.score(X[test], D[test])
                seen[id(model)] = found
            record["scores"][name].append(seen[id(model)])
        write_json(path, record)
    return str(path)


def run_all(args, run, plans):
    folder = Path(args.results) / "active"
    kinds = ("default", "features", "paper") if run == "paper" else ("default", "features")
    kinds = [kind for kind in kinds if kind in args.recipes.split(",")]
    names = list(STRATEGIES) if args.strategies == "all" else ["random", *args.strategies.split(";")]
    names = list(dict.fromkeys(name.strip() for name in names))
    data = args.data.split(",") if args.data else list(plans)
    jobs = [(name, kind, repeat) for repeat in range(args.repeats) for name in data for kind in kinds]
    plans = {name: tuple(int(part) for part in args.plan.split(",")) if args.plan else plans[name] for name in data}
    began, done = time.perf_counter(), 0
    with ProcessPoolExecutor(args.jobs, mp_context=get_context("spawn")) as pool:
        waiting = {
            pool.submit(run_repeat, run, name, kind, repeat, names, plans[name], folder): (name, kind, repeat)
            for name, kind, repeat in jobs
        }
        for future in as_completed(waiting):
            future.result()
            done += 1
            spent = time.perf_counter() - began
            left = spent / done * (len(jobs) - done)
            print(f"{done}/{len(jobs)} {waiting[future]}  {spent:.0f} s, about {left:.0f} s left", flush=True)


# -- report ------------------------------------------------------------------------------------------------------------


def load(folder):
    """Records by (run, data, recipe), of the current version."""
    groups = {}
    for path in sorted(Path(folder).glob("*.json")):
        record = json.loads(path.read_text())
        if record.get("version") == VERSION:
            groups.setdefault((record["run"], record["data"], record["recipe"]), []).append(record)
    return groups


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)]) + "\n"


def signed(mean, half):
    mark = " *" if abs(mean) > half else ""
    return f"{mean:+.4f} ± {half:.4f}{mark}"


def report(groups):
    facts = machine(1)
    out = [
        "# Active learning: results",
        "",
        f"Written by `benchmarks/active.py` ({facts['processor']}, one thread a repeat, torch {facts['torch']}). Every "
        "difference is paired with `random` on the same split and first labels; ± is the 95 % half-width (Student) "
        "over repeats, a star marks an interval clear of zero. Splits of one data set overlap, so these intervals "
        "speak about splits of it. KL and the distances: below zero is better than random.",
        "",
    ]
    for (run, data, kind), records in sorted(groups.items()):
        rounds = min(len(values) for record in records for values in record["scores"].values())
        names = [name for name in STRATEGIES if all(name in record["scores"] for record in records)]
        first, last, step = records[0]["plan"]
        sizes = list(range(first, last + 1, step))[:rounds]
        out += [f"## {run}: {data}, {kind} recipe, {len(records)} repeats, {sizes[0]} to {sizes[-1]} labels", ""]

        def curves(name, metric, records=records, rounds=rounds):
            return np.array([[one[metric] for one in record["scores"][name][:rounds]] for record in records])

        rows = []
        for name in names:
            row = [name]
            for metric in METRICS:
                values = curves(name, metric)[:, -1]
                spread = f" ± {values.std(ddof=1):.4f}" if len(values) > 1 else ""
                row.append(f"{values.mean():.4f}{spread}")
            rows.append([*row, f"{np.mean([record['seconds'][name] for record in records]):.1f}"])
        out += ["At the last round, mean ± standard deviation over repeats:", ""]
        out += [table(["strategy", *METRICS, "s choosing"], rows)]
        if len(records) < 2 or "random" not in names:
            continue
        rows = []
        for name in names[1:] if names[0] == "random" else names:
            row = [name]
            row += [
                signed(*paired_interval(curves(name, metric)[:, -1], curves("random", metric)[:, -1]))
                for metric in METRICS
            ]
            if rounds > 1:
                areas = [area_under_curve(sizes, curves(one, "kl_divergence")) for one in (name, "random")]
                row.append(signed(*paired_interval(*areas)))
            rows.append(row)
        head = ["strategy - random", *METRICS] + (["area under the KL curve"] if rounds > 1 else [])
        out += ["Paired differences to random:", "", table(head, rows)]
    return "\n".join(out)


def keep(groups, path):
    """KL divergences of the long runs into one file that pictures can be drawn from again, one entry a data set."""
    kept = json.loads(path.read_text())["data"] if path.exists() else {}
    for (run, data, kind), records in groups.items():
        if run != "long" or len(records) < 2:
            continue
        rounds = min(len(values) for record in records for values in record["scores"].values())
        first, last, step = records[0]["plan"]
        curves = {
            name: [
                [float(f"{one['kl_divergence']:.5g}") for one in record["scores"][name][:rounds]] for record in records
            ]
            for name in STRATEGIES
            if all(name in record["scores"] for record in records)
        }
        sizes = list(range(first, last + 1, step))[:rounds]
        kept[data] = {"recipe": kind, "step": step, "sizes": sizes, "kl_divergence": curves}
    if kept:
        write_json(path, {"machine": machine(1), "data": kept})
    return kept


def pictures(kept, folder):
    """One picture a data set: a panel for each of the four best strategies, all against random rows."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from snefy_ldl.plots import style
    from snefy_ldl.plots.active import plot_learning_curves

    for data, entry in kept.items():
        sizes, curves = entry["sizes"], entry["kl_divergence"]
        areas = {name: float(np.mean(area_under_curve(sizes, curve))) for name, curve in curves.items()}
        best = sorted((name for name in curves if name != "random"), key=areas.__getitem__)[:4]
        figure, axes = plt.subplots(2, 2, figsize=(7.2, 4.6), sharex=True, sharey=True, layout="constrained")
        for ax, name in zip(axes.flat, best):
            plot_learning_curves(sizes, {"random": curves["random"], name: curves[name]}, ax, difference=True)
            ax.get_legend().remove()
            style.title(ax, name)
            ax.set(xlabel="", ylabel="")
            ax.xaxis.set_major_formatter("{x:,.0f}")
        figure.suptitle(
            f"{data}: KL divergence less that of random rows", color=style.INK, fontsize=12, fontweight="bold"
        )
        words = f"labelled rows ({len(curves['random'])} splits, {entry['step']} rows a round; bands: 95 %, paired)"
        figure.supxlabel(words, color=style.QUIET, fontsize=9.5)
        figure.supylabel("below zero: better than random", color=style.QUIET, fontsize=9.5)
        figure.savefig(Path(folder) / f"active-{data}.png", dpi=200)
        plt.close(figure)


# -- speed and memory --------------------------------------------------------------------------------------------------


def in_words(threads):
    facts = machine(threads)
    return f"{facts['processor']}, {threads} thread(s), torch {facts['torch']}, NumPy {facts['numpy']}."


def publish(args, name, lines, text):
    write_json(Path(args.results) / f"{name}.json", {"machine": machine(args.threads), "rows": lines})
    (Path(args.results) / f"{name}.md").write_text(text.rstrip() + "\n")
    print(text)


def speed(args):
    """Entropy of Movie's pool: time and error of each estimator, against many exact draws."""
    warnings.simplefilter("ignore", LabelWarning)
    torch.set_num_threads(args.threads)
    data = load_dataset("movie")
    model = SnefyLDL(random_state=0, device="cpu").fit(data.X[:400], data.D[:400])
    X = data.X[-args.rows :]
    exact, error = model.entropy(X, n=args.reference, random_state=1, return_std_error=True)
    lines = []

    def row(title, work):
        began, spent = time.perf_counter(), time.process_time()
        values = work()
        seconds, spent = time.perf_counter() - began, time.process_time() - spent
        gap = values - exact
        ranks = np.corrcoef(np.argsort(np.argsort(values)), np.argsort(np.argsort(exact)))[0, 1]
        overlap = len(set(np.argsort(-values)[:100]) & set(np.argsort(-exact)[:100]))
        figures = (seconds, spent, np.sqrt(np.mean(gap**2)), gap.std(), ranks)
        lines.append([title, *(f"{figure:.4g}" for figure in figures), str(overlap)])
        return spent

    for method in ("model", "uniform"):  # the first call of each also starts threads
        model.entropy(X[:500], n=100, method=method)
    base = row("exact draws, 1,000 a row", lambda: model.entropy(X, n=1000, random_state=2))
    row("uniform draws (A2), 1,000", lambda: model.entropy(X, n=1000, method="uniform", random_state=2))
    spent = float(lines[-1][2])
    more = max(1000, int(1000 * base / max(spent, 1e-3)))  # as much processor time as the exact draws
    row(f"uniform draws (A2), {more:,}", lambda: model.entropy(X, n=more, method="uniform", random_state=2))

    def shared():
        return query("entropy", X, 1, model=model, random_state=2, return_utilities=True, method="shared")[1]

    row("shared draws of each component", shared)
    head = ["estimator", "seconds", "processor seconds", "root mean square error", "the same less its mean"]
    head += ["rank correlation", "top 100"]
    text = (
        f"# Entropy of {len(X):,} rows of Movie\n\n{in_words(args.threads)}\n\nAgainst {args.reference:,} exact draws "
        f"a row (standard error {error.mean():.3f}). The standard error of 1,000 exact draws is "
        f"{error.mean() * np.sqrt(args.reference / 1000):.3f} a row.\n\n" + table(head, lines)
    )
    publish(args, "active-speed", lines, text)


def million(args):
    """A float32 Parquet pool, queried in bounded memory."""
    import pyarrow as pa
    from pyarrow import parquet

    path = Path(args.folder) / f"pool-{args.rows}-294.parquet"
    data = load_dataset("natural_scene")
    names = [f"x{i}" for i in range(data.X.shape[1])]
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        rng = np.random.default_rng(0)
        temporary = path.with_suffix(".part")
        schema = pa.schema([(name, pa.float32()) for name in names])
        spread = data.X.std(axis=0)
        with parquet.ParquetWriter(temporary, schema, compression="NONE") as writer:
            for start in range(0, args.rows, 10_000):
                rows = rng.integers(len(data.X), size=min(10_000, args.rows - start))
                block = data.X[rows] + 0.05 * spread * rng.normal(size=(len(rows), len(names)))
                arrays = [pa.array(column.astype(np.float32)) for column in block.T]
                writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
        temporary.replace(path)
    warnings.simplefilter("ignore", LabelWarning)
    torch.set_num_threads(args.threads)
    model = SnefyLDL(random_state=0, device="cpu").fit(data.X[:500], data.D[:500])
    lines = []
    for name in args.strategies.split(";") if args.strategies != "all" else ["variance", "entropy, shared"]:
        strategy, options = STRATEGIES[name.strip()]
        began, spent = time.perf_counter(), time.process_time()
        rows = query(strategy, path, 100, model=model, X_labeled=data.X[:500], random_state=0, **options)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        seconds, spent = time.perf_counter() - began, time.process_time() - spent
        lines.append([name, f"{seconds:.1f}", f"{spent:.1f}", f"{peak:.2f}", str(len(set(rows.tolist())))])
        print(lines[-1], flush=True)
    text = f"# A pool of {args.rows:,} rows, {len(names)} features\n\n{in_words(args.threads)}\n\n"
    text += table(["strategy", "seconds", "processor seconds", "peak GB so far", "rows chosen"], lines)
    publish(args, "active-million", lines, text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["paper", "long", "report", "pictures", "speed", "million"])
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--data", default="", help="data sets, separated by commas")
    parser.add_argument("--recipes", default="default,paper")
    parser.add_argument("--strategies", default="all", help="names separated by semicolons")
    parser.add_argument("--plan", default="", help="first,last,step: other numbers of labels")
    parser.add_argument("--results", default=str(RESULTS))
    parser.add_argument("--rows", type=int, default=0)
    parser.add_argument("--reference", type=int, default=20_000)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--folder", default=".")
    args = parser.parse_args()
    if args.what in ("paper", "long"):
        run_all(args, args.what, PAPER if args.what == "paper" else LONG)
    if args.what in ("paper", "long", "report"):
        groups = load(Path(args.results) / "active")
        text = report(groups)
        (Path(args.results) / "active.md").write_text(text.rstrip() + "\n")
        pictures(keep(groups, Path(args.results) / "active-long.json"), args.results)
        print(text)
    elif args.what == "pictures":
        pictures(keep(load(Path(args.results) / "active"), Path(args.results) / "active-long.json"), args.results)
    elif args.what == "speed":
        args.rows = args.rows or 6579
        speed(args)
    else:
        args.rows = args.rows or 1_000_000
        million(args)


if __name__ == "__main__":
    sys.exit(main())
