"""Wrong command lines: one line says why, or the command works."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from command_cases import make_tables, try_case


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="the alarm that ends a hang is POSIX's")
def test_a_command_works_or_says_why_not(tmp_path: Path) -> None:
    make_tables(tmp_path)
    outcomes = [try_case(tmp_path, seed) for seed in range(45)]
    assert min(outcomes.count("worked"), outcomes.count("refused")) > 6  # one that only fails would find nothing
