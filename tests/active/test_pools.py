"""Pools of every kind: arrays, tables, sparse rows, files and streams, a block at a time."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from snefy_ldl.active import query
from snefy_ldl.errors import InputError
from snefy_ldl.learners import DirichletLDL


def ask(name, pool, n, model, **options):
    draws = {"n_draws": 30} if name == "entropy" else {}
    return query(name, pool, n, model=model, random_state=0, **(draws | options))


@pytest.mark.parametrize("name", ["random", "lcmd"])
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


def test_named_columns_are_matched_by_name(city, tmp_path):
    names = [f"f{i}" for i in range(city.X.shape[1])]
    frame = pd.DataFrame(city.X, columns=names)
    model = DirichletLDL(random_state=0).fit(frame[:100], city.D[:100])
    frame[100:].assign(extra="text")[["extra", *names[::-1]]].to_parquet(tmp_path / "pool.parquet")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = query("entropy", tmp_path / "pool.parquet", 7, model=model, random_state=0)
    np.testing.assert_array_equal(found, query("entropy", frame[100:], 7, model=model, random_state=0))
    frame[100:].drop(columns="f2").to_parquet(tmp_path / "less.parquet")
    with pytest.raises(InputError, match="f2"):
        query("entropy", tmp_path / "less.parquet", 7, model=model)
