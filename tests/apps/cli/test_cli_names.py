"""Names that meet: columns of one name, files that are read and written, labels that look like markup."""

from __future__ import annotations

import gc
import os
import re
from pathlib import Path

import numpy as np
import openpyxl
import pandas as pd
import pytest

from commands import fail, succeed
from snefy_ldl import SnefyLDL
from snefy_ldl._internal import files
from snefy_ldl.conformal import ConformalIntervals
from snefy_ldl.datasets import make_city_districts
from snefy_ldl.datasets.table_files import TableSink, TableSource
from snefy_ldl.persistence import save_calibration

SMALL = {"n_neurons": 5, "n_readouts": 3, "hidden_sizes": (6,), "epochs": 1, "random_state": 0, "guides": None}


def write_model(folder: Path, labels: list[str]) -> pd.DataFrame:
    """A small model with these labels in ``folder / "model"``, and its features in ``folder / "city.csv"``."""
    city = make_city_districts(n=60, random_state=0)
    X = pd.DataFrame(city.X, columns=city.feature_names)
    model = SnefyLDL(**SMALL).fit(X, pd.DataFrame(city.D, columns=labels))
    model.save(folder / "model")
    intervals = ConformalIntervals(model, 0.8).conformalize(X + 0.01, city.D)
    save_calibration(folder / "model", intervals.to_dict())
    X.assign(item=[f"i{k}" for k in range(len(X))], a_low="kept").to_csv(folder / "city.csv", index=False)
    votes = pd.DataFrame(np.ones((len(X), 3), dtype=int), columns=labels)
    votes.assign(item=[f"i{k}" for k in range(len(X))]).to_csv(folder / "votes.csv", index=False)
    return X


@pytest.fixture(scope="module")
def clash(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clash")
    write_model(folder, ["a", "a_low", "a_high"])
    return folder


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plain")
    write_model(folder, ["a", "b", "votes"])
    return folder


# --- columns ----------------------------------------------------------------------------------------------------------


def test_two_columns_of_one_name_are_refused(clash: Path, plain: Path, tmp_path: Path) -> None:
    """At 0.8 the intervals are calibrated, at 0.7 the model's own."""
    one, other = (("predict", folder / "model", folder / "city.csv") for folder in (clash, plain))
    keep = ("--keep", "a_low", "--out", tmp_path / "p.csv")
    for words, name in (
        ((*one, "--interval", 0.8), "a_low"),
        ((*one, "--interval", 0.7), "a_low"),
        ((*one, "--votes", clash / "votes.csv"), "a_low"),
        ((*other, *keep, "--interval", 0.8), "a_low"),
        ((*other, "--votes", plain / "votes.csv"), "votes"),
    ):
        assert f"two columns named '{name}'" in fail(*words)
    assert not list(tmp_path.iterdir())
    succeed(*other, *keep)


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ("predict", "model", "city.csv"),
        ("predict", "model", "city.csv", "--votes", "votes.csv"),
        ("query", "model", "city.csv", "--votes", "votes.csv", "--n", "2"),
        ("query", "model", "city.csv", "--n", "2"),
    ],
)
def test_a_file_that_is_read_is_not_replaced(plain: Path, tmp_path: Path, words: tuple[str, ...]) -> None:
    paths = [plain / word if word == "model" or word.endswith(".csv") else word for word in words]
    link = tmp_path / "link.csv"
    link.symlink_to(plain / "city.csv")
    before = (plain / "city.csv").read_bytes()
    for name in (plain / "city.csv", plain / "model" / ".." / "city.csv", link):
        assert "is read by this command" in fail(*paths, "--out", name)
    assert (plain / "city.csv").read_bytes() == before


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="limits on file sizes are POSIX's")
@pytest.mark.parametrize("ending", [".csv", ".csv.gz", ".parquet"])
@pytest.mark.parametrize("rows", [100, 20_000])
def test_a_full_disk_leaves_no_part_and_nothing_open(
    tmp_path: Path, ending: str, rows: int, capfd: pytest.CaptureFixture[str]
) -> None:
    """A file size limit stands in for the full disk: early, or only when the last bytes are flushed."""
    import resource

    frame = pd.DataFrame({"share": np.random.default_rng(0).random(rows)})
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300, usual[1]))
    try:
        with pytest.raises(OSError, match="too large") as caught, TableSink(str(tmp_path / f"p{ending}")) as sink:
            sink.write(frame)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
    assert not list(tmp_path.iterdir())
    descriptors = Path("/proc/self/fd")
    if descriptors.is_dir():  # on some systems an open file cannot be removed: none may be left open
        links = [os.readlink(entry) for entry in descriptors.iterdir() if entry.is_symlink()]
        assert not [link for link in links if str(tmp_path) in link]
    if ending != ".parquet":
        assert caught.value.filename == str(tmp_path / f"p{ending}")
    del caught, sink
    gc.collect()
    assert capfd.readouterr().err == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("ending", [".csv", ".xlsx"])
def test_a_full_disk_is_one_line(plain: Path, tmp_path: Path, ending: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files.Path, "touch", lambda path, **_: path.symlink_to("/dev/full"))
    out = tmp_path / f"p{ending}"
    assert (
        fail("predict", plain / "model", plain / "city.csv", "--out", out) == f"error: No space left on device: {out}"
    )
    assert not list(tmp_path.iterdir())


# --- formulas ---------------------------------------------------------------------------------------------------------

LINK = "=HYPERLINK(0)"


@pytest.mark.parametrize("ending", [".csv", ".xlsx"])
def test_no_command_writes_a_formula(tmp_path: Path, ending: str) -> None:
    X = write_model(tmp_path, [LINK, "b", "@c"])
    table = X.assign(id=[f"={k}" for k in range(len(X))])
    table.to_csv(tmp_path / "rows.csv", index=False)
    for words in (("predict", "--keep", "id"), ("query", "--n", "2", "--id", "id")):
        out = tmp_path / f"{words[0]}{ending}"
        succeed(words[0], tmp_path / "model", tmp_path / "rows.csv", *words[1:], "--out", out)
        if ending == ".xlsx":
            cells = [cell for row in openpyxl.load_workbook(out).active.iter_rows() for cell in row]
            assert {cell.data_type for cell in cells} <= {"s", "inlineStr", "n"}
        else:
            assert not re.search(r"(^|[,\"])[=@]", out.read_text(), re.MULTILINE)
        source = TableSource(out)
        assert {LINK, "@c"} <= set(source.columns)
        ids = list(source.whole([], ["id"])["id"])
        assert set(ids) <= set(table["id"])
        assert words[0] == "query" or ids == list(table["id"])


# --- markup -----------------------------------------------------------------------------------------------------------


def test_names_are_not_markup(tmp_path: Path) -> None:
    place = tmp_path / "[/]"
    X = write_model(place, ["[red]", "[/]", "c [1]"])
    X.assign(**{"[red]": 0.2, "[/]": 0.3, "c [1]": 0.5}).to_csv(place / "labelled.csv", index=False)
    shown = " ".join(succeed("info", place / "model").output.split())
    assert "3: [red], [/], c [1]" in shown
    shown = "".join(succeed("evaluate", place / "model", place / "labelled.csv").output.split())
    assert "[/]/modelon" in shown
