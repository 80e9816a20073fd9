"""Fits to single votes: the likelihood, what is learnt about annotators, groups, and whom to ask."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from snefy_ldl import AnnotatorLDL, SnefyLDL, load
from snefy_ldl.datasets import make_annotators
from snefy_ldl.distributions import SnefySimplex
from snefy_ldl.errors import InputError, ModelFileError
from snefy_ldl.votes import Votes
from snefy_ldl.votes.crowd import INTERVAL_STRENGTH, Ballots, Crowd, round_counts
from snefy_ldl.votes.likelihood import PairMoments, pair_gains, posterior_draws

LABELS = ["no", "maybe", "yes"]
#: Some made-up items have no vote; a test of its own is about the note.
pytestmark = pytest.mark.filterwarnings("ignore::snefy_ldl.errors.TableNote")


def crowd(n_items=300, n_people=40, votes_each=50, spammers=0.3, seed=0, tilt=None):
    """Items with known label distributions, people with known confusion matrices, and their votes."""
    rng = np.random.default_rng(seed)
    items = make_annotators(n=n_items, n_labels=3, votes=1, random_state=seed)
    matrices = np.empty((n_people, 3, 3))
    spams = np.arange(n_people) < round(spammers * n_people)
    for a in range(n_people):
        if spams[a]:
            matrices[a] = 1.0 / 3.0
            continue
        care = rng.uniform(0.82, 0.98, 3)
        matrices[a] = (1.0 - care)[:, None] * (1.0 - np.eye(3)) / 2.0 + np.diag(care)
        if tilt is not None and a % 2:
            matrices[a] = 0.6 * matrices[a] + 0.4 * np.eye(3)[tilt]
    item = np.concatenate([rng.choice(n_items, votes_each, replace=False) for _ in range(n_people)])
    who = np.repeat(np.arange(n_people), votes_each)
    chance = np.einsum("jk,jkv->jv", items.latent[item], matrices[who]).cumsum(1)
    label = (rng.random(len(item))[:, None] > chance).sum(1).clip(0, 2)
    names = [f"p{a}" for a in range(n_people)]
    return items, Votes(item, who, label, list(range(n_items)), names, LABELS), matrices, spams


@pytest.fixture(scope="module")
def fitted():
    items, votes, matrices, spams = crowd(tilt=2)
    facts = {"annotator": votes.annotators, "side": ["b" if a % 2 else "a" for a in range(len(spams))]}
    votes = votes.with_facts({**facts, "luck": [["x", "y", "z"][a // 2 % 3] for a in range(len(spams))]})
    model = AnnotatorLDL(SnefyLDL(epochs=8, n_neurons=24, n_readouts=8, random_state=0)).fit(items.X, votes)
    return items, votes, matrices, spams, model


def law_of_three():
    weights = torch.tensor([[0.8, 0.5, -0.3], [0.2, 0.3, 0.5]], dtype=torch.float64)
    alpha = torch.tensor([[2.0, 3.0, 1.5], [4.0, 1.2, 2.5], [3.0, 2.1, 2.0]], dtype=torch.float64)
    return SnefySimplex.from_mixture(weights, alpha)


def test_moments_given_votes_of_perfect_people_are_those_of_counts():
    dist = law_of_three()
    item, label = np.array([0, 0, 0, 1]), np.array([1, 1, 2, 0])
    draws, weights = posterior_draws(dist, item, np.eye(3)[label])
    mean = np.einsum("ns,nsk->nk", weights, draws)
    covariance = np.einsum("ns,nsk,nsl->nkl", weights, draws - mean[:, None], draws - mean[:, None])
    counts = np.array([[0.0, 2.0, 1.0], [1.0, 0.0, 0.0]])
    posterior = dist.posterior(counts)
    assert_allclose(mean, posterior.mean, atol=0.03)  # 2,048 draws
    assert_allclose(covariance, posterior.covariance_matrix, atol=0.02)


def test_rounding_keeps_totals_and_expectations():
    expected = np.array([[0.2, 1.7, 2.4], [3.0, 0.0, 0.5]])
    rounded = np.stack([round_counts(expected, np.random.default_rng(seed)) for seed in range(4000)])
    assert (np.abs(rounded.sum(-1) - expected.sum(-1)) < 1.0).all()
    assert_allclose(rounded.mean(0), expected, atol=0.05)


@pytest.mark.slow
def test_known_matrices_and_spammers_are_recovered():
    items, votes, matrices, spams = crowd(n_items=200, n_people=40)
    model = AnnotatorLDL(SnefyLDL(epochs=10, n_neurons=24, n_readouts=8, random_state=0)).fit(items.X, votes)
    people = model.annotators_
    assert np.abs(people.matrices - matrices).mean() < 0.06  # .05 is measured with more people, in the benchmark
    within = [
        (people[f"accuracy_{name}_low"] <= matrices[:, r, r]) & (matrices[:, r, r] <= people[f"accuracy_{name}_high"])
        for r, name in enumerate(LABELS)
    ]
    assert np.mean(within) > 0.85  # of 120, 90 % is stated
    assert people["spam_score"][spams].min() > people["spam_score"][~spams].mean()
    assert people["spam_score"][~spams].mean() < 0.1
    counts = SnefyLDL(epochs=10, n_neurons=24, n_readouts=8, random_state=0)
    has = votes.counts.sum(1) > 0
    counts.fit(items.X[has], counts=votes.counts[has])
    truth = np.maximum(items.latent, 1e-6)
    truth /= truth.sum(1, keepdims=True)
    best = items.truth.log_prob(items.X, truth).mean()
    ours = best - model.log_prob(items.X, truth, of="latent").mean()
    theirs = best - counts.log_prob(items.X, truth).mean()
    assert ours < 0.5 * theirs


@pytest.mark.slow
def test_rows_of_a_matrix_are_as_certain_as_their_posterior():
    """One person, two labels: the posterior of both rows on a grid."""
    rng = np.random.default_rng(4)
    label, chance = rng.integers(0, 2, 40), rng.uniform(0.05, 0.95, 40)
    others = np.stack([chance, 1.0 - chance], 1)
    table = Crowd(Ballots(np.arange(40) // 2, np.zeros(40, dtype=int), label, 20, 1, 2), 1.0)
    table.others = others
    grid = (np.arange(400) + 0.5) / 400
    first, second = np.meshgrid(grid, grid, indexing="ij")  # how often either latent label is voted for label 0
    votes_for_0 = others[:, :1, None] * first + others[:, 1:, None] * second
    logs = np.log(np.where(label[:, None, None] == 0, votes_for_0, 1.0 - votes_for_0)).sum(0)
    for rate, centre in zip((first, second), table.centres[0]):
        logs = logs + (INTERVAL_STRENGTH * centre[0] - 1.0) * np.log(rate)
        logs = logs + (INTERVAL_STRENGTH * centre[1] - 1.0) * np.log1p(-rate)
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    for rate, size in zip((first, second), table.count_certain()[0]):
        mean = (weights * rate).sum()
        variance = (weights * np.square(rate - mean)).sum()
        assert_allclose(size + 1.0, mean * (1.0 - mean) / variance, rtol=0.35)  # 150 draws that hang together


@pytest.mark.slow
def test_annotators_are_a_table(fitted):
    _, votes, _, spams, model = fitted
    people = model.annotators_
    assert len(people) == len(spams)
    assert_array_equal(people["votes"], np.bincount(votes.annotator))
    for name in ("agreement", *(f"accuracy_{label}" for label in LABELS)):
        assert (people[f"{name}_low"] <= people[name] + 1e-9).all()
        assert (people[name] <= people[f"{name}_high"] + 1e-9).all()
    assert "p0" in str(people)
    assert people.to_frame().loc["p3", "side"] == "b"
    assert_allclose(sum(people[f"bias_{label}"] for label in LABELS), 0.0, atol=1e-9)
    with pytest.raises(InputError, match="no column 'mood'"):
        people["mood"]


@pytest.mark.slow
def test_groups_are_predicted_and_tested(fitted):
    items, _, _, _, model = fitted
    X = items.X[:50]
    sides = [model.predict(X, of={"side": side}).to_numpy() for side in "ab"]
    assert (sides[1][:, 2] > sides[0][:, 2] + 0.05).all()  # side b leans to "yes"
    assert_allclose(sides[0].sum(1), 1.0)
    real, luck = model.compare_groups(X, "side"), model.compare_groups(X, "luck")
    assert real.p_value < 0.01 < 0.05 < luck.p_value
    assert real.low[1, 2] > 0.0
    assert real.groups == ["a", "b"]
    assert "side: p = " in str(real)
    with pytest.raises(InputError, match="no annotator has side='c'"):
        model.predict(X, of={"side": "c"})
    with pytest.raises(InputError, match="no fact 'age'"):
        model.predict(X, of={"age": 3})


@pytest.mark.slow
def test_one_person_is_predicted_by_their_matrix(fitted):
    items, _, _, _, model = fitted
    X, mean = items.X[:4], model.predict(items.X[:4], of="latent").to_numpy()
    lift = model.predict(X).to_numpy() / (mean @ model.annotators_.panel_matrix)
    one, two = (mean @ model.annotators_.matrix(name) * lift for name in ("p3", "p4"))
    assert_allclose(model.predict(X, of="p3"), one / one.sum(1, keepdims=True))
    rows = model.predict(X, of=["p3", "p4", "p3", "p4"]).to_numpy()
    assert_allclose(rows[1], two[1] / two[1].sum())
    both = (one + two)[2] / (one + two)[2].sum()  # the average of two people's matrices
    assert_allclose(model.predict(X[[2]], of=[["p3", "p4"]]).to_numpy()[0], both)
    assert_allclose(model.predict(X, of=None).to_numpy().sum(1), 1.0)
    assert_allclose(model.predict(X, of={"side": "a"}).to_numpy().sum(1), 1.0)
    with pytest.raises(InputError, match="did not vote in the fit"):
        model.predict(X, of="nobody")


@pytest.mark.slow
def test_gold_items_tell_what_is_true():
    items, votes, _, spams = crowd(n_items=120, n_people=20, spammers=0.5, seed=2)
    small = {"epochs": 4, "n_neurons": 16, "n_readouts": 8, "random_state": 0}
    gold = {k: items.latent[k] for k in range(30)} | {31: "yes"}
    model = AnnotatorLDL(SnefyLDL(**small)).fit(items.X, votes, gold=gold)
    people = model.annotators_
    assert people.spam_score[spams].mean() > 0.5 > people.spam_score[~spams].mean()
    with pytest.raises(InputError, match="gold item 999"):
        AnnotatorLDL(SnefyLDL(**small)).fit(items.X, votes, gold={999: "yes"})
    with pytest.raises(InputError, match="gold item 1 has the label 'perhaps'"):
        AnnotatorLDL(SnefyLDL(**small)).fit(items.X, votes, gold={1: "perhaps"})


@pytest.mark.slow
def test_annotators_go_to_files_and_back(fitted, tmp_path: Path):
    items, _, _, _, model = fitted
    again = load(model.save(tmp_path / "model"))
    assert_array_equal(again.annotators_.matrices, model.annotators_.matrices)
    assert again.annotators_.facts == model.annotators_.facts
    X = items.X[:5]
    assert_array_equal(again.predict(X, of={"side": "b"}), model.predict(X, of={"side": "b"}))
    config = tmp_path / "model" / "config.json"
    config = config if config.exists() else next((tmp_path / "model").glob("*.json"))
    config.write_text(config.read_text().replace('"side": [', '"side": ["b", ', 1))
    with pytest.raises(ModelFileError, match="damaged: its checksum"):
        load(tmp_path / "model")


def readers(effect, n_items=300, n_people=10, seed=0):
    """Votes of people half of whom lean to the last label as a feature grows, and half as it falls; how they vote."""
    rng = np.random.default_rng(seed)
    items = make_annotators(n=n_items, n_labels=3, votes=1, n_features=6, random_state=seed)
    item, who = np.tile(np.arange(n_items), n_people), np.repeat(np.arange(n_people), n_items)
    feature = items.X[:, 5] - items.X[:, 5].mean()
    chance = items.latent[item] @ (0.85 * np.eye(3) + 0.05)
    chance[:, 2] *= np.exp(effect * np.where(who % 2, 1.0, -1.0) * feature[item] / feature.std())
    chance /= chance.sum(1, keepdims=True)
    label = (rng.random(len(item))[:, None] > chance.cumsum(1)).sum(1).clip(0, 2)
    votes = Votes(item, who, label, list(range(n_items)), [f"p{a}" for a in range(n_people)], LABELS)
    votes = votes.with_facts({"annotator": votes.annotators, "side": ["a", "b"] * (n_people // 2)})
    return items.X, votes, chance.reshape(n_people, n_items, 3)


@pytest.mark.slow
@pytest.mark.parametrize("effect", [0.0, 1.0])
def test_people_who_read_a_feature_differently_are_found(effect, tmp_path: Path):
    X, votes, chance = readers(effect)
    train, test = np.arange(220), np.arange(220, 300)
    small = SnefyLDL(epochs=8, n_neurons=16, n_readouts=8, n_members=1, guides=None, random_state=0)
    model = AnnotatorLDL(small).fit(X[train], votes.on_items(list(train)))
    people, new = model.annotators_, X[test]
    assert (people.slopes.shape[1] > 0) == (effect > 0)
    if not effect:
        return

    def information():
        """Mean expected log likelihood of a vote of a known person on new items."""
        shares = [np.asarray(model.predict(new, of=name)) for name in votes.annotators]
        return (chance[:, test] * np.log(shares)).sum(2).mean()

    with_slopes = information()
    model.annotators_ = replace(people, slopes=people.slopes[:, :0], directions=people.directions[:, :0])
    assert with_slopes > information() + 0.02
    model.annotators_ = people
    # a plain computation of one person's votes on one item
    place = np.clip(people.directions[0] + new[0] @ people.directions[1:], -5.0, 5.0)
    latent = np.asarray(model.predict(new[:1], of="latent"))[0]
    lift = np.asarray(model.predict(new[:1]))[0] / (latent @ people.panel_matrix)
    shares = (latent @ people.matrices[3]) * lift * np.exp(place @ people.slopes[3])
    assert_allclose(np.asarray(model.predict(new[:1], of="p3"))[0], shares / shares.sum(), rtol=1e-5)
    # groups, single votes and files have the slopes, too
    sides = [np.asarray(model.predict(new, of={"side": side}))[:, 2] for side in "ab"]
    wanted = (chance[1::2, test] - chance[::2, test]).mean(0)[:, 2]
    assert np.corrcoef(sides[1] - sides[0], wanted)[0, 1] > 0.8
    some = votes.on_items(list(test)).pick(votes.on_items(list(test)).annotator == 3)
    again = load(model.save(tmp_path / "model"))
    assert_array_equal(again.predict(new, of="p3"), model.predict(new, of="p3"))
    assert_allclose(again.predict_given_votes(new, some)[0], model.predict_given_votes(new, some)[0])


@pytest.mark.slow
def test_votes_without_annotators_and_other_rows_are_refused(fitted):
    items, votes, _, _, _model = fitted
    with pytest.raises(InputError, match="do not name who"):
        AnnotatorLDL().fit(items.X, Votes.from_counts(votes.counts))
    with pytest.raises(InputError, match=r"in the order of votes\.items"):
        AnnotatorLDL().fit(items.X[:-1], votes)
    with pytest.raises(InputError, match=r"must be snefy_ldl\.Votes"):
        AnnotatorLDL().fit(items.X, votes.counts)


# -- whom to ask -----------------------------------------------------------------------------------------------------


def test_gain_of_a_pair_is_the_expected_fall_of_the_squared_error():
    dist, matrix = law_of_three(), np.random.default_rng(2).dirichlet(np.ones(3), 3)
    mean, covariance = dist.mean.numpy(), dist.covariance_matrix.numpy()
    second = covariance[0] + np.outer(mean[0], mean[0])
    gain = 0.0
    for v in range(3):
        chance = mean[0] @ matrix[:, v]
        moved = second @ matrix[:, v] / chance
        gain += chance * np.square(moved - mean[0]).sum()
    moments = PairMoments(mean, covariance, covariance, np.zeros(len(mean)), np.zeros_like(mean))
    assert_allclose(pair_gains(moments, matrix[None])[0, 0], gain)


@pytest.mark.slow
def test_pairs_prefer_people_who_tell_something(fitted):
    items, votes, _, _spams, model = fitted
    pairs, values = model.next_vote(items.X, votes, n=20, return_values=True)
    assert len(pairs) == 20
    assert (np.diff(values) <= 0).all()
    people = model.annotators_
    assert np.mean([people.spam_score[people.number(name)] for _, name in pairs]) < people.spam_score.mean()
    cast = {(votes.items[k], votes.annotators[a]) for k, a in zip(votes.item, votes.annotator)}
    assert not cast & set(pairs)
    assert len({item for item, _ in pairs}) == 20
    few = model.next_vote(items.X, votes, n=20, max_per_annotator=1)
    assert len({name for _, name in few}) == 20
    best = pairs[0][1]
    dear = model.next_vote(items.X, votes, n=20, costs={best: 1e6})
    assert best not in {name for _, name in dear}
    assert model.next_vote(items.X, votes, n=20, target_error=1.0) == []
    available = np.zeros((len(items.X), len(people)), dtype=bool)
    available[7] = True
    assert {item for item, _ in model.next_vote(items.X, votes, n=5, available=available)} <= {7}
