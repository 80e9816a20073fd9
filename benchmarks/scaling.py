"""How time and memory grow with rows, neurons, readouts, labels, features and stacked models, on one CPU thread.

    python benchmarks/scaling.py            # a few minutes; results/scaling.json, .md and .png
    python benchmarks/scaling.py --quick    # fewer and smaller sizes, to see that it runs

One size varies at a time around n = 64, m = 32, 6 labels, 243 features, batch 64, one hidden layer of 64. A step is an
epoch's time over its steps, the median of the epochs of one fit after two to warm up. Slopes are least-squares lines
through log time against log size, over all sizes and over the three largest, where fixed costs matter least.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from io import BytesIO
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch and NumPy are loaded

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from common import RESULTS, machine, markdown, median_seconds, write
from peer import peak_megabytes, save_small
from snefy_ldl import SnefyLDL
from snefy_ldl.snefy import fit_many

STEPS, BATCH, HIDDEN = 10, 64, 64
BASE = {"n": 64, "m": 32, "L": 6, "d": 243, "K": 1}
SIZES = {
    "n": [16, 32, 64, 128, 256, 512],
    "m": [8, 16, 32, 64, 128, 256],
    "L": [2, 4, 8, 16, 32, 64],
    "d": [16, 64, 256, 1024, 4096],
    "K": [1, 2, 4, 8, 16, 32, 64],
}
ROWS = [1_000, 4_000, 16_000, 64_000]
MEMORY = [(20_000, 64), (80_000, 64), (320_000, 64), (80_000, 32), (80_000, 128)]
WORDS = {
    "n": "neurons n",
    "m": "readouts m",
    "L": "labels L",
    "d": "features d",
    "K": "stacked models K",
    "N": "rows N",
}
#: The most that the slope over the three largest sizes may be, with a tenth for noise.
LIMITS = {("n", "step"): 2, ("n", "predict"): 2, ("m", "step"): 1, ("L", "step"): 1, ("d", "step"): 1}
LIMITS |= {("N", "fit"): 1, ("N", "predict"): 1, ("N", "epoch"): 1, ("K", "step"): 1}


def data(rows: int, d: int, n_labels: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(rows, d)).astype(np.float32), rng.dirichlet(np.full(n_labels, 5.0), size=rows)


def model(n: int, m: int, epochs: int) -> SnefyLDL:
    return SnefyLDL(
        n_neurons=n,
        n_readouts=m,
        hidden_sizes=(HIDDEN,),
        epochs=epochs,
        batch_size=BATCH,
        validation_fraction=0.0,
        standardize="unit",
        random_state=0,
        device="cpu",
    )


def epoch_seconds(models: list[SnefyLDL]) -> float:
    """Median time of an epoch of all models together; models of one stack share one history."""
    histories = {id(fitted.history_): fitted.history_ for fitted in models}.values()
    return sum(statistics.median(record["seconds"] for record in history[2:]) for history in histories)


def one_size(sizes: dict[str, int], epochs: int) -> dict[str, float]:
    """Milliseconds of a step of all models, and of predicting mean and variance of 2,048 rows with one of them."""
    X, D = data(STEPS * BATCH, sizes["d"], sizes["L"])
    everything, seeds = [np.arange(len(X))] * sizes["K"], [{"random_state": k} for k in range(sizes["K"])]
    models = fit_many(model(sizes["n"], sizes["m"], epochs), X, D, everything, seeds, n_jobs=1)
    step = 1e3 * epoch_seconds(models) / STEPS
    big = np.tile(X, (4, 1))[:2048]
    return {"step": step, "predict": 1e3 * median_seconds(lambda: models[0].predict_mean_var(big), repeats=3)}


def against_rows(rows: int) -> dict[str, float]:
    """Milliseconds of an epoch, of a whole fit of four epochs, and of predicting mean and variance of all rows."""
    X, D = data(rows, 64, BASE["L"])
    start = time.perf_counter()
    fitted = model(BASE["n"], BASE["m"], 4).fit(X, D)
    fit = time.perf_counter() - start
    predict = median_seconds(lambda: fitted.predict_mean_var(X), repeats=3)
    return {"epoch": 1e3 * epoch_seconds([fitted]), "fit": 1e3 * fit, "predict": 1e3 * predict}


def memory(rows: int, n: int) -> dict[str, float]:
    """Peak memory above the input, in MB: predicting mean and variance, and a fit of one epoch."""
    torch.set_num_threads(1)
    X, D = data(rows, 32, BASE["L"])
    warm = model(n, BASE["m"], 1).fit(X[:256], D[:256])
    warm.predict_mean_var(X[:256])
    estimator = model(n, BASE["m"], 1).set_params(batch_size=256)
    predicting = peak_megabytes(lambda: warm.predict_mean_var(X))
    return {"predict": predicting, "fit": peak_megabytes(lambda: estimator.fit(X, D))}


def slope(sizes: list[int], values: list[float]) -> float:
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def roofline(step_ms: float, stacked_ms: float, stacked: int) -> dict[str, float]:
    """Matrix products of a step, counted as they run, against the machine's float32 product of 1024 x 1024."""
    X, D = data(STEPS * BATCH, BASE["d"], BASE["L"])

    def in_place(total, first, second, **_) -> int:  # the counter knows baddbmm, but not its in-place form
        return 2 * first[0] * first[1] * first[2] * second[2]

    def flops(epochs: int) -> int:
        with FlopCounterMode(display=False, custom_mapping={torch.ops.aten.baddbmm_: in_place}) as counter:
            model(BASE["n"], BASE["m"], epochs).fit(X, D)
        return counter.get_total_flops()

    per_step = (flops(3) - flops(1)) / (2 * STEPS)
    square = torch.rand(1024, 1024)
    seconds = [median_seconds(lambda: square @ square, repeats=1, warm=1) for _ in range(20)]
    peak = 2 * 1024**3 / min(seconds)
    return {
        "float32 matrix product, GFLOP/s": peak / 1e9,
        "matrix products of a step, MFLOP": per_step / 1e6,
        "share of that peak, one model": per_step / (step_ms / 1e3) / peak,
        f"share of that peak, {stacked} stacked": stacked * per_step / (stacked_ms / 1e3) / peak,
    }


def draw(path: Path | BytesIO, curves: dict, memories: list[dict]) -> None:
    """Six small panels, log-log, with a dashed line of the expected slope."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from snefy_ldl.plots import style

    colours = {"step": style.MODEL, "epoch": style.MODEL, "predict": style.TRUTH, "fit": "#009E73"}
    names = {"step": "training step", "predict": "predict 2,048 rows", "epoch": "epoch", "fit": "fit, 4 epochs"}
    figure, axes = plt.subplots(2, 3, figsize=(8.3, 5.6), layout="constrained")
    for ax, what in zip(axes.flat, ["N", "n", "L", "d", "K"]):
        sizes, lines = curves[what]["sizes"], curves[what]["times"]
        for kind, values in lines.items():
            if what == "K" and kind == "predict":
                continue
            shown = np.array(values) / np.array(sizes) if what == "K" else values
            label = "predict all rows" if (what, kind) == ("N", "predict") else names[kind]
            ax.plot(sizes, shown, "o-", color=colours[kind], label=label, markersize=4)
        if what == "K":
            ax.axhline(shown[0], color=style.QUIET, linestyle=style.DASHES, linewidth=1, label="one at a time")
        else:
            power, ends = 2 if what == "n" else 1, np.array(sizes[-3:])
            lowest = min(values[-1] for values in lines.values())
            line = 0.6 * lowest * (ends / ends[-1]) ** float(power)
            ax.plot(ends, line, color=style.QUIET, linestyle=style.DASHES, linewidth=1, label=f"slope {power}")
        ax.set(xscale="log", yscale="log", xlabel=WORDS[what], ylabel="ms a model" if what == "K" else "ms")
        if what == "K":
            ax.set_yscale("linear")
            ax.set_ylim(bottom=0)
        style.legend(ax)
    ax = axes.flat[5]
    base = [row for row in memories if row["n"] == BASE["n"]]
    rows = [row["rows"] for row in base]
    for kind in ("predict", "fit"):
        ax.plot(rows, [row[kind] for row in base], "o-", color=colours[kind], label=kind, markersize=4)
    ax.plot(
        rows,
        [8e-6 * r * BASE["n"] ** 2 for r in rows],
        color=style.QUIET,
        linestyle=style.DASHES,
        linewidth=1,
        label="rows × n² numbers",
    )
    ax.set(xscale="log", yscale="log", xlabel=WORDS["N"], ylabel="peak MB above the input")
    style.legend(ax)
    for k, ax in enumerate(axes.flat):
        low, high = ax.get_ylim()
        if k != 4:  # room for the legend, on a log scale
            ax.set_ylim(low / 12 if k == 3 else low, high * (1 if k == 3 else 12))
        ticks = sorted({int(x) for line in ax.lines[:1] for x in line.get_xdata()})
        ax.set_xticks(ticks, [f"{x // 1000}k" if x >= 10_000 else f"{x:,}" for x in ticks])
        ax.minorticks_off()
        style.quiet(ax, grid="both")
    save_small(figure, path)


def measure(quick: bool) -> tuple[dict, list[dict]]:
    from rich.console import Console
    from rich.progress import Progress

    sizes = {what: values[:3] if quick else values for what, values in SIZES.items()}
    rows = ROWS[:3] if quick else ROWS
    memories = MEMORY[:2] if quick else MEMORY
    curves: dict = {}
    total = sum(map(len, sizes.values())) + len(rows) + len(memories)
    with Progress(console=Console(stderr=True)) as progress:
        bar = progress.add_task("scaling", total=total)
        for what, values in sizes.items():
            found = []
            for value in values:
                found.append(one_size(BASE | {what: value}, epochs=6 if quick else 14))
                progress.advance(bar)
            curves[what] = {"sizes": values, "times": {kind: [f[kind] for f in found] for kind in found[0]}}
        found = []
        for value in rows:
            found.append(against_rows(value))
            progress.advance(bar)
        curves["N"] = {"sizes": rows, "times": {kind: [f[kind] for f in found] for kind in found[0]}}
        peaks = []
        for value, n in memories:  # each in a process of its own: what one run keeps must not hide the next one's peak
            command = [sys.executable, __file__, "--memory", str(value), str(n)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            peaks.append({"rows": value, "n": n, **json.loads(done.stdout.splitlines()[-1])})
            progress.advance(bar)
    return curves, peaks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--memory", type=int, nargs=2, metavar=("ROWS", "N"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.memory:
        print(json.dumps(memory(*arguments.memory)))
        return
    torch.set_num_threads(1)
    RESULTS.mkdir(exist_ok=True)
    started = time.perf_counter()
    curves, peaks = measure(arguments.quick)
    stacks = curves["K"]
    at = stacks["sizes"].index(16) if 16 in stacks["sizes"] else -1
    peak = roofline(stacks["times"]["step"][0], stacks["times"]["step"][at], stacks["sizes"][at])
    slopes, tables = [], []
    for what, curve in curves.items():
        for kind, values in curve["times"].items():
            limit, end = LIMITS.get((what, kind)), slope(curve["sizes"][-3:], values[-3:])
            slopes.append(
                {
                    "time of a": kind,
                    "against": WORDS[what],
                    "slope, all sizes": f"{slope(curve['sizes'], values):.2f}",
                    "slope, three largest": f"{end:.2f}",
                    "expected at most": limit or "",
                    "kept": "" if limit is None else "yes" if end <= limit + 0.1 else "NO",
                }
            )
        rows = [
            {WORDS[what]: f"{size:,}"} | {f"{kind}, ms": f"{values[k]:.3g}" for kind, values in curve["times"].items()}
            for k, size in enumerate(curve["sizes"])
        ]
        if what == "K":
            for row, size, value in zip(rows, curve["sizes"], curve["times"]["step"]):
                row["step a model, ms"] = f"{value / size:.3g}"
        tables.append(f"## Against {WORDS[what]}\n\n{markdown(rows)}\n")
    by_memory = [
        {
            "rows": f"{row['rows']:,}",
            "n": row["n"],
            "predict, MB": f"{row['predict']:.0f}",
            "fit, MB": f"{row['fit']:.0f}",
            "rows × n² numbers, MB": f"{8e-6 * row['rows'] * row['n'] ** 2:,.0f}",
        }
        for row in peaks
    ]
    few, many = peaks[0], max((row for row in peaks if row["n"] == BASE["n"]), key=lambda row: row["rows"])
    growth = {kind: 1e6 * (many[kind] - few[kind]) / (many["rows"] - few["rows"]) for kind in ("predict", "fit")}
    by_peak = [{"what": key, "value": f"{value:.3g}"} for key, value in peak.items()]
    facts = {"machine": machine(1), "quick": arguments.quick, "base": BASE, "curves": curves, "memory": peaks}
    facts |= {"roofline": peak, "slopes": slopes, "seconds": time.perf_counter() - started}
    text = (
        f"# How cost grows\n\n`python benchmarks/scaling.py` on {facts['machine']['processor']}, one thread, torch "
        f"{facts['machine']['torch']}. One size varies at a time around n = 64, m = 32, "
        f"6 labels, 243 features (64 against rows, 32 for memory), batch {BATCH}. Medians.\n\n"
        f"![Time and memory against each size](scaling.png)\n\n{markdown(slopes)}\n\n"
        f"## Memory: peak above the input\n\nThe answer itself (mean and variance) takes 96 bytes a row. From "
        f"{few['rows']:,} to {many['rows']:,} rows the peak grows by {growth['predict']:,.0f} bytes a row predicting "
        f"and {growth['fit']:,.0f} fitting; n² numbers are {8 * BASE['n'] ** 2:,} bytes.\n\n"
        f"{markdown(by_memory)}\n\n## Against the machine's peak\n\n{markdown(by_peak)}\n\n" + "\n".join(tables)
    )
    if arguments.quick:  # a try-out leaves no files behind
        print(text)
        draw(BytesIO(), curves, peaks)
    else:
        write("scaling", facts, text)
        draw(RESULTS / "scaling.png", curves, peaks)


if __name__ == "__main__":
    main()
