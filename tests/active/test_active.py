"""Query strategies against naive code, closed forms and Monte Carlo; pools of every kind; every edge."""

from __future__ import annotations

import copy
import json
import math
import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch
from scipy import stats

from snefy_ldl import SnefyLDL, SnefySimplex
from snefy_ldl.active import (
    STRATEGIES,
    Auto,
    DirichletEntropy,
    Entropy,
    Epistemic,
    LogDet,
    Pool,
    Variance,
    VoteInformation,
    query,
    shared_entropy,
)
from snefy_ldl.active.diversity import Geometry, spread_out
from snefy_ldl.active.strategies.features import graph_density
from snefy_ldl.datasets.label_studio import make_tasks, read_votes, write_tasks
from snefy_ldl.errors import InputError, NotFittedError
from snefy_ldl.learners import DirichletLDL
from snefy_ldl.synthetic import make_city_districts

ON_LAWS = [name for name, kind in STRATEGIES.items() if kind.needs_model]
ON_FEATURES = [name for name in STRATEGIES if name not in ON_LAWS]
SEED = np.random.RandomState


@pytest.fixture(scope="module")
def city():
    return make_city_districts(n=360, random_state=1)


@pytest.fixture(scope="module")
def model(city):
    return SnefyLDL(n_neurons=8, n_readouts=4, n_members=3, epochs=6, random_state=0, device="cpu").fit(
        city.X[:120], city.D[:120]
    )


@pytest.fixture(scope="module")
def pool(city):
    return city.X[120:]


def ask(name, pool, n, model, **options):
    if name == "entropy":
        options = {"n_draws": 50} | options
    if name == "epistemic":
        options = {"n_draws": 16} | options
    return query(name, pool, n, model=model, random_state=0, **options)


# -- one contract for all ----------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("diverse", [True, "kmeans++", "greedy", "kmeans"])
@pytest.mark.parametrize("name", [name for name in ON_LAWS if name != "auto"])  # auto is one of the others
def test_every_law_strategy_makes_diverse_batches(name, diverse, pool, model, city):
    rows = ask(name, pool, 10, model, X_labeled=city.X[:50], diverse=diverse)
    assert len(set(rows.tolist())) == 10
    some = ask(name, pool, 5, model, diverse=diverse, candidates=20, space="prediction")
    _, utilities = ask(name, pool, 5, model, return_utilities=True)
    if name not in ("entropy", "epistemic"):  # their draws differ from call to call of the generator
        assert set(some) <= set(np.argsort(-utilities)[:20])


def test_asking_changes_nothing(pool, model):
    before = {name: value.clone() for name, value in model.net_.state_dict().items()}
    fields = {name: copy.deepcopy(value) for name, value in vars(model).items() if name != "net_"}
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    for name in STRATEGIES:
        ask(name, pool, 5, model, X_labeled=pool[:9])
    assert all(torch.equal(value, before[name]) for name, value in model.net_.state_dict().items())
    assert fields == {name: value for name, value in vars(model).items() if name != "net_"}
    assert torch.equal(torch_state, torch.get_rng_state())
    np.testing.assert_array_equal(numpy_state, np.random.get_state()[1])  # noqa: NPY002


# -- feature strategies against naive code -----------------------------------------------------------------------------


def standard(X, reference=None):
    reference = X if reference is None else reference
    return np.clip((X - reference.mean(0)) / reference.std(0), -5, 5)


@pytest.mark.parametrize("labeled", [True, False])
def test_coreset_is_the_naive_greedy_choice(pool, city, labeled):
    Z = standard(pool)
    known = list(standard(city.X[:30], pool)) if labeled else []
    chosen = []
    if not labeled:
        chosen.append(int(np.argmin([np.sum((z - Z.mean(0)) ** 2) for z in Z])))
    while len(chosen) < 12:
        gaps = []
        for i, z in enumerate(Z):
            others = [math.dist(z, other) for other in known] + [math.dist(z, Z[j]) for j in chosen]
            gaps.append(-1.0 if i in chosen else min(others))
        chosen.append(int(np.argmax(gaps)))
    found, far = query("coreset", pool, 12, X_labeled=city.X[:30] if labeled else None, return_utilities=True)
    assert found.tolist() == chosen
    anchors = known if labeled else [Z[chosen[0]]]
    naive = [min(math.dist(z, other) for other in anchors) for z in Z]
    np.testing.assert_allclose(far, naive, atol=1e-6)


def test_graph_density_is_the_naive_sum(pool):
    Z = standard(pool)[:60]
    gaps = np.linalg.norm(Z[:, None] - Z[None], axis=2)
    near = np.zeros((60, 60), dtype=bool)
    for i in range(60):
        near[i, np.argsort(np.where(np.arange(60) == i, np.inf, gaps[i]))[:4]] = True
    sigma = np.mean(gaps[near] ** 2)
    near = near | near.T
    naive = np.array([np.mean(np.exp(-(gaps[i, near[i]] ** 2) / (2 * sigma))) for i in range(60)])
    density, graph = graph_density(Z, 4)
    np.testing.assert_allclose(density, naive, rtol=1e-9)
    np.testing.assert_array_equal(graph.toarray() > 0, near)
    values, chosen = naive.copy(), []
    for _ in range(10):
        pick = int(np.argmax(np.where(np.isin(np.arange(60), chosen), -np.inf, values)))
        values[near[pick]] -= values[pick]
        chosen.append(pick)
    found = query("graph_density", Z, 10, n_neighbors=4, standardize=False)
    assert found.tolist() == chosen


def test_kmeans_takes_a_row_of_each_cluster(rng):
    random = np.random.default_rng(0)
    centres = random.normal(0, 50, (8, 3))
    X = np.concatenate([centre + random.normal(0, 0.1, (20, 3)) for centre in centres])
    found = query("kmeans", X, 8, random_state=0, standardize=False)
    assert sorted(row // 20 for row in found) == list(range(8))
    for row in found:
        group = X[row // 20 * 20 : row // 20 * 20 + 20]
        assert np.argmin(np.linalg.norm(group - group.mean(0), axis=1)) == row % 20


def test_kmeans_plusplus_draws_by_weight_and_squared_distance():
    Z = np.array([[0.0], [1.0], [3.0], [3.0]])
    weight = np.array([1.0, 2.0, 1.0, 0.5])
    count = np.zeros(4)
    for seed in range(2000):
        count[spread_out(Z, weight, 1, "kmeans++", SEED(seed), labeled=np.zeros((1, 1)))[0]] += 1
    expected = weight * np.array([0.0, 1.0, 9.0, 9.0])
    found = stats.chisquare(count[1:], 2000 * expected[1:] / expected.sum())
    assert count[0] == 0
    assert found.pvalue > 1e-4  # false alarm once in ten thousand seeds; this one is fixed


def test_greedy_is_the_naive_determinant():
    random = np.random.default_rng(3)
    Z, weight = random.normal(size=(14, 2)), random.uniform(0.2, 1.0, 14)
    spread = np.mean([np.sum((a - b) ** 2) for a in Z for b in Z])
    kernel = np.exp(-(np.linalg.norm(Z[:, None] - Z[None], axis=2) ** 2) / spread) * np.outer(weight, weight)
    chosen = []
    for _ in range(5):
        values = [
            -np.inf if i in chosen else np.linalg.slogdet(kernel[np.ix_([*chosen, i], [*chosen, i])])[1]
            for i in range(14)
        ]
        chosen.append(int(np.argmax(values)))
    assert spread_out(Z, weight, 5, "greedy", SEED(0)).tolist() == chosen


@pytest.mark.parametrize("method", ["kmeans++", "greedy", "kmeans"])
def test_equal_rows_and_zero_weights_still_fill_a_batch(method):
    Z = np.zeros((9, 2))
    assert len(set(spread_out(Z, np.ones(9), 6, method, SEED(0)).tolist())) == 6
    assert len(set(spread_out(Z, np.zeros(9), 9, method, SEED(0)).tolist())) == 9
    assert len(set(query("kmeans", Z, 7, random_state=0).tolist())) == 7
    assert len(set(query("coreset", Z, 7).tolist())) == 7


# -- scores against closed forms, quadrature and Monte Carlo -----------------------------------------------------------


def dirichlet_law(alpha):
    alpha = torch.as_tensor(alpha)
    zero = torch.zeros(1, alpha.shape[1], dtype=torch.float64)
    one = torch.ones(1, 1, dtype=torch.float64)
    return SnefySimplex(zero, one, torch.zeros(len(alpha), 1, dtype=torch.float64), offset=alpha - 1.0)


ALPHA = np.array([[2.0, 3.0, 5.0], [0.7, 0.9, 1.4], [40.0, 30.0, 5.0]])


def test_dirichlet_scores_are_scipys():
    law = dirichlet_law(ALPHA)
    exact = [stats.dirichlet(alpha).entropy() for alpha in ALPHA]
    np.testing.assert_allclose(DirichletEntropy().score(law, SEED(0)), exact, rtol=1e-9)
    np.testing.assert_allclose(Variance().score(law, SEED(0)), [stats.dirichlet(a).var().sum() for a in ALPHA])
    cov = [np.linalg.slogdet(stats.dirichlet(a).cov()[:2, :2])[1] for a in ALPHA]
    np.testing.assert_allclose(LogDet().score(law, SEED(0)), cov, rtol=1e-9)
    fixed = [stats.dirichlet(7.0 * alpha / alpha.sum()).entropy() for alpha in ALPHA]
    np.testing.assert_allclose(DirichletEntropy(concentration=7.0).score(law, SEED(0)), fixed, rtol=1e-9)
    torch_law = torch.distributions.Dirichlet(torch.as_tensor(ALPHA))
    np.testing.assert_allclose(Entropy().score(torch_law, SEED(0)), exact, rtol=1e-9)


def test_dirichlet_strategy_on_a_dirichlet_model_is_its_own_entropy(city):
    model = DirichletLDL(random_state=0).fit(city.X[:100], city.D[:100])
    _, utilities = query("dirichlet", city.X[100:], 3, model=model, return_utilities=True)
    np.testing.assert_allclose(utilities, model.entropy(city.X[100:]), rtol=1e-6)


def test_log_determinant_is_the_pseudo_determinant_less_a_constant(snefy):
    law = snefy(5, batch=(4,), seed=2)
    eigenvalues = np.linalg.eigvalsh(law.covariance_matrix.numpy())[:, 1:]
    np.testing.assert_allclose(
        LogDet().score(law, SEED(0)), np.log(eigenvalues).sum(1) - math.log(5), rtol=1e-7, atol=1e-7
    )


def test_vote_information_by_quadrature(snefy, quadrature):
    law = snefy(3, batch=(3,), seed=4)
    expect = quadrature(3).expectation(law)
    mean = expect(lambda points: points)
    inner = expect(lambda points: torch.special.entr(points).sum(-1, keepdim=True))[:, 0]
    np.testing.assert_allclose(
        VoteInformation().score(law, SEED(0)), torch.special.entr(mean).sum(-1) - inner, atol=1e-6
    )


@pytest.mark.parametrize("members", [0, 3])
def test_entropy_estimators_agree_with_quadrature(snefy, quadrature, members):
    law = snefy(3, batch=(4,), members=members, seed=5)
    grid = quadrature(3)
    log_p = law.log_prob(grid.points[:, None])
    exact = -(torch.where(log_p > -700, log_p.exp() * log_p, 0.0) * grid.weights[:, None]).sum(0).numpy()
    np.testing.assert_allclose(Entropy(n_draws=20_000).score(law, SEED(0)), exact, atol=0.05)
    np.testing.assert_allclose(Entropy("uniform", 20_000).score(law, SEED(0)), exact, atol=0.1)
    parts = np.stack([shared_entropy(law, 400, torch.Generator().manual_seed(seed)) for seed in range(60)])
    error = parts.std(0, ddof=1) / math.sqrt(60)
    assert (np.abs(parts.mean(0) - exact) < 4.5 * error + 1e-9).all()  # unbiased; false alarm about 3e-5 for 4 rows


def test_shared_draws_are_the_same_for_every_block(pool, model, monkeypatch):
    whole = query("entropy", pool, 5, model=model, random_state=0, method="shared", return_utilities=True)[1]
    monkeypatch.setattr("snefy_ldl.active.strategies.features.BLOCK_ROWS", 64)
    parts = query("entropy", pool, 5, model=model, random_state=0, method="shared", return_utilities=True)[1]
    np.testing.assert_allclose(parts, whole, rtol=1e-9)


def test_epistemic_against_brute_force(snefy):
    law = snefy(3, batch=(5,), members=3, seed=7)
    one = [SnefySimplex(law.exponents[k], law.readout[k], law.log_scale[:, k]) for k in range(3)]
    # I = H(ℓ) - H(ℓ|member): the entropy of the mixture less the members' mean, each by its own draws
    value, error = law.entropy(40_000, generator=torch.Generator().manual_seed(1), return_std_error=True)
    total, variance = value.numpy().copy(), error.numpy() ** 2
    for k, member in enumerate(one):
        value, error = member.entropy(40_000, generator=torch.Generator().manual_seed(2 + k), return_std_error=True)
        total -= value.numpy() / 3
        variance = variance + error.numpy() ** 2 / 9
    found = np.stack([Epistemic(n_draws=500).score(law, SEED(seed)) for seed in range(20)])
    variance = variance + found.var(0, ddof=1) / 20
    assert (np.abs(found.mean(0) - total) < 4.5 * np.sqrt(variance)).all()  # false alarm about 3e-5
    assert (found.mean(0) > 0).all()
    assert (found.mean(0) < math.log(3)).all()


def test_epistemic_by_quadrature_and_for_votes(snefy, quadrature):
    law = snefy(3, batch=(3,), members=2, seed=8)
    one = [SnefySimplex(law.exponents[k], law.readout[k], law.log_scale[:, k]) for k in range(2)]
    grid = quadrature(3)
    p = torch.stack([member.log_prob(grid.points[:, None]).exp() for member in one])
    mixed = p.mean(0)
    exact = (torch.where(p > 0, p * (p.log() - mixed.log()), 0.0).mean(0) * grid.weights[:, None]).sum(0).numpy()
    np.testing.assert_allclose(Epistemic(n_draws=40_000).score(law, SEED(0)), exact, atol=0.02)
    means = np.stack([member.mean.numpy() for member in one])
    votes = stats.entropy(means.mean(0), axis=1) - stats.entropy(means, axis=2).mean(0)
    np.testing.assert_allclose(Epistemic("vote").score(law, SEED(0)), votes, atol=1e-12)
    np.testing.assert_allclose(Epistemic("vote").score(one, SEED(0)), votes, atol=1e-12)


def test_epistemic_is_nothing_for_equal_members(snefy):
    law = snefy(3, batch=(2,), seed=3)
    np.testing.assert_allclose(Epistemic(n_draws=8).score([law, law], SEED(0)), 0.0, atol=1e-12)
    np.testing.assert_allclose(Epistemic("vote").score([law, law], SEED(0)), 0.0, atol=1e-12)


# -- pools -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr("snefy_ldl.active.strategies.features.BLOCK_ROWS", 50)


@pytest.mark.parametrize("name", [*ON_FEATURES, "variance", "dirichlet"])
def test_every_kind_of_pool_gives_the_same_rows(name, pool, model, city, tmp_path, small_blocks):
    wanted, values = ask(name, pool, 9, model, X_labeled=city.X[:20], return_utilities=True)
    frame = pd.DataFrame(pool, columns=[f"x{i}" for i in range(pool.shape[1])])
    frame.to_parquet(tmp_path / "pool.parquet", row_group_size=70)
    frame.to_csv(tmp_path / "pool.csv", index=False)
    np.save(tmp_path / "pool.npy", pool)
    kinds = {
        "frame": frame,
        "parquet": tmp_path / "pool.parquet",
        "csv": str(tmp_path / "pool.csv"),
        "memory map": np.load(tmp_path / "pool.npy", mmap_mode="r"),
        "sparse": sp.csr_matrix(pool),
        "list": pool.tolist(),
        "function": lambda: (pool[i : i + 37] for i in range(0, len(pool), 37)),
        "frames": lambda: (frame.iloc[i : i + 37] for i in range(0, len(pool), 37)),
    }
    for kind, given in kinds.items():
        rows, utilities = ask(name, given, 9, model, X_labeled=city.X[:20], return_utilities=True)
        np.testing.assert_allclose(utilities, values, rtol=1e-6, atol=1e-9, err_msg=kind)
        np.testing.assert_array_equal(rows, wanted, err_msg=kind)


def test_diverse_batches_from_a_file_are_those_from_memory(pool, model, tmp_path, small_blocks):
    pd.DataFrame(pool).rename(columns=str).to_parquet(tmp_path / "pool.parquet")
    for space in ("features", "prediction"):
        wanted = ask("variance", pool, 9, model, diverse=True, space=space)
        found = ask("variance", tmp_path / "pool.parquet", 9, model, diverse=True, space=space)
        np.testing.assert_array_equal(found, wanted)


def test_read_only_memory_is_left_alone(pool, model, tmp_path):
    np.save(tmp_path / "pool.npy", pool.astype(np.float32))
    mapped = np.load(tmp_path / "pool.npy", mmap_mode="r")
    for name in ("variance", "coreset"):
        np.testing.assert_array_equal(ask(name, mapped, 5, model), ask(name, pool.astype(np.float32), 5, model))


def test_an_iterator_is_read_once(pool, model):
    def blocks():
        return iter([pool[:50], pool[50:]])

    np.testing.assert_array_equal(ask("variance", blocks(), 5, model), ask("variance", pool, 5, model))
    np.testing.assert_array_equal(
        query("random", blocks(), 5, random_state=1), query("random", pool, 5, random_state=1)
    )
    with pytest.raises(InputError, match="more than once"):
        query("coreset", blocks(), 5)
    with pytest.raises(InputError, match="more than once"):
        ask("variance", blocks(), 5, model, diverse=True)


def test_named_columns_are_matched_by_name(city, tmp_path):
    names = [f"f{i}" for i in range(city.X.shape[1])]
    frame = pd.DataFrame(city.X, columns=names)
    model = DirichletLDL(random_state=0).fit(frame[:100], city.D[:100])
    frame[100:].assign(extra="text")[["extra", *names[::-1]]].to_parquet(tmp_path / "pool.parquet")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = query("variance", tmp_path / "pool.parquet", 7, model=model)
    np.testing.assert_array_equal(found, query("variance", frame[100:], 7, model=model))
    frame[100:].drop(columns="f2").to_parquet(tmp_path / "less.parquet")
    with pytest.raises(InputError, match="f2"):
        query("variance", tmp_path / "less.parquet", 7, model=model)


def test_large_pools_are_thinned_and_scaled_in_one_pass(monkeypatch):
    random = np.random.default_rng(0)
    X = 1e4 + random.normal(0, [1.0, 1e-3, 30.0], (5000, 3))
    monkeypatch.setattr("snefy_ldl.active.strategies.features.BLOCK_ROWS", 333)
    geometry = Geometry.of(Pool(X, block_rows=333), True)
    np.testing.assert_allclose(geometry.mean, X.mean(0), rtol=1e-12)
    np.testing.assert_allclose(geometry.spread, X.std(0), rtol=1e-9)
    for name in ("kmeans", "coreset", "graph_density"):
        rows, utilities = query(name, X, 20, random_state=0, max_rows=200, return_utilities=True)
        assert len(set(rows.tolist())) == 20
        assert np.isnan(utilities).sum() == (4800 if name == "graph_density" else 0)


def test_mini_batches_beyond_the_limit(monkeypatch, pool):
    monkeypatch.setattr("snefy_ldl.active.diversity.FULL_KMEANS_ROWS", 50)
    assert len(set(query("kmeans", pool, 6, random_state=0).tolist())) == 6


def test_progress_goes_to_stderr_and_only_when_asked(pool, capsys):
    query("coreset", pool, 3)
    assert capsys.readouterr() == ("", "")
    query("coreset", pool, 3, verbose=True)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "distance" in shown.err


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
        ({"exclude": np.zeros(3, dtype=bool)}, "one entry a row"),
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
    bad[120, 2] = np.nan
    with pytest.raises(InputError, match="rows from 100 on: X contains NaN at row 20, column 2"):
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
    for name in ("logdet", "vote_information", "epistemic"):
        with pytest.raises(InputError):
            query(name, pool, 4, model=Foreign())


# -- to people and back ------------------------------------------------------------------------------------------------


def test_label_studio_round_trip(pool, model, tmp_path):
    labels = ["work", "play", "learn"]
    rows, utilities = ask("variance", pool, 4, model, return_utilities=True)
    path = write_tasks(
        tmp_path / "tasks.json",
        rows,
        predicted=model.predict(pool[rows]),
        utilities=utilities[rows],
        label_names=labels,
    )
    tasks = json.loads(path.read_text())
    assert [task["data"]["row"] for task in tasks] == rows.tolist()
    assert tasks[0]["predictions"][0]["result"][0]["value"]["choices"][0] in labels

    def said(who, *choices, **more):
        result = [{"type": "choices", "from_name": "label", "value": {"choices": list(choices)}}]
        return {"completed_by": who, "result": result, **more}

    tasks[0]["annotations"] = [said(1, "work"), said(2, "work", "play"), said({"id": 3}, "learn", was_cancelled=True)]
    tasks[1]["annotations"] = [
        said(1, "learn", updated_at="2024-02-02"),
        said(1, "work", updated_at="2024-01-01"),
        said(None, "play"),
        said(None, "play"),
    ]
    tasks[2]["annotations"] = []
    del tasks[3]["predictions"]
    path.write_text(json.dumps(tasks))
    found, counts = read_votes(path, labels)
    np.testing.assert_array_equal(found, rows[:2])
    np.testing.assert_array_equal(counts, [[2, 1, 0], [0, 2, 1]])
    assert read_votes(path, labels, from_name="other")[1].shape == (0, 3)


@pytest.mark.parametrize(
    ("work", "message"),
    [
        (lambda: read_votes([{"data": {}}], ["a", "b"]), "row number"),
        (lambda: read_votes({"data": {}}, ["a", "b"]), "list of tasks"),
        (lambda: read_votes([], ["a"]), "label_names"),
        (
            lambda: read_votes(
                [{"data": {"row": 1}, "annotations": [{"result": [{"type": "choices", "value": {"choices": ["c"]}}]}]}],
                ["a", "b"],
            ),
            "choice 'c'",
        ),
        (lambda: make_tasks([1, 2], [{}]), "data must have"),
        (lambda: make_tasks([1], predicted=[[0.5, 0.5]]), "predicted must be"),
    ],
)
def test_bad_tasks(work, message):
    with pytest.raises(InputError, match=message):
        work()


def test_auto_compares_members_where_there_are_some(pool, city):
    kinds = [Auto().pick(SnefyLDL()), Auto().pick(SnefyLDL(n_members=2)), Auto().pick([1, 2])]
    assert [type(kind) for kind in kinds] == [Variance, Epistemic, Epistemic]
    model = SnefyLDL(n_neurons=6, n_readouts=3, epochs=2, random_state=0).fit(city.X[:80], city.D[:80])
    chosen = query("auto", pool, 5, model=model, random_state=3)
    np.testing.assert_array_equal(chosen, query("variance", pool, 5, model=model, random_state=3, diverse="kmeans"))
