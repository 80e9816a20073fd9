"""ONNX files answer as the model does, in onnxruntime."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from commands import fail, run
from integration_models import fitted
from snefy_ldl.apps.integrations.onnx import export_onnx


@pytest.mark.slow
def test_onnxruntime_answers_as_the_model(tmp_path: Path) -> None:
    """Of a model with base learners, trees among them; test_graph.py has the other kinds."""
    for package in ("onnx", "onnxscript"):
        pytest.importorskip(package, reason="ONNX files need the extra onnx")
    runtime = pytest.importorskip("onnxruntime", reason="reading ONNX files needs onnxruntime")
    model, X, _ = fitted("guides")
    file = tmp_path / "model.onnx"
    assert "MB written" in run("export", model.save(tmp_path / "model"), file).stderr
    session = runtime.InferenceSession(file)
    assert [one.name for one in session.get_outputs()] == ["mean", "variance"]
    numbers = model.encode(X)
    mean, variance = session.run(None, {"features": numbers})
    np.testing.assert_allclose(mean, model.predict(X), atol=1e-5)
    np.testing.assert_allclose(variance, model.predict_var(X), atol=1e-5)
    single = session.run(["mean"], {"features": numbers[:1]})[0]
    np.testing.assert_allclose(single, mean[:1], atol=1e-6)
    words = session.get_modelmeta().custom_metadata_map
    assert json.loads(words["labels"]) == [str(label) for label in model.label_names_]
    assert session.get_inputs()[0].type == "tensor(double)"


def test_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "onnx" else find(name))
    monkeypatch.delitem(sys.modules, "onnx", raising=False)
    with pytest.raises(ImportError, match=r"snefy-ldl\[onnx\]"):
        export_onnx(fitted("plain")[0], tmp_path / "model.onnx")


def test_command_refuses_other_endings(tmp_path: Path) -> None:
    folder, file = fitted("plain")[0].save(tmp_path / "model"), tmp_path / "model.bin"
    assert "ends in .onnx" in fail("export", folder, file)
    assert not file.exists()
