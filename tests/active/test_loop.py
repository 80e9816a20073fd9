"""ActiveLearner: the loop, its stops, ask and tell, and a state that survives SIGKILL at any moment."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.base import BaseEstimator

from children import Child
from snefy_ldl import SnefyLDL
from snefy_ldl.active import ActiveLearner, RandomSampling, ScoreStrategy, query, state
from snefy_ldl.datasets import make_annotators, make_city_districts
from snefy_ldl.errors import InputError, ModelFileError
from snefy_ldl.learners import SABFGS, DirichletLDL


@pytest.fixture(scope="module")
def city():
    return make_city_districts(n=300, random_state=2)


def quick(**changes):
    return SnefyLDL(
        **({"n_neurons": 6, "n_readouts": 3, "epochs": 2, "random_state": 0, "device": "cpu", "guides": None} | changes)
    )


def learner(city, oracle=None, strategy="entropy", **changes):
    settings = {"budget": 60, "batch_size": 20, "X_val": city.X[240:], "D_val": city.D[240:]} | changes
    oracle = (lambda rows: city.D[rows]) if oracle is None else oracle
    return ActiveLearner(settings.pop("model", quick()), city.X[:240], oracle, strategy, **settings)


def test_the_loop_is_what_one_would_write_by_hand(city):
    found = learner(city).run()
    labeled = query(
        "random", city.X[:240], 20, random_state=np.random.RandomState(np.random.SeedSequence([0, 0]).generate_state(4))
    )
    for number in (1, 2):
        model = quick().fit(city.X[labeled], city.D[labeled])
        seed = np.random.RandomState(np.random.SeedSequence([0, number]).generate_state(4))
        more = query("entropy", city.X[:240], 20, model, random_state=seed, exclude=labeled)
        labeled = np.concatenate([labeled, more])
    np.testing.assert_array_equal(found.labeled_, labeled)
    np.testing.assert_allclose(found.answers_, city.D[labeled], rtol=1e-12)
    model = quick().fit(city.X[labeled], city.D[labeled])
    np.testing.assert_allclose(found.model_.predict(city.X), model.predict(city.X), rtol=1e-5)
    last = found.history_[-1]
    assert last["validation_log_likelihood"] == pytest.approx(model.score(city.X[240:], city.D[240:]))
    assert [entry["n_labeled"] for entry in found.history_] == [20, 40, 60]
    assert found.stopped_ == "budget"
    assert {"kl_divergence", "chebyshev", "seconds_fitting", "seconds_choosing", "n_asked"} <= set(last)


def test_batches_budget_and_the_end_of_the_pool(city):
    found = learner(city, budget=75, batch_size=[10, 30], initial=25).run()
    assert [entry["n_labeled"] for entry in found.history_] == [25, 35, 65, 75]
    found = ActiveLearner(quick(), city.X[:50], lambda rows: city.D[rows], "random", budget=99, batch_size=20).run()
    assert [entry["n_labeled"] for entry in found.history_] == [20, 40, 50]
    assert found.stopped_ == "pool"
    assert sorted(found.labeled_) == list(range(50))
    assert len(found.ask()) == 0
    some = learner(city).run(max_rounds=1)
    assert some.stopped_ is None
    assert len(some.history_) == 1


def test_it_starts_from_labels_that_are_there(city):
    given = {"X_labeled": city.X[200:240], "D_labeled": city.D[200:240]}
    found = ActiveLearner(
        quick(), city.X[:200], lambda r: city.D[r], RandomSampling(), budget=20, batch_size=10, **given
    ).run()
    assert [entry["n_labeled"] for entry in found.history_] == [40, 50, 60]
    seed = np.random.RandomState(np.random.SeedSequence([0, 1]).generate_state(4))
    wanted = query("random", city.X[:200], 10, random_state=seed)
    np.testing.assert_array_equal(found.labeled_[:10], wanted)
    both = ActiveLearner(
        quick(),
        city.X[:200],
        lambda r: city.D[r],
        budget=15,
        batch_size=10,
        initial=5,
        **given,
    ).run()
    assert [entry["n_labeled"] for entry in both.history_] == [45, 55]


def test_plateau_stops(city):
    class Stuck(DirichletLDL):
        def log_prob(self, X, D):
            return np.zeros(len(X))

    found = learner(city, model=Stuck(random_state=0), budget=200, batch_size=10, patience=3).run()
    assert found.stopped_ == "plateau"
    assert len(found.history_) == 4
    assert len(learner(city, budget=40, patience=9).run().history_) == 2


def test_votes(city):
    votes = make_annotators(n=120, votes=(3, 9), random_state=0)
    found = ActiveLearner(
        quick(), votes.X[:90], lambda r: votes.counts[r], "entropy", budget=40, batch_size=20, votes=True,
        X_val=votes.X[90:], D_val=votes.counts[90:],
    ).run()  # fmt: skip
    model = quick().fit(votes.X[found.labeled_], counts=votes.counts[found.labeled_])
    expected = model.log_prob(votes.X[90:], counts=votes.counts[90:]).mean()
    assert found.history_[-1]["validation_log_likelihood"] == pytest.approx(expected)


class Variance(ScoreStrategy):
    """Scores without draws, which do not depend on how the pool is cut into blocks."""

    def score(self, dist, random):
        return dist.variance.sum(-1).numpy()


def test_any_pool_and_any_model(city, tmp_path):
    names = [f"f{i}" for i in range(city.X.shape[1])]
    frame = pd.DataFrame(city.X[:240], columns=names)
    frame.to_parquet(tmp_path / "pool.parquet")
    plain = learner(city, model=DirichletLDL(random_state=0), strategy=Variance()).run()
    pools = (frame, sp.csr_matrix(city.X[:240]), tmp_path / "pool.parquet", lambda: iter([frame[:100], frame[100:]]))
    for pool in pools:
        found = ActiveLearner(
            DirichletLDL(random_state=0), pool, lambda r: city.D[r], Variance(), budget=60, batch_size=20
        ).run()
        np.testing.assert_array_equal(found.labeled_, plain.labeled_)
    point = ActiveLearner(
        SABFGS(), frame, lambda r: city.D[r], "random", budget=40, batch_size=20, X_val=frame[:9], D_val=city.D[:9]
    ).run()
    assert "validation_log_likelihood" not in point.history_[-1]
    assert point.rows([3, 1]).index.tolist() == [3, 1]


def test_ask_and_tell_at_any_pace(city, tmp_path):
    def again():
        return ActiveLearner(
            quick(), city.X[:240], None, "entropy", budget=40, batch_size=20, state_dir=tmp_path / "state"
        )

    people = again()
    rows = people.ask()
    np.testing.assert_array_equal(rows, people.ask())
    np.testing.assert_array_equal(rows, again().ask())  # the same after a restart
    people.tell(rows[:7], city.D[rows[:7]])
    people = again()
    np.testing.assert_array_equal(people.ask(), rows[7:])
    people.tell(rows[:6:-1], city.D[rows[:6:-1]])  # any order
    assert len(people.history_) == 1
    more = people.ask()
    assert not set(more) & set(rows)
    with pytest.raises(InputError, match="already has its label"):
        people.tell(rows[:1], city.D[rows[:1]])
    with pytest.raises(InputError, match="was not asked for"):
        people.tell([int(np.setdiff1d(np.arange(240), [*rows, *more])[0])], city.D[:1])
    with pytest.raises(InputError, match="sums to"):
        people.tell(more[:1], [[0.5, 0.1, 0.1]])
    with pytest.raises(InputError, match="same number of rows"):
        people.tell(more[:2], city.D[:1])
    with pytest.raises(InputError, match="oracle"):
        people.run()


def test_an_oracle_that_fails_may_be_asked_again(city, tmp_path):
    calls = []

    def moody(rows):
        calls.append(rows.tolist())
        if len(calls) == 5:
            raise ConnectionError("the line is down")
        return city.D[rows]

    one = learner(city, moody, state_dir=tmp_path, budget=20)
    with pytest.raises(ConnectionError):
        one.run()
    one.run()
    assert calls[4] == calls[5]
    assert len(one.labeled_) == 20
    assert len(one.unanswered_) == 0


class Crash(BaseException):
    """The process is gone."""


@pytest.mark.parametrize("interrupted", ["set_aside", "ask_again"])
def test_a_question_that_was_out_when_the_process_died(city, tmp_path, interrupted):
    asked = []

    def dying(rows):
        asked.extend(rows.tolist())
        if len(asked) == 6:
            raise Crash
        return city.D[rows]

    settings = {"state_dir": tmp_path, "interrupted": interrupted}
    with pytest.raises(Crash):
        learner(city, dying, **settings).run()
    found = learner(city, dying, **settings).run()
    lost = asked[5]
    if interrupted == "ask_again":
        assert asked.count(lost) == 2
        np.testing.assert_array_equal(found.labeled_, learner(city).run().labeled_)
    else:
        assert len(set(asked)) == len(asked) == 60
        assert found.unanswered_.tolist() == [lost]
        found.tell([lost], city.D[[lost]])
        assert len(found.labeled_) == 60
        assert len(found.unanswered_) == 0


def test_a_first_round_without_any_answer_is_made_up_for(city, tmp_path):
    def dying(rows):
        raise Crash

    for _ in range(5):
        with pytest.raises(Crash):
            learner(city, dying, state_dir=tmp_path, budget=20, batch_size=5, X_val=None, D_val=None).run()
    found = learner(city, state_dir=tmp_path, budget=20, batch_size=5, X_val=None, D_val=None, ask_size=5)
    assert len(found.history_) == 1
    assert found.history_[0]["n_labeled"] == 0
    found.run()
    assert len(found.labeled_) == 15


def label_all(channel, folder: Path, log: Path):
    """A whole run in a process of its own; every row that is asked for is logged."""
    city = make_city_districts(n=300, random_state=2)

    def oracle(rows):
        with log.open("a") as file:
            file.writelines(f"{row}\n" for row in rows)
        return city.D[rows]

    settings = {"strategy": "entropy", "options": {"n_draws": 100}, "budget": 120, "interrupted": "set_aside"}
    made = learner(city, oracle, state_dir=folder, model=quick(epochs=12), **settings)
    channel.send("ready")
    made.run()


@pytest.mark.slow
def test_sigkill_at_any_moment_and_nothing_is_asked_twice(tmp_path):
    chance = random.Random(0)
    kills = 0
    for _ in range(3):
        process = Child(label_all, tmp_path / "killed", tmp_path / "killed.log")
        assert process.hear() == "ready"
        time.sleep(chance.uniform(0.02, 0.35))
        kills += process.alive
        process.kill()
        for file in (tmp_path / "killed").glob("*.json"):
            json.loads(file.read_text())  # never half a file
    assert Child(label_all, tmp_path / "killed", tmp_path / "killed.log").end() == 0
    assert kills >= 1
    asked = [int(line) for line in (tmp_path / "killed.log").read_text().split()]
    assert len(asked) == len(set(asked))
    state = [json.loads(file.read_text()) for file in sorted((tmp_path / "killed").glob("round-*.json"))]
    lost = sum(len(one["set_aside"]) for one in state)
    assert 120 - lost <= len(asked) <= 120
    assert sum(len(one["answered"]) for one in state) == 120 - lost
    history = json.loads((tmp_path / "killed" / "history.json").read_text())
    assert [entry["n_asked"] for entry in history] == [20, 40, 60, 80, 100, 120]


@pytest.fixture(scope="module")
def calm(city):
    """A run that nothing disturbs."""
    return learner(city, budget=40, ask_size=4).run()


@pytest.mark.parametrize("step", range(0, 140, 9))
def test_cut_off_after_any_write_it_ends_the_same(city, calm, tmp_path, monkeypatch, step):
    count, real = [0], state.write_json

    def failing(path: Path, content):
        count[0] += 1
        if count[0] == step:
            raise Crash
        real(path, content)

    monkeypatch.setattr(state, "write_json", failing)
    settings = {"budget": 40, "ask_size": 4, "state_dir": tmp_path, "interrupted": "ask_again"}
    for _ in range(3):
        try:
            found = learner(city, **settings).run()
            break
        except Crash:
            continue
    np.testing.assert_array_equal(found.labeled_, calm.labeled_)
    np.testing.assert_array_equal(found.model_.predict(city.X), calm.model_.predict(city.X))
    quiet = [{k: v for k, v in entry.items() if not k.startswith("seconds")} for entry in found.history_]
    assert quiet == [{k: v for k, v in entry.items() if not k.startswith("seconds")} for entry in calm.history_]


@pytest.mark.slow
def test_a_finished_run_is_read_back_without_a_question(city, tmp_path):
    learner(city, state_dir=tmp_path).run()

    def never(rows):
        raise AssertionError("asked again")

    found = learner(city, never, state_dir=tmp_path).run()
    assert found.stopped_ == "budget"
    np.testing.assert_array_equal(found.model_.predict(city.X), learner(city).run().model_.predict(city.X))
    assert len(found.labeled_) == 60
    more = learner(city, state_dir=tmp_path, budget=80).run()  # a larger budget goes on
    assert len(more.labeled_) == 80


def test_a_folder_of_another_run_is_refused(city, tmp_path):
    learner(city, state_dir=tmp_path / "a").run(max_rounds=1)
    for change in ({"strategy": "bait"}, {"random_state": 5}, {"batch_size": 7}, {"model": quick(epochs=3)}):
        with pytest.raises(InputError, match="another"):
            learner(city, state_dir=tmp_path / "a", **change)
    with pytest.raises(InputError, match="another data"):
        ActiveLearner(quick(), city.X[1:241], None, "entropy", budget=60, batch_size=20, state_dir=tmp_path / "a")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "thesis.txt").write_text("keep me")
    with pytest.raises(InputError, match="left alone"):
        learner(city, state_dir=tmp_path / "b")
    (tmp_path / "a" / "round-0000.json").write_text('{"round": 0, "colour": "red"}')
    with pytest.raises(ModelFileError, match="not what it should be"):
        learner(city, state_dir=tmp_path / "a")
    (tmp_path / "a" / "round-0000.json").unlink()
    with pytest.raises(ModelFileError, match="damaged"):
        learner(city, state_dir=tmp_path / "a")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"budget": 0}, "budget"),
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": []}, "batch_size"),
        ({"initial": 0}, "initial=0 needs"),
        ({"patience": 0}, "patience"),
        ({"patience": 2, "X_val": None, "D_val": None}, "patience needs"),
        ({"X_val": None}, "go together"),
        ({"X_labeled": np.zeros((2, 5)), "D_labeled": np.full((3, 3), 1 / 3)}, "2 rows"),
        ({"interrupted": "cry"}, "interrupted="),
        ({"random_state": None}, "random_state"),
        ({"tolerance": -1}, "tolerance"),
        ({"options": {"colour": 2}}, "no option"),
    ],
)
def test_bad_input(city, change, message):
    with pytest.raises(InputError, match=message):
        learner(city, **change)


def test_bare_iterators_and_models_without_a_density(city):
    with pytest.raises(InputError, match="many times"):
        ActiveLearner(quick(), iter([city.X]), None, budget=5)

    class Point(BaseEstimator):
        def fit(self, X, D):
            self.mean_ = D.mean(0)
            return self

        def predict(self, X):
            return np.tile(self.mean_, (len(X), 1))

    with pytest.raises(InputError, match="log_prob"):
        learner(city, model=Point(), strategy="random", patience=1).run()
