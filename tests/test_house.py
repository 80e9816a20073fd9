"""What protects readers of the source: import layers, no cycles, and no module that reads what is private to another.

Each list of exceptions gives the reason for every entry. An entry that is no longer needed fails, too.
"""

from __future__ import annotations

import ast
import pkgutil
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import grimp
import networkx as nx
import pytest
from importlinter.cli import lint_imports

import snefy_ldl
from tools import counts

ROOT = Path(snefy_ldl.__file__).parent
SETTINGS = Path(__file__).parent.parent / "pyproject.toml"

#: Private names of other libraries that have no public twin.
FOREIGN_NAMES = {
    "torch._foreach_add_": "one call for all parameters; torch's own optimisers use it",
    "torch._foreach_copy_": "one call for all parameters; torch's own optimisers use it",
    "torch._foreach_norm": "one call for all parameters; torch's own clipping uses it",
    "torch._fused_adamw_": "the fused step of torch's own AdamW",
    "torch._standard_gamma": "draws with a gradient; torch's own Dirichlet uses it",
    "_buffers": "a registry of torch.nn.Module, filled for a copy with some of the members",
    "_modules": "a registry of torch.nn.Module, filled for a copy with some of the members",
    "_parameters": "a registry of torch.nn.Module, filled for a copy with some of the members",
}
#: Private names of this library that another module reads.
PRIVATE_READS: dict[str, str] = {}

#: Names that files share: a distribution, the estimator that predicts it, and the public module of its transforms.
MIRRORED = {"distributions/snefy.py": ["snefy.py"], "distributions/logratio.py": ["logratio.py", "logratios.py"]}


@cache
def sources() -> dict[str, tuple[str, ast.Module]]:
    """Text and tree of every module, by its path."""
    files = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in sorted(ROOT.rglob("*.py"))}
    return {name: (text, ast.parse(text)) for name, text in files.items()}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_"


def defined_in(tree: ast.Module) -> set[str]:
    """Private names that a module defines: functions, classes, variables and attributes it sets on ``self``."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_own(node.value):
            names.add(node.attr)
    return names


def is_own(value: ast.expr) -> bool:
    """Whether an expression is ``self``, ``cls`` or ``super()``."""
    if isinstance(value, ast.Call):
        return isinstance(value.func, ast.Name) and value.func.id == "super"
    return isinstance(value, ast.Name) and value.id in ("self", "cls")


def private_reads(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Private names that a module reads from elsewhere: (as it is written, the name alone)."""
    known = defined_in(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            if not is_own(node.value) and node.attr not in known:
                yield ast.unparse(node), node.attr
        elif isinstance(node, ast.ImportFrom):
            for name in node.names:
                if is_private(name.name):
                    yield f"{node.module}.{name.name}", name.name


def compare(exceptions: set[str], listed: dict[str, str]) -> None:
    """Fail if an exception is not listed, or if a listed one is no longer needed."""
    assert exceptions - set(listed) == set(), "private to another module: give it a public name, or list it"
    assert set(listed) - exceptions == set(), "no longer needed: remove it from the list"


def test_files_of_one_name_mean_the_same() -> None:
    """Names are compared without a final s: ``score.py`` next to ``scores.py`` is no better than two of one name."""
    homes: dict[str, list[str]] = {}
    for path in sorted(ROOT.rglob("*.py")):
        homes.setdefault(path.stem.rstrip("s"), []).append(str(path.relative_to(ROOT)))
    shared = {names[0]: names[1:] for stem, names in homes.items() if len(names) > 1 and not stem.startswith("__")}
    assert shared == MIRRORED, "name the files by what they hold"


@pytest.mark.slow
def test_no_module_reads_what_is_private_to_another() -> None:
    reads, foreign = set(), set()
    for module, (_, tree) in sources().items():
        for written, name in private_reads(tree):
            listed = {written, name} & set(FOREIGN_NAMES)
            foreign |= listed
            if not listed:
                reads.add(f"{module} {name}")
    compare(reads, PRIVATE_READS)
    compare(foreign, FOREIGN_NAMES)


def test_the_import_layers_hold() -> None:
    assert lint_imports(str(SETTINGS), no_cache=True) == 0


def test_no_modules_import_each_other() -> None:
    """Imports for the type checker alone do not count: they do not run."""
    graph = grimp.build_graph("snefy_ldl", cache_dir=None, exclude_type_checking_imports=True)
    imports = nx.DiGraph((a, b) for a in graph.modules for b in graph.find_modules_directly_imported_by(a))
    assert [sorted(cycle) for cycle in nx.strongly_connected_components(imports) if len(cycle) > 1] == []


def test_every_package_has_its_layer() -> None:
    """The import layers name every part of the library."""
    listed = set(re.findall(r"snefy_ldl\.([\w.]+)", SETTINGS.read_text(encoding="utf-8")))
    inside = {"", "_internal.", "apps.", "learners.", "votes."}
    parts = {
        f"{prefix}{module.name}"
        for prefix in inside
        for module in pkgutil.iter_modules([str(ROOT / prefix.replace(".", ""))])
        if prefix != "learners." or module.ispkg
    }
    assert parts - {"_internal", "apps", "learners", "votes"} - listed == set(), "no layer in pyproject.toml"


def test_algorithms_of_learners_use_the_core_alone() -> None:
    graph = grimp.build_graph("snefy_ldl", cache_dir=None)
    core = (
        "_internal",
        "datasets",
        "distributions",
        "errors",
        "learners",
        "logratios",
        "metrics",
        "networks",
        "prediction",
    )
    layers = SETTINGS.read_text(encoding="utf-8")
    modules = [f"snefy_ldl.learners.{module.name}" for module in pkgutil.iter_modules([str(ROOT / "learners")])]
    algorithms = [module for module in modules if module not in layers]
    used = {name for module in algorithms for name in graph.find_modules_directly_imported_by(module)}
    assert {name for name in used if name.split(".")[1] not in (*core, "persistence", "prediction")} == set()


def test_no_module_imports_the_package_it_stands_in() -> None:
    graph = grimp.build_graph("snefy_ldl", cache_dir=None)
    assert graph.find_modules_that_directly_import("snefy_ldl") == set()


@pytest.fixture(scope="module")
def sizes() -> dict[str, int]:
    return counts.counts()


@pytest.mark.parametrize("name", counts.BUDGET)
def test_nothing_is_larger_than_its_budget(sizes: dict[str, int], name: str) -> None:
    limit = counts.LIMITS.get(name, counts.BUDGET[name])
    assert sizes[name] <= limit, "make it smaller; python tools/counts.py prints all sizes"


def test_every_module_is_counted_once(sizes: dict[str, int]) -> None:
    assert sum(sizes[name] for name in counts.PACKAGES) == sizes["code"]


def test_lines_of_code_are_neither_comments_nor_docstrings() -> None:
    docstring = "'What,\\nin two lines.'".replace("'", 3 * "'")
    text = f"'About.'\n\n# why\ndef f():\n    {docstring}\n    return {{  # so\n        1: 'a # b',\n    }}\n"
    assert counts.code_lines(text) == 4


def test_no_two_test_files_share_a_name() -> None:
    """Tests stand in folders without packages, and pytest tells files of one name apart by packages alone."""
    names = [path.name for path in Path(__file__).parent.rglob("*.py") if path.name != "conftest.py"]
    assert len(set(names)) == len(names), sorted(name for name in names if names.count(name) > 1)


def test_the_rules_see_what_they_forbid() -> None:
    tree = ast.parse(
        "from other import _helper\n"
        "class A:\n"
        "    def f(self, dist):\n"
        "        self._mine = dist._weights + dist._mine + super()._base_weights\n"
    )
    assert sorted(name for _, name in private_reads(tree)) == ["_helper", "_weights"]


@pytest.mark.parametrize("name", ["FOREIGN_NAMES", "PRIVATE_READS"])
def test_every_exception_has_a_reason(name: str) -> None:
    assert all(globals()[name].values())


def test_extras_that_include_extras_name_them() -> None:
    text = (ROOT.parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    section = text.split("[project.optional-dependencies]")[1].split("\n[")[0]
    named = {name for group in re.findall(r"snefy-ldl\[(.*?)\]", section) for name in group.split(",")}
    assert named <= set(re.findall(r"^(\w+) = ", section, re.MULTILINE))
