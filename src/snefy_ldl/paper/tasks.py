"""From what is missing to tasks, from tasks to records: the part of the runner that knows the studies."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from snefy_ldl._internal.files.atomic import write_json
from snefy_ldl.datasets.named import Dataset
from snefy_ldl.paper.config import Active, Ensemble, Sensitivity, Study
from snefy_ldl.paper.records import VERSION, read_record, record_path
from snefy_ldl.paper.studies import active as active_study
from snefy_ldl.paper.studies import conformal as conformal_study
from snefy_ldl.paper.studies import ensemble as ensemble_study
from snefy_ldl.paper.studies import sensitivity as sensitivity_study
from snefy_ldl.paper.studies.common import Outcome

__all__ = ["Answer", "Ledger", "Loader", "Task", "compute"]

Loader = Callable[[str], Dataset]


@dataclass(frozen=True)
class Task:
    """Some repeats of a study, trained together.

    A model's place among those it is trained with can change its last bits, and a query can turn such a bit into
    another row. So repeats are trained in fixed companies, whole even where some of it is there already: what an
    interrupted run leaves is finished with the same figures.

    Args:
        study: which.
        recipes: the recipe, or those that share the work.
        part: the setting of figure A1; empty elsewhere.
        repeats: numbers of the splits whose records are missing.
        company: numbers of the splits that are trained, these among them.
        cost: rough seconds.
    """

    study: Study
    recipes: tuple[str, ...]
    part: str
    repeats: tuple[int, ...]
    company: tuple[int, ...]
    cost: float

    def __str__(self) -> str:
        numbers = f"{self.repeats[0]}" if len(self.repeats) == 1 else f"{self.repeats[0]}-{self.repeats[-1]}"
        words = (self.study.name, "+".join(self.recipes), self.part, f"repeat {numbers}")
        return " ".join(word for word in words if word)


@dataclass(frozen=True)
class Answer:
    """The outcomes of a task, the wall time of each of its repeats, and what it warned of."""

    outcomes: list[Outcome]
    seconds: float
    warnings: list[str]


def compute(task: Task, data: Dataset) -> Answer:
    """Run a task; its warnings come back as lines, one of each."""
    began = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        outcomes = _outcomes(task, data)
    lines = dict.fromkeys(f"{warning.category.__name__}: {warning.message}" for warning in caught)
    seconds = (time.perf_counter() - began) / len(outcomes)
    return Answer([one for one in outcomes if one.repeat in task.repeats], seconds, list(lines))


def _outcomes(task: Task, data: Dataset) -> list[Outcome]:
    study, protocol = task.study, task.study.protocol
    if isinstance(protocol, Ensemble):
        return ensemble_study.run(study, task.recipes, task.company, data)
    (recipe,) = task.recipes
    if isinstance(protocol, Sensitivity):
        return sensitivity_study.run(study, recipe, task.part, task.company, data)
    if isinstance(protocol, Active):
        return active_study.run(study, recipe, task.company, data)
    return conformal_study.run(study, recipe, task.company, data)


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
        self.kept = 0

    def plan(self) -> list[Task]:
        """Tasks for everything that is missing, in the order of the studies; long ones of a study first."""
        tasks = []
        for study in self.studies:
            missing = self._of_study(study)
            tasks += sorted(missing, key=lambda task: -task.cost / len(task.company))
        return tasks

    def _of_study(self, study: Study) -> list[Task]:
        recipes = study.recipes(self.recipes)
        wanted: dict[tuple[tuple[str, ...], str], list[int]] = {}
        for repeat in range(study.repeats):
            lacking = {recipe: self._lacking(study, recipe, repeat) for recipe in recipes}
            self.kept += sum(not parts for parts in lacking.values())
            if isinstance(study.protocol, Ensemble):  # recipes share the members
                together = tuple(recipe for recipe in recipes if lacking[recipe])
                if together:
                    wanted.setdefault((together, ""), []).append(repeat)
                continue
            for recipe, parts in lacking.items():
                for part in parts:
                    wanted.setdefault(((recipe,), part), []).append(repeat)
        tasks = []
        for (together, part), repeats in wanted.items():
            cost, size = self._cost(study, together, part), study.chunk
            for start in sorted({repeat // size * size for repeat in repeats}):
                company = tuple(range(start, min(start + size, study.repeats)))
                group = tuple(repeat for repeat in repeats if repeat in company)
                tasks.append(Task(study, together, part, group, company, cost * len(company)))
        return tasks

    @staticmethod
    def _cost(study: Study, recipes: tuple[str, ...], part: str) -> float:
        """Rough seconds a repeat."""
        if recipes == ("baseline",):
            return 0.04 * study.cost
        if not part:
            return study.cost * len(recipes)
        grid = sensitivity_study.parts(study, recipes[0])
        shares = {name: sensitivity_study.relative_cost(study, recipes[0], name) for name in grid}
        return study.cost * shares[part] / sum(shares.values())

    def _lacking(self, study: Study, recipe: str, repeat: int) -> list[str]:
        record = self._read(study, recipe, repeat)
        if isinstance(study.protocol, Sensitivity):
            return sensitivity_study.missing(study, recipe, None if record is None else record["figures"])
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
            if isinstance(study.protocol, Sensitivity):
                before = self._read(study, outcome.recipe, outcome.repeat)
                held = None if before is None else before["figures"]
                figures = sensitivity_study.merge(study, outcome.recipe, task.part, held, figures)
                seconds += 0.0 if before is None else float(before["seconds"])
            record = {
                **self._about(study, outcome.recipe, outcome.repeat),
                "seconds": round(seconds, 3),
                "figures": figures,
            }
            write_json(record_path(self.out, study.name, outcome.recipe, outcome.repeat), record)
