"""Programs of torch.export answer as the model does, and the command writes them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from commands import fail, run
from door_models import fitted
from snefy_ldl.errors import InputError
from snefy_ldl.integrations.program import DESCRIPTION, export_program


@pytest.mark.slow
def test_program_answers_as_the_model(tmp_path: Path) -> None:
    model, X, _ = fitted("guides")
    words = {DESCRIPTION: ""}
    program = torch.export.load(export_program(model, tmp_path / "model.pt2", (0.1, 0.9)), extra_files=words)
    for rows in (X, X[:1]):
        mean, variance, quantiles = (part.numpy() for part in program.module()(torch.as_tensor(rows)))
        np.testing.assert_allclose(mean, model.predict(rows), atol=1e-5)
        np.testing.assert_allclose(variance, model.predict_var(rows), atol=1e-5)
        np.testing.assert_allclose(quantiles, model.predict_quantiles(rows, (0.1, 0.9)), atol=1e-5)
    assert json.loads(words[DESCRIPTION])["levels"] == [0.1, 0.9]


def test_refuses_other_endings(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"ends in \.pt2"):
        export_program(fitted("plain")[0], tmp_path / "model.pt")
    (tmp_path / "there.pt2").mkdir()
    with pytest.raises(InputError, match="folder"):
        export_program(fitted("plain")[0], tmp_path / "there.pt2")


def test_command_writes_a_program(tmp_path: Path) -> None:
    model, X, _ = fitted("plain")
    folder = model.save(tmp_path / "model")
    out = tmp_path / "model.pt2"
    answer = run("export", folder, out, "--levels", "none")
    assert "MB written" in answer.stderr
    mean = torch.export.load(out).module()(torch.as_tensor(X))[0].numpy()
    np.testing.assert_allclose(mean, model.predict(X), atol=1e-6)


@pytest.mark.parametrize(
    ("file", "levels", "words"),
    [("model.bin", "0.5", ".onnx or .pt2"), ("model.pt2", "half", "numbers between 0 and 1")],
)
def test_command_refuses(file: str, levels: str, words: str, tmp_path: Path) -> None:
    folder = fitted("plain")[0].save(tmp_path / "model")
    assert words in fail("export", folder, tmp_path / file, "--levels", levels)
    assert not (tmp_path / file).exists()
