"""The page as a file: whole, alone, not too large, and plain about what it cannot do."""

from __future__ import annotations

import base64
import gzip
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from commands import fail, succeed
from snefy_ldl import LogRatioLDL, SnefyLDL
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
    model = SnefyLDL(epochs=1, guides=None, random_state=0).fit(X[:200], D[:200])
    assert len(make_page(model, PageRows(X)).encode()) < 1.5e6


@pytest.mark.slow
def test_large_tables_are_thinned_and_large_forests_left_out(
    small: SnefyLDL, ratios: LogRatioLDL, city: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "MOST_BYTES", 10 * (8 * 5 + 8 * 3 + 3 * (2 * export.DRAWS + 4 * 8)))
    content, _ = export_model(ratios, PageRows(city[0]))
    assert content["rows"]["count"] == 10
    assert content["draws"]["codes"]["shape"] == [10, export.DRAWS, 3]
    assert content["notes"][0] == "This page shows 10 of 160 rows, evenly spread."
    assert export_model(small, PageRows(city[0]))[0]["rows"]["count"] == 160
    forest = [TreesLDL(n_trees=5, random_state=0)]
    model = SnefyLDL(guides=forest, n_neurons=6, epochs=1, random_state=0).fit(*city)
    monkeypatch.setattr(export, "MOST_TREE_NUMBERS", 10)
    content, _ = export_model(model, PageRows(city[0]))
    assert content["square"]["network"] is None
    assert content["square"]["scales"]["shape"][0] == content["rows"]["count"]
    assert content["notes"][0].startswith("The model's trees are too large")


def test_draws_are_coded_to_a_twentieth_of_a_percent(ratios: LogRatioLDL, city: Table) -> None:
    pack = export.Pack()
    dist = ratios.predict_dist(city[0][:3])
    export._draws(dist, pack)
    size = 3 * export.DRAWS * 3
    codes = np.frombuffer(gzip.decompress(base64.b64decode(pack.text())), dtype="<u2")[:size].astype(float)
    shares = np.where(codes > 0, np.exp(export.LOWEST_LOG * (1.0 - (codes - 1.0) / 65534.0)), 0.0)
    drawn = dist.draw_logs(export.DRAWS, torch.Generator().manual_seed(0)).exp().transpose(0, 1).flatten().numpy()
    assert ((shares == 0.0) == (drawn == 0.0)).all()
    assert (drawn == 0.0).any()
    np.testing.assert_allclose(shares, drawn, rtol=5e-4, atol=1e-12)


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


def test_rows_are_named_by_the_column_that_named_those_of_the_fit(small: SnefyLDL, city: Table, tmp_path: Path) -> None:
    table, names = tmp_path / "rows.csv", [f"S-{number}" for number in range(6)]
    city[0][:6].assign(sample=names, item=range(6)).to_csv(table, index=False)
    rows = PageRows.read(small, table)
    assert (rows.id_name, rows.ids) == ("item", [str(number) for number in range(6)])
    assert PageRows.read(small, table, "sample").ids == names
    city[0][:6].to_csv(table, index=False)
    assert PageRows.read(small, table).ids is None


def test_calibrated_intervals_come_with_the_rows(folder: Path, city: Table) -> None:
    served = load_served(folder, "city")
    content, _ = export_model(served.model, PageRows(city[0]), "city", served.calibrated)
    assert content["calibrated"]["levels"] == [0.8]
    assert content["calibrated"]["ends"]["shape"] == [160, 3, 2, 1]
    groups = np.arange(160) % 2
    by_group = ConformalIntervals(served.model, confidence_level=0.8).conformalize(
        city[0] + 1e-3, city[1], groups=groups
    )
    content, _ = export_model(served.model, PageRows(city[0]), "city", by_group)
    assert content["calibrated"] is None
    assert "need groups" in content["notes"][-1]
