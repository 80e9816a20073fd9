"""Annotator tables, agreement, and scores of predicted votes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import betabinom

from snefy_ldl import SnefySimplex
from snefy_ldl.distributions.partial import rows_of
from snefy_ldl.distributions.votes import beta_binomial
from snefy_ldl.errors import DataNotFoundError, InputError
from snefy_ldl.synthetic import make_annotators
from snefy_ldl.votes.scores import (
    brier_score,
    calibrate_counts,
    evaluate,
    log_likelihood,
    noise_ceiling,
    predictive_cdf,
)
from snefy_ldl.votes.tables import PartialCounts, Votes, krippendorff_alpha, load_votes

# Krippendorff (2011), "Computing Krippendorff's Alpha-Reliability", part C: four observers, twelve units, gaps.
OBSERVERS = """
1 2 3 3 2 1 4 1 2 . . .
1 2 3 3 2 2 4 1 2 5 . 3
. 3 3 3 2 3 4 2 2 5 1 .
1 2 3 3 2 4 4 1 2 5 1 .
"""


@pytest.fixture(scope="module")
def krippendorff() -> Votes:
    cells = np.array([row.split() for row in OBSERVERS.split("\n") if row], dtype=object).T
    return Votes.from_wide(pd.DataFrame(np.where(cells == ".", None, cells), columns=list("ABCD")))


@pytest.mark.parametrize(("level", "published"), [("nominal", 0.743), ("ordinal", 0.815), ("interval", 0.849)])
def test_alpha_of_the_published_example(krippendorff: Votes, level, published: float) -> None:
    assert krippendorff.agreement(level).krippendorff_alpha == pytest.approx(published, abs=5e-4)


def test_alpha_from_all_pairs_of_votes() -> None:
    counts = np.random.default_rng(0).integers(0, 4, (20, 3))
    counts = counts[counts.sum(1) > 1]
    observed, weight, every = 0.0, 0.0, []
    for row in counts:
        votes = np.repeat(np.arange(3), row)
        pairs = list(itertools.permutations(votes, 2))
        observed += sum(a != b for a, b in pairs) / (len(votes) - 1)
        weight += len(votes)
        every += votes.tolist()
    expected = np.mean([a != b for a, b in itertools.permutations(every, 2)])
    assert krippendorff_alpha(counts) == pytest.approx(1 - observed / weight / expected, rel=1e-12)


def test_alpha_where_there_is_nothing_to_say() -> None:
    assert np.isnan(krippendorff_alpha([[1, 0], [0, 1]]))
    assert np.isnan(krippendorff_alpha([[3, 0], [2, 0]]))
    with pytest.raises(InputError, match="level"):
        krippendorff_alpha([[2, 1]], "ratio")  # type: ignore[arg-type]


# -- tables ----------------------------------------------------------------------------------------------------------


def long_table() -> pd.DataFrame:
    rows = [("x", "ann", 2.0), ("x", "bob", 1.0), ("y", "ann", 2.0), ("z", "bob", np.nan), ("y", "cem", 10.0)]
    return pd.DataFrame(rows, columns=["item", "annotator", "label"])


def test_long_table() -> None:
    votes = Votes.from_long(long_table())
    assert votes.label_names == ["1", "2", "10"]
    assert votes.items == ["x", "y", "z"]
    np.testing.assert_array_equal(votes.counts, [[1, 1, 0], [0, 1, 1], [0, 0, 0]])
    np.testing.assert_array_equal(votes.align(["y", "nobody", "x"]), [[0, 1, 1], [0, 0, 0], [1, 1, 0]])


def test_labels_in_the_order_wanted() -> None:
    votes = Votes.from_long(long_table(), label_names=["10", "5", "2", "1"])
    np.testing.assert_array_equal(votes.counts[1], [1, 0, 1, 0])


def test_repeats() -> None:
    table = {"item": ["a"] * 4, "annotator": ["p", "p", "q", "p"], "label": ["u", "v", "u", "w"]}
    expected = {"all": [2, 1, 1], "first": [2, 0, 0], "last": [1, 0, 1]}
    for repeats, counts in expected.items():
        found = Votes.from_long(table, repeats=repeats)  # type: ignore[arg-type]
        np.testing.assert_array_equal(found.counts[0], counts)
    with pytest.raises(InputError, match="'p' votes twice on item 'a'"):
        Votes.from_long(table, repeats="error")


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4), st.sampled_from("abc")), min_size=1, max_size=40))
def test_long_wide_and_counts_agree(rows: list) -> None:
    rows = list({(item, voter): (item, voter, label) for item, voter, label in rows}.values())
    frame = pd.DataFrame(rows, columns=["item", "annotator", "label"])
    votes = Votes.from_long(frame, label_names=["a", "b", "c"])
    wide = votes.to_wide()
    again = Votes.from_wide(wide, label_names=["a", "b", "c"])
    np.testing.assert_array_equal(again.counts, votes.counts)
    back = Votes.from_long(again.to_long(), label_names=["a", "b", "c"])
    np.testing.assert_array_equal(back.align(votes.items), votes.counts)
    tallied = Votes.from_counts(votes.to_counts())
    np.testing.assert_array_equal(tallied.counts, votes.counts)
    assert tallied.items == votes.items


@pytest.mark.parametrize("ending", ["csv", "tsv", "parquet"])
@pytest.mark.parametrize("form", ["long", "wide", "counts"])
def test_files_come_back(tmp_path: Path, form, ending: str) -> None:
    data = make_annotators(n=30, n_labels=3, votes=(1, 5), long_table=True, random_state=1)
    table = {
        key: [f"{value:03d}" if key == "item" else str(value) for value in column] for key, column in data.votes.items()
    }
    votes = Votes.from_long(table)
    again = load_votes(votes.save(tmp_path / f"votes.{ending}", form))
    assert again.label_names == votes.label_names
    assert again.items == votes.items
    assert again.items[7] == "007"
    np.testing.assert_array_equal(again.counts, votes.counts)
    np.testing.assert_array_equal(again.counts, data.counts)


def test_labels_called_na_are_labels(tmp_path: Path) -> None:
    file = tmp_path / "votes.csv"
    file.write_text("item,annotator,label\n1,p,NA\n1,q,None\n2,p,NA\n2,q,\n")
    votes = load_votes(file)
    assert votes.label_names == ["NA", "None"]
    assert len(votes) == 3


def test_wide_file_of_ratings_is_not_taken_for_counts(tmp_path: Path) -> None:
    file = tmp_path / "ratings.csv"
    file.write_text("item,r1,r2\na,1,5\nb,3,\nc,5,5\n")
    votes = load_votes(file)
    assert votes.label_names == ["1", "3", "5"]
    assert votes.annotators == ["r1", "r2"]


def test_votes_without_annotators(tmp_path: Path) -> None:
    file = tmp_path / "votes.csv"
    file.write_text("item,label\n1,u\n1,v\n")
    votes = load_votes(file)
    assert not votes.annotators
    with pytest.raises(InputError, match="who cast"):
        votes.to_wide()


def test_subsample_parts_the_votes() -> None:
    data = make_annotators(n=50, votes=(1, 9), random_state=0)
    votes = Votes.from_counts(data.counts)
    few, rest = votes.subsample(3, random_state=0)
    np.testing.assert_array_equal(few.counts + rest.counts, votes.counts)
    np.testing.assert_array_equal(few.counts.sum(1), np.minimum(3, data.counts.sum(1)))
    np.testing.assert_array_equal(votes.subsample(3, random_state=0)[0].counts, few.counts)


@pytest.mark.parametrize(
    ("call", "rule"),
    [
        (lambda: Votes.from_long({"item": [1], "label": ["a"]}), "no column 'annotator'"),
        (lambda: Votes.from_long({"item": [1, 2], "annotator": [1, 2], "label": ["a"]}), "equally long"),
        (lambda: Votes.from_long({"item": [None], "annotator": [1], "label": ["a"]}), "'item' is empty in row 0"),
        (lambda: Votes.from_long({"item": [1], "annotator": [1], "label": [None]}), "no vote at all"),
        (lambda: Votes.from_long({"item": [1], "annotator": [1], "label": ["a"]}), "one label"),
        (lambda: Votes.from_long(long_table(), label_names=["1", "2"]), "'10' is not among"),
        (lambda: Votes.from_wide([[None, ""]]), "no vote at all"),
        (lambda: Votes.from_wide(pd.DataFrame({"i": [1, 1], "a": ["u", "v"]}), "i"), "two rows"),
        (lambda: Votes.from_wide(pd.DataFrame({"a": ["u", "v"]}), "i"), "no column 'i'"),
        (lambda: Votes.from_counts([[1.5, 0]]), "whole numbers"),
        (lambda: Votes.from_counts([[-1, 0]]), "negative"),
        (lambda: Votes.from_counts([[1], [2]]), "at least 2 labels"),
        (lambda: Votes.from_counts([[1, 2]], label_names=["a"]), "do not fit"),
    ],
)
def test_bad_tables_are_named(call: Callable, rule: str) -> None:
    with pytest.raises(InputError, match=rule):
        call()


def test_bad_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataNotFoundError, match="no file"):
        load_votes(tmp_path / "none.csv")
    file = tmp_path / "votes.csv"
    file.write_text("item,annotator,label\n1,p,u\n")
    with pytest.raises(InputError, match=r"votes\.csv: all votes are for one label"):
        load_votes(file)
    with pytest.raises(InputError, match="form"):
        load_votes(file, "tall")  # type: ignore[arg-type]


# -- agreement and oddities ------------------------------------------------------------------------------------------


def test_agreement_in_numbers() -> None:
    found = Votes.from_counts([[4, 0], [2, 2], [1, 0]]).agreement()
    assert found.votes_per_item == (1, 4, 4)
    assert found.pairwise_agreement == pytest.approx((1 + 1 / 3) / 2)
    assert found.entropy == pytest.approx(np.log(2) / 3)
    assert found.unanimous == 0.5
    assert found.tied == pytest.approx(1 / 3)
    assert "9 votes on 3 items (1 to 4 an item, median 4)" in str(found)


def test_preflight_finds_what_was_put_in() -> None:
    rng = np.random.default_rng(0)
    rows = [
        (item, voter, "ab"[item % 2] if rng.random() < 0.9 else "ab"[1 - item % 2])
        for item in range(60)
        for voter in range(5)
    ]
    rows += [(item, "stuck", "a") for item in range(60)]
    rows += [(item, "upside", "ab"[1 - item % 2]) for item in range(60)]
    rows += [(0, 0, "a"), (60, 1, "b"), (1, 77, "A ")]
    frame = pd.DataFrame(rows, columns=["item", "annotator", "label"]).astype({"annotator": str})
    votes = Votes.from_long(frame, label_names=["a", "b", "A ", "c"])
    text = "\n".join(str(finding) for finding in votes.preflight())
    assert "1 vote repeats an earlier one" in text
    assert "1 of 61 items has a single vote (60)" in text
    assert "'A ' and 'a'" in text
    assert "without a vote (c)" in text
    assert "always vote for one label (10 votes or more) (stuck)" in text
    assert "far less with others than is usual (upside)" in text
    assert [f.level for f in votes.preflight()] == sorted((f.level for f in votes.preflight()), reverse=True)


def test_preflight_is_silent_on_good_votes() -> None:
    data = make_annotators(n=200, votes=(4, 8), long_table=True, random_state=0)
    assert Votes.from_long(data.votes).preflight() == []


def test_items_without_votes_are_an_error() -> None:
    findings = Votes.from_counts([[1, 2], [0, 0]]).preflight()
    assert findings[0].level == "error"
    assert findings[0].where == [1]
    assert "disagreement cannot be seen" in str(Votes.from_counts([[1, 0], [0, 1]]).preflight()[0])


# -- scores ----------------------------------------------------------------------------------------------------------


def test_log_likelihood_with_gaps_and_sets_sums_to_one(snefy: Callable[..., SnefySimplex]) -> None:
    """Over all outcomes of two votes on the labels that are counted; and of one single vote and one for a set."""
    law = snefy(3, batch=(1,), members=2)
    outcomes = [[2, 0], [1, 1], [0, 2]]
    wide = law.expand((3,))
    table = np.array([[a, np.nan, b] for a, b in outcomes], dtype=float)
    assert np.exp(log_likelihood(wide, table)).sum() == pytest.approx(1.0, abs=1e-12)
    # the second vote is for {0, 1} or for label 2 alone
    first = PartialCounts(np.eye(3), [[0, 1]], np.ones((3, 1)))
    inside = np.exp(log_likelihood(law.expand((3,)), first)).sum()
    outside = 0.0
    for r in range(3):
        k = torch.zeros(1, 3, dtype=torch.float64)
        k[0, r] = 1.0
        outside += float(law.mean[0, r] * law.posterior(k).mean[0, 2])
    assert inside + outside == pytest.approx(1.0, abs=1e-12)


def test_log_likelihood_of_plain_counts(snefy: Callable[..., SnefySimplex]) -> None:
    law = snefy(4, batch=(3,))
    counts = np.array([[1, 2, 0, 4], [0, 0, 1, 0], [5, 5, 5, 5]], dtype=float)
    np.testing.assert_allclose(log_likelihood(law, counts), law.log_prob_counts(torch.as_tensor(counts)), rtol=1e-10)
    mixed = counts.copy()
    mixed[1, 0] = np.nan
    found = log_likelihood(law, mixed)
    np.testing.assert_allclose(found[[0, 2]], law.log_prob_counts(torch.as_tensor(counts))[[0, 2]], rtol=1e-9)


def test_brier_is_the_mean_over_single_votes() -> None:
    rng = np.random.default_rng(0)
    mean, counts = rng.dirichlet(np.ones(3), 5), rng.integers(0, 4, (5, 3)) + np.eye(3)[rng.integers(0, 3, 5)]
    expected = []
    for p, k in zip(mean, counts.astype(int)):
        votes = np.eye(3)[np.repeat(np.arange(3), k)]
        expected.append(np.square(p - votes).sum(1).mean())
    np.testing.assert_allclose(brier_score(mean, counts), expected)
    with pytest.raises(InputError, match="one shape"):
        brier_score(mean[:2], counts)


def test_beta_binomial_equals_scipy() -> None:
    a, b = np.array([0.3, 2.0, 50.0]), np.array([4.0, 2.0, 0.7])
    for n in (0, 1, 12):
        expected = betabinom.pmf(np.arange(n + 1)[:, None], n, a, b)
        np.testing.assert_allclose(beta_binomial(a, b, n), expected, rtol=1e-9)


@pytest.mark.parametrize("seen", [False, True])
def test_predictive_cdf_by_enumeration(snefy: Callable[..., SnefySimplex], seen: bool) -> None:
    law = snefy(3, batch=(2,), members=2)
    law = law.posterior(torch.tensor([[1.0, 0.0, 4.0], [0.0, 2.0, 0.0]])) if seen else law
    counts = np.array([[2, 1, 0], [0, 1, 4]])
    found = predictive_cdf(law, counts)
    for row, total in enumerate(counts.sum(1)):
        every = [k for k in itertools.product(range(total + 1), repeat=3) if sum(k) == total]
        chance = [float(law.log_prob_counts(torch.tensor(k, dtype=torch.float64)).exp()[row]) for k in every]
        for label in range(3):
            for side in (0, 1):
                limit = counts[row, label] + side
                below = sum(p for p, k in zip(chance, every) if k[label] < limit)
                assert found[row, label, side] == pytest.approx(below, abs=1e-10)


def test_calibration_tells_right_laws_from_wrong_ones(snefy: Callable[..., SnefySimplex]) -> None:
    law = snefy(3, batch=(1,), seed=4).expand((3000,))
    rng = np.random.default_rng(0)
    hidden = law.sample((), torch.Generator().manual_seed(0)).numpy()
    counts = rng.multinomial(rng.integers(3, 12, 3000), hidden / hidden.sum(1, keepdims=True))
    right = calibrate_counts(law, counts)
    assert right.error < 0.01
    assert right.histogram.sum() == pytest.approx(1.0)
    for level, share in right.coverage.items():
        assert share == pytest.approx(level, abs=0.03)
    sure = law.posterior(torch.tensor([20.0, 20.0, 20.0]))
    assert calibrate_counts(sure, counts).error > 3 * right.error


def test_noise_ceiling_is_unbiased() -> None:
    rng = np.random.default_rng(0)
    shares = rng.dirichlet([2.0, 1.0, 0.5], 4000)
    counts = rng.multinomial(8, shares)
    found = noise_ceiling(counts)
    assert found.brier == pytest.approx(np.mean(1 - np.square(shares).sum(1)), abs=0.015)
    entropy = -(shares * np.log(np.maximum(shares, 1e-300))).sum(1).mean()
    assert found.log_loss == pytest.approx(entropy, abs=0.05)
    assert found.squared_error == pytest.approx(np.square(counts / 8 - shares).sum(1).mean(), abs=0.004)
    # no prediction beats the floor: the truth itself reaches it
    assert brier_score(shares, counts).mean() == pytest.approx(found.brier, abs=0.02)
    with pytest.raises(InputError, match="two votes"):
        noise_ceiling([[1, 0], [0, 1]])


def test_evaluate_gathers_the_figures(snefy: Callable[..., SnefySimplex]) -> None:
    law = snefy(3, batch=(4,))
    found = evaluate(law, np.array([[1, 2, 0], [3, 0, 0], [1, 0, 0], [0, 2, 2]]))
    assert {"log_likelihood", "log_loss", "brier", "calibration_error", "brier_floor", "log_loss_floor"} == set(found)
    assert "brier_floor" not in evaluate(law, np.eye(3)[[0, 1, 2, 0]])


# -- pictures --------------------------------------------------------------------------------------------------------


def test_scores_with_labels_that_were_not_on_offer(snefy: Callable[..., SnefySimplex]) -> None:
    law = snefy(3, batch=(3,))
    counts = np.array([[4.0, np.nan, 2.0], [1.0, 3.0, 2.0], [0.0, np.nan, 5.0]])
    among, whole = rows_of(law, np.array([0, 2])).subcomposition([0, 2]), rows_of(law, np.array([1]))
    parts = [evaluate(among, counts[[0, 2]][:, [0, 2]]), evaluate(whole, counts[[1]])]
    found = evaluate(law, counts)
    for key in ("log_likelihood", "log_loss", "brier", "brier_floor"):
        assert found[key] == pytest.approx((2 * parts[0][key] + parts[1][key]) / 3)
    cdf = predictive_cdf(law, counts)
    assert np.isnan(cdf[[0, 2], 1]).all()
    # two labels only: fewer than k votes for one are more than n - k for the other
    np.testing.assert_allclose(cdf[0, 0, 0], 1.0 - cdf[0, 2, 1], atol=1e-12)
    np.testing.assert_allclose(
        brier_score([[0.2, 0.5, 0.3]], [[4.0, np.nan, 2.0]]), brier_score([[0.4, 0.6]], [[4, 2]])
    )


def test_pictures_draw(snefy: Callable[..., SnefySimplex]) -> None:
    plt = pytest.importorskip("matplotlib.pyplot")
    from snefy_ldl.plots.votes import plot_calibration, plot_curves, plot_update

    law = snefy(3, batch=(2,))
    counts = np.array([[3.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    after = law.posterior(torch.as_tensor(counts))
    ax = plot_update(law, after, 0, labels=["a", "b", "c"], counts=counts)
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["a", "b", "c"]
    with pytest.raises(InputError, match="3 names"):
        plot_update(law, after, labels=["a"])
    assert len(plot_calibration(calibrate_counts(law, [[1, 1, 0], [0, 2, 1]])).patches) == 10
    assert plot_curves({"one": ([1, 2], [3, 4])}, title="t").get_title() == "t"
    plt.close("all")
