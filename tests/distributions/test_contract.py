"""What a user of torch's distributions expects of both of ours, written once: a third one is one more entry here."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import torch
from test_logratio_distribution import make_mixture
from torch.distributions import constraints

import snefy_ldl
from snefy_ldl import LogRatioSimplex, SimplexDistribution, SnefySimplex
from snefy_ldl.errors import InputError

Build = Callable[..., SnefySimplex]
KINDS: dict[str, Callable[[Build], SimplexDistribution]] = {
    "square": lambda snefy: snefy(3, n=3, batch=(6,), members=2, concentration=(1.5, 9.0)),
    "votes": lambda snefy: snefy(3, n=3, batch=(6,), concentration=(1.5, 9.0)).posterior([1, 0, 2]),
    "listed": lambda snefy: SnefySimplex.from_mixture(torch.eye(6).double(), 1.0 + 3.0 * torch.rand(6, 3).double()),
    "log-ratios": lambda snefy: LogRatioSimplex(make_mixture(6)),
    "presence": lambda snefy: LogRatioSimplex(make_mixture(6, zeros=1.0)),
}


@pytest.fixture(params=KINDS)
def dist(request: pytest.FixtureRequest, snefy: Build) -> SimplexDistribution:
    return KINDS[request.param](snefy).named(["sand", "silt", "clay"])


def test_the_batch_is_indexed_as_a_tensor_is(dist: SimplexDistribution) -> None:
    for index in (0, -1, np.int64(2), slice(1, 4), slice(None, None, 2), [4, 0], np.array([1]), ..., None):
        part = dist[index]
        torch.testing.assert_close(part.mean, dist.mean[index], rtol=1e-6, atol=1e-6)
        assert part.label_names == dist.label_names
    mask = torch.tensor([True, False, True, True, False, False])
    torch.testing.assert_close(dist[mask].variance, dist.variance[mask], rtol=1e-6, atol=1e-6)
    wide = dist.expand((2, 6))
    torch.testing.assert_close(wide[1, 2:].mean, dist.mean[2:], rtol=1e-6, atol=1e-6)
    assert wide[..., -1].batch_shape == (2,)
    for outside in (6, -7, [0, 9], (0, 0)):
        with pytest.raises(IndexError, match="no entry"):
            dist[outside]
    with pytest.raises(InputError, match="whole numbers"):
        dist[["sand"]]
    with pytest.raises(InputError, match="selects no row"):
        dist[:0]
    again = dist[:2].joined([dist[:2], dist[2:]])
    torch.testing.assert_close(again.mean, dist.mean, rtol=1e-6, atol=1e-6)


def test_shapes_dtypes_and_checks(dist: SimplexDistribution) -> None:
    dist, shape = dist.expand((2, 6)), (2, 6)
    assert (dist.batch_shape, dist.event_shape, dist.support) == (shape, (3,), constraints.simplex)
    for draws in ((), (5, 2), (0,)):
        assert dist.sample(draws).shape == (*draws, *shape, 3)
    draws = dist.sample((7,))
    assert bool(dist.support.check(draws).all())
    assert dist.log_prob(draws).shape == (7, *shape)
    assert dist.log_prob(draws[0, 0, 0]).shape == shape
    share = dist.marginal(1)
    assert share.sample((5,)).shape == share.cdf(torch.full((5, 1, 1), 0.5)).shape == (5, *shape)
    assert share.expand((4, 2, 6)).cdf(torch.tensor(0.1)).shape == (4, 2, 6)
    assert dist.covariance_matrix.shape == (*shape, 3, 3)
    for table in (dist.mean, dist.variance, dist.stddev, dist.mode, dist.bayes_point("l1"), dist.prob_zero()):
        assert table.shape == (*shape, 3)
    for per_row in (dist.entropy(5), dist.vote_information(), dist.prob_greater(0, 1), share.mean, share.variance):
        assert per_row.shape == shape
    assert share.quantiles([0.1, 0.9]).shape == (*shape, 2)
    assert dist.mean_error.shape == dist.variance_error.shape == (*shape, 3)
    assert dist.quantiles_error([0.5, 0.9]).shape == dist.quantiles([0.5, 0.9]).shape == (*shape, 3, 2)
    for bad in ([0.5, 0.5, 0.5], [-0.5, 0.5, 1.0], [1.0]):
        with pytest.raises(ValueError, match=r"not a label distribution|3 real numbers"):
            dist.checking().log_prob(torch.tensor(bad))
    assert bool(torch.isfinite(dist.checking(False).log_prob(torch.tensor([0.5, 0.5, 0.5]))).all())
    assert dist[0].joined([dist[0], dist[1]]).label_names == dist.marginal("sand").dist.label_names
    with pytest.raises(InputError, match="3 names"):
        dist.named(["a", "b"])
    with pytest.raises(InputError, match="has the labels"):
        dist.marginal("mud")


def test_it_is_shown_in_a_shell_and_a_notebook(dist: SimplexDistribution) -> None:
    assert repr(dist).startswith(f"{type(dist).__name__}(batch_shape=(6,), labels=3, components=")
    page = dist._repr_html_()
    assert "sand" in page
    assert f"{float(dist.mean[0, 0]):.2f}"[1:] in page or f"{float(dist.mean[0, 0]):.3f}"[1:] in page
    assert "90" in page


def test_the_mode_is_a_point_of_highest_density(dist: SimplexDistribution) -> None:
    mode = dist.mode
    torch.testing.assert_close(mode, dist.mode)
    torch.testing.assert_close(mode.sum(-1), torch.ones(6).double())
    draws = dist.sample((2000,), torch.Generator().manual_seed(0))
    assert bool((dist.log_prob(mode) >= dist.log_prob(draws).max(0).values - 1e-2).all())


def test_reparametrised_draws_exist_or_say_why_not(dist: SimplexDistribution, snefy: Build) -> None:
    if not dist.has_rsample:
        with pytest.raises(InputError, match=r"use sample|given_support"):
            dist.rsample()
        return
    mixture = make_mixture(6)
    location = mixture.location.requires_grad_()
    draws = LogRatioSimplex(mixture).rsample((50,))
    assert draws.shape == (50, 6, 3)
    draws[..., 0].sum().backward()
    assert bool((location.grad != 0.0).any())


def test_probabilities_of_events(dist: SimplexDistribution) -> None:
    """Some 30 comparisons at five standard errors: a false alarm in 60,000 runs."""
    draws, n = dist.sample((4000,), torch.Generator().manual_seed(0)), 4000
    events: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "sand > 0.4": lambda x: x[..., 0] > 0.4,
        "sand + silt <= 0.7": lambda x: x[..., 0] + x[..., 1] <= 0.7,
        "clay >= 2 * sand": lambda x: x[..., 2] >= 2 * x[..., 0],
        "sand + 0.5 * clay > silt": lambda x: x[..., 0] + 0.5 * x[..., 2] > x[..., 1],
    }
    for text, event in events.items():
        chance, error = dist.probability(text, generator=torch.Generator().manual_seed(1))
        by_draws, own = dist.probability(event, n=n, generator=torch.Generator().manual_seed(2))
        held = event(draws).double().mean(0)
        size = (error.square() + own.square()).sqrt() + 1e-3
        assert bool(((chance - by_draws).abs() < 5.0 * size).all()), text
        assert bool(((chance - held).abs() < 5.0 * size).all()), text
        assert bool((error == 0.0).all()) == (text != "sand + 0.5 * clay > silt")
    for bad, message in (("sand", "no comparison"), ("mud > 0.1", "neither a number"), (3.0, "in words or a function")):
        with pytest.raises(InputError, match=message):
            dist.probability(bad)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="one truth value per draw"):
        dist.probability(lambda shares: shares > 0.5)


def test_conditioning_on_an_event(dist: SimplexDistribution) -> None:
    """18 means at 5.5 standard errors: a false alarm in a million runs."""
    given = dist.condition("sand > 0.2", generator=torch.Generator().manual_seed(0))
    draws = dist.sample((20_000,), torch.Generator().manual_seed(1))
    inside = (draws[..., 0] > 0.2).double()
    mean = (draws * inside[..., None]).sum(0) / inside.sum(0)[:, None]
    error = (given.std_error.square() + 0.25 / inside.sum(0)[:, None]).sqrt()
    assert bool(((given.mean - mean).abs() < 5.5 * error).all())
    chance = dist.probability("sand > 0.2")[0]
    assert bool(((given.log_prob_known.exp() - chance).abs() < 5.5 * given.log_prob_std_error * chance + 1e-3).all())
    assert bool((given.effective_draws > 20).all())
    assert bool((given.sample((50,))[..., 0] > 0.2).all())
    with pytest.raises(InputError, match="no draw of row 0"):
        dist.condition(lambda shares: shares[..., 0] > 2.0)


def test_own_draws_become_uniform_and_come_back(dist: SimplexDistribution) -> None:
    """Five kinds, four tests each at 1e-5: a false alarm in 5,000 runs."""
    draws = dist.sample((500,), torch.Generator().manual_seed(3))
    uniforms = dist.rosenblatt(draws)
    assert uniforms.shape == (500, 6, 2)
    torch.testing.assert_close(dist.inverse_rosenblatt(uniforms), draws, rtol=0.0, atol=1e-7)
    torch.testing.assert_close(dist.rosenblatt(draws), uniforms, rtol=0.0, atol=0.0)
    first, second = uniforms.flatten(0, 1).T.numpy()
    assert scipy.stats.kstest(first, "uniform").pvalue > 1e-5
    assert scipy.stats.kstest(second, "uniform").pvalue > 1e-5
    assert scipy.stats.spearmanr(first, second).pvalue > 1e-5
    back = dist.inverse_rosenblatt(torch.rand(2000, 6, 2, generator=torch.Generator().manual_seed(4)))
    zero = dist.prob_zero()
    assert bool((((back == 0.0).double().mean(0) - zero).abs() <= 5.0 * (zero * (1.0 - zero) / 2000).sqrt()).all())


def test_columns_of_frames_go_by_name(dist: SimplexDistribution) -> None:
    """Every method that takes label data: columns in another order give the same answer, wrong ones an error."""
    shares = dist.sample((), torch.Generator().manual_seed(0)).numpy()
    votes, holes = np.tile([3.0, 0.0, 1.0], (6, 1)), np.where([True, False, False], 0.2 + 0.0 * shares, np.nan)
    masks = np.tile([True, False, True], (6, 1))
    asks: dict[str, tuple[Callable[[Any], Any], Any]] = {
        "log_prob": (dist.log_prob, shares),
        "log_prob_known": (dist.log_prob_known, holes),
        "rosenblatt": (dist.rosenblatt, shares),
        "log_prob_counts": (dist.log_prob_counts, votes),
        "posterior": (lambda table: dist.posterior(table).mean, votes),
    }
    if dist.rows.may_be_zero:
        asks["prob_support"] = (dist.prob_support, masks)
        asks["given_support"] = (lambda table: dist.given_support(table.squeeze()).mean, masks[:1])
    else:
        with pytest.raises(InputError, match="use subcomposition"):
            dist.given_support([True, False, True])
    for name, (ask, table) in asks.items():
        if not dist.supports(name):
            continue
        frame = pd.DataFrame(table, columns=list(dist.label_names))
        frame = frame.iloc[0] if name == "given_support" else frame
        turned = frame[["clay", "sand", "silt"]]
        expected = ask(table)
        torch.testing.assert_close(ask(turned), expected, rtol=1e-9, atol=1e-9, msg=name)
        if turned.ndim == 2:
            with pytest.raises(InputError, match="mud"):
                ask(turned.rename(columns={"clay": "mud"}))


def test_questions_without_an_answer_say_what_to_do(dist: SimplexDistribution) -> None:
    asks: dict[str, Callable[[], object]] = {
        "posterior": lambda: dist.posterior([1, 0, 2]),
        "amalgamate": lambda: dist.amalgamate([[0, 1], [2]]),
        "log_prob_counts": lambda: dist.log_prob_counts([1, 0, 2]),
        "covariance_log": lambda: dist.covariance_log(),
    }
    for question, ask in asks.items():
        if dist.supports(question):
            ask()
        else:
            with pytest.raises(InputError, match=r"use |fit "):
                ask()
    with pytest.raises(InputError, match="unknown question"):
        dist.supports("tea")


def test_nobody_asks_which_distribution_it_is() -> None:
    """No isinstance, type comparison or hasattr about the two, their rows or their estimators, anywhere in the package.

    An estimator around others may refuse what it cannot hold: ``if not isinstance(base, SnefyLDL)`` and an error below.
    """
    asking = re.compile(
        r"isinstance\([^)]*(?:SnefySimplex|LogRatioSimplex|SnefyRows|LogRatioRows)"
        r"|type\(\w+\) (?:is|==|in) .*(?:SnefySimplex|LogRatioSimplex)"
        r"|type\(\w+\) (?:is|==|in) .*(?:SnefyLDL|LogRatioLDL)"
        r"|(?<!if not )isinstance\([^)]*(?:SnefyLDL|LogRatioLDL)"
        r"|hasattr\((?:self\.)?(?:dist|rows|dist\.rows), \"(?:family|mixture|square|exponents|offset|posterior)\""
        r"|hasattr\((?:model|one|core), \"(?:net_|inputs_|mixture_|mean_presence_|zero_policy_)\""
    )
    for line in (
        'if type(model) is SnefyLDL and hasattr(model, "net_"):',
        "    if isinstance(model, SnefyLDL):",
        'return hasattr(model, "mean_presence_")',
        "one = isinstance(dist, LogRatioSimplex)",
    ):
        assert asking.search(line), line
    root = Path(snefy_ldl.__file__).parent
    found = [
        f"{path.relative_to(root)}:{number}: {line.strip()}"
        for path in root.rglob("*.py")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if asking.search(line)
    ]
    assert found == []
