"""The exported graph answers as the model does, whatever kind of model it is."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.linear_model import LinearRegression

from integration_models import CITY, fitted, moving
from snefy_ldl import SnefyLDL
from snefy_ldl.apps.integrations.graph import LEVELS, Components, ModelGraph
from snefy_ldl.errors import InputError, NotFittedError
from snefy_ldl.learners.trees import TreesLDL


@pytest.mark.parametrize("kind", ["guides", "gaps", "paper"])
def test_answers_as_the_model(kind: str) -> None:
    """What a graph does before the law; that itself is held to a table (tests/test_law_cases.py)."""
    model, X, _ = fitted(kind)
    mean, variance, quantiles = (part.numpy() for part in ModelGraph(model)(torch.as_tensor(X)))
    np.testing.assert_allclose(mean, model.predict(X), atol=1e-6)
    np.testing.assert_allclose(variance, model.predict_var(X), atol=1e-6)
    np.testing.assert_allclose(quantiles, model.predict_quantiles(X, LEVELS), atol=1e-5)


def test_kinds_are_what_they_say() -> None:
    assert fitted("centre")[0].centre_ is not None
    assert fitted("zeros")[0].net_.has_presence
    both = fitted("zeros and centre")[0]
    assert both.net_.has_presence
    assert both.centre_ is not None
    assert fitted("guides")[0].inputs_ in ("guides", "both")
    assert fitted("gaps")[0].columns_ is not None
    assert not fitted("paper")[0].net_.balanced


def test_far_rows_and_far_levels() -> None:
    model = fitted("plain")[0]
    X = np.vstack([CITY.X * 50.0, -CITY.X * 50.0])
    levels = (1e-4, 0.001, 0.5, 0.999, 1 - 1e-4)
    quantiles = ModelGraph(model, levels)(torch.as_tensor(X))[2].numpy()
    np.testing.assert_allclose(quantiles, model.predict_quantiles(X, levels), atol=1e-5)


def test_sharp_and_broad_components_together() -> None:
    """Concentrations of thousands beside ones below 1: the grids resolve both."""
    model = SnefyLDL(n_neurons=12, epochs=1, guides=None, centre=None, random_state=0).fit(CITY.X, CITY.D)
    with torch.no_grad():
        wide = torch.linspace(-6.0, 7.0, 36).reshape(12, 3)
        model.net_.raw_exponents[0] = wide[torch.randperm(12, generator=torch.Generator().manual_seed(0))]
    quantiles = ModelGraph(model)(torch.as_tensor(CITY.X))[2].numpy()
    np.testing.assert_allclose(quantiles, model.predict_quantiles(CITY.X, LEVELS), atol=1e-5)


def test_component_grid_is_the_law_of_each_component() -> None:
    """Against scipy's Beta, for a law without a centre."""
    import scipy.stats
    from snefy_ldl.distributions.tables import BetaTable

    law = Components.of(fitted("plain")[0].net_).law
    alpha = law.concentration.numpy()[:5]
    a, b = alpha[:, 0], alpha[:, 1:].sum(1)
    z, cdf, density = BetaTable(a, b).component_grid(3)
    share = 1.0 / (1.0 + np.exp(-z))
    beta = scipy.stats.beta(a[:, None], b[:, None])
    np.testing.assert_allclose(cdf, beta.cdf(share), atol=1e-8)
    np.testing.assert_allclose(density, beta.pdf(share) * share * (1.0 - share), atol=1e-6)


def test_tables_with_numbers_alone_keep_their_columns() -> None:
    frame = pd.DataFrame(CITY.X.copy(), columns=list("abcde"))
    frame.loc[::4, "b"] = np.nan
    frame["b"] = frame["b"] * 3.0
    model = SnefyLDL(n_neurons=6, epochs=1, guides=None, centre=None, random_state=0).fit(frame, CITY.D)
    graph = ModelGraph(model, levels=())
    assert graph.inputs.names == list("abcde")
    assert not graph.inputs.encoded
    mean = graph(torch.as_tensor(frame.to_numpy()))[0].numpy()
    np.testing.assert_allclose(mean, model.predict(frame), atol=1e-6)


def test_text_columns_are_encoded_by_the_caller() -> None:
    frame = pd.DataFrame(CITY.X, columns=list("abcde")).assign(
        kind=np.where(CITY.X[:, 0] > np.median(CITY.X[:, 0]), "old", "new")
    )
    model = SnefyLDL(n_neurons=6, epochs=1, guides=None, centre=None, random_state=0).fit(frame, CITY.D)
    graph = ModelGraph(model, levels=())
    assert graph.inputs.encoded
    assert graph.inputs.names is not None
    assert graph.inputs.names[-1].startswith("kind=")
    mean = graph(torch.as_tensor(model.encode(frame)))[0].numpy()
    np.testing.assert_allclose(mean, model.predict(frame), atol=1e-6)


def test_refuses_what_no_graph_holds() -> None:
    with pytest.raises(NotFittedError):
        ModelGraph(SnefyLDL())
    with pytest.raises(InputError, match="LinearRegression"):
        ModelGraph(LinearRegression())
    settings = {"n_neurons": 4, "epochs": 1, "validation_fraction": 0.0, "centre": None, "random_state": 0}
    own = SnefyLDL(guides=[LinearRegression()], **settings).fit(CITY.X, CITY.D)
    with pytest.raises(InputError, match=r"LinearRegression.*guides=None"):
        ModelGraph(own)
    pairs = SnefyLDL(n_neurons=4, epochs=1, backbone=torch.nn.Bilinear(2, 3, 4), guides=None, random_state=0)
    pairs.fit((torch.as_tensor(CITY.X[:, :2]), torch.as_tensor(CITY.X[:, 2:])), CITY.D)
    with pytest.raises(InputError, match=r"float64 \(rows, 2\).*single tensor"):
        ModelGraph(pairs)
    with pytest.raises(InputError, match="float16"):
        ModelGraph(fitted("plain")[0], dtype="float16")
    with pytest.raises(InputError, match="between 0 and 1"):
        ModelGraph(fitted("plain")[0], levels=(0.5, 1.0))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_network_of_ones_own(dtype: str) -> None:
    model = SnefyLDL(n_neurons=4, n_members=2, epochs=1, backbone=torch.nn.Linear(5, 4), random_state=0)
    X = (CITY.X - CITY.X.mean(0)) / CITY.X.std(0)
    graph = ModelGraph(model.fit(X, CITY.D), dtype=dtype)
    assert graph.inputs.words().endswith(f"{dtype} (rows, 5)")
    mean, variance, quantiles = (part.numpy() for part in graph(torch.as_tensor(X).to(graph.inputs.example().dtype)))
    np.testing.assert_allclose(mean, model.predict(X), atol=1e-6)
    np.testing.assert_allclose(variance, model.predict_var(X), atol=1e-6)
    np.testing.assert_allclose(quantiles, model.predict_quantiles(X, LEVELS), atol=1e-5)


def test_trees_take_little_room() -> None:
    guides = ModelGraph(fitted("guides")[0], levels=()).guides
    assert guides is not None
    trees = guides.learners[1]
    kinds = {name: table.dtype for name, table in trees.named_buffers()}
    assert kinds["feature"] == torch.int8
    assert kinds["threshold"] == torch.float32
    assert "left" not in kinds, "scikit-learn's left children stand behind their parents"


def test_trees_whose_nodes_stand_in_another_order() -> None:
    from snefy_ldl.apps.integrations.graph import GuideGraph
    from snefy_ldl.training.guides import Guides

    trees = TreesLDL(n_trees=1, n_parts=2, random_state=0).fit(CITY.X, CITY.D)
    order = np.arange(len(trees.children_))
    last = len(order) - 1
    order[[1, last]] = last, 1  # swap two nodes of the first and the last tree
    place = np.argsort(order)
    other = TreesLDL(n_trees=1, n_parts=2, random_state=0).fit(CITY.X, CITY.D)
    other.children_ = np.where(trees.children_ < 0, -1, place[trees.children_])[order]
    other.feature_, other.threshold_, other.value_ = trees.feature_[order], trees.threshold_[order], trees.value_[order]
    np.testing.assert_array_equal(other.predict(CITY.X), trees.predict(CITY.X))
    assert "children_" in other.stored()
    x = torch.as_tensor(CITY.X)
    torch.testing.assert_close(GuideGraph(Guides([other], 1e-6))(x), GuideGraph(Guides([trees], 1e-6))(x))


@pytest.mark.slow
@pytest.mark.parametrize("zeros", [False, True])
def test_a_law_that_moves_gives_means_and_variances(zeros: bool) -> None:
    model, X = moving(zeros)
    graph = ModelGraph(model)
    mean, variance = (part.numpy() for part in graph(torch.as_tensor(X[:20])))
    np.testing.assert_allclose(mean, model.predict(X[:20]), atol=1e-6)
    np.testing.assert_allclose(variance, model.predict_var(X[:20]), atol=1e-6)
    assert graph.left_out is not None
    assert "only mean and variance" in graph.left_out
    with pytest.raises(InputError, match=r"only mean and variance.*guides=None"):
        ModelGraph(model, levels=(0.5,))
