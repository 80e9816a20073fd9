"""What the commands read and write: units, sheets, names of rows, kinds of columns, rows outside the training range."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from commands import fail, run, succeed
from snefy_ldl import load

LABELS = ["Sand (%)", "Silt (%)", "Clay (%)"]
WORDS = ["--labels", ",".join(LABELS), "--density", "snefy", "--set", "epochs=2", "--set", "guides=null"]


def table(n: int = 100) -> pd.DataFrame:
    """Soil in percent, with names of samples, a code for missing depths, and prices with thousands separators."""
    rng = np.random.default_rng(0)
    ph, rain, depth = rng.normal(6, 1, n).round(2), rng.uniform(300, 900, n).round(), rng.uniform(5, 90, n).round()
    parts = rng.gamma(4 * np.exp(np.column_stack([ph - 6, rain / 300 - 2, 0 * ph])))
    sand, silt, _ = (100 * parts / parts.sum(1, keepdims=True)).round(1).T
    depth[:6] = -9999
    return pd.DataFrame(
        {
            "Sample ID": rng.permutation(np.arange(7000, 7000 + n)),
            **{"ph": ph, "rain": rain, "depth": depth, "horizon": rng.integers(1, 4, n)},
            "price": [f"{price:,.1f}" for price in rng.uniform(10, 9000, n)],
            **dict(zip(LABELS, (sand, silt, (100 - sand - silt).round(1)))),
        }
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    here = tmp_path_factory.mktemp("soil")
    whole = table(130)
    whole[:100].to_csv(here / "soil.csv", index=False)
    whole[100:].to_csv(here / "new.csv", index=False)
    pool = whole[100:].drop(columns=LABELS).reset_index(drop=True)
    pool.loc[3, ["ph", "rain"]] = [60.0, 9000.0]
    pool.loc[:4, "horizon"] = 7
    pool.to_csv(here / "pool.csv", index=False)
    said = succeed("fit", here / "soil.csv", "--out", here / "model", *WORDS, "--category", "horizon").stderr
    (here / "said.txt").write_text(" ".join(said.split()))
    return here


def written(*words: object) -> pd.DataFrame:
    return pd.read_csv(io.StringIO(succeed(*words).stdout))


def test_fit_notes_codes_of_missing_numbers_and_reads_separators(folder):
    said = (folder / "said.txt").read_text()
    assert "'depth': -9999 stands in 6 rows, far from all others" in said
    assert said.count("missing numbers") == 1
    columns = {column.name: column.kind for column in load(folder / "model").columns_.columns}
    kinds = {"ph": "number", "rain": "number", "depth": "number", "horizon": "category", "price": "number"}
    assert columns == {"Sample ID": "left out", **kinds}
    succeed("fit", folder / "soil.csv", "--out", folder / "numbers", *WORDS, "--number", "Sample ID")
    assert load(folder / "numbers").columns_.columns[0].kind == "number"
    assert "names 'soil'" in fail("fit", folder / "soil.csv", "--out", folder / "m", *WORDS, "--category", "soil")


def test_predictions_keep_the_unit_of_the_table(folder):
    percent = written("predict", folder / "model", folder / "pool.csv", "--interval", "0.8")
    assert list(percent)[:4] == [*LABELS, "Sand (%)_low"]
    np.testing.assert_allclose(percent[LABELS].sum(axis=1), 100, rtol=1e-6)
    shares = written("predict", folder / "model", folder / "pool.csv", "--unit", "share", "--interval", "0.8")
    assert list(shares)[:4] == ["Sand", "Silt", "Clay", "Sand_low"]
    np.testing.assert_allclose(100 * shares, percent, rtol=1e-4)
    assert run("predict", folder / "model", folder / "pool.csv", "--unit", "ppm").exit_code == 2


def test_rows_outside_the_training_range_are_named(folder):
    result = succeed("predict", folder / "model", folder / "pool.csv")
    said = " ".join(result.stderr.split())
    assert "column 'horizon': values that the model has not seen in 5 cells (7, for example)" in said
    assert (
        "1 of 30 rows is outside the range of the training rows (beyond it: ph, rain), the first is data row 4" in said
    )


def test_questions_are_answered_as_the_distribution_does(folder):
    sand, clay = LABELS[0], LABELS[2]
    questions = [f"P({sand} > 2 * {clay})", f"P({sand} = 0)", f"log({sand}/{clay})", "quantiles(0.1,0.9)", "draws(2)"]
    asked = [word for question in questions for word in ("--ask", question)]
    found = written("predict", folder / "model", folder / "new.csv", *asked)
    dist = load(folder / "model").predict_dist(pd.read_csv(folder / "new.csv").drop(columns=LABELS))
    ratio, ends = dist.log_ratio(sand, clay), dist.quantiles([0.1, 0.9])
    expected = [dist.prob_greater(sand, clay, 2.0), dist.prob_zero()[:, 0], ratio.mean, ratio.variance.sqrt()]
    np.testing.assert_allclose(
        found[[*questions[:3], f"sd {questions[2]}"]], np.column_stack(expected), rtol=1e-4, atol=1e-7
    )
    np.testing.assert_allclose(
        found[[f"{sand}_q0.1", f"{sand}_q0.9"]], 100 * ends.reshape(len(dist), 3, 2)[:, 0].numpy(), rtol=1e-4
    )
    for k in (1, 2):
        np.testing.assert_allclose(found[[f"{label}_draw{k}" for label in LABELS]].sum(axis=1), 100, rtol=1e-5)


@pytest.mark.slow
def test_names_of_rows_that_fit_found_are_kept(folder):
    chosen = written("query", folder / "model", folder / "pool.csv", "--n", "5", "--strategy", "random")
    known = pd.read_csv(folder / "soil.csv").astype({label: str for label in LABELS})
    known[LABELS] += "%"
    known.to_csv(folder / "known.csv", index=False)
    words = ["--n", "5", "--strategy", "random", "--labeled", folder / "known.csv", "--out", folder / "asked.csv"]
    assert "cannot be estimated" not in succeed("query", folder / "model", folder / "pool.csv", *words).stderr
    assert chosen.columns[0] == "Sample ID"
    assert set(chosen["Sample ID"]) <= set(pd.read_csv(folder / "pool.csv")["Sample ID"])
    np.testing.assert_allclose(chosen.filter(like="predicted_").sum(axis=1), 100, rtol=1e-6)
    succeed("report", folder / "model", folder / "new.csv", "--out", folder / "page")
    page = (folder / "page" / "index.html").read_text()
    assert any(str(name) in page for name in pd.read_csv(folder / "new.csv")["Sample ID"])


def test_a_sheet_of_a_workbook(folder):
    with pd.ExcelWriter(folder / "book.xlsx", engine="openpyxl") as book:
        pd.DataFrame({"remark": ["x"]}).to_excel(book, sheet_name="about", index=False)
        pd.read_csv(folder / "soil.csv").to_excel(book, sheet_name="soil", index=False)
    for sheet in ("soil", "2"):
        succeed("fit", folder / "book.xlsx", "--sheet", sheet, "--out", folder / "sheet", *WORDS)
    assert load(folder / "sheet").label_names_ == LABELS
    for words in (("evaluate",), ("explore", "--out", folder / "page.html")):
        fail(words[0], folder / "model", folder / "book.xlsx", *words[1:])  # the first sheet is another table
    succeed("explore", folder / "model", folder / "book.xlsx", "--sheet", "soil", "--out", folder / "page.html")
    assert "no sheet 'rock'" in fail("fit", folder / "book.xlsx", "--sheet", "rock", "--out", folder / "m", *WORDS)


@pytest.mark.slow
def test_compare_reads_what_fit_reads(folder, tmp_path):
    rows = pd.read_csv(folder / "soil.csv").astype({"rain": object})
    rows.loc[[2, 7], "rain"] = None
    rows.loc[5, LABELS] = [100.0, 0.0, 0.0]
    rows.to_csv(tmp_path / "rows.csv", index=False)
    options = ["--learners", "LogRatioLDL,SABFGS,AAKNN", "--folds", "3", "--drop", "depth"]
    out = tmp_path / "table.csv"
    succeed("compare", tmp_path / "rows.csv", "--labels", ",".join(LABELS), *options, "--out", out)
    found = pd.read_csv(out)
    assert len(found) == 3
    assert np.isfinite(found[["chebyshev", "kl_divergence"]]).to_numpy().all()
