"""``explain``: from a table to effects, a dependence and a picture, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from commands import fail, succeed
from snefy_ldl import SnefyLDL
from snefy_ldl.datasets import make_city_districts
from snefy_ldl.explain import dependence, effects


def make_labels() -> pd.DataFrame:
    return pd.DataFrame(make_city_districts(n=90, random_state=0).D, columns=["business", "fun", "school"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of a table with text, and the table."""
    folder = tmp_path_factory.mktemp("explain")
    city = make_city_districts(n=90, random_state=0)
    table = pd.DataFrame(city.X, columns=city.feature_names)
    table["zone"] = np.where(city.X[:, 0] > 4, "outer", "inner")
    model = SnefyLDL(epochs=2, n_members=2, n_neurons=12, guides=None, random_state=0)
    model.fit(table, make_labels()).save(folder / "model")
    table.to_csv(folder / "rows.csv", index=False)
    return folder


@pytest.mark.slow
def test_tables_and_a_picture(folder: Path) -> None:
    words = succeed("explain", folder / "model", folder / "rows.csv", "--feature", "night_bus_lines", "--step", 2,
                    "--out", folder / "x.png")  # fmt: skip
    assert "night_bus_lines +2: fun" in words.stdout
    assert "(rows:" not in words.stdout  # no labels
    table = pd.read_csv(folder / "rows.csv")
    table.assign(**(100 * make_labels()).round(2)).to_csv(folder / "labelled.csv", index=False)
    words = succeed("explain", folder / "model", folder / "labelled.csv", "--feature", "night_bus_lines", "--json")
    answer = json.loads(words.stdout)
    exact = effects(SnefyLDL.load(folder / "model"), table, "night_bus_lines", make_labels(), max_rows=500).frame
    ends = [[line["conf_low"], line["conf_high"]] for line in answer["effects"]]
    np.testing.assert_allclose(ends, exact[["conf_low", "conf_high"]], atol=1e-3)
    assert (folder / "x.png").read_bytes()[:4] == b"\x89PNG"
    words = succeed("explain", folder / "model", folder / "rows.csv", "--feature", "zone", "--and", "night_bus_lines",
                    "--of", "fun > school", "--out", folder / "map.svg")  # fmt: skip
    assert "P(fun > school)" in words.stdout
    assert b"<svg" in (folder / "map.svg").read_bytes()


def test_json_is_what_the_library_says(folder: Path) -> None:
    words = succeed("explain", folder / "model", folder / "rows.csv", "--feature", "zone", "--reference", "inner",
                    "--of", "fun/school", "--json")  # fmt: skip
    answer = json.loads(words.stdout)
    model, rows = SnefyLDL.load(folder / "model"), pd.read_csv(folder / "rows.csv")
    settings = {"of": ("log_ratio", "fun", "school"), "confidence_level": 0.9, "max_rows": 500}
    exact = effects(model, rows, "zone", reference="inner", **settings).frame
    assert answer["effects"][0]["contrast"] == "outer - inner"
    assert answer["effects"][0]["estimate"] == pytest.approx(exact["estimate"][0], rel=1e-9)
    curve = dependence(model, rows, "zone", **settings).frame
    assert [line["estimate"] for line in answer["dependence"]] == pytest.approx(curve["estimate"].tolist(), rel=1e-9)


def test_what_is_wrong_is_said(folder: Path) -> None:
    start = ("explain", folder / "model", folder / "rows.csv", "--feature")
    assert "'rain' is not a feature of the model, which uses" in fail(*start, "rain")
    assert "--of fun>play" in fail(*start, "zone", "--of", "fun>play")
    assert "--out" in fail(*start, "zone", "--out", folder / "x.txt")
    assert "no level 'middle'" in fail(*start, "zone", "--reference", "middle")
    assert "nothing would change" in fail(*start, "night_bus_lines", "--step", 0)
