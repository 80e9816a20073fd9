"""Numbers and defaults that pages state are those of the code and of the stored results."""

from __future__ import annotations

import json
import re
from pathlib import Path

from snefy_ldl.active import STRATEGIES

ROOT = Path(__file__).parents[1]
EFFECTS = [row["coverage"] for row in json.loads((ROOT / "benchmarks/results/effects.json").read_text())["rows"]]


def test_the_table_of_strategies_is_complete() -> None:
    ours = {name for name, kind in STRATEGIES.items() if kind.__module__.startswith("snefy_ldl")}
    section = (ROOT / "docs/active.md").read_text(encoding="utf-8").split("## Strategies")[1].split("##")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == ours


def test_intervals_of_effects_cover_as_often_as_they_state() -> None:
    text = " ".join((ROOT / "docs" / "explain.md").read_text(encoding="utf-8").split())
    assert f"in {100 * min(EFFECTS):.0f} to {100 * max(EFFECTS):.0f} % of the cases" in text
    assert len(EFFECTS) == 12
    assert all(abs(coverage - 0.9) <= 0.03 for coverage in EFFECTS)
