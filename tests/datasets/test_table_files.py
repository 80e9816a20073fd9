"""Tables on disk: one reader for every format, one writer that leaves nothing half done."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from snefy_ldl.datasets import load_table, table_files
from snefy_ldl.datasets.table_files import TableSink, TableSource, TextFormat, sniff_text, table_kind
from snefy_ldl.datasets.vote_table import guess_vote_columns
from snefy_ldl.errors import DataNotFoundError, InputError

ENDINGS = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet", ".pq")


@pytest.fixture
def soil() -> pd.DataFrame:
    shares = np.random.default_rng(0).dirichlet(np.ones(3), 7)
    frame = pd.DataFrame(shares, columns=["sand", "silt", "clay"])
    frame.insert(0, "depth", np.arange(7.0))
    frame.insert(0, "site", [f"{k:03d}" for k in range(7)])
    return frame


def write(frame: pd.DataFrame, file: Path) -> Path:
    with TableSink(str(file)) as sink:
        for start in (0, 3):
            sink.write(frame.iloc[start : start + 3 if start == 0 else None])
    return file


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("rows", [2, 100])
def test_what_is_written_is_read_back(
    tmp_path: Path, soil: pd.DataFrame, ending: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_files, "CHUNK_ROWS", rows)
    source = TableSource(write(soil, tmp_path / f"soil{ending}"))
    assert source.columns == list(soil.columns)
    whole = source.whole(["depth", "sand"], ["site"])
    pd.testing.assert_frame_equal(whole, soil[["site", "depth", "sand"]], check_dtype=False)
    parts = list(source.chunks(["depth"], ["site"]))
    assert max(len(part) for part in parts) <= rows
    pd.testing.assert_frame_equal(
        pd.concat(parts, ignore_index=True), soil[["site", "depth"]], check_dtype=False, rtol=1e-15
    )
    picked = source.take(np.array([5, 0, 5]), ["depth"], ["site"])
    assert list(picked["site"]) == ["005", "000", "005"]
    data = load_table(source.file, "sand,silt,clay", "depth")
    np.testing.assert_allclose(data.D, soil[["sand", "silt", "clay"]], rtol=0, atol=1e-15)


def test_the_index_that_pandas_stores_is_no_column(tmp_path: Path, soil: pd.DataFrame) -> None:
    soil.set_index("site").to_parquet(tmp_path / "named.parquet")
    soil.drop(columns="site").iloc[::2].to_parquet(tmp_path / "numbered.parquet")
    for name in ("named", "numbered"):
        source = TableSource(tmp_path / f"{name}.parquet")
        assert source.columns == ["depth", "sand", "silt", "clay"]
        data = load_table(source.file, ["sand", "silt", "clay"])
        assert data.feature_names == ["depth"]


def test_names_like_na_stay_names_and_numbers_may_be_missing(tmp_path: Path) -> None:
    (tmp_path / "odd.csv").write_text("site,depth\nNA,1\nnull,NA\n,3\n")
    frame = TableSource(tmp_path / "odd.csv").whole(["depth"], ["site"])
    assert list(frame["site"]) == ["NA", "null", ""]
    np.testing.assert_array_equal(frame["depth"], [1.0, np.nan, 3.0])


def test_text_that_comes_late_is_found(tmp_path: Path, soil: pd.DataFrame, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_files, "CHUNK_ROWS", 3)
    broken = soil.astype({"depth": object})
    broken.loc[5, "depth"] = "deep"
    broken.to_csv(tmp_path / "soil.csv", index=False)
    assert [len(part) for part in TableSource(tmp_path / "soil.csv").chunks(["depth"], [])] == [3, 3, 1]
    assert load_table(tmp_path / "soil.csv", "sand,silt,clay", "depth").X["depth"][5] == "deep"


def test_damaged_and_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataNotFoundError, match="no file at"):
        TableSource(tmp_path / "none.csv")
    (tmp_path / "plain.csv.gz").write_text("not packed at all")
    (tmp_path / "zero.csv").write_bytes(b"a,b\n\x00\x01,2\n")
    (tmp_path / "cut.csv.gz").write_bytes(gzip.compress(b"a,b\n" + b"1,2\n" * 100)[:20])
    for name in ("plain.csv.gz", "cut.csv.gz", "zero.csv"):
        with pytest.raises(InputError, match=f"{name} cannot be read as a table"):
            TableSource(tmp_path / name).whole(["a"], [])
    (tmp_path / "header.csv").write_text("a,b\n")
    with pytest.raises(InputError, match=r"header\.csv holds no rows"):
        TableSource(tmp_path / "header.csv").whole(["a"], [])
    (tmp_path / "two.csv").write_text("a,b\n1,2\n3,4\n")
    with pytest.raises(InputError, match="there is no row 2"):
        TableSource(tmp_path / "two.csv").take(np.array([0, 2]), ["a"], [])


@pytest.mark.parametrize("name", ["soil", "soil.doc", "soil.parquet.gz", "soil.gz", "soil.xls"])
def test_unknown_endings(name: str) -> None:
    with pytest.raises(InputError, match="unknown ending"):
        table_kind(Path(name))


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_broken_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, soil: pd.DataFrame, ending: str) -> None:
    file = tmp_path / f"soil{ending}"
    file.write_text("precious")

    def stopped() -> None:
        with TableSink(str(file)) as sink:
            sink.write(soil)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    assert file.read_text() == "precious"
    assert list(tmp_path.iterdir()) == [file]


# --- formulas ---------------------------------------------------------------------------------------------------------

FORMULAS = ["=HYPERLINK(1)", "+1+1", "-x", "@A1", "'=quoted", "it's", "#N/A!", "-", "-5", "+.5e3", "é"]
FORMULAS += ["\tx", "\rx", "a\rb"]
HEAD = "=1+1"


@pytest.fixture
def formulas() -> pd.DataFrame:
    return pd.DataFrame({HEAD: FORMULAS, "=share": np.linspace(-1.0, 1.0, len(FORMULAS))})


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".csv.gz", ".xlsx", ".parquet"])
@pytest.mark.parametrize("dtype", [object, "category"])
def test_text_like_formulas_is_read_back_as_it_was(
    tmp_path: Path, formulas: pd.DataFrame, ending: str, dtype: Any
) -> None:
    source = TableSource(write(formulas.astype({HEAD: dtype}), tmp_path / f"f{ending}"))
    assert source.columns == [HEAD, "=share"]
    frame = source.whole(["=share"], [HEAD])
    lines = "\n" if ending == ".xlsx" else "\r"  # in XML every end of a line is a line feed
    assert list(frame[HEAD]) == [text.replace("\r", lines) for text in FORMULAS]
    np.testing.assert_allclose(frame["=share"], formulas["=share"], atol=1e-15)
    assert list(source.whole([HEAD], [])[HEAD].iloc[:4]) == FORMULAS[:4]


def test_excel_holds_text_and_no_formula(tmp_path: Path, formulas: pd.DataFrame) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    sheet = openpyxl.load_workbook(write(formulas, tmp_path / "f.xlsx")).active
    kinds = [[cell.data_type for cell in row] for row in sheet.iter_rows()]
    assert kinds == [["s", "s"], *[["s", "n"]] * len(formulas)]


def test_what_excel_cannot_hold_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot be written.*cannot be used in worksheets"):
        write(pd.DataFrame({"a": list("abc\x07")}), tmp_path / "f.xlsx")
    assert not list(tmp_path.iterdir())


# -- text however it is written, long votes under any names -----------------------------------------------------------

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
    assert sniff_text(tmp_path / "t.csv", "csv") == TextFormat("utf-8-sig", ";", ",", ".")
    assert list(TableSource(tmp_path / "t.csv").whole(["menge"], [])["menge"]) == [1234.5, 12000.0]


def test_vote_columns_are_found_by_labels_and_items():
    cells = pd.DataFrame({"a": ["x", "x", "y"], "b": ["1", "2", "1"], "c": ["no", "yes", "no"]})
    assert guess_vote_columns(cells) is None
    assert guess_vote_columns(cells, ["no", "yes"], ["a", "ph"]) == ("a", None, "c")
