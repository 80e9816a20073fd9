"""Rows in parts and training on workers: this machine's engine against a Ray cluster of two local workers.

    python benchmarks/cluster.py                        # 20 million rows, 2 million to train on: about an hour, 12 GB
    python benchmarks/cluster.py --only training        # these lines anew, those about predictions as they were
    python benchmarks/cluster.py --rows 400000 --train 40000 --epochs 2      # to see that it runs

Each engine works in a process of its own. Rows per second are those of workers that have started: all rows over the
mean time that workers spent on their parts, with reading and writing. ``seconds`` is the whole run. In training, rows
per second are those of the median epoch after the first, ``start`` is what is no epoch (Ray, PyTorch in its workers,
the first look at the rows, the model's way back), ``core-seconds`` are those of all workers in such an epoch: more
of them with more workers is what working together costs. On a machine that does other work, too, the best epochs
say more.
"""

from __future__ import annotations

import argparse
import contextlib
import filecmp
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from common import machine, markdown
from waits_scale import FEATURES, LABELS, write_table

RESULTS = Path(__file__).parent / "results"
COLUMNS = tuple(f"feature{k}" for k in range(FEATURES))
NAMES = tuple(f"label{k}" for k in range(LABELS))


def score(task: dict[str, Any]) -> dict[str, Any]:
    """All rows through one engine; figures of the run."""
    from snefy_ldl.apps.cluster.base import LocalEngine, run_parts
    from snefy_ldl.apps.cluster.parts import PartTable, find_tables
    from snefy_ldl.apps.cluster.ray import RayEngine
    from snefy_ldl.apps.cluster.work import ModelFiles, Predictions

    done: list[int] = []
    victims: list[int] = []

    def watch(outcomes: Any) -> Any:
        for outcome in outcomes:
            done.append(outcome.number)
            if task["kill"] and not victims and len(done) > 2:
                victims.append(outcome.pid)
                with contextlib.suppress(ProcessLookupError):  # it was its last part
                    os.kill(outcome.pid, signal.SIGKILL)
            yield outcome

    base = LocalEngine if task["engine"] == "local" else RayEngine

    class Watched(base):  # type: ignore[misc, valid-type]
        def outcomes(self, *words: Any) -> Any:
            return watch(super().outcomes(*words))

    work = Predictions(ModelFiles.read(Path(task["model"])), COLUMNS, (), task["interval"])
    began = time.perf_counter()
    engine = Watched(workers=task["workers"])
    run = run_parts(engine, work, PartTable(find_tables([task["rows"]])), task["out"])
    whole = time.perf_counter() - began
    busy = sum(outcome.seconds for outcome in run.outcomes) / task["workers"]
    return {
        "rows": run.rows,
        "seconds": whole,
        "rows/s": run.rows / busy,
        "killed": len(victims),
    }


def core_seconds(pid: int) -> float:
    """Processor time that a process has used; Linux tells."""
    ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


def train(task: dict[str, Any]) -> dict[str, Any]:
    """One fit on so many workers; figures of the run."""
    import pandas as pd

    from snefy_ldl import SnefyLDL
    from snefy_ldl.apps.cluster.training import ParquetRows, RayTraining

    victims: list[int] = []
    states: list[tuple[int, ...]] = []
    spent: dict[int, float] = {}  # by the workers of the present, at the end of each epoch

    def watch(epoch: int, pids: list[int]) -> None:
        with contextlib.suppress(OSError):  # a worker may be gone
            spent[epoch] = sum(core_seconds(pid) for pid in pids)
        fresh = (epoch, *pids) not in states and len(pids) == task["workers"]
        states.append((epoch, *pids))
        if task["kill"] and fresh and epoch == len(victims) + 1 and len(victims) < 2:
            victims.append(pids[len(victims)])
            os.kill(victims[-1], signal.SIGKILL)

    rows = ParquetRows((task["rows"],), NAMES, COLUMNS)
    model = SnefyLDL(epochs=task["epochs"], random_state=0)
    began = time.perf_counter()
    model.fit(rows, engine=RayTraining(task["workers"], on_epoch=watch))
    whole = time.perf_counter() - began
    test = pd.read_parquet(task["test"])
    seconds = [record["seconds"] for record in model.history_]
    n_rows = rows.stream().n_rows
    steps = [spent[epoch + 1] - spent[epoch] for epoch in spent if epoch and epoch + 1 in spent]
    return {
        "seconds": whole,
        "start": whole - sum(seconds),
        "core-seconds": float(np.median(steps)) if steps and not victims else None,
        "rows/s": n_rows / float(np.median(seconds[1:] or seconds)),
        "best": n_rows / min(seconds[1:] or seconds),
        "log likelihood": float(np.mean(model.log_prob(test[list(COLUMNS)], test[list(NAMES)]))),
        "killed": len(victims),
    }


def apart(kind: str, **task: Any) -> dict[str, Any]:
    """A run in a process of its own."""
    words = [sys.executable, __file__, "--one", json.dumps({"kind": kind, "kill": False, **task})]
    fair = {**os.environ, "RAY_worker_niceness": "0"}  # Ray's workers step back behind other processes by default
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=fair)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def same_files(first: Path, second: Path) -> bool:
    """Whether two folders hold the same files, bit for bit."""
    names = sorted(path.name for path in first.iterdir())
    others = sorted(path.name for path in second.iterdir())
    return names == others and filecmp.cmpfiles(first, second, names, shallow=False)[0] == names


def scoring(place: Path, workers: int) -> list[dict[str, Any]]:
    """The lines about predictions."""
    from snefy_ldl.apps.cluster.training import ParquetRows

    lines = []
    for level, folder in ((None, place / "rows"), (0.9, place / "some")):
        rows = ParquetRows((str(folder),), NAMES, COLUMNS).stream().n_rows
        runs: dict[str, Any] = {}
        for name, engine, kill in (("local", "local", False), ("ray", "ray", False), ("ray, one killed", "ray", True)):
            out = place / f"out-{len(lines)}"
            task = {"model": str(place / "model"), "rows": str(folder), "out": str(out), "interval": level}
            run = runs[name] = apart("score", engine=engine, workers=workers, **task | {"kill": kill})
            lines.append(
                {
                    "work": "means" if level is None else "means and intervals",
                    "engine": name,
                    "rows": f"{rows:,}",
                    "seconds": f"{run['seconds']:.0f}",
                    "rows/s": f"{run['rows/s']:,.0f}",
                    "of local": f"{run['rows/s'] / runs['local']['rows/s']:.0%}",
                    "same files": "" if name == "local" else str(same_files(runs["local"]["out"], out)),
                }
            )
            run["out"] = out
            print(lines[-1], flush=True)
        for run in runs.values():
            shutil.rmtree(run["out"])
    return lines


def training(place: Path, rows: int, workers: int, epochs: int) -> list[dict[str, Any]]:
    """The lines about training."""
    lines, base = [], None
    for count, kill in ((1, False), (workers, False), (workers, True)):
        task = {"rows": str(place / "train"), "test": str(place / "test.parquet"), "epochs": epochs}
        run = apart("train", workers=count, **task | {"kill": kill})
        base = base or run
        lines.append(
            {
                "workers": f"{count}, one killed {run['killed']} times" if kill else str(count),
                "rows": f"{rows:,}",
                "epochs": epochs,
                "seconds": f"{run['seconds']:.0f}",
                "start": "" if kill else f"{run['start']:.0f}",
                "core-seconds": "" if run["core-seconds"] is None else f"{run['core-seconds']:.1f}",
                "rows/s": f"{run['rows/s']:,.0f}",
                "of one": f"{run['rows/s'] / base['rows/s']:.2f}",
                "best epoch": f"{run['best']:,.0f}",
                "best of one": f"{run['best'] / base['best']:.2f}",
                "test log likelihood": f"{run['log likelihood']:.4f}",
                "against one": f"{run['log likelihood'] - base['log likelihood']:+.4f}",
            }
        )
        print(lines[-1], flush=True)
    return lines


def kept_lines(only: str | None) -> dict[str, Any]:
    """Lines of the last run that this one does not make anew."""
    path = RESULTS / "cluster.json"
    if only is None or not path.exists():
        return {}
    kind = {"scoring": "training", "training": "scoring"}[only]
    last = json.loads(path.read_text())
    return {kind: last[kind]} if kind in last else {}


def describe(part: dict[str, Any]) -> str:
    """A table, and how it was made."""
    text = f"Measured by `{part['command']}` on {part['machine']['processor']}, {part['machine']['cores']} cores; "
    return text + f"load of the machine at its end: {part['load']:.1f}.\n\n{markdown(part['lines'])}"


def main() -> None:
    """Make the rows, run both engines, write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--interval-rows", type=int, help="of them with intervals, whole files; all by default")
    parser.add_argument("--train", type=int, default=2_000_000)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="for tables; a temporary one by default")
    parser.add_argument("--only", choices=("scoring", "training"))
    parser.add_argument("--one", help=argparse.SUPPRESS)
    words = parser.parse_args()
    if words.one:
        task = json.loads(words.one)
        print(json.dumps({"score": score, "train": train}[task["kind"]](task)))
        return
    from snefy_ldl import SnefyLDL
    from snefy_ldl.apps.cluster.training import ParquetRows

    with tempfile.TemporaryDirectory(dir=words.folder) as name:
        place = Path(name)
        for folder in ("rows", "some", "train"):
            (place / folder).mkdir()
        files = max(1, words.rows // 1_000_000)
        for k in range(files if words.only != "training" else 0):
            table = place / "rows" / f"rows{k:03d}.parquet"
            write_table(table, words.rows // files, k)
            if k * (words.rows // files) < (words.interval_rows or words.rows):
                os.link(table, place / "some" / table.name)
        write_table(place / "train" / "train.parquet", words.train, 1000)
        write_table(place / "test.parquet", 20_000, 1001)
        some = ParquetRows((str(place / "test.parquet"),), NAMES, COLUMNS)
        SnefyLDL(epochs=2, random_state=0).fit(some.stream()).save(place / "model")
        lines: dict[str, Any] = kept_lines(words.only)
        about = {"command": " ".join(["benchmarks/cluster.py", *sys.argv[1:]]), "machine": machine()}
        if words.only != "training":
            lines["scoring"] = {"lines": scoring(place, words.workers)}
            lines["scoring"] |= about | {"load": os.getloadavg()[1]}
        if words.only != "scoring":
            lines["training"] = {"lines": training(place, words.train, words.workers, words.epochs)}
            lines["training"] |= about | {"load": os.getloadavg()[1]}
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "cluster.json").write_text(json.dumps(lines, indent=2) + "\n")
    text = "\n\n".join(describe(lines[kind]) for kind in ("scoring", "training") if kind in lines) + "\n"
    (RESULTS / "cluster.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
