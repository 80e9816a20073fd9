"""Steps that cannot be captured as a CUDA graph; on any machine, with CUDA's part played by a stand-in."""

from __future__ import annotations

import copy
import logging

import pytest
import torch

from snefy_ldl.networks import SnefyNet, StackedMLP
from snefy_ldl.training.likelihoods import Shares
from snefy_ldl.training.policy import Schedule
from snefy_ldl.training.steps import GraphedSteps, Steps, make_optimizer


def test_a_failed_capture_is_noted_once_and_in_plain_words(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse() -> None:
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing")

    monkeypatch.setattr(torch.cuda, "Stream", refuse)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    net = SnefyNet(StackedMLP(2, 3, (4,)), 3, 4, 2)
    X, D = torch.randn(30, 3), torch.distributions.Dirichlet(torch.ones(3).double()).sample((30,))
    objective, rows = Shares(D.log()[None], net, torch.zeros(2).long()), torch.arange(30).expand(2, -1)
    nets = [net, copy.deepcopy(net)]
    with caplog.at_level(logging.DEBUG):
        losses = [
            kind(one, X, objective, make_optimizer(one, Schedule(1, 10, 1e-3)), rows[:, :10], 3, None).run(
                rows, [1.0] * 3
            )
            for kind, one in zip((Steps, GraphedSteps), nets)
        ]
    torch.testing.assert_close(*losses)  # every step was run, one by one
    assert len(caplog.records) <= 1  # none where a test before this one has met it
    assert "CUDA error" not in caplog.text
