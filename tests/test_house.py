"""The rules of the house: how long a file may be, what no module may read, and that the layers hold.

Each list names what is excepted, with the reason. An entry that nothing needs any more fails, too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import grimp
import pytest

import snefy_ldl

ROOT = Path(snefy_ldl.__file__).parent
MODULE_LINES, CLASS_LINES, BODY_LINES, LOOSE_MODULES = 400, 250, 50, 20

LONG_MODULES: dict[str, str] = {}
LONG_CLASSES = {
    "active/loop.py ActiveLearner": "two dozen settings and results; a third of it is docstrings",
    "distributions/law.py SimplexLaw": "the contract of every law; half of it is docstrings",
    "distributions/mixture.py SignedDirichletMixture": "every answer of a mixture; a third of it is docstrings",
    "distributions/moving.py MovingSnefy": "every answer of a law with and without zeros, mostly a line or two each",
    "distributions/snefy.py SnefySimplex": "every answer of the family, written for its square; a third is docstrings",
    "pipeline.py LDLPipeline": "the surface of a pipeline, methods of a few lines; two thirds of it is docstrings",
    "prediction/density.py DensityPredictor": "eleven predictions of a few lines, each with its docstring and example",
    "estimator.py SnefyLDL": "the whole surface of the estimator; more than half of it is docstrings",
}
LONG_BODIES = {
    "experiments/report/claims.py claims_of_the_paper": "a list of sentences, one a claim",
}
#: Private names of other libraries that have no public twin.
FOREIGN_NAMES = {
    "os._exit": "a worker that was told to stop must not run the parent's clean-up",
    "torch._foreach_add_": "one call for all parameters; torch's own optimisers use it",
    "torch._foreach_copy_": "one call for all parameters; torch's own optimisers use it",
    "torch._foreach_norm": "one call for all parameters; torch's own clipping uses it",
    "torch._fused_adamw_": "the fused step of torch's own AdamW",
    "torch._standard_gamma": "draws with a gradient; torch's own Dirichlet uses it",
    "_modules": "the registry of torch.nn.Module, shared by a net of some of the members",
    "_parameters": "the registry of torch.nn.Module, shared by a net of some of the members",
    "_buffers": "the registry of torch.nn.Module, shared by a net of some of the members",
}
#: Private names of this library that another module reads.
PRIVATE_READS: dict[str, str] = {}


@cache
def sources() -> dict[str, tuple[str, ast.Module]]:
    """Text and tree of every module, by its path."""
    files = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in sorted(ROOT.rglob("*.py"))}
    return {name: (text, ast.parse(text)) for name, text in files.items()}


def length(nodes: list[ast.stmt]) -> int:
    """Lines from the first statement to the last."""
    return 0 if not nodes else (nodes[-1].end_lineno or 0) - nodes[0].lineno + 1


def functions_of(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Each function with the lines of its body; the docstring does not count."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.name, length(node.body[1:] if ast.get_docstring(node) is not None else node.body)


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
                if is_private(name.name) and node.module != "snefy_ldl":  # leaf modules are named with an underscore
                    yield f"{node.module}.{name.name}", name.name


def compare(exceptions: set[str], listed: dict[str, str]) -> None:
    """Fail where something is excepted and not listed, or listed as settled and not needed."""
    assert exceptions - set(listed) == set(), "breaks a rule of the house"
    assert set(listed) - exceptions == set(), "needed no more"


def test_no_module_is_too_long() -> None:
    long = {name for name, (text, _) in sources().items() if len(text.splitlines()) > MODULE_LINES}
    compare(long, LONG_MODULES)


def test_no_class_is_too_long() -> None:
    long = {
        f"{name} {node.name}"
        for name, (_, tree) in sources().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and length([node]) > CLASS_LINES
    }
    compare(long, LONG_CLASSES)


def test_no_function_is_too_long() -> None:
    long = {
        f"{name} {function}"
        for name, (_, tree) in sources().items()
        for function, lines in functions_of(tree)
        if lines > BODY_LINES
    }
    compare(long, LONG_BODIES)


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


def test_few_modules_stand_outside_a_package() -> None:
    loose = [path.name for path in ROOT.glob("*.py") if path.name not in ("__init__.py", "__main__.py")]
    assert len(loose) <= LOOSE_MODULES, sorted(loose)


def test_no_module_imports_the_package_it_stands_in() -> None:
    graph = grimp.build_graph("snefy_ldl", cache_dir=None)
    assert graph.find_modules_that_directly_import("snefy_ldl") == set()


def test_no_two_test_files_share_a_name() -> None:
    """Tests stand in folders without packages, and pytest tells files of one name apart by packages alone."""
    names = [path.name for path in Path(__file__).parent.rglob("*.py") if path.name != "conftest.py"]
    assert len(set(names)) == len(names), sorted(name for name in names if names.count(name) > 1)


def test_the_rules_see_what_they_forbid() -> None:
    tree = ast.parse(
        "from other import _helper\n"
        "class A:\n"
        "    def f(self, law):\n"
        "        self._mine = law._weights + law._mine + super()._base_weights\n"
    )
    assert sorted(name for _, name in private_reads(tree)) == ["_helper", "_weights"]
    assert dict(functions_of(tree)) == {"f": 1}


@pytest.mark.parametrize("name", ["LONG_MODULES", "LONG_CLASSES", "LONG_BODIES", "FOREIGN_NAMES", "PRIVATE_READS"])
def test_every_exception_has_a_reason(name: str) -> None:
    assert all(globals()[name].values())
