"""A whole run that the tests of studies and of resuming share."""

from __future__ import annotations

import pytest
from tiny_studies import STUDIES, run


@pytest.fixture(scope="session")
def whole_run(tmp_path_factory):
    """An uninterrupted run of all four families."""
    out = tmp_path_factory.mktemp("whole")
    run(list(STUDIES.values()), out)
    return out
