"""The contract of every strategy, with models of both distributions; strategies by name; every bad input."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.exceptions import NotFittedError

from snefy_ldl import SnefyLDL
from snefy_ldl.active import STRATEGIES, Pool, ScoreStrategy, Strategy, query
from snefy_ldl.active.strategy import Entropy
from snefy_ldl.errors import InputError

NAMES = ("auto", "badge", "bait", "entropy", "lcmd", "random")


def ask(name, pool, n, model, **options):
    """A query with few draws, so that it is quick."""
    draws = {"n_draws": 50} if name == "entropy" else {}
    return query(name, pool, n, model=model, random_state=0, **(draws | options))


@pytest.mark.parametrize("kind", ["model", "single", "logratio", "auto"])
@pytest.mark.parametrize("name", NAMES)
def test_every_strategy_keeps_its_contract(name, kind, pool, city, request):
    model = request.getfixturevalue(kind)
    known = city.X[:120]
    rows, utilities = ask(name, pool, 12, model, X_labeled=known, return_utilities=True)
    assert (rows.shape, rows.dtype) == ((12,), np.intp)
    assert len(set(rows.tolist())) == 12
    assert utilities.shape == (len(pool),)
    assert np.isfinite(utilities).all()
    np.testing.assert_array_equal(rows, ask(name, pool, 12, model, X_labeled=known))
    if name in ("random", "entropy"):
        np.testing.assert_array_equal(utilities[rows], np.sort(utilities)[::-1][:12])
    mask = np.zeros(len(pool), dtype=bool)
    mask[rows] = True
    by_mask, by_number = ask(name, pool, 30, model, exclude=mask), ask(name, pool, 30, model, exclude=rows)
    assert not set(by_mask) & set(rows)
    np.testing.assert_array_equal(by_mask, by_number)
    rest = np.flatnonzero(~mask)
    np.testing.assert_array_equal(np.sort(ask(name, pool, len(rest), model, exclude=mask)), rest)


def test_asking_changes_nothing(pool, model):
    before = {name: value.clone() for name, value in model.net_.state_dict().items()}
    parts = ("net_", "guides_", "seen_rows_", "columns_", "model_")  # these cannot be compared with ==
    fields = {name: repr(value) for name, value in vars(model).items() if name not in parts}
    predicted = model.predict(pool)
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    for name in STRATEGIES:
        ask(name, pool, 5, model, X_labeled=pool[:9])
    assert all(torch.equal(value, before[name]) for name, value in model.net_.state_dict().items())
    assert fields == {name: repr(value) for name, value in vars(model).items() if name not in parts}
    np.testing.assert_array_equal(model.predict(pool), predicted)
    assert torch.equal(torch_state, torch.get_rng_state())
    np.testing.assert_array_equal(numpy_state, np.random.get_state()[1])  # noqa: NPY002


@pytest.mark.parametrize("method", ["model", "uniform"])
def test_entropies_are_those_of_quadrature(snefy, quadrature, method):
    dist, grid = snefy(3, batch=(4,), members=3, seed=5), quadrature(3)
    log_p = dist.log_prob(grid.points[:, None])
    exact = -(torch.where(log_p > -700, log_p.exp() * log_p, 0.0) * grid.weights[:, None]).sum(0).numpy()
    values = Entropy(method, 20_000).score(dist, np.random.RandomState(0))
    np.testing.assert_allclose(values, exact, atol={"model": 0.05, "uniform": 0.1}[method])
    torchs = torch.distributions.Dirichlet(torch.tensor([[2.0, 3.0, 5.0], [1.0, 1.0, 1.0]]))
    np.testing.assert_allclose(Entropy().score(torchs, np.random.RandomState(0)), torchs.entropy())


# -- strategies by name ------------------------------------------------------------------------------------------------


def test_a_score_of_ones_own_is_a_strategy(pool, model, small_blocks):
    class Variance(ScoreStrategy, name="variance"):
        def score(self, dist, random):
            return dist.variance.sum(-1).numpy()

    try:
        rows, utilities = query("variance", pool, 3, model=model, return_utilities=True)
    finally:
        del STRATEGIES["variance"]
    expected = model.predict_var(pool).sum(1)
    np.testing.assert_allclose(utilities, expected, rtol=1e-5)
    np.testing.assert_array_equal(rows, np.argsort(-expected)[:3])


def test_a_strategy_of_ones_own_is_found_by_name(pool):
    class FarOut(Strategy, name="far_out"):
        def choose(self, pool: Pool, n: int, **more):
            far = np.concatenate([np.abs(np.asarray(block)).sum(1) for start, block in pool.blocks()])
            return np.argsort(-far)[:n], far

    try:
        assert query("far_out", pool, 1).tolist() == [int(np.abs(pool).sum(1).argmax())]
        with pytest.raises(InputError, match="'far_out' exists"):

            class Other(Strategy, name="far_out"):
                def choose(self, pool: Pool, n: int, **more):
                    raise NotImplementedError
    finally:
        del STRATEGIES["far_out"]
    with pytest.raises(InputError, match="use one of"):
        query("far_out", pool, 3)


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
        ({"model": object(), "strategy": "lcmd", "options": {}}, "predict_dist"),
        ({"X_pool": np.zeros((0, 5))}, "empty"),
        ({"X_pool": np.zeros(5)}, "two-dimensional"),
        ({"X_pool": lambda: iter([])}, "empty"),
        ({"X_pool": 7}, "must hold rows"),
        ({"X_pool": np.zeros((3, 2)), "n": 1}, "features"),
        ({"options": {"colour": 1}}, "no option 'colour'"),
        ({"options": {"method": "guess"}}, "method="),
        ({"options": {"n_draws": 1}}, "n_draws"),
        ({"strategy": "lcmd", "options": {"max_rows": 0}}, "max_rows"),
        ({"strategy": "lcmd", "options": {"kernel": "rbf"}}, "kernel="),
        ({"strategy": "auto", "options": {"diagnosis": "yes"}}, r"what will_it_help\(\.\.\.\) returned"),
        ({"strategy": "lcmd", "options": {}, "X_labeled": np.zeros((2, 3))}, "features"),
        ({"strategy": Entropy(), "options": {"n_draws": 3}}, "has its settings already"),
        ({"exclude": [9999]}, "row 9999"),
        ({"exclude": np.zeros(3, dtype=bool)}, "one entry per row"),
        ({"exclude": ["a"]}, "exclude must be"),
        ({"random_state": "seed"}, "random_state"),
    ],
)
def test_bad_input_gets_one_clear_error(change, message, pool, model):
    settings = {"strategy": "entropy", "X_pool": pool, "n": 5, "model": model, "options": {"n_draws": 9}} | change
    with pytest.raises(InputError, match=message):
        query(**settings.pop("options"), **settings)


@pytest.mark.parametrize("name", ["lcmd", "entropy"])
def test_the_bad_row_is_named(name, pool, model, small_blocks):
    bad = pool.copy()
    bad[120, 2] = np.inf
    with pytest.raises(InputError, match="rows from 100 on: X contains inf at row 20, column 2"):
        ask(name, bad, 5, model)


def test_a_single_member_without_trees_has_nothing_for_auto(pool, single):
    with pytest.raises(NotFittedError):
        query("entropy", pool, 3, model=SnefyLDL())
    with pytest.raises(InputError, match="feature-based forest"):
        query("lcmd", pool, 3, model=single, kernel="trees")
    by_chance = query("random", pool, 3, model=single, random_state=4)
    np.testing.assert_array_equal(query("auto", pool, 3, model=single, random_state=4), by_chance)
