"""Update the console output shown on a page: ``python docs/refresh_outputs.py docs/tutorials/soil.md``.

The blocks of a page run in order, in a folder that contains only the tables next to the page. In a ``console`` block,
the lines after a command are output of that command; a page may leave lines out. ``tests/test_docs.py`` runs the same
blocks and fails if a page shows a line that no command prints, or numbers that differ too much.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"(?<![\w.])[-+]?\d[\d,]*(?:\.\d+)?(?![\w.]*\w)")
#: Tolerances for the numbers on a page: absolute, relative, and in units of the last digit. Other machines round
#: differently, so a model trained there differs slightly.
ABSOLUTE, RELATIVE, LAST_DIGIT = 0.02, 0.05, 2.0


def parts(block: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each command of a console block, with the output lines that the page shows.

    Args:
        block: The text between the fences.

    Yields:
        The command without its prompt, and the lines.
    """
    command, lines = "", list[str]()
    for line in block.replace("\\\n", " ").splitlines():
        if line.startswith("$ "):
            if command:
                yield command, lines
            command, lines = line[2:], []
        elif line.strip():
            lines.append(line)
    if command:
        yield command, lines


def words(line: str) -> str:
    """Return a line without its numbers, and with single spaces."""
    return " ".join(NUMBER.sub("#", line).split())


def printed_line(shown: str, printed: list[str]) -> str | None:
    """Find the printed line that matches a line on the page: the same words, and the closest numbers.

    Args:
        shown: The line on the page.
        printed: All lines that the command prints.

    Returns:
        The line; None if no line has these words.
    """
    same = [line for line in printed if words(line) == words(shown)]
    return min(same, key=lambda line: sum(abs(a - b) for a, b in zip(figures(line), figures(shown))), default=None)


def figures(line: str) -> list[float]:
    """Return the numbers in a line."""
    return [float(figure.replace(",", "")) for figure in NUMBER.findall(line)]


def near(shown: str, printed: str) -> bool:
    """Whether all figures of two lines with the same words agree, but for what another machine may change."""
    units = [10.0 ** -len(figure.partition(".")[2]) if "." in figure else 0.0 for figure in NUMBER.findall(printed)]
    return all(
        abs(a - b) <= max(ABSOLUTE, RELATIVE * abs(b), LAST_DIGIT * unit)
        for a, b, unit in zip(figures(shown), figures(printed), units)
    )


def refreshed(page: Path) -> str:
    """The text of a page with its outputs as the commands print them now.

    Args:
        page: A Markdown file.

    Returns:
        The new text.
    """
    text = page.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        for table in page.parent.glob("*.csv"):
            shutil.copy(table, folder)
        for kind, block in BLOCK.findall(text):
            if kind == "python":
                subprocess.run([sys.executable, "-c", block], cwd=folder, check=True, stdout=subprocess.DEVNULL)
                continue
            changed = block
            for command, shown in parts(block):
                program, *rest = shlex.split(command)
                run = [sys.executable, "-m", "snefy_ldl"] if program == "snefy-ldl" else [program]
                done = subprocess.run([*run, *rest], cwd=folder, check=True, capture_output=True, text=True)
                for line in shown:
                    printed = printed_line(line, (done.stdout + done.stderr).splitlines())
                    changed = changed if printed is None else changed.replace(line, printed)
            text = text.replace(block, changed)
    return text


if __name__ == "__main__":
    for name in sys.argv[1:]:
        Path(name).write_text(refreshed(Path(name)), encoding="utf-8")
