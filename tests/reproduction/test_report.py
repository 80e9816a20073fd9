"""The report of a reproduction: its figures against other routes to them."""

from __future__ import annotations

from functools import reduce
from operator import getitem
from pathlib import Path

import numpy as np
import pytest
from made_up_results import (
    Page,
    difference,
    figures,
    find,
    mean_std,
    put,
    put_active,
    put_conformal,
    put_ensemble,
    put_run,
    put_sensitivity,
)
from scipy import stats

from reproduction.claims import (
    METRICS,
    TABLES,
    Spread,
    claim_of_ours,
    claims_of_the_paper,
    load_results,
    paired,
    unpaired,
)
from snefy_ldl.errors import InputError

pytest.importorskip("jinja2")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, reported."""
    from reproduction.report import write_report

    folder = tmp_path_factory.mktemp("run")
    for study in ("table2", "table3"):
        put_conformal(folder, study, 0.1)
    for study in ("table4", "table5"):
        put_active(folder, study, 0.05)
    for study in ("table6", "table7"):
        put_ensemble(folder, study, 0.02)
    put_sensitivity(folder, 0.0)
    put_run(folder)
    assert write_report(folder) == folder / "reproduction.md"
    return folder


@pytest.fixture(scope="module")
def page(whole: Path) -> Page:
    return Page((whole / "tables.md").read_text(encoding="utf-8"))


@pytest.mark.parametrize("n", [2, 10, 100])
def test_intervals_are_those_of_scipys_tests(n):
    rng = np.random.default_rng(n)
    first, second = rng.normal(0.3, 1.0, n), rng.normal(0.0, 2.0, n)
    published = (second.mean(), second.std(ddof=1))
    for gap, test in (
        (paired(dict(enumerate(first)), dict(enumerate(second)) | {n: 99.0}), stats.ttest_rel(first, second)),
        (unpaired(Spread.of(dict(enumerate(first))), published, n), stats.ttest_ind(first, second, equal_var=False)),
    ):
        interval = test.confidence_interval(0.95)
        assert gap.mean == pytest.approx(first.mean() - second.mean())
        assert (gap.mean - gap.half, gap.mean + gap.half) == pytest.approx((interval.low, interval.high))
        assert gap.clear == (test.pvalue < 0.05)


def test_marks_follow_the_direction_of_the_measure():
    low, high = {0: 1.0, 1: 1.1, 2: 1.05}, {0: 2.0, 1: 2.2, 2: 2.1}
    assert [paired(low, high, higher=way).mark for way in (False, True)] == ["▲", "▼"]
    assert paired({0: 1.0}, {0: 2.0}).mark == "▽"
    assert paired(low, low).mark == "="
    assert paired({0: 1.0}, {1: 1.0}) is None
    assert Spread.of({3: 0.5}) == Spread(0.5, None, 1)


def test_tables_hold_independent_figures(whole, page):
    def scores(study, recipe, *path):
        return [reduce(getitem, path, one) for one in figures(whole, study, recipe)]

    row = page.find("table3", "2 label <1>")[1]  # a block for each number of groups
    cell = ("fsc", "4", 1)
    dirichlet = scores("table3", "baseline", "models", "dirichlet", *cell)
    default = scores("table3", "default", "models", "snefy", *cell)
    assert row[0] == "{:.3f} ± {:.3f}".format(*TABLES["table3"].cells["dirichlet", "4", "1"])
    assert (row[2], row[5]) == (mean_std(dirichlet, 3), mean_std(default, 3))
    assert row[8].removeprefix("▲ ") == difference(default, dirichlet, 3)

    row = page.find("table4", "Kmeans")[1 + list(METRICS).index("kl")]  # the first is the count of measures won
    own, random = (scores("table4", "default", "strategies", name, "kl") for name in ("Kmeans", "Random"))
    assert row[3] == mean_std(own, 4)
    assert row[6][2:] == difference(own, random, 4)

    row = page.find("table6", "Canb ↓")[1]
    weighted, average = (
        scores("table6", "paper", "learners", "DF-LDL", kind, "canb") for kind in ("Weighted", "Average")
    )
    assert mean_std(weighted, 4) in row
    assert f"▲ {difference(weighted, average, 4)}" in row


def test_the_text_holds_the_verdicts_and_the_time(whole: Path) -> None:
    results = load_results(whole)
    text = (whole / "reproduction.md").read_text(encoding="utf-8")
    for claim in [*claims_of_the_paper(results), claim_of_ours(results)]:
        assert claim.title in text
        for case in claim.cases:
            for verdict in case.verdicts.values():
                assert f"{verdict.mark} **{verdict.word}**: {verdict.evidence}" in text
    assert "1 h 2 min" in text
    assert "python -m reproduction table3 --recipe default" in text
    assert "The paper has 100 splits; here are 4 with the default recipe." in text


def test_one_recipe_one_repeat_and_missing_studies(tmp_path: Path) -> None:
    from reproduction.report import write_report

    put_conformal(tmp_path, "table3", 0.1, recipes=("default",), repeats=1)
    put_ensemble(tmp_path, "table7", 0.02, recipes=("paper",), repeats=2)
    put_run(tmp_path, finished=None)
    shown = write_report(tmp_path).read_text(encoding="utf-8")
    page = Page((tmp_path / "tables.md").read_text(encoding="utf-8"))
    assert "This run is not complete" in shown
    assert "Not run yet: `python -m reproduction table4` adds it." in page.text
    assert "One repeat with the default recipe: no standard deviation and no interval." in shown
    assert "Only 2 of 4 repeats with the paper's recipe so far." in shown
    assert "No results with the paper's recipe yet." in shown
    row = page.find("table3", "1 label <0>")[0]
    assert len(row) == 5  # two published, Dirichlet, default, one difference
    assert "±" not in row[3]
    assert "[" not in row[4]
    claims = claims_of_the_paper(load_results(tmp_path))
    assert find(claims, "feature-stratified", case=1).word == "not decided"
    assert find(claims, "feature-stratified", case=1, recipe="paper").word == "not run"
    assert find(claims, "plain average", case=1, recipe="paper").word == "holds"
    text = (tmp_path / "reproduction.md").read_text(encoding="utf-8")
    assert "- Table 4: Not run yet" in text


def test_damaged_and_foreign_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a folder"):
        load_results(tmp_path / "nowhere")
    with pytest.raises(InputError, match="holds no results"):
        load_results(tmp_path)
    path = put(tmp_path, "table6", "paper", 0, {})
    good = path.read_text()
    for content, words in (
        (good[:20], "is damaged"),
        ("[]", "is not a result file"),
        (good.replace('"version": 1', '"version": 99'), "newer version"),
        (good.replace("table6", "table7"), "labelled as a result of table7/paper"),
    ):
        path.write_text(content)
        with pytest.raises(InputError, match=words) as caught:
            load_results(tmp_path)
        assert "000.json" in str(caught.value)
