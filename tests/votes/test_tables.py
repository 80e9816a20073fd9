"""Annotator tables: long, counts and files, and every bad one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from snefy_ldl.datasets import make_annotators
from snefy_ldl.datasets.vote_table import read_vote_cells
from snefy_ldl.errors import InputError, TableNote
from snefy_ldl.votes import Votes


def long_table() -> pd.DataFrame:
    rows = [("x", "ann", 2.0), ("x", "bob", 1.0), ("y", "ann", 2.0), ("z", "bob", np.nan), ("y", "cem", 10.0)]
    return pd.DataFrame(rows, columns=["item", "annotator", "label"])


def test_long_table() -> None:
    votes = Votes.from_long(long_table())
    assert votes.label_names == ["1", "2", "10"]
    assert votes.items == ["x", "y", "z"]
    np.testing.assert_array_equal(votes.counts, [[1, 1, 0], [0, 1, 1], [0, 0, 0]])
    np.testing.assert_array_equal(votes.align(["y", "nobody", "x"]), [[0, 1, 1], [0, 0, 0], [1, 1, 0]])


@pytest.mark.parametrize("ending", ["csv", "tsv", "parquet"])
def test_files_come_back(tmp_path: Path, ending: str) -> None:
    data = make_annotators(n=30, n_labels=3, votes=(1, 5), long_table=True, random_state=1)
    table = {
        key: [f"{value:03d}" if key == "item" else str(value) for value in column] for key, column in data.votes.items()
    }
    votes, frame, file = Votes.from_long(table), pd.DataFrame(table), tmp_path / f"votes.{ending}"
    {"csv": frame.to_csv, "tsv": partial(frame.to_csv, sep="\t")}.get(ending, frame.to_parquet)(file, index=False)
    again = Votes.from_long(read_vote_cells(file))
    assert again.label_names == votes.label_names
    assert again.items == votes.items
    assert again.items[7] == "007"
    np.testing.assert_array_equal(again.counts, votes.counts)
    np.testing.assert_array_equal(again.counts, data.counts)


def test_labels_called_na_are_labels(tmp_path: Path) -> None:
    file = tmp_path / "votes.csv"
    file.write_text("item,annotator,label\n1,p,NA\n1,q,None\n2,p,NA\n2,q,\n")
    votes = Votes.from_long(read_vote_cells(file))
    assert votes.label_names == ["NA", "None"]
    assert len(votes) == 3


@pytest.mark.parametrize(
    ("call", "rule"),
    [
        (lambda: Votes.from_long({"item": [1], "label": ["a"]}), "no column 'annotator'"),
        (lambda: Votes.from_long({"item": [1, 2], "annotator": [1, 2], "label": ["a"]}), "equally long"),
        (lambda: Votes.from_long({"item": [None], "annotator": [1], "label": ["a"]}), "'item' is empty in data row 1"),
        (lambda: Votes.from_long({"item": [1], "annotator": [1], "label": [None]}), "no vote at all"),
        (lambda: Votes.from_long({"item": [1], "annotator": [1], "label": ["a"]}), "one label"),
        (lambda: Votes.from_long(long_table(), label_names=["1", "2"]), "'10' is not among"),
        (lambda: Votes.from_counts([[1.5, 0]]), "whole numbers"),
        (lambda: Votes.from_counts([[-1, 0]]), "negative"),
        (lambda: Votes.from_counts([[1], [2]]), "at least 2 labels"),
        (lambda: Votes.from_counts([[1, 2]], label_names=["a"]), "do not fit"),
    ],
)
def test_bad_tables_are_named(call: Callable, rule: str) -> None:
    with pytest.raises(InputError, match=rule):
        call()


def test_items_go_by_name_numbers_and_texts_alike() -> None:
    pl = pytest.importorskip("polars")
    frame = pd.DataFrame({"item": [7, 8], "no": [2, 0], "yes": [1, 3]})
    for table in (frame, pl.from_pandas(frame), frame.set_index("item")):
        votes = Votes.from_counts(table)
        assert [str(name) for name in votes.items] == ["7", "8"]
        np.testing.assert_array_equal(votes.align(["8", 7.0]), [[0, 3], [2, 1]])
    X = pd.DataFrame({"x": [1.0, 2.0]}, index=["8", "7"])
    np.testing.assert_array_equal(Votes.from_counts(frame).on_rows_of(X).counts, [[0, 3], [2, 1]])
    with pytest.raises(InputError, match="1 items of the votes are not in the index of X: 8"):
        Votes.from_counts(frame).on_rows_of(X.rename(index={"8": "9"}))


def test_one_label_per_number_and_several_labels_per_vote() -> None:
    table = {"item": [1, 1, 2], "annotator": [1, 2, 1], "label": ["1", "1.0", "3"]}
    with pytest.warns(TableNote, match=r"labels 1\.0 are read as the numbers"):
        assert Votes.from_long(table).label_names == ["1", "3"]
    table["label"] = [["joy", "awe"], "joy", ["fear"]]  # type: ignore[assignment]
    np.testing.assert_array_equal(Votes.from_long(table).counts, [[1, 0, 2], [0, 1, 0]])


def test_labels_of_a_scale_are_in_its_order() -> None:
    table = {"item": [1, 1, 2], "annotator": [1, 2, 1], "label": ["very high", "low", "very low"]}
    assert Votes.from_long(table).label_names == ["very low", "low", "very high"]
