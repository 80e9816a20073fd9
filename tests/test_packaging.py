"""What is published names one version, one licence and the same bounds everywhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from snefy_ldl import __version__

ROOT = Path(__file__).parent.parent


def test_the_conda_recipe_renders_with_the_bounds_of_the_package() -> None:
    jinja2, yaml = pytest.importorskip("jinja2"), pytest.importorskip("yaml")
    text = (ROOT / "packaging" / "conda" / "meta.yaml").read_text()
    recipe = yaml.safe_load(jinja2.Template(text).render(PYTHON="python"))
    project = (ROOT / "pyproject.toml").read_text().partition("[project.optional-dependencies]")[0]
    needed = set(re.findall(r'"([\w-]+>=[\d.]+)"', project.partition("dependencies = [")[2]))
    asked = {line.replace(" ", "").replace("pytorch", "torch") for line in recipe["requirements"]["run"]}
    assert asked == needed | {"python>=3.10"}
    assert recipe["package"]["version"] == __version__
    assert recipe["build"]["entry_points"] == ["snefy-ldl = snefy_ldl.apps.cli:main"]


@pytest.mark.parametrize("page", ["llms.txt", "AGENTS.md"])
def test_guides_for_programs_name_files_that_exist(page: str) -> None:
    text = (ROOT / page).read_text()
    links = re.findall(r"\]\(([^)]+)\)|`((?:docs|tools|tests)/[\w/.]+)`", text)
    assert links
    for link in links:
        assert (ROOT / "".join(link)).exists(), link
