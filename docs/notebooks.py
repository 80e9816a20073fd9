"""Notebooks made from the tutorials: ``python docs/notebooks.py`` writes ``docs/tutorials/*.ipynb``.

Text becomes Markdown cells, blocks marked ``python`` become code cells, and the commands of ``console`` blocks become
cells with ``!``. If ``repository`` in ``conf.py`` is set, a first cell installs the library on Colab.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
PAGES = sorted((DOCS / "tutorials").glob("*.md"))
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SETUP = """!git clone -q --depth 1 {} project
%pip install -q './project[all]'
!cp project/docs/tutorials/*.csv ."""


def repository() -> str:
    """Return the address of the public repository in ``conf.py``, or an empty text."""
    found = re.search(r'^repository = "(.*)"', (DOCS / "conf.py").read_text(encoding="utf-8"), re.MULTILINE)
    return found[1] if found else ""


def code(kind: str, block: str) -> str:
    """Return the code cell of a block: Python as it is, commands after ``!``, without what they print."""
    if kind == "python":
        return block.strip("\n")
    return "\n".join("!" + line[2:] for line in block.replace("\\\n", " ").splitlines() if line.startswith("$ "))


def notebook(page: Path, address: str) -> str:
    """Return the notebook of a tutorial as JSON."""
    text = re.sub(r"\A---\n.*?^---\n", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^\[Notebook\]\(.*\)\n\n", "", text, flags=re.MULTILINE)
    cells = [("code", SETUP.format(address))] if address else []
    before, *rest = BLOCK.split(text)
    cells.append(("markdown", before.strip()))
    for kind, block, after in zip(rest[::3], rest[1::3], rest[2::3]):
        cells += [("code", code(kind, block)), ("markdown", after.strip())]
    made = [cell(number, kind, source) for number, (kind, source) in enumerate(cells) if source]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    book = {"cells": made, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(book, indent=1, ensure_ascii=False) + "\n"


def cell(number: int, kind: str, source: str) -> dict[str, Any]:
    """Return one cell as nbformat 4.5 defines it."""
    empty = {"execution_count": None, "outputs": []} if kind == "code" else {}
    return {"cell_type": kind, "id": f"cell-{number}", "metadata": {}, **empty, "source": source.splitlines(True)}


if __name__ == "__main__":
    for page in PAGES:
        page.with_suffix(".ipynb").write_text(notebook(page, repository()), encoding="utf-8")
