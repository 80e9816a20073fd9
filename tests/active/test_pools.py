"""Pools of every kind: arrays, tables, sparse rows, files and streams, a block at a time."""

from __future__ import annotations

import warnings
from importlib import import_module

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from queries import ON_FEATURES, ask
from snefy_ldl.active import Pool, query
from snefy_ldl.active.features import Geometry
from snefy_ldl.errors import InputError
from snefy_ldl.learners import DirichletLDL


@pytest.mark.parametrize("name", [*ON_FEATURES, "variance", "dirichlet"])
def test_every_kind_of_pool_gives_the_same_rows(name, pool, model, city, tmp_path, small_blocks):
    wanted, values = ask(name, pool, 9, model, X_labeled=city.X[:20], return_utilities=True)
    frame = pd.DataFrame(pool, columns=[f"x{i}" for i in range(pool.shape[1])])
    frame.to_parquet(tmp_path / "pool.parquet", row_group_size=70)
    frame.to_csv(tmp_path / "pool.csv", index=False)
    np.save(tmp_path / "pool.npy", pool)
    kinds = {
        "frame": frame,
        "parquet": tmp_path / "pool.parquet",
        "csv": str(tmp_path / "pool.csv"),
        "memory map": np.load(tmp_path / "pool.npy", mmap_mode="r"),
        "sparse": sp.csr_matrix(pool),
        "list": pool.tolist(),
        "function": lambda: (pool[i : i + 37] for i in range(0, len(pool), 37)),
        "frames": lambda: (frame.iloc[i : i + 37] for i in range(0, len(pool), 37)),
    }
    for kind, given in kinds.items():
        rows, utilities = ask(name, given, 9, model, X_labeled=city.X[:20], return_utilities=True)
        np.testing.assert_allclose(utilities, values, rtol=1e-6, atol=1e-9, err_msg=kind)
        np.testing.assert_array_equal(rows, wanted, err_msg=kind)


def test_diverse_batches_from_a_file_are_those_from_memory(pool, model, tmp_path, small_blocks):
    pd.DataFrame(pool).rename(columns=str).to_parquet(tmp_path / "pool.parquet")
    for space in ("features", "prediction"):
        wanted = ask("variance", pool, 9, model, diverse=True, space=space)
        found = ask("variance", tmp_path / "pool.parquet", 9, model, diverse=True, space=space)
        np.testing.assert_array_equal(found, wanted)


def test_read_only_memory_is_left_alone(pool, model, tmp_path):
    np.save(tmp_path / "pool.npy", pool.astype(np.float32))
    mapped = np.load(tmp_path / "pool.npy", mmap_mode="r")
    for name in ("variance", "coreset"):
        np.testing.assert_array_equal(ask(name, mapped, 5, model), ask(name, pool.astype(np.float32), 5, model))


def test_an_iterator_is_read_once(pool, model):
    def blocks():
        return iter([pool[:50], pool[50:]])

    np.testing.assert_array_equal(ask("variance", blocks(), 5, model), ask("variance", pool, 5, model))
    np.testing.assert_array_equal(
        query("random", blocks(), 5, random_state=1), query("random", pool, 5, random_state=1)
    )
    with pytest.raises(InputError, match="more than once"):
        query("coreset", blocks(), 5)
    with pytest.raises(InputError, match="more than once"):
        ask("variance", blocks(), 5, model, diverse=True)


def test_named_columns_are_matched_by_name(city, tmp_path):
    names = [f"f{i}" for i in range(city.X.shape[1])]
    frame = pd.DataFrame(city.X, columns=names)
    model = DirichletLDL(random_state=0).fit(frame[:100], city.D[:100])
    frame[100:].assign(extra="text")[["extra", *names[::-1]]].to_parquet(tmp_path / "pool.parquet")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = query("variance", tmp_path / "pool.parquet", 7, model=model)
    np.testing.assert_array_equal(found, query("variance", frame[100:], 7, model=model))
    frame[100:].drop(columns="f2").to_parquet(tmp_path / "less.parquet")
    with pytest.raises(InputError, match="f2"):
        query("variance", tmp_path / "less.parquet", 7, model=model)


def test_large_pools_are_thinned_and_scaled_in_one_pass(monkeypatch):
    random = np.random.default_rng(0)
    X = 1e4 + random.normal(0, [1.0, 1e-3, 30.0], (5000, 3))
    monkeypatch.setattr(import_module("snefy_ldl.active.query"), "POOL_ROWS", 333)
    geometry = Geometry.of(Pool(X, block_rows=333), True)
    np.testing.assert_allclose(geometry.mean, X.mean(0), rtol=1e-12)
    np.testing.assert_allclose(geometry.deviation, X.std(0), rtol=1e-9)
    for name in ("kmeans", "coreset", "graph_density"):
        rows, utilities = query(name, X, 20, random_state=0, max_rows=200, return_utilities=True)
        assert len(set(rows.tolist())) == 20
        assert np.isnan(utilities).sum() == (4800 if name == "graph_density" else 0)


def test_mini_batches_beyond_the_limit(monkeypatch, pool):
    monkeypatch.setattr("snefy_ldl.active.features.FULL_KMEANS_ROWS", 50)
    assert len(set(query("kmeans", pool, 6, random_state=0).tolist())) == 6


def test_progress_goes_to_stderr_and_only_when_asked(pool, capsys):
    query("coreset", pool, 3)
    assert capsys.readouterr() == ("", "")
    query("coreset", pool, 3, verbose=True)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "distance" in shown.err
