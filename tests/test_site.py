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
    """An example in its docstring or, of a class, in that of a method; errors and results need none of their own."""
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
#: Thirty more, whose page must be among the first three hits.
FIRST_THREE = {
    "How do I give percentages instead of shares?": "tables",
    "What is the difference between predict_interval and conformal intervals?": "conformal",
    "Can I use my own XGBoost or random forest?": "snefy",
    "My shares contain exact zeros, what happens?": "zeros",
    "I have only 40 rows, is that enough?": "zeros",
    "Does it run on a GPU?": "install",
    "What about missing cells in my table?": "tables",
    "Can I learn from votes of annotators?": "votes",
    "What is a density good for?": "predict",
    "How do I save and load a model?": "deploy",
    "What about text columns and categories?": "tables",
    "How do I cite this?": "faq",
    "Can I run it on a cluster?": "large",
    "Is there a browser page for my colleagues?": "deploy",
    "Which rows should I label next?": "active",
    "How do I compare learners on my data?": "compare",
    "How do I install it?": "install",
    "What is the probability that one label is larger than another?": "predict",
    "The share of sand is known, what of the others?": "predict",
    "Can I predict from images?": "tutorials/images",
    "My table is larger than memory": "large",
    "How do I search for hyperparameters?": "compare",
    "Does it work in a scikit-learn pipeline with GridSearchCV?": "guide",
    "Which columns matter?": "explain",
    "Do the claims of the paper hold?": "reproduction",
    "How accurate is it, and how fast compared to PyLDL?": "results/peer",
    "Parts of very unequal size, trace elements": "zeros",
    "How many more votes does an item need?": "votes",
    "Can I train it in my own PyTorch loop?": "backbones",
    "My labels are only zero or one": "learners",
}


def test_questions_have_pages() -> None:
    pages = {page.relative_to(DOCS).with_suffix("").as_posix() for page in DOCS.rglob("*.md")}
    assert len(FIRST_HIT) == 15
    assert len(FIRST_THREE) == 30
    named = {*FIRST_THREE.values()}.union(*FIRST_HIT.values())
    assert {page for page in named - pages if not page.startswith(("auto_gallery/", "results/"))} == set()


def test_every_page_stands_in_a_toctree() -> None:
    """Sphinx says so too, but only when the site is built."""
    pages = [*DOCS.glob("*.md"), *(DOCS / "tutorials").glob("*.md")]
    listed = {"index"}
    for page in pages:
        for block in re.findall(
            r"^```\{toctree\}\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
        ):
            entries = [line for line in block.splitlines() if line and not line.startswith(":")]
            listed |= {str((page.parent / entry).relative_to(DOCS)) for entry in entries}
    assert {str(page.relative_to(DOCS).with_suffix("")) for page in pages} <= listed, "name it in docs/index.md"


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


def contrast(one: str, other: str) -> float:
    """Contrast of two colours by the rules of WCAG 2."""
    lights = []
    for color in (one, other):
        parts = [int(color[k : k + 2], 16) / 255 for k in (1, 3, 5)]
        parts = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        lights.append(0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2])
    return (max(lights) + 0.05) / (min(lights) + 0.05)


def test_formulas_can_be_drawn() -> None:
    """By docutils, as the site's build does; an unknown command would end it."""
    convert = pytest.importorskip("docutils.utils.math.latex2mathml", reason="docutils is not installed").tex2mathml
    text = re.sub(r"^```.*?^```$", "", (DOCS / "math.md").read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    formulas = re.findall(r"\$\$?(.+?)\$\$?", text, re.DOTALL)
    assert len(formulas) > 80
    assert all(convert(formula.strip()) for formula in formulas)


@pytest.mark.parametrize(("theme", "page"), [("light", "#f3f4f5"), ("dark", "#29313d")])
def test_colours_of_code_can_be_read(theme: str, page: str) -> None:
    """On the theme's own background of code."""
    styles = pytest.importorskip("pygments.styles", reason="Pygments is not installed")
    pytest.importorskip("a11y_pygments", reason="the site's style is not installed: make docs-extra")
    name = re.findall(rf'"pygments_{theme}_style": "(.+)"', (DOCS / "conf.py").read_text(encoding="utf-8"))[0]
    colors = {f"#{style['color']}" for _, style in styles.get_style_by_name(name) if style["color"]}
    assert {color: contrast(color, page) for color in colors if contrast(color, page) < 4.5} == {}


def test_dark_pages_have_a_mode_and_no_white_hero() -> None:
    css = (DOCS / "_static" / "site.css").read_text(encoding="utf-8")
    assert re.search(r'data-theme="dark"\] \.bd-content \.hero img[^{]*\{[^}]*background: transparent', css)
    assert "mode.js" in (DOCS / "conf.py").read_text(encoding="utf-8")
    assert 'dataset.mode ||= "auto"' in (DOCS / "_static" / "mode.js").read_text(encoding="utf-8")
