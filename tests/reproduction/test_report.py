"""The report of a reproduction: its figures against other routes to them."""

from __future__ import annotations

import re
from functools import reduce
from operator import getitem
from pathlib import Path

import numpy as np
import pytest
from made_up_results import Page, cell, figures, find, put, put_study
from scipy import stats

from reproduction.claims import (
    METRICS,
    TABLES,
    claim_of_ours,
    claims_of_the_paper,
    grid_distances,
    load_results,
    paired,
)
from reproduction.report import dependent_claims, write_report
from snefy_ldl.errors import InputError


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, reported."""
    folder = tmp_path_factory.mktemp("run")
    for study in (*TABLES, "figureA1"):
        put_study(folder, study, 0.02)
    assert write_report(folder) == folder / "reproduction.md"
    return folder


@pytest.fixture(scope="module")
def page(whole: Path) -> Page:
    return Page((whole / "reproduction.md").read_text(encoding="utf-8"))


@pytest.mark.parametrize("n", [2, 10, 100])
def test_intervals_are_those_of_scipys_test(n):
    rng = np.random.default_rng(n)
    first, second = rng.normal(0.3, 1.0, n), rng.normal(0.0, 2.0, n)
    gap, test = paired(dict(enumerate(first)), dict(enumerate(second)) | {n: 99.0}), stats.ttest_rel(first, second)
    interval = test.confidence_interval(0.95)
    assert gap.mean == pytest.approx(first.mean() - second.mean())
    assert (gap.mean - gap.half, gap.mean + gap.half) == pytest.approx((interval.low, interval.high))
    assert gap.clear == (test.pvalue < 0.05)
    assert paired({0: 1.0}, {0: 2.0}).mark == "▽"  # one repeat has no interval
    assert paired({0: 1.0}, {1: 1.0}) is None


def test_tables_hold_independent_figures(whole, page):
    def scores(study, recipe, *path):
        return [reduce(getitem, path, one) for one in figures(whole, study, recipe)]

    row = page.rows["table3"]["G=4, label <1>"]
    place = ("fsc", "4", 1)
    dirichlet = scores("table3", "baseline", "models", "dirichlet", *place)
    default = scores("table3", "default", "models", "snefy", *place)
    assert row[0] == "{:.3f}±{:.3f}".format(*TABLES["table3"].cells["dirichlet", "4", "1"]).replace("0.", ".")
    assert row[2] == cell(scores("table3", "baseline", "models", "constant", *place), 3)
    assert (row[3], row[7]) == (cell(dirichlet, 3), cell(default, 3, dirichlet))

    row, kl = page.rows["table4"]["Kmeans, raw"], list(METRICS).index("kl")
    own, random = (scores("table4", "raw", "strategies", name, "kl") for name in ("Kmeans", "Random"))
    assert row[kl] == cell(own, 4, random, higher=False)
    assert page.rows["table4"]["Kmeans, printed"][kl] == ".1361±.0072"

    row, canberra = page.rows["table6"]["DF-LDL, Weighted, raw"], list(METRICS).index("canb")
    weighted, average = (
        scores("table6", "raw", "learners", "DF-LDL", kind, "canb") for kind in ("Weighted", "Average")
    )
    assert row[canberra] == cell(weighted, 4, average, higher=False)
    assert row[canberra].startswith("▲")
    for study in ("table4", "table5", "table6", "table7"):
        own = scores(study, "baseline", "constant", "kl")
        assert page.rows[study]["featureless"][kl] == cell(own, 4)


def test_every_printed_cell_is_on_the_page(page):
    for study, table in TABLES.items():
        digits = 3 if study in ("table2", "table3") else 4
        shown = {one for row in page.rows[study].values() for one in row}
        for key, (mean, std) in table.cells.items():
            if digits == 4 or key[2] in "012":  # the made-up run has three labels
                words = (f"{mean:.{digits}f}", f"{std:.{digits}f}")
                assert "±".join(word.replace("0.", ".", word.startswith("0.")) for word in words) in shown


def test_the_text_holds_the_verdicts_and_the_time(whole: Path) -> None:
    results = load_results(whole)
    text = (whole / "reproduction.md").read_text(encoding="utf-8")
    for claim in [*claims_of_the_paper(results), claim_of_ours(results)]:
        assert claim.title in text
        for case in claim.cases:
            for verdict in case.verdicts.values():
                assert f"{verdict.mark} {verdict.evidence}" in text
    assert "|`python -m reproduction table3`|4: 8 s|4: 8 s|" in text
    assert "- 4 of 100 splits with default." in text
    assert (whole / "images" / "figure_a1.png").read_bytes().startswith(b"\x89PNG")


def test_one_recipe_one_repeat_and_missing_studies(tmp_path: Path) -> None:
    put_study(tmp_path, "table3", 0.1, recipes=("default",), repeats=1)
    put_study(tmp_path, "table7", 0.05, recipes=("raw",), repeats=2)
    page = Page(write_report(tmp_path).read_text(encoding="utf-8"))
    assert "Not run yet: `python -m reproduction table4` adds it." in page.text
    assert "- 1 of 100 splits with default." in page.text
    assert "- 0 of 100 splits with raw." in page.text
    assert re.fullmatch(r"[△▽]\.\d{3}", page.rows["table3"]["G=2, label <0>"][7])  # one repeat has no interval
    claims = claims_of_the_paper(load_results(tmp_path))
    assert find(claims, "feature-stratified", case=1, recipe="default").word == "not decided"
    assert find(claims, "feature-stratified", case=1, recipe="raw").word == "not run"
    assert find(claims, "plain average", case=1, recipe="raw").word == "holds"


def test_the_nearest_setting_is_the_one_with_the_smallest_distance(tmp_path: Path) -> None:
    near, far = "sgd-0.1-raw-linear", "adam-0.01-standard-normal"
    for recipe, gain in ((near, 0.0), (far, 0.2)):
        for study, table in TABLES.items():
            means = {key: mean + gain for key, (mean, _) in table.cells.items()}
            places = range(len(means) // 6)  # labels; only in tables 2 and 3
            if study in ("table2", "table3"):
                fsc = {g: [means["snefy", g, str(place)] for place in places] for g in ("2", "4", "8")}
                found = {"models": {"snefy": {"fsc": fsc}}}
            elif study in ("table4", "table5"):
                found = {"strategies": {name: {m: means[name, m] for m in METRICS} for name in ("Random", "SNEFY-LDL")}}
            else:
                weighted = {m: means["SA-BFGS", "Weighted", m] for m in METRICS}
                found = {"learners": {"SA-BFGS": {"Weighted": weighted}}}
            put(tmp_path, study, recipe, 1000, found)
    distances = grid_distances(load_results(tmp_path))
    assert list(distances)[:2] == [near, far]
    assert distances[near] == pytest.approx(dict.fromkeys(TABLES, 0.0), abs=1e-12)
    cells = [std for key, (_, std) in TABLES["table3"].cells.items() if key[0] == "snefy"]
    assert distances[far]["table3"] == pytest.approx(np.mean([0.2 / std for std in cells]))
    assert np.isinf(list(distances.values())[-1]["table2"])  # settings without results come last


def test_damaged_and_foreign_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a folder"):
        load_results(tmp_path / "nowhere")
    with pytest.raises(InputError, match="holds no results"):
        load_results(tmp_path)
    path = put(tmp_path, "table6", "raw", 0, {})
    good = path.read_text()
    for content, words in (
        (good[:20], "is damaged"),
        ("[]", "is not a result file"),
        (good.replace('"version": 1', '"version": 99'), "newer version"),
        (good.replace("table6", "table7"), "labelled as a result of table7/raw"),
    ):
        path.write_text(content)
        with pytest.raises(InputError, match=words) as caught:
            load_results(tmp_path)
        assert "000.json" in str(caught.value)


@pytest.mark.parametrize("claim", ["feature-stratified", "best of six", "picking at random", "plain average"])
@pytest.mark.parametrize(("gain", "word"), [(0.05, "holds"), (-0.05, "does not hold")])
def test_verdicts_follow_the_figures(tmp_path, claim, gain, word):
    for study in ("table2", "table4", "table6"):
        put_study(tmp_path, study, gain)
    assert find(claims_of_the_paper(load_results(tmp_path)), claim).word == word


@pytest.mark.parametrize(("drop", "stable", "drops"), [(0.0, "holds", "does not hold"), (0.2, "holds", "holds")])
def test_figure_claims_follow_the_drops_that_the_paper_names(tmp_path, drop, stable, drops):
    put_study(tmp_path, "figureA1", drop)
    claims = claims_of_the_paper(load_results(tmp_path))
    assert find(claims, "stable").word == stable  # the named settings are excepted
    assert find(claims, "drops at").word == drops


def test_the_default_is_compared_with_the_papers_model_on_the_same_splits(tmp_path: Path) -> None:
    put_study(tmp_path, "table6", 0.0, recipes=("raw",))
    put_study(tmp_path, "table6", 0.05, recipes=("default",))
    assert find([claim_of_ours(load_results(tmp_path))], "default is better than the paper", case=4).word == "holds"
    assert not dependent_claims(claims_of_the_paper(load_results(tmp_path)))[1:]
