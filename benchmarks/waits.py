"""What a user waits for: predictions of one row and of many, draws, the first call, many labels; one thread.

    python benchmarks/waits.py            # some minutes; results/waits.json and .md
    python benchmarks/waits.py --quick    # fewer repeats, to see that it runs

Rows are synthetic, of the shape of SBU_3DFE (2,500 rows, 243 features, 6 labels), or that set itself if
SNEFY_LDL_DATA says where it lies. Every line is the median of several repeats, in milliseconds unless it says
otherwise; "ratio" is what was measured over what was asked. Lines about fits and millions of rows come from
waits_scale.py if it is there. :data:`MAKERS` lists the functions that return rows.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch and NumPy are loaded

import numpy as np

from common import machine, markdown, write

Row = dict[str, Any]
MEMBERS = (1, 6)
ROWS, FEATURES, LABELS, DRAWS = 1000, 243, 6, 100
WHAT = (
    "predict_interval, one row",
    f"predict_interval, {ROWS} rows",
    "predict_interval, first call in a process",
    "dist.prob_greater, one row",
    f"{DRAWS} draws for {ROWS} rows",
)
FIRST_CALL = """
import sys, time
import numpy as np
from snefy_ldl import SnefyLDL
model, X = SnefyLDL.load(sys.argv[1]), np.load(sys.argv[2])
start = time.perf_counter()
model.predict_interval(X[:1])
print(1000.0 * (time.perf_counter() - start))
"""
THREADS = """
import statistics, sys, time
import numpy as np
from snefy_ldl import SnefyLDL
model, X = SnefyLDL.load(sys.argv[1]), np.load(sys.argv[2])[:1]
times = []
for _ in range(50):
    start = time.perf_counter()
    model.predict(X)
    times.append(time.perf_counter() - start)
print(1000.0 * statistics.median(times))
"""


def data() -> tuple[np.ndarray, np.ndarray, str]:
    """Features, label distributions, and where they are from."""
    if os.environ.get("SNEFY_LDL_DATA"):
        from snefy_ldl import load_dataset

        real = load_dataset("sbu_3dfe")
        return np.asarray(real.X), np.asarray(real.D), "SBU_3DFE"
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2500, FEATURES))
    logits = X[:, :12] @ rng.normal(size=(12, LABELS)) / 6.0
    shares = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    return X, np.stack([rng.dirichlet(60.0 * share + 0.5) for share in shares]), "synthetic, shape of SBU_3DFE"


def milliseconds(work: Callable[[], Any], repeats: int) -> float:
    """Median time of a few repeats after one to warm up."""
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        work()
        times.append(1000.0 * (time.perf_counter() - start))
    return statistics.median(times[1:])


def row(what: str, measured: float) -> Row:
    """One line of the table."""
    return {"what": what, "measured": float(f"{measured:.3g}")}


def in_a_process(script: str, *arguments: str, threads: str | None = "1") -> float:
    """The number that a script prints in a process of its own."""
    environment = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
    if threads is not None:
        environment["OMP_NUM_THREADS"] = threads
    command = [sys.executable, "-c", script, *arguments]
    return float(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)


def prediction_rows(quick: bool) -> list[Row]:
    """Predictions and draws of a fitted model of 1 and of 6 members."""
    from snefy_ldl import SnefyLDL

    X, D, _ = data()
    asked_rows = np.ascontiguousarray(X[:ROWS])
    one, rows, repeats = asked_rows[:1], [], 3 if quick else 9
    for members in MEMBERS:
        settings = {"guides": None, "zeros": "shrink", "random_state": 0}
        model = SnefyLDL(n_members=members, epochs=3 if quick else 30, **settings).fit(X, D)
        dist = model.predict_dist(one)
        with tempfile.TemporaryDirectory() as folder:
            model.save(f"{folder}/model")
            np.save(f"{folder}/X.npy", one)
            paths = f"{folder}/model", f"{folder}/X.npy"
            first = statistics.median(in_a_process(FIRST_CALL, *paths) for _ in range(3))
            alone, torch_own = in_a_process(THREADS, *paths), in_a_process(THREADS, *paths, threads=None)
        measured = (
            milliseconds(lambda model=model: model.predict_interval(one), 5 * repeats),
            milliseconds(lambda model=model: model.predict_interval(asked_rows), repeats),
            first,
            milliseconds(lambda dist=dist: dist.prob_greater(0, 1), 5 * repeats),
            milliseconds(lambda model=model: model.sample(asked_rows, DRAWS, random_state=0), repeats),
        )
        rows += [row(f"{what}, {members} members", m) for what, m in zip(WHAT, measured)]
        rows.append(row(f"predict, one row, {members} members", alone))
        rows.append(row(f"predict, one row, torch's own threads, {members} members", torch_own))
    return rows


def many_labels_rows(quick: bool) -> list[Row]:
    """Intervals of 150 labels, 4 members, 100 rows: time and the process's largest memory."""
    import torch

    from snefy_ldl.distributions import SnefySimplex

    labels = 20 if quick else 150
    generator = torch.Generator().manual_seed(0)
    exponents = 20.0 * torch.rand(4, 65, labels, generator=generator, dtype=torch.float64) ** 3
    readout = torch.randn(4, 32, 65, generator=generator, dtype=torch.float64).abs()
    dist = SnefySimplex(exponents, readout, torch.randn(100, 4, 65, generator=generator, dtype=torch.float64))
    start = time.perf_counter()
    dist.quantiles([0.05, 0.95])
    seconds = time.perf_counter() - start
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    what = f"quantiles of {labels} labels, 4 members, 100 rows"
    return [row(f"{what}, s", seconds), row(f"{what}, MB of the whole process", memory)]


#: Functions that take ``quick`` and return rows of the table; many labels first, while the process is small.
MAKERS: list[Callable[[bool], Iterable[Row]]] = [many_labels_rows, prediction_rows]


def main() -> None:
    """Measure every line, print the table and keep it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer repeats, to see that it runs")
    quick = parser.parse_args().quick
    makers = list(MAKERS)
    if importlib.util.find_spec("waits_scale") is not None:
        measure = importlib.import_module("waits_scale").measure  # rows of text: what, asked, measured
        makers.append(lambda quick: (dict(zip(("what", "measured"), (line[0], line[2]))) for line in measure(quick)))
    rows = []
    for make in makers:
        for line in make(quick):
            rows.append(line)
            print(" | ".join(str(cell) for cell in line.values()), flush=True)
    facts = {"machine": machine(), "data": data()[2], "rows": rows, "load": os.getloadavg()[0]}
    words = ", ".join(f"{key} {value}" for key, value in facts["machine"].items())
    text = (
        f"# Waits\n\nOne thread; {facts['data']}. Load of the machine {facts['load']:.1f}. {words}.\n\n{markdown(rows)}"
    )
    if quick:
        print(text)
    else:
        write("waits", facts, text)


if __name__ == "__main__":
    main()
