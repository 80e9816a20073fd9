"""One suite for every learner: a class that is missing from CASES fails it."""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import scipy.stats
import torch
from scipy.optimize import approx_fprime, check_grad
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import snefy_ldl.learners as package
from snefy_ldl.errors import InputError, ModelFileError, ZeroLabelWarning
from snefy_ldl.learners import (
    AABP,
    AAKNN,
    ACPNN,
    BCPNN,
    CPNN,
    DFLDL,
    LDLDPA,
    LDLLRR,
    LDLSCL,
    PTSVM,
    SABFGS,
    SAIIS,
    DirichletLDL,
    LDLForest,
    PTBayes,
    all_learners,
)
from snefy_ldl.learners.base import Learner, mean_kl
from snefy_ldl.learners.conditional import conditional_objective
from snefy_ldl.learners.correlation import correlation_objective
from snefy_ldl.learners.decomposition import stacked_objective
from snefy_ldl.learners.dirichlet import dirichlet_entropy, dirichlet_objective, fit_concentration
from snefy_ldl.learners.features import CLIP, Design, column_scale, leave_one_out
from snefy_ldl.learners.forest import leaf_probabilities
from snefy_ldl.learners.maxent import softmax, softmax_linear_objective
from snefy_ldl.learners.ranking import percentile_term, ranking_term


@dataclass(frozen=True)
class Case:
    """How the shared suite treats one learner."""

    learner: type[Learner]
    quick: dict[str, Any] = field(default_factory=dict)  # hyperparameters that make scikit-learn's checks short
    permutes: bool = True  # permuting the labels permutes the answer
    tolerance: float = 1e-3


CASES = {
    "SABFGS": Case(SABFGS),
    "SAIIS": Case(SAIIS, {"max_iter": 50}),
    "DFLDL": Case(DFLDL),
    "LDLSCL": Case(LDLSCL, {"n_clusters": 2}, tolerance=5e-2),  # clustering starts from other rows
    "LDLLRR": Case(LDLLRR),
    "LDLDPA": Case(LDLDPA),
    "PTBayes": Case(PTBayes),
    "PTSVM": Case(PTSVM),
    "AAKNN": Case(AAKNN),
    "AABP": Case(AABP, {"n_hidden": 4, "max_iter": 5}, permutes=False),  # start weights belong to positions
    "CPNN": Case(CPNN, {"n_hidden": 4, "max_iter": 5}, permutes=False),  # the labels' numbers matter
    "BCPNN": Case(BCPNN, {"n_hidden": 4, "max_iter": 5}, permutes=False),
    "ACPNN": Case(ACPNN, {"n_hidden": 4, "max_iter": 5}, permutes=False),
    "LDLForest": Case(LDLForest, {"depth": 2, "n_rounds": 2, "max_iter": 3}, permutes=False),
    "DirichletLDL": Case(DirichletLDL),
}
every_learner = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def softmax_linear_data(n: int = 120, d: int = 5, n_labels: int = 4, seed: int = 0) -> tuple[Any, Any]:
    random = np.random.default_rng(seed)
    X = random.normal(size=(n, d)) * np.array([1.0, 10.0, 0.1, 1.0, 1000.0])[:d] + 3.0
    weights = random.normal(size=(d, n_labels)) * 0.6
    logits = (X - 3.0) / np.array([1.0, 10.0, 0.1, 1.0, 1000.0])[:d] @ weights
    alpha = 60.0 * softmax(logits)
    return X, np.stack([random.dirichlet(a + 0.5) for a in alpha])


X, D = softmax_linear_data()
TRAIN, TEST = slice(0, 80), slice(80, 120)


def make(case: Case, **params: Any) -> Learner:
    return case.learner(random_state=0, **params)


# --- the registry -----------------------------------------------------------------------------------------------------


def test_no_learner_is_missing_from_this_suite() -> None:
    exported = {
        name
        for name in package.__all__
        if isinstance(getattr(package, name), type) and issubclass(getattr(package, name), Learner)
    }
    assert exported == set(all_learners()) == set(CASES)
    assert len(CASES) == 15

    def leaves(cls: type[Learner]) -> set[str]:
        found = {cls.__name__} if cls.__module__.startswith("snefy_ldl.learners.") else set()
        return found.union(*(leaves(c) for c in cls.__subclasses__()))

    abstract = {"Learner", "ScaledLearner", "UnitLearner", "Network", "_SoftmaxLinear"}
    assert leaves(Learner) - abstract == set(CASES)


# --- what every learner must do ---------------------------------------------------------------------------------------


@every_learner
def test_predictions_are_distributions_and_beat_the_mean_label(case: Case) -> None:
    model = make(case).fit(X[TRAIN], D[TRAIN])
    P = model.predict(X[TEST])
    assert isinstance(P, np.ndarray)
    assert P.shape == (40, 4)
    np.testing.assert_allclose(P.sum(axis=1), 1.0, atol=1e-12)
    assert (P > 0).all()
    baseline = mean_kl(D[TEST], np.broadcast_to(D[TRAIN].mean(axis=0), (40, 4)))
    assert -model.score(X[TEST], D[TEST]) < 0.6 * baseline
    assert model.score(X[TEST], D[TEST]) == pytest.approx(-mean_kl(D[TEST], P))


@every_learner
def test_clone_keeps_hyperparameters_and_unfits(case: Case) -> None:
    model = make(case, **case.quick).fit(X, D)
    twin = clone(model)
    assert twin.get_params() == clone(twin).get_params()
    assert repr(twin.get_params()) == repr(model.get_params())
    with pytest.raises(NotFittedError):
        twin.predict(X)


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
    np.testing.assert_allclose(predicted.to_numpy(), make(case, **case.quick).fit(X, D).predict(X), atol=1e-6)
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
    model = make(case, **case.quick).fit(features, labels)
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
        warnings.simplefilter("ignore", ZeroLabelWarning)
        P = make(case, **case.quick).fit(X, labels).predict(X)
    assert np.isfinite(np.log(P)).all()


def _changed(table: Any, row: int, column: int, value: float) -> Any:
    out = np.array(table, dtype=float)
    out[row, column] = value
    return out


BAD = {
    "NaN feature": (_changed(X, 3, 1, np.nan), D, "NaN at row 3, column 1"),
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
    model = make(case, **case.quick).fit(X, D)
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
        "fusion": "odd",
        "n_clusters": 0,
        "alpha": -1.0,
        "beta": -1.0,
        "sharpness": 0.0,
        "strength": -1.0,
    }
    wrong |= {"n_copies": 0, "n_folds": 1, "depth": 0, "n_trees": 0, "n_units": 0, "n_rounds": 0, "method": "odd"}
    wrong |= {"zeros": "odd", "mean": 3, "standardize": "yes"}
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


# --- scikit-learn's own checks ----------------------------------------------------------------------------------------

#: Checks whose wording or type of error differs from the library's on purpose, with the reason.
EXPECTED_FAILURES = {
    "check_dtype_object": "asks for TypeError where the library raises InputError, a ValueError",
}


def _on_simplex(y: Any) -> Any:
    """Two-label distributions from scikit-learn's targets."""
    y = np.asarray(y)
    if y.dtype.kind in "OUS":
        y = np.unique(y, return_inverse=True)[1]
    y = np.asarray(y, dtype=float)
    if y.ndim == 2:
        y = y[:, 0]
    if not np.isfinite(y).all():
        return np.stack([y, 1.0 - y], axis=1)
    share = 1.0 / (1.0 + np.exp(-(y - y.mean()) / (y.std() + 1.0)))
    return np.stack([share, 1.0 - share], axis=1)


def on_simplex(learner: type[Learner]) -> type[Learner]:
    """The learner with ``y`` mapped to ``[σ(z), 1 - σ(z)]``, z the standardised target; it predicts the first share."""

    class OnSimplex(learner):  # type: ignore[misc, valid-type]
        def fit(self, X: Any, y: Any) -> Any:
            if y is None:
                raise ValueError("requires y to be passed, but the target y is None")
            return super().fit(X, _on_simplex(y))

        def score(self, X: Any, y: Any) -> float:
            return float(super().score(X, _on_simplex(y)))

        def predict(self, X: Any) -> Any:
            return np.asarray(super().predict(X))[:, 0]

        def __sklearn_tags__(self) -> Any:
            tags = super().__sklearn_tags__()
            tags.target_tags.multi_output = False
            return tags

    OnSimplex.__name__ = OnSimplex.__qualname__ = f"OnSimplex{learner.__name__}"
    OnSimplex.__init__ = learner.__init__  # type: ignore[method-assign]
    globals()[OnSimplex.__name__] = OnSimplex  # where pickle looks
    return OnSimplex


@every_learner
def test_scikit_learn_checks(case: Case) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = check_estimator(
            on_simplex(case.learner)(**case.quick),
            expected_failed_checks=EXPECTED_FAILURES,
            on_fail=None,
            on_skip=None,
        )
    failed = {r["check_name"]: str(r["exception"]) for r in results if r["status"] == "failed"}
    assert not failed
    assert sum(r["status"] == "passed" for r in results) > 30


# --- files ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path: Any) -> Any:
    return SABFGS().fit(X, D).save(tmp_path / "model")


def _edit(folder: Any, **changes: Any) -> None:
    config = json.loads((folder / "model.json").read_text())
    (folder / "model.json").write_text(json.dumps(config | changes))


def test_damaged_foreign_and_newer_files_are_refused(saved: Any, tmp_path: Any) -> None:
    with pytest.raises(ModelFileError, match="missing"):
        SABFGS.load(tmp_path / "nowhere")
    with pytest.raises(ModelFileError, match="holds a SABFGS, not a AAKNN"):
        AAKNN.load(saved)
    assert type(Learner.load(saved)) is SABFGS
    (array_file,) = saved.glob("*.safetensors")
    with pytest.raises(ModelFileError, match="is a file"):
        SABFGS.load(array_file)
    whole = array_file.read_bytes()
    array_file.write_bytes(whole[:-8])
    with pytest.raises(ModelFileError, match="checksum"):
        SABFGS.load(saved)
    array_file.unlink()
    with pytest.raises(ModelFileError, match="missing"):
        SABFGS.load(saved)
    array_file.write_bytes(whole)
    _edit(saved, format_version=99)
    with pytest.raises(ModelFileError, match="Upgrade"):
        SABFGS.load(saved)
    _edit(saved, format_version=1, format="other")
    with pytest.raises(ModelFileError, match="not written by"):
        SABFGS.load(saved)
    _edit(saved, format="snefy_ldl.learner", learner={"class": "os.system"})
    with pytest.raises(ModelFileError, match="not known"):
        SABFGS.load(saved)
    _edit(saved, learner={"class": "SABFGS", "params": {"l2": {"value": 1}, "evil": {"value": 1}}})
    with pytest.raises(ModelFileError, match="damaged"):
        SABFGS.load(saved)
    (saved / "model.json").write_text("{")
    with pytest.raises(ModelFileError, match="damaged"):
        SABFGS.load(saved)


def test_save_leaves_foreign_folders_alone_and_replaces_its_own(saved: Any, tmp_path: Any) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(ModelFileError, match="left alone"):
        SABFGS().fit(X, D).save(tmp_path / "mine")
    AAKNN().fit(X, D).save(saved)
    assert len(list(saved.iterdir())) == 2
    assert type(Learner.load(saved)) is AAKNN
    with pytest.raises(NotFittedError):
        SABFGS().save(tmp_path / "new")


# --- objectives: gradients, optima, known answers ---------------------------------------------------------------------


def _max_gradient_error(objective: Any, size: int, seed: int = 0, scale: float = 0.3) -> float:
    point = np.random.default_rng(seed).normal(size=size) * scale
    error = check_grad(lambda w: objective(w)[0], lambda w: objective(w)[1], point, epsilon=1e-7)
    return float(error / max(1.0, np.linalg.norm(objective(point)[1])))


def test_gradients_agree_with_differences() -> None:
    scaled = (X - X.mean(axis=0)) / X.std(axis=0)
    design = Design.of(scaled, l2=3.0, curvature=0.25)
    r, n_labels = design.Z.shape[1], D.shape[1]
    for extra in (None, ranking_term(D, 0.3, 20.0), percentile_term(D, 0.3, 5.0)):
        assert _max_gradient_error(softmax_linear_objective(design, D, 3.0, extra), r * n_labels) < 1e-5
    correlations = np.exp(np.random.default_rng(1).normal(size=(len(D), 3)))
    objective = correlation_objective(design, D, correlations, D[:3], 3.0, 0.7)
    assert _max_gradient_error(objective, (r + 3) * n_labels) < 1e-5
    member = (D[:, [0, 1, 2]] >= D[:, [1, 2, 0]]).astype(float)
    assert _max_gradient_error(stacked_objective(design, D, member, 3.0), r * 3 * n_labels) < 1e-5
    ridge = np.full((r, 1), 0.3)
    for code in (np.eye(n_labels), np.arange(n_labels, dtype=float)[:, None]):
        conditional = conditional_objective(design.Z, code, 1.2 * D, ridge, 0.1)
        assert _max_gradient_error(conditional, (r + code.shape[1] + 1) * 3) < 1e-5
    assert _max_gradient_error(dirichlet_objective(design, np.log(D), 3.0), r * n_labels) < 1e-5


def test_ranking_term_equals_the_sum_over_all_ordered_pairs() -> None:
    P, rows = softmax(np.random.default_rng(0).normal(size=(6, 4))), D[:6]
    rows = np.concatenate([rows[:5], [[0.25, 0.25, 0.3, 0.2]]])  # with a tie
    naive = 0.0
    for p, d in zip(P, rows):
        for j in range(4):
            for k in range(4):
                order = 1.0 if d[j] > d[k] else 0.5 if d[j] == d[k] else 0.0
                guess = 1.0 / (1.0 + np.exp(-7.0 * (p[j] - p[k])))
                naive -= (d[j] - d[k]) ** 2 * (order * np.log(guess) + (1 - order) * np.log(1 - guess))
    assert ranking_term(rows, 0.3, 7.0)(P)[0] == pytest.approx(0.3 * naive / (2 * 6))


@pytest.mark.parametrize("l2", [0.0, 0.5, "auto"])
def test_iis_and_bfgs_reach_the_same_optimum(l2: Any) -> None:
    bfgs, iis = SABFGS(l2=l2).fit(X, D), SAIIS(l2=l2).fit(X, D)
    assert abs(bfgs.score(X, D) - iis.score(X, D)) < 1e-4
    np.testing.assert_allclose(iis.predict(X), bfgs.predict(X), atol=2e-3)
    assert mean_kl(bfgs.predict(X), iis.predict(X)) < 1e-4


def test_every_iis_round_lowers_the_objective() -> None:
    values = []
    for rounds in range(1, 30, 3):
        model = SAIIS(l2=0.3, max_iter=rounds, tol=1e-15).fit(X, D)
        values.append(-model.score(X, D) + 0.3 / (2 * len(X)) * (model.coef_**2).sum())
    assert (np.diff(values) < 1e-12).all()


def test_bfgs_optimum_is_a_stationary_point_in_plain_coordinates() -> None:
    model = SABFGS(l2=0.7, tol=1e-9).fit(X, D)
    scaled = np.clip((X - X.mean(axis=0)) / X.std(axis=0), -CLIP, CLIP)
    P = softmax(scaled @ model.coef_ + model.intercept_)
    assert np.abs(scaled.T @ (P - D) + 0.7 * model.coef_).max() < 1e-4
    assert np.abs((P - D).sum(axis=0)).max() < 1e-4


def test_more_features_than_rows_keep_the_optimum() -> None:
    wide = np.random.default_rng(0).normal(size=(30, 80))
    model = SABFGS(l2=2.0, tol=1e-9).fit(wide, D[:30])
    scaled = (wide - wide.mean(axis=0)) / wide.std(axis=0)
    P = softmax(scaled @ model.coef_ + model.intercept_)
    assert np.abs(scaled.T @ (P - D[:30]) + 2.0 * model.coef_).max() < 1e-4


def test_ranking_learners_without_their_terms_are_the_plain_model() -> None:
    plain = SABFGS().fit(X, D).predict(X)
    np.testing.assert_allclose(LDLLRR(alpha=0.0).fit(X, D).predict(X), plain, atol=1e-6)
    np.testing.assert_allclose(LDLDPA(alpha=0.0, beta=0.0).fit(X, D).predict(X), plain, atol=1e-6)


def test_decomposition_models_equal_fits_on_their_rows() -> None:
    model = DFLDL(l2=1.0, standardize=False, tol=1e-9).fit(X[:, :1], D)
    rows = D[:, 0] >= D[:, 1]  # the first ordered pair
    single = SABFGS(l2=1.0, standardize=False, tol=1e-9).fit(X[rows, :1], D[rows])
    logits = X[:, :1] @ model.coef_[:, :4] + model.intercept_[:4]
    np.testing.assert_allclose(softmax(logits), single.predict(X[:, :1]), atol=1e-4)


@pytest.mark.parametrize("fusion", ["vote", "mean"])
def test_fusion_by_hand(fusion: str) -> None:
    model = DFLDL(n_neighbors=3, fusion=fusion, standardize=False).fit(X[:, :1], D)
    nearest = np.argsort(np.abs(X[:, 0] - 3.3))[:3]
    voters = D[nearest] if fusion == "vote" else D[nearest].mean(axis=0, keepdims=True)
    P = softmax((np.array([[3.3]]) @ model.coef_ + model.intercept_).reshape(-1, 4))
    expected = np.zeros(4)
    for p, (j, k) in zip(P, [(j, k) for j in range(4) for k in range(4) if j != k]):
        expected += np.mean(voters[:, j] > voters[:, k]) * p / 6
    np.testing.assert_allclose(model.predict([[3.3]])[0], expected)


def test_naive_bayes_equals_scikit_learn_on_weighted_copies() -> None:
    from sklearn.naive_bayes import GaussianNB

    scaled = (X - X.mean(axis=0)) / X.std(axis=0)
    ours = PTBayes(0.5, decorrelate=False, shared_variance=False, standardize=False).fit(scaled, D)
    theirs = GaussianNB(var_smoothing=0.5 / scaled.var(axis=0).max())
    copies, labels = np.repeat(scaled, 4, axis=0), np.tile(np.arange(4), len(X))
    theirs.fit(copies, labels, sample_weight=D.ravel())
    np.testing.assert_allclose(ours.predict(scaled), theirs.predict_proba(scaled), atol=1e-5)


def test_nearest_neighbours_by_hand() -> None:
    model = AAKNN(n_neighbors=3, weights="distance", standardize=False).fit(X[:, :1], D)
    distance = np.abs(X[:, 0] - 3.3)
    nearest = np.argsort(distance)[:3]
    weight = 1.0 / distance[nearest]
    np.testing.assert_allclose(model.predict([[3.3]])[0], weight @ D[nearest] / weight.sum())
    np.testing.assert_allclose(model.predict(X[:1, :1]), D[:1])  # a training row is its own neighbour


def test_augmented_copies_equal_their_mean() -> None:
    model = ACPNN(n_copies=2, strength=0.4)
    copies = []
    for v in (1, 2):
        copy = D.copy()
        copy[np.arange(len(D)), D.argmax(axis=1)] *= 1.0 + 0.4 / v
        copies.append(copy)
    np.testing.assert_allclose(model._targets(D), np.mean(copies, axis=0))


def test_leaf_probabilities_by_hand() -> None:
    values = torch.tensor([[0.3, -1.2, 2.0]], dtype=torch.float64)
    reach = leaf_probabilities(values, torch.tensor([[2, 0, 1]]), depth=2)
    root, left, right = torch.sigmoid(torch.tensor([2.0, 0.3, -1.2], dtype=torch.float64))
    expected = torch.stack([root * left, root * (1 - left), (1 - root) * right, (1 - root) * (1 - right)])
    torch.testing.assert_close(reach[0, 0], expected)


@pytest.mark.parametrize("n_features", [5, 40], ids=["tall", "wide"])
def test_leave_one_out_losses_equal_refits(n_features: int) -> None:
    features, labels = np.random.default_rng(0).normal(size=(15, n_features)), D[:15]
    penalties = np.array([0.5, 4.0])
    mean = labels.mean(axis=0)
    target = (labels - mean) / np.sqrt(mean)
    naive = np.empty((2, 15))
    for k, penalty in enumerate(penalties):
        for i in range(15):
            rest = np.delete(np.arange(15), i)
            ridge = Ridge(alpha=penalty * 4).fit(features[rest], target[rest])
            naive[k, i] = 0.5 * ((ridge.predict(features[[i]])[0] - target[i]) ** 2).sum()
    np.testing.assert_allclose(leave_one_out(features, labels, penalties), naive)


def test_automatic_scaling_follows_the_evidence() -> None:
    random = np.random.default_rng(0)
    signal, noise = 100.0 * random.normal(size=(200, 3)), 0.01 * random.normal(size=(200, 60))
    labels = softmax(signal @ random.normal(size=(3, 4)) / 100.0)
    damped = SABFGS().fit(np.concatenate([signal, noise], axis=1), labels)
    assert (damped.feature_inverse_scale_[3:] < 0.1 / 0.01).all()  # noise of tiny spread is not blown up
    mixed = SABFGS().fit(X, D)  # the same signal in other units: the unit-free scaling stays
    np.testing.assert_allclose(mixed.feature_inverse_scale_, 1.0 / X.std(axis=0))


def test_scaling_marks_constant_columns_and_survives_extremes() -> None:
    table = np.array([[1.0, 1e300, 1e-300, 7.1], [2.0, -1e300, 3e-300, 7.1], [3.0, 1e300, 2e-300, 7.1]])
    mean, inverse = column_scale(table)
    assert inverse[3] == 0.0
    assert np.isfinite(mean).all()
    np.testing.assert_allclose(((table - mean) * inverse)[:, 0], [-(1.5**0.5), 0.0, 1.5**0.5])


# --- Dirichlet: scipy is the oracle ---------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["centred", "regression"])
def dirichlet(request: Any) -> DirichletLDL:
    return DirichletLDL(method=request.param, random_state=0).fit(X[TRAIN], D[TRAIN])


def test_dirichlet_answers_equal_scipy(dirichlet: DirichletLDL) -> None:
    rows, labels = X[TEST], D[TEST]
    alpha = dirichlet._alpha(rows)
    laws = [scipy.stats.dirichlet(a) for a in alpha]
    np.testing.assert_allclose(dirichlet.predict(rows), [law.mean() for law in laws], atol=1e-12)
    np.testing.assert_allclose(dirichlet.predict_var(rows), [law.var() for law in laws], rtol=1e-9)
    np.testing.assert_allclose(dirichlet.predict_cov(rows), [law.cov() for law in laws], rtol=1e-8, atol=1e-14)
    np.testing.assert_allclose(dirichlet.log_prob(rows, labels), [law.logpdf(d) for law, d in zip(laws, labels)])
    np.testing.assert_allclose(dirichlet.entropy(rows), [law.entropy() for law in laws])
    levels = [0.05, 0.5, 0.95]
    total = alpha.sum(axis=1, keepdims=True)
    beta = scipy.stats.beta(alpha[..., None], (total - alpha)[..., None])
    np.testing.assert_allclose(dirichlet.predict_quantiles(rows, levels), beta.ppf(levels), rtol=1e-7)
    np.testing.assert_allclose(dirichlet.predict_interval(rows, 0.9), beta.ppf([0.05, 0.95]), rtol=1e-7)


def test_dirichlet_draws_follow_the_law(dirichlet: DirichletLDL) -> None:
    draws = dirichlet.sample(X[:3], 4000, random_state=0)
    assert draws.shape == (4000, 3, 4)
    np.testing.assert_array_equal(draws, dirichlet.sample(X[:3], 4000, random_state=0))
    alpha = dirichlet._alpha(X[:3])
    for row in range(3):  # twelve tests at 1e-4: a false alarm in about 1 of 800 seeds
        for label in range(4):
            a, total = alpha[row, label], alpha[row].sum()
            assert scipy.stats.kstest(draws[:, row, label], scipy.stats.beta(a, total - a).cdf).pvalue > 1e-4
    estimate = dirichlet.entropy(X[:3], n=4000, method="model", random_state=0)
    np.testing.assert_allclose(estimate, dirichlet.entropy(X[:3]), atol=0.15)


def test_dirichlet_distribution_is_the_librarys(dirichlet: DirichletLDL) -> None:
    dist = dirichlet.predict_dist(X[:5])
    assert dist.batch_shape == (5,)
    assert dist.event_shape == (4,)
    reference = torch.distributions.Dirichlet(torch.from_numpy(dirichlet._alpha(X[:5])))
    torch.testing.assert_close(dist.log_prob(torch.from_numpy(D[:5])), reference.log_prob(torch.from_numpy(D[:5])))


def test_concentration_is_the_maximum_of_the_likelihood() -> None:
    random = np.random.default_rng(0)
    mean = np.broadcast_to([0.2, 0.3, 0.5], (4000, 3))
    draws = random.dirichlet(40.0 * mean[0], size=4000)
    found = fit_concentration(mean, np.log(draws))
    assert found == pytest.approx(40.0, rel=0.05)

    def loss(s: Any) -> float:
        return -float(np.mean([scipy.stats.dirichlet(s[0] * mean[0]).logpdf(draws[:200].T)]))

    best = fit_concentration(mean[:200], np.log(draws[:200]))
    assert abs(approx_fprime([best], loss, 1e-4)[0]) < 1e-5


def test_dirichlet_regression_recovers_its_own_law() -> None:
    random = np.random.default_rng(0)
    features = random.normal(size=(3000, 2))
    weights, bias = np.array([[0.6, -0.3, 0.1], [-0.4, 0.2, 0.5]]), np.array([2.0, 1.0, 1.5])
    labels = np.stack([random.dirichlet(a) for a in np.exp(features @ weights + bias)])
    model = DirichletLDL("regression", l2=0.0, standardize=False).fit(features, labels)
    np.testing.assert_allclose(model.coef_, weights, atol=0.06)
    np.testing.assert_allclose(model.intercept_, bias, atol=0.08)


def test_dirichlet_zero_policy() -> None:
    labels = D.copy()
    labels[0] = [0.0, 0.5, 0.3, 0.2]
    with pytest.warns(ZeroLabelWarning, match="1 of 120"):
        model = DirichletLDL().fit(X, labels)
    assert np.isfinite(model.log_prob(X, labels)).all()
    with pytest.raises(InputError, match="row 0, column 0"):
        DirichletLDL(zeros="error").fit(X, labels)
    floored = DirichletLDL(zeros=1e-4)
    with pytest.warns(ZeroLabelWarning):
        floored.fit(X, labels)
    assert floored.zero_floor_ == 1e-4


def test_dirichlet_takes_any_point_learner(tmp_path: Any) -> None:
    model = DirichletLDL(mean=AAKNN(n_neighbors=7), random_state=0).fit(X, D)
    np.testing.assert_allclose(model.predict(X), AAKNN(n_neighbors=7).fit(X, D).predict(X))
    loaded = DirichletLDL.load(model.save(tmp_path / "model"))
    assert loaded.mean.n_neighbors == 7
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
    np.testing.assert_array_equal(loaded.log_prob(X, D), model.log_prob(X, D))
    assert np.isfinite(dirichlet_entropy(model._alpha(X))).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m.predict_quantiles(X, [1.2]), "between 0 and 1"),
        (lambda m: m.predict_interval(X, 1.0), "strictly between"),
        (lambda m: m.sample(X, 0), "whole number"),
        (lambda m: m.entropy(X, method="odd"), "exact"),
        (lambda m: m.log_prob(X, D[:, :3] / D[:, :3].sum(axis=1, keepdims=True)), "fitted with 4"),
    ],
)
def test_dirichlet_refuses_bad_questions(call: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call(DirichletLDL().fit(X, D))
