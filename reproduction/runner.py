"""Running the experiments: what is missing, worker processes, and records that are there as soon as they are known.

Kill it at any moment and run it again: it continues with what is missing. The figures depend on the repeat's number and
the settings, not on the number of processes or on interruptions.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from joblib import Parallel, delayed
from rich.console import Console
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # scikit-learn brings it

from reproduction.config import RECIPES, RESULTS_VERSION, Active, Ensemble, Sensitivity, Study
from reproduction.studies import (
    Outcome,
    make_learner,
    make_model,
    merge_part,
    missing_parts,
    options_of,
    run_active,
    run_baseline,
    run_conformal,
    run_ensemble,
    run_sensitivity,
)
from snefy_ldl._internal.files import remove_stale, write_json
from snefy_ldl._internal.progress import Progress
from snefy_ldl._internal.version import __version__
from snefy_ldl.datasets.dataset import Dataset, load_dataset
from snefy_ldl.errors import InputError, SnefyError, TrainingError
from snefy_ldl.learners import DirichletLDL

#: Version of the files' own form.
VERSION = 1
#: Packages whose version can change a figure.
PACKAGES = ("torch", "numpy", "scipy", "scikit-learn")
#: Settings of a model that decide no figure.
PASSING = ("random_state", "verbose", "checkpoint_dir", "warm_start")


def record_path(out: Path, study: str, recipe: str, repeat: int) -> Path:
    """Path of one repeat's figures.

    Example:
        >>> record_path(Path("reproduction"), "table3", "default", 7).as_posix()
        'reproduction/results/table3/default/007.json'
    """
    return out / "results" / study / recipe / f"{repeat:03d}.json"


def fingerprint(study: Study, recipe: str, data: str) -> str:
    """Hash of what decides a study's figures: protocol, models' settings, data and versions.

    The number of repeats, the sharing out of the work and the grid of figure A1 (whose records list the settings they
    hold) are no part of it.

    Args:
        study: the study.
        recipe: a name in ``config.RECIPES`` or ``config.GRID``, or ``"baseline"``.
        data: what :func:`data_digest` says about its data set.
    """
    protocol = study.protocol
    plan = replace(protocol, panels=()) if isinstance(protocol, Sensitivity) else protocol
    models: list[Any] = [DirichletLDL()] if recipe == "baseline" else [make_model(study, recipe)]
    start = "" if recipe in ("baseline", "default") else options_of(recipe)["start"]
    if isinstance(protocol, Ensemble):
        models += [make_learner(protocol, name) for name, *_ in protocol.learners]
    content = {
        "results": RESULTS_VERSION,
        "study": study.name,
        "protocol": [type(plan).__name__, asdict(plan)],
        "models": [[type(model).__name__, _settings(model)] for model in models],
        "start": start,
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


def read_json(path: Path, expected: dict[str, Any]) -> dict[str, Any] | None:
    """The content of a file; None if it is missing or damaged, or lacks what is expected of it."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    fits = isinstance(content, dict) and all(content.get(key) == value for key, value in expected.items())
    return content if fits else None


def read_record(path: Path, expected: dict[str, Any]) -> dict[str, Any] | None:
    """A record that is complete and matches what is expected, or None: it must then be computed.

    Args:
        path: the file.
        expected: version, study, recipe, repeat and fingerprint that it must have.
    """
    record = read_json(path, expected) or {}
    whole = isinstance(record.get("figures"), dict) and isinstance(record.get("seconds"), (int, float))
    return record if whole else None


def tidy(out: Path, study: str, recipe: str, fingerprint: str) -> int:
    """Remove what a killed run left half-written, and set stale records aside as ``NNN.stale``; returns how many.

    A report must never mix figures of two settings, so stale records go even where they are not to be redone now.
    """
    folder, stale = out / "results" / study / recipe, 0
    if not folder.is_dir():
        return 0
    remove_stale(folder, ".*.json.????????.part")
    for path in folder.glob("[0-9]*.json"):
        about = {"version": VERSION, "study": study, "recipe": recipe, "repeat": int(path.stem)}
        if read_record(path, about | {"fingerprint": fingerprint}) is None:
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
        before = read_json(self.path, {"version": VERSION}) or {}
        self._spent = float(before.get("wall_seconds", 0.0))
        held, known = before.get("repeats", {}), [*before.get("recipes", []), *recipes]
        self.content: dict[str, Any] = {
            "version": VERSION,
            "machine": machine(),
            "jobs": jobs,
            "repeats": {**held, **{name: max(count, held.get(name, 0)) for name, count in repeats.items()}},
            "recipes": [name for name in RECIPES if name in known],
            "started": before.get("started") or _now(),
        }

    def write(self, finished: bool = False) -> None:
        """Write what is known by now."""
        self.content["wall_seconds"] = round(self._spent + time.perf_counter() - self._began, 2)
        self.content["finished"] = _now() if finished else None
        write_json(self.path, self.content)


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


Loader = Callable[[str], Dataset]


@dataclass(frozen=True)
class Task:
    """Some repeats of a study, trained together.

    A model's position among those it is trained with can change its last bits, and a query can turn such a bit into
    another row. Repeats are therefore trained in fixed batches, always whole, even if some of their records exist
    already: a run that was interrupted ends with the same figures.

    Args:
        study: which.
        recipes: the recipe, or those that share the work.
        part: the setting of figure A1; empty elsewhere.
        repeats: numbers of the splits whose records are missing.
        batch: numbers of all splits that are trained together.
    """

    study: Study
    recipes: tuple[str, ...]
    part: str
    repeats: tuple[int, ...]
    batch: tuple[int, ...]

    def __str__(self) -> str:
        numbers = f"{self.repeats[0]}" if len(self.repeats) == 1 else f"{self.repeats[0]}-{self.repeats[-1]}"
        words = (self.study.name, "+".join(self.recipes), self.part, f"repeat {numbers}")
        return " ".join(word for word in words if word)


class Answer(NamedTuple):
    """The outcomes of a task, the wall time of each of its repeats, and what it warned of."""

    outcomes: list[Outcome]
    seconds: float
    warnings: list[str]


def compute(task: Task, loader: Loader, parent: int) -> tuple[Task, Answer]:
    """Run a task on one thread; its warnings come back as lines, one of each.

    Args:
        task: what to run.
        loader: gives its data set.
        parent: id of the process that wants it; a worker ends with that process.
    """
    if os.getpid() != parent:
        _follow(parent)
    study, protocol, recipe = task.study, task.study.protocol, task.recipes[0]
    data, began, threads = _data(loader, study.dataset), time.perf_counter(), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            if recipe == "baseline":
                outcomes = run_baseline(study, task.batch, data)
            elif isinstance(protocol, Ensemble):
                outcomes = run_ensemble(study, task.recipes, task.batch, data)
            elif isinstance(protocol, Sensitivity):
                outcomes = run_sensitivity(study, recipe, task.part, task.batch, data)
            else:
                run = run_active if isinstance(protocol, Active) else run_conformal
                outcomes = run(study, recipe, task.batch, data)
    except TrainingError as error:  # a setting with which training diverges is a result, too
        if task.part:
            raise
        failed = {"failed": str(error)}
        outcomes = [Outcome(name, repeat, failed) for name in task.recipes for repeat in task.batch]
    except Exception:
        Console(stderr=True).print(f"{task} failed; earlier results are kept.", style="red", markup=False)
        raise
    finally:
        torch.set_num_threads(threads)
    lines = dict.fromkeys(f"{warning.category.__name__}: {warning.message}" for warning in caught)
    seconds = (time.perf_counter() - began) / len(outcomes)
    return task, Answer([one for one in outcomes if one.repeat in task.repeats], seconds, list(lines))


def _run(tasks: Sequence[Task], loader: Loader, workers: int) -> Iterator[tuple[Task, Answer]]:
    """Tasks as they finish, in any order; with one worker, in this process."""
    calls = (delayed(compute)(task, loader, os.getpid()) for task in tasks)
    try:
        yield from Parallel(min(workers, len(tasks)), return_as="generator_unordered", batch_size=1)(calls)
    except BrokenExecutor:
        raise SnefyError(
            "a worker process ended early, perhaps because memory ran out. Finished results are kept: "
            "run the same command again with fewer --jobs."
        ) from None


@lru_cache(maxsize=1)
def _follow(parent: int) -> None:
    """End this process once its parent is gone: it would wait minutes for further tasks."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@lru_cache(maxsize=2)
def _data(loader: Loader, name: str) -> Dataset:
    return loader(name)


class Ledger:
    """What is done and what is not: reads records, plans tasks, writes records.

    Args:
        out: folder of the run.
        studies: what is wanted, each at its own number of repeats.
        recipes: recipes wanted.
        fingerprints: by study and recipe.
    """

    def __init__(
        self, out: Path, studies: Sequence[Study], recipes: Sequence[str], fingerprints: dict[tuple[str, str], str]
    ) -> None:
        self.out, self.studies, self.recipes, self.fingerprints = out, list(studies), recipes, fingerprints

    def plan(self) -> list[Task]:
        """Tasks for everything that is missing, in the order of the studies."""
        return [task for study in self.studies for task in self._of_study(study)]

    def _of_study(self, study: Study) -> list[Task]:
        recipes = study.recipes(self.recipes)
        wanted: dict[tuple[tuple[str, ...], str], list[int]] = {}
        for repeat in study.numbers:
            lacking = {recipe: self._lacking(study, recipe, repeat) for recipe in recipes}
            if isinstance(study.protocol, Ensemble) and study.protocol.shared:
                together = tuple(recipe for recipe in recipes if lacking[recipe] and recipe != "baseline")
                if together:
                    wanted.setdefault((together, ""), []).append(repeat)
                lacking = {"baseline": lacking["baseline"]}
            for recipe, parts in lacking.items():
                for part in parts:
                    wanted.setdefault(((recipe,), part), []).append(repeat)
        tasks = []
        for (together, part), repeats in wanted.items():
            for start in sorted({(repeat - study.first) // study.chunk * study.chunk for repeat in repeats}):
                batch = tuple(study.numbers[start : start + study.chunk])
                group = tuple(repeat for repeat in repeats if repeat in batch)
                tasks.append(Task(study, together, part, group, batch))
        return tasks

    def _lacking(self, study: Study, recipe: str, repeat: int) -> list[str]:
        record = self._read(study, recipe, repeat)
        if isinstance(study.protocol, Sensitivity) and recipe != "baseline":
            return missing_parts(study, recipe, None if record is None else record["figures"])
        return [] if record is not None else [""]

    def _about(self, study: Study, recipe: str, repeat: int) -> dict[str, Any]:
        return {
            "version": VERSION,
            "study": study.name,
            "dataset": study.dataset,
            "recipe": recipe,
            "repeat": repeat,
            "fingerprint": self.fingerprints[study.name, recipe],
        }

    def _read(self, study: Study, recipe: str, repeat: int) -> dict[str, Any] | None:
        path = record_path(self.out, study.name, recipe, repeat)
        return read_record(path, self._about(study, recipe, repeat))

    def enter(self, task: Task, answer: Answer) -> None:
        """Write the records of a finished task, each at once and whole."""
        study = task.study
        for outcome in answer.outcomes:
            figures, seconds = outcome.figures, answer.seconds
            if task.part:
                before = self._read(study, outcome.recipe, outcome.repeat)
                held = None if before is None else before["figures"]
                figures = merge_part(study, outcome.recipe, task.part, held, figures)
                seconds += 0.0 if before is None else float(before["seconds"])
            record = {
                **self._about(study, outcome.recipe, outcome.repeat),
                "snefy_ldl": __version__,
                "seconds": round(seconds, 3),
                "figures": figures,
            }
            write_json(record_path(self.out, study.name, outcome.recipe, outcome.repeat), record)


def reproduce(
    studies: Sequence[Study],
    out: str | Path,
    *,
    recipes: Sequence[str] = tuple(RECIPES),
    repeats: int | None = None,
    jobs: int | None = None,
    loader: Loader = load_dataset,
) -> Path:
    """Run studies into a folder, one JSON file per repeat; what is there already is not run again.

    Args:
        studies: what to run, e.g. ``config.select(["table3"])``.
        out: folder; ``results/<study>/<recipe>/<repeat>.json`` and ``run.json`` go into it.
        recipes: names in ``config.RECIPES`` or ``config.GRID``.
        repeats: repeats of every study; by default each study's own number.
        jobs: worker processes, one thread each; all cores by default. With one, no process is started.
        loader: gives a data set by its name; with several jobs it must be importable.

    Returns:
        The folder.
    """
    out = Path(out)
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file; name a folder for the results.")
    if repeats is not None:
        studies = [replace(study, repeats=repeats) for study in studies]
    workers = jobs or os.cpu_count() or 1
    console = Console(stderr=True)
    digests = {name: data_digest(loader(name)) for name in dict.fromkeys(study.dataset for study in studies)}
    fingerprints = {
        (study.name, recipe): fingerprint(study, recipe, digests[study.dataset])
        for study in studies
        for recipe in study.recipes(recipes)
    }
    stale = sum(tidy(out, *key, value) for key, value in fingerprints.items())
    if stale:
        console.print(f"note: {stale} damaged or outdated result files were set aside as *.stale", style="yellow")
    ledger = Ledger(out, studies, recipes, fingerprints)
    tasks = ledger.plan()
    run_file = RunFile(out, workers, {study.name: study.repeats for study in studies}, tuple(recipes))
    if not tasks:
        return out
    run_file.write()
    with Progress("reproduce", len(tasks)) as progress:
        printed: set[tuple[str, str]] = set()
        for task, answer in _run(tasks, loader, workers):
            ledger.enter(task, answer)
            run_file.write()
            for line in answer.warnings:
                kind = (task.study.name, line.partition(":")[0])  # once per study: the numbers in it differ by split
                if kind not in printed:
                    printed.add(kind)
                    console.print(f"note: {task.study.name}: {line}", style="yellow", markup=False, soft_wrap=True)
            progress.update(progress.completed + 1, f"{task}: {answer.seconds:.1f} s per repeat")
    run_file.write(finished=True)
    return out
