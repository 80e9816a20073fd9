"""Answers about the panel, groups of people, few votes, whom to ask, and measures of shared tasks."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import t as student
from scipy.stats import wasserstein_distance
from sklearn.metrics import f1_score, roc_auc_score

from snefy_ldl import AnnotatorLDL, SnefyLDL
from snefy_ldl.datasets import make_annotators
from snefy_ldl.errors import InputError, TableNote
from snefy_ldl.training.data import fit_dirichlet_multinomial
from snefy_ldl.votes import Votes, aggregate, lewidi_scores, update
from snefy_ldl.votes.confusion import bin_numbers
from snefy_ldl.votes.crowd import HOLD, Ballots, Crowd, first_draws, weigh_votes
from snefy_ldl.votes.likelihood import PairMoments, best_pairs, best_point

SMALL = {"n_neurons": 12, "n_readouts": 6, "epochs": 2, "n_members": 1, "guides": None, "random_state": 0}


def people(n_people=8, n_items=60, each=None, lean=(0.3, 0.5), seed=0):
    """Votes of two groups, whose members lean to the last label more or less; the mean shares of both populations."""
    rng = np.random.default_rng(seed)
    items = make_annotators(n=n_items, n_labels=3, votes=1, random_state=seed)
    group = np.arange(n_people) % 2
    own = rng.beta(10 * np.take(lean, group), 10 * (1 - np.take(lean, group)))
    matrices = (1 - own)[:, None, None] * np.eye(3) + own[:, None, None] * np.eye(3)[2]
    item, who = np.tile(np.arange(n_items), n_people), np.repeat(np.arange(n_people), n_items)
    chance = np.einsum("jk,jkv->jv", items.latent[item], matrices[who]).cumsum(1)
    label = (rng.random(len(item))[:, None] > chance).sum(1).clip(0, 2)
    names = [f"p{a}" for a in range(n_people)]
    votes = Votes(item, who, label, [f"i{k}" for k in range(n_items)], names, items.label_names)
    if each is not None:
        order = rng.permutation(len(votes))
        order = order[np.argsort(item[order], kind="stable")]
        votes = votes.pick(np.sort(order[np.arange(len(order)) % n_people < each]))
    mean = items.latent.mean(0)
    truth = np.stack([(1 - one) * mean + one * np.eye(3)[2] for one in lean])
    return items.X, votes.with_facts({"annotator": names, "side": ["ab"[g] for g in group]}), truth


def benchmark():
    """The module of the benchmark of annotators."""
    sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
    try:
        return importlib.import_module("annotators")
    finally:
        sys.path.pop()


@pytest.fixture(scope="module")
def fitted():
    X, votes, _ = people()
    return X, votes, AnnotatorLDL(SnefyLDL(**SMALL)).fit(X, votes)


# -- the panel ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_everything_is_about_the_panel_unless_asked(fitted):
    X, votes, model = fitted
    panel, latent = model.predict_dist(X), model.predict_dist(X, of="latent")
    assert_allclose(model.predict(X), panel.mean)
    assert_allclose(model.predict(X, of="latent"), latent.mean)
    assert_allclose(model.log_prob(X, counts=votes.counts), panel.log_prob_counts(votes.counts))
    assert_allclose(update(model, X, votes.counts).mean, panel.posterior(votes.counts).mean)
    plain = SnefyLDL(**SMALL).fit(X, counts=votes.counts)  # the panel is the model of its counts
    assert_array_equal(model.predict(X), plain.predict(X))
    assert np.abs(np.asarray(panel.mean - latent.mean)).max() > 0.02
    other = AnnotatorLDL(of="latent")
    other.model_, other.latent_, other.annotators_ = model.model_, model.latent_, model.annotators_
    assert_allclose(other.predict(X), latent.mean)
    assert (model.whose, other.whose) == ("the panel", "latent labels")
    with pytest.raises(InputError, match="counts are votes of the panel"):
        update(other, X, votes.counts)


@pytest.mark.slow
def test_the_panel_given_no_votes_is_the_panel_and_votes_move_it(fitted):
    X, votes, model = fitted
    mean, covariance = model.predict_given_votes(X, votes.pick(votes.label < 0))
    assert_allclose(mean, model.predict(X))
    one = votes.pick((votes.item == 0) & (votes.label == votes.label[0]))
    after, smaller, ends = model.predict_given_votes(X, one, alpha=[0.05, 0.95])
    assert after[0, votes.label[0]] > mean[0, votes.label[0]]
    assert smaller.shape == covariance.shape == (60, 3, 3)
    assert (ends[0, :, 0] <= after[0] + 1e-9).all()
    assert (after[0] <= ends[0, :, 1] + 1e-9).all()
    assert_allclose(after[1:], mean[1:])
    frame = pd.DataFrame(X, index=votes.items).iloc[::-1]  # rows go by name
    assert_allclose(
        model.predict_given_votes(frame.to_numpy(), one.on_rows_of(frame))[0][::-1], after, atol=5e-3
    )  # other draws


@pytest.mark.slow
def test_votes_of_people_by_draws_agree_with_first_order_moments(fitted):
    X, _, model = fitted
    draws = model.sample(X[:4], 4000, random_state=0, of="p1")
    assert_allclose(np.asarray(draws).mean(0), model.predict(X[:4], of="p1"), atol=0.02)
    assert_allclose(np.asarray(draws).var(0), model.predict_var(X[:4], of="p1"), atol=0.01)
    single = np.eye(3)[[0, 1, 2, 0]]
    chance = np.log((np.asarray(model.predict(X[:4], of="p1")) * single).sum(1))
    assert_allclose(model.log_prob(X[:4], counts=single, of="p1"), chance, atol=0.05)


# -- groups ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_both_calls_about_a_group_have_one_answer_and_plain_intervals(fitted):
    X, _, model = fitted
    known = model.annotators_
    found = model.compare_groups(X, "side", 0.8)
    with pytest.warns(TableNote, match=r"4 annotator\(s\) with"):
        shares = np.asarray(model.predict(X, of={"side": "a"})).mean(0)
    assert_allclose(found.shares[0], shares)
    seen = (known.exposure / known.cast.sum(1, keepdims=True))[::2].mean(0)  # the matrix predicts the members' shares
    shares = (known.cast / known.cast.sum(1, keepdims=True))[::2].mean(0)
    assert_allclose(seen @ known.matrix({"side": "a"}), shares, atol=0.01)
    own = (known.cast - known.exposure @ known.panel_matrix) / known.cast.sum(1, keepdims=True)
    within = np.square(own[::2] - own[::2].mean(0)).sum(0) + np.square(own[1::2] - own[1::2].mean(0)).sum(0)
    half = student.ppf(0.9, 6) * np.sqrt(within / 6 / 8)  # two groups of four, half of the votes each
    assert_allclose(found.high - found.difference, np.broadcast_to(half, (2, 3)))
    assert "a (4, too few to speak of a group)" in str(found)


def test_many_numbers_are_bins_and_empty_is_unknown():
    ages = ["19", "22", "25", "31", "38", "44", "52", "60", "71", None]
    binned = bin_numbers(ages)
    assert binned[-1] is None
    assert len({*binned} - {None}) == 4
    assert bin_numbers([1, 2, 3, None]) == [1, 2, 3, None]


@pytest.mark.slow
@pytest.mark.parametrize("n_people", [3, 40])
def test_intervals_of_groups_cover_the_means_of_their_populations(n_people):
    """The benchmark has 60 panels of each size; here are ten: .9 within three standard errors of dependent cells."""
    inside = []
    for seed in range(10):
        X, votes, truth = people(n_people, 40, seed=seed)
        found = AnnotatorLDL(SnefyLDL(**SMALL)).fit(X, votes).compare_groups(X, "side")
        apart = truth - (found.sizes / n_people) @ truth
        inside.append((found.low <= apart) & (apart <= found.high))
    assert np.mean(inside) > 0.75


# -- few votes, random votes -------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("each", [1, 2])
def test_few_votes_drop_no_item_and_make_nobody_a_guesser(each):
    X, votes, _ = people(each=each)
    model = AnnotatorLDL(SnefyLDL(**SMALL)).fit(X, votes)
    assert model.latent_.training_["rows"] == model.model_.training_["rows"]
    assert model.annotators_.spam_score.max() <= (0.0 if each == 1 else 0.9)
    if each == 1:  # nothing tells people from items
        assert_allclose(model.annotators_.matrices, np.broadcast_to(np.eye(3), (8, 3, 3)), atol=0.02)


def test_items_without_votes_are_named():
    X, votes, _ = people(n_items=20)
    with pytest.raises(TableNote, match="2 of 22 items have no vote and were left out"):  # before any training
        AnnotatorLDL(SnefyLDL(**SMALL)).fit(np.vstack([X, X[:2]]), votes.on_items([*votes.items, "x", "y"]))


def test_random_voters_have_the_highest_spam_scores():
    rng = np.random.default_rng(0)
    _, votes, _ = people(n_people=24, n_items=200)
    label = np.where(votes.annotator < 12, rng.integers(0, 3, len(votes)), votes.label)
    table = Votes(votes.item, votes.annotator, label, votes.items, votes.annotators, votes.label_names)
    ballots = Ballots.of(table, np.arange(200))
    crowd = Crowd(ballots, HOLD)
    draws = first_draws(table.counts, fit_dirichlet_multinomial(table.counts), rng)
    for turn in range(20):
        latent, others, _ = weigh_votes(draws, ballots, crowd.factors())
        crowd.learn(latent, others, turn >= 10)
    assert roc_auc_score(np.arange(24) < 12, crowd.spam[:-1]) > 0.95
    assert crowd.spam[:12].mean() > 0.5 > 0.2 > crowd.spam[12:-1].mean()


# -- whom to ask -------------------------------------------------------------------------------------------------------


def test_a_second_vote_counts_the_first():
    """Two votes of perfect people on one item of a Dirichlet: falls of its variance that are known."""
    alpha = np.array([2.0, 3.0, 5.0])
    mean = alpha / 10
    covariance = (np.diag(mean) - np.outer(mean, mean)) / 11
    parts = [one[None].copy() for one in (mean, covariance, covariance)]
    moments = PairMoments(*parts, np.array([np.trace(covariance)]), np.zeros((1, 3)))
    _, whom, values = best_pairs(moments, np.stack([np.eye(3)] * 2), np.ones(2), np.ones((1, 2), bool), 2, 2, 2, 0.0)
    left = [np.trace(covariance) * 10 / (10 + n) for n in range(3)]
    assert_array_equal(np.sort(whom), [0, 1])
    assert_allclose(values, -np.diff(left), rtol=0.02)  # the second by expected covariances


@pytest.mark.slow
def test_votes_are_spread_over_people_and_objectives_are_named(fitted):
    X, votes, model = fitted
    empty = votes.pick(votes.label < 0)
    pairs = model.next_vote(X, empty, 16)
    assert np.unique([name for _, name in pairs], return_counts=True)[1].max() <= 4  # twice an equal part
    assert model.next_vote(X, empty, 16) == pairs
    with pytest.raises(InputError, match="one vote per item"):
        model.next_vote(X, empty, 2, objective="majority", max_per_item=2)
    with pytest.raises(InputError, match="objective"):
        model.next_vote(X, empty, 2, objective="luck")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::snefy_ldl.errors.TableNote")
def test_pairs_lower_the_error_of_their_objective_faster_than_chance():
    """Two made-up crowds with 30 % guessers, their truth known; 60 new items get two votes each."""
    bench, ways = benchmark(), ("panel", "majority", "latent")
    errors = np.zeros((4, 3))  # of uniform votes and of each objective's, after each batch
    for seed in range(2):
        items, votes, matrices, _ = bench.make_crowd(160, 20, 40, 3, "mixed", (0.75, 1.0), seed)
        model = AnnotatorLDL(SnefyLDL(**SMALL | {"epochs": 6})).fit(items.X[:100], votes.on_items(votes.items[:100]))
        latent, rng = items.latent[100:], np.random.default_rng(seed)
        truths = {"panel": latent @ matrices.mean(0), "latent": latent}

        def ask(rows, whom, shares=latent, matrices=matrices, rng=rng):
            return bench.vote(shares[rows], matrices[whom], rng)

        names, free = (votes.items[100:], votes.annotators), np.ones((60, 20), dtype=bool)
        courses = bench.replay(model, items.X[100:], names, truths, free, ask, ("uniform", *ways), 30, 4, seed)
        errors += [[sum(row[way] for row in course[1:]) for way in ways] for course in courses.values()]
    assert (errors[1:].diagonal() < errors[0]).all()  # each lowers its own error faster
    assert (errors[1:, 1] <= errors[0, 1]).all()  # and none makes the majority worse


# -- shared tasks, aggregation -----------------------------------------------------------------------------------------


def test_measures_of_shared_tasks_are_those_of_plain_computations():
    rng = np.random.default_rng(0)
    counts = rng.integers(0, 4, (30, 4)) + np.eye(4, dtype=int)[rng.integers(0, 4, 30)]
    votes, shares = Votes.from_counts(counts), rng.dirichlet(np.ones(4), 30)
    target = counts / counts.sum(1, keepdims=True)
    found = lewidi_scores(votes, shares)
    places = range(4)
    wanted = {
        "cross_entropy": np.mean([-sum(t * np.log(p)) for t, p in zip(target, shares)]),
        "manhattan": np.mean([sum(abs(t - p)) for t, p in zip(target, shares)]),
        "wasserstein": np.mean([wasserstein_distance(places, places, t, p) for t, p in zip(target, shares)]),
        "error_rate": np.mean([1 - t[p.argmax()] for t, p in zip(target, shares)]),
        "f1": f1_score(target.argmax(1), shares.argmax(1), average="micro"),
    }
    assert found == pytest.approx(wanted)
    with pytest.raises(InputError, match=r"must have shape \(30, 4\)"):
        lewidi_scores(votes, shares[:3])


@pytest.mark.parametrize("point", ["manhattan", "wasserstein"])
def test_points_beat_their_neighbours_on_observed_shares(point):
    rng = np.random.default_rng(0)
    draws = rng.dirichlet([0.4, 0.8, 1.5], (4000, 1))
    best = best_point(draws, point, 5)[0]
    seen = np.random.default_rng(1).multinomial(5, draws[:, 0]) / 5

    def loss(q):
        apart = seen - q
        return np.abs(apart if point == "manhattan" else apart.cumsum(1)).sum(1).mean()

    assert best.sum() == pytest.approx(1)
    for q in (draws[:, 0].mean(0), np.full(3, 1 / 3), *(0.9 * best + 0.1 * np.eye(3))):
        assert loss(best) <= loss(q) + 1e-3


@pytest.mark.slow
def test_points_of_a_model_are_shares(fitted):
    X, _, model = fitted
    for point in ("manhattan", "wasserstein", "error_rate"):
        assert_allclose(np.asarray(model.predict(X, point=point)).sum(1), 1.0)
    hard = np.asarray(model.predict(X, point="error_rate", of="p0"))
    assert_array_equal(hard.argmax(1), np.asarray(model.predict(X, of="p0")).argmax(1))
    with pytest.raises(InputError, match="point"):
        model.predict(X, point="median")


def test_votes_are_aggregated_without_features():
    rng = np.random.default_rng(0)
    truth, care = rng.integers(0, 3, 200), np.array([0.8, 0.7, 0.6, 0.2, 0.2])
    item, who = np.tile(np.arange(200), 5), np.repeat(np.arange(5), 200)
    label = np.where(rng.random(1000) < care[who], truth[item], rng.integers(0, 3, 1000))
    votes = Votes(item, who, label, list(range(200)), list("abcde"), ["x", "y", "z"])
    right = {}
    for method in ("majority", "dawid-skene", "shares"):
        found = aggregate(votes, method)
        assert_allclose(found.shares.sum(1), 1.0, atol=1e-6)
        good = np.array([votes.label_names.index(name) for name in found.label]) == truth
        right[method] = good.mean()
        assert np.corrcoef(found.quality, good)[0, 1] > 0
    assert right["dawid-skene"] >= right["majority"]
    assert right["shares"] >= right["majority"] - 0.02
    for method in ("mace", "glad"):  # what the benchmark compares with
        found = getattr(benchmark(), method)(votes)
        assert_allclose(found.sum(1), 1.0)
        assert (found.argmax(1) == truth).mean() > right["majority"]
    with pytest.raises(InputError, match="who cast each vote"):
        aggregate(Votes.from_counts(votes.counts), "dawid-skene")
