"""The site's reference holds every public name with a whole docstring; questions and gallery are as promised."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import snefy_ldl

DOCS = Path(__file__).parent.parent / "docs"


@pytest.fixture(scope="module")
def listed() -> Iterator[ModuleType]:
    sys.path.insert(0, str(DOCS))
    yield importlib.import_module("public_names")
    sys.path.remove(str(DOCS))
    del sys.modules["public_names"]


def test_every_package_is_public_or_internal(listed: ModuleType) -> None:
    packages = {module.name for module in pkgutil.iter_modules(snefy_ldl.__path__) if not module.name.startswith("_")}
    public = {path.split(".")[1] for paths in listed.SUBJECTS.values() for path in paths if "." in path}
    tops = {home.split(".")[0] for home in snefy_ldl._HOMES}  # homes of names that the top exports
    assert public & set(listed.INTERNAL) == set()
    assert packages - public - set(listed.INTERNAL) - tops == set(), "say in docs/public_names.py what it is"
    assert set(listed.INTERNAL) <= packages, "needed no more"


def test_the_reference_holds_every_exported_name(listed: ModuleType) -> None:
    names = listed.public_names()
    described = {id(getattr(importlib.import_module(path), name)) for path, group in names.items() for name in group}
    for path in (path for paths in listed.SUBJECTS.values() for path in paths):
        module = importlib.import_module(path)
        for name in getattr(module, "__all__", []):
            if not name.startswith("_"):
                assert id(getattr(module, name)) in described, f"{path}.{name}"
    constants = {
        n for path, group in names.items() for n in group if not callable(getattr(importlib.import_module(path), n))
    }
    assert constants == set(listed.CONSTANTS)


def public_things() -> list[tuple[str, Any]]:
    """Each public class and function, with its path."""
    sys.path.insert(0, str(DOCS))
    try:
        names = importlib.import_module("public_names").public_names()
    finally:
        sys.path.remove(str(DOCS))
    pairs = [
        (f"{path}.{name}", getattr(importlib.import_module(path), name))
        for path, group in names.items()
        for name in group
    ]
    return [(path, value) for path, value in pairs if callable(value)]


def test_every_public_name_has_a_docstring_with_an_example() -> None:
    bare = [path for path, value in public_things() if not has_example(value)]
    assert bare == []


def has_example(value: Any) -> bool:
    """An example in its docstring or, of a class, in that of a method; errors and results need none."""
    if inspect.isclass(value) and issubclass(value, BaseException):
        return bool(value.__doc__)
    texts = [inspect.getdoc(value) or ""]
    if inspect.isclass(value):
        texts += [
            inspect.getdoc(member) or "" for name, member in inspect.getmembers(value) if not name.startswith("_")
        ]
    return any(">>>" in text for text in texts)


def test_every_argument_of_a_public_function_is_described() -> None:
    missing = []
    for path, value in public_things():
        if inspect.isclass(value):
            continue
        text = inspect.getdoc(value) or ""
        for name in inspect.signature(value).parameters:
            if not re.search(rf"(?m)^\s*(\*\*?)?{name}\b.*:|[`*]{name}`|, {name}:|\b{name}, ", text):
                missing.append(f"{path}: {name}")
    assert missing == []


def test_the_gallery_holds_enough_examples_with_titles() -> None:
    examples = sorted((DOCS / "gallery").glob("*/plot_*.py"))
    titles = [example.read_text(encoding="utf-8").splitlines()[1] for example in examples]
    assert len(examples) >= 25
    assert len(set(titles)) == len(titles)
    assert {folder.name for folder in (DOCS / "gallery").iterdir() if folder.is_dir()} == {
        e.parent.name for e in examples
    }


#: Fifteen questions of newcomers, as typed into the search: the pages that answer them, one of which must come first.
FIRST_HIT = {
    "my shares contain zeros": ("zeros", "faq"),
    "NaN in labels": ("votes", "faq"),
    "one vote per row": ("votes",),
    "is a log-likelihood of 1.7 good": ("good",),
    "is it better than my random forest": ("good",),
    "how long does it take for 100,000 rows": ("faq",),
    "weights of rows": ("guide",),
    "abstain or reject a row": ("predict", "faq"),
    "what does this term mean": ("glossary",),
    "compare two models": ("compare",),
    "ternary plot": ("auto_gallery/1_first/plot_01_density", "faq"),
    "P(sand > 0.5)": ("predict", "faq"),
    "table 3 of the paper": ("reproduction", "faq"),
    "Docker and token": ("deploy",),
    "95 % intervals on the command line": ("conformal", "guide"),
}
#: Fifteen more, whose page must be among the first three hits.
FIRST_THREE = {
    "How do I give percentages instead of shares?": "tables",
    "What is the difference between predict_interval and conformal intervals?": "conformal",
    "Can I use my own XGBoost or random forest?": "snefy",
    "Does it run on a GPU?": "install",
    "Is there a browser page for my colleagues?": "deploy",
    "Which rows should I label next?": "active",
    "What is the probability that one label is larger than another?": "predict",
    "The share of sand is known, what of the others?": "predict",
    "Can I predict from images?": "tutorials/images",
    "How do I search for hyperparameters?": "compare",
    "Does it work in a scikit-learn pipeline with GridSearchCV?": "guide",
    "How accurate is it, and how fast compared to PyLDL?": "results/peer",
    "Parts of very unequal size, trace elements": "zeros",
    "How many more votes does an item need?": "votes",
    "Can I train it in my own PyTorch loop?": "backbones",
}


def test_questions_have_pages() -> None:
    pages = {page.relative_to(DOCS).with_suffix("").as_posix() for page in DOCS.rglob("*.md")}
    named = {*FIRST_THREE.values()}.union(*FIRST_HIT.values())
    assert {page for page in named - pages if not page.startswith(("auto_gallery/", "results/"))} == set()


def test_the_start_page_has_four_readers_and_no_nats() -> None:
    page = (DOCS / "index.md").read_text(encoding="utf-8")
    cards = page.split(":class-container: readers")[1].split("```python")[0]
    assert cards.count("grid-item-card") == 4
    assert "nats" not in page


def test_every_page_is_one_click_from_the_start_page() -> None:
    page = (DOCS / "index.md").read_text(encoding="utf-8").split("```{toctree}")[0]
    linked = {link.split("#")[0].removesuffix(".md") for link in re.findall(r"\]\(([^)#]+)", page)}
    linked |= set(re.findall(r":link: (\S+)", page))
    written = {
        p.relative_to(DOCS).with_suffix("").as_posix() for p in [*DOCS.glob("*.md"), *DOCS.glob("tutorials/*.md")]
    }
    assert written - linked - {"index", "architecture", "changelog", "contributing"} == set()
