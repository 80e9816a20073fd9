"""Which result files a change of the code made stale, how long they take, and the command that runs them again.

    python benchmarks/refresh.py                       # list what is stale, with minutes on 16 cores
    python benchmarks/refresh.py --run --minutes 60    # run what is stale and fits into an hour, the shortest first

A result is stale if the code that made it has changed since: its own script and the packages that it reads, without
docstrings and comments. ``versions.json`` has the digest of that code.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "snefy_ldl"
RESULTS = Path(__file__).parent / "results"
#: What fits and predictions read.
MODELS = ("distributions", "networks", "training", "learners", "snefy.py", "logratio.py", "auto.py", "prediction.py")


@dataclass(frozen=True)
class Benchmark:
    """One result: its files, how to make it, and what it depends on.

    Args:
        files: in ``results``.
        command: from the root of the checkout; ``{jobs}`` is the number of processes.
        minutes: on 16 cores if it takes jobs, else on one.
        reads: packages of the library, besides its own script.
        needs: what must be there, in words.
    """

    files: tuple[str, ...]
    command: str
    minutes: float
    reads: tuple[str, ...] = MODELS
    needs: str = ""

    @property
    def script(self) -> Path:
        """The file, or the folder, that its command runs."""
        name = shlex.split(self.command)[1]
        return ROOT / "reproduction" if name == "-m" else ROOT / name

    def code(self) -> str:
        """Digest of the code that makes it."""
        return code_digest(self.script, *(SOURCE / name for name in self.reads))


def both(name: str) -> tuple[str, str]:
    """The files of a benchmark that writes numbers and a page."""
    return f"{name}.json", f"{name}.md"


BENCHMARKS = {
    "active_study": Benchmark(
        both("active_study"), "python benchmarks/active_study.py run --jobs {jobs}", 3, (*MODELS, "active")
    ),
    "annotators": Benchmark(
        both("annotators"), "python benchmarks/annotators.py", 30, (*MODELS, "annotators.py", "votes")
    ),
    "backbones": Benchmark(
        ("backbones_images.json",), "python benchmarks/backbones.py images --out benchmarks/results", 10, needs="a GPU"
    ),
    "calibration": Benchmark(
        both("calibration"), "python benchmarks/calibration.py --seeds 1 --jobs {jobs}", 3, (*MODELS, "metrics")
    ),
    "conditional": Benchmark(
        both("conditional"), "python benchmarks/conditional.py", 5, ("conformal",), "--peer with MAPIE"
    ),
    "conformal": Benchmark(
        both("conformal"),
        "python benchmarks/conformal.py --splits 40 --minutes 6 --jobs {jobs}",
        6,
        (*MODELS, "conformal", "metrics"),
    ),
    "below": Benchmark(both("below"), "python benchmarks/below.py run --jobs {jobs}", 60),
    "density": Benchmark((*both("density"), "density.png"), "python benchmarks/density.py run --jobs {jobs}", 60),
    "effects": Benchmark(both("effects"), "python benchmarks/effects.py", 10, (*MODELS, "explain")),
    "enhancement": Benchmark(both("enhancement"), "python benchmarks/enhancement.py", 30, ("learners",)),
    "gpu": Benchmark(both("gpu"), "python benchmarks/gpu.py", 5, needs="a GPU"),
    "groups": Benchmark(both("groups"), "python benchmarks/groups.py made --jobs {jobs}", 20, (*MODELS, "grouped.py")),
    "peer": Benchmark(
        (*both("peer"), "peer.png"), "python benchmarks/peer.py", 5, needs="--peer-python with python-ldl"
    ),
    "reproduction": Benchmark(
        ("reproduction.tar.gz",),
        "python -m reproduction --jobs {jobs} --out benchmarks/results/reproduction --page docs",
        9,
        (*MODELS, "active", "conformal", "ensemble.py", "metrics"),
    ),
    "scaling": Benchmark((*both("scaling"), "scaling.png"), "python benchmarks/scaling.py", 5),
    "service": Benchmark(both("service"), "python benchmarks/service.py", 10, ("apps",)),
    "thresholds": Benchmark(
        both("thresholds"),
        "python benchmarks/thresholds.py --jobs {jobs} --minutes 12",
        12,
        (*MODELS, "grouped.py", "votes"),
    ),
    "votes": Benchmark(
        (*both("votes"), "votes_next.json", "votes_next_ChaosNLI_SNLI.png", "votes_next_annotators.png"),
        "python benchmarks/votes.py study",
        40,
        (*MODELS, "votes"),
    ),
    "waits": Benchmark(both("waits"), "python benchmarks/waits.py", 5),
}


@cache
def code_digest(*paths: Path) -> str:
    """Hash of what modules do: their syntax trees, without docstrings and comments."""
    digest = hashlib.blake2b(digest_size=8)
    for path in paths:
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            tree = ast.parse(file.read_text(encoding="utf-8"))
            for node in ast.walk(tree):
                if (
                    isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
                    and ast.get_docstring(node) is not None
                ):
                    node.body = node.body[1:] or [ast.Pass()]
            digest.update(ast.dump(tree).encode())
    return digest.hexdigest()


def code_of(file: str) -> str | None:
    """Digest of the code that makes a result file; None if no benchmark does."""
    return next((one.code() for one in BENCHMARKS.values() if file in one.files), None)


def stale() -> dict[str, Benchmark]:
    """Benchmarks some file of which is missing or was made by other code, the shortest first."""
    known = json.loads((RESULTS / "versions.json").read_text())
    found = {
        name: one
        for name, one in BENCHMARKS.items()
        if any(known.get(file, {}).get("code") != one.code() for file in one.files)
    }
    return dict(sorted(found.items(), key=lambda item: item[1].minutes))


def main() -> None:
    """List what is stale, or run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", action="store_true", help="run what is stale")
    parser.add_argument("--minutes", type=float, default=1e9, help="start nothing that would end after this time")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    asked = parser.parse_args()
    left, found = asked.minutes, stale()
    for name, one in found.items():
        command = one.command.format(jobs=asked.jobs)
        print(f"{name:14}{one.minutes:5.0f} min  {command}{f'  (needs {one.needs})' if one.needs else ''}", flush=True)
        if asked.run and one.minutes <= left and not one.needs:
            left -= one.minutes
            subprocess.run([sys.executable, *shlex.split(command)[1:]], cwd=ROOT, check=False)
    print(f"{len(found)} of {len(BENCHMARKS)} stale, {sum(one.minutes for one in found.values()):.0f} minutes")


if __name__ == "__main__":
    main()
