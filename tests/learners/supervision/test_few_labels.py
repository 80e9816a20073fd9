"""SemiSnefyLDL: what unlabelled rows change, pseudo-labels, files and errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.special import softmax

from snefy_ldl.errors import InputError
from snefy_ldl.learners import SABFGS, check_learner
from snefy_ldl.learners.supervision import SemiSnefyLDL
from snefy_ldl.metrics import kl_divergence

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(220, 3))
D = softmax(X @ RANDOM.normal(size=(3, 4)) + 0.1 * RANDOM.normal(size=(220, 4)), axis=1)
FEW, REST, TEST = slice(0, 20), slice(20, 150), slice(150, 220)
QUICK = {"epochs": 4, "guides": None}


def test_the_contract_of_a_learner() -> None:
    check_learner(SemiSnefyLDL(density_params=QUICK))


def test_files_names_and_errors(tmp_path: Path) -> None:
    model = SemiSnefyLDL(density_params=QUICK)
    names = ["a", "b", "c", "d"]
    frame = pd.DataFrame(X, columns=["u", "v", "w"])
    model.set_params(random_state=0).fit(frame[:20], pd.DataFrame(D[:20], columns=names), frame[20:60])
    P = model.predict(frame[150:])
    assert list(P.columns) == names
    twin = SemiSnefyLDL.load(model.save(tmp_path / "model"))
    np.testing.assert_array_equal(twin.predict(frame[150:]), P)
    with pytest.raises(InputError):
        model.fit(X[FEW], D[FEW], X[REST, :2])
    assert not hasattr(model, "_unlabelled")  # nothing of the rows stays behind


@pytest.mark.slow
def test_pseudo_labels_are_means_of_what_teachers_say(tmp_path: Path) -> None:
    class Fixed(SABFGS):
        def _predict(self, X: Any) -> Any:
            return np.tile([0.97, 0.01, 0.01, 0.01], (len(X), 1))

    model = SemiSnefyLDL(teachers=[SABFGS(), Fixed()], density_params={**QUICK, "epochs": 15}, random_state=0)
    model.fit(X[:60], D[:60], X[60:150])
    assert model.pseudo_labels_.shape == (90, 4)
    np.testing.assert_allclose(model.pseudo_labels_.sum(axis=1), 1.0)
    assert model.teacher_weights_.sum() == pytest.approx(1.0)
    assert model.teacher_weights_[2] < 0.5 * model.teacher_weights_[1]  # the density finds it implausible
    error = np.abs(model.pseudo_labels_ - D[60:150]).mean()
    assert error < np.abs(D[60:150] - D[:60].mean(axis=0)).mean()
    dist = model.predict_dist(X[TEST])
    np.testing.assert_allclose(dist.mean.numpy(), model.predict(X[TEST]), atol=1e-5)


def test_weight_zero_fits_the_labelled_rows_alone() -> None:
    alone = SemiSnefyLDL(weight=0.0, density_params=QUICK, random_state=3).fit(X[FEW], D[FEW], X[REST])
    none = SemiSnefyLDL(density_params=QUICK, random_state=3).fit(X[FEW], D[FEW])
    np.testing.assert_array_equal(alone.predict(X[TEST]), none.predict(X[TEST]))
    assert alone.pseudo_labels_.shape == (0, 4)
    assert kl_divergence(D[TEST], none.predict(X[TEST])) > 0.0


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"weight": -1.0}, "weight"),
        ({"teachers": [SABFGS]}, "fit and predict"),
        ({"density_params": {"x": 1}}, "density"),
    ],
)
def test_bad_settings(params: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        SemiSnefyLDL(**params).fit(X[FEW], D[FEW], X[REST])
