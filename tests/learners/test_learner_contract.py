"""What every learner must do: a class that is missing from CASES fails here."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch
from learner_cases import (
    CASES,
    TEST,
    TRAIN,
    Case,
    D,
    X,
    every_learner,
    fitted,
    make,
)
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import snefy_ldl.learners as package
from snefy_ldl.errors import InputError, LabelWarning, TrainingError
from snefy_ldl.learners import (
    SABFGS,
    SAIIS,
    DirichletLDL,
    all_learners,
)
from snefy_ldl.learners.learner import Learner, mean_kl


def test_no_learner_is_missing_from_this_suite() -> None:
    exported = {
        name
        for name in package.__all__
        if isinstance(getattr(package, name), type) and issubclass(getattr(package, name), Learner)
    }
    assert exported == set(all_learners()) == set(CASES) - {"LogRatioLDL"}

    def leaves(cls: type[Learner]) -> set[str]:
        one_of_the_field = re.fullmatch(r"snefy_ldl\.learners\.\w+", cls.__module__)
        found = {cls.__name__} if one_of_the_field else set()
        return found.union(*(leaves(c) for c in cls.__subclasses__()))

    abstract = {
        "Learner",
        "ScaledLearner",
        "PenalisedLearner",
        "UnitLearner",
        "Network",
        "SoftmaxLinear",
        "DirichletLearner",
        "RowLinear",
        "NeighbourLearner",
        "OneLayer",
    }
    assert leaves(Learner) - abstract == set(CASES) - {"LogRatioLDL"}


def test_the_page_of_learners_names_them_all() -> None:
    page = (Path(__file__).parents[2] / "docs" / "learners.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == sorted(all_learners())
    assert f"contains {len(all_learners())} label distribution learners" in page


@every_learner
def test_predictions_are_distributions_and_beat_the_mean_label(case: Case) -> None:
    model = make(case).fit(X[TRAIN], D[TRAIN])
    P = model.predict(X[TEST])
    assert isinstance(P, np.ndarray)
    assert P.shape == (40, 4)
    np.testing.assert_allclose(P.sum(axis=1), 1.0, atol=1e-12)
    assert (P > 0).all()
    baseline = mean_kl(D[TEST], np.broadcast_to(D[TRAIN].mean(axis=0), (40, 4)))
    assert -model.score(X[TEST], D[TEST]) < case.beaten * baseline
    assert model.score(X[TEST], D[TEST]) == pytest.approx(-mean_kl(D[TEST], P))


@every_learner
def test_clone_keeps_hyperparameters_and_unfits(case: Case) -> None:
    model = fitted(case)
    twin = clone(model)
    assert twin.get_params() == clone(twin).get_params()
    assert repr(twin.get_params()) == repr(model.get_params())
    with pytest.raises(NotFittedError):
        twin.predict(X)


@pytest.mark.slow
@every_learner
def test_same_seed_same_bits_and_a_prediction_changes_nothing(case: Case) -> None:
    first = make(case).fit(X, D)
    before = first.predict(X)
    first.predict(X[:3])
    first.score(X, D)
    np.testing.assert_array_equal(first.predict(X), before)
    np.testing.assert_array_equal(make(case).fit(X, D).predict(X), before)
    np.testing.assert_array_equal(first.fit(X[:50], D[:50]).fit(X, D).predict(X), before)


@every_learner
def test_names_go_in_and_come_out(case: Case) -> None:
    features = pd.DataFrame(X, columns=list("abcde"), index=np.arange(100, 220))
    labels = pd.DataFrame(D, columns=["joy", "fear", "anger", "calm"])
    model = make(case, **case.quick).fit(features, labels)
    assert list(model.feature_names_in_) == list("abcde")
    assert model.n_features_in_ == 5
    assert model.label_names_ == list(labels.columns)
    predicted = model.predict(features)
    assert list(predicted.columns) == list(labels.columns)
    assert predicted.index.equals(features.index)
    np.testing.assert_allclose(predicted.to_numpy(), fitted(case).predict(X), atol=1e-6)
    with pytest.raises(InputError, match="feature names"):
        model.predict(features[list("edcba")])


@every_learner
def test_sparse_and_torch_inputs_equal_dense_ones(case: Case) -> None:
    sparse_X = np.where(np.abs(X - 3.0) > 1.0, X, 0.0)
    dense = make(case, **case.quick).fit(sparse_X, D)
    sparse = make(case, **case.quick).fit(sp.csr_array(sparse_X), D)
    tensors = make(case, **case.quick).fit(torch.from_numpy(sparse_X), torch.from_numpy(D))
    expected = dense.predict(sparse_X)
    np.testing.assert_array_equal(sparse.predict(sp.csc_matrix(sparse_X)), expected)
    np.testing.assert_array_equal(tensors.predict(torch.from_numpy(sparse_X)), expected)


@every_learner
@pytest.mark.parametrize("as_frame", [False, True], ids=["array", "frame"])
def test_saved_and_loaded_predictions_are_bit_equal(case: Case, as_frame: bool, tmp_path: Any) -> None:
    features = pd.DataFrame(X, columns=list("abcde")) if as_frame else X
    labels = pd.DataFrame(D, columns=list("wxyz")) if as_frame else D
    model = make(case, **case.quick).fit(features, y=labels) if as_frame else fitted(case)
    folder = model.save(tmp_path / "deep" / "model")
    model.save(folder)  # over itself
    assert {p.suffix for p in folder.iterdir()} == {".json", ".safetensors"}
    loaded = case.learner.load(folder)
    assert type(loaded) is case.learner
    assert repr(loaded.get_params()) == repr(model.get_params())
    np.testing.assert_array_equal(np.asarray(loaded.predict(features)), np.asarray(model.predict(features)))
    assert type(loaded.predict(features)) is type(model.predict(features))


@pytest.mark.parametrize(
    "case", [c for c in CASES.values() if c.permutes], ids=[n for n, c in CASES.items() if c.permutes]
)
def test_permuting_labels_permutes_the_answer(case: Case) -> None:
    order = np.array([2, 0, 3, 1])
    plain = make(case).fit(X, D).predict(X)
    permuted = make(case).fit(X, D[:, order]).predict(X)
    np.testing.assert_allclose(permuted, plain[:, order], atol=case.tolerance)


@every_learner
def test_units_far_values_and_constant_columns_do_no_harm(case: Case) -> None:
    constant = np.full((len(X), 1), 1e9 / 3)
    wide = np.concatenate([X * 1e150, constant, 1e-150 * X[:, :1]], axis=1)
    model = make(case, **case.quick).fit(wide, D)
    far = wide.copy()
    far[0] = 1e300
    assert np.isfinite(model.predict(far)).all()


@every_learner
def test_few_rows_and_two_labels(case: Case) -> None:
    labels = np.array([[0.9, 0.1], [0.5, 0.5], [0.2, 0.8]])
    for n in (1, 2, 3):
        P = make(case, **case.quick).fit(X[:n], labels[:n]).predict(X[:5])
        np.testing.assert_allclose(P.sum(axis=1), 1.0)


@every_learner
def test_exact_zeros_in_labels_are_ordinary(case: Case) -> None:
    labels = D.copy()
    labels[::3, 0] = 0.0
    labels[1::3] = [0.0, 1.0, 0.0, 0.0]
    labels[:, 3] = 0.0
    labels /= labels.sum(axis=1, keepdims=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LabelWarning)
        P = make(case, **case.quick).fit(X, labels).predict(X)
    assert np.isfinite(np.log(P)).all()


def _changed(table: Any, row: int, column: int, value: float) -> Any:
    out = np.array(table, dtype=float)
    out[row, column] = value
    return out


BAD = {
    "infinite feature": (_changed(X, 4, 2, np.inf), D, "inf at row 4, column 2"),
    "NaN label": (X, _changed(D, 5, 0, np.nan), "NaN at row 5, column 0"),
    "negative label": (X, _changed(D, 6, 1, -0.1), "negative .* at row 6, column 1"),
    "row sum": (X, _changed(D, 7, 2, 0.9 + D[7, 2]), "row 7 sums to"),
    "one-dimensional X": (X[:, 0], D, "two-dimensional"),
    "one-dimensional D": (X, D[:, 0], "two-dimensional"),
    "row mismatch": (X[:-1], D, "same number of rows"),
    "one label": (X, np.ones((len(X), 1)), "at least 2"),
    "no rows": (X[:0], D[:0], "empty"),
    "no columns": (X[:, :0], D, "0 feature"),
    "text": (np.full((len(X), 1), "a"), D, "numeric"),
}


@every_learner
@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_refused_before_any_work(case: Case, what: str, monkeypatch: Any) -> None:
    features, labels, message = BAD[what]
    monkeypatch.setattr(case.learner, "_fit", lambda *_: pytest.fail("work started"))
    model = make(case)
    with pytest.raises(InputError, match=message):
        model.fit(features, labels)
    assert not hasattr(model, "n_labels_")


@every_learner
def test_bad_input_to_a_fitted_learner(case: Case) -> None:
    model = fitted(case)
    with pytest.raises(InputError, match="expecting 5 features"):
        model.predict(X[:, :4])
    with pytest.raises(InputError, match="NaN at row 0"):
        model.predict(_changed(X, 0, 0, np.nan))
    with pytest.raises(InputError, match="fitted with 4"):
        model.score(X, D[:, :3] / D[:, :3].sum(axis=1, keepdims=True))


@every_learner
def test_bad_hyperparameters_are_refused(case: Case) -> None:
    wrong = {"l2": -1.0, "max_iter": 0, "tol": 0.0, "n_neighbors": 0, "n_hidden": 1.5, "C": -1.0, "var_smoothing": 0.0}
    wrong |= {
        "weights": "odd",
        "n_clusters": 0,
        "alpha": -1.0,
        "beta": -1.0,
        "sharpness": 0.0,
        "strength": -1.0,
    }
    wrong |= {"n_subtasks": 0, "overlap": -1.0, "subtask_weight": -1.0}
    wrong |= {"n_copies": 0, "n_folds": 1, "depth": 0, "n_trees": 0, "n_units": 0, "n_rounds": 0, "method": "odd"}
    wrong |= {"zeros": "odd", "mean": 3, "standardize": "yes", "loss": "odd", "head": "odd", "concentration": 0.0}
    tried = set(wrong) & set(case.learner().get_params())
    assert tried
    for name in tried:
        if name == "standardize" and case.learner is DirichletLDL:
            continue  # only read by method="regression"
        with pytest.raises(InputError):
            make(case, **{name: wrong[name]}).fit(X, D)


@pytest.mark.parametrize("case", [CASES["SABFGS"], CASES["AAKNN"]], ids=["SABFGS", "AAKNN"])
def test_pipelines_and_searches_take_a_learner(case: Case) -> None:
    name, grid = ("l2", [0.1, 1.0]) if case.learner is SABFGS else ("n_neighbors", [1, 5])
    search = GridSearchCV(case.learner(), {name: grid}, cv=3).fit(X, D)
    assert search.best_params_[name] in grid
    assert make_pipeline(StandardScaler(), case.learner()).fit(X, D).predict(X).shape == D.shape


@pytest.mark.slow
@every_learner
def test_a_label_that_no_row_uses_gets_next_to_nothing(case: Case) -> None:
    D_unused = np.array(D)
    D_unused[:, 1] = 0.0
    D_unused /= D_unused.sum(axis=1, keepdims=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LabelWarning)
        P = make(case).fit(X[TRAIN], D_unused[TRAIN]).predict(X[TEST])
    assert np.isfinite(P).all()
    assert (P[:, 1] < case.unused).all()


@pytest.mark.parametrize("params", [{}, {"l2": 0.0}, {"l2": 1e-3}])
def test_iterative_scaling_goes_on_when_a_share_has_sunk_to_zero(params: Any) -> None:
    # so many rounds that the share of the unused label leaves the range of float64
    random = np.random.default_rng(0)
    features, labels = random.normal(size=(30, 2)), random.dirichlet([1.0, 1.0, 2.0], 30)
    labels[:, 1] = 0.0
    labels /= labels.sum(axis=1, keepdims=True)
    model = SAIIS(tol=1e-12, **params).fit(features, labels)
    assert np.isfinite(model.coef_).all()
    reference = SABFGS(tol=1e-9, **params).fit(features, labels)
    np.testing.assert_allclose(model.predict(features), reference.predict(features), atol=1e-4)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_no_learner_returns_a_share_that_is_not_finite(value: float) -> None:
    model = SABFGS().fit(X[TRAIN], D[TRAIN])
    model.intercept_ = np.array([0.0, value, 0.0, 0.0])
    with pytest.raises(TrainingError, match="SABFGS predicts nan for label 0 of row 0"), np.errstate(invalid="ignore"):
        model.predict(X[TEST])


@every_learner
def test_text_and_gaps_are_read_and_saved(case: Case, tmp_path: Any) -> None:
    table = pd.DataFrame(X, columns=list("abcde")).assign(site=np.where(np.arange(len(X)) % 3 > 0, "dry", "wet"))
    table.loc[:5, "a"] = np.nan
    model = make(case, **case.quick).fit(table, D)
    P = model.predict(table)
    np.testing.assert_allclose(np.asarray(P).sum(axis=1), 1)
    np.testing.assert_array_equal(type(model).load(model.save(tmp_path / "m")).predict(table), P)
    gaps = make(case, **case.quick).fit(_changed(X, 3, 1, np.nan), D)
    assert np.isfinite(gaps.predict(_changed(X, 0, 0, np.nan))).all()
