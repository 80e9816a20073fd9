"""The command line: a whole round for CSV and Parquet, failures in one line, and the demonstration."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import commands
import snefy_ldl
from commands import fail, run
from snefy_ldl import SnefyLDL
from snefy_ldl.conformal import ConformalIntervals
from snefy_ldl.datasets import make_city_districts, table_files
from snefy_ldl.metrics.points import kl_divergence

LABELS = ["business", "entertainment", "education"]


def succeed(*words: object) -> str:
    return commands.succeed(*words).stdout


def make_districts(seed: int) -> pd.DataFrame:
    city = make_city_districts(n=120, random_state=seed)
    table = pd.DataFrame(city.X, columns=city.feature_names).join(pd.DataFrame(city.D, columns=city.label_names))
    table.insert(0, "code", [f"{i:04d}" for i in range(len(table))])
    return table


@pytest.fixture(scope="module")
def districts() -> pd.DataFrame:
    return make_districts(0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, districts: pd.DataFrame) -> Path:
    """Tables in three formats, and a model fitted to the CSV by the command line."""
    folder = tmp_path_factory.mktemp("cli")
    districts.to_csv(folder / "city.csv", index=False)
    make_districts(1).to_csv(folder / "new.csv", index=False)
    districts.to_csv(folder / "city.tsv.gz", index=False, sep="\t")
    districts.to_parquet(folder / "city.parquet", index=False)
    features = ",".join(districts.columns[1:6])
    succeed(
        *("fit", folder / "city.csv", "--labels", ",".join(LABELS), "--features", features),
        *("--out", folder / "model", "--set", "epochs=3", "--seed", 1, "--density", "snefy"),
    )
    return folder


# --- the round --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "ending"), [("city.csv", ".parquet"), ("city.tsv.gz", ".csv"), ("city.parquet", ".tsv")]
)
def test_predict_reads_and_writes_by_the_ending(
    folder: Path, districts: pd.DataFrame, tmp_path: Path, name: str, ending: str
) -> None:
    out = tmp_path / "made" / f"predicted{ending}"
    succeed("predict", folder / "model", folder / name, "--interval", 0.8, "--keep", "code", "--out", out)
    text = {"code": str}
    if ending == ".parquet":
        table = pd.read_parquet(out)
    else:
        table = pd.read_csv(out, sep="\t" if ending == ".tsv" else ",", dtype=text)
    ends = [f"{label}_{end}" for label in LABELS for end in ("low", "high")]
    assert list(table.columns) == ["code", *LABELS, *ends]
    assert list(table["code"]) == list(districts["code"])  # leading zeros and all
    model, X = SnefyLDL.load(folder / "model"), districts[districts.columns[1:6]]
    np.testing.assert_allclose(table[LABELS], model.predict(X), atol=1e-7)
    np.testing.assert_allclose(table[ends].to_numpy().reshape(-1, 3, 2), model.predict_interval(X, 0.8), atol=1e-6)
    assert [path.name for path in out.parent.iterdir()] == [out.name], "a temporary file was left behind"


@pytest.mark.slow
def test_predict_in_parts_gives_the_same(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words, out = ("predict", folder / "model", folder / "city.csv", "--keep", "code"), tmp_path / "parts.parquet"
    whole = succeed(*words)
    monkeypatch.setattr(table_files, "CHUNK_ROWS", 50)
    succeed(*words, "--out", out)
    (tmp_path / "whole.csv").write_text(whole)
    pd.testing.assert_frame_equal(
        pd.read_parquet(out), pd.read_csv(tmp_path / "whole.csv", dtype={"code": str}), atol=1e-7, check_dtype=False
    )


@pytest.mark.slow
def test_evaluate_agrees_with_the_library(folder: Path, districts: pd.DataFrame) -> None:
    report = json.loads(succeed("evaluate", folder / "model", folder / "city.csv", "--json"))
    model, X = SnefyLDL.load(folder / "model"), districts[districts.columns[1:6]]
    D = districts[LABELS].to_numpy()
    assert report["rows"] == 120
    assert report["metrics"]["kl_divergence"]["value"] == pytest.approx(kl_divergence(D, model.predict(X)), abs=1e-6)
    assert report["log_likelihood"]["value"] == pytest.approx(model.score(X, D), abs=1e-5)
    assert 0.5 < report["interval"]["coverage"]["value"] <= 1.0
    assert report["log_likelihood"]["of"] == "shares"
    turned = districts[["code", *reversed(LABELS), *X.columns]]
    turned.to_parquet(folder / "turned.parquet")
    again = json.loads(succeed("evaluate", folder / "model", folder / "turned.parquet", "--json"))
    for name, one in report["metrics"].items():  # columns are known by their names
        assert again["metrics"][name]["value"] == pytest.approx(one["value"], rel=1e-9)
    table = succeed("evaluate", folder / "model", folder / "city.parquet", "--interval", 0.5)
    for words in ("kl divergence", "mean log likelihood (shares)", "coverage of 50% intervals"):
        assert words in table


def test_info_tells_what_the_model_is(folder: Path) -> None:
    text = succeed("info", folder / "model")
    for words in (
        "business, entertainment, education",
        "distance_to_centre_km",
        "format 1",
        "120 rows (96 to learn from, 24 held",
    ):
        assert words in text


@pytest.mark.slow
def test_a_model_without_feature_names_takes_the_other_columns(
    tmp_path: Path, folder: Path, districts: pd.DataFrame
) -> None:
    features = list(districts.columns[1:6])
    model = SnefyLDL(epochs=1, random_state=0).fit(districts[features].to_numpy(), districts[LABELS])
    model.save(tmp_path / "m")
    assert "Leave the others out of the table" in fail("predict", tmp_path / "m", folder / "city.csv")
    districts.drop(columns="code").to_csv(tmp_path / "plain.csv", index=False)
    written = pd.read_csv(io.StringIO(succeed("predict", tmp_path / "m", tmp_path / "plain.csv")))
    np.testing.assert_allclose(written[LABELS], model.predict(districts[features].to_numpy()), atol=1e-7)
    assert "unnamed" in succeed("info", tmp_path / "m")


# --- failures ---------------------------------------------------------------------------------------------------------


def test_missing_and_damaged_files_fail_in_one_line(folder: Path, tmp_path: Path) -> None:
    table, model = folder / "city.csv", folder / "model"
    assert "no file at" in fail("predict", model, tmp_path / "nothing.csv")
    assert "no file at" in fail("fit", tmp_path / "nothing.csv", "--labels", "a,b", "--out", tmp_path / "m")
    assert "is not a folder" in fail("predict", tmp_path / "nothing", table)
    assert "a model is saved as one (model.save(folder), or snefy-ldl fit" in fail("info", tmp_path / "nothing")
    assert "is missing" in fail("evaluate", tmp_path, table)
    (tmp_path / "bad.parquet").write_bytes(b"not parquet at all")
    assert "cannot be read as a table" in fail("predict", model, tmp_path / "bad.parquet")
    (tmp_path / "empty.csv").write_text("")
    assert "cannot be read as a table" in fail("predict", model, tmp_path / "empty.csv")
    header, *rows = table.read_text().splitlines()
    for number in (0, 60):  # a stray comma must not shift the values
        ragged = [row.replace(",", ",9,", 1) if i == number else row for i, row in enumerate(rows)]
        (tmp_path / "ragged.csv").write_text("\n".join([header, *ragged]))
        assert "cannot be read as a table" in fail("predict", model, tmp_path / "ragged.csv")
    assert "unknown ending" in fail("predict", model, table, "--out", tmp_path / "out.doc")
    (tmp_path / "file").write_text("")
    assert "is a file" in fail("fit", table, "--labels", ",".join(LABELS), "--out", tmp_path / "file")


@pytest.mark.slow
def test_bad_columns_and_cells_are_named(folder: Path, tmp_path: Path, districts: pd.DataFrame) -> None:
    model, out = folder / "model", tmp_path / "out.csv"
    districts.drop(columns="night_bus_lines").to_csv(tmp_path / "less.csv", index=False)
    line = fail("predict", model, tmp_path / "less.csv")
    assert "lacks 1 column(s)" in line
    assert "night_bus_lines" in line
    assert "night_bus_lines" in fail("evaluate", model, tmp_path / "less.csv")
    assert "did you mean 'business'" in fail(
        "fit", folder / "city.csv", "--labels", "busines,education", "--out", tmp_path / "m"
    )
    assert "lacks 1 column(s) (--keep): name" in fail("predict", model, folder / "city.csv", "--keep", "name")
    assert "a predicted column has the same name" in fail("predict", model, folder / "city.csv", "--keep", "business")
    for value, shown in ((np.nan, "no value in 1 cell"), ("many", "unreadable values in 1 cell ('many', for")):
        broken = districts.astype({"night_bus_lines": object})
        broken.loc[77, "night_bus_lines"] = value
        broken.to_csv(tmp_path / "broken.csv", index=False)
        assert f"column 'night_bus_lines': {shown}" in run("predict", model, tmp_path / "broken.csv").stderr
    broken = districts.astype({"night_bus_lines": float})
    broken.loc[77, "night_bus_lines"] = np.inf
    broken.to_csv(tmp_path / "broken.csv", index=False)
    line = fail("predict", model, tmp_path / "broken.csv", "--out", out)
    assert "broken.csv, data row 78, column 'night_bus_lines': infinite" in line
    assert not list(tmp_path.glob("*out*")), "a broken run left something behind"
    districts.head(0).to_csv(tmp_path / "header.csv", index=False)
    assert "holds no rows" in fail("predict", model, tmp_path / "header.csv", "--out", out)
    assert "name the label columns" in fail("fit", folder / "city.csv", "--labels", "", "--out", tmp_path / "m")


def test_a_failed_predict_keeps_the_old_output(
    folder: Path, tmp_path: Path, districts: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_files, "CHUNK_ROWS", 50)
    out = tmp_path / "out.csv"
    out.write_text("precious")
    broken = districts.copy()
    broken.loc[110, "night_bus_lines"] = np.inf
    broken.to_csv(tmp_path / "broken.csv", index=False)
    assert "data row 111" in fail("predict", folder / "model", tmp_path / "broken.csv", "--out", out)
    assert out.read_text() == "precious"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["broken.csv", "out.csv"]


def test_debug_shows_the_error_itself(folder: Path) -> None:
    for words in (("--debug", "info", folder), ("info", folder, "--debug")):
        result = run(*words)
        assert isinstance(result.exception, snefy_ldl.errors.ModelFileError)


def test_unexpected_errors_ask_for_a_report(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("by nothing")

    monkeypatch.setattr("snefy_ldl.persistence.read_config", broken)
    line = fail("info", folder / "model")
    assert "unexpected ZeroDivisionError: by nothing" in line
    assert "please report" in line


def test_missing_extra_says_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert "pip install 'snefy-ldl[data]'" in fail("predict", folder / "model", folder / "city.csv")


@pytest.mark.parametrize(
    "words", [["fit", "t.csv"], ["walk"], ["predict", "--interval", "wide"], ["demo", "--rows", "3"], ["--walk"]]
)
def test_wrong_usage_exits_with_2(words: list[str]) -> None:
    result = run(*words)
    assert result.exit_code == 2
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("error: ")
    assert lines[0].endswith("--help")


COMMANDS = ("demo", "fit", "conformalize", "predict", "evaluate", "report", "explain", "compare", "query", "info")
COMMANDS += ("serve", "explore", "export")


@pytest.mark.slow
def test_version_and_help() -> None:
    assert succeed("--version").strip() == f"snefy-ldl {snefy_ldl.__version__}"
    for command in COMMANDS:
        assert command in succeed("--help")
        assert "Usage" in succeed(command, "--help")


def test_without_words_the_help_is_shown() -> None:
    assert "Start with: snefy-ldl demo" in run().output


@pytest.mark.slow
def test_the_shell_completes_commands_and_options() -> None:
    def completed(typed: str) -> str:
        environment = {**os.environ, "_SNEFY_LDL_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": "1"}
        words = [sys.executable, "-m", "snefy_ldl"]
        return subprocess.run(words, capture_output=True, text=True, env=environment, check=True).stdout

    assert set(completed("snefy-ldl ").split()) == set(COMMANDS)
    assert "conformalize" in completed("snefy-ldl conf")


def test_help_waits_for_nothing_heavy() -> None:
    code = "import sys, snefy_ldl.apps.cli; print(*{'torch', 'sklearn', 'scipy', 'pandas', 'numpy'} & set(sys.modules))"
    words = [sys.executable, "-c", code]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout.split() == []


# --- the demonstration ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_demo_writes_a_page_that_needs_nothing_else(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    text = succeed("demo", "--out", out, "--rows", 120)
    assert str(out / "index.html") in text
    for words in ("the constant mean", "SA-BFGS", "the truth", "Its 90% intervals", "hardly ever half of each"):
        assert words in text
    city = make_city_districts(n=150, random_state=0)
    page = (out / "index.html").read_text(encoding="utf-8")
    assert f"{city.truth.log_prob(city.X[120:], city.D[120:]).mean():.3f}" in page
    assert "How sure can we be about a city district?" in page
    assert "the best possible answer is known" in page
    assert page.count("<svg ") == 13
    assert "Mostly business or mostly entertainment, hardly ever half of each" in page
    for outside in ("http://", "https://", "<script", "<link"):
        assert outside not in page
    assert len(pd.read_csv(out / "train.csv")) == 120
    report = json.loads(succeed("evaluate", out / "model", out / "test.csv", "--json"))
    assert report["rows"] == 30


# --- calibrated intervals ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_conformalize_then_predict_gives_calibrated_intervals(
    folder: Path, districts: pd.DataFrame, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    shutil.copytree(folder / "model", model)
    said = succeed("conformalize", model, folder / "new.csv", "--level", "0.8,0.9", "--method", "quantile")
    assert "120 calibration rows" in said
    assert "calibrated by quantile" in succeed("info", model)
    out = tmp_path / "out.csv"
    succeed("predict", model, folder / "city.csv", "--interval", 0.9, "--out", out)
    fitted, X = SnefyLDL.load(model), districts[districts.columns[1:6]]
    new = make_districts(1)
    made = ConformalIntervals(fitted, 0.9, method="quantile").conformalize(new[X.columns], new[LABELS])
    ends = pd.read_csv(out)[[f"{label}_{end}" for label in LABELS for end in ("low", "high")]]
    np.testing.assert_allclose(ends.to_numpy().reshape(-1, 3, 2), made.predict_interval(X), atol=1e-6)


@pytest.mark.slow
def test_a_calibration_does_not_outlive_its_model(folder: Path, districts: pd.DataFrame, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(folder / "model", model)
    succeed("conformalize", model, folder / "new.csv", "--method", "quantile")
    first = (model / "calibration.json").read_text()
    other = SnefyLDL(epochs=1, n_neurons=8, guides=None, random_state=9)
    other.fit(districts[districts.columns[1:6]], districts[LABELS]).save(model)
    assert not (model / "calibration.json").exists()
    (model / "calibration.json").write_text(first)
    assert "other weights" in fail("predict", model, folder / "city.csv", "--interval", 0.9)
