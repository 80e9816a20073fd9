"""What every test and every example in a docstring shares: figures are closed; integrations may be missing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

#: Modules whose examples need a package that is not here; their tests say so when they are skipped.
NEEDS = {"hub": "huggingface_hub", "mlflow": "mlflow"}
collect_ignore = [
    f"src/snefy_ldl/apps/integrations/{name}.py" for name, package in NEEDS.items() if find_spec(package) is None
]


@pytest.fixture(autouse=True)
def _closed_figures() -> Iterator[None]:
    """Close what pyplot holds: examples in docstrings cannot do so, and many open figures are a warning."""
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")
