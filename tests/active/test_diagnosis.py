"""Whether choosing rows will help, on pools whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest

from snefy_ldl import SnefyLDL
from snefy_ldl.active import query, will_it_help
from snefy_ldl.errors import InputError


@pytest.fixture(scope="module")
def guided(city) -> SnefyLDL:
    quick = {"epochs": 2, "n_neurons": 8, "n_readouts": 4, "n_members": 2, "random_state": 0, "device": "cpu"}
    return SnefyLDL(**quick).fit(city.X[:120], city.D[:120])


@pytest.mark.slow
def test_labels_that_do_not_depend_on_features_leave_nothing_to_win(guided, city, pool):
    noise = np.random.default_rng(0).dirichlet(np.ones(3), 120)
    diagnosis = will_it_help(guided, city.X[:120], noise, pool)
    assert not diagnosis.helps
    assert abs(diagnosis.foreseen) < 0.25
    assert str(diagnosis).startswith("random is as good here; label 120 more at random first")
    chosen = query("auto", pool, 5, model=guided, random_state=1, diagnosis=diagnosis)
    np.testing.assert_array_equal(chosen, query("random", pool, 5, model=guided, random_state=1))


@pytest.mark.slow
def test_a_rare_kind_of_row_that_holds_the_error_is_worth_choosing():
    random = np.random.default_rng(0)
    X = random.normal(size=(3000, 4)) * np.where(random.random((3000, 1)) < 0.06, 4.0, 0.2)
    mean = np.exp(np.stack([np.tanh(X[:, 0]), np.tanh(X[:, 1]), np.zeros(len(X))], 1) * 2.0)
    D = np.stack([random.dirichlet(400.0 * row / row.sum()) for row in mean])
    model = SnefyLDL(epochs=1, n_neurons=8, n_members=2, random_state=0, device="cpu").fit(X[:150], D[:150])
    diagnosis = will_it_help(model, X[:150], D[:150], X[150:])
    assert diagnosis.helps
    assert diagnosis.redundancy > 0.05
    assert "query" in str(diagnosis)


@pytest.mark.slow
def test_the_figures_are_what_they_are_called(guided, city, pool):
    diagnosis = will_it_help(guided, city.X[:120], city.D[:120], pool)
    again = will_it_help(guided, city.X[:120], city.D[:120], pool)
    assert (diagnosis.sentence, diagnosis.foreseen) == (again.sentence, again.foreseen)
    assert diagnosis.sizes.tolist() == [24.0, 48.0, 96.0]
    halved = (diagnosis.errors[-1] / diagnosis.errors[0]) ** 0.5  # two doublings
    assert diagnosis.slope == pytest.approx(1.0 - halved)
    assert ("doubling the labels" in str(diagnosis)) == (diagnosis.slope < 0.05)
    assert -1.0 <= diagnosis.foreseen <= 1.0
    assert diagnosis.redundancy < 1.0
    assert np.isnan(will_it_help(guided, city.X[:120], city.D[:120]).redundancy)  # without a pool


def test_too_few_rows_are_refused(guided, city):
    with pytest.raises(InputError, match="at least 20 labelled rows; got 9"):
        will_it_help(guided, city.X[:9], city.D[:9])
    with pytest.raises(InputError):
        will_it_help(guided, city.X[:30], city.D[:29])
