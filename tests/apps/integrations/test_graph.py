"""The exported graph answers as the model does, whatever kind of model it is."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import scipy.special
import scipy.stats
import torch
from scipy.interpolate import CubicHermiteSpline
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LinearRegression

from integration_models import CITY, KINDS, LEVELS, fitted, table
from snefy_ldl import AutoLDL, SnefyLDL
from snefy_ldl.apps.integrations.graph import ModelGraph, share_grid
from snefy_ldl.errors import InputError


@pytest.mark.parametrize("kind", [*KINDS, "paper"])
def test_answers_as_the_model(kind: str) -> None:
    """The page is held to the same table in a browser (tests/apps/serve/test_browser.py)."""
    case, model = table(kind), fitted(kind)[0]
    graph = ModelGraph(model, LEVELS)
    assert graph.encoded == (kind == "gaps")
    mean, variance, quantiles = (part.numpy() for part in graph(torch.as_tensor(model.encode(case["X"]))))
    np.testing.assert_allclose(mean, case["mean"], atol=1e-6)
    np.testing.assert_allclose(variance, np.diagonal(case["covariance"], axis1=1, axis2=2), atol=1e-6)
    np.testing.assert_allclose(quantiles, case["quantiles"], atol=1e-5)


def test_kinds_are_what_they_say() -> None:
    assert fitted("guides")[0].inputs_ in ("guides", "both")
    assert fitted("gaps")[0].columns_ is not None
    assert not fitted("paper")[0].net_.balanced


def test_an_automatic_choice_is_exported_as_the_model_that_it_kept() -> None:
    model, X, _ = fitted("plain")
    auto = AutoLDL()
    auto.model_ = model
    for one, other in zip(ModelGraph(auto, (0.5,))(torch.as_tensor(X)), ModelGraph(model, (0.5,))(torch.as_tensor(X))):
        torch.testing.assert_close(one, other)


def test_far_rows_and_far_levels() -> None:
    model = fitted("plain")[0]
    X = np.vstack([CITY.X * 50.0, -CITY.X * 50.0])
    levels = (1e-4, 0.001, 0.5, 0.999, 1 - 1e-4)
    quantiles = ModelGraph(model, levels)(torch.as_tensor(X))[2].numpy()
    np.testing.assert_allclose(quantiles, model.predict_quantiles(X, levels), atol=1e-5)


def test_sharp_and_broad_components_together() -> None:
    """Concentrations of thousands beside ones below 1: the grids resolve both."""
    model = SnefyLDL(n_neurons=12, epochs=1, guides=None, random_state=0).fit(CITY.X, CITY.D)
    with torch.no_grad():
        wide = torch.linspace(-6.0, 7.0, 36).reshape(12, 3)
        model.net_.raw_exponents[0] = wide[torch.randperm(12, generator=torch.Generator().manual_seed(0))]
    quantiles = ModelGraph(model, LEVELS)(torch.as_tensor(CITY.X))[2].numpy()
    np.testing.assert_allclose(quantiles, model.predict_quantiles(CITY.X, LEVELS), atol=1e-5)


def test_grids_are_the_cdfs_of_the_components() -> None:
    """Against scipy's Beta, sharp and broad at once; a cubic between two points is right, too."""
    a, b = np.array([0.06, 0.6, 30.0, 4000.0]), np.array([2.0, 2.0, 80.0, 9000.0])
    z, cdf, density = share_grid(a, b)
    beta, share = scipy.stats.beta(a[:, None], b[:, None]), scipy.special.expit(z)
    np.testing.assert_allclose(cdf, beta.cdf(share), atol=2e-7)
    np.testing.assert_allclose(density, beta.pdf(share) * share * scipy.special.expit(-z), rtol=1e-6, atol=1e-12)
    cubic = CubicHermiteSpline(z, cdf, density, axis=1)
    middle = 0.5 * (z[1:] + z[:-1])
    np.testing.assert_allclose(cubic(middle), beta.cdf(scipy.special.expit(middle)), atol=2e-6)


def test_text_columns_are_encoded_by_the_caller() -> None:
    frame = pd.DataFrame(CITY.X, columns=list("abcde")).assign(
        kind=np.where(CITY.X[:, 0] > np.median(CITY.X[:, 0]), "old", "new")
    )
    model = SnefyLDL(n_neurons=6, epochs=1, guides=None, random_state=0).fit(frame, CITY.D)
    graph = ModelGraph(model, levels=())
    assert graph.encoded
    assert graph.names is not None
    assert graph.names[-1].startswith("kind=")
    mean = graph(torch.as_tensor(model.encode(frame)))[0].numpy()
    np.testing.assert_allclose(mean, model.predict(frame), atol=1e-6)


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
    with pytest.raises(InputError, match="between 0 and 1"):
        ModelGraph(fitted("plain")[0], levels=(0.5, 1.0))
