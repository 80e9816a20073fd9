"""Pages that are generated before each build: the reference, the command line, and files from outside docs/."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from pathlib import Path
from typing import Any

from public_names import CONSTANTS, SUBJECTS, public_names

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
#: Keywords for the search of files that name none themselves.
KEYWORDS = {
    "changelog": "changes, changelog, versions, release notes, news",
    "contributing": "contribute, development, tests, style",
    "results/density": "zuko, normalising flow, mixture density network, NGBoost, likelihood, benchmark",
    "results/waits": "latency, time, first call, million rows, benchmark",
    "results/peer": "PyLDL, speed, fast, accurate, compared, comparison, time, benchmark",
    "results/gpu": "GPU, CUDA, H200, benchmark",
    "results/thresholds": "thresholds, policy, settings, defaults, ablation, benchmark",
    "results/active_study": "active learning, study, pools, benchmark",
}
#: Pages of the site that show a file from outside docs/: all results, and two of the project.
SHOWN = {
    "changelog": "CHANGELOG.md",
    "contributing": "CONTRIBUTING.md",
    **{
        f"results/{file.stem}": f"benchmarks/results/{file.name}" for file in (ROOT / "benchmarks/results").glob("*.md")
    },
}
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")


def write(file: Path, text: str) -> None:
    """Write a page unless its text is unchanged: Sphinx rebuilds pages with a newer date."""
    file.parent.mkdir(parents=True, exist_ok=True)
    if not file.exists() or file.read_text(encoding="utf-8") != text:
        file.write_text(text, encoding="utf-8")


def write_pages() -> None:
    """Write all generated pages, and remove outdated ones."""
    pages = {**shown_pages(), **reference_pages(), DOCS / "reference" / "command-line.md": command_line_page()}
    for file, text in pages.items():
        write(file, text)
    for file in [*(DOCS / "reference").rglob("*.*"), *(DOCS / "results").glob("*.md")]:
        if file.is_file() and file not in pages:
            file.unlink()


def shown_pages() -> dict[Path, str]:
    """Return copies of files outside docs/, with a title and with links that stay inside the site."""
    pages = {}
    for page, source in SHOWN.items():
        words = KEYWORDS.get(page, f"{Path(page).name}, benchmark")
        text = (ROOT / source).read_text(encoding="utf-8")
        if not text.startswith("# "):
            text = f"# {Path(source).stem.capitalize()}: results\n\n{text}"
        text = turn_links(text, (ROOT / source).parent, (DOCS / page).parent)
        pages[DOCS / f"{page}.md"] = f'---\nmyst:\n  html_meta:\n    keywords: "{words}"\n---\n\n{text}'
    return pages


def turn_links(text: str, home: Path, page: Path) -> str:
    """Redirect the links of a page to the site: to its copy of a file, to a picture, or to nothing if there is none.

    Args:
        text: Markdown.
        home: the folder that the links are relative to.
        page: the folder of the page on the site.

    Returns:
        The text with the new links.
    """
    copies = {(ROOT / source).resolve(): DOCS / f"{name}.md" for name, source in SHOWN.items()}
    copies[(ROOT / "README.md").resolve()] = DOCS / "index.md"

    def turn(match: re.Match[str]) -> str:
        mark, words, target, anchor = match[1], match[2], match[3], match[4] or ""
        if ":" in target or target.startswith(("/", "<")):
            return match[0]
        file = (home / target).resolve()
        copy = copies.get(file) or example_page(file)
        if copy is None and (DOCS not in file.parents or file.suffix == ".py") and not mark:
            return words if "`" in words else f"`{words}`"  # a source file: the site has no page for it
        goal = copy or file
        up = Path(*[".."] * len(page.relative_to(DOCS).parts))
        path = goal.relative_to(DOCS) if DOCS in goal.parents else Path("..") / goal.relative_to(ROOT)
        return f"{mark}[{words}]({(up / path).as_posix()}{anchor})"

    return LINK.sub(turn, text)


def example_page(file: Path) -> Path | None:
    """Return the page that the gallery makes from an example or from a header, or None."""
    if file == DOCS / "gallery":
        return DOCS / "auto_gallery" / "index.rst"
    if DOCS / "gallery" not in file.parents:
        return None
    page = DOCS / "auto_gallery" / file.relative_to(DOCS / "gallery")
    return page.with_name("index.rst") if file.name == "GALLERY_HEADER.rst" else page.with_suffix(".rst")


# -- reference ---------------------------------------------------------------------------------------------------------


def reference_pages() -> dict[Path, str]:
    """Return one page per public name, one per module, and the table of contents."""
    folder, names = DOCS / "reference", public_names()
    contents = [
        "Reference",
        "=========",
        "",
        "All public names, with their docstrings. Anything that is not listed here may change at any time.",
        "",
    ]
    contents += [".. toctree::", "   :hidden:", "", "   command-line", ""]
    pages, described = {}, set[type]()
    for subject, modules in SUBJECTS.items():
        shown = [path for path in modules if names[path]]
        contents += [subject, "-" * len(subject), ""]
        contents += [f"- :doc:`{path}`: {summary_of(path)}" for path in shown]
        contents += ["", ".. toctree::", "   :hidden:", ""] + [f"   {path}" for path in shown] + [""]
        for path in modules:
            if not names[path]:
                continue
            pages[folder / f"{path}.rst"] = module_page(path, names[path])
            for name in names[path]:
                pages[folder / "names" / f"{file_name(path, name)}.rst"] = name_page(path, name, described)
    contents += ["Command line", "------------", "", "Every command and option: :doc:`command-line`.", ""]
    pages[folder / "index.rst"] = "\n".join(contents)
    return pages


def summary_of(path: str) -> str:
    """Return the first line of a module's docstring."""
    return (inspect.getdoc(import_module(path)) or "").splitlines()[0]


def module_page(path: str, names: list[str]) -> str:
    """Return the page of one module: its summary and a table of its names."""
    lines = [path, "=" * len(path), "", summary_of(path), "", f".. currentmodule:: {path}", "", ".. autosummary::", ""]
    lines += [f"   {name}" for name in names if callable(getattr(import_module(path), name))]
    lines += ["", ".. toctree::", "   :hidden:", ""] + [f"   names/{file_name(path, name)}" for name in names]
    return "\n".join([*lines, ""])


def file_name(path: str, name: str) -> str:
    """Return the name of a page; classes get a suffix, as some file systems ignore case (``Effects``, ``effects``)."""
    return f"{path}.{name}" + ("-class" if inspect.isclass(getattr(import_module(path), name)) else "")


def name_page(path: str, name: str, described: set[type]) -> str:
    """Return the page of one name; results that several functions return are described with the first."""
    value: Any = getattr(import_module(path), name)
    lines = [name, "=" * len(name), "", f".. currentmodule:: {path}", ""]
    if inspect.isclass(value):
        lines += [f".. autoclass:: {path}.{name}", "   :members:", "   :inherited-members:"]
    elif callable(value):
        lines += [f".. autofunction:: {path}.{name}"]
        result = returned_class(value)
        if result is not None and result not in described:
            described.add(result)
            lines += ["", f".. autoclass:: {result.__module__}.{result.__qualname__}", "   :members:"]
    else:
        lines += [f".. py:data:: {path}.{name}", "", f"   {CONSTANTS[name]}"]
    return "\n".join([*lines, ""])


def returned_class(function: Any) -> type | None:
    """Return the class of what a function returns if no page describes it: a result is part of its function."""
    home = import_module(function.__module__)
    result = getattr(home, str(inspect.signature(function).return_annotation), None)
    if not inspect.isclass(result) or not result.__module__.startswith("snefy_ldl"):
        return None
    listed = (getattr(import_module(path), name) for path, names in public_names().items() for name in names)
    return None if any(value is result for value in listed) else result


# -- command line ------------------------------------------------------------------------------------------------------


def command_line_page() -> str:
    """Return a page with every command, its arguments and options, as printed by ``--help``."""
    from typer.main import get_command

    from snefy_ldl.apps.cli import app

    program: Any = get_command(app)
    lines = ["# Command line", "", "`snefy-ldl COMMAND --help` prints the same in the terminal.", ""]
    for name in sorted(program.commands):
        command = program.commands[name]
        lines += [f"## snefy-ldl {name}", "", clean(command.help or "").split("\n\n")[0], ""]
        groups = getattr(command, "commands", None)
        for label, part in sorted((groups or {"": command}).items()):
            if label:
                lines += [f"### snefy-ldl {name} {label}", "", clean(part.help or ""), ""]
            lines += [
                "| | |",
                "|---|---|",
                *(row_of(parameter) for parameter in part.params if not parameter_hidden(parameter)),
                "",
            ]
    return "\n".join(lines)


def parameter_hidden(parameter: Any) -> bool:
    return bool(getattr(parameter, "hidden", False)) or parameter.name == "help"


def row_of(parameter: Any) -> str:
    """Return a parameter as a row of a table."""
    is_option = parameter.param_type_name == "option"
    words = ", ".join([*parameter.opts, *parameter.secondary_opts]) if is_option else parameter.name.upper()
    text = clean(getattr(parameter, "help", None) or "").replace("\n", " ").replace("|", "\\|")
    return f"| `{words}` | {text} |"


def clean(text: str) -> str:
    """Return help text without terminal markup."""
    text = re.sub(r"\[/?[a-z ]+\]", "", inspect.cleandoc(text).replace("\b", ""))
    return re.sub(r"(?<!`)(?<![\w`-])(--[a-z][a-z-]*)(?![\w`])", r"`\1`", text).replace("<", "&lt;")
