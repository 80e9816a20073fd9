"""How far annotators agree, and what looks odd."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from snefy_ldl.errors import InputError
from snefy_ldl.votes import Votes
from snefy_ldl.votes.agreement import krippendorff_alpha

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
    frame = pd.DataFrame(np.where(cells == ".", None, cells), columns=list("ABCD"))
    return Votes.from_long(
        frame.melt(var_name="annotator", value_name="label", ignore_index=False).reset_index(), "index"
    )


@pytest.mark.parametrize(("level", "published"), [("nominal", 0.743), ("ordinal", 0.815), ("interval", 0.849)])
def test_alpha_of_the_published_example(krippendorff: Votes, level, published: float) -> None:
    assert krippendorff.agreement(level).krippendorff_alpha == pytest.approx(published, abs=5e-4)


def test_alpha_where_there_is_nothing_to_say() -> None:
    assert np.isnan(krippendorff_alpha([[1, 0], [0, 1]]))
    assert np.isnan(krippendorff_alpha([[3, 0], [2, 0]]))
    with pytest.raises(InputError, match="level"):
        krippendorff_alpha([[2, 1]], "ratio")  # type: ignore[arg-type]


def test_agreement_in_numbers() -> None:
    found = Votes.from_counts([[4, 0], [2, 2], [1, 0]]).agreement()
    assert found.votes_per_item == (1, 4, 4)
    assert found.pairwise_agreement == pytest.approx((1 + 1 / 3) / 2)
    assert found.entropy == pytest.approx(np.log(2) / 3)
    assert found.unanimous == 0.5
    assert found.tied == pytest.approx(1 / 3)
    assert "9 votes on 3 items (1 to 4 per item, median 4)" in str(found)
    assert "6 votes on 2 items (3 per item)\n" in str(Votes.from_counts([[3, 0], [1, 2]]).agreement())


def test_preflight_finds_what_was_put_in() -> None:
    rng = np.random.default_rng(0)
    rows = [
        (item, voter, "ab"[item % 2] if rng.random() < 0.9 else "ab"[1 - item % 2])
        for item in range(60)
        for voter in range(5)
    ]
    rows += [(0, 0, "a"), (60, 1, "b"), (1, 77, "A ")]
    frame = pd.DataFrame(rows, columns=["item", "annotator", "label"]).astype({"annotator": str})
    votes = Votes.from_long(frame, label_names=["a", "b", "A ", "c"])
    text = "\n".join(votes.preflight())
    assert "1 vote repeats an earlier one" in text
    assert "1 of 61 items has a single vote (60)" in text
    assert "'A ' and 'a'" in text
    assert "without a vote (c)" in text


def test_items_without_votes_are_an_error() -> None:
    findings = Votes.from_counts([[1, 2], [0, 0]]).preflight()
    assert findings[0] == "error: 1 of 2 items has no vote at all (1)"
    assert "disagreement cannot be seen" in Votes.from_counts([[1, 0], [0, 1]]).preflight()[0]
