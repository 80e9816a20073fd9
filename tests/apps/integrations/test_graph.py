"""The exported graph answers as the model does, whatever kind of model it is."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LinearRegression

from integration_models import CITY, KINDS, fitted, table
from snefy_ldl import AutoLDL, SnefyLDL
from snefy_ldl.apps.integrations.graph import ModelGraph
from snefy_ldl.errors import InputError


@pytest.mark.parametrize("kind", [*KINDS, "paper"])
def test_answers_as_the_model(kind: str) -> None:
    """The page is held to the same table in a browser (tests/apps/serve/test_browser.py)."""
    case, model = table(kind), fitted(kind)[0]
    graph = ModelGraph(model)
    assert graph.encoded == (kind == "gaps")
    mean, variance = (part.numpy() for part in graph(torch.as_tensor(model.encode(case["X"]))))
    np.testing.assert_allclose(mean, case["mean"], atol=1e-6)
    np.testing.assert_allclose(variance, np.diagonal(case["covariance"], axis1=1, axis2=2), atol=1e-6)


def test_kinds_are_what_they_say() -> None:
    assert fitted("guides")[0].inputs_ in ("guides", "both")
    assert fitted("gaps")[0].columns_ is not None
    assert not fitted("paper")[0].net_.balanced


def test_an_automatic_choice_is_exported_as_the_model_that_it_kept() -> None:
    model, X, _ = fitted("plain")
    auto = AutoLDL()
    auto.model_ = model
    for one, other in zip(ModelGraph(auto)(torch.as_tensor(X)), ModelGraph(model)(torch.as_tensor(X))):
        torch.testing.assert_close(one, other)


def test_far_rows() -> None:
    model = fitted("plain")[0]
    X = np.vstack([CITY.X * 50.0, -CITY.X * 50.0])
    mean, variance = (part.numpy() for part in ModelGraph(model)(torch.as_tensor(X)))
    np.testing.assert_allclose(mean, model.predict(X), atol=1e-6)
    np.testing.assert_allclose(variance, model.predict_var(X), atol=1e-6)


def test_refuses_what_no_graph_holds() -> None:
    with pytest.raises(NotFittedError):
        ModelGraph(SnefyLDL())
    with pytest.raises(InputError, match="LinearRegression"):
        ModelGraph(LinearRegression())
    with pytest.raises(InputError, match=r"LogRatioLDL.*serve this model"):
        ModelGraph(fitted("ratios")[0])
    settings = {"n_neurons": 4, "epochs": 1, "validation_fraction": 0.0, "random_state": 0}
    own = SnefyLDL(guides=[LinearRegression()], **settings).fit(CITY.X, CITY.D)
    with pytest.raises(InputError, match=r"LinearRegression.*guides=None"):
        ModelGraph(own)
    network = SnefyLDL(n_neurons=4, epochs=1, backbone=torch.nn.Linear(5, 4), random_state=0).fit(CITY.X, CITY.D)
    with pytest.raises(InputError, match="features that it computes"):
        ModelGraph(network)
