"""The page as a file: whole, alone, not too large, and plain about what it cannot do."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from commands import fail, succeed
from snefy_ldl import SnefyLDL
from snefy_ldl.apps.serve.explorer import PageRows, export, make_page
from snefy_ldl.apps.serve.explorer.export import export_model
from snefy_ldl.apps.serve.store import load_served
from snefy_ldl.conformal import ConformalIntervals
from snefy_ldl.learners import TreesLDL

Table = tuple[pd.DataFrame, pd.DataFrame]


def test_the_page_names_no_other_place(small: SnefyLDL, city: Table) -> None:
    page = make_page(small, PageRows(city[0]))
    assert set(re.findall(r"https?://[^\s\"'<]+", page)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"(src|href)=\"(?!data:|#)", page)
    assert "%%" not in page


def test_sixty_four_neurons_and_six_labels_stay_below_one_and_a_half_megabytes() -> None:
    random = np.random.default_rng(0)
    X, D = random.normal(size=(2000, 5)), random.dirichlet(np.ones(6), size=2000)
    model = SnefyLDL(epochs=1, centre=None, guides=None, random_state=0).fit(X[:200], D[:200])
    assert len(make_page(model, PageRows(X)).encode()) < 1.5e6


def test_without_rows_there_is_a_typical_one(small: SnefyLDL) -> None:
    content, _ = export_model(small, None)
    assert content["rows"]["count"] == 1
    assert all(control["low"] < control["high"] for control in content["controls"])


def test_too_many_cells_are_thinned_and_too_many_trees_left_out(city: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"n_neurons": 6, "epochs": 1, "centre": None, "random_state": 0}
    model = SnefyLDL(guides=[TreesLDL(n_trees=5, random_state=0)], **settings).fit(*city)
    monkeypatch.setattr(export, "MOST_CELLS", 50)
    monkeypatch.setattr(export, "MOST_TREE_NUMBERS", 10)
    monkeypatch.setattr(export, "MOST_TABULATED", 7 * model.net_.n_members * 4)
    content, _ = export_model(model, PageRows(city[0]))
    assert content["rows"]["count"] == 10
    assert content["network"] is None
    assert content["places"]["scales"]["shape"][0] == 4
    assert [note.split()[0] for note in content["notes"]] == ["This", "The", "Only"]


def test_the_command_refuses_what_it_cannot_write_or_read(folder: Path, city: Table, tmp_path: Path) -> None:
    table = tmp_path / "rows.csv"
    city[0].drop(columns="night_bus_lines")[:5].to_csv(table, index=False)
    assert "night_bus_lines" in fail("explore", folder, table, "--out", tmp_path / "page.html")
    assert ".html" in fail("explore", folder, table, "--out", tmp_path / "page.txt")
    assert "nowhere" in fail("explore", tmp_path / "nowhere", table)
    assert not (tmp_path / "page.html").exists()
    city[0][:5].assign(item=list("abcde")).to_csv(table, index=False)
    done = succeed("explore", folder, table, "--out", tmp_path / "page.html")
    assert "5 rows" in done.output


def test_rows_are_named_by_the_column_that_tells_them_apart(small: SnefyLDL, city: Table, tmp_path: Path) -> None:
    table, count = tmp_path / "rows.csv", 6
    X = city[0][:count]
    names = [f"S-{number}" for number in range(count)]
    measured = np.linspace(0.125, 0.75, count)
    X.assign(depth=measured, place=["a"] * count, sample=names).to_csv(table, index=False)
    rows = PageRows.read(small, table)
    assert (rows.id_name, rows.ids) == ("sample", names)
    X.assign(depth=measured, place=["a"] * count).to_csv(table, index=False)
    assert PageRows.read(small, table).ids is None
    pd.concat([X, city[1][:count]], axis=1).to_csv(table, index=False)  # labels name nothing
    assert PageRows.read(small, table).ids is None
    X.assign(sample=names, id=range(10, 10 + count)).to_csv(table, index=False)
    assert PageRows.read(small, table).ids == [str(number) for number in range(10, 10 + count)]


def test_calibrated_intervals_come_with_the_rows(folder: Path, city: Table) -> None:
    served = load_served(folder, "city")
    content, _ = export_model(served.model, PageRows(city[0]), "city", served.calibrated)
    assert content["calibrated"]["levels"] == [0.8]
    assert content["calibrated"]["ends"]["shape"] == [160, 3, 2, 1]
    groups = np.arange(160) % 2
    by_group = ConformalIntervals(served.inner, confidence_level=0.8).conformalize(
        city[0].to_numpy() + 1e-3, city[1], groups=groups
    )
    content, _ = export_model(served.model, PageRows(city[0]), "city", by_group)
    assert content["calibrated"] is None
    assert "need groups" in content["notes"][-1]
