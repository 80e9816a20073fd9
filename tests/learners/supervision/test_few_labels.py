"""RankMatch and SemiSnefyLDL: losses by hand, optima, what unlabelled rows change, files and errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.special import softmax

from snefy_ldl.errors import InputError
from snefy_ldl.learners import SABFGS, check_learner
from snefy_ldl.learners.supervision import RankMatch, SemiSnefyLDL
from snefy_ldl.learners.supervision.rankmatch import ranking_loss
from snefy_ldl.metrics import kl_divergence

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(220, 3))
D = softmax(X @ RANDOM.normal(size=(3, 4)) + 0.1 * RANDOM.normal(size=(220, 4)), axis=1)
FEW, REST, TEST = slice(0, 20), slice(20, 150), slice(150, 220)
QUICK = {"epochs": 4, "guides": None}


@pytest.mark.parametrize("margins", [True, False])
def test_ranking_loss_by_hand_and_its_gradient(margins: bool) -> None:
    P = softmax(RANDOM.normal(size=(6, 4)), axis=1)
    expected = []
    for p, d in zip(P, D[:6]):
        pairs = [(j, k) for j in range(4) for k in range(4) if d[j] - d[k] > 0.05]
        hinges = [max(0.0, (d[j] - d[k] if margins else 0.0) - (p[j] - p[k])) for j, k in pairs]
        expected.append(sum(hinges) / 6)
    true = torch.from_numpy(D[:6])
    loss = ranking_loss(torch.from_numpy(P), true, 0.05, margins=margins)
    np.testing.assert_allclose(loss.numpy(), expected, atol=1e-3)
    logits = torch.from_numpy(RANDOM.normal(size=(6, 4))).requires_grad_()
    rows = lambda z: ranking_loss(torch.softmax(z, dim=1), true, 0.05, margins=margins).sum()  # noqa: E731
    assert torch.autograd.gradcheck(rows, logits, eps=1e-7, atol=1e-4)


def test_without_ranking_and_other_rows_it_is_sabfgs() -> None:
    plain = SABFGS(l2=0.3).fit(X[FEW], D[FEW]).predict(X[TEST])
    same = RankMatch(alpha=0.0, l2=0.3).fit(X[FEW], D[FEW]).predict(X[TEST])
    np.testing.assert_allclose(same, plain, atol=1e-4)


def test_rows_without_labels_count_by_their_weight() -> None:
    base = RankMatch(weight=0.0, random_state=0).fit(X[FEW], D[FEW], X[REST]).predict(X[TEST])
    alone = RankMatch(random_state=0).fit(X[FEW], D[FEW]).predict(X[TEST])
    np.testing.assert_allclose(base, alone, atol=1e-3)
    heavy = RankMatch(weight=3.0, strong=1.5, random_state=0).fit(X[FEW], D[FEW], X[REST]).predict(X[TEST])
    assert np.abs(heavy - alone).max() > 1e-2
    spread = [np.abs(P - P.mean(axis=0)).mean() for P in (alone, heavy)]
    assert spread[1] < spread[0]  # answers that must not change under much noise are flatter


@pytest.mark.parametrize("model", [RankMatch(), SemiSnefyLDL(density_params=QUICK)], ids=["RankMatch", "SemiSnefyLDL"])
def test_the_contract_of_a_learner(model: Any) -> None:
    check_learner(model)


@pytest.mark.parametrize("model", [RankMatch(), SemiSnefyLDL(density_params=QUICK)], ids=["RankMatch", "SemiSnefyLDL"])
def test_files_names_and_errors(model: Any, tmp_path: Path) -> None:
    names = ["a", "b", "c", "d"]
    frame = pd.DataFrame(X, columns=["u", "v", "w"])
    model.set_params(random_state=0).fit(frame[:20], pd.DataFrame(D[:20], columns=names), frame[20:60])
    P = model.predict(frame[150:])
    assert list(P.columns) == names
    twin = type(model).load(model.save(tmp_path / "model"))
    np.testing.assert_array_equal(twin.predict(frame[150:]), P)
    with pytest.raises(InputError):
        model.fit(X[FEW], D[FEW], X[REST, :2])
    assert not hasattr(model, "_unlabelled")  # nothing of the rows stays behind


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
