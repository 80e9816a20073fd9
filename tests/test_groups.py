"""Groups of rows: splits, effects, prediction, files."""

from __future__ import annotations

import numpy as np
import pytest

from snefy_ldl import GroupedLDL, LogRatioLDL, SnefyLDL, load
from snefy_ldl.active import query
from snefy_ldl.datasets import make_groups
from snefy_ldl.datasets.grouping import group_folds, in_groups, leave_groups_out, read_groups, split_groups
from snefy_ldl.errors import InputError
from snefy_ldl.explain import group_variance
from snefy_ldl.training.group_effects import GroupEffects, fit_mixed_model, group_sums, posterior_means


@pytest.fixture(scope="module")
def data():
    return make_groups(n_groups=30, n_rows=20, n_labels=3, effect=0.6, random_state=1)


@pytest.fixture(scope="module")
def parts(data):
    row = np.arange(len(data.X))
    unseen = data.groups >= 24
    return (~unseen) & (row % 20 < 15), (~unseen) & (row % 20 >= 15), unseen


@pytest.fixture(scope="module")
def model(data, parts):
    train = parts[0]
    return GroupedLDL(SnefyLDL(random_state=0, epochs=15)).fit(data.X[train], data.D[train], groups=data.groups[train])


# -- groups as given -------------------------------------------------------------------------------------------------


def test_read_groups_takes_names_numbers_frames_and_gaps():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"farm": ["a", "a", "b"], "plot": [1, 2.0, None]})
    groups = read_groups(frame[["plot"]], 3)
    assert (groups.column, groups.names, groups.codes.tolist()) == ("plot", ("1", "2"), [0, 1, -1])
    assert groups.renamed(["2", "3"]).tolist() == [-1, 0, -1]
    assert len(set(groups.first)) == 3  # rows without a group stand alone
    assert read_groups(pandas.Series([3, 4], name="child"), 2).column == "child"
    assert read_groups([3, 3.0, "3"], 3).names == ("3",)
    with pytest.raises(InputError, match="several columns the one whose groups will be new"):
        read_groups(frame, 3)
    with pytest.raises(InputError, match="same number of rows"):
        read_groups(["a"], 2)


def test_splits_and_folds_keep_groups_together():
    rng = np.random.default_rng(0)
    first = rng.integers(0, 25, 400)
    order = rng.permutation(400)
    train, valid = split_groups(first, 0.15, order, seed=3)
    assert not set(first[train]) & set(first[valid])
    assert sorted([*train, *valid]) == list(range(400))
    assert 30 <= len(valid) <= 90
    twice = np.concatenate([first, first])
    again = split_groups(twice, 0.15, rng.permutation(800), seed=3)[1]
    assert set(twice[again]) == set(first[valid])  # which groups are held does not depend on how often rows are shown
    folds = group_folds(first, 5, rng)
    assert all(len(set(folds[first == g])) == 1 for g in range(25))
    assert np.bincount(folds).min() > 60
    with pytest.raises(InputError, match="as many groups"):
        list(leave_groups_out(["a", "a"], 2, 2))


# -- the linear mixed model ------------------------------------------------------------------------------------------


def test_posterior_means_equal_the_dense_answer():
    rng = np.random.default_rng(0)
    codes, scores, ratios = rng.integers(-1, 5, 60), rng.normal(size=(60, 2)), np.array([0.5, 2.0])
    means = posterior_means(*group_sums(scores, codes, 5), ratios)
    Z = (codes[:, None] == np.arange(5)).astype(float)
    for j in range(2):
        dense = ratios[j] * Z.T @ np.linalg.solve(np.eye(60) + ratios[j] * Z @ Z.T, scores[:, j])
        np.testing.assert_allclose(means[:, j], dense, atol=1e-9)


def test_sizes_and_shares_of_effects_are_recovered():
    rng = np.random.default_rng(1)
    codes = rng.integers(0, 200, 3000)
    parts = rng.normal(size=(200, 4))[codes] * 0.7, rng.normal(size=(3000, 4)) * 0.5
    parts = [part - part.mean(1, keepdims=True) for part in parts]
    found = fit_mixed_model(sum(parts), codes, 200)
    assert found is not None
    assert np.sqrt(np.trace(found.covariance()) / 3) == pytest.approx(0.7, rel=0.1)
    counts = np.bincount(codes, minlength=200).astype(float)
    effects = GroupEffects(found, ("g",), (("",) * 200,), np.zeros((200, 1)), counts, None, 0.1)
    shares, truth = effects.variance_shares(), np.array([part.var(0) for part in parts])
    np.testing.assert_allclose(shares.sum(0), 1.0)
    np.testing.assert_allclose(shares, truth / truth.sum(0), atol=0.06)


def test_shuffled_groups_have_no_effect():
    rng = np.random.default_rng(2)
    logs = rng.normal(size=(600, 10))
    logs -= logs.mean(1, keepdims=True)
    assert fit_mixed_model(logs, np.repeat(np.arange(30), 20), 30) is None


# -- the fit ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_seen_groups_gain_and_the_size_of_the_effect_is_recovered(data, parts, model):
    _, seen, unseen = parts
    X, D, g = data.X[seen], data.D[seen], data.groups[seen]
    known, unknown = model.log_prob(X, D, groups=g), model.log_prob(X, D)
    assert (known - unknown).mean() > 0.5
    assert np.abs(model.predict(X, groups=g) - D).mean() < 0.75 * np.abs(model.predict(X) - D).mean()
    names = np.full(unseen.sum(), "nobody")
    known = model.predict(data.X[unseen], groups=names)
    np.testing.assert_allclose(known, model.predict(data.X[unseen]), atol=1e-6)
    size = np.sqrt(np.trace(model.group_effects_.model.covariance()) / 2)
    truth = np.sqrt((data.effects[:24] ** 2).sum() / 24 / 2)
    assert abs(size / truth - 1) < 0.15
    assert model.training_["group_effects"]["effects"] == "kept"


@pytest.mark.slow
def test_every_prediction_takes_groups(data, parts, model):
    rows = np.flatnonzero(parts[1])[:6]
    X, D, g = data.X[rows], data.D[rows], data.groups[rows]
    dist = model.predict_dist(X, groups=g)
    np.testing.assert_allclose(model.predict(X, groups=g), dist.mean.numpy())
    np.testing.assert_allclose(model.predict_var(X, groups=g), dist.variance.numpy())
    np.testing.assert_allclose(model.predict_mean_var(X, groups=g)[0], dist.mean.numpy())
    np.testing.assert_allclose(model.predict_cov(X, groups=g), dist.covariance_matrix.numpy())
    np.testing.assert_allclose(model.log_prob(X, D, groups=g), dist.log_prob(D).numpy())
    assert model.score(X, D, groups=g) == pytest.approx(model.log_prob(X, D, groups=g).mean())
    interval = model.predict_interval(X, 0.8, groups=g)
    np.testing.assert_allclose(interval, model.predict_quantiles(X, [0.1, 0.9], groups=g))
    assert model.sample(X, 3, random_state=0, groups=g).shape == (3, 6, 3)
    assert model.entropy(X, 20, groups=g).shape == (6,)
    assert model.predict_zero(X, groups=g).max() == 0.0


@pytest.mark.slow
def test_groups_without_an_effect_change_nothing(data, parts):
    calm = make_groups(n_groups=20, n_rows=15, effect=0.0, random_state=3)
    kwargs = {"random_state": 0, "epochs": 4}
    auto = GroupedLDL(SnefyLDL(**kwargs)).fit(calm.X, calm.D, groups=calm.groups)
    none = GroupedLDL(SnefyLDL(**kwargs), effects=None).fit(calm.X, calm.D, groups=calm.groups)
    assert auto.group_effects_ is None
    assert none.group_effects_ is None
    assert "chance" in auto.training_["group_effects"]["effects"]
    np.testing.assert_array_equal(auto.predict(calm.X), none.predict(calm.X))
    np.testing.assert_array_equal(auto.predict(calm.X, groups=calm.groups), auto.predict(calm.X))
    with pytest.raises(InputError, match="has none"):
        auto.adapt(calm.X[:3], calm.D[:3])


@pytest.mark.slow
def test_log_ratios_learn_effects_and_answer_rows_of_both_kinds_at_once(data, parts, tmp_path):
    train, seen, unseen = (np.flatnonzero(part) for part in parts)
    model = GroupedLDL(LogRatioLDL(random_state=0)).fit(data.X[train], data.D[train], groups=data.groups[train])
    X, D, g = data.X[seen], data.D[seen], data.groups[seen]
    assert model.score(X, D, groups=g) > model.score(X, D) + 0.5
    rows = np.concatenate([unseen[:3], seen[:3], unseen[3:5]])
    mixed = model.predict_dist(data.X[rows], groups=data.groups[rows])
    alone = [model.predict_dist(data.X[[row]], groups=data.groups[[row]]) for row in rows]
    each = [float(dist.log_prob(D)) for dist, D in zip(alone, data.D[rows])]
    np.testing.assert_allclose(mixed.log_prob(data.D[rows]), each, rtol=1e-9)
    np.testing.assert_allclose(mixed.mean, [dist.mean[0].numpy() for dist in alone], atol=0.02)  # of draws
    again = load(model.save(tmp_path / "model"))
    np.testing.assert_array_equal(again.predict(X, groups=g), model.predict(X, groups=g))


def test_votes_in_groups_get_the_squared_family(data):
    counts = np.round(20 * data.D[:120])
    model = GroupedLDL(SnefyLDL(epochs=2, random_state=0)).fit(data.X[:120], counts=counts, groups=data.groups[:120])
    rows = [0, 300, 1]  # of known, unknown, known groups
    mean = model.predict_dist(data.X[rows], groups=data.groups[rows]).mean[:1]
    np.testing.assert_allclose(mean, model.predict(data.X[:1], groups=data.groups[:1]), atol=1e-9)


@pytest.mark.slow
def test_adapt_learns_a_new_group_from_a_few_rows(data, parts, model):
    unseen = np.flatnonzero(parts[2])
    gains = []
    for g in np.unique(data.groups[unseen]):
        rows = unseen[data.groups[unseen] == g]
        few, rest = rows[:5], rows[5:]
        new = model.adapt(data.X[few], data.D[few])
        gains.append(new.log_prob(data.X[rest], data.D[rest]) - model.log_prob(data.X[rest], data.D[rest]))
        named = model.adapt(data.X[few], data.D[few], group="new")
        np.testing.assert_array_equal(named.predict(data.X[rest], groups=["new"] * 15), new.predict(data.X[rest]))
        np.testing.assert_array_equal(named.predict(data.X[rest]), model.predict(data.X[rest]))
    assert np.concatenate(gains).mean() > 0.3
    assert model.group_effects_.default is None  # the model itself stays as it was


def test_a_model_with_groups_comes_back_from_its_folder(data, parts, model, tmp_path):
    rows = np.flatnonzero(parts[1])[:5]
    again = load(model.save(tmp_path / "model"))
    X, g = data.X[rows], data.groups[rows]
    np.testing.assert_array_equal(again.predict(X, groups=g), model.predict(X, groups=g))
    few = np.flatnonzero(parts[2])[:4]
    adapted = model.adapt(data.X[few], data.D[few])
    back = load(adapted.save(tmp_path / "adapted"))
    np.testing.assert_array_equal(back.predict(X), adapted.predict(X))
    np.testing.assert_allclose(model.model_.predict(X), model.predict(X), atol=1e-6)


def test_what_knows_no_groups_says_so(data):
    from snefy_ldl.learners import DirichletLDL

    learner = DirichletLDL(random_state=0).fit(data.X[:50], data.D[:50])
    with pytest.raises(InputError, match="takes no 'groups'"):
        learner.predict_interval(data.X[:2], groups=[1, 2])
    with pytest.raises(InputError, match="the one whose groups will be new"):
        GroupedLDL().fit(data.X, data.D, groups=np.stack([data.groups, data.groups], 1))
    with pytest.raises(InputError, match="effects='always'"):
        GroupedLDL(effects="always").fit(data.X, data.D, groups=data.groups)
    with pytest.raises(InputError, match="GroupedLDL\\(SnefyLDL"):
        SnefyLDL().fit(in_groups(data.X, data.groups), data.D)


# -- what groups explain ---------------------------------------------------------------------------------------------


def test_group_variance_names_levels_and_labels(data, parts, model):
    table = group_variance(model)
    assert table["level"].tolist() == ["group"] * 3 + ["within groups"] * 3
    assert ((table["share"] >= 0.0) & (table["share"] <= 1.0)).all()
    plain = SnefyLDL(random_state=0, epochs=1, guides=None).fit(data.X[parts[0]], data.D[parts[0]])
    with pytest.raises(InputError, match="no group effects"):
        group_variance(plain)


# -- explanations and queries ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["lcmd", "bait"])
def test_queries_use_the_groups_of_rows(data, parts, model, strategy):
    train, seen, _ = parts
    X, groups = data.X[seen], data.groups[seen]
    known = in_groups(data.X[train], data.groups[train])
    chosen, values = query(strategy, in_groups(X, groups), 5, model, known, random_state=0, return_utilities=True)
    blocks = [in_groups(X[part], groups[part]) for part in (slice(0, 50), slice(50, len(X)))]
    again = query(strategy, lambda: iter(blocks), 5, model, known, random_state=0)
    assert chosen.tolist() == again.tolist()
    without = query(strategy, X, 5, model, data.X[train], random_state=0, return_utilities=True)[1]
    assert not np.allclose(values, without)
