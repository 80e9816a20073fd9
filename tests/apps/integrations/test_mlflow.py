"""A model folder as a pyfunc model of MLflow."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from integration_models import CITY, fitted
from snefy_ldl import SnefyLDL, load
from snefy_ldl.apps.integrations.mlflow import IntervalModel
from snefy_ldl.apps.rows import label_names
from snefy_ldl.conformal import ConformalIntervals
from snefy_ldl.persistence import save_calibration

LOADER = "snefy_ldl.apps.integrations.mlflow"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of MLflow's own parts
@pytest.mark.parametrize("kind", ["plain", "ratios"])
def test_a_folder_is_a_pyfunc_model(kind: str, tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow", reason="MLflow models need the extra mlflow")
    model, X, D = fitted(kind)
    folder, place, answers = model.save(tmp_path / "model"), tmp_path / kind, []
    for ends in (model.predict_interval(X, 0.9), None):
        if ends is None:
            intervals = ConformalIntervals(model, [0.8, 0.95]).conformalize(X[:80] + 0.01, D[:80])
            save_calibration(folder, intervals.to_dict())
            ends, place = intervals.predict_interval(X)[..., 0], tmp_path / "calibrated"
        needs = ["snefy-ldl"]
        mlflow.pyfunc.save_model(str(place), loader_module=LOADER, data_path=str(folder), pip_requirements=needs)
        answer = mlflow.pyfunc.load_model(str(place)).predict(X)
        for r, label in enumerate(label_names(model)):
            np.testing.assert_allclose(answer[label], model.predict(X)[:, r])
            np.testing.assert_allclose(answer[[f"{label}_low", f"{label}_high"]], ends[:, r], atol=1e-9)
        answers.append(answer)
        np.testing.assert_array_equal(load(place / "data" / "model").predict(X), model.predict(X))
    assert not np.allclose(*answers)


def test_text_columns_go_through() -> None:
    kind = np.where(CITY.X[:, 0] > np.median(CITY.X[:, 0]), "old", "new")
    frame = pd.DataFrame(CITY.X.copy(), columns=list("abcde")).assign(kind=kind)
    model = SnefyLDL(n_neurons=6, epochs=1, guides=None, random_state=0).fit(frame, CITY.D)
    answer = IntervalModel(model).predict(frame)
    np.testing.assert_allclose(answer["label_0"], model.predict(frame)[:, 0])
