"""The report of runs that are not whole."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_up_results import (
    Page,
    find,
    put,
    put_conformal,
    put_ensemble,
    put_run,
)

from reproduction.claims import claims_of_the_paper, load_results
from snefy_ldl.errors import InputError

pytest.importorskip("jinja2")


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


def test_a_run_as_large_as_the_papers_is_called_complete(tmp_path: Path) -> None:
    from reproduction.report import build_section

    for study, repeats, notes in (("table7", 10, 0), ("table6", 9, 3)):
        put_ensemble(tmp_path, study, 0.02, repeats=repeats)
        assert len(build_section(load_results(tmp_path), study)["notes"]) == notes


def test_baseline_alone_and_no_run_file(tmp_path: Path) -> None:
    from reproduction.report import write_report

    put_conformal(tmp_path, "table2", 0.1, recipes=())
    text = write_report(tmp_path).read_text(encoding="utf-8")
    assert "No results with the default recipe yet." in text
    assert "not recorded" in text


def test_no_baseline_leaves_its_columns_out(tmp_path: Path) -> None:
    from reproduction.report import write_report

    put_conformal(tmp_path, "table2", 0.1)
    for path in (tmp_path / "results/table2/baseline").iterdir():
        path.unlink()
    write_report(tmp_path)
    page = Page((tmp_path / "tables.md").read_text(encoding="utf-8"))
    assert len(page.find("table2", "1 label <0>")[0]) == 5  # two published, three recipes
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
        (good.replace("table6", "table7"), "labelled as a result of table7/paper"),
    ):
        path.write_text(content)
        with pytest.raises(InputError, match=words) as caught:
            load_results(tmp_path)
        assert "000.json" in str(caught.value)
