"""Reports without pictures, for tests of their words: drawing is most of the time that a report takes."""

from __future__ import annotations

import pytest

from snefy_ldl.apps.cli.pictures import Pictures


@pytest.fixture
def blank_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages have an empty picture in the place of each."""
    monkeypatch.setattr(Pictures, "figure", lambda *args, **options: '<svg viewBox="0 0 1 1"></svg>')
