"""Every result file in the repository was written by this minor version."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

import snefy_ldl

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
VERSIONS = json.loads((RESULTS / "versions.json").read_text())
HOW = "run its benchmark again (then `python benchmarks/common.py stamp FILE`), or delete it"


def minor(version: str) -> list[str]:
    return version.split(".")[:2]


def test_every_result_file_is_listed():
    # folders hold the records of runs under way and are not in the repository
    files = {path.name for path in RESULTS.iterdir() if path.is_file()} - {"versions.json", "behaviour.json"}
    assert files == set(VERSIONS), f"versions.json and the folder differ: {HOW}"


@pytest.mark.parametrize("name", sorted(VERSIONS))
def test_a_result_file_is_of_this_version(name):
    about = VERSIONS[name]
    found = hashlib.blake2b((RESULTS / name).read_bytes(), digest_size=12).hexdigest()
    assert found == about["digest"], f"{name} was changed after version {about['snefy_ldl']} wrote it: {HOW}"
    assert minor(about["snefy_ldl"]) == minor(snefy_ldl.__version__), (
        f"{name} was written by {about['snefy_ldl']}: {HOW}"
    )
