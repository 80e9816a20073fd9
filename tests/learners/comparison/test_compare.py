"""Learners side by side: the folds, the folder, the tables and the picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from sklearn.base import BaseEstimator
from sklearn.linear_model import Ridge
from sklearn.model_selection import KFold
from sklearn.svm import SVR

from snefy_ldl import SnefyLDL, compare
from snefy_ldl.datasets import make_city_districts
from snefy_ldl.errors import InputError, TrainingWarning
from snefy_ldl.learners import AAKNN, SABFGS, check_learner
from snefy_ldl.learners.comparison import RegressorLDL, runner
from snefy_ldl.learners.comparison.result import Comparison, corrected_t_test
from snefy_ldl.metrics import kl_divergence

CITY = make_city_districts(n=90, random_state=0)
FEW = {"linear": SABFGS(), "near": AAKNN(3)}


class Mean(BaseEstimator):  # type: ignore[misc]
    """A user's learner: the mean label."""

    def fit(self, X: Any, D: Any) -> Mean:
        self.mean_ = np.asarray(D).mean(axis=0)
        return self

    def predict(self, X: Any) -> Any:
        return np.tile(self.mean_, (len(X), 1))


class Broken(Mean):
    """One that cannot be fitted."""

    def fit(self, X: Any, D: Any) -> Mean:
        raise ValueError("no luck")


def test_scores_are_those_of_plain_cross_validation() -> None:
    folds = list(KFold(3, shuffle=True, random_state=5).split(CITY.X))
    result = compare(FEW, CITY.X, CITY.D, cv=folds, measures=["kl_divergence"])
    expected = [
        [
            kl_divergence(CITY.D[test], model.fit(CITY.X[train], CITY.D[train]).predict(CITY.X[test]))
            for train, test in folds
        ]
        for model in (SABFGS(), AAKNN(3))
    ]
    np.testing.assert_allclose(result.scores["kl_divergence"][0], expected)
    assert result.test_to_train == [pytest.approx(0.5)]
    table = result.table
    assert table.loc["linear", "kl_divergence"] == pytest.approx(np.mean(expected[0]))
    assert table.loc["near", "kl_divergence_p"] == pytest.approx(corrected_t_test(*expected, 0.5)[1])
    assert np.isnan(table.loc["linear", "kl_divergence_p"])
    assert list(table["kl_divergence_rank"]) == [1.0, 2.0]


def test_a_measure_of_ones_own() -> None:
    def agreement(D: Any, P: Any) -> float:
        return float((D.argmax(1) == P.argmax(1)).mean())

    agreement.higher_is_better = True  # type: ignore[attr-defined]
    result = compare(FEW, CITY.X, CITY.D, cv=3, measures=[agreement, "kl_divergence"])
    better = result.mean("agreement")[0].argmax()
    assert result.best("agreement") == list(FEW)[better]
    assert "agreement ↑" in result.to_markdown()


def test_folds_of_a_density_are_stacked_and_equal_lone_fits() -> None:
    model = SnefyLDL(n_neurons=6, n_readouts=3, epochs=3, guides=None, random_state=0)
    folds = list(KFold(2, shuffle=True, random_state=0).split(CITY.X))
    result = compare({"snefy": model}, CITY.X, CITY.D, cv=folds, measures=["chebyshev"])
    train, test = folds[1]
    alone = SnefyLDL(**model.get_params()).fit(CITY.X[train], CITY.D[train]).predict(CITY.X[test])
    expected = np.abs(alone - CITY.D[test]).max(axis=1).mean()
    assert result.scores["chebyshev"][0][0, 1] == pytest.approx(expected, rel=1e-5)


def test_stopped_and_resumed_gives_the_same_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = {"learners": {**FEW, "ridge": Ridge()}, "X": CITY.X, "D": CITY.D, "cv": 3, "repeats": 3}
    whole = compare(**ask)
    calls = []
    score = runner._score_folds

    def stop_at_fourth(*args: Any) -> Any:
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return score(*args)

    monkeypatch.setattr(runner, "_score_folds", stop_at_fourth)
    with pytest.raises(KeyboardInterrupt):
        compare(**ask, checkpoint=tmp_path)
    assert len(list(tmp_path.glob("*.json"))) == 3
    resumed = compare(**ask, checkpoint=tmp_path)
    assert len(calls) == 4 + 6
    pd.testing.assert_frame_equal(resumed.table, whole.table, check_exact=True)
    assert resumed.to_markdown() == whole.to_markdown()
    monkeypatch.setattr(runner, "_score_folds", None)  # nothing is left to do
    again = compare(**ask, checkpoint=tmp_path)
    np.testing.assert_array_equal(again.fit_seconds, resumed.fit_seconds)


def test_a_changed_question_is_not_answered_from_the_folder(tmp_path: Path) -> None:
    def kl(learner: Any, X: Any = CITY.X) -> float:
        return float(compare({"a": learner}, X, CITY.D, cv=3, checkpoint=tmp_path).mean("kl_divergence")[0, 0])

    first = kl(AAKNN(3))
    assert kl(AAKNN(9)) != first
    assert kl(AAKNN(3), CITY.X * np.array([1, 1, 1, 1, -9.0]) ** 3) != first
    assert len(list(tmp_path.glob("*.json"))) == 3
    for file in tmp_path.glob("*.json"):
        file.write_text("{")  # damaged: as good as not there
    assert kl(AAKNN(3)) == first


@pytest.mark.slow
def test_two_processes_give_the_same_table() -> None:
    one, two = (compare({"near": AAKNN(3), "mean": Mean()}, CITY.X, CITY.D, cv=2, n_jobs=n).table for n in (1, 2))
    pd.testing.assert_frame_equal(one, two, check_exact=True)


def test_a_failure_is_said_and_leaves_the_others() -> None:
    with pytest.warns(TrainingWarning, match="bad failed on data: ValueError: no luck"):
        result = compare({"bad": Broken(), "mean": Mean()}, CITY.X, CITY.D, cv=3)
    assert result.errors == {("data", "bad"): "ValueError: no luck"}
    assert result.best() == "mean"
    assert np.isnan(result.table.loc["bad", "clark"])
    assert "failed" in result.to_markdown()
    assert "95 %" in result.plot().get_xlabel()
    plt.close("all")


def test_several_data_sets_ranks_and_pictures() -> None:
    other = make_city_districts(n=60, random_state=1)
    result = compare({**FEW, "mean": Mean()}, {"a": CITY, "b": (other.X, other.D)}, cv=3)
    assert result.table.index.names == ["data", "learner"]
    assert [table.shape for table in result.scores["kl_divergence"]] == [(3, 3), (3, 3)]
    test = result.friedman("kl_divergence")
    np.testing.assert_allclose(test.ranks, result.rank("kl_divergence").mean(axis=0))
    assert "mean rank by kl" in result.plot("kl_divergence").get_title()
    plt.close("all")
    holm = result.p_values("clark", "b", adjust="holm")
    plain = result.p_values("clark", "b")
    assert (holm.to_numpy() >= plain.to_numpy())[~np.eye(3, dtype=bool)].all()
    assert result.best(data="a") in result.learners


def test_text_tables_mark_best_and_worse() -> None:
    scores = {"clark": [np.array([[1.0, 1.1, 0.9], [2.0, 2.1, 1.9]])]}
    result = Comparison(["a_b", "c"], ["data"], {"clark": False}, scores, np.ones((1, 2)), np.ones((1, 2)), [0.5])
    assert "**1.0000 ± 0.1000**" in result.to_markdown()
    assert "2.0000 ± 0.1000 •" in result.to_markdown()
    assert r"a\_b & \textbf{1.0000 $\pm$ 0.1000} \\" in result.to_latex()
    assert "fit s" in result.to_markdown(times=True)
    assert "2 learners" in repr(result)


def test_regressors_of_one_and_many_outputs() -> None:
    shares = np.maximum(Ridge().fit(CITY.X, CITY.D).predict(CITY.X), 1e-12)
    shares /= shares.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(RegressorLDL(Ridge()).fit(CITY.X, CITY.D).predict(CITY.X), shares)
    values = np.stack([SVR().fit(CITY.X, column).predict(CITY.X) for column in CITY.D.T], axis=1)
    expected = np.maximum(values, 1e-12) / np.maximum(values, 1e-12).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(RegressorLDL(SVR()).fit(CITY.X, CITY.D).predict(CITY.X), expected, rtol=5e-3)
    check_learner(RegressorLDL(Ridge()))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"learners": {}}, "no learner"),
        ({"learners": {"a": SABFGS}}, "give an object"),
        ({"learners": {"a": 3}}, "must have fit"),
        ({"learners": [AAKNN(), AAKNN()]}, "name them"),
        ({"measures": ["luck"]}, "or names from"),
        ({"cv": 1}, "number of folds"),
        ({"cv": KFold(3), "repeats": 2}, "as a number of folds"),
        ({"D": None}, "X and D"),
        ({"D": CITY.D[:-1]}, "same number of rows"),
    ],
)
def test_bad_questions_are_refused_before_any_work(change: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        compare(**{"learners": FEW, "X": CITY.X, "D": CITY.D, "cv": 3, **change})


def test_check_learner_names_every_broken_rule() -> None:
    class Careless(Mean):
        def fit(self, X: Any, D: Any) -> Any:
            X[0] = 0.0
            super().fit(X, D)

        def predict(self, X: Any) -> Any:
            return 2.0 * super().predict(X)

    with pytest.raises(InputError, match=r"return self.*sum to one.*write into.*better than the mean"):
        check_learner(Careless())
    with pytest.raises(InputError, match="clone"):
        check_learner(object())
    with pytest.raises(InputError, match="no luck"):
        check_learner(Broken())


def test_the_command(tmp_path: Path) -> None:
    from commands import fail, succeed

    file = tmp_path / "city.csv"
    frame = pd.DataFrame(CITY.X, columns=list("abcde")).join(pd.DataFrame(CITY.D, columns=list("xyz")))
    frame.to_csv(file, index=False)
    words = ["compare", file, "--labels", "x,y,z", "--learners", "SABFGS,AAKNN", "--folds", "3", "-q"]
    outs = [tmp_path / name for name in ("t.md", "t.tex", "t.csv", "t.png")]
    shown = succeed(*words, *(word for out in outs for word in ("--out", out)))
    assert "SABFGS" in shown.stdout
    assert "fit s" in shown.stdout
    assert all(out.stat().st_size > 100 for out in outs)
    assert "AAKNN" in (tmp_path / "t.csv").read_text()
    frame.head(60).to_csv(tmp_path / "village.csv", index=False)
    assert "Friedman" in succeed(*words[:2], tmp_path / "village.csv", *words[2:]).stdout
    assert "names from AutoLDL" in fail(*words[:-3], "--learners", "Oracle")
    assert "name a file that ends in" in fail(*words, "--out", "t.doc")
