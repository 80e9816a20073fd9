"""Laws on CPU and CUDA give the same answers."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from kinds import ANSWERS, LAWS, numbers_of
from snefy_ldl import SnefySimplex
from snefy_ldl.errors import InputError

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine"),
]

Build = Callable[..., SnefySimplex]


def on_cuda(dist: SnefySimplex) -> SnefySimplex:
    return SnefySimplex(dist.exponents.cuda(), dist.readout.cuda(), dist.log_scale.cuda())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("kind", "members", "voted"), LAWS, ids=str)
def test_every_law_answers_every_question_alike(kind: str, members: int, voted: bool, dtype: torch.dtype) -> None:
    """What a right answer is, test_matrix.py says."""
    numbers = numbers_of(kind, members, voted)
    here, there = numbers.law(dtype=dtype), numbers.law("cuda", dtype)
    # quantiles are solved to 1e-9 or so in float64 on either machine
    tolerance = 1e-6 if dtype == torch.float64 else 1e-4
    for question, answer in ANSWERS.items():
        assert here.supports(question) == there.supports(question), question
        if not here.supports(question):
            with pytest.raises(InputError):
                answer(there)
            continue
        cpu, cuda = answer(here), answer(there)
        assert cuda.is_cuda, question
        assert cpu.dtype == cuda.dtype, question
        # log densities of shares are integrals of 1e-9 or so, which shows where a density is e^-25
        rtol = 10.0 * tolerance if question == "marginal" else tolerance
        torch.testing.assert_close(
            cuda.cpu(), cpu, rtol=rtol, atol=tolerance, msg=lambda m, question=question: f"{question}: {m}"
        )


def test_tables_agree(snefy: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("snefy_ldl.distributions.dirichlet.DIRECT_EVALUATIONS", 0)
    here = snefy(4, n=8, batch=(60,))
    levels = [0.05, 0.5, 0.99]
    there = on_cuda(here).marginal(0).quantiles(levels)
    torch.testing.assert_close(there.cpu(), here.marginal(0).quantiles(levels), rtol=1e-8, atol=1e-10)
    back = on_cuda(here).marginal(0).cdf(there.movedim(-1, 0))
    expected = torch.tensor(levels, dtype=torch.float64)[:, None].expand(-1, 60)
    torch.testing.assert_close(back.cpu(), expected, rtol=0.0, atol=1e-8)


def test_draws_follow_the_law(snefy: Build) -> None:
    """2 x 3 x 12 comparisons at 5.5 standard errors: a false alarm in 350,000 runs; the seed is fixed."""
    base = on_cuda(snefy(4, n=6, m=2, batch=(3,)))
    for dist in (base, base.posterior(torch.tensor([1.0, 0.0, 4.0, 0.0]).cuda())):
        generator = torch.Generator("cuda").manual_seed(0)
        draws = dist.sample((20_000,), generator=generator)
        assert draws.is_cuda
        for values, expected in ((draws, dist.mean), ((draws - dist.mean).square(), dist.variance)):
            error = values.std(0) / math.sqrt(len(values))
            assert ((values.mean(0) - expected).abs() < 5.5 * error).all()
        model, error = dist.entropy(4000, generator=generator, return_std_error=True)
        uniform, other = dist.entropy(40_000, method="uniform", generator=generator, return_std_error=True)
        assert ((model - uniform).abs() < 5.5 * (error.square() + other.square()).sqrt()).all()


def test_gradients_agree(snefy: Build) -> None:
    base = snefy(4, n=5)
    ell = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    gradients = []
    for device in ("cpu", "cuda"):
        inputs = [t.detach().to(device).requires_grad_() for t in (base.exponents, base.readout, base.log_scale)]
        dist = SnefySimplex(*inputs)
        (dist.log_prob(ell.to(device)).sum() + dist.mean[..., 0].sum()).backward()
        gradients.append([t.grad.cpu() for t in inputs if t.grad is not None])
    for cpu, cuda in zip(*gradients):
        torch.testing.assert_close(cuda, cpu)
