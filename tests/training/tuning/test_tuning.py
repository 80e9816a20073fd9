"""The search: the scores of lone fits, the choice scikit-learn would make, and errors before any work."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from scipy import stats
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, GroupKFold, KFold, RandomizedSearchCV, ShuffleSplit

from snefy_ldl import SnefyLDL
from snefy_ldl.datasets import make_annotators, make_city_districts
from snefy_ldl.errors import InputError, TrainingError, TrainingWarning
from snefy_ldl.learners import SABFGS
from snefy_ldl.metrics.points import kl_divergence
from snefy_ldl.tuning import score_table, tune

SMALL = {"n_neurons": 8, "n_readouts": 4, "hidden_sizes": (10,), "epochs": 4, "random_state": 0, "guides": None}
#: Stacked and lone fits differ by the rounding of float32 sums.
CLOSE = {"atol": 2e-3}


@pytest.fixture(scope="module")
def city():
    return make_city_districts(n=151, random_state=1)


@pytest.fixture(scope="module")
def base():
    return SnefyLDL(**SMALL)


SPACE = [{"learning_rate": [1e-3, 2e-2], "weight_decay": [0.0, 3.0]}, {"n_neurons": [5], "standardize": ["unit"]}]


@pytest.fixture(scope="module")
def oracle(city, base):
    return GridSearchCV(base, SPACE, cv=KFold(3, shuffle=True, random_state=4)).fit(city.X, city.D)


@pytest.mark.slow
@pytest.mark.parametrize("n_jobs", [1, 2])
def test_a_grid_is_scikit_learns_grid(city, base, oracle, n_jobs, monkeypatch):
    """GridSearchCV fits each model alone and knows nothing of stacks; folds of 151 rows have two sizes."""
    monkeypatch.setattr("snefy_ldl.tuning.CPU_MODELS", 4)  # several calls of fit_many
    found = tune(base, city.X, city.D, SPACE, cv=3, random_state=4, n_jobs=n_jobs)
    assert found.best_params_ == oracle.best_params_
    assert found.best_index_ == oracle.best_index_
    assert found.cv_results_["params"] == oracle.cv_results_["params"]
    for name in ("split0_test_score", "split1_test_score", "split2_test_score", "mean_test_score", "std_test_score"):
        np.testing.assert_allclose(found.cv_results_[name], oracle.cv_results_[name], **CLOSE)
    np.testing.assert_array_equal(found.cv_results_["rank_test_score"], oracle.cv_results_["rank_test_score"])
    np.testing.assert_array_equal(found.cv_results_["param_n_neurons"].mask, oracle.cv_results_["param_n_neurons"].mask)
    np.testing.assert_allclose(
        found.best_estimator_.predict(city.X), oracle.best_estimator_.predict(city.X), rtol=0, atol=1e-12
    )


@pytest.mark.slow
def test_random_draws_are_scikit_learns(city, base):
    space = {"learning_rate": stats.loguniform(1e-4, 1e-1), "n_members": [1, 2]}
    found = tune(base, city.X, city.D, space, n_iter=4, cv=2, random_state=3, refit=False, n_jobs=1)
    folds = KFold(2, shuffle=True, random_state=3)
    oracle = RandomizedSearchCV(base, space, n_iter=4, cv=folds, random_state=3, refit=False).fit(city.X, city.D)
    assert found.cv_results_["params"] == oracle.cv_results_["params"]
    np.testing.assert_allclose(found.cv_results_["mean_test_score"], oracle.cv_results_["mean_test_score"], **CLOSE)
    assert found.best_estimator_ is None


@pytest.mark.slow
def test_a_hand_loop_of_lone_fits_on_another_score(city, base):
    space = {"learning_rate": [1e-4, 5e-3, 2e-2], "random_state": [0, 7]}
    cv = ShuffleSplit(2, test_size=0.3, random_state=0)
    weights = np.linspace(0.5, 2.0, len(city.X))
    found = tune(base, city.X, city.D, space, cv=cv, scoring="kl", sample_weight=weights, refit=False, n_jobs=1)
    by_hand = []
    for setting in found.cv_results_["params"]:
        row = []
        for train, test in cv.split(city.X):
            model = clone(base).set_params(**setting).fit(city.X[train], city.D[train], sample_weight=weights[train])
            rows = kl_divergence(city.D[test], model.predict(city.X[test]), per_row=True)
            row.append(float(np.dot(rows, weights[test]) / weights[test].sum()))
        by_hand.append(row)
    by_hand = np.array(by_hand)
    for fold in range(2):
        np.testing.assert_allclose(found.cv_results_[f"split{fold}_test_score"], by_hand[:, fold], rtol=1e-2)
    assert not found.higher_is_better
    assert found.best_index_ == int(by_hand.mean(1).argmin())
    assert found.best_score_ == pytest.approx(by_hand.mean(1).min(), rel=1e-2)


def test_votes(base):
    data = make_annotators(n=60, random_state=0)
    counts = np.asarray(data.counts)
    folds = [(np.arange(30), np.arange(30, 60)), (np.arange(30, 60), np.arange(30))]
    found = tune(base, data.X, space={"epochs": [1, 4]}, counts=counts, cv=folds, n_jobs=1)
    for k, epochs in enumerate((1, 4)):
        train, test = folds[0]
        model = clone(base).set_params(epochs=epochs).fit(data.X[train], counts=counts[train])
        lone = float(model.log_prob(data.X[test], counts=counts[test]).mean())
        assert found.cv_results_["split0_test_score"][k] == pytest.approx(lone, abs=2e-3)
    share = tune(base, data.X, space={"epochs": [4]}, counts=counts, cv=folds, scoring="cosine", refit=False, n_jobs=1)
    assert 0.0 < share.best_score_ <= 1.0


def test_the_one_standard_error_rule():
    scores = np.array([[1.0, 2.0, 3.0], [1.4, 1.6, 1.5], [0.1, 0.2, 0.3], [np.nan, 9.0, 9.0]])
    settings = [{"n_neurons": 64}, {"n_neurons": 8}, {"n_neurons": 2}, {"n_neurons": 1}]
    table = score_table(settings, scores, higher=True)
    np.testing.assert_allclose(table["se_test_score"][0], 1.0 / np.sqrt(3.0))  # sd 1 over 3 folds
    assert table["within_one_se"].tolist() == [True, True, False, False]  # 2.0 - 0.577 lies below 1.5
    assert table["rank_test_score"].tolist() == [1, 2, 3, 4]
    lower = score_table(settings, scores, higher=False)
    assert lower["rank_test_score"].tolist() == [3, 2, 1, 4]
    assert lower["within_one_se"].tolist() == [False, False, True, False]


def test_the_result_reads_well(city, base):
    found = tune(base, city.X, city.D, {"weight_decay": [0.0, 0.1, 1.0, 2.0, 3.0, 4.0]}, cv=2, random_state=0, n_jobs=1)
    text = repr(found)
    assert "6 settings x 2 folds, log_likelihood (higher is better)" in text
    assert "1 more: to_frame()" in text
    frame = found.to_frame()
    assert isinstance(frame, pd.DataFrame)
    assert frame["rank_test_score"].is_monotonic_increasing
    assert frame["mean_test_score"][0] == found.best_score_
    assert frame["setting"][0] == found.best_index_


@pytest.mark.slow
def test_tables_sparse_features_and_other_splits(city, base):
    names = [f"x{k}" for k in range(city.X.shape[1])]
    folds = list(GroupKFold(3).split(city.X, groups=np.arange(len(city.X)) // 10))
    plain = tune(base, city.X, city.D, {"epochs": [2, 3]}, cv=folds, n_jobs=1)
    frames = tune(
        base, pd.DataFrame(city.X, columns=names), pd.DataFrame(city.D, columns=["a", "b", "c"]), {"epochs": [2, 3]},
        cv=folds, n_jobs=1,
    )  # fmt: skip
    sparse = tune(base, sp.csr_matrix(city.X), city.D, {"epochs": [2, 3]}, cv=folds, refit=False, n_jobs=1)
    for other in (frames, sparse):
        np.testing.assert_allclose(other.cv_results_["mean_test_score"], plain.cv_results_["mean_test_score"], **CLOSE)
    assert list(frames.best_estimator_.feature_names_in_) == names
    assert list(frames.best_estimator_.predict(pd.DataFrame(city.X, columns=names)).columns) == ["a", "b", "c"]


@pytest.mark.slow
def test_the_estimator_and_its_seed(city):
    unseeded = SnefyLDL(**{**SMALL, "random_state": None})
    space = {"learning_rate": [1e-3, 1e-2]}
    first, second = (
        tune(unseeded, city.X, city.D, space, cv=2, random_state=5, refit=False, n_jobs=1) for _ in range(2)
    )
    np.testing.assert_array_equal(first.cv_results_["mean_test_score"], second.cv_results_["mean_test_score"])
    assert not hasattr(unseeded, "net_")
    assert unseeded.random_state is None
    other = tune(unseeded, city.X, city.D, space, cv=2, random_state=6, refit=False, n_jobs=1)
    assert not np.array_equal(first.cv_results_["mean_test_score"], other.cv_results_["mean_test_score"])


@pytest.mark.slow
def test_a_setting_that_diverges_harms_no_other(city, base):
    with pytest.warns(TrainingWarning, match=r"1000000\.0\} could not be trained") as caught:
        found = tune(base, city.X, city.D, {"learning_rate": [5e-3, 1e6]}, cv=2, random_state=0, n_jobs=1)
    assert len(caught) == 1  # one a setting, not one a repair
    assert found.best_params_ == {"learning_rate": 5e-3}
    assert np.isnan(found.cv_results_["mean_test_score"][1])
    calm = tune(base, city.X, city.D, {"learning_rate": [5e-3]}, cv=2, random_state=0, refit=False, n_jobs=1)
    assert found.best_score_ == pytest.approx(calm.best_score_, abs=2e-3)
    with pytest.warns(TrainingWarning), pytest.raises(TrainingError, match="no setting could be trained"):
        tune(base, city.X, city.D, {"learning_rate": [1e6]}, cv=2, n_jobs=1)


def test_own_scores(city, base):
    def lowest_share(model, X, D):
        return float(model.predict(X).min())

    found = tune(base, city.X, city.D, {"epochs": [1, 3]}, cv=2, scoring=lowest_share, refit=False, n_jobs=1)
    assert found.scoring == "lowest_share"
    assert found.best_score_ == found.cv_results_["mean_test_score"].max()


def test_the_bar_is_drawn_on_stderr(city, base, capsys):
    tune(base, city.X, city.D, {"epochs": [1]}, cv=2, refit=False, n_jobs=1, verbose=1)
    out, err = capsys.readouterr()
    assert not out
    assert "2/2" in err


def no_fit(*_, **__):
    raise AssertionError("a fit was started")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"space": None}, "space is empty"),
        ({"space": {"lerning_rate": [1e-3]}}, "lerning_rate"),
        ({"space": {"epochs": 3}}, "list"),
        ({"space": {"epochs": [3, 0]}}, "epochs must be a whole number"),
        ({"space": {"zeros": ["shrink", 1e-3]}}, "do not compare"),
        ({"space": {"learning_rate": stats.loguniform(1e-4, 1e-2)}}, "n_iter draws from distributions"),
        ({"scoring": "accuracy"}, "use one of log_likelihood, kl"),
        ({"cv": 1}, "cv must be a number of folds"),
        ({"cv": 2.5}, "cv must be a number of folds"),
        ({"cv": [np.arange(50)]}, "cv must be a number of folds"),
        ({"cv": [(np.arange(3), np.arange(3, 6))]}, "3 training and 3 test rows"),
        ({"cv": [(np.arange(9), np.arange(5, 20))]}, "tests on rows it trains on"),
        ({"cv": [(np.arange(9), np.arange(990, 999))]}, "cv names row 998"),
        ({"estimator": SABFGS()}, "GridSearchCV"),
    ],
)  # fmt: skip
def test_errors_come_before_any_fit(city, base, monkeypatch, options, message):
    monkeypatch.setattr("snefy_ldl.tuning.fit_many", no_fit)
    arguments = {"estimator": base, "X": city.X, "D": city.D, "space": {"epochs": [1, 2]}} | options
    with pytest.raises(InputError, match=message):
        tune(**arguments)


@pytest.mark.data
def test_real_labels():
    from snefy_ldl import load_dataset

    data = load_dataset("sjaffe")
    base = SnefyLDL(epochs=8, random_state=0)
    found = tune(base, data.X, data.D, {"learning_rate": [1e-4, 5e-3]}, cv=3, random_state=0, refit=False, n_jobs=1)
    assert found.best_params_ == {"learning_rate": 5e-3}
    assert found.best_score_ > 8.0
