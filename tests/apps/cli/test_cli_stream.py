"""``fit --stream``: a folder of Parquet files, read as it comes."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from commands import fail, run, succeed
from snefy_ldl import SnefyLDL
from snefy_ldl.datasets import make_city_districts

CITY = make_city_districts(n=600, random_state=0)


@pytest.fixture
def folder(tmp_path):
    table = pd.DataFrame(CITY.X, columns=CITY.feature_names).join(pd.DataFrame(CITY.D, columns=CITY.label_names))
    (tmp_path / "city" / "late").mkdir(parents=True)
    table[:250].to_parquet(tmp_path / "city" / "a.parquet")
    table[250:].to_parquet(tmp_path / "city" / "late" / "b.pq", index=False)
    return tmp_path


def test_a_folder_becomes_a_model(folder):
    labels = ",".join(CITY.label_names)
    text = succeed(
        "fit", folder / "city", "--stream", "--labels", labels, "--out", folder / "m", "--set", "epochs=6"
    ).stdout
    assert text.startswith("600 rows (")
    assert "5 features, 3 labels" in text
    model = SnefyLDL.load(folder / "m")
    mean = np.asarray(model.predict(pd.DataFrame(CITY.X, columns=CITY.feature_names)))
    truth = CITY.truth.mean(CITY.X)
    assert ((mean - truth) ** 2).mean() < 0.6 * ((CITY.D.mean(0) - truth) ** 2).mean()
    assert list(model.label_names_) == CITY.label_names
    assert list(model.feature_names_in_) == CITY.feature_names


def test_what_cannot_be_streamed_is_told(folder):
    out = folder / "m"
    assert "no file at" in fail("fit", folder / "none", "--stream", "--labels", "a,b", "--out", out)
    assert "zzz" in fail("fit", folder / "city", "--stream", "--labels", "business,zzz", "--out", out)
    assert run("fit", folder / "city", "--stream", "--votes", "long", "--out", out).exit_code == 2
