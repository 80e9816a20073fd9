"""From a person's file to a fitted model, predictions, scores and calibrated intervals, with every note right."""

from __future__ import annotations

import json
import re

import numpy as np
import pandas as pd
import pytest

from commands import fail, succeed
from people_tables import LABELS, TABLES, soil

SETTINGS = ("epochs=2", "n_neurons=8", "guides=null", "device=cpu")
QUICK = ["--density", "snefy", "--quiet", *(word for one in SETTINGS for word in ("--set", one))]


#: Tables whose labels come, and go out, in another unit than shares.
TOTALS = {"percents": 100, "dates": 1000}
FAST = ("text_columns", "percents", "long_votes")


@pytest.mark.parametrize(
    "name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in TABLES]
)
def test_file_to_predictions(name, tmp_path):
    case = TABLES[name](tmp_path)
    fitted = succeed("fit", *case.fit, "--out", tmp_path / "model", *QUICK)
    said = " ".join(fitted.stderr.split())  # a narrow terminal may break lines
    for note in case.notes:
        assert note in said
    succeed("predict", tmp_path / "model", case.table, "--out", tmp_path / "out.csv", "--interval", "0.9")
    answer = pd.read_csv(tmp_path / "out.csv")
    assert list(answer.columns[: len(case.labels)]) == case.labels
    np.testing.assert_allclose(answer[case.labels].sum(axis=1), TOTALS.get(name, 1), rtol=1e-6)
    if name != "forty_rows":  # which has rows without labels
        score = json.loads(succeed("evaluate", tmp_path / "model", case.table, *case.scored, "--json").stdout)
        assert score["rows"] == len(answer)
        assert "trained this model" in fail("conformalize", tmp_path / "model", case.table, *case.scored)
    shown = succeed("info", tmp_path / "model").stdout
    assert ("(votes)" if name == "long_votes" else "(shares)") in shown


@pytest.mark.parametrize(
    ("row", "column", "value", "words"),
    [
        (4, "sand", 0.9, "data row 5: sand, silt, clay sum to 1.* not to 1 as .* rows do.* use normalize=True"),
        (2, "silt", -0.1, "data row 3, column 'silt': -0.1 is negative.* Correct the cell"),
        (8, "clay", "much", "data row 9, column 'clay': 'much' is no number. Correct the cell"),
        (1, "clay", None, "data row 2, column 'clay': empty, while other labels.* Write 0 for none"),
        (6, "ph", np.inf, "data row 7, column 'ph': infinite.* leave it empty"),
    ],
)
def test_what_is_wrong_is_one_message(row, column, value, words, tmp_path):
    table = soil(40).astype(object)
    table.loc[row, column] = value
    table.to_csv(tmp_path / "soil.csv", index=False)
    line = fail("fit", tmp_path / "soil.csv", "--labels", ",".join(LABELS), "--out", tmp_path / "model")
    assert re.search(f"soil.csv, {words}", line)


def test_amounts_and_votes(tmp_path):
    table = soil(40)
    table[LABELS] = (table[LABELS] * 17.3 * (1 + table[["ph"]].to_numpy())).round(3)
    table.to_csv(tmp_path / "soil.csv", index=False)
    words = ["fit", tmp_path / "soil.csv", "--labels", ",".join(LABELS), "--out", tmp_path / "model", *QUICK]
    assert "If these are amounts, use normalize=True (--normalize)" in fail(*words)
    assert "each row of sand, silt, clay was divided by its sum" in succeed(*words, "--normalize").stderr
    assert "is no whole number, and votes are counted" in fail(*words, "--votes", "counts")
    table[LABELS] = table[LABELS].round().astype(int)
    table.to_csv(tmp_path / "soil.csv", index=False)
    said = " ".join(succeed(*words).stderr.split())
    assert "read as numbers of votes; use normalize=True (--normalize) if they are amounts" in said
    assert "(votes)" in succeed("info", tmp_path / "model").stdout


def test_wrong_columns_have_a_near_one(tmp_path):
    soil(40).to_csv(tmp_path / "soil.csv", index=False)
    words = ["fit", tmp_path / "soil.csv", "--out", tmp_path / "model", "--labels"]
    assert "(--labels): sands; did you mean 'sand'?" in fail(*words, "sands,silt")
    assert "(--drop): dephts; did you mean 'depth'?" in fail(*words, "sand,silt", "--drop", "dephts")
