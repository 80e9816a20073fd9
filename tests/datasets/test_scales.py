"""The order of labels: from the data, from known scales, and no guess otherwise."""

from __future__ import annotations

import random

import pandas as pd
import polars as pl
import pytest

from snefy_ldl.datasets.scales import label_order
from snefy_ldl.votes import Votes

LEVELS = ["meh", "so-so", "wow", "none of it"]


def labels_of(column, **settings):
    items = [f"i{k}" for k in range(len(column))]
    return Votes.from_long({"item": items, "label": column}, annotator=None, **settings).label_names


def test_ordered_categories_and_enums_keep_their_order():
    cells = ["wow", "meh", "so-so", "wow"]
    ordered = pd.Series(pd.Categorical(cells, LEVELS, ordered=True))
    assert labels_of(ordered) == labels_of(pl.Series(cells, dtype=pl.Enum(LEVELS))) == LEVELS
    assert labels_of(pd.Series(pd.Categorical(cells, LEVELS))) == sorted(set(cells))  # these have no order
    assert labels_of(ordered, label_names=["wow", "so-so", "meh"]) == ["wow", "so-so", "meh"]


@pytest.mark.parametrize(
    "scale",
    [
        ["-5", "-1.5", "0", "2", "10"],
        ["very low", "low", "high", "very high"],
        ["Strongly disagree", "Disagree", "Neutral", "Agree", "Strongly agree"],
        ["never", "rarely", "sometimes", "often", "always"],
        ["very_unlikely", "unlikely", "likely", "very_likely"],
        ["bad", "fair", "good", "excellent"],
        ["no", "maybe", "yes"],
    ],
)
def test_numbers_and_words_of_surveys_are_ordered(scale):
    for seed in range(5):
        assert labels_of(random.Random(seed).sample(scale, len(scale))) == scale


def test_other_words_have_no_known_order():
    assert label_order(["cat", "dog", "low"]) is None
    assert label_order(["medium", "moderate", "low"]) is None  # two words for one place
    assert labels_of(["dog", "cat", "eel"]) == ["cat", "dog", "eel"]
