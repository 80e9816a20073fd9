"""Label distributions with unknown shares: the density of what is known, by integration over what is not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from snefy_ldl import SnefyLDL, SnefySimplex
from snefy_ldl._internal.validation import check_distributions
from snefy_ldl.datasets import make_city_districts
from snefy_ldl.datasets.zeros import ZeroPolicy
from snefy_ldl.errors import InputError, LabelWarning, TrainingError

NAN = np.nan
pytestmark = pytest.mark.filterwarnings("ignore::snefy_ldl.errors.LabelWarning")


def integrated(dist: SnefySimplex, row: list[float], quadrature: Callable) -> Tensor:
    """Density of the known shares (N,): the distribution's own, integrated over how the rest may be shared out."""
    known = torch.tensor(row, dtype=torch.float64)
    gaps = torch.isnan(known)
    rest, parts = float(1.0 - known.nansum()), int(gaps.sum())
    rule = quadrature(parts)
    points = known.expand(len(rule.points), -1).clone()
    points[:, gaps] = rest * rule.points
    density = dist.log_prob(points[:, None]).exp()  # (T, N)
    return (density * rule.weights[:, None]).sum(0) * rest ** (parts - 1)


ROWS = [
    (3, [0.3, NAN, NAN]),
    (3, [NAN, 0.7, NAN]),
    (4, [0.2, NAN, 0.5, NAN]),
    (4, [NAN, NAN, NAN, 0.35]),
]


@pytest.mark.parametrize(("n_labels", "row"), ROWS)
def test_density_of_what_is_known_by_integration(
    n_labels: int, row: list[float], snefy: Callable[..., SnefySimplex], quadrature: Callable
) -> None:
    dist = snefy(n_labels)
    ours = dist.log_prob_known(np.array([row, row]))
    torch.testing.assert_close(ours.exp(), integrated(dist, row, quadrature), rtol=1e-6, atol=1e-9)


# -- fits ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def city():
    return make_city_districts(n=400, random_state=0)


def small(**changes) -> SnefyLDL:
    return SnefyLDL(
        **(
            {"n_neurons": 12, "n_readouts": 6, "epochs": 12, "random_state": 0, "device": "cpu", "guides": None}
            | changes
        )
    )


def hide(D: np.ndarray, rows: np.ndarray, seed: int = 0) -> np.ndarray:
    """One label stays known in each of some rows."""
    D, kept = D.copy(), np.random.default_rng(seed).integers(0, D.shape[1], len(D))
    for row in np.flatnonzero(rows):
        D[row, np.arange(D.shape[1]) != kept[row]] = NAN
    return D


@pytest.mark.slow
def test_rows_with_gaps_teach(city) -> None:
    hidden = np.random.default_rng(3).random(300) < 0.9
    gaps = hide(city.D[:300], hidden)
    rest = city.X[300:], city.D[300:]
    with_gaps = small().fit(city.X[:300], gaps).score(*rest)
    complete = small().fit(city.X[:300], city.D[:300]).score(*rest)
    without = small().fit(city.X[:300][~hidden], city.D[:300][~hidden]).score(*rest)
    assert without + 0.1 < with_gaps < complete + 0.1


def test_one_unknown_share_follows_from_the_others(city) -> None:
    gaps = city.D.copy()
    gaps[::2, 1] = NAN
    exact = check_distributions(gaps, missing=True)[0]
    np.testing.assert_allclose(exact, city.D, atol=1e-12)
    ours, usual = (small(epochs=2).fit(city.X, D).predict(city.X[:5]) for D in (gaps, exact))
    np.testing.assert_array_equal(ours, usual)


def test_scores_with_gaps(city) -> None:
    model = small(epochs=3).fit(city.X, city.D)
    gaps = hide(city.D[:20], np.arange(20) % 2 == 0)
    ours = model.log_prob(city.X[:20], gaps)
    dist = model.predict_dist(city.X[:20])
    np.testing.assert_allclose(ours[1::2], dist.log_prob(torch.as_tensor(city.D[:20])).numpy()[1::2], rtol=1e-9)
    label = int(np.flatnonzero(~np.isnan(gaps[0]))[0])
    marginal = dist.marginal(label).log_prob(torch.as_tensor(city.D[0, label]))
    assert ours[0] == pytest.approx(float(marginal.reshape(-1)[0]), rel=1e-9)
    assert model.score(city.X[:20], gaps) == pytest.approx(ours.mean())


def test_counts_with_gaps_are_scored_among_the_others(city) -> None:
    model = small(epochs=2).fit(city.X, city.D)
    counts = np.array([[3.0, 1.0, NAN], [2.0, 0.0, 5.0]])
    dist = model.predict_dist(city.X[:2])
    ours = model.log_prob(city.X[:2], counts=counts)
    among = dist.subcomposition([0, 1]).log_prob_counts(torch.tensor([[3.0, 1.0], [0.0, 0.0]]))
    assert ours[0] == pytest.approx(float(among[0]))
    np.testing.assert_allclose(ours, dist.double().log_prob_counts(counts).numpy())


def test_known_shares_that_leave_nothing() -> None:
    D = np.array([[0.6, 0.4, NAN, NAN], [0.1, 0.2, 0.3, 0.4], [0.2, NAN, NAN, 0.0]])
    policy = ZeroPolicy.from_data(D, "shrink")
    with pytest.warns(LabelWarning, match="2 of 3"):
        lifted = policy.apply(D, warn=True)
    np.testing.assert_array_equal(np.isnan(lifted), np.isnan(D))
    np.testing.assert_array_equal(lifted[1], D[1])
    assert np.nansum(lifted[0]) == pytest.approx(1.0 - 2 * policy.floor)  # the floor for each of the two
    assert lifted[2, 3] == pytest.approx(policy.floor)
    with pytest.raises(InputError, match="zeros='error'"):
        ZeroPolicy.from_data(D, "error").apply(D)


@pytest.mark.parametrize(
    ("D", "rule"),
    [
        ([[NAN, NAN, NAN], [0.2, 0.3, 0.5]], "row 0 holds no share"),
        ([[0.9, 0.2, NAN], [0.2, 0.3, 0.5]], "row 0 sums to 1.1; known shares may sum to at most 1"),
        ([[0.2, NAN, NAN], [0.2, 0.3, 0.6]], "row 1 sums to 1.1; a label distribution must sum to 1"),
        ([[0.2, NAN, np.inf], [0.2, 0.3, 0.5]], "contains inf at row 0"),
        ([[-0.2, NAN, NAN], [0.2, 0.3, 0.5]], "negative"),
    ],
)
def test_bad_rows_with_gaps_are_named(D: list, rule: str) -> None:
    with pytest.raises(InputError, match=rule):
        small().fit(np.eye(2), D)


def test_a_label_that_is_never_known(city) -> None:
    gaps = city.D.copy()
    gaps[:, 1:] = NAN
    assert np.isfinite(small(epochs=2).fit(city.X, gaps).score(city.X, gaps))


# -- checkpoints -----------------------------------------------------------------------------------------------------


def test_a_checkpoint_knows_the_votes_and_weights(tmp_path) -> None:
    rng = np.random.default_rng(0)
    X, counts = rng.normal(size=(40, 2)), rng.integers(1, 5, (40, 3))
    settings = {"epochs": 1, "checkpoint_dir": tmp_path}
    small(**settings).fit(X, counts=counts)
    small(**settings).fit(X, counts=counts)  # its own: goes on
    for other in ({"counts": counts + 1}, {"counts": counts, "sample_weight": rng.random(40)}):
        with pytest.raises(TrainingError, match="other data"):
            small(**settings).fit(X, **other)
