"""Votes by the command line: fits in every form, what votes tell about an item, and who should get the next one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from commands import fail, run, succeed
from snefy_ldl import AnnotatorLDL, SnefyLDL, load
from snefy_ldl.apps.cli import tables as cli_tables
from snefy_ldl.datasets import make_annotators
from snefy_ldl.votes import Votes, update

LABELS = ["label_0", "label_1", "label_2"]


@pytest.fixture(scope="module")
def counts() -> pd.DataFrame:
    data = make_annotators(n=70, n_labels=3, votes=(2, 9), random_state=0)
    return pd.DataFrame(data.counts.astype(int), columns=LABELS)


@pytest.fixture(scope="module")
def features(folder: Path) -> list[str]:
    return list(pd.read_csv(folder / "items.csv").columns[1:])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, counts: pd.DataFrame) -> Path:
    """One set of votes in every form, and a model fitted to them by the library."""
    folder = tmp_path_factory.mktemp("votes")
    data = make_annotators(n=70, n_labels=3, votes=(2, 9), random_state=0, long_table=True)
    votes = pd.DataFrame(data.votes)
    items = pd.DataFrame(data.X, columns=data.feature_names)
    items.insert(0, "item", [f"{i:03d}" for i in range(70)])
    votes["item"] = [f"{i:03d}" for i in votes["item"]]
    items.to_csv(folder / "items.csv", index=False)
    votes.to_csv(folder / "votes.csv", index=False)
    votes.merge(items, on="item").to_csv(folder / "votes_with_features.csv", index=False)
    votes.rename(columns={"item": "Frage", "annotator": "Wer", "label": "Was"}).to_csv(
        folder / "german.csv", index=False
    )
    items[["item"]].join(counts).to_csv(folder / "counts.csv", index=False)
    items.join(counts).to_csv(folder / "counts_with_features.csv", index=False)
    model = SnefyLDL(n_neurons=10, n_readouts=4, epochs=2, guides=None, random_state=0, device="cpu")
    model.fit(items[data.feature_names], counts=counts).save(folder / "model")
    return folder


# --- fits -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("items.csv", "--vote-file", "votes.csv"),
        ("items.csv", "--vote-file", "votes.csv", "--votes", "long"),
        ("votes_with_features.csv", "--votes", "long"),
        ("items.csv", "--vote-file", "german.csv", "--votes", "long", "--vote-columns", "Frage,Wer,Was"),
        ("items.csv", "--vote-file", "counts.csv", "--votes", "counts"),
        ("items.csv", "--vote-file", "counts.csv", "--labels", ",".join(LABELS)),
        ("counts_with_features.csv", "--votes", "counts", "--labels", ",".join(LABELS)),
    ],
    ids=" ".join,
)
def test_every_form_of_votes_gives_the_same_model(
    folder: Path, counts: pd.DataFrame, features: list[str], tmp_path: Path, words: tuple[str, ...]
) -> None:
    made = [folder / word if word.endswith(".csv") else word for word in words]
    result = succeed(
        "fit", *made, "--out", tmp_path / "m", "--set", "epochs=1", "--set", "guides=null", "--seed", 2, "-q"
    )
    assert "70 rows (60 to learn from, 10 held back for validation), 4 features, 3 labels, votes" in result.stdout
    assert "on 70 items" in result.stderr  # the report before the fit
    assert "Krippendorff" in result.stderr
    X = pd.read_csv(folder / "items.csv")[features]
    expected = SnefyLDL(epochs=1, guides=None, random_state=2).fit(X, counts=counts)
    saved = SnefyLDL.load(tmp_path / "m")
    assert list(saved.label_names_) == LABELS
    assert saved.predict(X).equals(expected.predict(X))


@pytest.mark.slow
def test_what_is_odd_is_said(folder: Path, tmp_path: Path) -> None:
    votes = pd.read_csv(folder / "votes.csv", dtype=str)
    odd = pd.concat([votes, votes[:1], pd.DataFrame({"item": ["999"], "annotator": ["1"], "label": ["label_0"]})])
    odd = odd[odd["item"] != "004"]
    odd.to_csv(tmp_path / "odd.csv", index=False)
    result = succeed(
        *("fit", folder / "items.csv", "--vote-file", tmp_path / "odd.csv", "--out", tmp_path / "m"),
        *("--set", "epochs=1", "-q"),
    )
    assert "warning: 1 vote repeats an earlier one" in result.stderr
    assert "1 labelled rows are not in items.csv and were left out: 999" in result.stderr
    assert "69 rows" in result.stdout


def test_fit_failures_on_votes(folder: Path, features: list[str], tmp_path: Path) -> None:
    out = ("--out", tmp_path / "m")
    items, votes = folder / "items.csv", folder / "votes.csv"
    assert "has no feature columns" in fail("fit", votes, "--votes", "long", *out)
    assert "long table of votes" in fail("fit", items, "--vote-file", folder / "counts.csv", "--votes", "long", *out)
    assert "name three columns" in fail("fit", items, "--vote-file", votes, "--vote-columns", "item,label", *out)
    assert "not one row of other.csv is in items.csv" in fail("fit", items, "--vote-file", _other(tmp_path), *out)
    changed = pd.read_csv(folder / "votes_with_features.csv", dtype={"item": str})
    changed.loc[1, features[0]] += 1.0
    changed.to_csv(tmp_path / "changed.csv", index=False)
    assert "column 'feature_0' has several values for item '000'" in fail(
        "fit", tmp_path / "changed.csv", "--votes", "long", *out
    )
    assert "not among" in fail("fit", items, "--vote-file", votes, "--labels", "label_0,label_1", *out)
    assert not (tmp_path / "m").exists()
    for words in (
        ("fit", items, *out),
        ("fit", items, "--votes", "some", *out),
    ):
        result = run(*words)
        assert result.exit_code == 2, result.output


def _other(tmp_path: Path) -> Path:
    (tmp_path / "other.csv").write_text("item,annotator,label\nx1,ann,label_0\nx1,bob,label_1\n")
    return tmp_path / "other.csv"


# --- update -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ["votes.csv", "counts.csv"])
def test_votes_give_the_distribution_given_features_and_votes(
    folder: Path, counts: pd.DataFrame, features: list[str], tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Means and intervals against draws of the prior weighted by the chance of the votes, at 5.5 standard errors."""
    monkeypatch.setattr(cli_tables, "BLOCK_ITEMS", 32)
    out = tmp_path / "posterior.csv"
    succeed(
        *("predict", folder / "model", folder / "items.csv", "--votes", folder / name),
        *("--interval", 0.8, "--out", out),
    )
    table = pd.read_csv(out, dtype={"item": str})
    ends = [f"{label}_{end}" for label in LABELS for end in ("low", "high")]
    assert set(table.columns) == {"item", "votes", *LABELS, *ends}
    items = pd.read_csv(folder / "items.csv", dtype={"item": str})
    assert list(table["item"]) == list(items["item"])
    np.testing.assert_array_equal(table["votes"], counts.sum(axis=1))
    model = SnefyLDL.load(folder / "model")
    draws = model.sample(items[features], 20_000, random_state=1)  # (S, N, L)
    weight = np.exp((np.log(draws) * counts.to_numpy()).sum(-1))
    weight /= weight.sum(0)
    told = 1.0 / (weight**2).sum(0) > 400  # items for which enough draws agree with the votes to judge by
    assert told.mean() > 0.8
    mean = (weight[..., None] * draws).sum(0)
    error = np.sqrt((weight[..., None] ** 2 * (draws - mean) ** 2).sum(0))
    assert (np.abs(table[LABELS].to_numpy() - mean) < 5.5 * error + 1e-6)[told].all()
    inside = np.stack([draws >= table[ends[::2]].to_numpy(), draws <= table[ends[1::2]].to_numpy()]).all(0)
    chance = (weight[..., None] * inside).sum(0)
    spread = np.sqrt((weight[..., None] ** 2 * (inside - chance) ** 2).sum(0))
    assert (np.abs(chance - 0.8) < 5.5 * spread + 1e-3)[told].all()


def test_items_without_votes_keep_the_predicted_distribution(folder: Path, features: list[str], tmp_path: Path) -> None:
    (tmp_path / "few.csv").write_text("item,annotator,label\n003,ann,label_2\n003,bob,label_2\n777,bob,label_0\n")
    result = succeed(
        "predict", folder / "model", folder / "items.csv", "--votes", tmp_path / "few.csv", "--out", tmp_path / "p.csv"
    )
    assert "votes on 1 items that items.csv lacks: 777" in result.stderr
    table, X = pd.read_csv(tmp_path / "p.csv"), pd.read_csv(folder / "items.csv")[features]
    model = SnefyLDL.load(folder / "model")
    others = np.arange(70) != 3
    np.testing.assert_allclose(table[LABELS][others], model.predict(X)[others], atol=1e-6)
    ends = table[[f"{label}_{end}" for label in LABELS for end in ("low", "high")]].to_numpy().reshape(-1, 3, 2)
    np.testing.assert_allclose(ends[others], model.predict_interval(X, 0.9)[others], atol=1e-5)
    assert table["label_2"][3] > model.predict(X)["label_2"][3]
    assert list(table["votes"].to_numpy().nonzero()[0]) == [3]


# --- next -------------------------------------------------------------------------------------------------------------


def test_next_gives_the_items_whose_vote_is_worth_most(
    folder: Path, counts: pd.DataFrame, features: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gain against what it means: total variance now, less its average over the outcomes of one more vote."""
    monkeypatch.setattr(cli_tables, "BLOCK_ITEMS", 32)
    out = tmp_path / "next.csv"
    succeed("query", folder / "model", folder / "items.csv", "--votes", folder / "votes.csv", "--n", 8, "--out", out)
    table = pd.read_csv(out, dtype={"item": str})
    items = pd.read_csv(folder / "items.csv", dtype={"item": str})
    model, votes = SnefyLDL.load(folder / "model"), np.array(counts, dtype=float)
    now = update(model, items[features], votes)
    after = torch.zeros(70)
    for label in range(3):
        outcome = update(model, items[features], votes + np.eye(3)[label])
        after = after + now.mean[:, label] * outcome.variance.sum(-1)
    gain = (now.variance.sum(-1) - after).numpy()
    order = np.argsort(-gain)[:8]
    assert list(table["item"]) == list(items["item"][order])
    np.testing.assert_allclose(table["expected_gain"], gain[order], rtol=1e-3)
    np.testing.assert_array_equal(table["votes"], votes.sum(1)[order])
    np.testing.assert_allclose(table[[f"predicted_{label}" for label in LABELS]], now.mean[order], atol=1e-5)


def test_costs_and_limits_are_settings(folder: Path) -> None:
    words = ("query", folder / "model", folder / "items.csv", "--votes", folder / "votes.csv")
    many = succeed(*words, "--n", 100, "--set", "max_per_item=2").stdout.splitlines()
    assert len(many) == 101
    assert "has 70 items" in fail(*words, "--n", 71)
    assert "criterion='luck': use" in fail(*words, "--n", 5, "--set", "criterion=luck")
    assert "above 0" in fail(*words, "--set", "max_per_item=0")
    assert "--set draws: with --votes use one of" in fail(*words, "--set", "draws=3")
    assert "--skip does not go with --votes" in fail(*words, "--skip", folder / "votes.csv")


def test_failures_on_votes_are_one_line(folder: Path, tmp_path: Path) -> None:
    model, items, votes = folder / "model", folder / "items.csv", folder / "votes.csv"
    update = ("predict", model, items, "--votes")
    assert "no file at" in fail(*update, tmp_path / "none.csv")
    assert "strictly between 0 and 1" in fail(*update, votes, "--interval", 90)
    assert "unknown ending" in fail("query", model, items, "--votes", votes, "--out", tmp_path / "out.doc")
    assert "no item of other.csv" in fail(*update, _other(tmp_path))
    assert "not among" in fail("query", model, items, "--votes", _foreign(tmp_path))
    (tmp_path / "shares.csv").write_text("item,label_0,label_1,label_2\n001,0.5,0.25,0.25\n")
    assert "needs votes" in fail(*update, tmp_path / "shares.csv")
    (tmp_path / "unnamed.csv").write_text("label_0,label_1,label_2\n1,0,4\n")
    assert "no column that names the items" in fail(*update, tmp_path / "unnamed.csv")
    doubled = items.read_text() + items.read_text().splitlines()[1] + "\n"
    (tmp_path / "doubled.csv").write_text(doubled)
    assert "two items are named '000'" in fail("query", model, tmp_path / "doubled.csv", "--votes", votes)
    assert run(*update, votes, "--ask", "draws(2)").exit_code == 2


def _foreign(tmp_path: Path) -> Path:
    (tmp_path / "foreign.csv").write_text("item,annotator,label\n001,ann,spleen\n")
    return tmp_path / "foreign.csv"


# --- annotators -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Votes of eight annotators with enough votes each, facts about them, and a model fitted to both."""
    folder = tmp_path_factory.mktemp("people")
    data = make_annotators(n=60, n_labels=3, votes=5, n_annotators=8, random_state=0, long_table=True)
    votes = pd.DataFrame(data.votes)
    items = pd.DataFrame(data.X, columns=data.feature_names)
    items.insert(0, "item", range(60))
    items.to_csv(folder / "items.csv", index=False)
    votes.to_csv(folder / "votes.csv", index=False)
    facts = pd.DataFrame({"annotator": sorted(votes["annotator"].unique())})
    facts["age"] = ["young", "old"] * 4
    facts.to_csv(folder / "facts.csv", index=False)
    result = succeed(
        *("fit", folder / "items.csv", "--vote-file", folder / "votes.csv", "--annotators", folder / "facts.csv"),
        *("--out", folder / "model", "--set", "epochs=2", "--set", "n_neurons=8", "--seed", 1, "-q"),
    )
    assert "3 labels, votes of 8 annotators" in result.stdout
    return folder


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:4 annotator:snefy_ldl.errors.TableNote")
def test_fit_with_facts_is_the_library_fit(people: Path) -> None:
    items = pd.read_csv(people / "items.csv")
    votes = Votes.from_long(pd.read_csv(people / "votes.csv", dtype=str))
    votes = votes.with_facts(pd.read_csv(people / "facts.csv", dtype=str))
    order = [int(name) for name in votes.items]
    X = items.drop(columns="item").iloc[order].reset_index(drop=True)
    expected = AnnotatorLDL(SnefyLDL(n_neurons=8, epochs=2, random_state=1)).fit(X, votes)
    saved = load(people / "model")
    group = {"age": "old"}
    assert np.allclose(saved.predict(X, of=group), expected.predict(X, of=group))


@pytest.mark.slow
def test_long_votes_learn_their_annotators_where_there_are_enough(people: Path, folder: Path, tmp_path: Path) -> None:
    words = ("--votes", "long", "--out", tmp_path / "m", "--set", "epochs=1", "--set", "n_neurons=8", "-q")
    result = succeed("fit", people / "items.csv", "--vote-file", people / "votes.csv", *words)
    assert "votes of 8 annotators" in result.stdout
    result = succeed("fit", folder / "items.csv", "--vote-file", folder / "votes.csv", *words)
    assert "votes per annotator are too few" in result.stderr


@pytest.mark.slow
def test_annotators_are_printed_and_written(people: Path, folder: Path, tmp_path: Path) -> None:
    table = tmp_path / "people.csv"
    result = succeed("info", people / "model", "--annotators", "--out", table)
    assert "8 annotators" in result.stdout
    assert "spam" in result.stdout
    written = pd.read_csv(table)
    assert len(written) == 8
    assert {"annotator", "age", "votes", "agreement_low", "accuracy_label_0", "bias_label_2_high"} <= {*written}
    assert written["votes"].sum() == 300
    assert "was not fitted to single votes" in fail("info", folder / "model", "--annotators")
    out = ("--out", tmp_path / "m")
    items, facts = folder / "items.csv", people / "facts.csv"
    counts = ("--vote-file", folder / "counts.csv", "--labels", ",".join(LABELS))
    assert "no column of annotators" in fail("fit", items, *counts, "--annotators", facts, *out)
    assert "no row of facts" in fail("fit", items, "--vote-file", folder / "votes.csv", "--annotators", facts, *out)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:4 annotator:snefy_ldl.errors.TableNote")
def test_the_panel_is_the_default_and_of_names_others(people: Path, tmp_path: Path) -> None:
    model, items = load(people / "model"), pd.read_csv(people / "items.csv")
    X, name = items.drop(columns="item"), pd.read_csv(people / "facts.csv")["annotator"][0]
    askings = {"": "panel", "latent": "latent", str(name): str(name), "age=old": {"age": "old"}}
    for text, of in askings.items():
        words = ("--of", text) if text else ()
        succeed("predict", people / "model", people / "items.csv", "--out", tmp_path / "out.csv", *words)
        written = pd.read_csv(tmp_path / "out.csv").to_numpy()
        assert np.allclose(written, np.asarray(model.predict(X, of=of)), atol=1e-6)
    scored = ("evaluate", people / "model", people / "items.csv", "--vote-file", people / "votes.csv", "--json")
    for text, whose in ((), "the panel"), (("--of", "latent"), "latent labels"):
        report = json.loads(succeed(*scored, *text).stdout)
        assert report["log_likelihood"]["of"] == f"votes of {whose}"
    assert "no annotator has age='young at heart'" in fail(*scored, "--of", "age=young at heart")
    succeed(
        "query",
        people / "model",
        people / "items.csv",
        "--votes",
        people / "votes.csv",
        "--n",
        8,
        "--out",
        tmp_path / "next.csv",
    )
    pairs = pd.read_csv(tmp_path / "next.csv")
    assert list(pairs.columns) == ["item", "annotator", "expected_gain"]
    assert pairs["annotator"].value_counts().max() <= 2
    succeed(
        "predict",
        people / "model",
        people / "items.csv",
        "--votes",
        people / "votes.csv",
        "--out",
        tmp_path / "after.csv",
    )
    after = pd.read_csv(tmp_path / "after.csv")
    votes = Votes.from_long(pd.read_csv(people / "votes.csv", dtype=str)).on_items([str(one) for one in items["item"]])
    wanted, _ = model.predict_given_votes(X, votes)
    assert np.allclose(after[["label_0", "label_1", "label_2"]], wanted, atol=1e-6)
