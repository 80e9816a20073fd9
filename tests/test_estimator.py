"""SnefyLDL: what it predicts, what it accepts, and that asking never changes it."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch
from sklearn.exceptions import NotFittedError

from snefy_ldl import SnefyLDL
from snefy_ldl.datasets import make_annotators, make_city_districts
from snefy_ldl.errors import InputError, LabelWarning
from snefy_ldl.metrics.points import kl_divergence
from snefy_ldl.votes import update

SMALL = {"n_neurons": 12, "n_readouts": 6, "hidden_sizes": (16,), "epochs": 4, "random_state": 0, "guides": None}


@pytest.fixture(scope="module")
def city():
    return make_city_districts(n=240, random_state=1)


@pytest.fixture(scope="module")
def fitted(city):
    return SnefyLDL(**SMALL).fit(city.X, city.D)


def test_shapes_and_ranges(fitted, city):
    X, D = city.X[:30], city.D[:30]
    mean, variance, covariance = fitted.predict(X), fitted.predict_var(X), fitted.predict_cov(X)
    assert mean.shape == variance.shape == (30, 3)
    assert covariance.shape == (30, 3, 3)
    np.testing.assert_allclose(mean.sum(1), 1.0, atol=1e-12)
    np.testing.assert_allclose(np.diagonal(covariance, axis1=1, axis2=2), variance, rtol=1e-8)
    quantiles = fitted.predict_quantiles(X, [0.05, 0.5, 0.95])
    assert quantiles.shape == (30, 3, 3)
    assert (np.diff(quantiles, axis=2) > 0).all()
    interval = fitted.predict_interval(X, confidence_level=0.9)
    np.testing.assert_allclose(interval, quantiles[..., [0, 2]], atol=1e-12)
    dist = fitted.predict_dist(X)
    assert (dist.batch_shape, dist.event_shape) == ((30,), (3,))
    np.testing.assert_allclose(dist.mean.numpy(), mean, atol=1e-12)
    np.testing.assert_allclose(dist.log_prob(torch.as_tensor(D)).numpy(), fitted.log_prob(X, D), atol=1e-9)
    assert fitted.score(X, D) == pytest.approx(fitted.log_prob(X, D).mean())
    assert fitted.sample(X, 5, random_state=0).shape == (5, 30, 3)
    assert fitted.entropy(X, n=50).shape == (30,)
    both = fitted.predict_mean_var(X)
    np.testing.assert_allclose(both[0], mean, atol=1e-14)
    np.testing.assert_allclose(both[1], variance, atol=1e-14)


@pytest.mark.slow
def test_learns_most_of_what_can_be_learned():
    """Against the known truth: under a third of the constant's excess KL, and near the best possible likelihood."""
    train, test = make_city_districts(n=600, random_state=1), make_city_districts(n=600, random_state=2)
    model = SnefyLDL(random_state=0).fit(train.X, train.D)
    best = kl_divergence(test.D, test.truth.mean(test.X))
    constant = kl_divergence(test.D, np.tile(train.D.mean(0), (600, 1)))
    assert kl_divergence(test.D, model.predict(test.X)) - best < (constant - best) / 3
    truth = test.truth.log_prob(test.X, test.D).mean()
    assert truth - 0.4 < model.score(test.X, test.D) < truth + 0.1


def test_streaming_gives_the_same_numbers(fitted, city, monkeypatch):
    whole = fitted.predict(city.X), fitted.log_prob(city.X, city.D)
    monkeypatch.setattr("snefy_ldl.snefy.PREDICTION_ROWS", 1)  # blocks of 256 rows at the least
    big = np.tile(city.X, (4, 1))
    np.testing.assert_allclose(fitted.predict(big)[: len(city.X)], whole[0], atol=1e-7)
    np.testing.assert_allclose(fitted.log_prob(big, np.tile(city.D, (4, 1)))[: len(city.X)], whole[1], atol=1e-4)


def test_same_seed_same_bits_other_seed_other_bits(city):
    first, second = (SnefyLDL(**SMALL).fit(city.X, city.D).predict(city.X) for _ in range(2))
    other = SnefyLDL(**{**SMALL, "random_state": 1}).fit(city.X, city.D).predict(city.X)
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first, other)


def test_fits_and_questions_leave_the_global_generators_alone(fitted, city):
    before = {name: value.clone() for name, value in fitted.net_.state_dict().items()}
    numpy_state, state = np.random.get_state()[1].copy(), torch.get_rng_state()  # noqa: NPY002 - that is the point
    SnefyLDL(**{**SMALL, "epochs": 1}).fit(city.X, city.D)
    fitted.predict_interval(city.X[:5])
    fitted.sample(city.X[:5], 3, random_state=0)
    fitted.entropy(city.X[:5], n=20)
    fitted.log_prob(city.X[:5], city.D[:5])
    for name, value in fitted.net_.state_dict().items():
        assert torch.equal(value, before[name]), name
    np.testing.assert_array_equal(np.random.get_state()[1], numpy_state)  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), state), "the global generator was touched"


def test_dataframes_keep_their_names(city):
    X = pd.DataFrame(city.X, columns=city.feature_names, index=[f"d{i}" for i in range(len(city.X))])
    D = pd.DataFrame(city.D, columns=city.label_names, index=X.index)
    model = SnefyLDL(**SMALL).fit(X, D)
    out = model.predict(X)
    assert list(out.columns) == list(city.label_names)
    assert list(out.index) == list(X.index)
    assert list(model.feature_names_in_) == list(city.feature_names)
    assert list(model.predict_var(X).columns) == list(city.label_names)
    with pytest.raises(InputError, match="same order"):
        model.predict(X[X.columns[::-1]])
    with pytest.raises(InputError, match="unseen at fit time"):
        model.predict(X.rename(columns={X.columns[0]: "other"}))


def test_sample_weight_of_zero_removes_rows(city):
    # rows with weight zero never pull: half the rows carry a wrong, far label
    wrong = city.D.copy()
    half = np.arange(len(wrong)) % 2 == 0
    wrong[half] = wrong[half][:, ::-1]
    weight = np.where(half, 0.0, 1.0)
    model = SnefyLDL(**{**SMALL, "epochs": 15}).fit(city.X, wrong, sample_weight=weight)
    unweighted = SnefyLDL(**{**SMALL, "epochs": 15}).fit(city.X, wrong)
    assert kl_divergence(city.D[half], model.predict(city.X[half])) < kl_divergence(
        city.D[half], unweighted.predict(city.X[half])
    )


@pytest.mark.slow
def test_warm_start_and_partial_fit_go_on(city):
    model = SnefyLDL(**{**SMALL, "warm_start": True}).fit(city.X, city.D)
    first = model.score(city.X, city.D)
    model.fit(city.X, city.D)
    assert model.score(city.X, city.D) > first
    stream = SnefyLDL(**SMALL)
    scores = []
    for _ in range(12):
        stream.partial_fit(city.X, city.D)
        scores.append(stream.score(city.X, city.D))
    assert scores[-1] > scores[0]
    assert len(stream.history_) == 12
    with pytest.raises(InputError, match="labels"):
        stream.partial_fit(city.X, np.full((len(city.X), 4), 0.25))


@pytest.mark.slow
def test_votes_train_with_zeros_and_unequal_totals():
    data = make_annotators(n=150, random_state=0)
    model = SnefyLDL(**{**SMALL, "epochs": 10}).fit(data.X, counts=data.counts)
    values = model.log_prob(data.X, counts=data.counts)
    assert np.isfinite(values).all()
    assert (values <= 1e-9).all(), "a probability of counts is at most one"
    constant = SnefyLDL(**{**SMALL, "epochs": 10}).fit(np.zeros((150, 1)), counts=data.counts)
    assert values.mean() > constant.score(np.zeros((150, 1)), counts=data.counts)


def test_paper_recipe_is_as_the_paper_words_it(city):
    model = SnefyLDL.paper("active", epochs=3, random_state=0).fit(city.X, city.D)
    parameters = model.get_params()
    assert (parameters["n_neurons"], parameters["n_readouts"], parameters["hidden_sizes"]) == (64, 32, (64,))
    assert SnefyLDL.paper("conformal").get_params()["batch_size"] == 64
    assert parameters["batch_size"] == 16
    assert SnefyLDL.paper("ensemble").epochs == 100
    assert model.scaling_ == "none"
    assert float(model.net_.exponents.detach().min()) >= -0.495 - 1e-6
    assert model.training_["background_share"] == [0.0]
    with pytest.raises(InputError, match="conformal"):
        SnefyLDL.paper("other")


def test_no_row_falls_far_below_one_dirichlet(city):
    """The background bounds a miss: log p >= log ε + log Dirichlet, on any row whatever."""
    model = SnefyLDL(**{**SMALL, "epochs": 10}).fit(city.X, city.D)
    share = model.training_["background_share"][0]
    D = np.random.default_rng(0).dirichlet(np.ones(3), size=len(city.X))
    background = torch.distributions.Dirichlet(model.net_.background[0]).log_prob(torch.as_tensor(D)).numpy()
    assert 0.001 < share < 0.3
    assert (model.log_prob(city.X, D) >= np.log(share) + background - 1e-4).all()


# -- bad input: one clear error that names row, column and rule, before any work ------------------------------------


def _bad_cases():
    X = np.random.default_rng(0).normal(size=(20, 3))
    D = np.random.default_rng(0).dirichlet(np.ones(3), size=20)

    def with_(array, row, column, value):
        array = array.copy()
        array[row, column] = value
        return array

    frame = pd.DataFrame(with_(X, 4, 1, np.inf), columns=["a", "b", "c"])
    return {
        "inf in a frame": (frame, D, r"inf at data row 5, column 'b'"),
        "inf in X": (with_(X, 2, 0, -np.inf), D, r"inf at row 2, column 0"),
        "NaN in sparse X": (sp.csr_matrix(with_(X, 4, 1, np.nan)), D, r"NaN at row 4, column 1"),
        "a row of NaN in D": (X, with_(D, 3, slice(None), np.nan), r"D row 3 holds no share at all"),
        "inf in D": (X, with_(D, 3, 2, np.inf), r"D contains inf at row 3, column 2"),
        "negative label": (X, with_(D, 5, 0, -0.1), r"negative \(-0.1\) at row 5, column 0"),
        "sum": (X, with_(D, 7, 1, 0.9), r"row 7 sums to"),
        "rows differ": (X[:19], D, r"same number of rows; got 19 and 20"),
        "one label": (X, np.ones((20, 1)), r"at least 2"),
        "flat D": (X, D[:, 0], r"two-dimensional"),
        "flat X": (X[:, 0], D, r"two-dimensional"),
        "empty": (X[:0], D[:0], r"0 rows"),
        "no columns": (X[:, :0], D, r"0 feature"),
        "too few rows": (X[:3], D[:3], r"needs at least 4"),
        "text": (np.array([["a", "b", "c"]] * 20), D, r"numeric"),
        "no labels": (X, None, r"fit needs the labels"),
    }


@pytest.mark.parametrize("case", _bad_cases())
def test_bad_input(case, monkeypatch):
    X, D, message = _bad_cases()[case]
    began = "work began before the check"
    monkeypatch.setattr("snefy_ldl.training.train.Stack", lambda *a, **k: pytest.fail(began))
    with pytest.raises(InputError, match=message):
        SnefyLDL(**SMALL).fit(X, D)


def test_bad_counts():
    X = np.zeros((6, 2))
    counts = np.ones((6, 3))
    counts[2, 1] = 1.5
    with pytest.raises(InputError, match=r"1.5 at row 2, column 1.*whole numbers"):
        SnefyLDL(**SMALL).fit(X, counts=counts)
    with pytest.raises(InputError, match="row 4 holds no vote"):
        SnefyLDL(**SMALL).fit(X, counts=np.where(np.arange(6)[:, None] == 4, 0, 1) * np.ones((6, 3)))
    with pytest.raises(InputError, match="not both"):
        SnefyLDL(**SMALL).fit(X, np.full((6, 2), 0.5), counts=np.ones((6, 2)))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n_neurons", 0),
        ("n_members", 1.5),
        ("epochs", -1),
        ("batch_size", "many"),
        ("learning_rate", 0.0),
        ("weight_decay", -1.0),
        ("validation_fraction", 1.0),
        ("patience", 0),
        ("standardize", "maybe"),
        ("zeros", "drop"),
        ("zeros", 0.9),
        ("recipe", "secret"),
        ("hidden_sizes", (0,)),
    ],
)
def test_bad_settings_name_themselves(name, value, city):
    with pytest.raises(InputError, match=name):
        SnefyLDL(**{**SMALL, name: value}).fit(city.X, city.D)


def test_bad_queries(fitted, city):
    with pytest.raises(InputError, match=r"6 features.*expecting 5"):
        fitted.predict(np.zeros((2, 6)))
    with pytest.raises(InputError, match="fitted with 3"):
        fitted.log_prob(city.X[:2], np.full((2, 4), 0.25))
    with pytest.raises(InputError, match="same number of rows"):
        fitted.log_prob(city.X[:3], city.D[:2])
    with pytest.raises(InputError, match="same number of rows"):
        fitted.log_prob(city.X[:2], city.D[:3])
    for level in (0.0, 1.0, 90, "a"):
        with pytest.raises(InputError, match="confidence_level"):
            fitted.predict_interval(city.X[:2], level)
    with pytest.raises(InputError, match="alpha"):
        fitted.predict_quantiles(city.X[:2], [0.5, 1.5])
    with pytest.raises(InputError, match="method"):
        fitted.entropy(city.X[:2], method="other")
    with pytest.raises(NotFittedError):
        SnefyLDL().predict(city.X)


# -- zeros ----------------------------------------------------------------------------------------------------------


def test_zeros_are_shrunk_with_one_warning(city):
    D = city.D.copy()
    D[:7] = [1.0, 0.0, 0.0]
    with pytest.warns(LabelWarning, match="7 of 240"):
        model = SnefyLDL(**SMALL).fit(city.X, D)
    assert np.isfinite(model.log_prob(city.X, D)).all()
    assert np.isfinite(model.predict(city.X)).all()
    with pytest.raises(InputError, match="zeros='error'"):
        SnefyLDL(**{**SMALL, "zeros": "error"}).fit(city.X, D)


def test_hard_data_never_gives_nan():
    """One-hot labels, constant and huge columns, many zeros, two labels: whatever people bring."""
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.normal(size=60), np.full(60, 3.0), rng.normal(size=60) * 1e12, rng.integers(0, 2, 60)])
    one_hot = np.eye(5)[rng.integers(0, 5, 60)]
    two = np.eye(2)[rng.integers(0, 2, 60)]
    same = np.tile([0.2, 0.3, 0.5], (60, 1))
    for D in (one_hot, two, same):
        with pytest.warns(LabelWarning) if (D == 0).any() else nullcontext():
            model = SnefyLDL(**{**SMALL, "epochs": 8, "zeros": "shrink"}).fit(X, D)
        far = np.vstack([X[:3], X[:3] * 1e6])
        for values in (
            model.predict(far), model.predict_var(far), model.predict_interval(far), model.log_prob(X, D),
            model.sample(far, 3, random_state=0), model.entropy(far, n=30),
        ):  # fmt: skip
            assert np.isfinite(values).all()


# -- scikit-learn ---------------------------------------------------------------------------------------------------


def test_columns_of_labels_are_told_by_their_names():
    """A frame whose columns stand in another order than the model's labels is read by name, wherever one is taken."""
    from snefy_ldl.apps.reports import evaluate
    from snefy_ldl.conformal import ConformalIntervals, ConformalRegion
    from snefy_ldl.learners import SABFGS

    city = make_city_districts(n=120, random_state=0)
    D = pd.DataFrame(city.D, columns=["a", "b", "c"])
    swapped, votes = D[["c", "a", "b"]], (100 * D).round()
    model = SnefyLDL(guides=None, epochs=1, n_neurons=6, random_state=0).fit(city.X[:60], D[:60])
    linear = SABFGS().fit(city.X[:60], D[:60])
    X, new = city.X[60:], slice(60, None)
    questions = [
        lambda labels, counts: model.log_prob(X, labels[new]),
        lambda labels, counts: model.log_prob(X, counts=counts[new]),
        lambda labels, counts: linear.score(X, labels[new]),
        lambda labels, counts: evaluate(model, X, labels[new])["metrics"]["kl_divergence"]["value"],
        lambda labels, counts: evaluate(model, X, counts=counts[new])["metrics"]["kl_divergence"]["value"],
        lambda labels, counts: ConformalIntervals(model, 0.9, "cdf").conformalize(X, labels[new]).thresholds_,
        lambda labels, counts: ConformalRegion(model, 0.9).conformalize(X, labels[new]).threshold_,
        lambda labels, counts: np.asarray(update(model, X, counts[new]).mean),
    ]
    for question in questions:
        np.testing.assert_array_equal(question(D, votes), question(swapped, votes[["c", "a", "b"]]))


NAMES = ["u", "v", "w"]
TURNED = ["w", "u", "v"]


@pytest.fixture(scope="module")
def named():
    """Features and labels as frames, the first label much larger than the others."""
    city = make_city_districts(n=120, random_state=0)
    D = pd.DataFrame(np.random.default_rng(0).dirichlet([12.0, 3.0, 1.0], 120), columns=NAMES)
    return pd.DataFrame(city.X), D, (100 * D).round()


@pytest.mark.parametrize("how", ["partial_fit", "partial_fit of votes", "warm_start", "warm_start of votes"])
def test_further_fits_align_labels_by_name(named, how):
    X, D, votes = named
    labels = {"counts": votes} if "votes" in how else {"D": D}
    turned = {name: table[TURNED] for name, table in labels.items()}
    models = [SnefyLDL(**SMALL, warm_start="warm" in how).fit(X, **labels) for _ in range(2)]
    for model, given in zip(models, (labels, turned)):
        (model.fit if "warm" in how else model.partial_fit)(X, **given)
    pd.testing.assert_frame_equal(*(model.predict(X) for model in models), check_exact=True)
    assert list(models[1].predict(X).columns) == NAMES
    for wrong in ({name: table.rename(columns={"u": "x"}) for name, table in labels.items()},):
        with pytest.raises(InputError, match=r"unknown: x; missing: u"):
            (models[0].fit if "warm" in how else models[0].partial_fit)(X, **wrong)


def test_y_is_another_name_of_D(named):
    X, D, _ = named
    pd.testing.assert_frame_equal(SnefyLDL(**SMALL).fit(X, y=D).predict(X), SnefyLDL(**SMALL).fit(X, D).predict(X))
    with pytest.raises(TypeError, match="positional"):
        SnefyLDL(64)
