"""The report of a reproduction: its figures against other routes to them."""

from __future__ import annotations

import statistics
from pathlib import Path

import numpy as np
import pytest
from made_up_results import (
    Page,
    difference,
    figures,
    mean_std,
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
    put_ensemble(folder, "table6", 0.02)
    put_ensemble(folder, "table7", 0.02, won=20)
    put_sensitivity(folder, 0.0)
    put_run(folder)
    assert write_report(folder) == folder / "reproduction.md"
    return folder


@pytest.fixture(scope="module")
def page(whole: Path) -> Page:
    return Page((whole / "tables.md").read_text(encoding="utf-8"))


@pytest.mark.parametrize("n", [2, 10, 100])
def test_paired_interval_is_that_of_the_paired_t_test(n: int) -> None:
    rng = np.random.default_rng(n)
    first, second = rng.normal(0.3, 1.0, n), rng.normal(0.0, 1.0, n)
    gap = paired(dict(enumerate(first)), dict(enumerate(second)) | {n: 99.0})
    interval = stats.ttest_rel(first, second).confidence_interval(0.95)
    assert gap is not None
    assert (gap.n, gap.mean) == (n, pytest.approx(first.mean() - second.mean()))
    assert (gap.mean - gap.half, gap.mean + gap.half) == (pytest.approx(interval.low), pytest.approx(interval.high))
    assert gap.clear == (stats.ttest_rel(first, second).pvalue < 0.05)


def test_unpaired_interval_is_that_of_welchs_test() -> None:
    rng = np.random.default_rng(0)
    ours, theirs = rng.normal(0.3, 1.0, 12), rng.normal(0.0, 2.0, 7)
    gap = unpaired(Spread.of(dict(enumerate(ours))), (theirs.mean(), theirs.std(ddof=1)), 7)
    interval = stats.ttest_ind(ours, theirs, equal_var=False).confidence_interval(0.95)
    assert gap is not None
    assert (gap.mean - gap.half, gap.mean + gap.half) == (pytest.approx(interval.low), pytest.approx(interval.high))


def test_marks_follow_the_direction_of_the_measure() -> None:
    low, high = {0: 1.0, 1: 1.1, 2: 1.05}, {0: 2.0, 1: 2.2, 2: 2.1}
    assert [paired(low, high, higher=way).mark for way in (False, True)] == ["▲", "▼"]  # type: ignore[union-attr]
    assert paired({0: 1.0}, {0: 2.0}).mark == "▽"  # type: ignore[union-attr]
    assert paired(low, low).mark == "="  # type: ignore[union-attr]
    assert paired({0: 1.0}, {1: 1.0}) is None


def test_one_repeat_has_no_deviation_and_no_interval() -> None:
    assert Spread.of({3: 0.5}) == Spread(0.5, None, 1)
    gap = paired({3: 0.5}, {3: 0.25})
    assert gap is not None
    assert (gap.half, gap.clear) == (None, False)


@pytest.mark.slow
def test_coverage_table_holds_independent_figures(whole: Path, page: Page) -> None:
    rows = page.find("table3", "2 label <1>")  # a block for each number of groups
    assert len(rows) == 3
    dirichlet = [one["models"]["dirichlet"]["fsc"]["4"][1] for one in figures(whole, "table3", "baseline")]
    default = [one["models"]["snefy"]["fsc"]["4"][1] for one in figures(whole, "table3", "default")]
    printed = [TABLES["table3"].cells[side, "4", "1"] for side in ("dirichlet", "snefy")]
    assert rows[1][:2] == [f"{mean:.3f} ± {std:.3f}" for mean, std in printed]
    assert rows[1][2] == mean_std(dirichlet, 3)
    assert rows[1][5] == mean_std(default, 3)
    assert rows[1][8].removeprefix("▲ ") == difference(default, dirichlet, 3)


@pytest.mark.slow
def test_mean_over_labels_is_paired_repeat_by_repeat(whole: Path, page: Page) -> None:
    dirichlet = [
        statistics.fmean(one["models"]["dirichlet"]["fsc"]["8"]) for one in figures(whole, "table2", "baseline")
    ]
    paper = [statistics.fmean(one["models"]["snefy"]["fsc"]["8"]) for one in figures(whole, "table2", "paper")]
    last = page.find("table2", "mean over labels")[2]
    assert last[6].removeprefix("▲ ") == difference(paper, dirichlet, 3)
    text = (whole / "reproduction.md").read_text(encoding="utf-8")
    assert difference(paper, dirichlet, 3) in text


def test_active_table_holds_independent_figures(whole: Path, page: Page) -> None:
    def scores(recipe: str, name: str) -> list[float]:
        return [one["strategies"][name]["kl"] for one in figures(whole, "table4", recipe)]

    row = page.find("table4", "Kmeans")[1 + list(METRICS).index("kl")]  # the first is the count of measures won
    mean, std = TABLES["table4"].cells["Kmeans", "kl"]
    assert row[0] == f"{mean:.4f} ± {std:.4f}"
    assert row[3] == mean_std(scores("default", "Kmeans"), 4)
    assert row[6][2:] == difference(scores("default", "Kmeans"), scores("default", "Random"), 4)
    assert row[7][2:] == difference(scores("default", "Kmeans"), scores("paper", "Kmeans"), 4)


def test_ensemble_table_holds_independent_figures(whole: Path, page: Page) -> None:
    def scores(kind: str) -> list[float]:
        return [one["learners"]["DF-LDL"][kind]["canb"] for one in figures(whole, "table6", "paper")]

    row = page.find("table6", "Canb ↓")[1]
    assert mean_std(scores("Weighted"), 4) in row
    assert f"▲ {difference(scores('Weighted'), scores('Average'), 4)}" in row


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


def test_same_results_give_the_same_bytes(tmp_path: Path) -> None:
    from reproduction.report import write_report

    put_conformal(tmp_path, "table3", 0.1)
    first = write_report(tmp_path).read_bytes()
    assert write_report(tmp_path).read_bytes() == first
