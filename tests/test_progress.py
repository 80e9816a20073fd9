"""Progress: a plain line without a terminal, nothing if it is not wanted."""

from __future__ import annotations

import pytest

from snefy_ldl._internal.progress import Progress


def test_the_last_line_is_always_written(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("work", total=3) as progress:
        for done in range(1, 4):
            progress.update(done, f"loss {1 / done:.2f}")
    out, err = capsys.readouterr()
    assert not out
    assert err.startswith("work 3/3 loss 0.33")
    assert err.count("\n") == 1, "a short work needs one line"


def test_a_terminal_gets_a_bar(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    with Progress("work", total=2) as progress:
        progress.update(2, "done")
    err = capsys.readouterr().err
    assert "2/2" in err
    assert "━" in err


def test_nothing_is_shown_unasked(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("work", total=3, show=False) as progress:
        progress.advance()
    assert capsys.readouterr() == ("", "")
