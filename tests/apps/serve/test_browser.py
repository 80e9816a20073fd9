"""The page in a real browser: its numbers are Python's, and every control works."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import uvicorn
from pages import answers, open_file, open_page, wait_until

import distribution_cases
from commands import succeed
from integration_models import KINDS, fitted, table
from snefy_ldl import LogRatioLDL, SnefyLDL
from snefy_ldl.apps.serve.app import create_app
from snefy_ldl.apps.serve.explorer import PageRows
from snefy_ldl.apps.serve.explorer.export import DRAWS
from snefy_ldl.conformal import ConformalIntervals
from snefy_ldl.persistence import load_calibration

pytestmark = pytest.mark.browser

ROWS = [0, 3, 17, 40]
CLOSE = 1e-6
DESKTOP = {"viewport": {"width": 1400, "height": 1000}}
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
Table = tuple[pd.DataFrame, pd.DataFrame]
SMALL: dict[str, Any] = {"n_neurons": 12, "n_readouts": 6, "epochs": 4, "random_state": 0, "guides": None}


def check(got: dict[str, Any], expected: dict[str, Any]) -> None:
    """Hold the page's answers against Python's."""
    np.testing.assert_allclose(got["mean"], expected["mean"], atol=CLOSE)
    covariance = np.asarray(expected["covariance"])
    np.testing.assert_allclose(got["covariance"].reshape(covariance.shape), covariance, atol=CLOSE)
    np.testing.assert_allclose(got["low"], expected["quantiles"][..., 0], atol=CLOSE)
    np.testing.assert_allclose(got["high"], expected["quantiles"][..., -1], atol=CLOSE)
    np.testing.assert_allclose(got["greater"], expected["greater"], atol=CLOSE)


# -- numbers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [*(f"formula {kind}" for kind in distribution_cases.KINDS), *KINDS, "paper"])
def test_the_pages_numbers_are_those_of_the_table(browser: Any, tmp_path: Path, kind: str) -> None:
    """The same tables as the exported graph's (tests/test_distribution_cases.py, integrations/test_graph.py)."""
    made = kind.removeprefix("formula ")
    formula = made != kind
    case = distribution_cases.table()[made] if formula else table(kind)
    model = distribution_cases.model_of(made) if formula else fitted(kind)[0]
    with open_page(browser, tmp_path, model, case["X"]) as tab:
        check(answers(tab, list(range(len(case["X"])))), case)
        assert tab.faults == []


def test_known_shares_groups_and_densities_are_the_distributions(
    browser: Any, tmp_path: Path, small: SnefyLDL, city: Table
) -> None:
    with open_page(browser, tmp_path, small, city[0]) as tab:
        dist = small.predict_dist(city[0].iloc[ROWS])
        tab.evaluate("explorer.state.known = {part: 1, share: 0.3}")
        other = dist.condition({1: 0.3})
        got = answers(tab, ROWS)
        np.testing.assert_allclose(got["mean"], other.mean, atol=CLOSE)
        np.testing.assert_allclose(got["high"], other.quantiles([0.95])[..., 0], atol=CLOSE)
        np.testing.assert_allclose(got["covariance"].reshape(-1, 3, 3), other.covariance_matrix, atol=CLOSE)
        chance = 1.0 - other.rest.marginal(0).cdf(torch.full((len(ROWS),), 0.3 / 0.7, dtype=torch.float64))
        np.testing.assert_allclose(got["greater"], chance, atol=CLOSE)
        tab.evaluate("explorer.state.known = null; explorer.state.parts = [[0, 2], [1]]")
        got = answers(tab, ROWS)
        merged = dist.amalgamate([[0, 2], [1]])
        np.testing.assert_allclose(got["mean"], merged.mean, atol=CLOSE)
        np.testing.assert_allclose(got["high"], merged.quantiles([0.95])[..., 0], atol=CLOSE)
        tab.evaluate("explorer.state.parts = [[0], [1], [2]]")
        points = np.array([[0.2, 0.3, 0.5], [0.7, 0.2, 0.1], [0.05, 0.9, 0.05]])
        densities = tab.evaluate(
            """([row, logs]) => { explorer.state.row = row;
                const dist = explorer.distributionAt(explorer.rows.x(row));
                return Array.from(dist.densities(Float64Array.from(logs))); }""",
            [3, np.log(points).ravel().tolist()],
        )
        expected = small.predict_dist(city[0].iloc[[3]]).log_prob(points[:, None]).exp()[:, 0]
        np.testing.assert_allclose(densities, expected, rtol=1e-5)
        below = tab.evaluate(
            "rows => rows.map(row => explorer.distributionAt(explorer.rows.x(row)).share(0).below(0.25))", ROWS
        )
        np.testing.assert_allclose(below, dist.marginal(0).cdf(torch.tensor(0.25).double()), atol=CLOSE)


def test_log_ratios_are_the_models_own_answers_and_draws_that_follow_it(
    browser: Any, tmp_path: Path, ratios: LogRatioLDL, city: Table
) -> None:
    with open_page(browser, tmp_path, ratios, city[0]) as tab:
        dist, got = ratios.predict_dist(city[0].iloc[ROWS]), answers(tab, ROWS)
        np.testing.assert_allclose(got["mean"], dist.mean, atol=CLOSE)
        np.testing.assert_allclose(got["zero"], dist.prob_zero(), atol=CLOSE)
        ends = dist.quantiles([0.05, 0.95])
        np.testing.assert_allclose(got["low"], ends[..., 0], atol=CLOSE)
        np.testing.assert_allclose(got["high"], ends[..., 1], atol=CLOSE)
        far = 5.0 / np.sqrt(DRAWS)  # of a hundred comparisons, fewer than one in ten thousand is as far out by chance
        np.testing.assert_allclose(got["greater"], dist.prob_greater(0, 1), atol=0.5 * far)
        spread = np.sqrt(np.asarray(dist.variance))
        apart = got["covariance"].reshape(-1, 3, 3) - dist.covariance_matrix.numpy()
        assert (np.abs(apart) < 2.0 * far * spread[:, :, None] * spread[:, None, :]).all()
        tab.evaluate("explorer.state.parts = [[0, 2], [1]]")
        low = answers(tab, ROWS)["low"][:, 0]
        level = dist.marginal([0, 2]).cdf(torch.as_tensor(low))
        np.testing.assert_allclose(level, 0.05, atol=far * np.sqrt(0.05 * 0.95))
        tab.evaluate("explorer.state.parts = [[0], [1], [2]]; explorer.state.known = {part: 2, share: 0.5}")
        known = ratios.predict_dist(city[0].iloc[ROWS]).condition({2: 0.5}, n_draws=20_000)
        np.testing.assert_allclose(answers(tab, ROWS)["mean"], known.mean, atol=0.12)
        assert f"{DRAWS} draws per row" in tab.text_content("#notes")
        assert tab.is_visible("#features-off")
        assert tab.is_hidden("#dependence-card")
        assert tab.faults == []


def test_calibrated_intervals_belong_to_every_row_that_is_shown(
    browser: Any, tmp_path: Path, ratios: LogRatioLDL, ratio_folder: Path, city: Table
) -> None:
    state = load_calibration(ratio_folder)
    assert state is not None
    intervals = ConformalIntervals.from_dict(ratios, state)
    every = list(range(len(city[0])))
    with open_page(browser, tmp_path, ratios, city[0], intervals) as tab:
        got, ends = answers(tab, every), intervals.predict_interval(city[0])
        assert got["calibrated"].all()
        np.testing.assert_allclose(got["low"], ends[..., 0], atol=CLOSE)
        np.testing.assert_allclose(got["high"], ends[..., 1], atol=CLOSE)
        tab.evaluate("explorer.state.parts = [[0, 2], [1]]")
        assert not answers(tab, every[:5])["calibrated"].any()


def test_columns_of_text_are_menus(browser: Any, tmp_path: Path, city: Table) -> None:
    X, D = city[0].copy(), city[1]
    X["quarter"] = np.where(X["night_bus_lines"] > 3, "old", np.where(X["mean_rent_eur_per_m2"] > 17, "new", "outer"))
    X.loc[::7, "mean_rent_eur_per_m2"] = np.nan
    model = SnefyLDL(**SMALL).fit(X, D)
    assert model.columns_ is not None
    assert not model.columns_.is_plain
    with open_page(browser, tmp_path, model, X) as tab:
        np.testing.assert_allclose(answers(tab, ROWS)["mean"], model.predict(X.iloc[ROWS]), atol=CLOSE)
        number = [control["name"] for control in tab.evaluate("explorer.model.content.controls")].index("quarter")
        tab.fill("#row", "3")
        tab.press("#row", "Enter")
        tab.select_option(f"#feature-{number}", label="outer")
        wait_until(tab, "explorer.state.moved && !explorer.state.pending")
        changed = X.iloc[[3]].assign(quarter="outer")
        np.testing.assert_allclose(
            tab.evaluate("Array.from(explorer.answer.mean)"), np.asarray(model.predict(changed))[0], atol=CLOSE
        )


# -- controls ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def tab(browser: Any, tmp_path: Path, small: SnefyLDL, city: Table) -> Iterator[Any]:
    rows = PageRows(city[0], [f"d{number:03d}" for number in range(len(city[0]))], "item")
    made = open_page(browser, tmp_path, small, rows, accept_downloads=True)
    yield made
    assert made.faults == []
    made.close()


def settled(tab: Any) -> dict[str, Any]:
    """The answer once nothing is waiting to be drawn."""
    wait_until(tab, "!explorer.state.pending && explorer.resting")
    answer: dict[str, Any] = tab.evaluate(
        "({mean: Array.from(explorer.answer.mean), low: Array.from(explorer.answer.low), greater: explorer.greater,"
        " names: explorer.answer.names, row: explorer.state.row})"
    )
    return answer


def test_rows_are_chosen_by_number_by_buttons_and_in_the_table(tab: Any, small: SnefyLDL, city: Table) -> None:
    tab.fill("#row", "5")
    tab.press("#row", "Enter")
    first = settled(tab)
    assert first["row"] == 5
    assert tab.text_content("#mix-row") == "item d005"
    np.testing.assert_allclose(first["mean"], small.predict(city[0].iloc[[5]]).to_numpy()[0], atol=CLOSE)
    tab.click("#next")
    assert settled(tab)["row"] == 6
    tab.click("#previous")
    tab.click("#previous")
    assert settled(tab)["row"] == 4
    tab.click("#rows tbody tr:nth-child(3) button")
    uncertain = np.sqrt(small.predict_var(city[0]).sum(axis=1)).argsort(kind="stable")[::-1]
    assert settled(tab)["row"] == int(uncertain.iloc[2] if hasattr(uncertain, "iloc") else uncertain[2])
    assert tab.evaluate("document.activeElement.id") == "mix"


def test_sliders_move_by_mouse_and_keys_and_go_back(tab: Any, small: SnefyLDL, city: Table) -> None:
    before = settled(tab)
    for number in range(5):
        tab.focus(f"#feature-{number}")
        tab.keyboard.press("ArrowRight")
    after = settled(tab)
    x = np.array(tab.evaluate("Array.from(explorer.state.x)"))
    assert (x != city[0].iloc[before["row"]].to_numpy()).all()
    np.testing.assert_allclose(after["mean"], small.predict(x[None]).to_numpy()[0], atol=CLOSE)
    box = tab.locator("#feature-0").bounding_box()
    tab.mouse.click(box["x"] + 0.9 * box["width"], box["y"] + 0.5 * box["height"])
    assert settled(tab)["mean"] != after["mean"]
    tab.click("#reset")
    assert settled(tab)["mean"] == before["mean"]
    assert tab.is_disabled("#reset")


def test_levels_parts_and_comparisons(tab: Any, small: SnefyLDL, city: Table) -> None:
    row = settled(tab)["row"]
    predicted = small.predict_dist(city[0].iloc[[row]])
    tab.select_option("#level", "0.5")
    np.testing.assert_allclose(settled(tab)["low"], predicted.quantiles([0.25])[0, :, 0], atol=CLOSE)
    tab.select_option("#larger-a", "2")
    np.testing.assert_allclose(settled(tab)["greater"], float(predicted.prob_greater(2, 1)), atol=CLOSE)
    tab.select_option("#larger-b", "2")
    settled(tab)
    assert tab.text_content("#larger") == "(choose two)"
    tab.select_option("#larger-b", "0")
    tab.select_option("#density-part", "1")
    settled(tab)
    assert tab.locator("#density path").count() == 1
    tab.select_option("#corner-0", "1")
    settled(tab)
    assert "different" in tab.text_content("#ternary-note")
    tab.select_option("#corner-1", "0")
    settled(tab)
    assert "mean" in tab.get_attribute("#ternary", "aria-label")
    tab.select_option("#merge-a", "0")
    tab.select_option("#merge-b", "2")
    tab.click("#merge")
    got = settled(tab)
    assert got["names"] == ["business + education", "entertainment"]
    np.testing.assert_allclose(got["mean"], predicted.amalgamate([[0, 2], [1]]).mean[0], atol=CLOSE)
    tab.click("#split")
    assert len(settled(tab)["names"]) == 3
    tab.drag_and_drop("#parts li:nth-child(1)", "#parts li:nth-child(2)")
    assert settled(tab)["names"] == ["business + entertainment", "education"]
    correlations = tab.locator("#correlations tbody td").all_text_contents()
    assert correlations == ["1", "−1.00", "−1.00", "1"]


def test_the_curve_along_a_feature_has_the_models_bands(tab: Any, small: SnefyLDL, city: Table) -> None:
    row = settled(tab)["row"]
    tab.select_option("#dependence-feature", "4")
    tab.select_option("#dependence-part", "1")
    settled(tab)
    points = tab.evaluate("explorer.dependence")
    X = city[0].iloc[[row] * len(points)].copy()
    X["mean_rent_eur_per_m2"] = [point["x"] for point in points]
    predicted = small.predict_dist(X)
    np.testing.assert_allclose([point["mean"] for point in points], predicted.mean[:, 1], atol=CLOSE)
    np.testing.assert_allclose([point["high"] for point in points], predicted.quantiles([0.95])[:, 1, 0], atol=CLOSE)


def test_the_table_sorts_filters_turns_pages_and_goes_to_a_file(tab: Any, small: SnefyLDL, city: Table) -> None:
    def names() -> list[str]:
        listed: list[str] = tab.locator("#rows tbody button").all_text_contents()
        return listed

    assert len(names()) == 25
    tab.select_option("#sort", "row")
    assert names()[0] == "d000"
    tab.click("#page-on")
    assert names()[0] == "d025"
    tab.click("#page-back")
    mean = small.predict(city[0])
    tab.select_option("#sort", "label 1")
    assert names()[0] == f"d{int(mean['entertainment'].to_numpy().argmax()):03d}"
    tab.fill("#filter", "entertainment > 0.3, night_bus_lines >= 4")
    wanted = (mean["entertainment"] > 0.3) & (city[0]["night_bus_lines"] >= 4)
    assert tab.text_content("#count").startswith(f"{int(wanted.sum())} of 160 rows")
    tab.fill("#filter", "D01")
    assert sorted(names()) == [f"d01{digit}" for digit in range(10)]
    tab.click("#select-shown")
    tab.uncheck("#rows tbody tr:nth-child(1) input")
    with tab.expect_download() as waiting:
        tab.click("#download")
    frame = pd.read_csv(waiting.value.path())
    assert len(frame) == 9
    chosen = [int(name[1:]) for name in frame["item"]]
    np.testing.assert_allclose(frame[list(city[0].columns)], city[0].iloc[chosen])
    np.testing.assert_allclose(frame["predicted_business"], mean["business"].iloc[chosen], atol=2e-6)
    tab.click("#select-none")
    assert tab.is_disabled("#download")


def test_labels_made_in_the_page_go_back_into_a_fit(tab: Any, city: Table, tmp_path: Path) -> None:
    def label(row: int, *values: object) -> None:
        tab.fill("#row", str(row))
        tab.press("#row", "Enter")
        for place, value in enumerate(values):
            tab.locator("#labels input").nth(place).fill(str(value))
        tab.click("#label-keep")

    label(2, 0, 0, 0)
    assert "above 0" in tab.text_content("#label-note")
    label(2, 20, 30, 50)
    label(7, 1, 1, 1)
    label(9, 1, 0, 0)
    tab.click("#label-drop")
    tab.select_option("#label-kind", "votes")
    label(11, 1.5, 0, 0)
    assert "whole" in tab.text_content("#label-note")
    tab.select_option("#label-kind", "shares")
    with tab.expect_download() as waiting:
        tab.click("#label-download")
    file = tmp_path / "labelled.csv"
    waiting.value.save_as(file)
    frame = pd.read_csv(file)
    assert list(frame["item"]) == ["d002", "d007"]
    np.testing.assert_allclose(frame[list(city[1].columns)].sum(axis=1), 1.0, atol=1e-9)
    table = pd.concat([city[0], city[1]], axis=1)[:80]
    table.insert(0, "item", [f"d{number:03d}" for number in range(100, 180)])
    table.to_csv(tmp_path / "train.csv", index=False)
    done = succeed(
        *("fit", tmp_path / "train.csv", "--labels", ",".join(city[1].columns), "--append", file),
        *("--out", tmp_path / "again", "--set", "epochs=1", "--density", "snefy", "--quiet"),
    )
    assert "2 labelled rows added" in done.output


@pytest.mark.parametrize("kind", ["small", "ratios"])
def test_everything_has_a_name_and_nothing_is_wider_than_a_phone(
    browser: Any, tmp_path: Path, kind: str, city: Table, request: pytest.FixtureRequest
) -> None:
    with open_page(browser, tmp_path, request.getfixturevalue(kind), city[0], **PHONE) as tab:
        nameless = tab.evaluate(
            """Array.from(document.querySelectorAll("input, select, button, canvas, section > svg")).filter(node => !(
                 (node.labels && node.labels.length && node.labels[0].textContent.trim()) || node.ariaLabel
                 || node.getAttribute("aria-label") || node.textContent.trim())).map(node => node.id)"""
        )
        assert nameless == []
        assert tab.evaluate("document.documentElement.scrollWidth") <= 390
        assert tab.evaluate(CUT) == []
        tab.keyboard.press("Tab")
        assert tab.evaluate("document.activeElement.className") == "skip"
        wait_until(tab, "document.getElementById('status').textContent.startsWith('Mean:')")
        assert tab.faults == []


def test_names_are_never_markup(browser: Any, tmp_path: Path, city: Table) -> None:
    names = ["</script><img src=x onerror=alert(1)>", "<b>%%DATA%%</b>", "\u2028&amp;"]
    X = city[0].rename(columns={"night_bus_lines": "<i>x</i>"})
    model = SnefyLDL(**SMALL).fit(X, city[1].set_axis(names, axis=1))
    with open_page(browser, tmp_path, model, X) as tab:
        assert tab.locator("#bars tbody th").all_text_contents() == names
        assert tab.locator("img, b, i:not(.track i, .legend i)").count() == 0
        assert tab.faults == []


# -- pictures ----------------------------------------------------------------------------------------------------------

#: Tables that are wider than their box and do not scroll.
CUT = """Array.from(document.querySelectorAll("table")).filter(table => {
  const box = table.parentElement;
  return table.scrollWidth > 1 + box.clientWidth && getComputedStyle(box).overflowX !== "auto";
}).map(table => table.id)"""
#: Texts of pictures that reach beyond them, or are too small to read.
BAD_TEXTS = """Array.from(document.querySelectorAll("svg text")).filter(text => {
  const box = text.getBoundingClientRect(), whole = text.closest("section > svg").getBoundingClientRect();
  const inside = box.left >= whole.left - 0.5 && box.right <= whole.right + 0.5 && box.bottom <= whole.bottom + 0.5;
  return !inside || box.height < 11;
}).map(text => text.textContent)"""
#: What a curve says: heights of the drawn line over shares, in units of the highest.
DRAWN = """([part, shares]) => {
  const path = document.querySelector("#density path"), plot = path.parentNode, length = path.getTotalLength();
  const { low, high } = frame(explorer.answer.curve(part), explorer.answer, part), width = plot.width.baseVal.value;
  const at = Array.from({ length: 4000 }, (_, k) => path.getPointAtLength(length * k / 3999));
  return shares.map(share => {
    const x = width * (share - low) / (high - low), k = at.findIndex(point => point.x >= x);
    return plot.height.baseVal.value - at[k].y;
  });
}"""


@pytest.fixture(scope="module")
def sharp() -> tuple[SnefyLDL, pd.DataFrame]:
    """A model of four labels; one of them is nearly the same small share everywhere."""
    random = np.random.default_rng(0)
    X = pd.DataFrame(random.normal(size=(120, 3)), columns=["age", "income", "rent"])
    D = random.dirichlet([12.0, 8.0, 5.0, 3.0], size=120)
    D[:, 3] = 0.02 + 0.002 * random.random(120)
    D /= D.sum(1, keepdims=True)
    labels = ["work", "study", "sport", "volunteering"]
    return SnefyLDL(**SMALL).fit(X, pd.DataFrame(D, columns=labels)), X


@pytest.mark.parametrize("screen", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_texts_stay_in_their_pictures_and_spikes_flatten_nothing(
    browser: Any, tmp_path: Path, sharp: Any, screen: dict[str, Any]
) -> None:
    with open_page(browser, tmp_path, *sharp, **screen) as tab:
        settled(tab)
        assert tab.locator("svg text").count() > 10
        assert tab.evaluate(BAD_TEXTS) == []
        heights = tab.evaluate(
            """Array.from(document.querySelectorAll("#density path")).map(path =>
                 path.getBoundingClientRect().height / path.parentNode.getBoundingClientRect().height)"""
        )
        assert len(heights) == 4
        assert min(heights) > 0.6
        used = tab.evaluate("document.querySelector('#density').clientWidth / innerWidth")
        assert used > 0.65
        assert tab.evaluate("document.documentElement.scrollWidth") <= screen["viewport"]["width"]
        assert tab.faults == []


def test_curves_are_smooth_and_are_the_densities(browser: Any, tmp_path: Path, sharp: Any) -> None:
    model, X = sharp
    with open_page(browser, tmp_path, model, X, **DESKTOP) as tab:
        for part in (0, 3):
            tab.select_option("#density-part", str(part))
            row = settled(tab)["row"]
            share = model.predict_dist(X.iloc[[row]]).marginal(part)
            shares = share.quantiles(np.linspace(0.02, 0.98, 97))[0].numpy()
            expected = share.log_prob(torch.tensor(shares)[:, None]).exp()[:, 0].numpy()
            drawn = np.array(tab.evaluate(DRAWN, [part, shares.tolist()]))
            np.testing.assert_allclose(drawn / drawn.max(), expected / expected.max(), atol=0.01)


def test_a_density_without_bound_is_cut_and_marked(browser: Any, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    X = random.normal(size=(80, 2))
    model = SnefyLDL(**SMALL).fit(X, random.dirichlet([0.3, 2.0, 2.0], size=80))
    with open_page(browser, tmp_path, model, X) as tab:
        settled(tab)
        assert tab.locator("#density .cut").count() >= 1
        assert "continues above the picture" in tab.text_content("#density-note")


# -- served ------------------------------------------------------------------------------------------------------------


def test_the_service_shows_the_page_under_its_policy(browser: Any, folder: Path, city: Table, tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    city[0][:20].to_csv(file, index=False)
    app = create_app([folder], data=file)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.02)
        with open_file(browser, f"http://127.0.0.1:{port}/") as tab:
            assert tab.evaluate("explorer.rows.count") == 20
            assert tab.input_value("#level") == "0.8"
            assert "calibrated (conformal)" in tab.text_content("#mix-note")
            assert tab.faults == []
    finally:
        server.should_exit = True
        thread.join(30)
