"""Results of a run that nobody ran, and a reader of the page made from them."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from reproduction.claims import LEARNERS, LEVELS, METRICS, STRATEGIES, TABLES, Claim, Verdict
from reproduction.config import RECIPES

REPEATS = 4


def put(folder: Path, study: str, recipe: str, repeat: int, figures: dict[str, Any], seconds: float = 2.0) -> Path:
    path = folder / "results" / study / recipe / f"{repeat:03d}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    head = {"version": 1, "study": study, "dataset": "", "recipe": recipe, "repeat": repeat, "fingerprint": "f"}
    path.write_text(json.dumps({**head, "snefy_ldl": "9.9", "seconds": seconds, "figures": figures}))
    return path


def put_conformal(folder: Path, study: str, gain: float, *, recipes=RECIPES, repeats: int = REPEATS) -> None:
    """Coverage of the Dirichlet near 0.7, of SNEFY-LDL ``gain`` above it."""
    rng = np.random.default_rng(3)
    common = {"ceiling": {"2": 0.88, "4": 0.82, "8": 0.75}, "labels": [f"label <{place}>" for place in range(3)]}

    def block(level: float) -> dict[str, Any]:
        fsc = {name: (level + 0.02 * rng.standard_normal(3)).tolist() for name in LEVELS}
        return {"fsc": fsc, **{name: rng.random(3).tolist() for name in ("coverage", "width", "interval_score")}}

    for repeat in range(repeats):
        put(folder, study, "baseline", repeat, {"models": {"dirichlet": block(0.7), "constant": block(0.6)}, **common})
        for recipe in recipes:
            models = {"models": {"snefy": block(0.7 + gain)}, "methods": {"snefy_quantile": block(0.8)}}
            put(folder, study, recipe, repeat, {**models, **common})


def put_active(folder: Path, study: str, lead: float) -> None:
    """Every strategy at the paper's Random but for the entropy query, which is ``lead`` (relative) better."""
    rng = np.random.default_rng(4)

    def scores(gain: float, common: float) -> dict[str, float]:
        return {"log_likelihood": 3.0 + gain} | {
            metric: TABLES[study].cells["Random", metric][0]
            * (1.0 + (1.0 if measure.higher else -1.0) * gain + common + 0.0005 * rng.standard_normal())
            for metric, measure in METRICS.items()
        }

    for repeat in range(REPEATS):
        put(folder, study, "baseline", repeat, {"constant": scores(-0.3, 0.0)})
    for recipe in RECIPES:
        for repeat in range(REPEATS):
            common = 0.01 * rng.standard_normal()
            leads = dict.fromkeys(STRATEGIES, 0.0) | {"SNEFY-LDL": lead}
            found = {name: scores(gain, common) for name, gain in leads.items()}
            put(folder, study, recipe, repeat, {"strategies": found, "start": scores(-0.05, common)})


def put_ensemble(folder: Path, study: str, gain: float, *, recipes=RECIPES, repeats: int = REPEATS) -> None:
    """Weighted 5 % better than the paper's Weighted, and better than Average by ``gain``."""
    rng = np.random.default_rng(5)
    signs = {metric: 1.0 if measure.higher else -1.0 for metric, measure in METRICS.items()}
    for repeat in range(repeats):
        density = {metric: 0.5 + 0.1 * rng.random() for metric in METRICS} | {"log_likelihood": 4.0}
        put(folder, study, "baseline", repeat, {"constant": density})
        for recipe in recipes:
            learners: dict[str, Any] = {name: {"Average": {}, "Weighted": {}} for name in LEARNERS}
            for name in LEARNERS:
                for metric, sign in signs.items():
                    printed = TABLES[study].cells[name, "Weighted", metric][0]
                    weighted = printed * (1.0 + sign * 0.05 + 0.0001 * rng.standard_normal())
                    average = weighted * (1.0 - sign * gain * (1.0 + 0.01 * rng.standard_normal()))
                    learners[name]["Weighted"][metric], learners[name]["Average"][metric] = weighted, average
            found = {"learners": learners, "density": density, "effective_members": dict.fromkeys(LEARNERS, 9.0)}
            put(folder, study, recipe, repeat, found)


def put_sensitivity(folder: Path, drop: float) -> None:
    """Flat but for the settings at which the paper saw a drop."""
    rng = np.random.default_rng(6)
    counts = (16, 32, 48, 64, 96)
    grid = {"n_neurons": (16, 64), "n_readouts": counts, "batch_size": counts, "epochs": (25, 100)}
    named = {("n_readouts", 48), ("n_readouts", 96), ("batch_size", 32), ("batch_size", 96)}

    def setting(name: str, value: int) -> dict[str, Any]:
        level = 0.8 - drop * ((name, value) in named)
        return {"fsc": {k: level + 0.001 * rng.random() for k in ("2", "4")}, "coverage": 0.9, "width": 0.3}

    for recipe in RECIPES:
        for repeat in range(REPEATS):
            panels = {name: {str(value): setting(name, value) for value in values} for name, values in grid.items()}
            put(folder, "figureA1", recipe, repeat, {"panels": panels, "ceiling": {"2": 0.88, "4": 0.82}})


def put_run(folder: Path, **changes: Any) -> None:
    run = {
        "version": 1,
        "machine": {"processor": "a made-up processor", "cores": 2},
        "jobs": 2,
        "repeats": dict.fromkeys([*TABLES, "figureA1"], REPEATS),
        "recipes": list(RECIPES),
        "wall_seconds": 3725.0,
        "started": "2025-01-01T00:00:00Z",
        "finished": "2025-01-01T01:02:05Z",
    }
    (folder / "run.json").write_text(json.dumps({**run, **changes}))


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
