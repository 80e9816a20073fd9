"""The site's reference holds every public name with a whole docstring; questions and gallery are as promised."""

from __future__ import annotations

import importlib
import inspect
import math
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
    tops = {name.split(".")[1] for name in snefy_ldl._HOMES.values()}  # homes of names that the top exports
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


def questions() -> list[tuple[str, str]]:
    """Each question of docs/questions.md, and the page of the site that must answer."""
    text = (DOCS / "questions.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \d+ \| (.+?) \| \[.+?\]\((.+?)\.md\)", text, re.MULTILINE)
    return [(question, page.replace("../benchmarks/", "")) for question, page in rows]


def test_thirty_questions_have_pages() -> None:
    asked = questions()
    assert len(asked) == 30
    assert len({question for question, _ in asked}) == 30


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
    assert {str(page.relative_to(DOCS).with_suffix("")) for page in pages} <= listed, "name it in docs/howto.md, say"


def test_cards_of_the_start_page_are_what_the_results_say() -> None:
    """In words that need no background, and recomputed from the tables that they link to."""
    page = (DOCS / "index.md").read_text(encoding="utf-8")
    results = DOCS.parent / "benchmarks" / "results"
    cards = page.split(":class-container: numbers")[1].split("```python")[0]
    assert "nats" not in cards

    def row(file: str, start: str) -> list[str]:
        lines = [line for line in (results / file).read_text(encoding="utf-8").splitlines() if line.startswith(start)]
        return [cell.strip() for cell in lines[0].strip("|").split("|")]

    ours, paper = (float(row("accuracy.md", f"| sbu_3dfe | {recipe} | 1 |")[3]) for recipe in ("default", "paper"))
    assert f"{math.exp(paper - ours):.0f} times the density" in cards
    assert f"{row('peer.md', '| fit |')[3]} times as fast" in cards
    scene = (results / "conformal.md").read_text(encoding="utf-8").split("## natural_scene")[1]
    names = (r"SNEFY \| auto", r"Dirichlet \| chebyshev")
    rows = [re.findall(rf"^\| {name} \| (.*) \|$", scene, re.MULTILINE)[0] for name in names]
    cells = [[float(cell.split(" ±")[0]) for cell in found.split(" | ")] for found in rows]
    (width, worst), (other_width, other_worst) = ((found[1], found[5]) for found in cells)
    assert f"{1 - width / other_width:.0%} narrower".replace("%", " %") in cards
    assert f"{100 * width:.0f} points wide on average, a Dirichlet's {100 * other_width:.1f}" in cards
    assert f"{100 * worst:.0f} % of the worst of eight groups, a Dirichlet's {100 * other_worst:.0f} %" in cards


def test_dark_pages_have_a_mode_and_no_white_hero() -> None:
    css = (DOCS / "_static" / "site.css").read_text(encoding="utf-8")
    assert re.search(r'data-theme="dark"\] \.bd-content \.hero img[^{]*\{[^}]*background: transparent', css)
    assert "mode.js" in (DOCS / "conf.py").read_text(encoding="utf-8")
    assert 'dataset.mode ||= "auto"' in (DOCS / "_static" / "mode.js").read_text(encoding="utf-8")
