"""The Python in README.md and docs/ runs: blocks marked ``python``, in order, one namespace a page.

A page that loads a public data set runs with the marker ``data``. Blocks marked ``py`` are for reading only.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?://|#)([^)#]+)(?:#[^)]*)?\)")
#: Written by the benchmarks, not by hand.
MADE_BY_BENCHMARKS = "benchmarks/results/"


def blocks(page: Path) -> list[tuple[int, str]]:
    """Line number and code of each block."""
    text = page.read_text(encoding="utf-8")
    return [(text.count("\n", 0, match.start(1)), match.group(1)) for match in BLOCK.finditer(text)]


def case(page: Path) -> object:
    needs_data = any("load_dataset(" in code for _, code in blocks(page))
    return pytest.param(page, id=page.name, marks=[pytest.mark.data] if needs_data else [])


@pytest.mark.parametrize("page", [case(page) for page in PAGES if blocks(page)])
def test_code_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "__docs__"}
    for line, code in blocks(page):
        exec(compile("\n" * line + code, str(page), "exec"), namespace)  # lines count from the page's top
    if "plots" in namespace:
        import matplotlib.pyplot as plt

        plt.close("all")


def test_readme_and_guide_hold_code() -> None:
    assert len(blocks(ROOT / "README.md")) >= 2
    assert len(blocks(ROOT / "docs" / "guide.md")) >= 10


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        if MADE_BY_BENCHMARKS not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
