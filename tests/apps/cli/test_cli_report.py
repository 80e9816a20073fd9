"""``report``: from a table to a page, and what it refuses."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from commands import fail, run, succeed
from people_tables import TABLES
from snefy_ldl.apps.cli.pictures import Pictures, color_variables
from snefy_ldl.datasets import make_city_districts

SECTIONS = ["data", "quality", "features", "densities", "marginals", "calibration", "failures", "method"]
#: What fit and report print of the rows of train.csv.
FITTED_TO = "120 rows (96 to learn from, 24 held back for validation)"
#: Elements that HTML leaves open.
VOID = {"meta", "br", "img", "link", "hr", "input"}


class Page(HTMLParser):
    """Reads a page strictly: every element closed in order, ids used once; collects sections, links and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.sections: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if "id" in values:
            self.ids.append(values["id"])
        if tag == "section":
            self.sections.append(values.get("id", ""))
        self.links += [values[name] for name in ("href", "src", "xlink:href") if name in values]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open
        assert self.open.pop() == tag, f"</{tag}> closes another element"

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] != "style":
            self.words.append(data)


def check_page(file: Path) -> str:
    """A page that is well formed, whole, and needs nothing else; its text."""
    text = file.read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>")
    page = Page(text)
    assert [section for section in page.sections if section != "notes"] == SECTIONS
    assert len(set(page.ids)) == len(page.ids), "an id stands there twice"
    assert all(link.startswith("#") and link[1:] in page.ids for link in page.links), "the page needs another file"
    assert not re.search(r"https?://|<script|@import|url\((?!#)", text)
    assert all(name in page.ids for name in re.findall(r"url\(#([^)]+)\)", text))
    words = " ".join(" ".join(page.words).split())
    assert not re.search(r"\b(nan|inf|None)\b", words), "a figure is not finite"
    pictures = re.findall(r"<svg .*?</svg>", text, flags=re.DOTALL)
    assert len(pictures) >= 9
    for picture in pictures:
        assert not re.search(r"[ \"](nan|inf)[ \"]", picture)
    return words


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables of districts, and a model fitted to one of them."""
    folder = tmp_path_factory.mktemp("report")
    city = make_city_districts(n=200, random_state=0)
    table = pd.DataFrame(city.X, columns=city.feature_names).join(pd.DataFrame(city.D, columns=city.label_names))
    table[:120].to_csv(folder / "train.csv", index=False)
    table[120:].to_csv(folder / "test.csv", index=False)
    other = make_city_districts(n=120, random_state=1)
    rows = pd.DataFrame(other.X, columns=other.feature_names).join(pd.DataFrame(other.D, columns=other.label_names))
    rows.to_csv(folder / "calibration.csv", index=False)
    labels = ",".join(city.label_names)
    common = ("--labels", labels, "--set", "epochs=3", "-q", "--density", "snefy")
    assert FITTED_TO in succeed("fit", folder / "train.csv", *common, "--out", folder / "model").stdout
    return folder


@pytest.mark.slow
def test_report_writes_one_page_that_needs_nothing_else(folder: Path, tmp_path: Path) -> None:
    said = succeed("report", folder / "model", folder / "test.csv", "--out", tmp_path / "new" / "report").stderr
    assert "80 rows judged" in said
    assert [file.name for file in (tmp_path / "new" / "report").iterdir()] == ["index.html"]
    words = check_page(tmp_path / "new" / "report" / "index.html")
    for expected in ("business, entertainment and education", "SA-BFGS", "KL divergence", "constant mean", "row "):
        assert expected in words
    assert "trained on these rows, 4 of 5 parts at a time; the model on other rows" in words
    assert f"the model was fitted to {FITTED_TO}" in words
    assert re.search(r"Candidates of the fit .*guides \S+ 3 \S+ (kept|not chosen)", words)


@pytest.mark.slow
@pytest.mark.usefixtures("blank_pictures")
def test_report_says_where_the_rivals_learned_and_takes_the_stored_calibration(folder: Path, tmp_path: Path) -> None:
    succeed("conformalize", folder / "model", folder / "calibration.csv")
    out = tmp_path / "report"
    succeed("report", folder / "model", folder / "test.csv", "--train", folder / "train.csv", "--out", out)
    words = check_page(out / "index.html")
    assert "trained on the training table" in words
    assert "by the model folder's calibration" in words


@pytest.mark.slow
@pytest.mark.usefixtures("blank_pictures")
def test_report_judges_one_table_by_folds(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "report"
    succeed("report", folder / "model", folder / "train.csv", "--folds", 2, "--out", out)
    words = check_page(out / "index.html")
    assert "fitted again 2 times" in words
    assert run("report", folder / "model", folder / "train.csv", "--folds", 1).exit_code == 2


@pytest.mark.slow
@pytest.mark.parametrize("n_labels", [2, 12])
def test_report_of_any_number_of_labels(tmp_path: Path, n_labels: int) -> None:
    random = np.random.default_rng(1)
    labels = [f"{letter} and some more words" for letter in "abcdefghijkl"[:n_labels]]
    table = pd.DataFrame(random.normal(size=(60, 2)), columns=["x", "y"])
    table[labels] = random.dirichlet(np.ones(n_labels) * 3.0, 60)
    table.to_csv(tmp_path / "t.csv", index=False)
    small = ("--set", "epochs=2", "-q", "--set", "guides=null", "--set", "n_neurons=8", "--density", "snefy")
    succeed("fit", tmp_path / "t.csv", "--labels", ",".join(labels), *small, "--out", tmp_path / "model")
    succeed("report", tmp_path / "model", tmp_path / "t.csv", "--folds", 0, "--out", tmp_path / "report")
    page = check_page(tmp_path / "report" / "index.html")
    assert (f"All {n_labels} labels" in page) == (n_labels > 8)
    assert "100% of these rows trained it" in page
    assert "the model on other rows" not in page
    assert all(page.count(label) > 1 for label in labels)  # in the table of all labels, too


@pytest.mark.slow
@pytest.mark.usefixtures("blank_pictures")
def test_what_report_refuses(folder: Path, tmp_path: Path) -> None:
    model, table = folder / "model", folder / "test.csv"
    pd.read_csv(table)[:5].to_csv(tmp_path / "few.csv", index=False)
    assert "at least 10 rows" in fail("report", model, tmp_path / "few.csv", "--out", tmp_path / "r")
    assert not (tmp_path / "r").exists()
    assert "is a file" in fail("report", model, table, "--out", table)


def test_evaluate_shows_own_and_calibrated_coverage(folder: Path) -> None:
    succeed("conformalize", folder / "model", folder / "calibration.csv")
    text = succeed("evaluate", folder / "model", folder / "test.csv").stdout
    assert text.count(" calibrated") == 2
    assert text.count("uncalibrated") == 2


def test_pictures_follow_the_pages_colours() -> None:
    pictures = Pictures()
    text = pictures.draw("a <line>", (2.0, 1.0), lambda ax: ax.plot([0, 1], [0, 1], color="#1f2933", marker="o"))
    assert "var(--ink)" in text
    assert "a &lt;line&gt;" in text
    other = pictures.draw("another", (2.0, 1.0), lambda ax: ax.plot([0, 1], [0, 1], marker="o"))
    first, second = (set(re.findall(r'id="([^"]+)"', one)) for one in (text, other))
    assert first
    assert not first & second
    names = [name for name, _, _ in color_variables()]
    assert len(set(names)) == len(names)


# --- tables as people have them ---------------------------------------------------------------------------------------

SETTINGS = ("epochs=2", "n_neurons=8", "guides=null", "device=cpu")
QUICK = ["--density", "snefy", "--quiet", *(word for one in SETTINGS for word in ("--set", one))]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["text_columns", "long_votes"])  # all go to predictions elsewhere
@pytest.mark.usefixtures("blank_pictures")
def test_from_a_persons_file_to_a_page(name: str, tmp_path: Path) -> None:
    case = TABLES[name](tmp_path)
    succeed("fit", *case.fit, "--out", tmp_path / "model", *QUICK)
    said = succeed("report", tmp_path / "model", case.table, *case.scored, "--out", tmp_path / "report").stderr
    assert "these rows trained the model" in " ".join(said.split())
    words = check_page(tmp_path / "report" / "index.html")
    assert all(label in words for label in case.labels)
    assert "fitted again 5 times" in words
    if name == "text_columns":
        assert "rock" in words
    if name == "long_votes":
        assert "noise that no prediction can avoid" in words
