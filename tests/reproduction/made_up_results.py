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


def put_conformal(
    folder: Path, study: str, gain: float, *, recipes: tuple[str, ...] = RECIPES, repeats: int = REPEATS
) -> None:
    """Coverage of the Dirichlet near 0.7, of SNEFY-LDL ``gain`` above it."""
    rng = np.random.default_rng(3)
    labels = [f"label <{place}>" for place in range(3)]
    for repeat in range(repeats):
        ceiling = {"2": 0.88, "4": 0.82, "8": 0.75}

        def block(level: float) -> dict[str, Any]:
            fsc = {name: (level + 0.02 * rng.standard_normal(3)).tolist() for name in LEVELS}
            rest = {name: (0.5 + 0.1 * rng.random(3)).tolist() for name in ("coverage", "width", "interval_score")}
            return {"fsc": fsc, **rest}

        put(
            folder,
            study,
            "baseline",
            repeat,
            {"models": {"dirichlet": block(0.7)}, "ceiling": ceiling, "labels": labels},
        )
        for recipe in recipes:
            models = {"models": {"snefy": block(0.7 + gain)}, "methods": {"snefy_quantile": block(0.8)}}
            put(folder, study, recipe, repeat, {**models, "ceiling": ceiling, "labels": labels})


def put_active(folder: Path, study: str, lead: float, *, recipes: tuple[str, ...] = RECIPES) -> None:
    """Every strategy at the paper's Random but for the entropy queries, which are ``lead`` (relative) better."""
    rng = np.random.default_rng(4)
    for recipe in recipes:
        for repeat in range(REPEATS):
            common = 0.01 * rng.standard_normal()

            def scores(gain: float, common: float = common) -> dict[str, float]:
                found = {"log_likelihood": 3.0 + gain}
                for metric, measure in METRICS.items():
                    sign = 1.0 if measure.higher else -1.0
                    base = TABLES[study].cells["Random", metric][0]
                    found[metric] = base * (1.0 + sign * gain + common + 0.0005 * rng.standard_normal())
                return found

            strategies = {name: scores(0.0) for name in STRATEGIES} | {
                "SNEFY-LDL": scores(lead),
                "entropy": scores(lead),
            }
            put(folder, study, recipe, repeat, {"strategies": strategies, "start": scores(-0.05)})


def put_ensemble(
    folder: Path, study: str, gain: float, *, won: int = 24, recipes: tuple[str, ...] = RECIPES, repeats: int = REPEATS
) -> None:
    """Weighted better than the paper's Weighted in the first ``won`` cells, and better than Average by ``gain``."""
    rng = np.random.default_rng(5)
    for repeat in range(repeats):
        for recipe in recipes:
            learners: dict[str, Any] = {}
            for place, learner in enumerate(LEARNERS):
                learners[learner] = {"Average": {}, "Weighted": {}}
                for number, (metric, measure) in enumerate(METRICS.items()):
                    sign = 1.0 if measure.higher else -1.0
                    printed = TABLES[study].cells[learner, "Weighted", metric][0]
                    beats = 1.0 if 6 * place + number < won else -1.0
                    weighted = printed * (1.0 + sign * beats * 0.05 + 0.0001 * rng.standard_normal())
                    learners[learner]["Weighted"][metric] = weighted
                    average = weighted * (1.0 - sign * gain * (1.0 + 0.01 * rng.standard_normal()))
                    learners[learner]["Average"][metric] = average
            density = {metric: 0.5 for metric in METRICS} | {"log_likelihood": 4.0}
            members = dict.fromkeys(LEARNERS, 9.0)
            put(folder, study, recipe, repeat, {"learners": learners, "density": density, "effective_members": members})


def put_sensitivity(folder: Path, drop: float) -> None:
    """Flat but for the settings at which the paper saw a drop."""
    rng = np.random.default_rng(6)
    grid = {
        "n_neurons": (16, 64),
        "n_readouts": (16, 32, 48, 64, 96),
        "batch_size": (16, 32, 48, 64, 96),
        "epochs": (25, 100),
    }
    named = {("n_readouts", 48), ("n_readouts", 96), ("batch_size", 32), ("batch_size", 96)}
    for recipe in RECIPES:
        for repeat in range(REPEATS):
            panels = {
                name: {
                    str(value): {
                        "fsc": {
                            level: 0.8 - drop * ((name, value) in named) + 0.001 * rng.random() for level in ("2", "4")
                        },
                        "coverage": 0.9,
                        "width": 0.3,
                    }
                    for value in values
                }
                for name, values in grid.items()
            }
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
    """The tables of a text, by the study whose heading they stand under."""

    def __init__(self, text: str) -> None:
        self.text, self.rows, study = text, dict[str, list[list[str]]](), ""
        for line in text.splitlines():
            if line.startswith("## "):
                study = line[3:].partition(":")[0].replace(" ", "").lower()
            if line.startswith("|"):
                cells = [cell.strip().strip("*") for cell in line.strip("|").split("|")]
                self.rows.setdefault(study, []).append(cells)

    def find(self, section: str, head: str) -> list[list[str]]:
        """All rows of a section whose head ends with a word, without the head."""
        return [row[1:] for row in self.rows[section] if row[0] == head or row[0].endswith(f", {head}")]


def figures(folder: Path, study: str, recipe: str) -> list[dict[str, Any]]:
    """The made-up figures, read without the library."""
    return [json.loads(path.read_text())["figures"] for path in sorted((folder / "results" / study / recipe).glob("*"))]


def mean_std(values: list[float], digits: int) -> str:
    return f"{statistics.fmean(values):.{digits}f} ± {statistics.stdev(values):.{digits}f}"


def difference(first: list[float], second: list[float], digits: int) -> str:
    """A difference and its interval as the page prints them, by scipy's paired test."""
    interval = stats.ttest_rel(first, second).confidence_interval(0.95)
    numbers = (statistics.fmean(first) - statistics.fmean(second), interval.low, interval.high)
    mean, low, high = (f"{number:+.{digits}f}".replace("-", "−") for number in numbers)
    return f"{mean} [{low}, {high}]"


def find(claims: list[Claim], words: str, case: int = 0, recipe: str = "default") -> Verdict:
    (claim,) = [claim for claim in claims if words in claim.title]
    return claim.cases[case].verdicts[recipe]
