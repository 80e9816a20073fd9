"""Sixteen learners on SJAFFE, 10 x 10 folds, two processes: seconds, and the same table after a kill.

SNEFY_LDL_DATA=... python benchmarks/compare.py              # writes benchmarks/results/compare.md and compare.png
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

KILL_AFTER = 9  # pieces of work
RESULTS = Path(__file__).parent / "results"
os.environ.setdefault("OMP_NUM_THREADS", "1")


def work(folder: str, repeats: int):
    from snefy_ldl import SnefyLDL, compare, load_dataset
    from snefy_ldl.learners import all_learners

    data = load_dataset("sjaffe")
    sixteen = [name for name in list(all_learners())[:16] if name != "DirichletLDL"]  # that one predicts as SABFGS
    learners = {"SnefyLDL": SnefyLDL(), **{name: all_learners()[name]() for name in sixteen}}
    warnings.simplefilter("ignore")
    return compare(learners, data.X, data.D, cv=10, repeats=repeats, n_jobs=2, checkpoint=folder, verbose=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(arguments.worker, arguments.repeats)
        return
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as other:
        started, load = time.perf_counter(), os.getloadavg()[0]
        subprocess.run([sys.executable, __file__, "--worker", folder, "--repeats", str(arguments.repeats)], check=True)
        seconds, used = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
        whole, first = work(folder, arguments.repeats), work(folder, 2)  # nothing is left to fit
        process = subprocess.Popen([sys.executable, __file__, "--worker", other, "--repeats", "2"])
        while len(list(Path(other).glob("*.json"))) < KILL_AFTER:
            time.sleep(0.1)
        process.send_signal(signal.SIGKILL)
        process.wait()
        kept = len(list(Path(other).glob("*.json")))
        same = work(other, 2).table.equals(first.table)
    verdict = "the same, bit by bit" if same else "DIFFERENT"
    text = (
        f"# {len(whole.learners)} learners on SJAFFE, {arguments.repeats} x 10 folds\n\n"
        f"`python benchmarks/compare.py` on a machine of two cores (load at the start {load:.1f}), two processes: "
        f"{seconds:.0f} s by the clock, {used.ru_utime + used.ru_stime:.0f} s of CPU time. "
        f"Another run of two repeats was killed with {kept} of {2 * len(whole.learners)} pieces done, "
        f"and resumed: its table is {verdict}.\n\n{whole.to_markdown(times=True)}"
    )
    (RESULTS / "compare.md").write_text(text)
    whole.plot("kl_divergence").figure.savefig(RESULTS / "compare.png", dpi=80)
    print(text)


if __name__ == "__main__":
    main()
