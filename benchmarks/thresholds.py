"""Is each threshold of a fit noticed? Every number against a smaller and a larger one, on the tables where it acts.

    SNEFY_LDL_DATA=... python benchmarks/thresholds.py --jobs 16 --minutes 7     # goes on where it stopped
    python benchmarks/thresholds.py --plan                                       # fits and CPU seconds per part
    python benchmarks/thresholds.py --only members trees --splits 1              # some names, or parts, alone
    python benchmarks/thresholds.py --report                                     # results/thresholds.md from the .json

Files go to ``OUT``, by default ``results``.

A row of the result is one threshold and one neighbour: the mean difference of the held-out log likelihood, neighbour
minus value, over tables and splits, with its paired standard error; the ratios of KL divergence and of CPU seconds.
Tables on which the neighbour changes nothing are left out of the means; each table's own are in the JSON file.
"Better" is a neighbour that is ahead of the value by two standard errors, "worse" one that is as far behind; "alike"
is one within .01 nats and 10 % of the time; "noisy" needs more splits; "no effect" changes nothing on any table. A
threshold without a distinct neighbour goes: the section after the tables names those that went, and what their
neighbours gave.
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import json
import math
import os
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before NumPy and torch are loaded: every fit is timed on one thread

import numpy as np
import torch
from scipy.special import xlogy

import common
import density_data
import groups as real_groups
import votes_models
from refresh import MODELS, SOURCE, code_digest
from snefy_ldl import AutoLDL, GroupedLDL, LogRatioLDL, SnefyLDL
from snefy_ldl._internal.files import write_json
from snefy_ldl.datasets import make_city_districts, make_groups
from snefy_ldl.datasets.streams import Stream
from snefy_ldl.snefy import fit_many, fit_stream
from snefy_ldl.training.policy import POLICY
from snefy_ldl.votes.held_out import log_likelihood
from threshold_list import GONE, THRESHOLDS, Threshold

OUT = Path(os.environ.get("OUT", common.RESULTS))
#: Rows that are tested on, at most.
TEST_ROWS = 1000
#: The standard error of one value alone; JSON holds no infinity.
UNKNOWN = 1e9
#: CPU seconds of a fit on one core of 2024, by kind of case; by rows for the large ones.
SECONDS = {"square": 1.2, "votes": 3.0, "groups": 1.2, "ratios": 1.2, "auto": 2.5, "passes": 0.5, "stream": 0.5}
SECONDS |= {"many": 5.0}


# -- cases: "kind table@rows", with /votes per item, and words ---------------------------------------------------------


class Case(NamedTuple):
    """Training rows, and rows to test on."""

    X: Any
    labels: Any
    X_test: Any
    labels_test: Any
    groups: Any = None
    groups_test: Any = None


def parse(case: str) -> tuple[str, str, int, int, list[str]]:
    """Kind, table, rows (0 for all), votes per item, and further words of a case."""
    kind, table, *words = case.split()
    table, _, rows = table.partition("@")
    table, _, votes = table.partition("/")
    return kind, table, int(rows or 0), int(votes or 0), words


@lru_cache(maxsize=6)
def load(case: str, split: int) -> Case:
    """The rows of a case on one split."""
    kind, table, rows, votes, words = parse(case)
    random = np.random.default_rng([split, 31])
    if table == "city":
        data = make_city_districts(rows + TEST_ROWS, random_state=split)
        return Case(data.X[:rows], data.D[:rows], data.X[rows:], data.D[rows:])
    if table == "made":  # as many rows more of each group, and as many new groups
        effect, size, labels = float(words[0]), 10, int(words[1]) if words[1:] else 4
        many = max(1, rows // size)
        data = make_groups(2 * many, 2 * size, n_labels=labels, effect=effect, random_state=split)
        train = (data.groups < many) & (np.arange(len(data.X)) % (2 * size) < size)
        parts = [part[mask] for mask in (train, ~train) for part in (data.X, data.D)]
        return Case(*parts, data.groups[train], data.groups[~train])
    if kind == "groups":
        X, D, g = real_groups.load(" ".join([table, *words]))
        train, test = real_groups.halves(g, split, by_group=False)
        train = train[: rows or None]
        return Case(X[train], D[train], X[test], D[test], g[train], g[test])
    if kind == "votes":
        X, counts, blocks = votes_models.load(table, False)
        train, test = votes_models.split_rows(blocks, split)
        train, test = random.permutation(train)[: rows or None], test[:TEST_ROWS]
        seen = counts[train]
        if votes:
            seen = votes_models.draw_votes(seen, votes, random).astype(float)
        return Case(X[train], seen, X[test], counts[test])
    X, D, X_test, D_test, _, _ = density_data.split(table, "zeros" if "zeros" in words else "plain", split)
    chosen = random.permutation(len(X))[: rows or None]
    return Case(X[chosen], D[chosen], X_test[:TEST_ROWS], D_test[:TEST_ROWS])


def blocks_of(case: Case, size: int = 500) -> Iterator[tuple[Any, Any]]:
    """The training rows in blocks."""
    for start in range(0, len(case.X), size):
        yield case.X[start : start + size], case.labels[start : start + size]


def fit(case: Case, kind: str, words: list[str], split: int, settings: dict[str, Any]) -> Any:
    """A fitted model, or several of them."""
    square = SnefyLDL(random_state=split, device="cpu", **(settings if kind not in ("ratios", "auto") else {}))
    if kind == "votes":
        return square.set_params(guides=None if "unguided" in words else "auto").fit(case.X, counts=case.labels)
    if kind == "groups":
        return GroupedLDL(square).fit(case.X, case.labels, groups=case.groups)
    if kind == "passes":
        for X, D in blocks_of(case):
            square.partial_fit(X, D)
        return square
    if kind == "stream":
        return fit_stream(square.set_params(epochs=1 if "once" in words else 5), Stream(lambda: blocks_of(case)))
    if kind == "many":
        rows = [np.arange(len(case.X))] * 24
        seeds = [{"random_state": k} for k in range(len(rows))]
        return fit_many(square.set_params(guides=None), case.X, case.labels, rows, seeds, n_jobs=1)[0]
    if kind == "ratios":
        return LogRatioLDL(random_state=split, **settings).fit(case.X, case.labels)
    if kind == "auto":
        return AutoLDL(random_state=split).fit(case.X, case.labels)
    return square.fit(case.X, case.labels)


def score(model: Any, case: Case, kind: str) -> dict[str, float]:
    """Mean log likelihood of the test rows, and KL divergence of their predicted means."""
    context = {} if case.groups is None else {"groups": case.groups_test}
    truth = case.labels_test
    if kind == "votes":
        dist = model.predict_dist(case.X_test)
        value, mean = log_likelihood(dist, truth), dist.mean.numpy()
        truth = truth / truth.sum(1, keepdims=True)
    else:
        value = model.log_prob(case.X_test, truth, **context)
        mean = np.asarray(model.predict(case.X_test, **context))
    divergence = (xlogy(truth, truth) - xlogy(truth, np.maximum(mean, 1e-12))).sum(1)
    return {"log_likelihood": float(np.mean(np.asarray(value))), "kl": float(divergence.mean())}


# -- another value ---------------------------------------------------------------------------------------------------


def functions(module: Any) -> Iterator[Any]:
    """Functions of a module, and the constructors and methods of its classes."""
    for value in [*vars(module).values()]:
        for one in vars(value).values() if inspect.isclass(value) else [value]:
            if inspect.isfunction(one):
                yield one


@contextmanager
def replaced(threshold: Threshold, value: Any) -> Iterator[dict[str, Any]]:
    """Let every module of the library see another value; yields what the constructor gets instead."""
    if threshold.home in ("SnefyLDL", "LogRatioLDL"):
        yield {threshold.name: value}
        return
    name, new, old = threshold.name, value, value_of(threshold)
    if threshold.home == "policy":
        name, new, old = "POLICY", dataclasses.replace(POLICY, **{threshold.name: value}), POLICY
    modules = [module for key, module in sys.modules.items() if key.startswith("snefy_ldl")]
    holders = [module for module in modules if vars(module).get(name) is old]
    defaults: list[tuple[Any, Any]] = []
    if isinstance(old, tuple):  # equal numbers may be one object, whatever they stand for
        for function in {id(one): one for module in holders for one in functions(module)}.values():
            if any(one is old for one in function.__defaults__ or ()):
                defaults.append((function, function.__defaults__))
                function.__defaults__ = tuple(new if one is old else one for one in function.__defaults__)
    try:
        for module in holders:
            setattr(module, name, new)
        yield {}
    finally:
        for module in holders:
            setattr(module, name, old)
        for function, before in defaults:
            function.__defaults__ = before


def value_of(threshold: Threshold) -> Any:
    """What the library uses."""
    if threshold.home == "policy":
        return getattr(POLICY, threshold.name)
    if threshold.home in ("SnefyLDL", "LogRatioLDL"):
        return {"SnefyLDL": SnefyLDL, "LogRatioLDL": LogRatioLDL}[threshold.home]().get_params()[threshold.name]
    return getattr(sys.modules[f"snefy_ldl.{threshold.home}"], threshold.name)


def shown(threshold: Threshold) -> str:
    """What the library uses, in a few characters."""
    value = value_of(threshold)
    text = str(np.round(value, 3).tolist() if isinstance(value, np.ndarray) else value)
    return text if len(text) < 40 else f"{text[:37]}..."


# -- runs ------------------------------------------------------------------------------------------------------------


class Job(NamedTuple):
    """One fit; ``name`` and ``label`` are empty for that with the library's values."""

    case: str
    split: int
    name: str = ""
    label: str = ""

    @property
    def seconds(self) -> float:
        """Expected CPU seconds."""
        kind, _, rows, _, _ = parse(self.case)
        return 5.0 + rows * 6e-4 if rows >= 5000 and kind in ("square", "groups") else SECONDS[kind]


def run(job: Job, stop: float) -> dict[str, Any] | None:
    """The result of one fit; None if it is too late to begin."""
    if time.time() > stop:
        return None
    kind, _, _, _, words = parse(job.case)
    record: dict[str, Any] = job._asdict()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            case = load(job.case, job.split)
            threshold = THRESHOLDS.get(job.name)
            started = time.process_time()
            if threshold is None:
                model = fit(case, kind, words, job.split, {})
            else:
                with replaced(threshold, threshold.others[job.label]) as settings:
                    model = fit(case, kind, words, job.split, settings)
            record["seconds"] = time.process_time() - started
            record |= score(model, case, kind)
            if not all(math.isfinite(record[key]) for key in ("log_likelihood", "kl")):
                raise ValueError("a figure is not finite")
        except Exception as error:
            return job._asdict() | {"error": f"{type(error).__name__}: {error}"[:200]}
    return record


def warm_up() -> None:
    """Load what a first fit loads, so that no time has it."""
    torch.set_num_threads(1)
    for kind in ("square", "ratios"):
        run(Job(f"{kind} city@40", 0), math.inf)


def plan(names: list[str], splits: int | None) -> list[Job]:
    """Every fit that some thresholds, or parts, need, the longest first and each base before its neighbours."""
    jobs = {}
    for threshold in THRESHOLDS.values():
        if names and not {threshold.key, threshold.name, threshold.part} & set(names):
            continue
        for case, n_splits in threshold.cases:
            for split in range(min(splits or n_splits, n_splits)):
                jobs[Job(case, split)] = None
                for label in threshold.others:
                    jobs[Job(case, split, threshold.key, label)] = None
    return sorted(jobs, key=lambda job: (-job.seconds, job.name != ""))


def key_of(record: dict[str, Any]) -> Job:
    return Job(*(record[field] for field in Job._fields))


# -- report ----------------------------------------------------------------------------------------------------------


def compare(threshold: Threshold, label: str, value: str, found: dict[Job, dict[str, Any]]) -> dict[str, Any]:
    """A row: one threshold, its value when it was measured, and one neighbour."""
    pairs, expected, errors = defaultdict(list), 0, set()
    for case, n_splits in threshold.cases:
        for split in range(n_splits):
            expected += 1
            base, other = found.get(Job(case, split)), found.get(Job(case, split, threshold.key, label))
            if base is None or other is None:
                continue
            errors |= {one["error"] for one in (base, other) if "error" in one}
            if "error" not in base and "error" not in other:
                pairs[case].append((base, other))
    acts = [case for case, own in pairs.items() if any(a["log_likelihood"] != b["log_likelihood"] for a, b in own)]
    row: dict[str, Any] = {"part": threshold.part, "threshold": threshold.key, "value": value}
    row |= {"neighbour": label, "pairs": sum(map(len, pairs.values())), "expected": expected, "acts": acts}
    row |= {"tables": len(pairs), "errors": sorted(errors)}
    used = [pair for case in acts or pairs for pair in pairs[case]]
    if not used:
        return row | {"verdict": "failed" if errors else "not run"}
    gain, error = mean_and_error([b["log_likelihood"] - a["log_likelihood"] for a, b in used])
    worse, worse_error = mean_and_error([math.log(max(b["kl"], 1e-12) / max(a["kl"], 1e-12)) for a, b in used])
    times = float(np.median([b["seconds"] / max(a["seconds"], 1e-9) for a, b in used]))
    row |= {"difference": gain, "error": error, "kl_ratio": math.exp(worse), "time_ratio": times}
    row["wins"] = f"{sum(b['log_likelihood'] > a['log_likelihood'] for a, b in used)}/{len(used)}"
    row["by_table"] = {
        case: mean_and_error([b["log_likelihood"] - a["log_likelihood"] for a, b in pairs[case]]) for case in acts
    }
    pace = "slower" if times > 1.1 else "faster" if times < 1 / 1.1 else ""
    if not acts:
        words = ["no effect", pace and f"but {pace}"]
    elif abs(gain) > 2.0 * error:
        words = ["better" if gain > 0.0 else "worse", pace]
    elif abs(worse) > 2.0 * worse_error and abs(worse) > 0.01:
        words = ["worse mean" if worse > 0.0 else "better mean", pace]
    elif abs(gain) >= 0.01:
        words = ["noisy", pace]
    else:
        words = [pace or "alike"]
    return row | {"verdict": ", ".join(filter(None, words))}


def with_error(mean: float, error: float, digits: int) -> str:
    """A mean as the page shows it, with its error if it has one."""
    return f"{mean:+.{digits}f}" + (f" ± {error:.{digits}f}" if error < UNKNOWN else "")


def mean_and_error(values: list[float]) -> tuple[float, float]:
    """Mean and its standard error, which one value alone does not have."""
    error = float(np.std(values, ddof=1) / len(values) ** 0.5) if len(values) > 1 else UNKNOWN
    return float(np.mean(values)), error


def report(content: dict[str, Any]) -> None:
    """Write both files; the numbers first, under a temporary name."""
    found = {key_of(record): record for record in content["records"]}
    values = content.get("values", {})
    rows = [
        compare(one, label, values.get(one.key, shown(one)), found)
        for one in THRESHOLDS.values()
        for label in one.others
    ]
    write_json(OUT / "thresholds.json", content | {"rows": rows})
    here = ", ".join(f"{key} {value}" for key, value in content["machine"].items())
    here += "" if content.get("library") == library() else "; measured with an earlier build"
    lines = ["# Thresholds against their neighbours", "", f"`benchmarks/thresholds.py`. Machine: {here}.", ""]
    lines += [part.strip() for part in (__doc__ or "").split("\n\n")[3:]]
    for part in dict.fromkeys(one.part for one in THRESHOLDS.values()):
        own = [row for row in rows if row["part"] == part and row["verdict"] != "not run"]
        lines += ["", f"## {part}", ""] if own else []
        lines += [common.markdown([cells(row) for row in own])] if own else []
    lines += ["", "## Gone", "", *(gone(name, found) for name in GONE), "", "## Not run", ""]
    lines += [f"- `{one.key}` = {shown(one)}: {one.note}" for one in THRESHOLDS.values() if not one.others]
    for part in dict.fromkeys(one.part for one in THRESHOLDS.values()):
        own = dict.fromkeys(row["threshold"] for row in rows if row["part"] == part and row["verdict"] == "not run")
        names = ", ".join(f"`{key}` = {shown(THRESHOLDS[key])}" for key in own)
        lines += [f"- {part}, for which no time was left: {names}."] if own else []
    path = OUT / "thresholds.md"
    path.with_suffix(".tmp").write_text("\n".join(lines) + "\n")
    path.with_suffix(".tmp").replace(path)


def library() -> str:
    """Digest of what is measured."""
    return code_digest(*(SOURCE / name for name in MODELS))


def gone(name: str, found: dict[Job, dict[str, Any]]) -> str:
    """A threshold that went: what its neighbours gave, if they were run, and what is in its place."""
    value, words = GONE[name]
    own = [job for job in found if job.name == name]
    cases = tuple({job.case: 1 + max(one.split for one in own if one.case == job.case) for job in own}.items())
    one, parts = Threshold("", "policy", name, dict.fromkeys(job.label for job in own), cases), []
    for row in (compare(one, label, value, found) for label in one.others):
        nats = f"{with_error(row['difference'], row['error'], 3)} nats" if row["acts"] else "no effect"
        parts.append(f"{row['neighbour']}: {nats}, time ratio {row['time_ratio']:.2f}")
    return f"- `{name}` = {value}. {'; '.join(parts) + '. ' if parts else ''}{words}"


def cells(row: dict[str, Any]) -> dict[str, Any]:
    """A row as the page shows it."""
    left, value = row["expected"] - row["pairs"] - len(row["errors"]), shown(THRESHOLDS[row["threshold"]])
    value = row["value"] + ("" if row["value"] == value else f" (now {value})")
    first = {"threshold": f"`{row['threshold']}`", "value": value, "neighbour": row["neighbour"]}
    verdict = row["verdict"] + (f" (unfinished: {row['pairs']} of {row['expected']})" if left > 0 else "")
    verdict += f" ({row['errors'][0]})" if row["errors"] else ""
    empty = dict.fromkeys(("nats", "ahead", "KL ratio", "time ratio", "acts on"), "")
    if "difference" not in row:
        return first | empty | {"verdict": verdict}
    numbers = {"nats": with_error(row["difference"], row["error"], 4), "ahead": row["wins"]}
    numbers |= {"KL ratio": f"{row['kl_ratio']:.3f}", "time ratio": f"{row['time_ratio']:.2f}"}
    numbers |= {"acts on": f"{len(row['acts'])} of {row['tables']}"}
    return first | numbers | {"verdict": verdict}


def measure(jobs: list[Job], processes: int, stop: float, keep: Callable[[dict[str, Any]], None]) -> None:
    """Run the jobs side by side, each result to be kept as it comes."""
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn"), initializer=warm_up) as pool:
        for done in as_completed([pool.submit(run, job, stop) for job in jobs]):
            if (record := done.result()) is not None:
                keep(record)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=1e6, help="start nothing new after this time")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="thresholds, or parts")
    parser.add_argument("--splits", type=int, help="at most so many splits of each table")
    parser.add_argument("--again", action="store_true", help="measure what is there again")
    parser.add_argument("--plan", action="store_true", help="only count the fits")
    parser.add_argument("--report", action="store_true", help="only write the tables")
    asked = parser.parse_args()
    stop = time.time() + 60.0 * asked.minutes
    parts = {one.part for one in THRESHOLDS.values()}
    unknown = set(asked.only) - parts - {name for one in THRESHOLDS.values() for name in (one.key, one.name)}
    if unknown:
        parser.error(f"no threshold or part is called {', '.join(sorted(unknown))}; parts: {', '.join(sorted(parts))}")
    if asked.plan:
        done: set[Job] = set()
        for part in dict.fromkeys(one.part for one in THRESHOLDS.values()):
            jobs = [job for job in plan([part], asked.splits) if job not in done]
            done |= set(jobs)
            print(f"{part:12}{len(jobs):6} fits {sum(job.seconds for job in jobs):8.0f} CPU seconds")
        return
    file = OUT / "thresholds.json"
    content = json.loads(file.read_text()) if file.exists() else {}
    if not asked.report and content.get("library") != library():  # of other code: nothing of it can be compared
        content = {"library": library(), "records": []}
    if not asked.report:
        values = {one.key: shown(one) for one in THRESHOLDS.values()}
        content |= {"machine": common.machine(1), "values": values}
    jobs = [] if asked.report else plan(asked.only, asked.splits)
    known = set() if asked.again else {key_of(record) for record in content["records"]}
    jobs, saved = [job for job in jobs if job not in known], time.time()
    found = {key_of(record): record for record in content["records"]}

    def keep(record: dict[str, Any]) -> None:
        nonlocal saved
        found[key_of(record)] = record
        content["records"] = list(found.values())
        if time.time() - saved > 15.0:
            report(content)
            saved = time.time()
            print(f"{len(found)} fits, {sum(one.get('seconds', 0.0) for one in found.values()):.0f} s", flush=True)

    if jobs:
        measure(jobs, asked.jobs, stop, keep)
    report(content)
    if OUT == common.RESULTS:
        common.stamp("thresholds.json", "thresholds.md", measured=not asked.report)
    print((OUT / "thresholds.md").read_text())


if __name__ == "__main__":
    main()
