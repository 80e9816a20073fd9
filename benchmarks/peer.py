"""A step, an epoch, a fit, a prediction and their memory, against PyLDL's SNEFY_LDL in the same run.

    python benchmarks/peer.py --peer-python PATH              # an interpreter with python-ldl, keras and torch
    python benchmarks/peer.py --tensorflow-python PATH        # one with python-ldl, keras and tensorflow
    python benchmarks/peer.py                                 # this interpreter; a peer that is not there is left out

One thread, the paper's setting: n = 64, m = 32, batch 64, 243 features, 6 labels, 1,250 rows, 20 epochs. An epoch is
the median of a fit's epochs after two to warm up, a step is an epoch over its steps, a fit is the whole call. The sides
take turns, so that a busy moment of the machine hits all; the fit's CPU time hardly feels one.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import math
import os
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

ROWS, FEATURES, LABELS, BATCH, PREDICT_ROWS, EPOCHS = 1250, 243, 6, 64, 7000, 20
#: Rows of one large step, for its memory; PyLDL's own default is all rows in one batch.
LARGE = 4096
STEPS = math.ceil(ROWS / BATCH)
#: Random splits of the comparison of accuracy.
SPLITS = 5
#: Learners that are compared, by PyLDL's names; ours have no underscores. Its others take minutes to hours a split.
LEARNERS = {
    "SBU_3DFE": ("AA_KNN", "SA_BFGS", "LDL_LRR"),
    "SJAFFE": ("AA_KNN", "SA_BFGS", "LDL_LRR", "LDL_DPA", "PT_Bayes"),
}
STACKS = (1, 2, 4, 8, 16, 32)
BACKENDS = ("torch", "tensorflow")
TIMES = ("step", "epoch", "fit", "fit, CPU time", "predict mean", "predict mean and variance")
PEAKS = ("one step of 4,096 rows, peak MB", "predict mean and variance, peak MB")
INSTALL = "python -m venv peer && peer/bin/pip install python-ldl {0}, then --{1}-python peer/bin/python"


def data(rows=ROWS):
    import numpy as np

    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, FEATURES)).astype(np.float32) * 0.1 + 0.3
    return X, rng.dirichlet(np.full(LABELS, 5.0), size=rows)


def resident() -> float:
    """MB of memory this process holds; NaN if the system does not say."""
    statm = Path("/proc/self/statm")
    if not statm.exists():
        return math.nan
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def peak_megabytes(work) -> float:
    """Most memory while ``work()`` runs, above what was held before."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:  # memory that was freed but kept would hide what the work takes
        trim(0)
    before, peak, running = resident(), [0.0], [True]

    def watch():
        while running[0]:
            peak[0] = max(peak[0], resident())
            time.sleep(0.002)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        work()
    finally:
        running[0] = False
        watcher.join()
    return max(peak[0], resident()) - before


def timed(work) -> float:
    start = time.perf_counter()
    work()
    return 1e3 * (time.perf_counter() - start)


def median_ms(work, repeats=3) -> float:
    work()
    return statistics.median(timed(work) for _ in range(repeats))


def measure(fit, predict_mean, predict_both) -> dict:
    """The figures both sides have; ``fit(X, D, epochs, batch)`` returns a model and the seconds of each epoch."""
    (X, D), (big, _), large = data(), data(PREDICT_ROWS), data(LARGE)
    model, _ = fit(X, D, 3, BATCH)
    found = {PEAKS[0]: peak_megabytes(lambda: fit(*large, 1, LARGE))}
    found[PEAKS[1]] = peak_megabytes(lambda: predict_both(model, big))
    start, busy = time.perf_counter(), time.process_time()
    model, seconds = fit(X, D, EPOCHS, BATCH)
    found["fit"], found["fit, CPU time"] = 1e3 * (time.perf_counter() - start), 1e3 * (time.process_time() - busy)
    found["epoch"] = 1e3 * statistics.median(seconds[2:])
    found["step"] = found["epoch"] / STEPS
    found["predict mean"] = median_ms(lambda: predict_mean(model, big))
    found["predict mean and variance"] = median_ms(lambda: predict_both(model, big))
    return found


def ours() -> dict:
    import torch

    torch.set_num_threads(1)
    from snefy_ldl import SnefyLDL

    X, D = data()

    def paper(epochs, batch=BATCH):
        return SnefyLDL.paper("conformal", epochs=epochs, batch_size=batch, random_state=0, device="cpu")

    def fit(X, D, epochs, batch):
        model = paper(epochs, batch).fit(X, D)
        return model, [record["seconds"] for record in model.history_]

    result = measure(fit, lambda model, x: model.predict(x), lambda model, x: model.predict_mean_var(x))
    default = {"batch_size": BATCH, "random_state": 0, "device": "cpu"}
    plain = SnefyLDL(epochs=22, validation_fraction=0.0, standardize="unit", **default).fit(X, D)
    result["step, default recipe"] = 1e3 * statistics.median(r["seconds"] for r in plain.history_[2:]) / STEPS
    result["fit, default recipe"] = timed(lambda: SnefyLDL(**default).fit(X, D))
    for size in STACKS:
        result[f"step per model, {size} stacked"] = stacked_step(paper, X, D, size)
    return result | floors()


def stacked_step(paper, X, D, size) -> float:
    """Milliseconds of a step per model among several trained in one call, by its whole time at two lengths.

    The work of a call outside its epochs is the same for both. No record of a model is read: a stack's epoch stands in
    the history of each of its models.
    """
    import numpy as np

    from snefy_ldl.snefy import fit_many

    seeds, short, long = [{"random_state": k} for k in range(size)], 2, 10
    times = [
        median_ms(lambda n=n: fit_many(paper(n), X, D, [np.arange(ROWS)] * size, seeds, n_jobs=1))
        for n in (short, long)
    ]
    return (times[1] - times[0]) / ((long - short) * STEPS * size)


def floors() -> dict:
    """Parts of a step that no rewriting takes away, each alone: matrix products, and the table of gamma functions."""
    import torch

    from snefy_ldl.training.objectives import PairKernel

    rows, neurons, readouts, width = BATCH, 64, 32, 64
    shapes = [(rows, FEATURES, width), (FEATURES, rows, width), *[(rows, width, neurons)] * 3]
    shapes += [(rows, neurons, readouts), (neurons, readouts, neurons), (rows, neurons, neurons)]  # forward
    shapes += [(rows, readouts, neurons), (neurons, rows, neurons)]  # backward
    shapes += [
        (readouts, rows, neurons),
        (readouts, neurons, neurons),
        (neurons, rows, LABELS),
        (rows, LABELS, neurons),
    ]
    products = [(torch.rand(1, a, b), torch.rand(1, b, c), torch.empty(1, a, c)) for a, b, c in shapes]
    exponents = torch.rand(1, neurons, LABELS).double()

    def multiply():
        for left, right, answer in products:
            torch.bmm(left, right, out=answer)

    return {
        "step, its matrix products alone": median_ms(multiply, 2001),
        "step, its gamma functions alone": median_ms(lambda: PairKernel(exponents, torch.float32), 2001),
    }


def theirs() -> dict:
    import keras

    if keras.backend.backend() == "torch":
        import torch

        torch.set_num_threads(1)
        version = f"torch {torch.__version__}"
    else:
        import tensorflow

        version = f"tensorflow {tensorflow.__version__}"
    from importlib.metadata import version as installed

    from pyldl.algorithms import SNEFY_LDL

    class Clock(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.seconds = []

        def on_epoch_begin(self, epoch, logs=None):
            self.start = time.perf_counter()

        def on_epoch_end(self, epoch, logs=None):
            self.seconds.append(time.perf_counter() - self.start)

    def fit(X, D, epochs, batch):
        model, clock = SNEFY_LDL(n_hidden=64, n_latent=32), Clock()
        model.fit(X, D, epochs=epochs, batch_size=batch, callbacks=[clock], verbose=0)
        return model, clock.seconds

    result = measure(fit, lambda model, x: model.predict(x), lambda model, x: model.predict(x, return_uncertainty=True))
    result["versions"] = f"python-ldl {installed('python-ldl')}, keras {keras.__version__}, {version}"
    return result


def accuracy(is_peer) -> dict:
    """KL (90 % train) of learners at their defaults, by set, learner, scaling and split.

    The peer gets raw and standardised features; ours scale features themselves. A learner that fails gives its error.
    Without SNEFY_LDL_DATA there is no figure.
    """
    import numpy as np
    import scipy.io

    folder = Path(os.environ.get("SNEFY_LDL_DATA", "")) / "ldl"
    if not folder.is_dir():
        return {}
    if is_peer:
        from pyldl import algorithms as package
    else:
        from snefy_ldl import learners as package
    found = {}
    for data, names in LEARNERS.items():
        content = scipy.io.loadmat(folder / f"{data}.mat")
        X, D = content["features"].astype(np.float32), content["labels"].astype(np.float32)
        for name in names:
            ways = found.setdefault(data, {})[name] = {}
            for scaling in ("raw", "standard") if is_peer else ("own",):
                try:
                    make = getattr(package, name if is_peer else name.replace("_", ""))
                    ways[scaling] = [divergence(make(), X, D, split, scaling) for split in range(SPLITS)]
                except Exception as error:
                    ways[scaling] = f"{type(error).__name__}: {str(error).splitlines()[0][:60]}"
    return found


def divergence(model, X, D, split, scaling) -> float:
    """KL on the test rows of a split."""
    import numpy as np

    order = np.random.default_rng([split, len(D)]).permutation(len(D))
    test, train = order[: len(D) // 10], order[len(D) // 10 :]
    mean, spread = X[train].mean(0), X[train].std(0)
    table = (X - mean) / np.where(spread > 0, spread, 1) if scaling == "standard" else X
    model.fit(table[train], D[train])
    shares = np.maximum(np.asarray(model.predict(table[test])), 1e-12)
    return float((D[test] * np.log(np.maximum(D[test], 1e-12) / shares)).sum(1).mean())


def habits() -> dict:
    """What works with the peer, as the README compares it: name -> "yes", an answer, or the error."""
    import tempfile
    import warnings

    import numpy as np
    from pyldl.algorithms import AA_KNN, SA_BFGS, SNEFY_LDL
    from sklearn.base import clone
    from sklearn.model_selection import GridSearchCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    warnings.simplefilter("ignore")
    random = np.random.default_rng(0)
    X, D = random.normal(size=(60, 4)).astype(np.float32), random.dirichlet(np.ones(3), 60).astype(np.float32)
    zero = np.array([0.0, 0.5, 0.5], dtype=np.float32)[None].repeat(60, 0)
    small = {"n_hidden": 8, "n_latent": 4}

    def network(D):
        model = SNEFY_LDL(**small)
        model.fit(X, D, epochs=2, verbose=0)
        return model

    def search(model, grid):
        def scorer(model, X, D):
            return -float(np.abs(np.asarray(model.predict(X)) - D).mean())

        GridSearchCV(model, grid, scoring=scorer, cv=2, error_score="raise").fit(X, D)

    def again(model):
        with tempfile.TemporaryDirectory() as folder:
            model.dump(str(Path(folder) / "model"))
            type(model).load(str(next(Path(folder).iterdir()))).predict(X)

    tries = {
        "SNEFY_LDL: finite predictions after shares of zero": lambda: (
            None if np.isfinite(np.asarray(network(zero).predict(X))).all() else "no"
        ),
        "SNEFY_LDL: intervals, quantiles, draws": lambda: (
            None
            if any(word in name for name in dir(SNEFY_LDL) for word in ("interval", "quantile", "sample"))
            else "no"
        ),
        "SA_BFGS: clone": lambda: clone(SA_BFGS()) and None,
        "AA_KNN: grid search with a scorer": lambda: search(AA_KNN(), {"k": [3, 5]}),
        "SNEFY_LDL: grid search with a scorer": lambda: search(SNEFY_LDL(), {"n_hidden": [4, 8]}),
        "SA_BFGS: predict of a pipeline": lambda: make_pipeline(StandardScaler(), SA_BFGS()).fit(X, D).predict(X)[:0],
        "SA_BFGS: default score": lambda: f"a {type(SA_BFGS().fit(X, D).score(X, D)).__name__} of six measures",
        "SA_BFGS: dump and load (pickle)": lambda: again(SA_BFGS().fit(X, D)),
        "SNEFY_LDL: dump and load": lambda: again(network(D)),
    }
    found = {}
    for name, work in tries.items():
        try:
            answer = work()
            found[name] = answer if isinstance(answer, str) else "yes"
        except Exception as error:
            found[name] = f"no: {type(error).__name__}, {str(error).splitlines()[0][:80]}"
    return found


def million() -> dict:
    """Peak memory above the input while predicting mean and variance of a million rows."""
    import numpy as np
    import torch

    torch.set_num_threads(1)
    from snefy_ldl import SnefyLDL

    X, D = data()
    model = SnefyLDL(epochs=1, random_state=0, device="cpu").fit(X, D)
    model.predict_mean_var(X)
    big = np.empty((1_000_000, FEATURES), dtype=np.float32)
    for start in range(0, len(big), ROWS):
        big[start : start + ROWS] = X
    return {"rows": len(big), "peak above input, MB": peak_megabytes(lambda: model.predict_mean_var(big))}


def _side(python: str, side: str, backend: str = "torch") -> dict:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "KERAS_BACKEND": backend, "CUDA_VISIBLE_DEVICES": ""}
    environment |= {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [python, __file__, "--side", side], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"the side {side!r} ({backend}) failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def has_peer(python: str, backend: str) -> bool:
    """Whether an interpreter can import python-ldl and a backend."""
    names = ["pyldl", "keras", backend]
    code = f"import sys, importlib.util as u; sys.exit(not all(u.find_spec(n) for n in {names}))"
    return subprocess.run([python, "-c", code], capture_output=True, check=False).returncode == 0


def _medians(runs: list[dict]) -> dict:
    return {key: statistics.median(run[key] for run in runs) for key in runs[0] if key != "versions"}


def mean_error(values) -> str:
    """Mean over splits and its standard error; an error as it is."""
    if isinstance(values, str):
        return values
    return f"{statistics.fmean(values):.4f} ± {statistics.stdev(values) / math.sqrt(len(values)):.4f}"


def table(here: dict, there: dict[str, dict]) -> list[dict]:
    """Our figures, those of each backend, and their ratios."""
    rows = []
    for key, value in here.items():
        peer_key = key if key in (*TIMES, *PEAKS) else key.split(",")[0].replace(" per model", "")
        row = {"what": key, "snefy-ldl": f"{value:.3g}"}
        for backend in BACKENDS:
            # the peer has no counterpart to 30 epochs of two networks with validation
            other = None if key == "fit, default recipe" else there.get(backend, {}).get(peer_key)
            missing = "" if backend in there else "not installed"
            row[f"PyLDL, {backend}"] = f"{other:.3g}" if other else missing
            row[f"ratio, {backend}"] = f"{other / value:.1f}" if other else ""
        rows.append(row)
    return rows


def save_small(figure, path) -> None:
    """A PNG of 64 colours: a third of the size, and no eye can tell."""
    from io import BytesIO

    import matplotlib.pyplot as plt
    from PIL import Image

    picture = BytesIO()
    figure.savefig(picture, dpi=200)
    plt.close(figure)
    Image.open(picture).convert("RGB").quantize(64).save(path, format="PNG", optimize=True)


def draw(path: Path, here: dict, there: dict[str, dict]) -> None:
    """Left: what each task costs on each side. Right: a step per model against the models trained at once."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from snefy_ldl.plots import style

    labels = ["training step", "epoch, 1,250 rows", "fit, 20 epochs", "mean and variance\nof 7,000 rows"]
    keys = ["step", "epoch", "fit", "predict mean and variance"]
    stacked = here["step per model, 16 stacked"]
    bars = [("snefy-ldl, one model", style.MODEL, [here[key] for key in keys])]
    bars.append(("snefy-ldl, one of 16 stacked", "#56B4E9", [stacked, stacked * STEPS, math.nan, math.nan]))
    shades = {"torch": style.QUIET, "tensorflow": style.FRAME}
    bars += [(f"PyLDL, {name}", shades[name], [there[name][key] for key in keys]) for name in BACKENDS if name in there]
    # as wide as a README shows it at 100 dots an inch, so that nine points are readable
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.3, 4.4), width_ratios=[2.1, 1], layout="constrained")
    height = 0.84 / len(bars)
    for k, (name, colour, values) in enumerate(bars):
        for row, value in enumerate(values):
            if not math.isfinite(value):
                continue
            place = row + (k - (len(bars) - 1) / 2) * height
            left.barh(place, value, height * 0.9, color=colour, label=name if row == 0 else None)
            times = "" if k < 2 else f"  {value / bars[0][2][row]:.1f}×"
            words = f"{value:,.0f} ms" if value >= 20 else f"{value:.2g} ms"
            left.text(value * 1.12, place, words + times, va="center", fontsize=9, color=style.INK)
    left.set_yticks(range(len(labels)), labels)
    left.invert_yaxis()
    left.set_xscale("log")
    left.set_xlim(right=left.get_xlim()[1] * 60)
    left.set_xlabel("milliseconds, log scale; × against one model")
    figure.legend(
        *left.get_legend_handles_labels(), loc="outside upper left", ncols=2, frameon=False, fontsize=9.5,
        labelcolor=style.INK,
    )  # fmt: skip
    steps = [here[f"step per model, {size} stacked"] for size in STACKS]
    right.plot(STACKS, steps, "o-", color=style.MODEL, label="snefy-ldl")
    if there:
        fastest = min(there, key=lambda name: there[name]["step"])
        right.axhline(there[fastest]["step"], color=style.QUIET, linestyle=style.DASHES, label=f"PyLDL, {fastest}")
    right.set_ylim(bottom=0)
    right.set_xscale("log", base=2)
    right.set_xticks(STACKS, [str(size) for size in STACKS])
    right.minorticks_off()
    right.set(xlabel="models trained at once", ylabel="ms a step, per model")
    style.quiet(left, grid=None)
    style.quiet(right, grid="y")
    left.tick_params(axis="y", length=0)
    style.legend(right, loc="center right")
    save_small(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer-python", default=sys.executable, help="interpreter with python-ldl, keras and torch")
    parser.add_argument("--tensorflow-python", help="one with tensorflow; that of --peer-python by default")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--report", action="store_true", help="write and draw again what was measured last")
    parser.add_argument("--rest", action="store_true", help="all but the times, which stay as measured last")
    sides = {"ours": ours, "theirs": theirs, "million": million}
    sides |= {"our accuracy": lambda: accuracy(False), "their accuracy": lambda: accuracy(True), "habits": habits}
    parser.add_argument("--side", choices=list(sides), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        print(json.dumps(sides[arguments.side]()))
        return
    from rich.console import Console
    from rich.progress import Progress

    from common import RESULTS, machine

    if arguments.report:
        report(json.loads((RESULTS / "peer.json").read_text()))
        return
    pythons = {"torch": arguments.peer_python, "tensorflow": arguments.tensorflow_python or arguments.peer_python}
    for backend, option in (("torch", "peer"), ("tensorflow", "tensorflow")):
        if not has_peer(pythons[backend], backend):
            del pythons[backend]
            print(f"PyLDL on {backend} is not installed: {INSTALL.format(backend, option)}", file=sys.stderr)
    mine, peers = [], {backend: [] for backend in pythons}
    arguments.repeats = 0 if arguments.rest else arguments.repeats
    with Progress(console=Console(stderr=True)) as progress:
        bar = progress.add_task("peer", total=arguments.repeats * (1 + len(pythons)) + 1)
        for _ in range(arguments.repeats):
            mine.append(_side(sys.executable, "ours"))
            progress.advance(bar)
            for backend, python in pythons.items():
                peers[backend].append(_side(python, "theirs", backend))
                progress.advance(bar)
        memory = _side(sys.executable, "million")
        exact, works = {"ours": _side(sys.executable, "our accuracy")}, {}
        if "torch" in pythons:
            exact["peer"] = _side(pythons["torch"], "their accuracy")
            works = _side(pythons["torch"], "habits")
        progress.advance(bar)
    times = {"machine": machine(1), "ours": mine, "peer": peers}
    if arguments.rest:
        last = json.loads((RESULTS / "peer.json").read_text())
        times = {key: last[key] for key in times} | {"rest": True}
    report(times | {"million rows": memory, "accuracy": exact, "what works": works})


def report(facts: dict) -> None:
    """Result files and picture of what was measured; without a peer only words."""
    from common import RESULTS, markdown, write

    mine, peers, memory = facts["ours"], facts["peer"], facts["million rows"]
    here, there = _medians(mine), {backend: _medians(runs) for backend, runs in peers.items()}
    here = {key: here[key] for key in [*TIMES, *[k for k in here if k not in (*TIMES, *PEAKS)], *PEAKS]}
    versions = "; ".join(runs[0]["versions"] for runs in peers.values()) or "no peer installed"
    text = (
        "# Against PyLDL's SNEFY_LDL\n\n"
        f"`python benchmarks/peer.py --peer-python PATH` on {facts['machine']['processor']}, one thread, torch "
        f"{facts['machine']['torch']}; {versions}. Medians of runs that took turns, {len(mine)} a side.\n"
        f"n = 64, m = 32, batch {BATCH}, {FEATURES} features, {LABELS} labels, {ROWS:,} rows; {EPOCHS} epochs a fit; "
        f"{PREDICT_ROWS:,} rows to predict. Times in milliseconds. The paper's recipe, which is also PyLDL's, unless a "
        "line says otherwise; the default recipe trains up to 30 epochs and fits guides and several candidates, too, "
        "among which validation rows decide. A ratio above 1 is in our favour. If wall-clock time is far above CPU "
        f"time, the machine was busy.{' Times are of an earlier run than the rest.' if facts.get('rest') else ''}\n\n"
        f"![What each task costs, and a step against the models trained at once](peer.png)\n\n"
        f"{markdown(table(here, there))}\n\n"
        f"Predicting mean and variance of {memory['rows']:,} rows: {memory['peak above input, MB']:.0f} MB above the "
        "input at the peak. "
        f"Of the peak, {16e-6 * LABELS * memory['rows']:.0f} MB are the answers, the rest is work on one block "
        "of rows and what malloc keeps of it. Peaks of 555 to 2,641 MB before were freed memory that malloc could "
        "not use again: the small answer of each block lay between the large freed arrays of its neighbours. Now all "
        "blocks write into one array.\n"
    )
    exact = facts["accuracy"]
    for data, learners in exact["ours"].items() if exact.get("peer") else ():
        rows = [
            {f"KL on {data}": name}
            | {
                f"PyLDL, {scaling} features": mean_error(values)
                for scaling, values in exact["peer"][data][name].items()
            }
            | {"snefy-ldl": mean_error(ways["own"])}
            for name, ways in learners.items()
        ]
        text += (
            f"\n## Learners at their defaults, {data}\n\n{SPLITS} splits, ± one standard error.\n\n{markdown(rows)}\n"
        )
    if facts.get("what works"):
        rows = [{"in PyLDL": name, "works": answer} for name, answer in facts["what works"].items()]
        text += f"\n## What works\n\n{markdown(rows)}\n"
    if there:
        write("peer", facts, text)
        draw(RESULTS / "peer.png", here, there)
    else:  # figures that were compared are worth more than figures that were not
        print(text)
        print("no peer is installed, so the result files stay as they are", file=sys.stderr)


if __name__ == "__main__":
    main()
