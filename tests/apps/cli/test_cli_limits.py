"""A laboratory's workbook with cells below limits of detection, from the file to the report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from commands import fail, run, succeed
from snefy_ldl import load
from snefy_ldl.apps.reports import JudgedRows
from snefy_ldl.apps.reports.model_report import cross_fit
from snefy_ldl.datasets.labelled import read_labelled
from snefy_ldl.datasets.shares import hide_below
from snefy_ldl.datasets.table_files import TableSource
from snefy_ldl.errors import InputError

QUICK = ["--set", "max_iter=10", "--set", "n_trees=10"]
LABELS = ["Fe", "Al", "Pb", "Cd"]
FIT = ["--labels", "Fe,Al,Pb,Cd", "--normalize", *QUICK]


@pytest.fixture
def workbook(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    X = random.normal(size=(80, 2))
    amounts = np.exp(X @ random.normal(size=(2, 4)) * 0.5 + 0.4 * random.normal(size=(80, 4))) * [60.0, 20.0, 3.0, 0.5]
    table: dict[str, Any] = {"depth": X[:, 0], "slope": X[:, 1], "Fe": amounts[:, 0], "Al": amounts[:, 1]}
    table["Pb"] = [f"< {1.5:.1f}" if value < 1.5 else f"{value:.2f}" for value in amounts[:, 2]]
    table["Cd"] = ["n.d." if value < 0.3 else f"{value:.3f}" for value in amounts[:, 3]]
    file = tmp_path / "lab.xlsx"
    pd.DataFrame(table).to_excel(file, index=False)
    return file


@pytest.mark.slow
def test_from_a_workbook_to_a_report(workbook: Path, tmp_path: Path) -> None:
    model, hidden = tmp_path / "model", pd.read_excel(workbook)
    counts = {name: int(hidden[name].astype(str).str.contains("<|n.d.", regex=True).sum()) for name in ("Pb", "Cd")}
    done = succeed("fit", workbook, *FIT, "--limit", "Cd=0.3", "--out", model)
    assert f"{counts['Pb']} of 80 cells of 'Pb' lie below a limit" in done.stderr
    assert "rows held back (completed shares)" in done.stdout
    assert load(model).training_["hidden"] == [0, 0, counts["Pb"], counts["Cd"]]
    words = f"Pb {counts['Pb']}, Cd {counts['Cd']}, of 80 each"
    assert words in " ".join(succeed("info", model).stdout.split())
    result = succeed("report", model, workbook, "--folds", 0, "--out", tmp_path / "report")
    assert "count as .65 of it" in result.stderr  # the model keeps the limits of its columns
    page = (tmp_path / "report" / "index.html").read_text()
    assert words in page
    assert f"{sum(counts.values())} cells below a limit" in page
    scores = json.loads(succeed("evaluate", model, workbook, "--json").stdout)["log_likelihood"]
    assert scores["of"] == "shares below limits"
    fitted, rows = load(model), read_labelled(TableSource(workbook), LABELS, normalize=True, limits={"Cd": 0.3})
    D, dist = rows.labels, fitted.predict_dist(hidden[["depth", "slope"]])
    given = dist.condition_bounds(D / D.sum(1, keepdims=True), below=rows.below).log_prob_known.numpy()
    assert scores["value"] == pytest.approx(given.mean(), abs=1e-3)
    exact = np.isnan(rows.below).all(1)  # without limits it is the density
    np.testing.assert_allclose(given[exact], fitted.log_prob(hidden[["depth", "slope"]], D)[exact], atol=1e-8)
    assert abs(scores["value"] - fitted.log_prob(hidden[["depth", "slope"]], D).mean()) > 0.1
    assert f"{scores['value']:.2f}" in page
    judged = JudgedRows(hidden[["depth", "slope"]], D, LABELS, below=rows.below)
    for one, _ in cross_fit(fitted, judged, folds=2):  # fits of the folds keep the limits
        assert 0 < one.training_["hidden"][2] < counts["Pb"]


def test_what_is_missing_is_named(workbook: Path, tmp_path: Path) -> None:
    out = tmp_path / "model"
    assert "'n.d.' lies below a limit. Name it with --limit Cd=NUMBER" in fail("fit", workbook, *FIT, "--out", out)
    squared = ["--limit", "Cd=0.3", "--density", "snefy"]
    assert "need log-ratios" in fail("fit", workbook, *FIT[:3], *squared, "--out", out)
    assert run("fit", workbook, *FIT, "--limit", "Zn=1", "--out", out).exit_code == 2


def test_cells_become_limits_in_the_unit_of_the_row(tmp_path: Path) -> None:
    file = tmp_path / "soil.csv"
    file.write_text("x,sand,silt,clay\n1,50,48,<4\n2,60,38,2\n3,70,30,0\n4,70,28.7,bdl\n")
    rows = read_labelled(TableSource(file), ["sand", "silt", "clay"], ["x"], normalize=True, limits={"clay": "min"})
    assert rows.below is not None
    totals = [50 + 48 + 0.65 * 4, 100.0, 100 + 0.65 * 2, 98.7 + 0.65 * 2]
    np.testing.assert_allclose(rows.below[:, 2] * totals, [4.0, np.nan, 2.0, 2.0])
    np.testing.assert_allclose(rows.labels[:, 2] * totals, [2.6, 2.0, 1.3, 1.3])
    taken = rows.take([2, 0])
    np.testing.assert_array_equal(taken.below, rows.below[[2, 0]])
    assert read_labelled(TableSource(file), ["sand", "silt"], ["x"], normalize=True).below is None


@pytest.mark.parametrize("text", ["nd", "N.D.", "n/d", "BDL", "b.d.l.", "<LOD", "< LOQ", "<dl", "≤ LOD", "mdl"])
def test_words_for_not_detected(text: str) -> None:
    table = pd.DataFrame({"Cd": [text, 0.5], "Zn": [1.0, 2.0]})
    below = hide_below(table, ["Cd", "Zn"], {"Cd": 0.1})[1]
    np.testing.assert_array_equal(below, [[0.1, np.nan], [np.nan, np.nan]])
    with pytest.raises(InputError, match="data row 1, column 'Cd'"):
        hide_below(table, ["Cd", "Zn"], {})


def test_decimal_commas_and_small_numbers() -> None:
    table = pd.DataFrame({"Cd": ["<0,5", "1,25", "0,3"], "Zn": [1.0, 2.0, 0.0]})
    shown, below, notes = hide_below(table, ["Cd", "Zn"], {"Cd": 0.4})
    np.testing.assert_allclose(below[:, 0], [0.5, np.nan, 0.4])
    assert shown["Cd"].tolist() == [0.325, "1,25", pytest.approx(0.26)]
    assert notes == ("2 of 3 cells of 'Cd' lie below a limit",)
    assert hide_below(table[["Zn"]], ["Zn"], {})[1] is None
