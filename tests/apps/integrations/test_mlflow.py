"""Round trips through a real MLflow store in a folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from integration_models import CITY, fitted
from snefy_ldl import SnefyLDL
from snefy_ldl.apps.serve.explorer.rows import label_names
from snefy_ldl.conformal import ConformalIntervals
from snefy_ldl.errors import InputError

pytest.importorskip("mlflow", reason="MLflow models need the extra mlflow")
import mlflow

from snefy_ldl.apps.integrations.mlflow import IntervalModel, load_model, log_model, save_model


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # data bases need the whole of MLflow
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    yield tmp_path
    mlflow.set_tracking_uri(before)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of stores in folders, and of MLflow's own parts
@pytest.mark.parametrize("kind", ["plain", "ratios"])
def test_a_run_keeps_the_model(kind: str, store: Path) -> None:
    model, X, _ = fitted(kind)
    with mlflow.start_run():
        info = log_model(model, "city")
    np.testing.assert_array_equal(load_model(info.model_uri).predict(X), model.predict(X))
    served = mlflow.pyfunc.load_model(info.model_uri)
    answer = served.predict(X, params={"confidence_level": 0.8})
    ends = model.predict_interval(X, 0.8)
    for r, label in enumerate(label_names(model)):
        np.testing.assert_allclose(answer[label], model.predict(X)[:, r])
        np.testing.assert_allclose(answer[f"{label}_low"], ends[:, r, 0])
        np.testing.assert_allclose(answer[f"{label}_high"], ends[:, r, 1])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_calibrated_intervals_are_given_at_their_level(tmp_path: Path) -> None:
    frame = pd.DataFrame(CITY.X.copy(), columns=list("abcde"))
    D = pd.DataFrame(CITY.D, columns=["home", "work", "green"])
    model = SnefyLDL(n_neurons=6, epochs=2, guides=None, random_state=0).fit(frame, D)
    intervals = ConformalIntervals(model, [0.8, 0.95]).conformalize(frame[:80] + 0.01, D[:80])
    save_model(model, tmp_path / "city", intervals)
    served = mlflow.pyfunc.load_model(str(tmp_path / "city"))
    assert served.metadata.get_input_schema().input_names() == list("abcde")
    calibrated = intervals.predict_interval(frame)[..., 1]
    answer = served.predict(frame, params={"confidence_level": 0.95})
    np.testing.assert_allclose(answer["work_low"], calibrated[:, 1, 0], atol=1e-9)
    own = served.predict(frame)
    np.testing.assert_allclose(own["work_low"], model.predict_interval(frame, 0.9)[:, 1, 0], atol=1e-9)
    assert own.columns.tolist()[:3] == ["home", "home_low", "home_high"]


def test_text_columns_go_through() -> None:
    kind = np.where(CITY.X[:, 0] > np.median(CITY.X[:, 0]), "old", "new")
    frame = pd.DataFrame(CITY.X.copy(), columns=list("abcde")).assign(kind=kind)
    model = SnefyLDL(n_neurons=6, epochs=1, guides=None, random_state=0).fit(frame, CITY.D)
    answer = IntervalModel(model).predict(frame)
    np.testing.assert_allclose(answer["label_0"], model.predict(frame)[:, 0])


def test_refuses_what_cannot_be_saved(tmp_path: Path) -> None:
    X = (CITY.X - CITY.X.mean(0)) / CITY.X.std(0)
    own = SnefyLDL(n_neurons=4, epochs=1, backbone=torch.nn.Linear(5, 4), random_state=0).fit(X, CITY.D)
    with pytest.raises(InputError, match="never saved"):
        save_model(own, tmp_path / "own")
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").touch()
    with pytest.raises(InputError, match="exists already"):
        save_model(fitted("plain")[0], tmp_path / "there")
