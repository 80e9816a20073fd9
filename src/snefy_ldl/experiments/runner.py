"""Running the experiments: worker processes, a progress bar, and records that are there as soon as they are known.

Kill it at any moment and run it again: it goes on with what is missing. The figures depend on the repeat's number and
the settings, not on the number of processes or on interruptions.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # scikit-learn brings it

from snefy_ldl.datasets.named import Dataset, load_dataset
from snefy_ldl.errors import InputError, SnefyError
from snefy_ldl.experiments.config import RECIPES, Study
from snefy_ldl.experiments.records import RunFile, data_digest, fingerprint, tidy
from snefy_ldl.experiments.tasks import Answer, Ledger, Loader, Task, compute

__all__ = ["reproduce"]


def reproduce(
    studies: Sequence[Study],
    out: str | Path,
    *,
    recipes: Sequence[str] = RECIPES,
    repeats: int | None = None,
    jobs: int | None = None,
    loader: Loader = load_dataset,
) -> Path:
    """Run studies into a folder, one JSON a repeat; what is there already is not run again.

    Args:
        studies: what to run, e.g. ``config.select(["table3"])``.
        out: folder; ``results/<study>/<recipe>/<repeat>.json`` and ``run.json`` go into it.
        recipes: ``"paper"``, ``"default"`` or both.
        repeats: repeats of every study; by default each study's own number.
        jobs: worker processes, one thread each; all cores by default. With one, no process is started.
        loader: gives a data set by its name; with several jobs it must be importable.

    Returns:
        The folder.
    """
    out = Path(out)
    studies = _checked(studies, out, recipes, repeats, jobs)
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
    if ledger.kept and run_file.code_before not in (None, run_file.code):
        console.print(
            f"note: the code has changed since the last run into {out}; {ledger.kept} results of before are kept. "
            "Delete the folder to run them again.",
            style="yellow",
            soft_wrap=True,
        )
    if not tasks:
        return out
    run_file.write()
    with _bar(console, tasks) as advance:
        alone = workers == 1
        answers = _run_here(tasks, loader) if alone else _run_in_workers(tasks, loader, min(workers, len(tasks)))
        said: set[tuple[str, str]] = set()
        for task, answer in answers:
            ledger.enter(task, answer)
            run_file.write()
            for line in answer.warnings:
                kind = (task.study.name, line.partition(":")[0])  # once a study: the numbers in it differ by split
                if kind not in said:
                    said.add(kind)
                    console.print(f"note: {task.study.name}: {line}", style="yellow", markup=False, soft_wrap=True)
            advance(task, answer)
    run_file.write(finished=True)
    return out


def _checked(
    studies: Sequence[Study], out: Path, recipes: Sequence[str], repeats: int | None, jobs: int | None
) -> list[Study]:
    if not studies:
        raise InputError("no study was named; config.select(['all']) gives every one.")
    if not recipes or any(recipe not in RECIPES for recipe in recipes):
        raise InputError(f"recipes={list(recipes)!r}: use {' or '.join(RECIPES)}, or both.")
    for name, value in (("repeats", repeats), ("jobs", jobs)):
        if value is not None and value < 1:
            raise InputError(f"{name} must be at least 1; got {value}.")
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file; name a folder for the results.")
    return [study if repeats is None else replace(study, repeats=repeats) for study in studies]


# -- doing the work ----------------------------------------------------------------------------------------------------


def _run_here(tasks: Sequence[Task], loader: Loader) -> Iterator[tuple[Task, Answer]]:
    """One task after another in this process, on one thread as in a worker."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            for task in tasks:
                with _naming(task):
                    answer = _work(task, loader)
                yield task, answer
    finally:
        torch.set_num_threads(threads)


def _run_in_workers(tasks: Sequence[Task], loader: Loader, workers: int) -> Iterator[tuple[Task, Answer]]:
    """Tasks as they finish, in any order."""
    before = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _start_worker)
    finished = False
    try:
        waiting = {pool.submit(_work, task, loader): task for task in tasks}
        for future in as_completed(waiting):
            task = waiting[future]
            with _naming(task):
                answer = future.result()
            yield task, answer
        finished = True
    finally:
        # on the way out of an error or Ctrl-C nobody waits for tasks whose answers nobody will read
        pool.shutdown(wait=finished, cancel_futures=True)
        if not finished:
            for child in set(multiprocessing.active_children()) - before:
                child.terminate()


@contextmanager
def _naming(task: Task) -> Iterator[None]:
    """Say which task an error comes from."""
    try:
        yield
    except BrokenExecutor:
        raise SnefyError(
            "a worker process ended before its time, perhaps for want of memory. What was finished is kept: "
            "run the same command again with fewer --jobs."
        ) from None
    except Exception:
        Console(stderr=True).print(f"{task} failed; what was finished before is kept.", style="red", markup=False)
        raise


def _start_worker() -> None:
    """One thread a worker; Ctrl-C is the parent's to handle; and a worker ends when its parent does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    threadpool_limits(1)
    parent = multiprocessing.parent_process()
    if parent is not None:

        def follow() -> None:
            parent.join()
            os._exit(1)

        threading.Thread(target=follow, daemon=True).start()


def _work(task: Task, loader: Loader) -> Answer:
    return compute(task, _data(loader, task.study.dataset))


@lru_cache(maxsize=2)
def _data(loader: Loader, name: str) -> Dataset:
    return loader(name)


# -- what is shown -----------------------------------------------------------------------------------------------------


@contextmanager
def _bar(console: Console, tasks: Sequence[Task]) -> Iterator[Callable[[Task, Answer], None]]:
    """A bar with the time left on a terminal, and a line a task elsewhere."""
    total, began, done = sum(task.cost for task in tasks), time.perf_counter(), [0.0, 0.0]
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"))
    columns = (*columns, TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())  # type: ignore[assignment]
    with Progress(*columns, console=console, disable=not console.is_terminal, speed_estimate_period=300) as bar:
        shown = bar.add_task("reproduce", total=total)

        def advance(task: Task, answer: Answer) -> None:
            done[0] += 1
            done[1] += task.cost
            bar.update(shown, advance=task.cost, description=task.study.name)
            if not console.is_terminal:
                spent = time.perf_counter() - began
                left = spent * (total - done[1]) / done[1]
                line = f"{done[0]:.0f}/{len(tasks)} {task}: {answer.seconds:.1f} s a repeat; {spent:.0f} s so far"
                console.print(f"{line}, about {left:.0f} s left", markup=False, highlight=False, soft_wrap=True)

        yield advance
