"""The report's verdicts follow the figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from made_up_results import (
    find,
    put_active,
    put_conformal,
    put_ensemble,
    put_sensitivity,
)

from reproduction.claims import LEARNERS, METRICS, Verdict, claim_of_ours, claims_of_the_paper, load_results

pytest.importorskip("jinja2")
pytest.importorskip("matplotlib")


@pytest.mark.parametrize(("gain", "word", "count"), [(0.1, "holds", 9), (-0.1, "does not hold", 0)])
def test_coverage_claim_flips(tmp_path: Path, gain: float, word: str, count: int) -> None:
    put_conformal(tmp_path, "table3", gain)
    claims = claims_of_the_paper(load_results(tmp_path))
    verdict = find(claims, "feature-stratified", case=1)
    assert verdict.word == word
    assert f"higher in {count} of 9 cells" in verdict.evidence
    assert find(claims, "feature-stratified", case=0).word == "not run"


@pytest.mark.parametrize(("lead", "word"), [(0.05, "holds"), (-0.05, "does not hold")])
def test_query_claims_flip(tmp_path: Path, lead: float, word: str) -> None:
    put_active(tmp_path, "table4", lead)
    claims = claims_of_the_paper(load_results(tmp_path))
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
    verdict = find(claims_of_the_paper(load_results(tmp_path)), "picking at random")
    assert verdict == Verdict("in part", "better in 6 of 6 measures, 0 clear of zero")


@pytest.mark.parametrize(("gain", "word"), [(0.02, "holds"), (-0.02, "does not hold")])
def test_weighting_claim_flips(tmp_path: Path, gain: float, word: str) -> None:
    put_ensemble(tmp_path, "table6", gain)
    verdict = find(claims_of_the_paper(load_results(tmp_path)), "plain average")
    assert verdict.word == word
    assert ("better in 24 of 24 cells, 24 clear of zero" in verdict.evidence) == (gain > 0)


@pytest.mark.parametrize(("drop", "stable", "drops"), [(0.0, "holds", "does not hold"), (0.2, "holds", "holds")])
def test_figure_claims_follow_the_drops_that_the_paper_names(
    tmp_path: Path, drop: float, stable: str, drops: str
) -> None:
    put_sensitivity(tmp_path, drop)
    claims = claims_of_the_paper(load_results(tmp_path))
    assert find(claims, "stable").word == stable  # the named settings are excepted
    assert find(claims, "drops at").word == drops


def test_an_unnamed_drop_breaks_stability(tmp_path: Path) -> None:
    put_sensitivity(tmp_path, 0.0)
    for path in (tmp_path / "results/figureA1/default").iterdir():
        record = json.loads(path.read_text())
        record["figures"]["panels"]["n_readouts"]["16"]["fsc"]["2"] -= 0.2
        path.write_text(json.dumps(record))
    claims = claims_of_the_paper(load_results(tmp_path))
    assert find(claims, "stable").word == "in part"
    assert "n_readouts = 16 at G = 2: −0.200" in find(claims, "stable").evidence
    assert find(claims, "stable", recipe="paper").word == "holds"


def test_default_recipe_is_compared_with_the_papers_on_the_same_splits(tmp_path: Path) -> None:
    put_ensemble(tmp_path, "table6", 0.02)
    results = load_results(tmp_path)
    before = find([claim_of_ours(results)], "default recipe beats the paper", case=4)
    for path in (tmp_path / "results/table6/default").iterdir():
        record = json.loads(path.read_text())
        for learner in LEARNERS:
            for metric, measure in METRICS.items():
                record["figures"]["learners"][learner]["Weighted"][metric] *= 1.1 if measure.higher else 0.9
        path.write_text(json.dumps(record))
    after = find([claim_of_ours(load_results(tmp_path))], "default recipe beats the paper", case=4)
    assert (before.word != "holds", after.word) == (True, "holds")
