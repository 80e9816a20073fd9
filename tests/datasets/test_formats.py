"""Text files however they are written, long votes under any names, and what the commands say of both."""

from __future__ import annotations

import gzip

import numpy as np
import pandas as pd
import pytest

from snefy_ldl.datasets import load_table
from snefy_ldl.datasets.table_files import TableSource, TextFormat, sniff_text, table_kind
from snefy_ldl.datasets.vote_table import guess_vote_columns
from snefy_ldl.errors import InputError, LabelWarning, TableNote
from snefy_ldl.votes import load_votes

ROWS = "größe{s}sand{s}clay\n1{d}5{s}0{d}25{s}0{d}75\n2{d}5{s}0{d}5{s}0{d}5\n"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1", "utf-16"])
@pytest.mark.parametrize(("separator", "decimal"), [(",", "."), (";", ","), (";", "."), ("\t", ","), ("|", ".")])
def test_a_text_reads_alike_however_it_is_written(tmp_path, encoding, separator, decimal):
    content = ROWS.format(s=separator, d=decimal).encode(encoding)
    for name, packed in (("t.csv", content), ("t.csv.gz", gzip.compress(content))):
        (tmp_path / name).write_bytes(packed)
        data = load_table(tmp_path / name, "sand,clay")
        assert data.feature_names == ["größe"]
        np.testing.assert_array_equal(data.X, [[1.5], [2.5]])
        np.testing.assert_array_equal(data.D, [[0.25, 0.75], [0.5, 0.5]])


def test_points_between_thousands(tmp_path):
    (tmp_path / "t.csv").write_text("menge;x\n1.234,5;2,5\n12.000,0;3,5\n")
    assert sniff_text(tmp_path / "t.csv", "csv") == TextFormat("utf-8", ";", ",", ".")
    assert list(TableSource(tmp_path / "t.csv").whole(["menge"], [])["menge"]) == [1234.5, 12000.0]


def test_bytes_that_are_no_text(tmp_path):
    (tmp_path / "t.csv").write_bytes(b"a,b\n\x00\x01,2\n")
    with pytest.raises(InputError, match=r"t\.csv cannot be read as a table"):
        TableSource(tmp_path / "t.csv")
    with pytest.raises(InputError, match=r"save the table as \.xlsx or \.csv"):
        table_kind(tmp_path / "t.xls")


def test_percentages_are_said_in_python_too(tmp_path):
    (tmp_path / "t.csv").write_text("x,sand,clay\n1,20,80\n2,55.5,44.5\n")
    with pytest.warns(LabelWarning, match="sand, clay sum to 100 in every row: read as percentages"):
        assert load_table(tmp_path / "t.csv", "sand,clay").D.loc[0].tolist() == [0.2, 0.8]
    (tmp_path / "t.csv").write_text("x,sand,clay\n1,2.5,80\n2,55.5,4.5\n")
    with pytest.raises(InputError, match=r"t\.csv, data row 1: sand, clay sum to 82\.5.*use normalize=True"):
        load_table(tmp_path / "t.csv", "sand,clay")
    with pytest.warns(LabelWarning, match="divided by its sum"):
        assert load_table(tmp_path / "t.csv", "sand,clay", normalize=True).D.loc[1, "sand"] == 55.5 / 60


def test_columns_of_a_long_file_are_found_with_a_note(tmp_path):
    photos = [f"img{k}.jpg" for k in range(8) for _ in range(3)]
    votes = pd.DataFrame({"photo": photos, "worker": ["a", "b", "c"] * 8, "answer": ["yes", "no", "yes"] * 8})
    votes.to_csv(tmp_path / "votes.csv", index=False)
    with pytest.warns(TableNote, match="one vote per row, read with item='photo', annotator='worker', label='answer'"):
        read = load_votes(tmp_path / "votes.csv")
    assert read.counts.tolist() == [[1, 2]] * 8
    votes.rename(columns={"photo": "p", "worker": "q", "answer": "r"}).to_csv(tmp_path / "votes.csv", index=False)
    with pytest.raises(InputError, match=r"Name them with item=, annotator= and label="):
        load_votes(tmp_path / "votes.csv")


def test_vote_columns_are_found_by_labels_and_items():
    cells = pd.DataFrame({"a": ["x", "x", "y"], "b": ["1", "2", "1"], "c": ["no", "yes", "no"]})
    assert guess_vote_columns(cells) is None
    assert guess_vote_columns(cells, ["no", "yes"], ["a", "ph"]) == ("a", None, "c")


def test_counts_that_are_no_numbers_are_named(tmp_path):
    (tmp_path / "votes.csv").write_text("item,no,yes\na,1,2\nb,some,0\n")
    with pytest.raises(InputError, match="data row 2, column 'no': 'some' is no number"):
        load_votes(tmp_path / "votes.csv", "counts")
