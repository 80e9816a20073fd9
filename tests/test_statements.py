"""Numbers and defaults that pages state are those of the code and of the stored results."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path

import pytest

from snefy_ldl._internal.seen import MOST_SEEN
from snefy_ldl.active import STRATEGIES
from snefy_ldl.conformal import ConformalIntervals, ConformalRegion
from snefy_ldl.conformal.choice import FEWEST_COMPARED, MOST_ASIDE, SHARE_ASIDE
from snefy_ldl.conformal.thresholds import rows_needed
from snefy_ldl.learners.losses import RANKING_WEIGHTS
from snefy_ldl.metrics.points import HIGHER_IS_BETTER

ROOT = Path(__file__).parents[1]
EFFECTS = [row["coverage"] for row in json.loads((ROOT / "benchmarks/results/effects.json").read_text())["rows"]]
WORDS = {0.1: "a tenth", 3: "a third", 6: "Six"}


def default(cls: type, name: str) -> str:
    return str(inspect.signature(cls).parameters[name].default)


STATEMENTS = [
    ("conformal", f"({rows_needed(0.9)} for 0.9, {rows_needed(0.95)} for 0.95)"),
    ("conformal", f"from {WORDS[MOST_SEEN]} of the rows on an error"),
    ("conformal", f"on {WORDS[SHARE_ASIDE]} of the calibration rows ({MOST_ASIDE} at most)"),
    ("conformal", f"Below {SHARE_ASIDE * FEWEST_COMPARED} calibration rows it takes `beta`"),
    ("conformal", f"| `{default(ConformalIntervals, 'method')}` (default) |"),
    ("conformal", f"`{default(ConformalRegion, 'method')}` (default) is"),
    ("compare", f"{WORDS[len(HIGHER_IS_BETTER)]} by default"),
    ("learners", f"`alpha` from {RANKING_WEIGHTS[0]:.0e} to {RANKING_WEIGHTS[-1]:.0e}".replace("e-0", "e-")),
    ("explain", f"in {100 * min(EFFECTS):.0f} to {100 * max(EFFECTS):.0f} % of the cases"),
]


@pytest.mark.parametrize(("page", "statement"), STATEMENTS)
def test_a_statement_is_that_of_the_code(page: str, statement: str) -> None:
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    assert statement in " ".join(text.split())


def test_the_table_of_strategies_is_complete() -> None:
    ours = {name for name, kind in STRATEGIES.items() if kind.__module__.startswith("snefy_ldl")}
    section = (ROOT / "docs/active.md").read_text(encoding="utf-8").split("## Strategies")[1].split("##")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == ours


def test_intervals_of_effects_cover_as_often_as_they_state() -> None:
    assert len(EFFECTS) == 12
    assert all(abs(coverage - 0.9) <= 0.03 for coverage in EFFECTS)
