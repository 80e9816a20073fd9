"""Wrong command lines: seeded cases, and what must come of each.

A command either works (exit code 0, no NaN in what it writes), or ends with exit code 1 or 2 and one line that gives
the reason, in half a minute. ``tests/apps/cli/test_fuzz_commands.py`` tries some; a thousand are tried by::

    python tests/command_cases.py --cases 1000 --seed 0
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import os
import shlex
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd
import typer

from commands import run
from snefy_ldl.apps import cli
from snefy_ldl.datasets import make_annotators, make_city_districts

#: Seconds that one command may take.
PATIENCE = 30
LABELS = "business,entertainment,education"
SMALL = [f"--set={name}" for name in ("n_neurons=4", "n_readouts=2", "hidden_sizes=[4]", "guides=None")]
SMALL += ["--set", "epochs=1", "--quiet"]
SNEFY = ["--density", "snefy"]


class TookTooLong(Exception):
    """The patience is over."""


@contextlib.contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Raise if a block takes too long."""

    def stop(*_: object) -> None:
        raise TookTooLong

    usual = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, usual)


def pick(rng: np.random.Generator, options: Any) -> Any:
    return options[int(rng.integers(len(options)))]


# -- what is passed ----------------------------------------------------------------------------------------------------

#: Values of options: of the right kind and not.
TEXTS = ["", " ", ",", "x", "[/]", "=1+1", "ä\u2028", "business", "code", "business,business", "-1", "../x", "x" * 5000]
COUNTS = ["1", "2", "0", "-1", "3.5", "nan", "x", "", "1e3", "99999999999999999999"]
LEVELS = ["0.5", "0.9", "0", "1", "-1", "2", "nan", "inf", "", "x", "0.5,0.9", "0.9,", "1e-300", "0.999999999999999999"]
SETTINGS = [
    "n_neurons",
    "n_neurons=",
    "=3",
    "nonsense=1",
    "epochs=0",
    "learning_rate=nan",
    "hidden_sizes=[]",
    "zeros=x",
]
SETTINGS += ["guides=", 'guides=["x"]', "n_trees=0", "random_state=x", "device=moon", "columns=1", "batch_size=1e999"]
SETTINGS += [
    "validation_fraction=2",
    "patience=-1",
    "backbone=os:system",
    "standardize={}",
    "diagnosis=1",
    "criterion=x",
]
SETTINGS += ["n_draws=nan", "max_per_item=3"]
TABLES = ["good.csv", "good.csv", "good.csv", "new.csv", "new.csv", "good.parquet", "good.xlsx", "zeros.csv"]
TABLES += ["votes.csv", "counts.csv", "items.csv", "SPOILED", "SPOILED", "SPOILED", "SPOILED", "missing.csv"]
TABLES += ["x" * 300 + ".csv", "parts", "model", "-"]
MODELS = ["model", "model", "model", "zeros", "counts", "logratio", "people", "missing", "good.csv", "empty", "damaged"]
OUTS = ["-", "out.csv", "out.xlsx", "out.parquet", "out.tsv.gz", "out", "out.x", "good.csv/x.csv", "parts", "", "model"]
OUTS += ["out.png", "out.svg", "out.html", "no/such/out.png"]
NAMES = ["code", "students_per_km2", "id", "item", *TEXTS]
LABEL_SETS = [LABELS, LABELS, "business,education", "business", "a,b,c", *TEXTS]
QUESTIONS = ["P(business > education)", "P(business = 0)", "log(business/education)", "quantiles(0.1,0.9)", "draws(3)"]
QUESTIONS += ["P(business > 2 * education + 0.1)", "P()", "draws(0)", "quantiles(2)", "log(x/y)", *TEXTS]
#: What stands in the folder of the cases.
FILES = {name for name in (*TABLES, *MODELS, *OUTS, "no") if name.strip("-")}
#: Options whose values are special words; those of others go by their type.
OPTIONS: dict[str, list[str]] = {
    "--ask": QUESTIONS,
    "--checkpoint": ["out/c", "good.csv"],
    "--density": ["auto", "snefy", "logratio", "x", ""],
    "--groups": ["side", "code", *TEXTS],
    "--interval": LEVELS,
    "--learners": ["AAKNN", "x", "", "AAKNN,AAKNN"],
    "--level": LEVELS,
    "--levels": LEVELS,
    "--measures": ["kl_divergence", "x", ""],
    "--method": ["auto", "outlying", "beta", "chebyshev", "absolute", "cdf", "quantile", "x", ""],
    "--of": ["mean", "entropy", "business>education", "business>", *TEXTS],
    "--out": OUTS,
    "--set": SETTINGS,
    "--strategy": ["auto", "random", "bait", "badge", "lcmd", "entropy", "x", ""],
    "--unit": ["share", "percent", ""],
}
#: Options that other parts of a case settle, that need a cluster, or that take long.
LEFT_OUT = {"--help", "--labels", "--jobs", "--repeats", "--folds", "--vote-columns"}
BY_TYPE = {"Path": TABLES, "int": COUNTS, "float": LEVELS}


def read_commands() -> dict[str, tuple[list[list[str]], dict[str, list[str] | None]]]:
    """Values of the positional arguments and of the options of each command, as it declares them; None is a flag."""
    found: dict[str, tuple[list[list[str]], dict[str, list[str] | None]]] = {}
    for one in cli.app.registered_commands:
        assert one.callback is not None
        places: list[list[str]] = []
        options: dict[str, list[str] | None] = {"--sheet": ["1", "9", "x", ""]}
        for parameter in inspect.signature(one.callback).parameters.values():
            plain, *settings = get_args(parameter.annotation) or (parameter.annotation,)
            words = (settings[0].default, *(settings[0].param_decls or ()))  # typer takes the first one for a default
            named = [word for word in words if str(word).startswith("--")]
            option, kind = (named or [f"--{parameter.name.replace('_', '-')}"])[0], str(plain)
            if isinstance(settings[0], typer.models.ArgumentInfo):
                places.append({"model": MODELS, "out": OUTS}.get(parameter.name, TABLES))
            elif option not in LEFT_OUT:
                by_type = next((values for name, values in BY_TYPE.items() if name in kind), NAMES)
                options[option] = None if plain is bool else OPTIONS.get(option, by_type)
                if option == "--votes" and "Path" not in kind:
                    options[option] = ["auto", "long", "counts", "x", ""]
        found[one.name or one.callback.__name__] = places, options
    return {name: found[name] for name in found if name not in ("demo", "serve")}


COMMANDS = read_commands()
#: What a command is given so that it is quick.
ALWAYS = {
    "fit": SMALL,
    "compare": ["--learners", "AAKNN", "--folds", "2", "--quiet"],
    "report": ["--folds", "0"],
}
#: Arguments that go together; of any command the rest takes a model and a table.
GOOD = {
    "fit": [["good.csv"], ["zeros.csv"], ["good.parquet"]],
    "compare": [["good.csv"]],
    "query": [["model", "new.csv"], ["people", "items.csv", "--votes", "votes.csv"]],
    "info": [["model"], ["logratio"], ["zeros"]],
    "export": [["model", "out.onnx"]],
}
PAIRS = [["model", "new.csv"], ["zeros", "new.csv"], ["logratio", "new.csv"], ["counts", "counts.csv"]]
#: Commands that take more than a second are tried less often.
RARE = ("report", "export", "compare", "explore")
CELLS = ["", "x", "nan", "inf", "-1", "0", "1e400", "1e-320", "1e308", "0,5", "=1+1", "\x00", "#N/A", "1 2", "TRUE"]
CELLS += ["2020-01-01", "[/]", "ä"]


def make_tables(folder: Path) -> None:
    """Good tables, models of several kinds, and what is not a model."""

    def city(n: int, seed: int) -> pd.DataFrame:
        made = make_city_districts(n=n, random_state=seed)
        table = pd.DataFrame(made.X, columns=made.feature_names).join(pd.DataFrame(made.D, columns=made.label_names))
        table.insert(0, "code", [f"d{i}" for i in range(n)])
        table["side"] = np.where(np.arange(n) % 3, "east", "west")
        return table

    good = city(50, 0)
    good.to_csv(folder / "good.csv", index=False)
    good.to_parquet(folder / "good.parquet", index=False)
    good.to_excel(folder / "good.xlsx", index=False)
    city(40, 1).to_csv(folder / "new.csv", index=False)
    (folder / "parts").mkdir()
    good.to_parquet(folder / "parts" / "a.parquet", index=False)
    zeros, names = good.copy(), LABELS.split(",")
    zeros.loc[::3, "business"] = 0.0
    zeros[names] = zeros[names].div(zeros[names].sum(axis=1), axis=0)
    zeros.to_csv(folder / "zeros.csv", index=False)
    counts = good.copy()
    counts[names] = np.random.default_rng(0).multinomial(7, [0.2, 0.3, 0.5], size=len(good))
    counts.to_csv(folder / "counts.csv", index=False)
    crowd = make_annotators(n=40, n_labels=3, votes=4, n_annotators=6, long_table=True)
    items = pd.DataFrame(crowd.X, columns=crowd.feature_names)
    items.insert(0, "item", [f"i{k}" for k in range(len(items))])
    items.to_csv(folder / "items.csv", index=False)
    votes = pd.DataFrame(crowd.votes)
    votes["item"] = [f"i{k}" for k in votes["item"]]
    votes["label"] = votes["label"].map(dict(zip(crowd.label_names, names)))
    votes.to_csv(folder / "votes.csv", index=False)
    (folder / "empty").mkdir()
    shares = ("--labels", LABELS, "--drop", "code")
    fits: dict[str, tuple[str, ...]] = {
        "model": ("good.csv", *shares, *SMALL, *SNEFY),
        "zeros": ("zeros.csv", *shares, "--quiet", "--set=max_iter=5", "--set=n_trees=5"),
        "counts": ("counts.csv", "--votes", "counts", *shares, *SMALL),
        "logratio": ("good.csv", *shares, "--density", "logratio", "--quiet"),
        "people": ("items.csv", "--vote-file", str(folder / "votes.csv"), "--votes", "long", *SMALL),
        "damaged": ("good.csv", *shares, *SMALL, *SNEFY),
    }
    for name, (table, *words) in fits.items():
        result = run("fit", folder / table, "--out", folder / name, *words)
        assert result.exit_code == 0, result.output
    weights = next((folder / "damaged").glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-9])


def place(word: str, folder: Path) -> str:
    """The word with the folder before it if it names a file or folder of ours."""
    return str(folder / word) if word.split("/")[0] in FILES or word.startswith("out") else word


def spoil(folder: Path, rng: np.random.Generator) -> Path:
    """A table with something wrong in it."""
    content = (folder / pick(rng, ["good.csv", "good.csv", "votes.csv", "counts.csv", "items.csv"])).read_text()
    lines = content.splitlines()
    act = int(rng.integers(16))
    for _ in range(pick(rng, [1, 1, 5, 200]) if act < 7 else 0):  # odd cells, also in the header
        row = int(rng.integers(0 if act == 0 else 1, len(lines)))
        cells = lines[row].split(",")
        cells[int(rng.integers(len(cells)))] = pick(rng, CELLS)
        lines[row] = ",".join(cells)
    if act == 7:  # a column of one odd cell
        at, cell = int(rng.integers(lines[0].count(","))), pick(rng, CELLS)
        lines = [
            ",".join(cell if k == at and row else old for k, old in enumerate(line.split(",")))
            for row, line in enumerate(lines)
        ]
    elif act == 8:
        lines = lines[: int(rng.integers(4))]
    elif act == 9:
        lines = [line.rsplit(",", 1)[0] for line in lines]
    elif act == 10:
        lines[0] = lines[0].split(",")[0] + lines[0][lines[0].index(",") :].replace("students_per_km2", "code")
        lines[0] = pick(rng, [lines[0], lines[0].upper(), "," * lines[0].count(","), lines[0].replace("_", " ")])
    elif act == 11:
        lines[int(rng.integers(len(lines)))] += pick(rng, [",1", ',"', ",,,,"])
    elif act == 12:
        lines = [line.replace(",", pick(rng, [";", "\t", "|"])) for line in lines]
    elif act == 13:
        lines += lines[1:]
    file = folder / f"spoiled{pick(rng, ['.csv', '.csv', '.csv', '.csv', '.tsv', '.parquet', '.xlsx', '.json', ''])}"
    payload = "\n".join(lines).encode(pick(rng, ["utf-8", "utf-8", "utf-16", "utf-8-sig"]))
    if act == 14:
        payload = bytes(rng.integers(256, size=300, dtype=np.uint8))
    elif act == 15:
        payload = payload[: int(rng.integers(len(payload)))]
    file.write_bytes(payload)
    return file


def command_line(folder: Path, rng: np.random.Generator) -> list[str]:
    """A command with arguments and some options, each of them now and then odd."""
    name = pick(rng, [name for name in COMMANDS for _ in range(1 if name in RARE else 4)])
    arguments, options = COMMANDS[name]
    given = pick(rng, GOOD.get(name, PAIRS)) if rng.random() < 0.7 else [pick(rng, values) for values in arguments]
    words = [name, *given, *ALWAYS.get(name, [])]
    if rng.random() < 0.03:
        words.pop()
    if name in ("fit", "compare") and rng.random() < 0.9:
        words += ["--labels", pick(rng, LABEL_SETS) if rng.random() < 0.3 else LABELS]
    if name == "fit" and rng.random() < 0.9:
        words += ["--out", "out"]
    if name == "explain" and rng.random() < 0.8:
        words += ["--feature", "students_per_km2"]
    for option in rng.permutation(list(options))[: pick(rng, [0, 0, 1, 1, 2, 3])]:
        words += [option] if options[option] is None else [option, pick(rng, options[option])]
    words = [str(spoil(folder, rng)) if word == "SPOILED" else word for word in words]
    return [place(word, folder) for word in words]


# -- what comes of it --------------------------------------------------------------------------------------------------


def try_case(folder: Path, seed: int) -> str:
    """Run a command line: "worked" or "refused", and AssertionError for anything else."""
    for path in [*folder.glob("out*"), *folder.glob("spoiled*")]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    words, home = command_line(folder, np.random.default_rng(seed)), Path.cwd()
    case = f"seed {seed}: {shlex.join(word.replace(str(folder) + '/', '') for word in words)[:400]}"
    try:
        os.chdir(folder)  # an empty --out is the working folder
        with deadline(4 * PATIENCE if words[0] == "export" else PATIENCE):  # torch needs long for its first export
            result = run(*words)
    except TookTooLong:
        raise AssertionError(f"{case}: took too long") from None
    finally:
        os.chdir(home)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        trace = "".join(traceback.format_exception(result.exception)[-4:])
        raise AssertionError(f"{case}: {trace}")
    said = f"{case}\n{result.output[-1500:]}"
    assert "Traceback" not in result.output, said
    assert "Warning" not in result.stderr, said  # Python's own, with a line of code
    errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    if result.exit_code != 0:
        assert result.exit_code in (1, 2), said
        assert len(errors) == 1, said
        assert "error: unexpected" not in errors[0], said
        assert "TookTooLong" not in errors[0], said
        assert len(errors[0]) < 6000, said
        return "refused"
    assert not errors, said
    for word in ("nan", "NaN", "inf", "-inf"):
        assert word not in result.stdout.replace(",", " ").replace(":", " ").split(), said
    written = folder / "out.csv"
    if written.exists():
        table = pd.read_csv(written)
        means = [label for label in LABELS.split(",") if label in table]
        assert np.isfinite(table[means].to_numpy(dtype=float)).all(), said
    return "worked"


def main() -> int:
    """Try many cases, print what fails, and how many of each outcome there were."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    outcomes: Counter[str] = Counter()
    seconds: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        make_tables(folder)
        for seed in range(chosen.seed, chosen.seed + chosen.cases):
            start = time.monotonic()
            try:
                outcomes[try_case(folder, seed)] += 1
            except AssertionError as error:
                outcomes["failed"] += 1
                print(error, "\n", flush=True)
            seconds[command_line(folder, np.random.default_rng(seed))[0]] += time.monotonic() - start
    print(dict(outcomes), {name: round(spent) for name, spent in seconds.most_common()})
    return int(outcomes["failed"] > 0)


if __name__ == "__main__":
    sys.exit(main())
