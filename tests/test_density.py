"""The choice between two densities, and a log-ratio density in every command and in the service."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm
from sklearn.base import clone
from sklearn.model_selection import KFold

from commands import fail, run, succeed
from snefy_ldl import SnefyLDL, fit_density, load_density
from snefy_ldl._internal.model_files import load_calibration
from snefy_ldl._internal.seen import count_seen
from snefy_ldl.errors import InputError, MissingLabelWarning, ModelFileError
from snefy_ldl.learners import AAKNN
from snefy_ldl.logratio import LogRatioLDL

LABELS = ["sand", "silt", "clay", "peat"]


def make_table(n: int, seed: int) -> pd.DataFrame:
    """Log-ratios that are correlated beyond what independent gammas can be."""
    random = np.random.default_rng(seed)
    depth, side = random.normal(size=n), np.array(["north", "south"])[random.integers(2, size=n)]
    shared = random.normal(size=(n, 1)) * [1.0, 1.0, -1.0, -1.0] + 0.05 * random.normal(size=(n, 4))
    logs = 0.4 * shared + np.outer(depth, [0.5, 0.0, 0.2, 0.0]) + (side == "north")[:, None] * [0.3, 0.0, 0.0, 0.0]
    shares = np.exp(logs)
    return pd.DataFrame({"depth": depth, "side": side} | dict(zip(LABELS, (shares / shares.sum(1, keepdims=True)).T)))


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("tables")
    for number, (name, n) in enumerate({"train": 90, "cal": 60, "test": 30}.items()):
        make_table(n, number).to_csv(place / f"{name}.csv", index=False)
    return place


@pytest.fixture(scope="module")
def folder(tables: Path) -> Path:
    """A log-ratio density, fitted on the command line because it was likelier."""
    words = ("fit", tables / "train.csv", "--labels", ",".join(LABELS), "--density", "auto", "--epochs", 3)
    output = succeed(*words, "--set", "guides=null", "--out", tables / "model", "-q").output
    assert "density logratio: rows left out are likelier under the log-ratio density, by" in output
    return tables / "model"


def quick() -> dict[str, object]:
    return {
        "snefy": SnefyLDL(n_neurons=8, epochs=2, guides=None, random_state=0),
        "logratio": LogRatioLDL(n_components=1, guides=["ridge"], random_state=0),
    }


def test_auto_compares_rows_that_were_left_out() -> None:
    table = make_table(60, 3)
    X, D = table[["depth"]].to_numpy(), table[LABELS].to_numpy()
    model = fit_density(X, D, cv=3, random_state=0, **quick())
    choice = model.density_choice_
    seed = int(np.random.RandomState(0).randint(2**31 - 1))
    gains = {}
    for name, one in quick().items():
        scores = np.empty(60)
        for train, test in KFold(3, shuffle=True, random_state=seed).split(D):
            scores[test] = clone(one).fit(X[train], D[train]).log_prob(X[test], D[test])
        gains[name] = scores
    gain = gains["logratio"] - gains["snefy"]
    assert isinstance(model, LogRatioLDL)
    assert choice["kept"] == "logratio"
    assert choice["rows"] == 60
    np.testing.assert_allclose(choice["difference"], gain.mean(), rtol=1e-6)
    np.testing.assert_allclose(choice["standard_error"], gain.std(ddof=1) / 60**0.5, rtol=1e-6)
    np.testing.assert_allclose(choice["log_likelihood"]["snefy"], gains["snefy"].mean(), rtol=1e-6)
    assert "votes" in choice["answers"]["logratio"]
    json.dumps(choice)


@pytest.mark.parametrize("kind", ["zeros", "gaps", "votes", "few rows"])
def test_auto_keeps_snefy_where_log_ratios_do_not_exist(kind: str) -> None:
    table = make_table(40, 4)
    X, D = table[["depth"]].to_numpy(), table[LABELS].to_numpy()
    labels: dict[str, object] = {"D": D}
    if kind == "zeros":
        D[:25, 0] = 0.0  # enough of them to be modelled
        labels["D"] = D / D.sum(1, keepdims=True)
    elif kind == "gaps":
        D[0, :2] = np.nan
    elif kind == "votes":
        labels = {"counts": np.round(20 * D)}
    else:
        X, labels["D"] = X[:10], D[:10]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MissingLabelWarning)
        model = fit_density(X, random_state=0, **labels, **quick())  # type: ignore[arg-type]
    words = {"zeros": "exactly zero", "gaps": "not known", "votes": "votes", "few rows": "too few"}[kind]
    assert isinstance(model, SnefyLDL)
    assert words in model.density_choice_["reason"]
    assert model.density_choice_["log_likelihood"] is None
    if kind == "zeros":
        with pytest.raises(InputError, match="is zero at row"):
            fit_density(X, labels["D"], "logratio")
    if kind == "votes":
        with pytest.raises(InputError, match="knows no votes"):
            fit_density(X, counts=labels["counts"], density="logratio")


def test_a_density_that_is_asked_for_is_not_compared(tmp_path: Path) -> None:
    table = make_table(40, 5)
    for name, kind in (("snefy", SnefyLDL), ("logratio", LogRatioLDL)):
        model = fit_density(table[["depth"]], table[LABELS], name, **quick())  # type: ignore[arg-type]
        again = load_density(model.save(tmp_path / "model"))  # one over the other
        assert isinstance(again, kind)
        assert again.density_choice_ == model.density_choice_
        assert again.density_choice_["reason"].startswith("asked for")
        np.testing.assert_array_equal(again.predict(table[["depth"]]), model.predict(table[["depth"]]))
        assert len(list((tmp_path / "model").glob("*.safetensors"))) == 1
    with pytest.raises(InputError, match='use "auto", "snefy" or "logratio"'):
        fit_density(table[["depth"]], table[LABELS], "gaussian")  # type: ignore[arg-type]
    AAKNN().fit(np.eye(4), np.full((4, 2), 0.5)).save(tmp_path / "other")
    with pytest.raises(ModelFileError, match="not a LogRatioLDL"):
        load_density(tmp_path / "other")


@pytest.mark.slow
def test_commands_answer_with_a_log_ratio_density(folder: Path, tables: Path, tmp_path: Path) -> None:
    assert "LogRatioLDL" in succeed("info", folder).output
    test, level = tables / "test.csv", ("--interval", 0.9)
    succeed("predict", folder, test, *level, "--out", tmp_path / "own.csv")
    assert "mean log likelihood" in succeed("evaluate", folder, test).output
    assert "saved to" in succeed("conformalize", folder, tables / "cal.csv").output
    assert load_calibration(folder) is not None
    succeed("predict", folder, test, *level, "--out", tmp_path / "calibrated.csv")
    own, calibrated = pd.read_csv(tmp_path / "own.csv"), pd.read_csv(tmp_path / "calibrated.csv")
    np.testing.assert_allclose(own[LABELS], calibrated[LABELS])
    assert (own["sand_low"] != calibrated["sand_low"]).all()
    assert "dY/dX" in succeed("explain", folder, test, "--feature", "depth", "--max-rows", 5).output
    succeed("query", folder, test, "--n", 2)
    succeed("plot", "intervals", folder, test, "--out", tmp_path / "p.png", "--dpi", 30)
    assert "log-ratio density" in fail("export", folder, tmp_path / "m.onnx")
    assert "log-ratio density" in fail("explore", folder, test, "--out", tmp_path / "e.html")
    load_density(folder).set_params(random_state=1).save(folder)
    assert load_calibration(folder) is not None  # the same arrays: the calibration stays
    before = (folder / "calibration.json").read_text()
    LogRatioLDL(n_trees=5, random_state=0).fit(*[make_table(40, 0)[part] for part in (["depth", "side"], LABELS)]).save(
        folder.parent / "model2"
    )
    (folder.parent / "model2" / "calibration.json").write_text(before)
    with pytest.raises(ModelFileError, match="other weights"):
        load_calibration(folder.parent / "model2")


@pytest.mark.slow
def test_report_tells_which_density_and_why(folder: Path, tables: Path, tmp_path: Path) -> None:
    result = succeed("report", folder, tables / "train.csv", "--out", tmp_path / "report", "--folds", 2)
    page = (tmp_path / "report" / "index.html").read_text()
    assert "rows judged" in result.stderr
    assert "Density logratio: rows left out are likelier under the log-ratio density" in page
    assert "What snefy answers: exact means" in page
    table = pd.read_csv(tables / "train.csv")
    model = load_density(folder)
    assert count_seen(model, table[["depth", "side"]], table[LABELS].to_numpy()) == 90


@pytest.mark.slow
def test_service_answers_with_a_log_ratio_density(folder: Path) -> None:
    testclient = pytest.importorskip("fastapi.testclient")
    from snefy_ldl.apps.serve.app import create_app

    row, model = {"depth": 0.1, "side": "north"}, load_density(folder)
    law = model.predict_dist(pd.DataFrame([row]))
    with testclient.TestClient(create_app([folder])) as client:
        answer = client.post("/v1/predict", json={"rows": [row], "levels": [0.5]}).json()
        np.testing.assert_allclose(answer["mean"], law.mean.numpy(), atol=1e-6)
        card = client.get("/v1/model").json()
        assert card["law"]["density"] == "logratio"
        assert "likelier" in card["law"]["chosen_because"]
        assert set(card["example_row"]) == {"depth", "side"}
        assert client.get("/").status_code == 404
        assert client.post("/v1/update", json={"rows": [row], "votes": [{"sand": 2}]}).status_code == 422


@pytest.mark.slow
def test_what_fit_refuses(tables: Path, tmp_path: Path) -> None:
    words = ("fit", tables / "train.csv", "--labels", ",".join(LABELS), "--out", tmp_path / "m", "--density")
    assert "use snefy, logratio or auto" in run(*words, "gauss").stderr
    assert "do not go with --density auto" in run(*words, "auto", "--checkpoint", tmp_path / "c").stderr
    assert "knows no votes" in run(*words, "logratio", "--votes", "counts").stderr
    assert "no such setting" in fail(*words, "logratio", "--set", "n_neurons=4")
    table = make_table(30, 0)
    table.loc[3, "sand"] = 0.0
    table.to_csv(tmp_path / "zeros.csv", index=False)
    line = fail(*words[:1], tmp_path / "zeros.csv", *words[2:], "logratio", "--normalize")
    assert "--density snefy" in line


def test_columns_can_be_named(tables: Path) -> None:
    table = make_table(40, 0)
    model = LogRatioLDL(n_components=1, guides=["ridge"], columns={"side": "drop"}).fit(
        table[["depth", "side"]], table[LABELS]
    )
    assert model.columns_ is not None
    assert model.columns_.names_used == ["depth"]
    X = table[["depth", "side"]]
    assert model.encode(X).shape == (40, 1)
    assert model.seen_rows_.count_in(model.encode(X), table[LABELS].to_numpy()) == 40
    spread = float(norm.ppf(0.95) - norm.ppf(0.05))
    ratio = model.predict_dist(X).log_ratio("sand", "silt")
    ends, width = ratio.quantiles([0.05, 0.95]), ratio.variance.sqrt()
    np.testing.assert_allclose((ends[:, 1] - ends[:, 0]) / width, spread, rtol=1e-6)
