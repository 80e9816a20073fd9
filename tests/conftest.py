"""What the tests share: builders of distributions, and quadrature on the simplex, an oracle without closed forms."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.special
import torch
from hypothesis import settings
from torch import Tensor

from snefy_ldl import SnefySimplex

settings.register_profile("snefy", deadline=None, max_examples=25, derandomize=True)
settings.load_profile("snefy")
if int(pd.__version__.split(".")[0]) < 3:
    pd.set_option("mode.copy_on_write", True)  # as in pandas 3: what a frame gives as an array may be read-only


@pytest.fixture(autouse=True)
def _own_randomness() -> Iterator[None]:
    """Each test starts from the same global seed and leaves the global state as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A real browser without a window; tests that need one are skipped if there is none."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (extra browser)")
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        pytest.skip("there is no Chromium on this machine")
    flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
    with playwright.sync_playwright() as started:
        made = started.chromium.launch(executable_path=program, args=flags)
        yield made
        made.close()


def random_snefy(
    n_labels: int,
    n: int = 4,
    m: int = 3,
    batch: tuple[int, ...] = (2,),
    members: int = 0,
    concentration: tuple[float, float] = (0.8, 8.0),
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> SnefySimplex:
    """A distribution with signed readout and concentrations α_ii log-uniform in a range."""
    rng = torch.Generator().manual_seed(seed)
    stack = (members,) if members else ()

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=rng, dtype=torch.float64)

    low, high = (torch.tensor(c, dtype=torch.float64).log() for c in concentration)
    alpha = (low + (high - low) * uniform(*stack, n, n_labels)).exp()
    readout = torch.randn(*stack, m, n, generator=rng, dtype=torch.float64)
    log_scale = torch.randn(*batch, *stack, n, generator=rng, dtype=torch.float64)
    return SnefySimplex((0.5 * (alpha - 1.0)).to(dtype), readout.to(dtype), log_scale.to(dtype))


@pytest.fixture(scope="session")
def snefy() -> Callable[..., SnefySimplex]:
    """Builder of random signed distributions."""
    return random_snefy


@pytest.fixture(scope="session")
def cancelling() -> Callable[[int], SnefySimplex]:
    """Builder of distributions whose weights nearly cancel, Σ|c| above 30: two almost equal neurons, subtracted."""

    def build(n_labels: int) -> SnefySimplex:
        first = torch.linspace(0.5, 2.0, n_labels, dtype=torch.float64)
        second = first + 0.4 * torch.cos(torch.arange(n_labels, dtype=torch.float64) * 2.0)
        readout = torch.tensor([[1.0, -1.0], [0.02, 0.05]], dtype=torch.float64)
        log_scale = torch.tensor([[0.0, 0.0], [0.0, 0.1]], dtype=torch.float64)
        return SnefySimplex(torch.stack([first, second]), readout, log_scale)

    return build


@pytest.fixture(scope="session")
def of_kind(cancelling: Callable[[int], SnefySimplex]) -> Callable[[str, int], SnefySimplex]:
    """Builder of every kind of a squared distribution, with batch (2,)."""

    def build(kind: str, n_labels: int) -> SnefySimplex:
        def votes(n: int) -> Tensor:
            return torch.arange(2.0 * n, dtype=torch.float64).reshape(2, n) % 4.0

        kinds: dict[str, Callable[[], SnefySimplex]] = {
            "signed": lambda: random_snefy(n_labels, seed=2),
            "cancelling": lambda: cancelling(n_labels),
            "members": lambda: random_snefy(n_labels, n=3, members=3, seed=4),
            "votes": lambda: random_snefy(n_labels, seed=3).posterior(votes(n_labels)),
            "members, votes": lambda: random_snefy(n_labels, n=3, members=2).posterior(votes(n_labels)),
            "merged, votes": lambda: (
                random_snefy(n_labels + 1, seed=3)
                .posterior(votes(n_labels + 1))
                .amalgamate([[0, n_labels], *([r] for r in range(1, n_labels))])
            ),
            "small": lambda: random_snefy(n_labels, concentration=(0.05, 0.3)),
            "sharp": lambda: random_snefy(n_labels, concentration=(500.0, 5000.0)),
        }
        return kinds[kind]()

    return build


@pytest.fixture(scope="session")
def rng() -> Callable[[int], torch.Generator]:
    """A seeded generator."""
    return lambda seed=0: torch.Generator().manual_seed(seed)


@dataclass(frozen=True)
class Quadrature:
    """Points (T, L) on the simplex and weights (T,): the trapezoidal rule on log-ratios, where densities are smooth."""

    points: Tensor
    weights: Tensor

    def expectation(self, dist: SnefySimplex) -> Callable[[Callable[[Tensor], Tensor]], Tensor]:
        """``f -> ∫ f(ℓ) p(ℓ|x) dℓ`` for each row of a batch (N,): f gives (T, ...), the answer is (N, ...)."""
        density = dist.log_prob(self.points[:, None]).exp() * self.weights[:, None]  # (T, N)

        def expect(function: Callable[[Tensor], Tensor]) -> Tensor:
            values = function(self.points)
            return (density.T @ values.reshape(len(values), -1)).reshape(-1, *values.shape[1:])

        return expect


@lru_cache(maxsize=4)
def _quadrature(n_labels: int) -> Quadrature:
    reach, count = {2: (60.0, 1201), 3: (40.0, 321)}[n_labels]
    axis = torch.linspace(-reach, reach, count, dtype=torch.float64)
    ratios = torch.cartesian_prod(*[axis] * (n_labels - 1)).reshape(-1, n_labels - 1)
    logs = torch.log_softmax(torch.cat([ratios, torch.zeros(len(ratios), 1, dtype=torch.float64)], 1), -1)
    weights = logs.sum(-1).exp() * float(axis[1] - axis[0]) ** (n_labels - 1)  # the Jacobian is Π ℓ_r
    used = weights > 1e-40
    return Quadrature(logs[used].exp(), weights[used])


@pytest.fixture(scope="session")
def quadrature() -> Callable[[int], Quadrature]:
    """Quadrature on the simplex with 2 or 3 parts, good to 1e-8 for concentrations from 0.8 to 30."""
    return _quadrature


def _interval(low: float, high: float) -> tuple[Tensor, Tensor, Tensor]:
    edges = np.linspace(low, high, max(2, math.ceil(high - low)) + 1)
    nodes, weights = np.polynomial.legendre.leggauss(10)
    half = 0.5 * np.diff(edges)[:, None]
    z = (edges[:-1, None] + half * (nodes + 1.0)).ravel()
    t, rest = scipy.special.expit(z), scipy.special.expit(-z)
    return torch.as_tensor(t), torch.as_tensor(rest), torch.as_tensor((half * weights).ravel() * t * rest)


@pytest.fixture(scope="session")
def interval() -> Callable[[float, float], tuple[Tensor, Tensor, Tensor]]:
    """Gauss-Legendre points t, 1 - t and weights for ``∫ dt`` between two logits."""
    return _interval


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that need the real data sets are skipped if these are not."""
    if os.environ.get("SNEFY_LDL_DATA"):
        return
    for item in items:
        if item.get_closest_marker("data"):
            item.add_marker(pytest.mark.skip(reason="the real data sets are not here: SNEFY_LDL_DATA is not set"))
