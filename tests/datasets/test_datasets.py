"""Look-up order, checksums and tables; the real files only if SNEFY_LDL_DATA points at them."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import sys

import numpy as np
import pandas as pd
import pooch
import pytest
import scipy.io

from snefy_ldl.datasets import dataset as datasets
from snefy_ldl.datasets import load_dataset, load_table
from snefy_ldl.errors import DataNotFoundError, InputError, LabelWarning
from snefy_ldl.learners.maxent import SABFGS

needs_data = pytest.mark.skipif(not os.environ.get("SNEFY_LDL_DATA"), reason="SNEFY_LDL_DATA is not set")


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """A published file of four rows that stands in for sjaffe; returns its bytes."""
    rng = np.random.default_rng(0)
    published = tmp_path / "published" / "SJAFFE.mat"
    published.parent.mkdir()
    labels = rng.dirichlet(np.ones(6), 4).astype(np.float32)
    scipy.io.savemat(published, {"features": rng.normal(size=(4, 3)), "labels": labels})
    content = published.read_bytes()
    entry = dataclasses.replace(datasets._REGISTRY["sjaffe"], sha256=hashlib.sha256(content).hexdigest())
    monkeypatch.setitem(datasets._REGISTRY, "sjaffe", entry)
    monkeypatch.delenv("SNEFY_LDL_DATA", raising=False)
    monkeypatch.setenv("SNEFY_LDL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(pooch, "retrieve", _offline)
    return content


def _offline(*args, **kwargs):
    raise OSError("no network")


@pytest.mark.parametrize("place", ["SJAFFE.mat", "ldl/SJAFFE.mat"])
def test_data_folder_is_looked_at_first(tiny, tmp_path, monkeypatch, place):
    file = tmp_path / "mine" / place
    file.parent.mkdir(parents=True)
    file.write_bytes(tiny)
    monkeypatch.setenv("SNEFY_LDL_DATA", str(tmp_path / "mine"))
    data = load_dataset("SJAFFE")
    assert data.X.shape == (4, 3)
    assert data.X.dtype == data.D.dtype == np.float64
    np.testing.assert_allclose(data.D.sum(axis=1), 1.0, atol=1e-15)  # the file is float32: re-closed
    assert (data.name, data.counts, data.label_names[0]) == ("sjaffe", None, "happiness")
    assert data.feature_names == ["feature_0", "feature_1", "feature_2"]


def test_wrong_checksum_in_the_data_folder_is_an_error(tiny, tmp_path, monkeypatch):
    (tmp_path / "SJAFFE.mat").write_bytes(tiny[:-1])
    monkeypatch.setenv("SNEFY_LDL_DATA", str(tmp_path))
    with pytest.raises(InputError, match=r"SJAFFE\.mat is not the published .* SHA-256 .* get it again from https"):
        load_dataset("sjaffe")


def test_missing_everywhere_says_where_to_get_it_and_where_to_put_it(tiny, monkeypatch):
    with pytest.raises(DataNotFoundError) as caught:
        load_dataset("sjaffe")
    message = str(caught.value)
    for part in ("SNEFY_LDL_DATA (not set)", "no network", "https://raw.githubusercontent.com"):
        assert part in message
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(DataNotFoundError, match=r"snefy-ldl\[data\]"):
        load_dataset("sjaffe")


def test_unknown_names_get_a_suggestion():
    with pytest.raises(InputError, match="did you mean 'natural_scene'"):
        load_dataset("natural-scenes")
    with pytest.raises(InputError, match="Known: movie, natural_scene"):
        load_dataset("zzz")


# --- tables -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def table():
    return pd.DataFrame({"depth": [1, 2, 3], "ph": [5.5, 6.0, 7.1], "sand": [1, 0, 3], "silt": [1, 4, 1]})


def test_counts_table(table, tmp_path):
    file = tmp_path / "soil.parquet"
    table.to_parquet(file)
    data = load_table(file, labels="sand, silt", counts=True)
    assert data.name == "soil"
    assert data.feature_names == ["depth", "ph"]
    np.testing.assert_array_equal(data.counts, table[["sand", "silt"]])
    np.testing.assert_allclose(data.D, [[0.5, 0.5], [0.0, 1.0], [0.75, 0.25]])
    np.testing.assert_array_equal(data.X, table[["depth", "ph"]])
    assert load_table(file, ["silt", "sand"], ["ph"], counts=True).X.columns.tolist() == ["ph"]
    model = SABFGS().fit(data.X, data.D)
    assert model.label_names_ == ["sand", "silt"]
    assert list(model.feature_names_in_) == ["depth", "ph"]


def test_bad_tables_are_named(table, tmp_path):
    file = tmp_path / "t.csv"
    table.to_csv(file, index=False)
    for labels, more, message in (
        (["sands", "silt"], {}, "\\(labels\\): sands; did you mean 'sand'\\? It has: depth, ph, sand, silt"),
        (["sand", "silt"], {"features": "ph,sand"}, "both as a label and as a feature"),
        (["sand", "sand"], {}, "more than once"),
        (["sand"], {}, "needs at least 2"),
    ):
        with pytest.raises(InputError, match=message):
            load_table(file, labels=labels, counts=True, **more)
    with pytest.warns(LabelWarning, match="sum to 2 to 4 per row: read as numbers of votes"):
        assert load_table(file, labels=["sand", "silt"]).counts is not None
    for name, content in (("t.xlsx", "x"), ("t.parquet", "not parquet"), ("empty.csv", "")):
        (tmp_path / name).write_text(content)
        with pytest.raises(InputError, match=f"{name} cannot be read as a table"):
            load_table(tmp_path / name, labels=["a", "b"])


# --- the real files ---------------------------------------------------------------------------------------------------


SHAPES = {"movie": (7755, 1869, 5), "natural_scene": (2000, 294, 9), "sbu_3dfe": (2500, 243, 6)}
SHAPES |= {"sjaffe": (213, 243, 6), "yeast_alpha": (2465, 24, 18), "yeast_spo5": (2465, 24, 3)}


@pytest.mark.data
@needs_data
@pytest.mark.parametrize("name", SHAPES)
def test_real_files(name):
    data = load_dataset(name)
    assert (*data.X.shape, len(data.label_names)) == SHAPES[name]
    assert data.D.shape == (len(data.X), len(data.label_names))
    assert len(data.feature_names) == data.X.shape[1]
    assert np.isfinite(data.X).all()
    np.testing.assert_allclose(data.D.sum(axis=1), 1.0, atol=1e-14)
    assert (data.D == 0.0).sum() == {"movie": 18}.get(name, (data.D == 0.0).sum() if "yeast" in name else 0)
