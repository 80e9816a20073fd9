"""Rounds of labelling by the command line: rows out with ``query``, labels back with ``fit --append``."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from commands import fail, succeed
from snefy_ldl import SnefyLDL
from snefy_ldl.active import query
from snefy_ldl.datasets import make_city_districts, table_files
from snefy_ldl.datasets.labelled import append_rows, read_labelled
from snefy_ldl.datasets.table_files import TableSource
from snefy_ldl.errors import InputError

LABELS = ["business", "entertainment", "education"]


@pytest.fixture(scope="module")
def city() -> pd.DataFrame:
    """260 districts with features, shares and a name: 80 to learn from, 180 in the pool."""
    made = make_city_districts(n=260, random_state=0)
    table = pd.DataFrame(made.X, columns=made.feature_names).join(pd.DataFrame(made.D, columns=LABELS))
    table.insert(0, "code", [f"{i:04d}" for i in range(len(table))])
    return table


@pytest.fixture(scope="module")
def features(city: pd.DataFrame) -> list[str]:
    return list(city.columns[1:6])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, city: pd.DataFrame, features: list[str]) -> Path:
    folder = tmp_path_factory.mktemp("rounds")
    train, pool = city[:80], city[80:].reset_index(drop=True)
    train[[*features, *LABELS]].to_csv(folder / "train.csv", index=False)
    pool[features].to_csv(folder / "pool.csv", index=False)
    pool[features].to_parquet(folder / "pool.parquet", row_group_size=50)
    pool[["code", *features]].assign(text=[f"district {i}" for i in range(len(pool))]).to_csv(
        folder / "named.csv", index=False
    )
    model = SnefyLDL(n_neurons=12, n_readouts=4, n_members=2, epochs=2, random_state=0, device="cpu")
    model.fit(train[features], train[LABELS]).save(folder / "model")
    return folder


@pytest.fixture(scope="module")
def pool(city: pd.DataFrame) -> pd.DataFrame:
    return city[80:].reset_index(drop=True)


def fit_words(folder: Path, out: Path) -> tuple[object, ...]:
    labels = ("--labels", ",".join(LABELS))
    settings = ("--set", "epochs=1", "--seed", 3, "--quiet", "--set", "guides=null", "--density", "snefy")
    return ("fit", folder / "train.csv", *labels, *settings, "--out", out)


def same_fit(out: Path, X: pd.DataFrame, D: pd.DataFrame) -> None:
    """The model in the folder is the one that these rows give, to the last bit."""
    fitted = SnefyLDL(epochs=1, random_state=3, guides=None).fit(X.reset_index(drop=True), D.reset_index(drop=True))
    saved = SnefyLDL.load(out)
    np.testing.assert_array_equal(np.asarray(saved.predict(X[:9])), np.asarray(fitted.predict(X[:9])))


# --- query ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("name", "ending"), [("pool.csv", ".parquet"), ("pool.parquet", ".csv")])
def test_query_writes_what_the_library_chooses(
    folder: Path, pool: pd.DataFrame, features: list[str], tmp_path: Path, name: str, ending: str
) -> None:
    out = tmp_path / f"to_label{ending}"
    said = succeed("query", folder / "model", folder / name, "--n", 7, "--strategy", "entropy", "--out", out)
    table = pd.read_csv(out) if ending == ".csv" else pd.read_parquet(out)
    model = SnefyLDL.load(folder / "model")
    rows, scores = query("entropy", pool[features], 7, model=model, random_state=0, return_utilities=True)
    predicted = [f"predicted_{label}" for label in LABELS]
    assert list(table.columns) == ["row", "query_score", *LABELS, *features, *predicted]
    np.testing.assert_array_equal(table["row"], rows)
    np.testing.assert_allclose(table["query_score"], scores[rows], rtol=1e-6)
    np.testing.assert_allclose(table[features], pool.loc[rows, features])
    np.testing.assert_allclose(table[predicted], model.predict(pool.loc[rows, features]), atol=1e-6)
    assert "7 of 180 rows" in said.stderr
    assert table[LABELS].isna().all(axis=None), "they are to be filled in"
    assert [path.name for path in tmp_path.iterdir()] == [out.name]


@pytest.mark.slow
def test_query_in_parts_gives_the_same(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("query", folder / "model", folder / "pool.csv", "-n", 9, "--strategy", "badge", "--seed", 4)

    def table(*words: object) -> pd.DataFrame:
        return pd.read_csv(io.StringIO(succeed(*words).stdout))

    whole = table(*words)
    monkeypatch.setattr(table_files, "CHUNK_ROWS", 41)
    pd.testing.assert_frame_equal(table(*words), whole)
    assert list(table(*words[:-1], 5)["row"]) != list(whole["row"])


@pytest.mark.slow
def test_query_by_name_with_options(folder: Path, pool: pd.DataFrame, tmp_path: Path) -> None:
    words = ("query", folder / "model", folder / "named.csv", "--n", 4, "--id", "code", "--strategy", "entropy")
    settings = ("--set", "n_draws=50", "--labeled", folder / "train.csv")
    out = tmp_path / "out.csv"
    said = succeed(*words, *settings, "--out", out)
    assert "random is as good here" in said.stderr or "choosing rows should pay" in said.stderr
    table = pd.read_csv(out, dtype={"code": str})
    assert list(table.columns[:5]) == ["code", "query_score", *LABELS]
    assert set(table["code"]) <= set(pool["code"])


@pytest.mark.slow
def test_rows_that_were_asked_before_are_skipped(folder: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first.csv", tmp_path / "second.csv"
    words = ("query", folder / "model", folder / "pool.csv", "--n", 5)
    succeed(*words, "--out", first)
    succeed(*words, "--skip", first, "--out", second)
    assert not set(pd.read_csv(first)["row"]) & set(pd.read_csv(second)["row"])
    both = succeed(*words, "--skip", first, "--skip", second).stdout
    assert len(both.splitlines()) == 6
    named = ("query", folder / "model", folder / "named.csv", "--id", "code", "--n", 5)
    succeed(*named, "--out", tmp_path / "third.csv")
    succeed(*named, "--skip", tmp_path / "third.csv", "--out", second)
    codes = [set(pd.read_csv(path, dtype={"code": str})["code"]) for path in (tmp_path / "third.csv", second)]
    assert not codes[0] & codes[1]
    assert "names rows by 'row'" in fail(*named, "--skip", first)


@pytest.mark.slow
def test_query_failures_are_one_line(folder: Path, tmp_path: Path) -> None:
    words = ("query", folder / "model", folder / "pool.csv")
    assert "Did you mean 'entropy'" in fail(*words, "--strategy", "entropi")
    assert "has no option 'draws'" in fail(*words, "--strategy", "entropy", "--set", "draws=3")
    assert "NAME=VALUE" in fail(*words, "--set", "n_draws")
    assert "n_draws has no value; write n_draws=VALUE" in fail(*words, "--set", "n_draws=")
    assert "--labeled" in fail(*words, "--set", "diagnosis=yes")
    assert "n_draws" in fail(*words, "--strategy", "entropy", "--set", "n_draws=many")
    assert "n=500" in fail(*words, "--n", 500)
    assert "unknown ending" in fail(*words, "--out", tmp_path / "out.doc")
    assert "is a folder" in fail(*words, "--out", _folder(tmp_path / "folder.csv"))
    assert "(--id): code" in fail(*words, "--id", "code")
    assert "no file at" in fail(*words, "--skip", tmp_path / "none.csv")
    assert "no column that names" in fail(*words, "--skip", folder / "train.csv")
    (tmp_path / "answered.csv").write_text((folder / "pool.csv").read_text().replace("\n", ",1\n"))
    text = (folder / "pool.csv").read_text().splitlines()
    (tmp_path / "scored.csv").write_text("\n".join([text[0] + ",query_score", *(line + ",1" for line in text[1:])]))
    assert "rename it" in fail("query", folder / "model", tmp_path / "scored.csv", "--id", "query_score")


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


# --- and back ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_filled_in_table_comes_back(folder: Path, city: pd.DataFrame, features: list[str], tmp_path: Path) -> None:
    succeed("query", folder / "model", folder / "pool.csv", "--n", 6, "--out", tmp_path / "asked.csv")
    asked = pd.read_csv(tmp_path / "asked.csv")
    truth = city[80:].reset_index(drop=True).loc[asked["row"]].reset_index(drop=True)
    filled = asked.assign(**truth[LABELS])
    filled.loc[5, LABELS] = np.nan  # not done yet
    filled.to_csv(tmp_path / "filled.csv", index=False)
    said = succeed(*fit_words(folder, tmp_path / "m"), "--append", tmp_path / "filled.csv")
    assert "filled.csv: 5 labelled rows added" in said.stdout
    assert "85 rows (72 to learn from, 13 held back for validation), 5 features" in said.stdout
    assert "1 row without labels skipped" in said.stderr
    expected = pd.concat([city[:80], truth[:5]])
    same_fit(tmp_path / "m", expected[features], expected[LABELS])


@pytest.mark.slow
def test_append_failures_are_one_line(folder: Path, city: pd.DataFrame, features: list[str], tmp_path: Path) -> None:
    def appended(labels: str, columns: list[str], file: str = "labels.csv") -> str:
        cells = ",".join(map(str, city.loc[0, columns]))
        (tmp_path / "labels.csv").write_text(f"{','.join([*columns, *LABELS])}\n{cells},{labels}\n")
        return fail(*fit_words(folder, tmp_path / "m"), "--append", tmp_path / file)

    assert "sum to 1.4; shares must sum to 1" in appended("0.2,0.3,0.9", features)
    assert "'many' is no number" in appended("many,0.3,0.5", features)
    assert "not one row has a label" in appended(",,", features)
    assert f"lacks 1 column(s) (features of the rows before): {features[0]}" in appended("0.2,0.3,0.5", features[1:])
    assert "append rows of the same kind" in appended("5,2,1", features)
    assert "no file at" in appended("0.2,0.3,0.5", features, "none.csv")
    assert not (tmp_path / "m").exists()


def test_shares_and_votes_do_not_join(tmp_path: Path) -> None:
    (tmp_path / "votes.csv").write_text("id,x,a,b\n1,0.5,2,1\n2,0.7,0,3\n")
    (tmp_path / "shares.csv").write_text("id,x,a,b\n3,0.5,0.25,0.75\n")
    votes, shares = (
        read_labelled(TableSource(tmp_path / f"{name}.csv"), ["a", "b"], ["x"]) for name in ("votes", "shares")
    )
    assert votes.are_counts
    with pytest.raises(InputError, match=r"shares\.csv shares; append rows of the same kind"):
        append_rows(votes, shares)
    assert append_rows(votes, votes).labels.tolist() == [[2, 1], [0, 3]] * 2


def test_ones_and_zeros_follow_the_rows_they_join(tmp_path: Path) -> None:
    (tmp_path / "one.csv").write_text("id,a,b\n1,1,0\n2,0,1\n")
    assert not read_labelled(TableSource(tmp_path / "one.csv"), ["a", "b"]).are_counts
    assert read_labelled(TableSource(tmp_path / "one.csv"), ["a", "b"], prefer_counts=True).are_counts


@pytest.mark.slow
def test_what_query_wrote_is_no_feature(folder: Path, city: pd.DataFrame, tmp_path: Path) -> None:
    succeed("query", folder / "model", folder / "pool.csv", "--n", 60, "--out", tmp_path / "asked.csv")
    asked = pd.read_csv(tmp_path / "asked.csv")
    truth = city[80:].reset_index(drop=True).loc[asked["row"], LABELS].reset_index(drop=True)
    asked.assign(**truth).to_csv(tmp_path / "filled.csv", index=False)
    words = ("--labels", ",".join(LABELS), "--out", tmp_path / "m", "--set", "epochs=1", "-q")
    result = succeed("fit", tmp_path / "filled.csv", *words)
    assert "60 rows (48 to learn from, 12 held back for validation), 5 features" in result.stdout
    assert "not used as features" in result.stderr
