"""Folders that somebody tampered with: a load refuses them in one sentence, or gives a model that answers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tampering import try_case, write_models

pytestmark = pytest.mark.skipif(os.name != "posix", reason="the alarm that ends a hang is POSIX's")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_models(tmp_path_factory.mktemp("models"))


@pytest.mark.parametrize("first", range(0, 64, 16))
def test_a_folder_that_was_tampered_with_is_refused_or_answers(models: list[Path], tmp_path: Path, first: int) -> None:
    outcomes = [try_case(models[seed % len(models)], tmp_path, seed) for seed in range(first, first + 16)]
    assert set(outcomes) == {"refused", "answered"}


@pytest.mark.slow
def test_hundreds_of_folders(models: list[Path], tmp_path: Path) -> None:
    for seed in range(400):
        try_case(models[seed % len(models)], tmp_path, seed)
