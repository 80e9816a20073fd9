"""How long each kind of law makes people wait: fits, the first interval, many rows, moments, draws; one thread.

    python benchmarks/laws.py                     # every data set and law; results/laws.json and .md
    python benchmarks/laws.py --jobs 16           # so many cases side by side, each on one thread
    python benchmarks/laws.py --folder cases      # keeps a file per case there, and goes on where it stopped
    python benchmarks/laws.py --only SJAFFE       # one data set, a made-up table or "report"; prints, keeps nothing
    python benchmarks/laws.py --quick             # small tables and few draws, to see that it runs; keeps nothing

The real tables are looked for in ``SNEFY_LDL_DATA`` and split as in :mod:`density_data` (half of the rows train, split
0, zeros as they are). Every case runs in processes of its own, which are stopped when a question takes longer than the
limit. Only the public interface is used, so that two versions of the library can be compared.

A law that moves has no setting that forces it. Guides that already know the training labels (trees that are fitted
before and not fitted again) lead to it, with one epoch where thirty do not; the table says which law came out.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import re
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

import common
from density_data import COMPOSITION, LDL, split

#: What the processes that are timed are started with: one thread, and no graphics card.
ALONE_ON_A_CORE = {name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
ALONE_ON_A_CORE["CUDA_VISIBLE_DEVICES"] = ""
#: Seconds that a question may take, that a fit or a report may take, and that a process may take to start.
LIMIT, LONG_LIMIT, START_LIMIT = 60.0, 900.0, 120.0
QUICK_LIMIT = 10.0
#: A question below so many seconds is asked three times, and the median counts.
CHEAP = 5.0
LEVELS = (0.05, 0.5, 0.95)
#: Draws that quantiles are compared with, rows that they are made for, and seconds after which there are enough.
CHECK_DRAWS, CHECK_ROWS, CHECK_SECONDS = 200_000, 3, 40.0
BLOCK = 20_000
REAL = (*LDL, *COMPOSITION, "HouseholdExp", "Fairclough_timeuse", "Jura")
FORCED = ("Movie", "Natural_Scene", "SBU_3DFE", "SJAFFE")
FORCED_ROWS = 2000
ZERO_TABLE, WIDE_TABLE = "made-up 800 x 11", "made-up 1,250 x 243"
QUICK = ("SJAFFE", "ArcticLake", ZERO_TABLE)

FIT, FIRST, SAVE, LOADED = "fit", "first", "save", "loaded"
HUNDRED, THOUSAND, MOMENTS, DRAWS, CHECK = "hundred", "thousand", "moments", "draws", "check"
#: Questions in the order in which one process is asked them; :data:`LOADED` is asked of fresh ones.
QUESTIONS = (FIT, FIRST, SAVE, HUNDRED, THOUSAND, MOMENTS, DRAWS, CHECK)
#: What takes at least as long as a question, and is not asked where that takes longer than the limit.
LONGER = {FIRST: (HUNDRED, THOUSAND, CHECK), HUNDRED: (THOUSAND,)}


# -- cases -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A table, and settings of the model by their name."""

    data: str
    settings: str

    @property
    def file_name(self) -> str:
        return re.sub(r"\W+", "_", f"{self.data} {self.settings}").strip("_") + ".json"


def cases_of(only: str | None, quick: bool) -> list[Case]:
    """Everything to be measured, the largest tables first so that the end is not one slow case."""
    kept = {name for name in (*REAL, ZERO_TABLE, WIDE_TABLE) if only in (None, name) and (not quick or name in QUICK)}
    if not os.environ.get("SNEFY_LDL_DATA"):
        print("the real tables are left out: SNEFY_LDL_DATA does not say where they are.")
        kept -= set(REAL)
    cases = [Case(name, "default") for name in (*REAL, WIDE_TABLE, ZERO_TABLE) if name in kept]
    cases += [Case(name, settings) for name in FORCED if name in kept for settings in FORCED_SETTINGS]
    cases += [Case(ZERO_TABLE, settings) for settings in PLAIN_SETTINGS if ZERO_TABLE in kept]
    first = ("IMDb_movies", "Movie", "ECAM_infant_microbiome", "GEMAS_elements", "Natural_Scene")
    return sorted(cases, key=lambda case: first.index(case.data) if case.data in first else len(first))


#: Changes of ``SnefyLDL(random_state=0)``.
FORCED_SETTINGS = {'zeros="model"': {"zeros": "model"}, 'centre="geometric"': {"centre": "geometric"}, "moving": {}}
ALONE = {"guides": None, "centre": None}
PLAIN_SETTINGS = {
    'zeros="shrink"': {"zeros": "shrink"},
    'zeros="model"': {"zeros": "model"},
    'no guides, zeros="shrink"': ALONE | {"zeros": "shrink"},
    'no guides, zeros="model"': ALONE | {"zeros": "model"},
}


def table_of(case: Case) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Training features and labels, and the features that questions are about."""
    if case.data == ZERO_TABLE:
        X, D = zero_table(1600)
        return X[:800], D[:800], X[800:]
    if case.data == WIDE_TABLE:
        rng = np.random.default_rng(1)
        X = rng.normal(size=(2500, 243))
        shares = np.exp(X[:, :12] @ rng.normal(size=(12, 6)) / 6.0)
        D = rng.standard_gamma(60.0 * shares / shares.sum(1, keepdims=True) + 0.5)
        return X[:1250], (D / D.sum(1, keepdims=True))[:1250], X[1250:]
    X, D, X_test, *_ = split(case.data, "zeros", 0)
    rows = slice(FORCED_ROWS if case.settings in FORCED_SETTINGS else None)
    return X[rows], D[rows], X_test


def zero_table(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Eleven features and three labels, of which a row may lack one or two."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, 11))
    shares = np.exp(0.5 * X[:, :6] @ rng.normal(size=(6, 3)))
    D = rng.standard_gamma(8.0 * shares / shares.sum(1, keepdims=True) + 0.5)
    absent = rng.random(D.shape) < 1 / (1 + np.exp(1.5 + X[:, 5:8]))
    D[absent & (D.max(1, keepdims=True) > D)] = 0.0
    return X, D / D.sum(1, keepdims=True)


def changes_of(case: Case, X: np.ndarray, D: np.ndarray) -> list[dict[str, Any]]:
    """Settings to fit with, in turn, until one leads to the law that the case is about."""
    if case.settings == "default":
        return [{}]
    if case.settings != "moving":
        return [(FORCED_SETTINGS | PLAIN_SETTINGS)[case.settings]]
    from sklearn.ensemble import ExtraTreesRegressor
    from sklearn.frozen import FrozenEstimator

    trees = ExtraTreesRegressor(50, min_samples_leaf=2, max_features="sqrt", bootstrap=True, random_state=0)
    guides = [FrozenEstimator(trees.fit(X, D))]
    return [{"guides": guides}, {"guides": guides, "epochs": 1}]


# -- in a process of its own: fits a model, or loads it, and answers questions ----------------------------------------


def fit(case: Case) -> tuple[Any, dict[str, Any]]:
    """The model of a case, and the seconds of its last fit."""
    from snefy_ldl import SnefyLDL

    X, D, _ = table_of(case)
    for changes in changes_of(case, X, D):
        start, busy = time.perf_counter(), time.process_time()
        model = SnefyLDL(random_state=0, **changes).fit(X, D)
        facts = {"seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - busy}
        if case.settings != "moving" or model.inputs_ == "moving":
            break
    facts |= {"rows": X.shape[0], "features": X.shape[1], "labels": D.shape[1]}
    facts |= {"inputs": model.inputs_, "centre": model.centre_ is not None, "zeros": model.zero_policy_.mode}
    return model, facts | {"members": len(model.training_["best_epoch"]), "epochs": model.epochs}


def clock(work, again=True) -> dict[str, Any]:
    """Median seconds of three calls, or the seconds of one where that is not cheap or must not be repeated."""
    times = []
    while not times or (again and len(times) < 3 and times[0][0] < CHEAP):
        start, busy = time.perf_counter(), time.process_time()
        work()
        times.append((time.perf_counter() - start, time.process_time() - busy))
    wall, cpu = (float(np.median(column)) for column in zip(*times))
    return {"seconds": wall, "cpu_seconds": cpu, "repeats": len(times)}


def answer_to(question: str, model: Any, X: np.ndarray, folder: Path, draws: int) -> dict[str, Any]:
    if question == CHECK:
        return deviation(model, X[:CHECK_ROWS], draws)
    work = {
        FIRST: lambda: model.predict_interval(X[:1]),
        LOADED: lambda: model.predict_interval(X[:1]),
        SAVE: lambda: model.save(folder / "model"),
        HUNDRED: lambda: model.predict_interval(X[1:101]),
        THOUSAND: lambda: model.predict_interval(X[:1000]),
        MOMENTS: lambda: model.predict_mean_var(X[:1000]),
        DRAWS: lambda: model.sample(X[:10], 1000, random_state=0),
    }[question]
    return clock(work, question not in (FIRST, LOADED, SAVE))


def deviation(model: Any, X: np.ndarray, most: int) -> dict[str, Any]:
    """How far quantiles are from exact draws: the largest distance of a level from the draws below it, in its errors.

    A quantile may lie on an atom, a share of exactly zero say; it is right if no more than its level lies below it and
    no less at or below it.
    """
    quantiles = model.predict_quantiles(X, LEVELS)  # (N, L, levels)
    below, up_to = np.zeros(quantiles.shape), np.zeros(quantiles.shape)
    start, done = time.perf_counter(), 0
    while done < most and (done == 0 or time.perf_counter() - start < CHECK_SECONDS):
        drawn = model.sample(X, min(BLOCK, most - done), random_state=1 + done)[..., None]  # (draws, N, L, 1)
        below += (drawn < quantiles).sum(0)
        up_to += (drawn <= quantiles).sum(0)
        done += len(drawn)
    levels = np.array(LEVELS)
    gaps = np.maximum(np.maximum(levels - up_to / done, below / done - levels), 0.0)
    errors = gaps / np.sqrt(levels * (1 - levels) / done)
    seconds = time.perf_counter() - start
    # a right answer stays below this with probability 0.99, whatever the number of quantiles
    allowed = float(stats.norm.isf(0.01 / 2 / errors.size))
    return {"errors": float(errors.max()), "allowed": allowed, "draws": done, "seconds": seconds}


def answer(folder: Path, questions: list[str], draws: int) -> None:
    """Answer in turn, a line of JSON for each question when it is begun and when it is answered."""
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    case = Case(**json.loads((folder / "case.json").read_text()))
    X = table_of(case)[2]
    X = np.ascontiguousarray(X[np.arange(1000) % len(X)])  # the rows of a small table come again and again
    model = None
    for question in questions:
        if model is None and question != FIT:
            print(json.dumps({"begun": FIT}), flush=True)
            model = load(folder) if (folder / "model").exists() else fit(case)[0]
        print(json.dumps({"begun": question}), flush=True)
        if question == FIT:
            model, facts = fit(case)
        else:
            facts = answer_to(question, model, X, folder, draws)
        print(json.dumps({"answered": question, **facts}), flush=True)


def load(folder: Path) -> Any:
    from snefy_ldl import SnefyLDL

    return SnefyLDL.load(folder / "model")


# -- asking ----------------------------------------------------------------------------------------------------------


class Child:
    """A process that answers questions; its lines are read with a time limit."""

    def __init__(self, folder: Path, questions: list[str], draws: int):
        command = [sys.executable, __file__, "--draws", str(draws), "--answer", str(folder), *questions]
        self.errors = folder / "errors.txt"
        with self.errors.open("w") as errors:
            options = {"stdout": subprocess.PIPE, "stderr": errors, "env": os.environ | ALONE_ON_A_CORE}
            self.process = subprocess.Popen(command, text=True, **options)
        self.lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self.read, daemon=True).start()

    def read(self) -> None:
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(None)

    def line(self, seconds: float) -> dict[str, Any] | None:
        """The next line; None where the process has ended. Raises :class:`queue.Empty` after so many seconds."""
        text = self.lines.get(timeout=seconds)
        return None if text is None else json.loads(text)

    def why(self) -> str:
        self.process.wait()
        lines = self.errors.read_text().strip().splitlines()
        return lines[-1] if lines else f"exit status {self.process.returncode}"

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


def ask(folder: Path, questions: tuple[str, ...], draws: int, most: float) -> dict[str, dict[str, Any]]:
    """Answers by question; one that takes too long, or breaks, is noted, and the next process goes on after it."""
    answers: dict[str, dict[str, Any]] = {}
    left = list(questions)
    while left:
        child, limit = Child(folder, left, draws), START_LIMIT
        try:
            while left:
                line = child.line(limit)
                if line is None:
                    answers[left.pop(0)] = {"failed": child.why()}
                    break
                if "begun" in line:
                    limit = LONG_LIMIT if line["begun"] == FIT else most + 2.0
                else:
                    limit = START_LIMIT
                    answers[left.pop(0)] = {key: value for key, value in line.items() if key != "answered"}
        except queue.Empty:
            answers[left.pop(0)] = {"over": limit if limit == LONG_LIMIT else most}
        finally:
            child.stop()
        if "seconds" not in answers.get(FIT, {"seconds": 0.0}):
            break  # without a fit there is nothing to ask
        for question, longer in LONGER.items():
            if "over" in answers.get(question, {}):
                answers |= {other: answers[question] for other in left if other in longer}
        left = [question for question in left if question not in answers]
    return answers


def measure(case: Case, draws: int, most: float, kept: Path | None) -> dict[str, Any]:
    """The record of one case, read from a folder where it is there already."""
    file = None if kept is None else kept / case.file_name
    if file is not None and file.is_file():
        return json.loads(file.read_text())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "case.json").write_text(json.dumps({"data": case.data, "settings": case.settings}))
        answers = ask(folder, QUESTIONS, draws, most)
        if (folder / "model").exists():
            loaded = [ask(folder, (LOADED,), draws, most)[LOADED]]
            while len(loaded) < 3 and loaded[0].get("seconds", CHEAP) < CHEAP:
                loaded.append(ask(folder, (LOADED,), draws, most)[LOADED])
            answers[LOADED] = sorted(loaded, key=lambda fact: fact.get("seconds", most))[len(loaded) // 2]
    record = {"data": case.data, "settings": case.settings, "answers": answers}
    if file is not None:
        file.write_text(json.dumps(record, indent=1) + "\n")
    return record


# -- the report ------------------------------------------------------------------------------------------------------


def report_lines(quick: bool) -> list[dict[str, Any]]:
    """Seconds of the commands ``fit`` and ``report`` on the made-up table with zeros, as a person types them."""
    with tempfile.TemporaryDirectory() as folder:
        table, model = f"{folder}/table.csv", f"{folder}/model"
        X, D = zero_table(800)
        names = [f"f{k}" for k in range(X.shape[1])] + ["a", "b", "c"]
        np.savetxt(table, np.hstack([X, D]), "%.17g", ",", header=",".join(names), comments="")
        commands = {
            "snefy-ldl fit": ["fit", table, "--labels", "a,b,c", "--out", model, *(["--epochs", "2"] * quick)],
            "snefy-ldl report --folds 0": ["report", model, table, "--folds", "0", "--out", f"{folder}/page"],
            "snefy-ldl report": ["report", model, table, "--out", f"{folder}/page"],
        }
        lines = []
        for what, words in commands.items():
            start = time.perf_counter()
            try:
                command = [sys.executable, "-m", "snefy_ldl", *words]
                options = {"capture_output": True, "text": True, "timeout": LONG_LIMIT}
                done = subprocess.run(command, env=os.environ | ALONE_ON_A_CORE, **options)
                facts = {"seconds": time.perf_counter() - start}
                if done.returncode:
                    facts = {"failed": (done.stderr.strip().splitlines() or ["no message"])[-1]}
            except subprocess.TimeoutExpired:
                facts = {"over": LONG_LIMIT}
            lines.append({"what": f"{what}, {len(X)} x {X.shape[1]}, 3 labels with zeros", **facts})
            print(f"{lines[-1]['what']} | {seconds_text(facts)}", flush=True)
    return lines


# -- tables ----------------------------------------------------------------------------------------------------------


def seconds_text(fact: dict[str, Any] | None) -> str:
    if fact is None:
        return ""
    if "over" in fact:
        return f"over {fact['over']:.0f} s"
    if "failed" in fact:
        return f"failed: {fact['failed']}"
    return f"{fact['seconds']:.3g}"


def row_of(record: dict[str, Any]) -> dict[str, str]:
    """A line of the table."""
    answers = record["answers"]
    law, check = answers.get(FIT, {}), answers.get(CHECK)
    row = {"data": record["data"], "settings": record["settings"]}
    if "seconds" in law:
        row["rows x features x labels"] = f"{law['rows']:,} x {law['features']:,} x {law['labels']}"
        row["centre"] = "yes" if law["centre"] else "no"
        row |= {"zeros": law["zeros"], "inputs": law["inputs"], "members": str(law["members"])}
    else:
        row |= dict.fromkeys(("rows x features x labels", "centre", "zeros", "inputs", "members"), "")
    row |= {words: seconds_text(answers.get(question)) for question, words in HEADINGS.items()}
    row["off by"] = seconds_text(check)
    if check is not None and "errors" in check:
        row["off by"] = f"{check['errors']:.1f} of {check['allowed']:.1f}"
        row["off by"] += "" if check["draws"] >= CHECK_DRAWS else f" ({check['draws']:,} draws)"
    return row


HEADINGS = {
    FIT: "fit",
    FIRST: "first interval, after fit",
    LOADED: "first interval, loaded",
    HUNDRED: "100 further rows",
    THOUSAND: "1,000 rows",
    MOMENTS: "mean and variance, 1,000 rows",
    DRAWS: "1,000 draws, 10 rows",
}
NOTES = """\
Seconds by the clock, on one thread (torch and BLAS), without a graphics card; medians of three where one takes less
than {cheap:.0f} s, except for fits and for the first interval after one. "over {limit:.0f} s": stopped then. Settings
are changes of `SnefyLDL(random_state=0)`; {forced:,} training rows at most where a law is forced. "moving": no setting
forces such a law; trees that were fitted before, and so know the labels of the training rows, are its guides, with one
epoch where thirty lead elsewhere. Columns centre, zeros, inputs and members: the law that was chosen; inputs "moving"
is a law that moves. Interval: `predict_interval`, 90 %. First interval: of one row, in the process of the fit, and in a
fresh one that loaded the saved model (loading not counted). Small tables are asked about the same rows again. Off by:
the largest distance of the 5, 50 and 95 % quantiles of three rows from {draws:,} exact draws (or as many as
{seconds:.0f} s allow), in standard errors, and what exact quantiles stay below 99 times in 100."""


def ratios(records: list[dict[str, Any]]) -> list[str]:
    """What modelling zeros costs a fit of the made-up table."""
    fits = {r["settings"]: r["answers"].get(FIT, {}).get("seconds") for r in records if r["data"] == ZERO_TABLE}
    lines = []
    for guides in ("", "no guides, "):
        plain, model = fits.get(f'{guides}zeros="shrink"'), fits.get(f'{guides}zeros="model"')
        if plain and model:
            words = guides.removesuffix(", ") or "default guides"
            lines.append(
                f'{ZERO_TABLE}, {words}: a fit with zeros="model" takes {model / plain:.1f} times a plain one.'
            )
    return lines


def text_of(facts: dict[str, Any]) -> str:
    machine = ", ".join(f"{key} {value}" for key, value in facts["machine"].items())
    limits = {
        "cheap": CHEAP,
        "limit": facts["limit"],
        "forced": FORCED_ROWS,
        "draws": CHECK_DRAWS,
        "seconds": CHECK_SECONDS,
    }
    text = ["# Waits by law", "", NOTES.format(**limits), "", f"Machine: {machine}; {facts['jobs']} at a time.", ""]
    if facts["records"]:
        text += [common.markdown([row_of(record) for record in facts["records"]]), ""]
    text += [f"{line}\n" for line in ratios(facts["records"])]
    if facts["report"]:
        lines = [{"command": line["what"], "seconds": seconds_text(line)} for line in facts["report"]]
        text += [common.markdown(lines)]
    return "\n".join(text).rstrip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = (*REAL, ZERO_TABLE, WIDE_TABLE, "report")
    parser.add_argument("--only", choices=names, metavar="NAME", help=f"one of {', '.join(names)}")
    parser.add_argument("--quick", action="store_true", help="small tables and few draws, to see that it runs")
    parser.add_argument("--jobs", type=int, default=1, help="cases side by side, each on one thread")
    parser.add_argument("--folder", type=Path, help="keep a file per case there, and go on where it stopped")
    parser.add_argument("--draws", type=int, default=CHECK_DRAWS, help=argparse.SUPPRESS)
    parser.add_argument("--answer", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.answer:
        answer(Path(options.answer[0]), options.answer[1:], options.draws)
        return
    draws, most = (BLOCK, QUICK_LIMIT) if options.quick else (options.draws, LIMIT)
    cases = [] if options.only == "report" else cases_of(options.only, options.quick)
    facts: dict[str, Any] = {"machine": common.machine(1), "jobs": options.jobs, "limit": most}
    facts |= {"records": [], "report": []}
    if options.folder is not None:
        options.folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(options.jobs) as pool:
        report = pool.submit(report_lines, options.quick) if options.only in (None, "report") else None
        for done in as_completed([pool.submit(measure, case, draws, most, options.folder) for case in cases]):
            facts["records"].append(done.result())
            print(" | ".join(row_of(done.result()).values()), flush=True)
        if report is not None:
            facts["report"] = report.result()
    order = {name: place for place, name in enumerate(names)}
    settings = ["default", *FORCED_SETTINGS, *PLAIN_SETTINGS]
    facts["records"].sort(key=lambda record: (order[record["data"]], settings.index(record["settings"])))
    if not (options.only or options.quick):
        common.write("laws", facts, text_of(facts))
    else:
        print(text_of(facts))


if __name__ == "__main__":
    main()
