"""The page of laws with a centre, laws that move, and laws with zeros: exact moments, and draws that are the law's."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from pages import answers, open_page, wait_until

from snefy_ldl import SnefyLDL
from snefy_ldl.apps.serve.explorer import PageRows, export
from snefy_ldl.apps.serve.explorer.export import export_model

pytestmark = pytest.mark.browser

ROWS = [0, 3, 17, 40]
CLOSE = 1e-6
#: A test on draws fails on a right page with at most this probability.
FALSE_ALARM = 1e-6
SMALL: dict[str, Any] = {"n_neurons": 12, "n_readouts": 6, "epochs": 4, "random_state": 0, "guides": None}
Table = tuple[pd.DataFrame, pd.DataFrame]


@pytest.fixture(scope="module")
def centred(city: Table) -> SnefyLDL:
    return SnefyLDL(**SMALL, centre="geometric").fit(*city)


@pytest.fixture(scope="module")
def zeros(city: Table) -> SnefyLDL:
    X, D = city
    with_zeros = D.to_numpy() * (np.random.default_rng(0).random(D.shape) > 0.3)
    with_zeros[with_zeros.sum(1) == 0, 0] = 1.0
    names = list(D.columns)
    return SnefyLDL(**SMALL, centre=None, zeros="model").fit(
        X, pd.DataFrame(with_zeros / with_zeros.sum(1, keepdims=True), columns=names)
    )


@pytest.fixture
def moved_tab(browser: Any, tmp_path: Path, moved_city: SnefyLDL, city: Table) -> Iterator[Any]:
    with open_page(browser, tmp_path, moved_city, city[0][:60]) as tab:
        yield tab
        assert tab.faults == []


def settle(tab: Any) -> Any:
    """Wait until the last picture is drawn with all draws, and give the page's answer."""
    wait_until(tab, "!explorer.state.pending && explorer.resting")
    return tab.evaluate(
        "({mean: Array.from(explorer.answer.mean), low: Array.from(explorer.answer.low), names: explorer.answer.names,"
        " high: Array.from(explorer.answer.high), x: Array.from(explorer.state.x), greater: explorer.greater})"
    )


def same_moments(tab: Any, law: Any, rows: list[int], zero: bool = False) -> dict[str, Any]:
    """Hold means, covariances and chances of zero on the page against a law of these rows."""
    got, n_labels = answers(tab, rows), law.n_labels
    np.testing.assert_allclose(got["mean"], law.mean, atol=CLOSE)
    np.testing.assert_allclose(got["covariance"].reshape(-1, n_labels, n_labels), law.covariance_matrix, atol=CLOSE)
    if zero:
        np.testing.assert_allclose(got["zero"], law.prob_zero(), atol=CLOSE)
    return got


def band(n: float, n_tests: int = 1) -> float:
    """How far an empirical cdf of n draws may be off (Dvoretzky, Kiefer, Wolfowitz and Massart).

    The page's proposals are spread evenly over the components, which only makes it smaller.
    """
    return math.sqrt(math.log(2 * n_tests / FALSE_ALARM) / (2 * n))


DRAWS = """row => { explorer.state.row = row; explorer.state.moved = false;
  return Array.from(explorer.lawAt(explorer.rows.x(row)).drawn.shares); }"""


def same_draws(tab: Any, law: Any, row: int) -> np.ndarray:
    """Hold the page's draws of one row against the exact cdfs of its shares, law of that row: (S, L)."""
    draws = np.array(tab.evaluate(DRAWS, row)).reshape(-1, law.n_labels)
    np.testing.assert_allclose(draws.sum(1), 1.0, atol=1e-12)
    n, n_labels = draws.shape
    assert n > 3000
    for r in range(n_labels):
        values = np.sort(draws[:, r])
        inner = values[(values > 0.0) & (values < 1.0)]
        first = int((values == 0.0).sum())
        exact = law.marginal(r).cdf(torch.as_tensor(inner)[:, None])[:, 0].numpy()
        above = (first + np.arange(1, len(inner) + 1)) / n
        distance = max(np.abs(above - exact).max(), np.abs(above - 1.0 / n - exact).max())
        assert distance < band(n, n_labels), (row, r)
    return draws


# -- numbers -----------------------------------------------------------------------------------------------------------


def test_a_law_with_a_centre_is_pythons(browser: Any, tmp_path: Path, centred: SnefyLDL, city: Table) -> None:
    with open_page(browser, tmp_path, centred, city[0]) as tab:
        law = centred.predict_dist(city[0].iloc[ROWS])
        got = same_moments(tab, law, ROWS)
        np.testing.assert_allclose(got["high"], law.quantiles([0.95])[..., 0], atol=CLOSE)
        np.testing.assert_allclose(got["greater"], law.prob_greater(0, 1), atol=CLOSE)
        same_draws(tab, law[1:2], ROWS[1])
        assert "centre" in tab.text_content("#notes")
        tab.press("#feature-0", "ArrowRight")
        moved = settle(tab)
        np.testing.assert_allclose(moved["mean"], centred.predict(np.array([moved["x"]])).to_numpy()[0], atol=CLOSE)
        assert "draws" in tab.text_content("#mix-note")
        assert tab.faults == []


def test_a_law_that_moves_is_pythons_also_where_features_are_moved(
    moved_tab: Any, moved_city: SnefyLDL, city: Table
) -> None:
    law = moved_city.predict_dist(city[0].iloc[ROWS])
    got = same_moments(moved_tab, law, ROWS)
    np.testing.assert_allclose(got["low"], law.quantiles([0.05])[..., 0], atol=CLOSE)
    np.testing.assert_allclose(got["greater"], law.prob_greater(0, 1), atol=CLOSE)
    for number in (0, 1):
        same_draws(moved_tab, law[number : number + 1], ROWS[number])
    for number in range(3):
        moved_tab.focus(f"#feature-{number}")
        for _ in range(3):
            moved_tab.keyboard.press("ArrowRight")
    moved = settle(moved_tab)
    there = moved_city.predict_dist(np.array([moved["x"]]))
    np.testing.assert_allclose(moved["mean"], there.mean[0], atol=CLOSE)
    np.testing.assert_allclose(moved["high"], there.quantiles([0.95])[0, :, 0], atol=CLOSE)
    assert "Means and intervals are exact" in moved_tab.text_content("#mix-note")
    moved_tab.evaluate("explorer.quick = explorer.answerAt(explorer.state.x, true)")  # as while something moves
    high, n = moved_tab.evaluate("[Array.from(explorer.quick.high), explorer.quick.law.drawn.count]")
    for r in range(3):
        assert abs(float(there.marginal(r).cdf(torch.tensor([high[r]]).double())) - 0.95) < band(n, 3)


def test_the_triangle_is_the_exact_density(moved_tab: Any, moved_city: SnefyLDL, city: Table) -> None:
    points = np.array([[0.2, 0.3, 0.5], [0.7, 0.2, 0.1], [0.05, 0.9, 0.05]])
    got = moved_tab.evaluate(
        """logs => { const law = explorer.lawAt(explorer.rows.x(3)), points = {logs: Float64Array.from(logs)};
            return Array.from(law.ternary([0, 1, 2]).densities(points)); }""",
        np.log(points).ravel().tolist(),
    )
    exact = moved_city.predict_dist(city[0].iloc[[3]]).log_prob(points[:, None]).exp()[:, 0]
    np.testing.assert_allclose(got, exact, rtol=1e-5)


def test_laws_with_zeros_have_their_moments_and_draws_with_exact_zeros(
    browser: Any, tmp_path: Path, zeros: SnefyLDL, city: Table
) -> None:
    with open_page(browser, tmp_path, zeros, city[0]) as tab:
        law = zeros.predict_dist(city[0].iloc[ROWS])
        got = same_moments(tab, law, ROWS, zero=True)
        np.testing.assert_allclose(got["high"], law.quantiles([0.95])[..., 0], atol=CLOSE)
        draws = same_draws(tab, law[2:3], ROWS[2])
        assert np.abs((draws == 0.0).mean(0) - law.prob_zero()[2].numpy()).max() < band(len(draws), 3)
        assert abs(got["greater"][0] - float(law.prob_greater(0, 1)[0])) < band(3500)
        assert tab.is_visible("#bars .zero")
        assert "above zero" in tab.text_content("#ternary-note")
        assert tab.faults == []


def test_many_labels_that_move_with_their_odds_of_presence(
    browser: Any, tmp_path: Path, moving: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, X = moving
    monkeypatch.setattr(export, "QUANTILE_LEVELS", (0.05, 0.95))  # quantiles of such a law take their time
    monkeypatch.setattr(export, "MOST_SLOW_ROWS", 1)
    with open_page(browser, tmp_path, model, X[:60]) as tab:
        law = model.predict_dist(X[:3])
        got = same_moments(tab, law[:1], [0], zero=True)
        np.testing.assert_allclose(got["high"], law[:1].quantiles([0.95])[..., 0], atol=CLOSE)
        draws = np.array(tab.evaluate(DRAWS, 2)).reshape(-1, law.n_labels)
        limit = band(len(draws), 2 * law.n_labels)
        assert np.abs((draws == 0.0).mean(0) - law.prob_zero()[2].numpy()).max() < limit
        largest = int(law.mean[2].argmax())
        points = torch.linspace(0.02, 0.9, 12).double()
        exact = law[2:3].marginal(largest).cdf(points[:, None])[:, 0].numpy()
        assert np.abs((draws[:, largest, None] <= points.numpy()).mean(0) - exact).max() < limit
        tab.press("#feature-1", "ArrowRight")
        moved = settle(tab)
        np.testing.assert_allclose(moved["mean"], np.asarray(model.predict(np.array([moved["x"]])))[0], atol=CLOSE)
        assert "exactly zero" in tab.text_content("#notes")
        assert "Other intervals" in tab.text_content("#notes")
        assert tab.faults == []


def test_without_room_for_trees_every_row_still_has_its_law(
    browser: Any, tmp_path: Path, moved_city: SnefyLDL, city: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "MOST_TREE_NUMBERS", 10)
    monkeypatch.setattr(export, "MOST_SLOW_ROWS", 2)
    content, _ = export_model(moved_city, PageRows(city[0]))
    assert content["places"]["centre"]["shape"] == [160, 3]
    with open_page(browser, tmp_path, moved_city, city[0]) as tab:
        law = moved_city.predict_dist(city[0].iloc[ROWS])
        same_moments(tab, law, ROWS)
        same_draws(tab, law[3:4], ROWS[3])
        assert tab.locator("#features input").count() == 0
        assert "too large" in tab.text_content("#notes")
        assert tab.faults == []


def test_votes_and_known_shares_are_pythons_within_their_error(
    browser: Any, tmp_path: Path, centred: SnefyLDL, city: Table
) -> None:
    law = centred.predict_dist(city[0].iloc[[3]])
    votes = [4, 0, 2]
    with open_page(browser, tmp_path, centred, city[0]) as tab:
        tab.evaluate("votes => { explorer.state.votes = votes; }", votes)
        mean, error = tab.evaluate(
            """() => { const law = explorer.lawAt(explorer.rows.x(3));
                return [Array.from(law.mean()), Array.from(law.meanErrors())]; }"""
        )
        expected = law.posterior(votes).mean[0].numpy()
        np.testing.assert_array_less(np.abs(np.array(mean) - expected) / error, 5.2)  # 1e-6 over the three labels
        tab.evaluate("explorer.state.votes = [0, 0, 0]")
        mean, error = tab.evaluate(
            """() => { const law = explorer.lawAt(explorer.rows.x(3)).knowing(1, 0.3);
                return [Array.from(law.mean()), Array.from(law.meanErrors())]; }"""
        )
        known = law.condition({1: 0.3}, n_draws=40_000, generator=torch.Generator().manual_seed(0))
        off = np.hypot(error, known.std_error[0, [0, 2]].numpy())
        away = np.abs(np.array(mean) - known.mean[0, [0, 2]].numpy()) / off
        assert away.max() < 5.1


# -- controls ----------------------------------------------------------------------------------------------------------


def test_every_control_of_a_law_that_moves(moved_tab: Any, moved_city: SnefyLDL, city: Table) -> None:
    tab = moved_tab
    tab.fill("#row", "5")
    tab.press("#row", "Enter")
    before, law = settle(tab), moved_city.predict_dist(city[0].iloc[[5]])
    tab.select_option("#level", "0.5")
    np.testing.assert_allclose(settle(tab)["low"], law.quantiles([0.25])[0, :, 0], atol=CLOSE)
    tab.select_option("#level", "0.9")
    tab.locator("#votes input").nth(1).fill("7")
    after = settle(tab)
    assert after["mean"][1] > before["mean"][1]
    assert "weighted draws" in tab.text_content("#mix-note")
    tab.click("#votes-clear")
    np.testing.assert_allclose(settle(tab)["mean"], law.mean[0], atol=CLOSE)
    tab.check("#known-on")
    tab.select_option("#known-part", "2")
    tab.focus("#known-share")
    tab.keyboard.press("ArrowLeft")
    known = settle(tab)
    assert known["mean"][2] == pytest.approx(0.49)
    assert sum(known["mean"]) == pytest.approx(1.0)
    tab.uncheck("#known-on")
    tab.select_option("#larger-a", "2")
    tab.select_option("#larger-b", "0")
    assert settle(tab)["greater"] == pytest.approx(float(law.prob_greater(2, 0)), abs=CLOSE)
    correlations = tab.locator("#correlations tbody td").all_text_contents()
    covariance = law.covariance_matrix[0].numpy()
    expected = covariance[0, 1] / np.sqrt(covariance[0, 0] * covariance[1, 1])
    assert float(correlations[1].replace("−", "-")) == pytest.approx(expected, abs=0.0051)
    points = tab.evaluate("explorer.dependence")
    assert all(point["low"] <= point["mean"] <= point["high"] for point in points)
    tab.select_option("#merge-a", "0")
    tab.select_option("#merge-b", "2")
    tab.click("#merge")
    merged = settle(tab)
    assert merged["names"] == ["business + education", "entertainment"]
    np.testing.assert_allclose(merged["mean"], [law.mean[0, [0, 2]].sum(), law.mean[0, 1]], atol=CLOSE)
    level = torch.tensor([0.05]).double()
    assert merged["low"][0] == pytest.approx(float(law.marginal([0, 2]).icdf(level)), abs=CLOSE)
    tab.click("#split")
    assert len(settle(tab)["names"]) == 3


def test_groups_of_labels_have_a_triangle_from_draws(
    browser: Any, tmp_path: Path, moving: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, X = moving
    monkeypatch.setattr(export, "QUANTILE_LEVELS", (0.05, 0.95))
    monkeypatch.setattr(export, "MOST_SLOW_ROWS", 1)
    with open_page(browser, tmp_path, model, X[:5]) as tab:
        tab.select_option("#merge-a", "0")
        tab.select_option("#merge-b", "1")
        tab.click("#merge")
        tab.select_option("#corner-0", "0")
        tab.select_option("#corner-1", "1")
        tab.select_option("#corner-2", "2")
        settle(tab)
        assert "Smoothed from draws" in tab.text_content("#ternary-note")
        tab.locator("#votes input").nth(3).fill("2")
        settle(tab)
        tab.select_option("#known-part", "0")
        tab.check("#known-on")
        known = settle(tab)
        assert sum(known["mean"]) == pytest.approx(1.0)
        assert tab.input_value("#corner-0") != "0"  # a known share leaves the triangle
        assert "Smoothed from draws" in tab.text_content("#ternary-note")
        assert tab.text_content("#larger-note").startswith("From draws")
        assert tab.faults == []


def test_votes_where_labels_may_be_absent(browser: Any, tmp_path: Path, zeros: SnefyLDL, city: Table) -> None:
    votes = np.array([3, 0, 1])
    with open_page(browser, tmp_path, zeros, city[0][:30]) as tab:
        mean, error, zero = tab.evaluate(
            """votes => { const law = explorer.lawAt(explorer.rows.x(3)).posterior(votes);
                return [Array.from(law.mean()), Array.from(law.meanErrors()), Array.from(law.zero())]; }""",
            votes.tolist(),
        )
        draws = zeros.predict_dist(city[0].iloc[[3]]).sample((100_000,), torch.Generator().manual_seed(0))[:, 0].numpy()
        weight = np.prod(draws**votes, axis=1)
        expected = weight @ draws / weight.sum()
        size = np.sqrt(weight @ (draws - expected) ** 2 / weight.sum() * (weight**2).sum() / weight.sum() ** 2)
        assert (np.abs(np.array(mean) - expected) / np.hypot(error, size)).max() < 5.2  # 1e-6 over the three labels
        assert zero[0] == zero[2] == 0.0
        mean, error = tab.evaluate(
            """() => { const law = explorer.lawAt(explorer.rows.x(3)).knowing(1, 0.3);
                return [Array.from(law.mean()), Array.from(law.meanErrors())]; }"""
        )
        law = zeros.predict_dist(city[0].iloc[[3]])
        known = law.condition({1: 0.3}, n_draws=40_000, generator=torch.Generator().manual_seed(0))
        off = np.hypot(error, known.std_error[0, [0, 2]].numpy())
        assert (np.abs(np.array(mean) - known.mean[0, [0, 2]].numpy()) / off).max() < 5.1
        for place in range(3):
            tab.locator("#votes input").nth(place).fill("9000")
        np.testing.assert_allclose(settle(tab)["mean"], 1.0 / 3.0, atol=0.02)  # so many votes leave no doubt
        assert tab.faults == []
