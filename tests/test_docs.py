"""The Python and the commands in README.md and docs/ run: blocks in order, one namespace and one folder a page.

Blocks marked ``python`` run. In blocks marked ``console`` the lines that begin with ``$`` run, the others are what they
print; commands elsewhere are only held against the options that exist. A page that loads a public data set runs with
the marker ``data``. Blocks marked ``py`` are for reading only.
"""

from __future__ import annotations

import importlib
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from commands import succeed
from snefy_ldl import auto
from snefy_ldl._internal.seen import MOST_SEEN
from snefy_ldl.apps import cli
from snefy_ldl.conformal import choice
from snefy_ldl.conformal.thresholds import rows_needed
from snefy_ldl.datasets import zeros
from snefy_ldl.distributions import logratio
from snefy_ldl.learners.losses import RANKING_WEIGHTS
from snefy_ldl.metrics.points import HIGHER_IS_BETTER
from snefy_ldl.training.policy import POLICY

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS))
OUTPUTS = importlib.import_module("refresh_outputs")
NOTEBOOKS = importlib.import_module("notebooks")
sys.path.remove(str(DOCS))
#: Pages that the site's build copies into docs/ from elsewhere.
MADE = {"changelog.md", "contributing.md"}
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(page for page in DOCS.glob("*.md") if page.name not in MADE),
    *sorted((DOCS / "tutorials").glob("*.md")),
]
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FENCE = re.compile(r"^```(?:console|text)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?://|#)([^)#]+)(?:#[^)]*)?\)")
#: Written by the benchmarks, not by hand.
MADE_BY_BENCHMARKS = "benchmarks/results/"
#: Pages that are no how-to: generated, lists, or mathematics.
NOT_HOW_TOS = {"reproduction", "math", "claims", "decisions", "architecture", "learners", "CONTRIBUTING", "README"}
WORDS = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
#: Page and sentence, with the values of the code.
STATEMENTS = [
    ("snefy", f"They are used from {POLICY.least_rows} rows on"),
    ("snefy", f"Below {POLICY.few_rows} rows, {WORDS[POLICY.folds]} members each leave out another fifth of the rows"),
    ("snefy", f"Up to {POLICY.member_rows:,} rows, a model with guides has at least {WORDS[POLICY.members]} members."),
    ("decisions", f"*{WORDS[POLICY.folds].title()} members below {POLICY.few_rows} rows.*"),
    ("decisions", f"Such items are completed to {POLICY.completed_votes} votes"),
    ("large", f"From {POLICY.large_rows:,} rows on, nothing is chosen"),
    ("faq", f"From {POLICY.large_rows:,} rows on, `SnefyLDL` sees the features alone"),
    ("faq", f"If more than {auto.ZERO_ROWS:.0%} of the rows hold a zero".replace("%", " %")),
    ("zeros", f"With more than {auto.ZERO_ROWS:.0%} of rows holding a zero".replace("%", " %")),
    ("zeros", f"Below {auto.FEWEST_ROWS} rows there is no comparison."),
    ("zeros", f"warns above {zeros.MANY_ZEROS:.0%} of such rows".replace("%", " %")),
    (
        "logratio",
        f"| {logratio.DRAWS:,} quasi-random draws ({logratio.DRAWS // 4:,} above {logratio.MANY_LABELS} labels)",
    ),
    ("math", f"{logratio.DRAWS:,} points: {WORDS[logratio.NETS]} scrambled Sobol nets of {logratio.NET_POINTS} points"),
    ("conformal", f"Below {choice.SHARE_ASIDE * choice.FEWEST_COMPARED} calibration rows it takes `beta`"),
    ("conformal", f"on a third of the calibration rows ({choice.MOST_ASIDE} at most)"),
    ("conformal", f"(fewer than {rows_needed(0.95)} for 95 %)"),
    ("conformal", f"from {dict([(0.1, 'a tenth')])[MOST_SEEN]} of the rows on an error"),
    ("compare", f"{WORDS[len(HIGHER_IS_BETTER)].title()} by default"),
    ("learners", f"`alpha` from {RANKING_WEIGHTS[0]:.0e} to {RANKING_WEIGHTS[-1]:.0e}".replace("e-0", "e-")),
]
#: Programs that a page may call in addition to ours.
PLAIN = {"head", "cat", "ls"}


def blocks(page: Path, kind: str | None = None) -> list[tuple[int, str, str]]:
    """Line number, kind and text of each block."""
    text = page.read_text(encoding="utf-8")
    every = [(text.count("\n", 0, match.start(2)), match[1], match[2]) for match in BLOCK.finditer(text)]
    return [block for block in every if kind in (None, block[1])]


def commands(text: str) -> list[list[str]]:
    """The words of each command of a console block."""
    return [shlex.split(line[2:]) for line in text.replace("\\\n", " ").splitlines() if line.startswith("$ ")]


def case(page: Path) -> object:
    needs_data = any("load_dataset(" in code for _, _, code in blocks(page, "python"))
    marks = [pytest.mark.data] * needs_data
    return pytest.param(page, id=page.stem, marks=marks)


def runs(page: Path) -> bool:
    return any(kind == "python" or commands(text) for _, kind, text in blocks(page))


@pytest.mark.slow
@pytest.mark.parametrize("page", [case(page) for page in PAGES if runs(page)])
def test_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for table in page.parent.glob("*.csv"):
        shutil.copy(table, tmp_path)
    namespace: dict[str, object] = {"__name__": "__docs__"}
    for line, kind, text in blocks(page):
        if kind == "python":
            exec(compile("\n" * line + text, str(page), "exec"), namespace)  # lines count from the page's top
            continue
        for command, shown in OUTPUTS.parts(text):
            program, *words = shlex.split(command)
            if program == "snefy-ldl":
                printed = succeed(*words).output
            else:
                assert program in PLAIN, f"{page.name} calls {program}"
                printed = subprocess.run([program, *words], check=True, capture_output=True, text=True).stdout
            for one in shown:
                found = OUTPUTS.printed_line(one, printed.splitlines())
                refresh = f"python docs/refresh_outputs.py {page.relative_to(ROOT)}"
                assert found is not None, f"{command} prints no line like: {one}"
                assert OUTPUTS.near(one, found), f"{page.name} shows {one!r}, printed is {found!r}; run: {refresh}"
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")


def test_outputs_are_compared_by_words_and_figures() -> None:
    printed = [
        "│ coverage │ 0.8852 │ near 0.9 │",
        "12 rows, 0.3 MB written to page.html",
        "sand -0.1 points [-0.2, +0.1]",
    ]
    shown = "│ coverage   │ 0.9407 │ near 0.9 │"
    assert OUTPUTS.printed_line(shown, printed) == printed[0]
    assert not OUTPUTS.near(shown, printed[0])
    assert OUTPUTS.near("│ coverage │ 0.8900 │ near 0.9 │", printed[0])
    assert OUTPUTS.printed_line("11 rows, 0.2 MB written to page.html", printed) == printed[1]
    assert not OUTPUTS.near("11 rows, 0.2 MB written to page.html", printed[1])
    assert OUTPUTS.near("sand -0.2 points [-0.3, +0.1]", printed[2])
    assert OUTPUTS.printed_line("coverage 0.9", printed) is None


def test_the_soil_tutorial_says_what_its_figures_show() -> None:
    """``test_blocks_run`` holds the figures against the commands; here the prose is held against the figures."""
    page = (DOCS / "tutorials" / "soil.md").read_text(encoding="utf-8")
    covered, error = (float(figure) for figure in re.findall(r"coverage of 90%.*?│ ([\d.]+) │ +([\d.]+) │", page)[0])
    said = re.search(r"contain (\d+) % of these shares, give or take (\d+) points: as often as they should", page)
    assert said is not None
    assert [int(figure) for figure in said.groups()] == [round(100 * covered), round(100 * error)]
    assert abs(covered - 0.9) <= 2 * error, "the lesson no longer holds: rewrite it"
    answer = dict(
        zip(*(line.split(",") for line in re.findall(r"^(?:sample_id,sand,silt|S0271,).*$", page, re.MULTILINE)))
    )
    sand = [round(float(answer[name])) for name in ("sand", "sand_low", "sand_high")]
    assert f"About {sand[0]} % sand, but anything from {sand[1]} to {sand[2]} %." in page


@pytest.mark.parametrize("page", NOTEBOOKS.PAGES, ids=lambda page: page.stem)
def test_a_notebook_runs_the_blocks_of_its_tutorial(page: Path) -> None:
    stored = page.with_suffix(".ipynb").read_text(encoding="utf-8")
    assert stored == NOTEBOOKS.notebook(page, NOTEBOOKS.repository()), "run: python docs/notebooks.py"
    cells = [cell for cell in json.loads(stored)["cells"] if cell["cell_type"] == "code"]
    run = ["".join(cell["source"]) for cell in cells]
    shown = blocks(page)
    assert len(run) == len(shown)
    for cell, (_, kind, text) in zip(run, shown):
        if kind == "python":
            assert cell == text.strip("\n")
        else:
            assert [shlex.split(line.removeprefix("!")) for line in cell.splitlines()] == commands(text)


def test_readme_begins_with_what_it_is_for_and_shows_code() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert text.split("\n\n")[1] == "**Predict percentages that sum to 100, and how certain each one is.**"
    assert text.index("](docs/images/hero.png)") < text.index("## Install") < text.index("## Quick start")
    assert "AutoLDL" in blocks(ROOT / "README.md", "python")[0][2]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_code_is_at_most_88_columns_wide(page: Path) -> None:
    """So that no block scrolls on a screen of 1,400 pixels."""
    fenced, long = False, []
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        fenced ^= line.startswith("```")
        if fenced and len(line) > (92 if line.startswith(("note: ", "S0271,")) else 88):  # what a command prints
            long.append(number)
    assert long == [], f"{page.name}: lines {long}"


@pytest.mark.parametrize("page", [p for p in PAGES if p.stem not in NOT_HOW_TOS], ids=lambda page: page.stem)
def test_sentences_of_how_tos_are_short(page: Path) -> None:
    """At most 25 words on average."""
    text = re.sub(r"^---\n.*?^---$|^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    lines = [line for line in text.splitlines() if not line.startswith(("|", "#", ":", "!", "["))]
    prose = re.sub(r"`[^`]*`", "x", re.sub(r"\]\([^)]*\)", "]", "\n".join(lines)))
    sentences = [s.split() for s in re.split(r"(?<=[.:?!])\s|\n\s*\n|\n- ", prose) if len(s.split()) > 2]
    assert sum(map(len, sentences)) <= 25 * len(sentences), page.name


@pytest.mark.parametrize(("page", "sentence"), STATEMENTS)
def test_statements_about_defaults_hold(page: str, sentence: str) -> None:
    """Each sentence is made from the constant that decides; a new value makes the page wrong."""
    text = " ".join((DOCS / f"{page}.md").read_text(encoding="utf-8").split())
    assert sentence in text, f"{page}.md no longer says, or says something else than: {sentence}"


def test_every_kind_of_user_has_a_tutorial_that_runs() -> None:
    pages = {page.stem for page in (DOCS / "tutorials").glob("*.md")}
    assert pages == {"soil", "crowd", "images", "research"}
    assert all(runs(DOCS / "tutorials" / f"{page}.md") for page in pages)


def shown_commands(page: Path) -> list[list[str]]:
    """Every call of our program in a block that does not run."""
    texts = FENCE.findall(page.read_text(encoding="utf-8").replace("\\\n", " "))
    lines = [line for text in texts for line in text.splitlines()]
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("snefy-ldl ")]


@pytest.mark.parametrize("page", [page for page in PAGES if shown_commands(page)], ids=lambda page: page.stem)
def test_shown_commands_and_their_options_exist(page: Path) -> None:
    program = get_command(cli.app)
    for name, *words in shown_commands(page):
        command = program.commands.get(name)
        assert command is not None, f"{page.name} calls snefy-ldl {name}"
        parameters = [*program.params, *command.params]
        known = {option for parameter in parameters for option in (*parameter.opts, *parameter.secondary_opts)}
        unknown = {word for word in words if word.startswith("--")} - known
        assert not unknown, f"{page.name}: snefy-ldl {name} {' '.join(words)}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        if MADE_BY_BENCHMARKS not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_rows_of_tables_have_as_many_cells_as_their_heads(page: Path) -> None:
    """A bar inside a cell, in code too, ends the cell unless it is escaped."""
    width, fenced = 0, False
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        fenced ^= line.startswith(("```", ":::"))
        bars = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") and not fenced else 0
        width = width if bars and width else bars
        assert bars == width, f"{page.name}, line {number}: {bars} bars under a head of {width}"
