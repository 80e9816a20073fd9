"""Which result files a change of the code made stale, how long they take, and the command that runs them again.

    python benchmarks/refresh.py                       # the state of every result, with minutes on 16 cores
    python benchmarks/refresh.py --run --minutes 60    # run what is stale and fits into an hour, the shortest first
    python benchmarks/refresh.py --confirm votes       # a change of its script altered no number of the result

A result is current if the code that made it is unchanged: its script and the packages that it reads, without docstrings
and comments. If only packages changed, the numbers of ``behaviour.py`` decide: the result is current if those of the
parts that it needs agree between the library that wrote it and this one. Times cannot be confirmed in this way.
``versions.json`` has the digests.
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

from behaviour import differences, recorded

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
        parts: of ``behaviour.py``: if their numbers are the same, so is the result; none if it consists of times.
        needs: what must be there, in words.
    """

    files: tuple[str, ...]
    command: str
    minutes: float
    reads: tuple[str, ...] = MODELS
    needs: str = ""
    parts: tuple[str, ...] = ()

    @property
    def script(self) -> Path:
        """The file, or the folder, that its command runs."""
        name = shlex.split(self.command)[1]
        return ROOT / "reproduction" if name == "-m" else ROOT / name

    def code(self) -> str:
        """Digest of the code that makes it."""
        return code_digest(self.script, *(SOURCE / name for name in self.reads))

    def reason(self) -> str | None:
        """Why its files are stale; "" if the numbers of its parts confirm them, None if the code is unchanged."""
        known = json.loads((RESULTS / "versions.json").read_text())
        about = [known.get(file, {}) for file in self.files]
        if not all(about):
            return "no such file yet"
        about = [one for one in about if one.get("code") != self.code()]
        if not about:
            return None
        if not self.parts:
            return "it consists of times, and the code changed"
        now, found = library_numbers(), dict[str, str]()
        if any(one.get("script") != code_digest(self.script) for one in about):
            found["script"] = "its script changed"
        for numbers in (recorded(one.get("behaviour", "")) for one in about):
            for part in self.parts:
                apart = differences(numbers.get(part), now.get(part))
                words = [f"{name} {old:.4f} to {new:.4f}" for name, (old, new) in list(apart.items())[:2]]
                found |= {part: f"{part}: {', '.join(words)}"} if apart else {}
        return "; ".join(found.values())


def both(name: str) -> tuple[str, str]:
    """The files of a benchmark that writes numbers and a page."""
    return f"{name}.json", f"{name}.md"


BENCHMARKS = {
    "active_study": Benchmark(
        both("active_study"),
        "python benchmarks/active_study.py run --jobs {jobs}",
        3,
        (*MODELS, "active"),
        parts=("snefy", "active"),
    ),
    "annotators": Benchmark(
        both("annotators"),
        "python benchmarks/annotators.py",
        30,
        (*MODELS, "annotators.py", "votes"),
        parts=("votes", "annotators"),
    ),
    "backbones": Benchmark(
        ("backbones_images.json",),
        "python benchmarks/backbones.py images --out benchmarks/results",
        10,
        needs="a GPU",
        parts=("snefy",),
    ),
    "calibration": Benchmark(
        both("calibration"),
        "python benchmarks/calibration.py --seeds 2 --jobs {jobs}",
        3,
        (*MODELS, "metrics"),
        parts=("snefy", "logratio", "learners", "metrics"),
    ),
    "conditional": Benchmark(
        both("conditional"), "python benchmarks/conditional.py", 5, ("conformal",), "--peer with MAPIE"
    ),
    "conformal": Benchmark(
        both("conformal"),
        "python benchmarks/conformal.py --splits 40 --minutes 6 --jobs {jobs}",
        6,
        (*MODELS, "conformal", "metrics"),
        parts=("snefy", "learners", "conformal", "metrics"),
    ),
    "below": Benchmark(both("below"), "python benchmarks/below.py run --jobs {jobs}", 60, parts=("logratio", "below")),
    "density": Benchmark(
        (*both("density"), "density.png"),
        "python benchmarks/density.py run --jobs {jobs}",
        60,
        parts=("snefy", "logratio", "auto", "groups", "learners", "metrics"),
    ),
    "effects": Benchmark(both("effects"), "python benchmarks/effects.py", 2, (*MODELS, "explain"), parts=("explain",)),
    "enhancement": Benchmark(
        both("enhancement"), "python benchmarks/enhancement.py", 30, ("learners",), parts=("enhancement",)
    ),
    "gpu": Benchmark(both("gpu"), "python benchmarks/gpu.py", 5, needs="a GPU"),
    "groups": Benchmark(
        both("groups"),
        "python benchmarks/groups.py made --again --jobs {jobs}",
        2,
        (*MODELS, "grouped.py"),
        "groups.py real, left, coverage and time --again, then report; common.py stamp groups.json groups.md",
        parts=("snefy", "logratio", "groups", "conformal"),
    ),
    "peer": Benchmark(
        (*both("peer"), "peer.png"), "python benchmarks/peer.py", 5, needs="--peer-python with python-ldl"
    ),
    "reproduction": Benchmark(
        ("reproduction.tar.gz",),
        "python -m reproduction --jobs {jobs} --out benchmarks/results/reproduction --page docs",
        9,
        (*MODELS, "active", "conformal", "ensemble.py", "metrics"),
        parts=("snefy", "paper", "learners", "active", "conformal", "ensemble", "metrics"),
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
        both("votes"),
        "python benchmarks/votes.py study --studies methods subsample --jobs {jobs}",
        40,
        (*MODELS, "votes"),
        "votes.py report afterwards",
        ("votes",),
    ),
    "votes_next": Benchmark(
        ("votes_next.json", "votes_next_ChaosNLI_SNLI.png", "votes_next_annotators.png"),
        "python benchmarks/votes.py study --studies next --jobs {jobs}",
        3,
        (*MODELS, "votes"),
        "votes.py next afterwards",
        ("votes",),
    ),
    "waits": Benchmark(both("waits"), "python benchmarks/waits.py", 5),
}


@cache
def code_digest(*paths: Path) -> str:
    """Hash of what modules do: their syntax trees, without docstrings and comments."""
    digest = hashlib.blake2b(digest_size=8)
    for path in paths:
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            digest.update(_tree(file))
    return digest.hexdigest()


@cache
def _tree(file: Path) -> bytes:
    """The syntax tree of a module, which many results read."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return repr(_shape(tree)).encode()


def _shape(node: object) -> object:
    """A syntax tree without empty fields, which differ between versions of Python, so that all have the same digest."""
    if isinstance(node, list):
        return [_shape(one) for one in node]
    if not isinstance(node, ast.AST):
        return node
    fields = [(name, value) for name, value in ast.iter_fields(node) if value not in (None, [])]
    return type(node).__name__, [(name, _shape(value)) for name, value in fields]


def library_numbers() -> dict[str, dict[str, float]]:
    """Numbers of ``behaviour.py`` for this library."""
    return recorded(code_digest(SOURCE), SOURCE.parent)


def origin(file: str) -> dict[str, str]:
    """Digests of the code that makes a result file, and of the library; empty if no benchmark does."""
    one = next((one for one in BENCHMARKS.values() if file in one.files), None)
    if one is None:
        return {}
    library_numbers()
    return {"code": one.code(), "script": code_digest(one.script), "behaviour": code_digest(SOURCE)}


def stale() -> dict[str, Benchmark]:
    """Benchmarks that have to run again, the shortest first."""
    found = {name: one for name, one in BENCHMARKS.items() if one.reason()}
    return dict(sorted(found.items(), key=lambda item: item[1].minutes))


def confirm(name: str) -> None:
    """Record that the script of a benchmark as it is now would write the same numbers."""
    path, one = RESULTS / "versions.json", BENCHMARKS[name]
    known = json.loads(path.read_text())
    for file in one.files:
        known[file]["script"] = code_digest(one.script)
    path.write_text(json.dumps(known, indent=1) + "\n")


def main() -> None:
    """List the state of every result, or run what is stale."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", action="store_true", help="run what is stale")
    parser.add_argument("--minutes", type=float, default=1e9, help="start nothing that would end after this time")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--confirm", metavar="NAME", choices=BENCHMARKS, help="a change of its script altered no number"
    )
    asked = parser.parse_args()
    if asked.confirm:
        confirm(asked.confirm)
    left, found = asked.minutes, stale()
    for name, one in BENCHMARKS.items():
        if name not in found:
            print(f"{name:14}current{'' if one.reason() is None else ' (same numbers)'}")
    for name, one in found.items():
        command = one.command.format(jobs=asked.jobs)
        print(f"{name:14}stale: {one.reason()}\n{one.minutes:17.0f} min  {command}", end="", flush=True)
        print(f"  (needs {one.needs})" if one.needs else "", flush=True)
        if asked.run and one.minutes <= left and not one.needs:
            left -= one.minutes
            subprocess.run([sys.executable, *shlex.split(command)[1:]], cwd=ROOT, check=False)
    print(f"{len(found)} of {len(BENCHMARKS)} stale, {sum(one.minutes for one in found.values()):.0f} minutes")


if __name__ == "__main__":
    main()
