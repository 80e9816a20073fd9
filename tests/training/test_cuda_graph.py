"""Steps that cannot be captured as a CUDA graph; on any machine, with CUDA's part played by a stand-in."""

from __future__ import annotations

import logging

import pytest
import torch

from snefy_ldl.training.steps import GraphedStep


def test_a_failed_capture_is_noted_once_and_in_plain_words(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse() -> None:
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing")

    monkeypatch.setattr(torch.cuda, "Stream", refuse)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    count = torch.zeros(1)
    with caplog.at_level(logging.DEBUG):
        for _ in range(3):
            step = GraphedStep(lambda: count.add_(1.0) and None, lambda: {}, lambda state: None)
            step()
            step()
    assert float(count) == 6.0  # every step was run, one by one
    assert len(caplog.records) <= 1  # none where a test before this one has met it
    assert "CUDA error" not in caplog.text
