"""The report of a reproduction: its figures against other routes to them, its verdicts, and runs that are not whole."""

from __future__ import annotations

import json
import re
import statistics
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from snefy_ldl.errors import InputError
from snefy_ldl.experiments.analysis import METRICS, Spread, load_results, paired, unpaired
from snefy_ldl.experiments.published import TABLES
from snefy_ldl.experiments.report.claims import Claim, claims_of_ours, claims_of_the_paper
from snefy_ldl.experiments.report.gaps import LEARNERS, LEVELS, STRATEGIES
from snefy_ldl.experiments.report.verdicts import Verdict

pytest.importorskip("jinja2")
pytest.importorskip("matplotlib")

RECIPES = ("paper", "default")
REPEATS = 4


# --- made-up results --------------------------------------------------------------------------------------------------


def put(folder: Path, study: str, recipe: str, repeat: int, figures: dict[str, Any], seconds: float = 2.0) -> Path:
    path = folder / "results" / study / recipe / f"{repeat:03d}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    head = {"version": 1, "study": study, "dataset": "", "recipe": recipe, "repeat": repeat, "fingerprint": "f"}
    path.write_text(json.dumps({**head, "seconds": seconds, "figures": figures}))
    return path


def put_conformal(
    folder: Path, study: str, gain: float, *, recipes: tuple[str, ...] = RECIPES, repeats: int = REPEATS
) -> None:
    """Coverage of the Dirichlet near 0.7, of SNEFY-LDL ``gain`` above it."""
    rng = np.random.default_rng(3)
    labels = [f"label <{place}>" for place in range(3)]
    for repeat in range(repeats):
        ceiling = {"2": 0.88, "4": 0.82, "8": 0.75}

        def block(level: float, bins: bool = False) -> dict[str, Any]:
            fsc = {name: (level + 0.02 * rng.standard_normal(3)).tolist() for name in LEVELS}
            rest = {name: (0.5 + 0.1 * rng.random(3)).tolist() for name in ("coverage", "width", "interval_score")}
            return {"fsc": fsc, **rest, **({"pit": rng.integers(1, 9, (3, 20)).tolist()} if bins else {})}

        put(
            folder,
            study,
            "baseline",
            repeat,
            {"models": {"dirichlet": block(0.7)}, "ceiling": ceiling, "labels": labels},
        )
        for recipe in recipes:
            models = {"models": {"snefy": block(0.7 + gain, bins=True)}, "methods": {"snefy_quantile": block(0.8)}}
            put(folder, study, recipe, repeat, {**models, "ceiling": ceiling, "labels": labels})


def put_active(folder: Path, study: str, lead: float, *, recipes: tuple[str, ...] = RECIPES) -> None:
    """Every strategy at the paper's Random but for the entropy queries, which are ``lead`` (relative) better."""
    rng = np.random.default_rng(4)
    for recipe in recipes:
        for repeat in range(REPEATS):
            common = 0.01 * rng.standard_normal()

            def scores(gain: float, common: float = common) -> dict[str, float]:
                found = {"log_likelihood": 3.0 + gain}
                for metric, measure in METRICS.items():
                    sign = 1.0 if measure.higher else -1.0
                    base = TABLES[study].cells["Random", metric][0]
                    found[metric] = base * (1.0 + sign * gain + common + 0.0005 * rng.standard_normal())
                return found

            strategies = {name: scores(0.0) for name in STRATEGIES} | {
                "SNEFY-LDL": scores(lead),
                "entropy": scores(lead),
            }
            put(folder, study, recipe, repeat, {"strategies": strategies, "start": scores(-0.05)})


def put_ensemble(
    folder: Path, study: str, gain: float, *, won: int = 24, recipes: tuple[str, ...] = RECIPES, repeats: int = REPEATS
) -> None:
    """Weighted better than the paper's Weighted in the first ``won`` cells, and better than Average by ``gain``."""
    rng = np.random.default_rng(5)
    for repeat in range(repeats):
        for recipe in recipes:
            learners: dict[str, Any] = {}
            for place, learner in enumerate(LEARNERS):
                learners[learner] = {"Average": {}, "Weighted": {}}
                for number, (metric, measure) in enumerate(METRICS.items()):
                    sign = 1.0 if measure.higher else -1.0
                    printed = TABLES[study].cells[learner, "Weighted", metric][0]
                    beats = 1.0 if 6 * place + number < won else -1.0
                    weighted = printed * (1.0 + sign * beats * 0.05 + 0.0001 * rng.standard_normal())
                    learners[learner]["Weighted"][metric] = weighted
                    average = weighted * (1.0 - sign * gain * (1.0 + 0.01 * rng.standard_normal()))
                    learners[learner]["Average"][metric] = average
            density = {metric: 0.5 for metric in METRICS} | {"log_likelihood": 4.0}
            members = dict.fromkeys(LEARNERS, 9.0)
            put(folder, study, recipe, repeat, {"learners": learners, "density": density, "effective_members": members})


def put_sensitivity(folder: Path, drop: float) -> None:
    """Flat but for the settings at which the paper saw a drop."""
    rng = np.random.default_rng(6)
    grid = {
        "n_neurons": (16, 64),
        "n_readouts": (16, 32, 48, 64, 96),
        "batch_size": (16, 32, 48, 64, 96),
        "epochs": (25, 100),
    }
    named = {("n_readouts", 48), ("n_readouts", 96), ("batch_size", 32), ("batch_size", 96)}
    for recipe in RECIPES:
        for repeat in range(REPEATS):
            panels = {
                name: {
                    str(value): {
                        "fsc": {
                            level: 0.8 - drop * ((name, value) in named) + 0.001 * rng.random() for level in ("2", "4")
                        },
                        "coverage": 0.9,
                        "width": 0.3,
                    }
                    for value in values
                }
                for name, values in grid.items()
            }
            put(folder, "figureA1", recipe, repeat, {"panels": panels, "ceiling": {"2": 0.88, "4": 0.82}})


def put_run(folder: Path, **changes: Any) -> None:
    run = {
        "version": 1,
        "machine": {"processor": "a made-up processor", "cores": 2},
        "jobs": 2,
        "repeats": dict.fromkeys([*TABLES, "figureA1"], REPEATS),
        "recipes": list(RECIPES),
        "wall_seconds": 3725.0,
        "started": "2025-01-01T00:00:00Z",
        "finished": "2025-01-01T01:02:05Z",
    }
    (folder / "run.json").write_text(json.dumps({**run, **changes}))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, reported."""
    from snefy_ldl.experiments.report.page import write_report

    folder = tmp_path_factory.mktemp("run")
    for study in ("table2", "table3"):
        put_conformal(folder, study, 0.1)
    for study in ("table4", "table5"):
        put_active(folder, study, 0.05)
    put_ensemble(folder, "table6", 0.02)
    put_ensemble(folder, "table7", 0.02, won=20)
    put_sensitivity(folder, 0.0)
    put_run(folder)
    assert write_report(folder) == folder / "report.html"
    return folder


# --- reading the page -------------------------------------------------------------------------------------------------


class Page(HTMLParser):
    """Checks that tags are closed in order, and gathers the cells of the tables by section."""

    VOID = frozenset({"meta", "img", "br", "link"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []
        self.section = ""
        self.rows: dict[str, list[list[str]]] = {}
        self.text = ""
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.addresses += [value for name in ("src", "href") if (value := named.get(name)) is not None]
        if tag == "section":
            self.section = named.get("id") or ""
        if tag == "tr":
            self.rows.setdefault(self.section, []).append([])
        if tag in ("td", "th"):
            self.rows[self.section][-1].append("")
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text += data
        if "td" in self.open or "th" in self.open:
            self.rows[self.section][-1][-1] += data

    def find(self, section: str, head: str) -> list[list[str]]:
        """All rows of a section that begin with a word, without the word."""
        return [[" ".join(cell.split()) for cell in row[1:]] for row in self.rows[section] if row[0].strip() == head]


@pytest.fixture(scope="module")
def page(whole: Path) -> Page:
    return Page((whole / "report.html").read_text(encoding="utf-8"))


def figures(folder: Path, study: str, recipe: str) -> list[dict[str, Any]]:
    """The made-up figures, read without the library."""
    return [json.loads(path.read_text())["figures"] for path in sorted((folder / "results" / study / recipe).glob("*"))]


def mean_std(values: list[float], digits: int) -> str:
    return f"{statistics.fmean(values):.{digits}f} ± {statistics.stdev(values):.{digits}f}"


def difference(first: list[float], second: list[float], digits: int) -> str:
    """A difference and its interval as the page prints them, by scipy's paired test."""
    interval = stats.ttest_rel(first, second).confidence_interval(0.95)
    numbers = (statistics.fmean(first) - statistics.fmean(second), interval.low, interval.high)
    mean, low, high = (f"{number:+.{digits}f}".replace("-", "−") for number in numbers)
    return f"{mean} [{low}, {high}]"


# --- numbers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 10, 100])
def test_paired_interval_is_that_of_the_paired_t_test(n: int) -> None:
    rng = np.random.default_rng(n)
    first, second = rng.normal(0.3, 1.0, n), rng.normal(0.0, 1.0, n)
    gap = paired(dict(enumerate(first)), dict(enumerate(second)) | {n: 99.0})
    interval = stats.ttest_rel(first, second).confidence_interval(0.95)
    assert gap is not None
    assert (gap.n, gap.mean) == (n, pytest.approx(first.mean() - second.mean()))
    assert (gap.low, gap.high) == (pytest.approx(interval.low), pytest.approx(interval.high))
    assert gap.clear == (stats.ttest_rel(first, second).pvalue < 0.05)


def test_unpaired_interval_is_that_of_welchs_test() -> None:
    rng = np.random.default_rng(0)
    ours, theirs = rng.normal(0.3, 1.0, 12), rng.normal(0.0, 2.0, 7)
    gap = unpaired(Spread.of(dict(enumerate(ours))), (theirs.mean(), theirs.std(ddof=1)), 7)
    interval = stats.ttest_ind(ours, theirs, equal_var=False).confidence_interval(0.95)
    assert gap is not None
    assert (gap.low, gap.high) == (pytest.approx(interval.low), pytest.approx(interval.high))


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
    assert (gap.low, gap.high, gap.clear) == (None, None, False)


def test_coverage_table_holds_independent_figures(whole: Path, page: Page) -> None:
    rows = page.find("table3", "2 label <1>")  # a block for each number of groups
    assert len(rows) == 3
    dirichlet = [one["models"]["dirichlet"]["fsc"]["4"][1] for one in figures(whole, "table3", "baseline")]
    default = [one["models"]["snefy"]["fsc"]["4"][1] for one in figures(whole, "table3", "default")]
    printed = [TABLES["table3"].cells[side, "4", "1"] for side in ("dirichlet", "snefy")]
    assert rows[1][:2] == [f"{mean:.3f} ± {std:.3f}" for mean, std in printed]
    assert rows[1][2] == mean_std(dirichlet, 3)
    assert rows[1][4] == mean_std(default, 3)
    assert rows[1][6].removeprefix("▲ ") == difference(default, dirichlet, 3)


def test_mean_over_labels_is_paired_repeat_by_repeat(whole: Path, page: Page) -> None:
    dirichlet = [
        statistics.fmean(one["models"]["dirichlet"]["fsc"]["8"]) for one in figures(whole, "table2", "baseline")
    ]
    paper = [statistics.fmean(one["models"]["snefy"]["fsc"]["8"]) for one in figures(whole, "table2", "paper")]
    last = page.find("table2", "mean over labels")[2]
    assert last[5].removeprefix("▲ ") == difference(paper, dirichlet, 3)
    text = (whole / "reproduction.md").read_text(encoding="utf-8")
    assert difference(paper, dirichlet, 3) in text


def test_active_table_holds_independent_figures(whole: Path, page: Page) -> None:
    def scores(recipe: str, name: str) -> list[float]:
        return [one["strategies"][name]["kl"] for one in figures(whole, "table4", recipe)]

    row = page.find("table4", "Kmeans")[1 + list(METRICS).index("kl")]  # the first is the count of measures won
    mean, std = TABLES["table4"].cells["Kmeans", "kl"]
    assert row[0] == f"{mean:.4f} ± {std:.4f}"
    assert row[2] == mean_std(scores("default", "Kmeans"), 4)
    assert row[4][2:] == difference(scores("default", "Kmeans"), scores("default", "Random"), 4)
    assert row[5][2:] == difference(scores("default", "Kmeans"), scores("paper", "Kmeans"), 4)


def test_ensemble_table_holds_independent_figures(whole: Path, page: Page) -> None:
    def scores(kind: str) -> list[float]:
        return [one["learners"]["DF-LDL"][kind]["canb"] for one in figures(whole, "table6", "paper")]

    row = page.find("table6", "Canb ↓")[1]
    assert mean_std(scores("Weighted"), 4) in row
    assert f"▲ {difference(scores('Weighted'), scores('Average'), 4)}" in row


def test_text_and_page_agree_on_the_verdicts(whole: Path, page: Page) -> None:
    results = load_results(whole)
    text = (whole / "reproduction.md").read_text(encoding="utf-8")
    shown = " ".join(page.text.split())
    for claim in [*claims_of_the_paper(results, TABLES), *claims_of_ours(results, TABLES)]:
        assert claim.title in text
        assert claim.title in shown
        for case in claim.cases:
            for verdict in case.verdicts.values():
                assert f"{verdict.mark} **{verdict.word}**: {verdict.evidence}" in text
                assert f"{verdict.mark} {verdict.word}{' '.join(verdict.evidence.split())}." in shown


def test_page_stands_alone_and_is_well_formed(whole: Path, page: Page) -> None:
    html = (whole / "report.html").read_text(encoding="utf-8")
    assert not re.search(r"https?://|<script|<link|@import|url\(", html)
    assert all(address.startswith(("data:image/svg+xml;base64,", "#")) for address in page.addresses)
    assert sum(address.startswith("data:") for address in page.addresses) == 9
    assert "label <1>" in page.text  # names are escaped, not taken for tags
    assert "1 h 2 min" in page.text
    assert "snefy-ldl reproduce table3 --recipe default" in page.text
    assert "The paper has 100 splits; here are 4 with the default recipe." in page.text


def test_same_results_give_the_same_bytes(tmp_path: Path) -> None:
    from snefy_ldl.experiments.report.page import write_report

    put_conformal(tmp_path, "table3", 0.1)
    first = write_report(tmp_path).read_bytes()
    assert write_report(tmp_path).read_bytes() == first


# --- verdicts ---------------------------------------------------------------------------------------------------------


def find(claims: list[Claim], words: str, case: int = 0, recipe: str = "default") -> Verdict:
    (claim,) = [claim for claim in claims if words in claim.title]
    return claim.cases[case].verdicts[recipe]


@pytest.mark.parametrize(("gain", "word", "count"), [(0.1, "holds", 9), (-0.1, "does not hold", 0)])
def test_coverage_claim_flips(tmp_path: Path, gain: float, word: str, count: int) -> None:
    put_conformal(tmp_path, "table3", gain)
    claims = claims_of_the_paper(load_results(tmp_path), TABLES)
    verdict = find(claims, "feature-stratified", case=1)
    assert verdict.word == word
    assert f"higher in {count} of 9 cells" in verdict.evidence
    assert find(claims, "feature-stratified", case=0).word == "not run"


@pytest.mark.parametrize(("lead", "word"), [(0.05, "holds"), (-0.05, "does not hold")])
def test_query_claims_flip(tmp_path: Path, lead: float, word: str) -> None:
    put_active(tmp_path, "table4", lead)
    claims = claims_of_the_paper(load_results(tmp_path), TABLES)
    assert find(claims, "best of six").word == word
    assert find(claims, "picking at random").word == word


def test_a_small_lead_is_in_part(tmp_path: Path) -> None:
    put_active(tmp_path, "table4", 0.0)
    for path in sorted((tmp_path / "results/table4/default").iterdir()):  # better on average, but far from clear
        record = json.loads(path.read_text())
        lead = (0.3, -0.1, 0.2, -0.05)[record["repeat"]]
        for metric, measure in METRICS.items():
            row, random = (record["figures"]["strategies"][name] for name in ("SNEFY-LDL", "Random"))
            row[metric] = random[metric] * (1.0 + (lead if measure.higher else -lead))
        path.write_text(json.dumps(record))
    verdict = find(claims_of_the_paper(load_results(tmp_path), TABLES), "picking at random")
    assert verdict == Verdict("in part", "better in 6 of 6 measures, 0 clear of zero")


def test_every_published_row_must_be_beaten(tmp_path: Path) -> None:
    put_active(tmp_path, "table4", 0.2)  # Random is not the best published row: a small lead is not enough
    put_active(tmp_path, "table5", 0.001)
    claims = claims_of_ours(load_results(tmp_path), TABLES)
    assert find(claims, "every published row", case=0).word == "holds"
    assert "6 of 6 measures (random queries: 0)" in find(claims, "every published row", case=0).evidence
    assert find(claims, "every published row", case=2).word == "does not hold"


@pytest.mark.parametrize(("gain", "word"), [(0.02, "holds"), (-0.02, "does not hold")])
def test_weighting_claim_flips(tmp_path: Path, gain: float, word: str) -> None:
    put_ensemble(tmp_path, "table6", gain)
    verdict = find(claims_of_the_paper(load_results(tmp_path), TABLES), "plain average")
    assert verdict.word == word
    assert ("better in 24 of 24 cells, 24 clear of zero" in verdict.evidence) == (gain > 0)


@pytest.mark.parametrize(("won", "word"), [(24, "holds"), (20, "in part"), (12, "does not hold")])
def test_cells_won_against_the_published_ones_are_counted(tmp_path: Path, won: int, word: str) -> None:
    put_ensemble(tmp_path, "table6", 0.02)
    put_ensemble(tmp_path, "table7", 0.02, won=won)
    claims = claims_of_ours(load_results(tmp_path), TABLES)
    assert find(claims, "published Weighted", case=1).word == word
    assert f"better in {won} of 24 cells" in find(claims, "published Weighted", case=1).evidence
    assert f"better in {24 + won} of 48 cells" in find(claims, "published Weighted", case=2).evidence


@pytest.mark.parametrize(("drop", "stable", "drops"), [(0.0, "holds", "does not hold"), (0.2, "holds", "holds")])
def test_figure_claims_follow_the_drops_that_the_paper_names(
    tmp_path: Path, drop: float, stable: str, drops: str
) -> None:
    put_sensitivity(tmp_path, drop)
    claims = claims_of_the_paper(load_results(tmp_path), TABLES)
    assert find(claims, "stable").word == stable  # the named settings are excepted
    assert find(claims, "drops at").word == drops


def test_an_unnamed_drop_breaks_stability(tmp_path: Path) -> None:
    put_sensitivity(tmp_path, 0.0)
    for path in (tmp_path / "results/figureA1/default").iterdir():
        record = json.loads(path.read_text())
        record["figures"]["panels"]["n_readouts"]["16"]["fsc"]["2"] -= 0.2
        path.write_text(json.dumps(record))
    claims = claims_of_the_paper(load_results(tmp_path), TABLES)
    assert find(claims, "stable").word == "in part"
    assert "n_readouts = 16 at G = 2: −0.200" in find(claims, "stable").evidence
    assert find(claims, "stable", recipe="paper").word == "holds"


def test_default_recipe_is_compared_with_the_papers_on_the_same_splits(tmp_path: Path) -> None:
    put_ensemble(tmp_path, "table6", 0.02)
    results = load_results(tmp_path)
    before = find(claims_of_ours(results, TABLES), "default recipe beats", case=4)
    for path in (tmp_path / "results/table6/default").iterdir():
        record = json.loads(path.read_text())
        for learner in LEARNERS:
            for metric, measure in METRICS.items():
                record["figures"]["learners"][learner]["Weighted"][metric] *= 1.1 if measure.higher else 0.9
        path.write_text(json.dumps(record))
    after = find(claims_of_ours(load_results(tmp_path), TABLES), "default recipe beats", case=4)
    assert (before.word != "holds", after.word) == (True, "holds")


# --- runs that are not whole ------------------------------------------------------------------------------------------


def test_one_recipe_one_repeat_and_missing_studies(tmp_path: Path) -> None:
    from snefy_ldl.experiments.report.page import write_report

    put_conformal(tmp_path, "table3", 0.1, recipes=("default",), repeats=1)
    put_ensemble(tmp_path, "table7", 0.02, recipes=("paper",), repeats=2)
    put_run(tmp_path, finished=None)
    page = Page(write_report(tmp_path).read_text(encoding="utf-8"))
    shown = " ".join(page.text.split())
    assert "This run is not complete" in shown
    assert "not complete" in (tmp_path / "reproduction.md").read_text(encoding="utf-8")
    assert "Not run yet: snefy-ldl reproduce table4 adds it." in shown
    assert "One repeat with the default recipe: no standard deviation and no interval." in shown
    assert "Only 2 of 4 repeats with the paper's recipe so far." in shown
    assert "No results with the paper's recipe yet." in shown
    row = page.find("table3", "1 label <0>")[0]
    assert len(row) == 5  # two published, Dirichlet, default, one difference
    assert "±" not in row[3]
    assert "[" not in row[4]
    both = find(claims_of_ours(load_results(tmp_path), TABLES), "published Weighted", case=2, recipe="paper")
    assert (both.word, "Of 48 cells the others have no results" in both.evidence) == ("not decided", True)
    claims = claims_of_the_paper(load_results(tmp_path), TABLES)
    assert find(claims, "feature-stratified", case=1).word == "not decided"
    assert find(claims, "feature-stratified", case=1, recipe="paper").word == "not run"
    assert find(claims, "plain average", case=1, recipe="paper").word == "holds"
    text = (tmp_path / "reproduction.md").read_text(encoding="utf-8")
    assert "- Table 4: Not run yet" in text


def test_a_run_as_large_as_the_papers_is_called_complete(tmp_path: Path) -> None:
    from snefy_ldl.experiments.report.sections import build_section

    for study, repeats, notes in (("table7", 10, 0), ("table6", 9, 2)):
        put_ensemble(tmp_path, study, 0.02, repeats=repeats)
        assert len(build_section(load_results(tmp_path), TABLES, study).notes) == notes


def test_baseline_alone_and_no_run_file(tmp_path: Path) -> None:
    from snefy_ldl.experiments.report.page import write_report

    put_conformal(tmp_path, "table2", 0.1, recipes=())
    page = Page(write_report(tmp_path).read_text(encoding="utf-8"))
    assert "No results with the default recipe yet." in page.text
    assert "not recorded" in page.text


def test_no_baseline_leaves_its_columns_out(tmp_path: Path) -> None:
    from snefy_ldl.experiments.report.page import write_report

    put_conformal(tmp_path, "table2", 0.1)
    for path in (tmp_path / "results/table2/baseline").iterdir():
        path.unlink()
    page = Page(write_report(tmp_path).read_text(encoding="utf-8"))
    assert len(page.find("table2", "1 label <0>")[0]) == 4  # two published, two recipes
    assert "No results with the Dirichlet baseline yet." in page.text


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
        (good.replace("table6", "table7"), "belongs to table7/paper"),
    ):
        path.write_text(content)
        with pytest.raises(InputError, match=words) as caught:
            load_results(tmp_path)
        assert "000.json" in str(caught.value)
