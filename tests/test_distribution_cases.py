"""Distributions answer as their table says, and so does the exported graph; the page is held to it in a browser."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from distribution_cases import KINDS, answers_of, model_of, table


@pytest.mark.parametrize("kind", KINDS)
def test_the_distribution(kind: str) -> None:
    case = table()[kind]
    for name, values in answers_of(model_of(kind), case["X"]).items():
        np.testing.assert_allclose(values, case[name], atol=1e-7, err_msg=name)


def check_graph(answers: list[np.ndarray], kind: str) -> None:
    """Hold mean and variance against the table."""
    case = table()[kind]
    variance = np.diagonal(case["covariance"], axis1=1, axis2=2)
    for values, expected in zip(answers, (case["mean"], variance)):
        np.testing.assert_allclose(values, expected, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_the_graph(kind: str) -> None:
    from snefy_ldl.apps.integrations.graph import ModelGraph

    check_graph([part.numpy() for part in ModelGraph(model_of(kind))(torch.as_tensor(table()[kind]["X"]))], kind)
