"""The report's verdicts follow the figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from made_up_results import find, put_active, put_conformal, put_ensemble, put_sensitivity

from reproduction.claims import LEARNERS, METRICS, claim_of_ours, claims_of_the_paper, load_results

pytest.importorskip("jinja2")
pytest.importorskip("matplotlib")


@pytest.mark.parametrize(
    ("put", "study", "claim", "case"),
    [
        (put_conformal, "table3", "feature-stratified", 1),
        (put_active, "table4", "best of six", 0),
        (put_active, "table4", "picking at random", 0),
        (put_ensemble, "table6", "plain average", 0),
    ],
)
@pytest.mark.parametrize(("gain", "word"), [(0.05, "holds"), (-0.05, "does not hold")])
def test_verdicts_follow_the_figures(tmp_path, put, study, claim, case, gain, word):
    put(tmp_path, study, gain)
    assert find(claims_of_the_paper(load_results(tmp_path)), claim, case=case).word == word


@pytest.mark.parametrize(("drop", "stable", "drops"), [(0.0, "holds", "does not hold"), (0.2, "holds", "holds")])
def test_figure_claims_follow_the_drops_that_the_paper_names(tmp_path, drop, stable, drops):
    put_sensitivity(tmp_path, drop)
    claims = claims_of_the_paper(load_results(tmp_path))
    assert find(claims, "stable").word == stable  # the named settings are excepted
    assert find(claims, "drops at").word == drops


def test_default_is_compared_with_the_papers_model_on_the_same_splits(tmp_path: Path) -> None:
    put_ensemble(tmp_path, "table6", 0.02)
    title = "default is better than the paper"
    before = find([claim_of_ours(load_results(tmp_path))], title, case=4, recipe="raw")
    for path in (tmp_path / "results/table6/default").iterdir():
        record = json.loads(path.read_text())
        for learner in LEARNERS:
            for metric, measure in METRICS.items():
                record["figures"]["learners"][learner]["Weighted"][metric] *= 1.1 if measure.higher else 0.9
        path.write_text(json.dumps(record))
    after = find([claim_of_ours(load_results(tmp_path))], title, case=4, recipe="raw")
    assert (before.word != "holds", after.word) == (True, "holds")
