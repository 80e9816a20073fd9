"""How long people wait for fits and predictions of very many rows, votes and models: rows for ``waits.py``.

    python benchmarks/waits_scale.py             # every line; ten minutes, two cores, 4 GB of disk for the tables
    python benchmarks/waits_scale.py --small     # a hundredth of the rows, to see that it runs

Each function returns rows ``(what, asked, measured)``, all of them text.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

Row = tuple[str, str, str]
FEATURES, LABELS = 50, 6
NAMES = ",".join(f"label{k}" for k in range(LABELS))


def write_table(file: Path, rows: int, seed: int) -> None:
    """A Parquet file of features and Dirichlet labels that depend on them."""
    import pyarrow
    import pyarrow.parquet

    truth, rng, writer = np.random.default_rng(99), np.random.default_rng(seed), None
    weights, inner, outer = (truth.normal(size=size) for size in ((FEATURES, LABELS), (FEATURES, 50), (50, LABELS)))
    for start in range(0, rows, 100_000):
        X = rng.normal(size=(min(100_000, rows - start), FEATURES))
        shares = np.exp(0.15 * X @ weights + 0.1 * np.tanh(0.2 * X @ inner) @ outer)
        gammas = rng.standard_gamma(25.0 * shares / shares.sum(1, keepdims=True) + 0.5) + 1e-9
        columns = {f"feature{k}": X[:, k] for k in range(FEATURES)}
        columns |= dict(zip(NAMES.split(","), (gammas / gammas.sum(1, keepdims=True)).T))
        table = pyarrow.table(columns)
        writer = writer or pyarrow.parquet.ParquetWriter(file, table.schema)
        writer.write_table(table)
    if writer is not None:
        writer.close()


def command(*words: object) -> dict[str, float]:
    """Run ``snefy-ldl`` in a process of its own: wall-clock and CPU seconds, and its peak memory in MB."""
    script = "import resource, sys; from snefy_ldl.apps.cli import main; code = 0\n"
    script += "try: main()\nexcept SystemExit as end: code = end.code or 0\n"
    script += "use = resource.getrusage(resource.RUSAGE_SELF)\n"
    script += "print('USED', use.ru_utime + use.ru_stime, use.ru_maxrss, flush=True); sys.exit(code)"
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, words)],
        env={**os.environ, "OMP_NUM_THREADS": "2"},
        capture_output=True,
        text=True,
        check=True,
    )
    wall = time.perf_counter() - start
    used = next(line.split() for line in done.stdout.splitlines() if line.startswith("USED"))
    return {"wall": wall, "cpu": float(used[1]), "peak": float(used[2]) / 1024.0}


def votes_rows(rows: int = 1000, epochs: int = 4) -> list[Row]:
    """A fit on votes against one on a hundred votes per item, in CPU time of one thread."""
    import torch

    from snefy_ldl import SnefyLDL

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, 20))
    shares = np.exp(0.5 * X @ rng.normal(size=(20, 5)))
    shares = np.stack([rng.dirichlet(30.0 * row / row.sum() + 0.01) for row in shares])

    def seconds(votes: int) -> float:
        counts = rng.multinomial(votes, shares / shares.sum(1, keepdims=True))
        times = []
        for _ in range(3):
            start = time.process_time()
            SnefyLDL(epochs=epochs, random_state=0, device="cpu").fit(X, counts=counts)
            times.append(time.process_time() - start)
        return min(times)

    seconds(10)
    base = seconds(100)
    answers = [
        (f"fit, {votes:.0e} votes per item against 100", "2 ×", f"{seconds(votes) / base:.2f} ×")
        for votes in (10**3, 10**5, 10**9)
    ]
    torch.set_num_threads(before)
    return answers


def million_rows(folder: Path, rows: int = 1_000_000) -> list[Row]:
    """A fit from Parquet: what an epoch takes, by the difference of two fits, and the peak of memory."""
    table = folder / "train.parquet"
    write_table(table, rows, 0)
    fit = ("fit", table, "--labels", NAMES, "--density", "snefy", "--out", folder / "model")
    short, long = (command(*fit, "--set", f"epochs={epochs}") for epochs in (10, 14))
    what = f"fit, {rows:,} rows × {FEATURES} features × {LABELS} labels, from Parquet, squared family"
    epoch = f"{(long['wall'] - short['wall']) / 4:.1f} s ({(long['cpu'] - short['cpu']) / 4:.1f} s of CPU time)"
    return [(f"{what}, an epoch", "3 s", epoch), (f"{what}, peak", "1,500 MB", f"{long['peak']:,.0f} MB")]


def auto_rows(folder: Path, rows: int = 1_000_000) -> Iterator[Row]:
    """Fits from Parquet that compare both distributions, as the command line does."""
    table = folder / "both.parquet"
    for part, asked in ((100, "60 s"), (10, "120 s"), (1, "180 s")):
        write_table(table, rows // part, 0)
        used = command("fit", table, "--labels", NAMES, "--out", folder / "both")
        took = f"{used['wall']:.0f} s ({used['cpu']:.0f} s of CPU time), {used['peak']:,.0f} MB"
        yield f"fit, {rows // part:,} rows, both distributions", f"{asked}, 2,500 MB", took


def predict_rows(folder: Path, rows: int = 2_000_000, intervals: bool = True) -> Iterator[Row]:
    """Predictions from Parquet to Parquet with the model that :func:`million_rows` left."""
    table = folder / "new.parquet"
    write_table(table, rows, 1)
    for asked, words in (("20 s", ()), ("60 s", ("--interval", 0.9)))[: 2 if intervals else 1]:
        used = command("predict", folder / "model", table, "--out", folder / "answers.parquet", *words)
        what = f"predict, {rows:,} rows{', with intervals' if words else ''}, two cores"
        yield what, asked, f"{used['wall']:.0f} s ({used['cpu']:.0f} s of CPU time)"


def step_rows(rows: int = 1280, epochs: int = 12) -> list[Row]:
    """A step on votes against one on shares: fits of the same size, one thread, medians of epochs."""
    import statistics

    import torch

    from snefy_ldl import SnefyLDL

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    X, D = rng.normal(size=(rows, 243)), rng.dirichlet(np.full(LABELS, 5.0), rows)
    counts = np.stack([rng.multinomial(100, row) for row in D])
    options = {"validation_fraction": 0.0, "standardize": "unit", "guides": None, "batch_size": 64}
    times = []
    for labels in ({"D": D}, {"counts": counts}):
        fitted = SnefyLDL(epochs=epochs, random_state=0, device="cpu", **options).fit(X, **labels)
        times.append(statistics.median(record["seconds"] for record in fitted.history_[2:]))
    torch.set_num_threads(before)
    return [("a step on votes against one on shares", "4 ×", f"{times[1] / times[0]:.1f} ×")]


def measure(small: bool = False) -> Iterator[Row]:
    """Every line, in the order of the functions above, as soon as it is measured."""
    scale = 100 if small else 1
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        yield from votes_rows(1000 // min(scale, 5), 4 if scale == 1 else 1)
        yield from step_rows(epochs=12 if scale == 1 else 4)
        yield from million_rows(folder, 1_000_000 // scale)
        yield from auto_rows(folder, 1_000_000 // scale)
        yield from predict_rows(folder, 2_000_000 // scale)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true")
    for row in measure(parser.parse_args().small):
        print(" | ".join(row), flush=True)
    print(f"peak of this process {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:,.0f} MB")


if __name__ == "__main__":
    main()
