"""What others import is where it is promised to be, and what needs no network starts without torch."""

from __future__ import annotations

import ast
import importlib
import importlib.resources
import re
import subprocess
import sys
from pathlib import Path

import pytest

import snefy_ldl

ROOT = Path(__file__).parent.parent

#: Where people import each name from; other projects rely on these paths.
PROMISED = {
    "snefy_ldl": "SnefyLDL LogRatioLDL AutoLDL GroupedLDL AnnotatorLDL SimplexDistribution SnefySimplex "
    "LogRatioSimplex SnefyHead Backbone Votes LDLPipeline compare fit_many load load_dataset",
    "snefy_ldl.metrics": "chebyshev clark canberra kl_divergence cosine intersection score coverage interval_width "
    "feature_stratified_coverage size_stratified_coverage energy_score crps",
    "snefy_ldl.learners": "SABFGS SAIIS DFLDL LDLSCL LDLLRR LDLDPA PTBayes PTSVM AAKNN AABP CPNN BCPNN ACPNN LDLForest "
    "DirichletLDL",
    "snefy_ldl.logratios": "clr alr ilr",
    "snefy_ldl.learners.enhancement": "FCM KM LP ML GLLE LEVI LIBLE ConLE SnefyEnhancer",
    "snefy_ldl.conformal": "ConformalIntervals ConformalRegion",
    "snefy_ldl.active": "query will_it_help",
    "snefy_ldl.ensemble": "DensityWeightedBagging",
    "snefy_ldl.votes": "Votes",
    "snefy_ldl.explain": "dependence effects",
    "snefy_ldl.datasets": "make_city_districts make_annotators",
}


@pytest.mark.parametrize("module", PROMISED)
def test_promised_names_are_where_they_were_promised(module: str) -> None:
    assert [name for name in PROMISED[module].split() if not hasattr(importlib.import_module(module), name)] == []


def test_the_top_of_the_package_has_these_names_alone() -> None:
    assert sorted(snefy_ldl.__all__) == sorted([*PROMISED["snefy_ldl"].split(), "__version__"])


#: One start of Python: what each import brings with it.
STARTS = """
import importlib, sys
for name, heavy in (
    ("snefy_ldl", {"torch", "numpy", "scipy", "sklearn", "pandas"}),
    ("snefy_ldl.datasets", {"torch"}),
    ("snefy_ldl.datasets.labelled", {"torch"}),
    ("snefy_ldl.votes.annotator_tables", {"torch"}),
):
    importlib.import_module(name)
    print(name, *sorted(heavy & set(sys.modules)))
"""


@pytest.mark.slow
def test_the_library_is_imported_at_once_and_tables_without_torch() -> None:
    """Nothing heavy comes with the library itself; tools/check_wheel.sh watches the time that it takes."""
    lines = subprocess.run([sys.executable, "-c", STARTS], check=True, capture_output=True, text=True).stdout
    assert [line for line in lines.splitlines() if " " in line] == []
    assert len(lines.splitlines()) == 4


def test_the_package_says_that_it_is_typed() -> None:
    assert importlib.resources.files("snefy_ldl").joinpath("py.typed").is_file()
    built = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert 'snefy_ldl = ["py.typed", ' in built  # the wheel's data; tools/smoke.py looks into the wheel itself


def requirements() -> dict[str, list[str]]:
    """What pyproject.toml asks for: "" is what everybody gets, the others are extras."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    core = text.partition("\ndependencies = [\n")[2].partition("\n]")[0]
    extras = text.partition("[project.optional-dependencies]\n")[2].partition("\n[")[0]
    lines = {"": core} | dict(line.split(" = ", 1) for line in extras.splitlines() if " = " in line)
    return {name: re.findall(r'"([^"]+)"', line) for name, line in lines.items()}


@pytest.mark.slow
def test_every_package_that_is_imported_is_asked_for() -> None:
    """A package that another one brings today may be gone tomorrow."""
    used = [entries for extra, entries in requirements().items() if extra not in ("bench", "test", "docs")]
    given = "\n".join(entry for entries in used for entry in entries)
    excepted = {
        "fsspec": "if a user passes the address of a store",
        "polars": "if a user passes a frame of it",
        "pydantic": "a part of FastAPI",
        "starlette": "a part of FastAPI",
        "typing_extensions": "for the type checker alone",
    }
    needed: dict[str, str] = {}
    for file in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module and not node.level else []
            needed |= {name.partition(".")[0]: file.name for name in names}
    for module in sorted(set(needed) - set(sys.stdlib_module_names) - {"snefy_ldl"} - set(excepted)):
        package = "scikit-learn" if module == "sklearn" else module.replace("_", "[-_]")
        assert re.search(rf"(?m)^{package}\b", given), f"{needed[module]} imports {module}"


def test_no_bound_admits_skops_with_known_weaknesses() -> None:
    """CVE-2025-54412 and CVE-2025-54413: a file may run code in skops up to 0.11."""
    (bound,) = [entry for entry in requirements()["pipelines"] if entry.startswith("skops")]
    assert tuple(map(int, bound.removeprefix("skops>=").split("."))) >= (0, 12)


def test_one_version_everywhere() -> None:
    assert f"\nversion: {snefy_ldl.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\n## {snefy_ldl.__version__}\n" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


SCRIPTS_OUTSIDE = [
    path for name in ("benchmarks", "examples", "reproduction", "tools") for path in sorted((ROOT / name).rglob("*.py"))
]


@pytest.mark.parametrize("script", SCRIPTS_OUTSIDE, ids=lambda script: f"{script.parent.name}/{script.stem}")
def test_scripts_import_what_exists(script: Path) -> None:
    """Also inside functions, which run only when a result is needed."""
    missing = []
    for node in ast.walk(ast.parse(script.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "snefy_ldl":
            try:
                module = importlib.import_module(node.module or "")
            except ModuleNotFoundError as error:
                if (error.name or "").startswith("snefy_ldl"):
                    missing.append(str(error))
                continue
            for name in node.names:
                if not hasattr(module, name.name):
                    try:
                        importlib.import_module(f"{node.module}.{name.name}")
                    except ModuleNotFoundError:
                        missing.append(f"{node.module}.{name.name}")
    assert missing == []
