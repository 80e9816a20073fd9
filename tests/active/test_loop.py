"""ActiveLearner: the loop, its stops, ask and tell, and a state that survives a crash at any moment."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from snefy_ldl import SnefyLDL
from snefy_ldl.active import ActiveLearner, ScoreStrategy, loop, query
from snefy_ldl.datasets import make_annotators, make_city_districts
from snefy_ldl.errors import InputError, ModelFileError
from snefy_ldl.learners import SABFGS, DirichletLDL


@pytest.fixture(scope="module")
def city():
    return make_city_districts(n=300, random_state=2)


def quick(**changes):
    plain = {"n_neurons": 6, "n_readouts": 3, "epochs": 2, "random_state": 0, "device": "cpu", "guides": None}
    return SnefyLDL(**(plain | changes))


def learner(city, oracle=None, strategy="entropy", **changes):
    settings = {"budget": 60, "batch_size": 20, "X_val": city.X[240:], "D_val": city.D[240:]} | changes
    oracle = (lambda rows: city.D[rows]) if oracle is None else oracle
    return ActiveLearner(settings.pop("model", quick()), city.X[:240], oracle, strategy, **settings)


def seed_of_round(number):
    return np.random.RandomState(np.random.SeedSequence([0, number]).generate_state(4))


def test_the_loop_is_what_one_would_write_by_hand(city):
    found = learner(city).run()
    labeled = query("random", city.X[:240], 20, random_state=seed_of_round(0))
    for number in (1, 2):
        model = quick().fit(city.X[labeled], city.D[labeled])
        more = query("entropy", city.X[:240], 20, model, random_state=seed_of_round(number), exclude=labeled)
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


def test_batches_stops_and_a_start_from_labels(city):
    found = learner(city, budget=75, batch_size=30, initial=25).run()
    assert [entry["n_labeled"] for entry in found.history_] == [25, 55, 75]
    found = ActiveLearner(quick(), city.X[:50], lambda rows: city.D[rows], "random", budget=99, batch_size=20).run()
    assert (found.stopped_, sorted(found.labeled_), len(found.ask())) == ("pool", list(range(50)), 0)
    some = learner(city).run(max_rounds=1)
    assert (some.stopped_, len(some.history_)) == (None, 1)
    given = {"X_labeled": city.X[240:280], "D_labeled": city.D[240:280]}
    found = learner(city, strategy="random", budget=20, batch_size=10, **given).run()
    assert [entry["n_labeled"] for entry in found.history_] == [40, 50, 60]
    wanted = query("random", city.X[:240], 10, random_state=seed_of_round(1))
    np.testing.assert_array_equal(found.labeled_[:10], wanted)
    found = learner(city, budget=15, batch_size=10, initial=5, **given).run()
    assert [entry["n_labeled"] for entry in found.history_] == [45, 55]


def test_votes():
    votes = make_annotators(n=120, votes=(3, 9), random_state=0)
    held = {"X_val": votes.X[90:], "D_val": votes.counts[90:]}
    found = ActiveLearner(
        quick(), votes.X[:90], lambda r: votes.counts[r], "entropy", budget=40, batch_size=20, votes=True, **held
    ).run()
    model = quick().fit(votes.X[found.labeled_], counts=votes.counts[found.labeled_])
    expected = model.log_prob(votes.X[90:], counts=votes.counts[90:]).mean()
    assert found.history_[-1]["validation_log_likelihood"] == pytest.approx(expected)


class Variance(ScoreStrategy):
    """Scores without draws, which do not depend on how the pool is cut into blocks."""

    def score(self, dist, random):
        return dist.variance.sum(-1).numpy()


def test_any_pool_and_any_model(city, tmp_path):
    frame = pd.DataFrame(city.X[:240], columns=[f"f{i}" for i in range(city.X.shape[1])])
    frame.to_parquet(tmp_path / "pool.parquet")
    wanted = learner(city, model=DirichletLDL(random_state=0), strategy=Variance()).run().labeled_
    pools = (frame, sp.csr_matrix(city.X[:240]), tmp_path / "pool.parquet", lambda: iter([frame[:100], frame[100:]]))
    settings = {"budget": 60, "batch_size": 20}
    for pool in pools:
        model = DirichletLDL(random_state=0)
        found = ActiveLearner(model, pool, lambda r: city.D[r], Variance(), **settings).run()
        np.testing.assert_array_equal(found.labeled_, wanted)
    held = {"X_val": frame[:9], "D_val": city.D[:9]}
    point = ActiveLearner(SABFGS(), frame, lambda r: city.D[r], "random", **settings, **held).run()
    assert "validation_log_likelihood" not in point.history_[-1]
    assert point.rows([3, 1]).index.tolist() == [3, 1]


def test_ask_and_tell_at_any_pace(city, tmp_path):
    def again():
        settings = {"budget": 40, "batch_size": 20, "state_dir": tmp_path / "state"}
        return ActiveLearner(quick(), city.X[:240], None, "entropy", **settings)

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
    other = int(np.setdiff1d(np.arange(240), [*rows, *more])[0])
    for index, labels, message in [
        (rows[:1], city.D[rows[:1]], "already has its label"),
        ([other], city.D[:1], "was not asked for"),
        (more[:1], [[0.5, 0.1, 0.1]], "sums to"),
        (more[:2], city.D[:1], "same number of rows"),
    ]:
        with pytest.raises(InputError, match=message):
            people.tell(index, labels)
    with pytest.raises(InputError, match="oracle"):
        people.run()


class Crash(BaseException):
    """The process is gone."""


@pytest.mark.slow
@pytest.mark.parametrize("step", range(1, 8))
def test_cut_off_before_any_write_it_ends_the_same(city, tmp_path, monkeypatch, step):
    calm, count, real = learner(city, budget=40).run(), [0], loop.write_json

    def failing(path, content):
        count[0] += 1
        if count[0] == step:
            raise Crash
        real(path, content)

    monkeypatch.setattr(loop, "write_json", failing)
    for _ in range(3):
        try:
            found = learner(city, budget=40, state_dir=tmp_path).run()
            break
        except Crash:
            continue
    np.testing.assert_array_equal(found.labeled_, calm.labeled_)
    np.testing.assert_array_equal(found.model_.predict(city.X), calm.model_.predict(city.X))
    quiet, others = ([{k: v for k, v in e.items() if "seconds" not in k} for e in o.history_] for o in (found, calm))
    assert quiet == others


def test_a_finished_run_is_read_back_and_a_larger_budget_goes_on(city, tmp_path):
    learner(city, state_dir=tmp_path, budget=40).run()

    def never(rows):
        raise AssertionError("asked again")

    found = learner(city, never, state_dir=tmp_path, budget=40).run()
    assert found.stopped_ == "budget"
    np.testing.assert_array_equal(found.model_.predict(city.X), learner(city, budget=40).run().model_.predict(city.X))
    assert len(learner(city, state_dir=tmp_path).run().labeled_) == 60


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
    state = json.loads((tmp_path / "a" / "learner.json").read_text())
    del state["answers"]
    (tmp_path / "a" / "learner.json").write_text(json.dumps(state))
    with pytest.raises(ModelFileError, match="damaged"):
        learner(city, state_dir=tmp_path / "a")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"budget": 0}, "budget"),
        ({"batch_size": 0}, "batch_size"),
        ({"initial": 0}, "initial=0 needs"),
        ({"X_val": None}, "go together"),
        ({"X_labeled": np.zeros((2, 5)), "D_labeled": np.full((3, 3), 1 / 3)}, "2 rows"),
        ({"random_state": None}, "random_state"),
        ({"options": {"colour": 2}}, "no option"),
    ],
)
def test_bad_input(city, change, message):
    with pytest.raises(InputError, match=message):
        learner(city, **change)
    with pytest.raises(InputError, match="read once"):
        ActiveLearner(quick(), iter([city.X]), None, budget=5)
