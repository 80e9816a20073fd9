"""One question to a pool: what every strategy keeps to, how strategies are found by name, and every bad input."""

from __future__ import annotations

import copy
import inspect

import numpy as np
import pytest
import torch

from queries import ON_LAWS, ask
from snefy_ldl import SnefyLDL
from snefy_ldl.active import STRATEGIES, Pool, Strategy, Variance, make_strategy, query
from snefy_ldl.errors import InputError, NotFittedError
from snefy_ldl.learners import DirichletLDL


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_gives_distinct_rows_and_a_utility_for_each(name, pool, model, city):
    rows, utilities = ask(name, pool, 12, model, X_labeled=city.X[:120], return_utilities=True)
    assert rows.shape == (12,)
    assert rows.dtype == np.intp
    assert len(set(rows.tolist())) == 12
    assert utilities.shape == (len(pool),)
    assert np.isfinite(utilities).all()
    again = ask(name, pool, 12, model, X_labeled=city.X[:120])
    np.testing.assert_array_equal(rows, again)


@pytest.mark.parametrize("name", [*ON_LAWS, "random"])
def test_the_highest_utilities_are_taken_best_first(name, pool, model):
    rows, utilities = ask(name, pool, 15, model, return_utilities=True)
    np.testing.assert_array_equal(utilities[rows], np.sort(utilities)[::-1][:15])


@pytest.mark.parametrize("name", STRATEGIES)
def test_excluded_rows_are_not_chosen(name, pool, model):
    out = ask(name, pool, 20, model)
    mask = np.zeros(len(pool), dtype=bool)
    mask[out] = True
    by_mask, by_number = ask(name, pool, 30, model, exclude=mask), ask(name, pool, 30, model, exclude=out)
    assert not set(by_mask) & set(out)
    np.testing.assert_array_equal(by_mask, by_number)
    rest = np.flatnonzero(~mask)
    everything = ask(name, pool, len(rest), model, exclude=mask)
    np.testing.assert_array_equal(np.sort(everything), rest)


@pytest.mark.parametrize("diverse", [True, "kmeans++", "kmeans"])
@pytest.mark.parametrize("name", ON_LAWS)
def test_every_law_strategy_makes_diverse_batches(name, diverse, pool, model, city):
    rows = ask(name, pool, 10, model, X_labeled=city.X[:50], diverse=diverse)
    assert len(set(rows.tolist())) == 10
    some = ask(name, pool, 5, model, diverse=diverse, candidates=20, space="prediction")
    _, utilities = ask(name, pool, 5, model, return_utilities=True)
    if name not in ("entropy", "epistemic"):  # their draws differ from call to call of the generator
        assert set(some) <= set(np.argsort(-utilities)[:20])


def test_asking_changes_nothing(pool, model):
    before = {name: value.clone() for name, value in model.net_.state_dict().items()}
    parts = ("net_", "guides_", "seen_rows_", "columns_")  # these do not say that they are equal
    fields = {name: copy.deepcopy(value) for name, value in vars(model).items() if name not in parts}
    predicted, columns = model.predict(pool), copy.deepcopy(model.columns_.to_dict())
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    for name in STRATEGIES:
        ask(name, pool, 5, model, X_labeled=pool[:9])
    assert all(torch.equal(value, before[name]) for name, value in model.net_.state_dict().items())
    assert fields == {name: value for name, value in vars(model).items() if name not in parts}
    assert model.columns_.to_dict() == columns
    np.testing.assert_array_equal(model.predict(pool), predicted)
    assert torch.equal(torch_state, torch.get_rng_state())
    np.testing.assert_array_equal(numpy_state, np.random.get_state()[1])  # noqa: NPY002


# -- strategies by name ------------------------------------------------------------------------------------------------


def test_a_strategy_of_ones_own_is_found_by_name(pool):
    class Last(Strategy, name="last"):
        def choose(self, pool: Pool, n: int, **more):
            rows = pool.count()
            return np.arange(rows)[::-1][:n], np.arange(float(rows))

    try:
        assert query("last", pool, 3).tolist() == [len(pool) - 1, len(pool) - 2, len(pool) - 3]
        with pytest.raises(InputError, match="'last' exists"):

            class Other(Strategy, name="last"):
                def choose(self, pool: Pool, n: int, **more):
                    raise NotImplementedError
    finally:
        del STRATEGIES["last"]
    with pytest.raises(InputError, match="use one of"):
        query("last", pool, 3)


def test_every_strategy_keeps_to_the_contract_of_its_settings():
    for name, kind in STRATEGIES.items():
        strategy = make_strategy(name)
        assert type(strategy) is kind
        assert set(inspect.signature(kind).parameters) == set(vars(strategy))  # settings are kept under their names
        assert eval(repr(strategy), {kind.__name__: kind}).__dict__ == vars(strategy)
        assert make_strategy(strategy) is strategy


def test_the_names_that_are_documented_are_there():
    recommended = "auto lcmd bait random"
    others = "maxdet kmeans++ kmeans coreset graph_density dirichlet entropy variance epistemic"
    assert {*recommended.split(), *others.split()} <= set(STRATEGIES)


# -- bad input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"strategy": "entropie"}, "Did you mean 'entropy'"),
        ({"strategy": 3}, "use one of"),
        ({"n": 0}, "n must be"),
        ({"n": 2.5}, "n must be"),
        ({"n": 10_000}, "10000 rows were asked for"),
        ({"model": None}, "pass model="),
        ({"model": object()}, "predict_dist"),
        ({"X_pool": np.zeros((0, 5))}, "empty"),
        ({"X_pool": np.zeros(5)}, "two-dimensional"),
        ({"X_pool": iter([])}, "empty"),
        ({"X_pool": 7}, "must hold rows"),
        ({"X_pool": np.zeros((3, 2)), "n": 1}, "features"),
        ({"options": {"colour": 1}}, "no option 'colour'"),
        ({"options": {"diverse": "very"}}, "diverse="),
        ({"options": {"candidates": 0}}, "candidates"),
        ({"options": {"space": "time"}}, "space="),
        ({"strategy": "entropy", "options": {"method": "guess"}}, "method="),
        ({"strategy": "entropy", "options": {"n_draws": 1}}, "n_draws"),
        ({"strategy": "epistemic", "options": {"target": "x"}}, "target="),
        ({"strategy": "dirichlet", "options": {"concentration": -1.0}}, "concentration"),
        ({"strategy": "kmeans", "options": {"max_rows": 0}}, "max_rows"),
        ({"strategy": "graph_density", "options": {"n_neighbors": 0}}, "n_neighbors"),
        ({"strategy": "coreset", "X_labeled": np.zeros((2, 3))}, "X_labeled has 3 features"),
        ({"strategy": Variance(), "options": {"diverse": True}}, "has its settings already"),
        ({"exclude": [9999]}, "row 9999"),
        ({"exclude": np.zeros(3, dtype=bool)}, "one entry per row"),
        ({"exclude": ["a"]}, "exclude must be"),
        ({"random_state": "seed"}, "random_state"),
    ],
)
def test_bad_input_gets_one_clear_error(change, message, pool, model):
    settings = {"strategy": "variance", "X_pool": pool, "n": 5, "model": model} | change
    with pytest.raises(InputError, match=message):
        query(**settings.pop("options", {}), **settings)


@pytest.mark.parametrize("name", ["coreset", "variance"])
def test_the_bad_row_is_named(name, pool, model, small_blocks):
    bad = pool.copy()
    bad[120, 2] = np.inf
    with pytest.raises(InputError, match="rows from 100 on: X contains inf at row 20, column 2"):
        query(name, bad, 5, model=model)


def test_unfitted_models_and_single_members_are_refused(pool, city):
    with pytest.raises(NotFittedError):
        query("variance", pool, 3, model=SnefyLDL())
    single = DirichletLDL(random_state=0).fit(city.X[:60], city.D[:60])
    with pytest.raises(InputError, match="n_members=4"):
        query("epistemic", pool, 3, model=single)
    with pytest.raises(InputError, match="at least two"):
        query("epistemic", pool, 3, model=[single])
    other = DirichletLDL("regression", random_state=0).fit(city.X[:60], city.D[:60])
    assert len(query("epistemic", pool, 3, model=[single, other], target="vote", diverse=True, space="prediction")) == 3


def test_laws_of_others_are_asked_for_what_they_have(pool):
    class Foreign:
        def predict_dist(self, X):
            alpha = torch.as_tensor(1.0 + np.abs(np.asarray(X)[:, :3]))
            return torch.distributions.Dirichlet(alpha)

    for name in ("variance", "dirichlet", "entropy"):
        assert len(query(name, pool, 4, model=Foreign())) == 4
    with pytest.raises(InputError):
        query("epistemic", pool, 4, model=Foreign())
