"""The order of labels: of ordered categories, numbers, and the words of scales that surveys use."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from snefy_ldl.datasets.cells import cell_text

#: Words of known scales from low to high; words for one place are separated by a stroke.
SCALES = tuple(
    {word: place for place, words in enumerate(scale.split(", ")) for word in words.split("/")}
    for scale in (
        "very low/lowest, low, rather low, medium/moderate/middle/mid/average/neutral, rather high, high, "
        "very high/highest",
        "strongly disagree/fully disagree/totally disagree/completely disagree, disagree, somewhat disagree/"
        "slightly disagree/rather disagree, neutral/undecided/unsure/neither/neither agree nor disagree, "
        "somewhat agree/slightly agree/rather agree, agree, strongly agree/fully agree/totally agree/completely agree",
        "no, maybe/unsure/uncertain/undecided, yes",
        "never, almost never/very rarely, rarely/seldom, sometimes/occasionally, often/frequently, "
        "very often/usually/mostly/almost always, always",
        "very unlikely/extremely unlikely, unlikely, neutral/possible/unsure, likely, very likely/extremely likely",
        "very dissatisfied, dissatisfied, neutral/neither, satisfied, very satisfied",
        "very bad/terrible/awful, bad, poor, fair/ok/okay/average/neutral, good, very good, excellent",
        "very negative, negative, somewhat negative/slightly negative, neutral, somewhat positive/slightly positive, "
        "positive, very positive",
        "none/no/not at all/not, very slightly/a little/slight/slightly/minimal, mild/somewhat, moderate/moderately, "
        "strong/quite a bit/very/severe, extreme/extremely/very strong/very severe",
        "very small/tiny, small, medium/moderate, large/big, very large/huge",
        "very easy, easy, medium/moderate/neutral, difficult/hard, very difficult/very hard",
    )
)


def label_order(labels: Sequence[str], column: Any = None) -> list[str] | None:
    """The labels from low to high.

    Args:
        labels: All labels that occur, each once.
        column: The column that they are from: ordered categories of pandas and an Enum of polars have an order.

    Returns:
        The order of the column's type, that of numbers, or that of a known scale of English words; None without any.

    Example:
        >>> label_order(["high", "low", "very low"]), label_order(["10", "9"]), label_order(["cat", "dog"])
        (['very low', 'low', 'high'], ['9', '10'], None)
    """
    dtype = getattr(column, "dtype", None)
    if getattr(dtype, "ordered", False) or type(dtype).__name__ == "Enum":
        return [cell_text(name) for name in dtype.categories]  # type: ignore[union-attr]
    try:
        return sorted(labels, key=float)
    except ValueError:
        words = {label: re.sub(r"[\s_-]+", " ", label.strip().lower()) for label in labels}
    for scale in SCALES:
        places = [scale.get(word, -1) for word in words.values()]
        if min(places) >= 0 and len(set(places)) == len(places):
            return sorted(labels, key=lambda label: scale[words[label]])
    return None
