"""Results of an invented run, and a reader of the page made from them."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from reproduction.claims import LEARNERS, LEVELS, METRICS, STRATEGIES, TABLES, Claim, Verdict
from reproduction.config import RECIPES

PANELS = {"n_neurons": (16, 64), "epochs": (25, 100)} | dict.fromkeys(
    ("n_readouts", "batch_size"), (16, 32, 48, 64, 96)
)
NAMED_DROPS = {("n_readouts", 48), ("n_readouts", 96), ("batch_size", 32), ("batch_size", 96)}


def put(folder: Path, study: str, recipe: str, repeat: int, figures: dict[str, Any]) -> Path:
    path = folder / "results" / study / recipe / f"{repeat:03d}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    head = {"version": 1, "study": study, "recipe": recipe, "repeat": repeat, "snefy_ldl": "9.9", "seconds": 2.0}
    path.write_text(json.dumps({**head, "figures": figures}))
    return path


def put_study(folder: Path, study: str, gain: float, *, recipes: Any = RECIPES, repeats: int = 4) -> None:
    """Records of a study in which SNEFY-LDL is better by ``gain``; in figure A1, the paper's settings drop by it."""
    rng = np.random.default_rng(3)

    def block(level: float) -> dict[str, Any]:
        fsc = {name: (level + 0.02 * rng.standard_normal(3)).tolist() for name in LEVELS}
        return {"fsc": fsc, **{name: rng.random(3).tolist() for name in ("coverage", "width", "interval_score")}}

    def scores(key: tuple[str, ...], better: float = 0.0) -> dict[str, float]:
        printed = {metric: TABLES[study].cells[(*key, metric)][0] for metric in METRICS}
        signs = {metric: 1.0 if measure.higher else -1.0 for metric, measure in METRICS.items()}
        noise = 0.0005 * rng.standard_normal(len(METRICS))
        values = {m: printed[m] * (1.0 + signs[m] * better + e) for m, e in zip(METRICS, noise)}
        return values | {"log_likelihood": 3.0 + better + 0.01 * rng.standard_normal()}

    def setting(name: str, value: int) -> dict[str, Any]:
        level = 0.8 - gain * ((name, value) in NAMED_DROPS)
        return {"fsc": {k: level + 0.001 * rng.random() for k in ("2", "4")}, "coverage": 0.9, "width": 0.3}

    def figures(recipe: str) -> dict[str, Any]:
        ceiling = {"ceiling": {"2": 0.88, "4": 0.82, "8": 0.75}, "labels": [f"label <{place}>" for place in range(3)]}
        is_base = recipe == "baseline"
        if study == "figureA1":
            panels = {name: {str(value): setting(name, value) for value in values} for name, values in PANELS.items()}
            return ceiling | ({"models": {"constant": block(0.6)}} if is_base else {"panels": panels})
        if study in ("table2", "table3"):
            models = {"dirichlet": block(0.7), "constant": block(0.6)} if is_base else {"snefy": block(0.7 + gain)}
            return ceiling | {"models": models}
        first = ("Random",) if study in ("table4", "table5") else ("SA-BFGS", "Average")
        if is_base:
            return {"constant": scores(first, -0.3)}
        if len(first) == 1:
            after = {name: scores(first, gain * (name == "SNEFY-LDL")) for name in STRATEGIES}
            return {"strategies": after, "start": scores(first, -0.05)}
        kinds = {"Average": 0.0, "Weighted": gain}
        bags = {n: {kind: scores((n, "Average"), better) for kind, better in kinds.items()} for n in LEARNERS}
        return {"learners": bags, "density": scores(first, 0.1)}

    for repeat in range(repeats):
        for recipe in ("baseline", *(name for name in recipes if (study, name) != ("figureA1", "default"))):
            put(folder, study, recipe, repeat, figures(recipe))


class Page:
    """The tables of a report, by the heading they stand under."""

    def __init__(self, text: str) -> None:
        self.text, self.rows, study = text, dict[str, dict[str, list[str]]](), ""
        for line in text.splitlines():
            if line.startswith("### Table"):
                study = line[4:].partition(":")[0].replace(" ", "").lower()
            elif line.startswith("|") and study:
                head, *cells = line.strip("|").split("|")
                self.rows.setdefault(study, {})[head] = cells


def figures(folder: Path, study: str, recipe: str) -> list[dict[str, Any]]:
    """The made-up figures, read without the library."""
    return [json.loads(path.read_text())["figures"] for path in sorted((folder / "results" / study / recipe).glob("*"))]


def cell(values: list[float], digits: int, against: list[float] | None = None, higher: bool = True) -> str:
    """A cell as the page prints it; the mark by scipy's paired test."""
    mark = ""
    if against is not None:
        better = (statistics.fmean(values) > statistics.fmean(against)) == higher
        clear = stats.ttest_rel(values, against).pvalue < 0.05
        mark = ("▲" if clear else "△") if better else ("▼" if clear else "▽")
    words = [f"{word:.{digits}f}" for word in (statistics.fmean(values), statistics.stdev(values))]
    return mark + "±".join(word.replace("0.", ".", word.startswith("0.")) for word in words)


def find(claims: list[Claim], words: str, case: int = 0, recipe: str = "raw") -> Verdict:
    (claim,) = [claim for claim in claims if words in claim.title]
    return claim.cases[case].verdicts[recipe]
