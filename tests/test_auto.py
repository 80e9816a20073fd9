"""AutoLDL: which of the two distributions is kept, why, and that it then answers as the model that was kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from snefy_ldl import AutoLDL, LogRatioLDL, SnefyLDL, load
from snefy_ldl.auto import compare_held_out
from snefy_ldl.errors import InputError, TrainingWarning

LABELS = ["sand", "silt", "clay", "peat"]


def make_table(n: int, seed: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Log-ratios more correlated than independent gammas can be."""
    random = np.random.default_rng(seed)
    depth, side = random.normal(size=n), np.array(["north", "south"])[random.integers(2, size=n)]
    shared = random.normal(size=(n, 1)) * [1.0, 1.0, -1.0, -1.0] + 0.05 * random.normal(size=(n, 4))
    logs = 0.4 * shared + np.outer(depth, [0.5, 0.0, 0.2, 0.0]) + (side == "north")[:, None] * [0.3, 0.0, 0.0, 0.0]
    shares = np.exp(logs)
    return (
        pd.DataFrame({"depth": depth, "side": side}),
        pd.DataFrame(shares / shares.sum(1, keepdims=True), columns=LABELS),
    )


def quick(**changes: object) -> AutoLDL:
    snefy = SnefyLDL(n_neurons=8, epochs=2, guides=None, n_members=1)
    logratio = LogRatioLDL(n_components=1, guides=["ridge"], n_members=2, max_iter=20)
    return AutoLDL(**{"snefy": snefy, "logratio": logratio, "random_state": 0, **changes})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def fitted() -> AutoLDL:
    return quick().fit(*make_table(90, 0))


def test_the_more_likely_distribution_is_kept(fitted: AutoLDL) -> None:
    choice = fitted.choice_
    assert choice.kept == "LogRatioLDL"
    assert isinstance(fitted.model_, LogRatioLDL)
    assert choice.log_likelihood is not None
    assert choice.difference == pytest.approx(
        choice.log_likelihood["LogRatioLDL"] - choice.log_likelihood["SnefyLDL"], rel=1e-6
    )
    assert choice.rows is not None
    assert 0 < choice.rows <= 90
    assert "more likely under log-ratios" in str(choice)
    json.dumps(choice.to_dict())


def test_the_comparison_is_paired_and_leaves_zeros_and_unjudged_rows_out() -> None:
    random = np.random.default_rng(0)
    labels = np.full((40, 2), 0.5)
    labels[:4] = [0.0, 1.0]
    snefy, gain = random.normal(size=40), random.normal(0.3, 1.0, 40)
    logratio = snefy + gain
    logratio[4:8] = np.nan
    choice = compare_held_out(snefy, logratio, labels)
    judged = gain[8:] - np.log(36 / 40)  # the squared family has no zeros: its density is that of the other rows
    assert choice.rows == 32
    assert choice.difference == pytest.approx(judged.mean())
    assert choice.standard_error == pytest.approx(judged.std(ddof=1) / 32**0.5)
    with pytest.raises(InputError, match="validation rows"):
        compare_held_out(np.full(40, np.nan), logratio, labels)


@pytest.mark.parametrize(("lead", "kept"), [(1.1, "LogRatioLDL"), (0.9, "SnefyLDL"), (-1.1, "SnefyLDL")])
def test_log_ratios_must_lead_by_a_standard_error(lead: float, kept: str) -> None:
    spread = np.tile([-1.0, 1.0], 20)
    error = spread.std(ddof=1) / 40**0.5
    assert compare_held_out(np.zeros(40), spread + lead * error, np.full((40, 2), 0.5)).kept == kept


@pytest.mark.parametrize(
    ("kind", "kept", "words"),
    [
        ("zeros", "LogRatioLDL", "62% of the rows hold a share of zero"),
        ("gaps", "SnefyLDL", "some shares are unknown"),
        ("votes", "SnefyLDL", "the labels are votes"),
        ("few rows", "LogRatioLDL", "10 rows are too few"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_some_tables_leave_no_choice(kind: str, kept: str, words: str) -> None:
    X, D = make_table(40, 4)
    labels: dict[str, object] = {"D": D}
    if kind == "zeros":
        D.iloc[:25, 0] = 0.0
        labels = {"D": D.div(D.sum(axis=1), axis=0)}
    elif kind == "gaps":
        D.iloc[0, :2] = np.nan
    elif kind == "votes":
        labels = {"counts": (20 * D).round()}
    else:
        X, labels = X[:10], {"D": D[:10]}
    model = quick().fit(X, **labels)
    assert model.choice_.kept == kept == type(model.model_).__name__
    assert words in model.choice_.reason
    assert model.choice_.log_likelihood is None


def test_weights_go_to_both_fits_and_their_comparison() -> None:
    X, D = make_table(30, 3)
    model = quick().fit(X, D, sample_weight=np.linspace(0.5, 1.5, 30))
    assert model.choice_.log_likelihood is not None
    random = np.random.default_rng(0)
    snefy, logratio = random.normal(size=20), random.normal(size=20)
    labels, times = np.full((20, 2), 0.5), random.integers(0, 4, 20)
    weighted = compare_held_out(snefy, logratio, labels, sample_weight=times)
    repeated = compare_held_out(*(np.repeat(values, times, axis=0) for values in (snefy, logratio, labels)))
    assert weighted.difference == pytest.approx(repeated.difference)
    assert weighted.log_likelihood == pytest.approx(repeated.log_likelihood)


def test_many_rows_are_compared_where_both_held_them_back(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr("snefy_ldl.logratio.MOST_ROWS", 60)
    choice = quick(verbose=1).fit(*make_table(300, 0)).choice_
    assert 0 < (choice.rows or 0) < 0.15 * 300
    assert "log-ratios 3/3" in capsys.readouterr().err


def test_shares_that_look_like_votes_are_pointed_out() -> None:
    random = np.random.default_rng(0)
    X, votes = random.normal(size=(40, 2)), random.multinomial(5, [0.5, 0.3, 0.2], 40)
    with pytest.warns(TrainingWarning, match=r"look like 5 votes per row: fit\(X, counts=5 \* D\)"):
        quick().fit(X, votes / 5)


def test_it_answers_as_the_model_that_was_kept(fitted: AutoLDL, tmp_path: Path) -> None:
    X, D = make_table(20, 9)
    again = load(fitted.save(tmp_path / "model"))
    assert isinstance(again, AutoLDL)
    assert again.choice_ == fitted.choice_
    for model in (fitted.model_, again):
        np.testing.assert_allclose(model.log_prob(X, D), fitted.log_prob(X, D), rtol=1e-6)
        for ask in ("predict", "predict_interval"):
            np.testing.assert_allclose(getattr(model, ask)(X), getattr(fitted, ask)(X), rtol=1e-6)
    assert fitted.label_names_ == LABELS
    other = LogRatioLDL(n_components=1, guides=["ridge"], n_members=2, max_iter=5, random_state=0).fit(X, D)
    assert isinstance(load(other.save(tmp_path / "other")), LogRatioLDL)  # a model that was not chosen stays itself


def test_settings_are_handed_on_unless_a_model_has_its_own() -> None:
    X, D = make_table(30, 1)
    model = quick(logratio=LogRatioLDL(n_components=1, guides=["ridge"], random_state=7), columns={"side": "drop"})
    model.fit(X, D)
    assert model.logratio.random_state == 7
    assert model.snefy.random_state is None  # what was passed stays as it was
    assert model.model_.columns_.names_used == ["depth"]
    with pytest.raises(AttributeError, match="no attribute 'nothing_'"):
        _ = model.nothing_
