"""A training step, a prediction and its memory, against PyLDL's SNEFY_LDL in the same run.

    python benchmarks/peer.py --peer-python PATH     # an interpreter with python-ldl, keras and torch
    python benchmarks/peer.py                        # our side alone

One thread, the paper's setting: n = 64, m = 32, batch 64, 243 features, 6 labels. A step is the difference between a
fit of 22 epochs and one of 2, over the steps between, so that set-up and warm-up drop out. The two sides take turns, so
that a busy moment of the machine hits both.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time

ROWS, FEATURES, LABELS, BATCH, PREDICT_ROWS = 1250, 243, 6, 64, 7000
SHORT, LONG = 2, 22


def data(rows=ROWS):
    import numpy as np

    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, FEATURES)).astype(np.float32) * 0.1 + 0.3
    return X, rng.dirichlet(np.full(LABELS, 5.0), size=rows)


def _step_ms(fit) -> float:
    """Milliseconds a step, from a short and a long fit after a warm-up."""
    fit(1)
    start = time.perf_counter()
    fit(SHORT)
    middle = time.perf_counter()
    fit(LONG)
    end = time.perf_counter()
    return 1e3 * ((end - middle) - (middle - start)) / ((LONG - SHORT) * (ROWS // BATCH))


def ours() -> dict:
    import torch

    torch.set_num_threads(1)
    import numpy as np

    from snefy_ldl import SnefyLDL
    from snefy_ldl.many import fit_many

    X, D = data()
    plain = {"validation_fraction": 0.0, "standardize": "unit", "batch_size": BATCH, "random_state": 0}
    result = {
        "step, default recipe": _step_ms(lambda e: SnefyLDL(epochs=e, **plain).fit(X, D)),
        "step, paper's recipe": _step_ms(lambda e: SnefyLDL.paper("conformal", epochs=e, random_state=0).fit(X, D)),
    }
    everything = [np.arange(ROWS)] * 16
    seeds = [{"random_state": k} for k in range(16)]
    result["step per model, 16 stacked"] = (
        _step_ms(lambda e: fit_many(SnefyLDL(epochs=e, **plain), X, D, everything, seeds, n_jobs=1)) / 16
    )
    model = SnefyLDL.paper("conformal", epochs=1, random_state=0).fit(X, D)
    big, _ = data(PREDICT_ROWS)
    times = []
    for _ in range(4):
        start = time.perf_counter()
        model.predict_mean_var(big)
        times.append(time.perf_counter() - start)
    result["predict mean and variance, 7,000 rows"] = 1e3 * statistics.median(times[1:])
    return result


def theirs() -> dict:
    os.environ["KERAS_BACKEND"] = "torch"
    import torch

    torch.set_num_threads(1)
    from pyldl.algorithms import SNEFY_LDL

    X, D = data()

    def fit(epochs):
        model = SNEFY_LDL(n_hidden=64, n_latent=32)
        model.fit(X, D, epochs=epochs, batch_size=BATCH, verbose=0)
        return model

    result = {"step": _step_ms(fit)}
    model = fit(1)
    big, _ = data(PREDICT_ROWS)
    times = []
    for _ in range(3):
        start = time.perf_counter()
        model.predict(big, return_uncertainty=True)
        times.append(time.perf_counter() - start)
    result["predict mean and variance, 7,000 rows"] = 1e3 * statistics.median(times[1:])
    return result


def million() -> dict:
    """Peak memory above the input while predicting mean and variance of a million rows."""
    import numpy as np
    import psutil
    import torch

    torch.set_num_threads(1)
    from snefy_ldl import SnefyLDL

    X, D = data()
    model = SnefyLDL(epochs=1, random_state=0).fit(X, D)
    model.predict_mean_var(X)
    big = np.empty((1_000_000, FEATURES), dtype=np.float32)
    for start in range(0, len(big), ROWS):
        big[start : start + ROWS] = X
    process = psutil.Process()
    before, peak, running = process.memory_info().rss, [0], [True]

    def watch():
        while running[0]:
            peak[0] = max(peak[0], process.memory_info().rss)
            time.sleep(0.005)

    watcher = threading.Thread(target=watch)
    watcher.start()
    start = time.perf_counter()
    model.predict_mean_var(big)
    seconds = time.perf_counter() - start
    running[0] = False
    watcher.join()
    return {"rows": len(big), "peak above input, MB": (peak[0] - before) / 1e6, "rows a second": len(big) / seconds}


def _side(python: str, side: str) -> dict:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "KERAS_BACKEND": "torch", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [python, __file__, "--side", side], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"the side {side!r} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def _medians(runs: list[dict]) -> dict:
    return {key: statistics.median(run[key] for run in runs) for key in runs[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer-python", help="interpreter with python-ldl installed; without it only our side runs")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--side", choices=["ours", "theirs", "million"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        print(json.dumps({"ours": ours, "theirs": theirs, "million": million}[arguments.side]()))
        return
    from common import machine, markdown, write

    mine, peer = [], []
    for _ in range(arguments.repeats):
        mine.append(_side(sys.executable, "ours"))
        if arguments.peer_python:
            peer.append(_side(arguments.peer_python, "theirs"))
    here, there, memory = _medians(mine), _medians(peer) if peer else {}, _side(sys.executable, "million")
    rows = []
    for key, value in here.items():
        other = there.get("step" if key.startswith("step") else key)
        rows.append(
            {
                "what": key,
                "snefy-ldl, ms": f"{value:.2f}",
                "PyLDL, ms": f"{other:.1f}" if other else "not run",
                "times faster": f"{other / value:.1f}" if other else "",
            }
        )
    facts = {"machine": machine(1), "ours": mine, "peer": peer, "million rows": memory}
    text = (
        "# Against PyLDL's SNEFY_LDL\n\n"
        f"`python benchmarks/peer.py --peer-python PATH` on {facts['machine']['processor']}, one thread, torch "
        f"{facts['machine']['torch']}; python-ldl 0.1.2 on its torch backend. Medians of {arguments.repeats} runs that "
        f"took turns.\nn = 64, m = 32, batch {BATCH}, {FEATURES} features, {LABELS} labels.\n\n{markdown(rows)}\n\n"
        f"Predicting mean and variance of {memory['rows']:,} rows: {memory['peak above input, MB']:.0f} MB above the "
        f"input at the peak, {memory['rows a second']:,.0f} rows a second.\n"
    )
    write("peer", facts, text)


if __name__ == "__main__":
    main()
