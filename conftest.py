"""What every test and every example in a docstring shares: figures are closed."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _closed_figures() -> Iterator[None]:
    """Close what pyplot holds: examples in docstrings cannot do so, and many open figures are a warning."""
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")
