"""Rows of a table are rows: ids that repeat, columns that name groups, and what a person should know before a fit."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from commands import fail, succeed
from snefy_ldl import compare
from snefy_ldl.datasets.columns import TableEncoder
from snefy_ldl.learners import AAKNN

LABELS = ["a", "b", "c"]


def children(n: int = 300) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(n, 2)), columns=["x", "y"])
    return table.assign(**dict(zip(LABELS, rng.dirichlet([3, 2, 1], n).T)))


def fitted(table: pd.DataFrame, folder: Path, *more: object) -> tuple[str, str]:
    """What a quick fit of a table prints: on standard output and on standard error."""
    table.to_csv(folder / "table.csv", index=False)
    words = ("--set", "epochs=1", "-q", "--set", "guides=null", "--density", "snefy", "--out", folder / "model")
    said = succeed("fit", folder / "table.csv", "--labels", ",".join(LABELS), *words, *more)
    return said.stdout, said.stderr


@pytest.mark.parametrize(("ids", "words"), [(np.arange(300) // 3, "100 values"), (np.full(300, 7), "one value")])
def test_ids_that_repeat_lose_no_row(ids: np.ndarray, words: str, tmp_path: Path) -> None:
    out, notes = fitted(children().assign(id=ids), tmp_path)
    assert re.match(r"300 rows.*, 2 features", out)
    sentence = f"column 'id' has {words} in 300 rows: it names groups of rows and is no feature; every row is kept"
    assert notes.count(sentence) == 1
    assert "later one counts" not in notes


def test_labels_of_one_item_in_several_rows_all_find_its_features(tmp_path: Path) -> None:
    from snefy_ldl.datasets.labelled import join_features, read_labelled
    from snefy_ldl.datasets.table_files import TableSource

    (tmp_path / "labels.csv").write_text("item,a,b\nq,0.2,0.8\np,0.5,0.5\nq,0.4,0.6\n")
    (tmp_path / "items.csv").write_text("item,x\np,1\nq,2\n")
    labels, items = (TableSource(tmp_path / f"{name}.csv") for name in ("labels", "items"))
    rows = join_features(read_labelled(labels, ["a", "b"]), items, ["x"])
    assert rows.features["x"].tolist() == [2, 1, 2]
    assert rows.labels[:, 0].tolist() == [0.2, 0.5, 0.4]


@pytest.mark.parametrize("cells", [[f"p{k // 3:03d}" for k in range(300)], np.arange(300) // 3])
def test_a_column_of_patients_is_named_as_a_group(cells: object, tmp_path: Path) -> None:
    table = children().assign(patient=cells)
    _, notes = fitted(table, tmp_path)
    assert notes.count("column 'patient' has 100 values in 300 rows, so it likely names groups of rows") == 1
    assert "of which new rows will have others (--groups uses it as one, --drop leaves it out)" in notes
    assert "(--groups uses it as one, --drop leaves it out)" in notes
    out, notes = fitted(table, tmp_path, "--drop", "patient")
    assert re.match(r"300 rows.*, 2 features", out)
    assert "patient" not in notes


@pytest.mark.parametrize(
    "column",
    [
        pd.Series(np.arange(300) % 60 + 18, name="age"),  # a quantity in whole numbers
        pd.Series([f"r{k % 5}" for k in range(300)], name="rock"),  # few values
        pd.Series([f"n{k // 2 if k < 20 else k}" for k in range(300)], name="name"),  # hardly any twice
    ],
    ids=lambda column: column.name,
)
def test_other_columns_are_no_groups(column: pd.Series) -> None:
    notes = TableEncoder.fit(pd.DataFrame({"x": np.arange(300) % 7, column.name: column})).notes
    assert not any("groups of rows" in remark for remark in notes)


def test_copies_and_few_rows_are_noted(tmp_path: Path) -> None:
    table = children(60)
    table.loc[[7, 9]] = table.loc[[1, 1]].to_numpy()
    _, notes = fitted(table, tmp_path)
    assert notes.count("2 of 60 rows equal an earlier one in all features and labels; the first is row 8") == 1
    assert "few to learn from" not in notes
    _, notes = fitted(children(5), tmp_path)
    assert notes.count("5 rows are few to learn from") == 1
    assert "repeat" not in notes


@pytest.mark.parametrize("column", ["child", "id"])
def test_compare_splits_whole_groups_and_takes_their_column_out_of_the_features(column: str, tmp_path: Path) -> None:
    table = children(60).assign(**{column: np.arange(60) // 6})
    table.to_csv(tmp_path / "table.csv", index=False)
    words = ("--labels", ",".join(LABELS), "--learners", "AAKNN", "--folds", 5, "-q", "--out", tmp_path / "out.csv")
    succeed("compare", tmp_path / "table.csv", *words, "--groups", column)
    X, D = table[["x", "y"]].to_numpy(), table[LABELS].to_numpy()
    direct = compare({"AAKNN": AAKNN()}, X, D, cv=5, groups=table[column])
    found = pd.read_csv(tmp_path / "out.csv")
    assert found["kl_divergence"][0] == pytest.approx(direct.mean("kl_divergence").item(), abs=1e-9)
    assert "nobody" in fail("compare", tmp_path / "table.csv", *words, "--groups", "nobody")
