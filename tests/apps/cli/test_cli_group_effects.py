"""Groups of rows on the command line: ``fit --groups``, and the commands that read the column again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from commands import run, succeed
from snefy_ldl import GroupedLDL, LogRatioLDL, load
from snefy_ldl.conformal import NewGroupIntervals
from snefy_ldl.datasets import make_groups

LABELS = ["a", "b", "c"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables of 20 children, whose names look like numbers, and a model of those in train.csv."""
    folder = tmp_path_factory.mktemp("groups")
    data = make_groups(n_groups=20, n_rows=20, effect=0.8, random_state=3)
    table = pd.DataFrame(data.X, columns=["w", "x", "y", "z"]).assign(child=[f"{g:03d}" for g in data.groups])
    table = table.assign(**dict(zip(LABELS, data.D.T)))
    held = np.arange(len(table)) % 20 >= 15
    table[~held].to_csv(folder / "train.csv", index=False)
    table[held].to_csv(folder / "test.csv", index=False)
    table[held].drop(columns="child").to_csv(folder / "unknown.csv", index=False)
    words = ("--labels", ",".join(LABELS), "--groups", "child", "--set", "epochs=20", "--set", "n_members=1", "-q")
    said = succeed("fit", folder / "train.csv", *words, "--out", folder / "model")
    assert "4 features, 3 labels" in said.stdout
    assert "groups: 20 of child; group effects: kept" in said.stdout
    return folder


@pytest.mark.slow
def test_predict_uses_the_column_of_groups(folder: Path) -> None:
    model, test = load(folder / "model"), pd.read_csv(folder / "test.csv")
    assert model.group_effects_.levels == ("child",)
    out = folder / "out.csv"
    for table, groups, words in (
        ("test.csv", test["child"], "note: test.csv: column 'child' holds the groups of the rows"),
        ("unknown.csv", None, "note: unknown.csv has no column 'child': those groups are not known"),
    ):
        keep = ("--keep", "child") if groups is not None else ()
        said = succeed("predict", folder / "model", folder / table, *keep, "--interval", "0.9", "--out", out)
        assert said.stderr.count(words) == 1
        written = pd.read_csv(out, dtype={"child": str})
        X = test[["w", "x", "y", "z"]]
        assert np.allclose(written[LABELS], model.predict_dist(X, groups=groups).mean.numpy(), atol=2e-6)
        ends = model.predict_interval(X, 0.9, groups=groups)
        assert np.allclose(written[["a_low", "a_high"]], ends[:, 0], atol=2e-6)
    said = succeed("predict", folder / "model", folder / "test.csv", "--keep", "child")
    assert said.stdout.splitlines()[1].startswith("000,")  # kept as it stands in the table


@pytest.mark.slow
def test_evaluate_and_conformalize_use_it_too(folder: Path) -> None:
    scores = {}
    for table in ("test.csv", "unknown.csv"):
        answer = json.loads(succeed("evaluate", folder / "model", folder / table, "--json").stdout)
        scores[table] = answer["log_likelihood"]["value"]
    assert scores["test.csv"] > scores["unknown.csv"] + 0.1
    width = {}
    for table in ("test.csv", "unknown.csv"):
        succeed("conformalize", folder / "model", folder / table, "--method", "quantile")
        answer = json.loads(succeed("evaluate", folder / "model", folder / table, "--json").stdout)
        width[table] = answer["interval"]["calibrated"]["width"]["value"]
    assert width["test.csv"] < width["unknown.csv"]


def test_groups_that_cannot_be_used_raise(tmp_path: Path) -> None:
    file = tmp_path / "table.csv"
    pd.DataFrame({"x": [1.0, 2.0], "a": [0.5, 0.4], "b": [0.5, 0.6]}).to_csv(file, index=False)
    words = ("fit", file, "--labels", "a,b", "--out", tmp_path / "model", "--groups", "child")
    assert "lacks 1 column(s) (--groups): child" in run(*words).stderr
    assert "--groups does not go with" in run(*words, "--stream").stderr
    data = make_groups(n_groups=6, n_rows=6, random_state=3)
    pd.DataFrame(data.X).assign(farm=data.groups // 3, id=data.groups, a=0.4, b=0.6).to_csv(file, index=False)
    words = ("fit", file, "--labels", "a,b", "--out", tmp_path / "model", "--set", "guides=null")
    assert "of several columns the one whose groups will be new" in run(*words, "--groups", "farm,id").stderr


@pytest.mark.slow
@pytest.mark.usefixtures("blank_pictures")
def test_log_ratios_keep_groups_together_and_every_command_reads_their_table(folder: Path, tmp_path: Path) -> None:
    model, settings = tmp_path / "model", {"max_iter": 20, "n_trees": 10}
    words = ("--labels", ",".join(LABELS), "--groups", "child", "--density", "logratio", "-q", "--out", model)
    options = [f"--set={name}={value}" for name, value in settings.items()]
    assert "20 of child; group effects: kept" in succeed("fit", folder / "train.csv", *words, *options).stdout
    train, test = (pd.read_csv(folder / f"{name}.csv") for name in ("train", "test"))
    direct = GroupedLDL(LogRatioLDL(**settings, random_state=0))
    D = train[LABELS].div(train[LABELS].sum(axis=1), axis=0)  # as the command closes rows, to the last bit
    direct.fit(train[["w", "x", "y", "z"]], D, groups=train["child"])
    succeed("predict", model, folder / "test.csv", "--out", tmp_path / "out.csv")
    expected = direct.predict(test[["w", "x", "y", "z"]], groups=test["child"])
    assert np.allclose(pd.read_csv(tmp_path / "out.csv")[LABELS], expected, atol=2e-6)
    again = json.loads(succeed("evaluate", model, folder / "test.csv", "--json").stdout)
    assert again["log_likelihood"]["value"] == pytest.approx(
        direct.score(test[list("wxyz")], test[LABELS], groups=test["child"]), abs=1e-5
    )
    assert "LogRatioLDL" in succeed("info", model).stdout
    succeed("report", model, folder / "train.csv", "--folds", 2, "--out", tmp_path / "page")
    assert "each by one of 2 models that have not seen its group" in (tmp_path / "page" / "index.html").read_text()
    assert isinstance(load(model), GroupedLDL)


@pytest.mark.slow
def test_explain_and_query_use_the_column_of_groups(folder: Path) -> None:
    model, test = load(folder / "model"), pd.read_csv(folder / "test.csv")
    effects = {}
    for table in ("test.csv", "unknown.csv"):
        words = ("--feature", "w", "--step", 1, "--json")
        said = succeed("explain", folder / "model", folder / table, *words)
        effects[table] = json.loads(said.stdout)["effects"][0]["estimate"]
    X = test[["w", "x", "y", "z"]]
    moved, mean = model.predict(X.assign(w=X["w"] + 1), groups=test["child"]), model.predict(X, groups=test["child"])
    assert effects["test.csv"] == pytest.approx((moved - mean).mean(0).iloc[0], abs=1e-6)
    assert effects["test.csv"] != pytest.approx(effects["unknown.csv"], abs=1e-4)

    out = folder / "chosen.csv"
    words = ("--n", 5, "--strategy", "lcmd", "--labeled", folder / "train.csv", "--out", out)
    said = succeed("query", folder / "model", folder / "test.csv", *words)
    assert said.stderr.count("test.csv: column 'child' holds the groups of the rows") == 1
    chosen = pd.read_csv(out)
    assert chosen["row"].nunique() == 5
    assert chosen["child"].tolist() == test["child"].iloc[chosen["row"]].tolist()
    known = model.predict(X, groups=test["child"])[LABELS].to_numpy()[chosen["row"]]
    assert np.allclose(chosen[[f"predicted_{label}" for label in LABELS]], known, atol=2e-6)


@pytest.mark.slow
def test_intervals_for_new_groups_are_saved_and_used(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "model", tmp_path / "model")
    data = make_groups(n_groups=30, n_rows=4, effect=0.8, random_state=4)
    X = pd.DataFrame(data.X, columns=["w", "x", "y", "z"])
    table = X.assign(child=data.groups + 100, **dict(zip(LABELS, data.D.T)))
    table.to_csv(tmp_path / "new.csv", index=False)
    words = ("conformalize", tmp_path / "model", tmp_path / "new.csv", "--new-groups", "child")
    said = succeed(*words)
    assert "120 calibration rows, method beta, level 0.9, for new groups of child" in said.stdout
    succeed("predict", tmp_path / "model", tmp_path / "new.csv", "--interval", 0.9, "--out", tmp_path / "out.csv")
    model = load(tmp_path / "model")
    intervals = NewGroupIntervals(model).conformalize(X, data.D, groups=data.groups + 100)
    ends = pd.read_csv(tmp_path / "out.csv")[["a_low", "a_high"]]
    assert np.allclose(ends, intervals.predict_interval(X)[:, 0], atol=2e-6)
    assert "--new-groups" in run(*words[:-1], "farm").stderr
    test = (*words[:2], folder / "test.csv", *words[3:])
    assert "20 of the calibration groups trained the model" in run(*test).stderr
