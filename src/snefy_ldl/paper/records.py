"""Result files: one JSON a repeat, whole or not there, with a fingerprint of everything that decides its figures."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import time
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from snefy_ldl._internal.files.atomic import write_json
from snefy_ldl._internal.version import __version__
from snefy_ldl.datasets.named import Dataset
from snefy_ldl.learners import DirichletLDL
from snefy_ldl.paper.config import RESULTS_VERSION, Ensemble, Sensitivity, Study
from snefy_ldl.paper.studies.common import make_model
from snefy_ldl.paper.studies.ensemble import make_learner

__all__ = ["VERSION", "code_digest", "data_digest", "fingerprint", "machine", "read_record", "record_path", "tidy"]

#: Version of the files' own form.
VERSION = 1
#: Packages whose version can change a figure.
PACKAGES = ("torch", "numpy", "scipy", "scikit-learn")
#: What a killed run may leave behind; younger than this, another run may be writing it.
LEFTOVER, LEFTOVER_SECONDS = re.compile(r"\.\d+\.json\..+"), 60.0
#: Settings of a model that decide no figure.
PASSING = ("random_state", "verbose", "checkpoint_dir", "warm_start")


def record_path(out: Path, study: str, recipe: str, repeat: int) -> Path:
    """Where one repeat's figures lie.

    Example:
        >>> record_path(Path("reproduction"), "table3", "default", 7).as_posix()
        'reproduction/results/table3/default/007.json'
    """
    return out / "results" / study / recipe / f"{repeat:03d}.json"


def fingerprint(study: Study, recipe: str, data: str) -> str:
    """Hash of what decides a study's figures: protocol, models' settings, data and versions.

    The number of repeats, the sharing out of the work and the grid of figure A1 (whose records say which settings they
    hold) are no part of it.

    Args:
        study: the study.
        recipe: ``"paper"``, ``"default"`` or ``"baseline"``.
        data: what :func:`data_digest` says about its data set.
    """
    protocol = study.protocol
    plan = replace(protocol, panels=()) if isinstance(protocol, Sensitivity) else protocol
    models: list[Any] = [DirichletLDL()] if recipe == "baseline" else [make_model(study, recipe)]
    if isinstance(protocol, Ensemble):
        models += [make_learner(protocol, name) for name, _ in protocol.learners]
    content = {
        "results": RESULTS_VERSION,
        "study": study.name,
        "protocol": [type(plan).__name__, asdict(plan)],
        "models": [[type(model).__name__, _settings(model)] for model in models],
        "data": data,
        "versions": {name: version(name) for name in PACKAGES} | {"snefy_ldl": __version__},
    }
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=16).hexdigest()


def _settings(model: Any) -> dict[str, str]:
    return {name: repr(value) for name, value in model.get_params(deep=False).items() if name not in PASSING}


def data_digest(data: Dataset) -> str:
    """Hash of the features and the label distributions."""
    digest = hashlib.blake2b(digest_size=16)
    for part in (data.X, data.D):
        digest.update(repr((part.shape, str(part.dtype))).encode())
        digest.update(np.ascontiguousarray(part).view(np.uint8).data)
    return digest.hexdigest()


def code_digest() -> str:
    """Hash of the library's source files, those of the report and the command line aside."""
    digest = hashlib.blake2b(digest_size=16)
    root = Path(__file__).resolve().parents[1]
    aside = re.compile(r"(experiments/(report|analysis|runner|published)|cli|demo|[a-z_]*plots).*")
    for path in sorted(root.rglob("*.py")):
        if not aside.fullmatch(path.relative_to(root).as_posix()):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def read_record(path: Path, expected: dict[str, Any]) -> dict[str, Any] | None:
    """A record that is whole and says what is expected of it, or None: it must then be computed.

    Args:
        path: the file.
        expected: version, study, recipe, repeat and fingerprint that it must have.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(record, dict) or not isinstance(record.get("figures"), dict):
        return None
    if not isinstance(record.get("seconds"), (int, float)):
        return None
    return record if all(record.get(key) == value for key, value in expected.items()) else None


def tidy(out: Path, study: str, recipe: str, fingerprint: str) -> int:
    """Remove what a killed run left half-written, and set stale records aside as ``NNN.stale``; returns how many.

    A report must never mix figures of two settings, so stale records go even where they are not to be redone now.
    """
    folder, stale = out / "results" / study / recipe, 0
    if not folder.is_dir():
        return 0
    for path in folder.iterdir():
        if LEFTOVER.fullmatch(path.name) and time.time() - path.stat().st_mtime > LEFTOVER_SECONDS:
            path.unlink(missing_ok=True)
        elif re.fullmatch(r"\d+\.json", path.name):
            expected = {
                "version": VERSION,
                "study": study,
                "recipe": recipe,
                "repeat": int(path.stem),
                "fingerprint": fingerprint,
            }
            if read_record(path, expected) is None:
                os.replace(path, path.with_suffix(".stale"))
                stale += 1
    return stale


# -- the run as a whole ------------------------------------------------------------------------------------------------


def machine() -> dict[str, Any]:
    """Processor, cores and versions.

    Example:
        >>> sorted(machine())[:3]
        ['cores', 'numpy', 'processor']
    """
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.split(":")[1].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        name = names[0] if names else name
    facts = {"processor": name, "cores": os.cpu_count(), "python": platform.python_version()}
    return facts | {package: version(package) for package in PACKAGES} | {"snefy_ldl": __version__}


class RunFile:
    """``run.json``: machine, jobs, repeats wanted, and the time spent over all resumes.

    Args:
        out: folder of the run.
        jobs: worker processes.
        repeats: repeats wanted, by study.
        recipes: recipes wanted.
    """

    def __init__(self, out: Path, jobs: int, repeats: dict[str, int], recipes: tuple[str, ...]) -> None:
        self.path, self._began = out / "run.json", time.perf_counter()
        before = self._read()
        self._spent = float(before.get("wall_seconds", 0.0))
        held, codes = before.get("repeats", {}), list(before.get("code", []))
        self.code_before = codes[-1] if codes else None
        self.code = code_digest()
        known = [*before.get("recipes", []), *recipes]
        self.content: dict[str, Any] = {
            "version": VERSION,
            "machine": machine(),
            "jobs": jobs,
            "repeats": {**held, **{name: max(count, held.get(name, 0)) for name, count in repeats.items()}},
            "recipes": [name for name in ("paper", "default") if name in known],
            "wall_seconds": self._spent,
            "started": before.get("started") or _now(),
            "finished": before.get("finished"),
            "code": codes if codes[-1:] == [self.code] else [*codes, self.code],
        }

    def _read(self) -> dict[str, Any]:
        try:
            content = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return content if isinstance(content, dict) and content.get("version") == VERSION else {}

    def write(self, finished: bool = False) -> None:
        """Write what is known by now."""
        self.content["wall_seconds"] = round(self._spent + time.perf_counter() - self._began, 2)
        self.content["finished"] = _now() if finished else None
        write_json(self.path, self.content)


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
