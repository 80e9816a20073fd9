"""How far annotators agree, and what looks odd in their votes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy.special import entr

from snefy_ldl._internal.text import shorten
from snefy_ldl._internal.types import Index
from snefy_ldl._internal.validation import check_table
from snefy_ldl.datasets.vote_table import VoteTable
from snefy_ldl.errors import InputError

Level = Literal["nominal", "ordinal", "interval"]


@dataclass(frozen=True)
class Agreement:
    """How far annotators agree.

    Args:
        items: how many.
        votes: how many in all.
        annotators: how many, 0 if unknown.
        votes_per_item: fewest, median and most.
        krippendorff_alpha: 1 is perfect agreement, 0 what chance gives.
        pairwise_agreement: chance that two annotators of an item agree.
        entropy: mean entropy of an item's votes, in nats.
        unanimous: share of items (with two votes or more) on which all agree.
        tied: share of items without a single most frequent label.

    Example:
        >>> from snefy_ldl.votes import Votes
        >>> Votes.from_counts([[4, 0], [2, 2]]).agreement().tied
        0.5
    """

    items: int
    votes: int
    annotators: int
    votes_per_item: tuple[float, float, float]
    krippendorff_alpha: float
    pairwise_agreement: float
    entropy: float
    unanimous: float
    tied: float

    def __str__(self) -> str:
        fewest, median, most = self.votes_per_item
        each = f"{most:g} per item" if fewest == most else f"{fewest:g} to {most:g} per item, median {median:g}"
        voters = f" of {self.annotators} annotators" if self.annotators else ""
        return (
            f"{self.votes} votes{voters} on {self.items} items ({each})\n"
            f"Krippendorff's alpha {self.krippendorff_alpha:.3f}, two annotators agree {self.pairwise_agreement:.1%}\n"
            f"mean entropy {self.entropy:.3f} nats, unanimous {self.unanimous:.1%}, tied {self.tied:.1%}"
        )


def krippendorff_alpha(counts: Any, level: Level = "nominal") -> float:
    """Krippendorff's α from votes per item (N, L): ``1 - observed / expected disagreement``.

    With ``o_cd = Σ_items k_c (k_d - [c = d]) / (n - 1)`` the coincidences, ``n_c`` their margins and ``n`` their total,
    ``α = 1 - (n-1) Σ o_cd δ_cd / Σ n_c n_d δ_cd``; items with fewer than two votes count for nothing. δ is 0 or 1
    (nominal), the squared difference of the labels' positions (interval), or that of their mean ranks (ordinal).
    Krippendorff, Computing Krippendorff's Alpha-Reliability (2011).

    Args:
        counts: numbers of votes (N, L).
        level: how labels differ: "nominal", "ordinal" or "interval".

    Returns:
        1 for perfect agreement, 0 for what chance gives; NaN where no item has two votes or one label only was used.

    Raises:
        InputError: the level is not known, or these are not numbers of votes for two labels or more.

    Example:
        >>> krippendorff_alpha([[4, 0], [0, 4]])
        1.0
    """
    table = check_table(counts, "counts", "labels")[0]
    if table.shape[1] < 2 or not (table >= 0.0).all():
        raise InputError("counts must hold numbers of votes, at least 0, for two or more labels.")
    size = table.sum(1)
    table = table[size > 1]
    if not len(table):
        return float("nan")
    weight = 1.0 / (table.sum(1) - 1.0)  # a vote is paired with each of the item's other votes
    coincidence = (table * weight[:, None]).T @ table - np.diag((table * weight[:, None]).sum(0))
    margin = coincidence.sum(0)
    n = margin.sum()
    if level == "nominal":
        distance = 1.0 - np.eye(len(margin))
    elif level in ("ordinal", "interval"):
        place = np.cumsum(margin) - 0.5 * margin if level == "ordinal" else np.arange(len(margin), dtype=float)
        distance = np.square(place[:, None] - place)
    else:
        raise InputError(f'level={level!r}: use "nominal", "ordinal" or "interval".')
    expected = float(margin @ distance @ margin)
    if expected == 0.0:  # a single label was ever used: nothing to disagree on, and nothing to show either
        return float("nan")
    return 1.0 - float((n - 1.0) * (coincidence * distance).sum()) / expected


def summarize(votes: VoteTable, level: Level = "nominal") -> Agreement:
    """How far annotators agree, in a few numbers.

    Args:
        votes: single votes.
        level: how labels differ, for Krippendorff's α; see :func:`krippendorff_alpha`.

    Returns:
        The numbers; they print as a few lines.

    Example:
        >>> summarize(VoteTable.from_counts([[3, 0], [1, 1]])).votes_per_item
        (2.0, 2.5, 3.0)
    """
    counts = votes.counts
    totals = counts.sum(1)
    voted = counts[totals > 0]
    shares = voted / voted.sum(1, keepdims=True)
    several = voted[voted.sum(1) > 1]
    size = several.sum(1)
    pairs = (several * (several - 1.0)).sum(1) / (size * (size - 1.0))
    top = np.sort(voted, 1)[:, -2:]
    return Agreement(
        items=len(votes.items),
        votes=len(votes),
        annotators=len(votes.annotators),
        votes_per_item=(float(totals.min()), float(np.median(totals)), float(totals.max())),
        krippendorff_alpha=krippendorff_alpha(counts, level),
        pairwise_agreement=float(pairs.mean()) if len(pairs) else float("nan"),
        entropy=float(entr(shares).sum(1).mean()),
        unanimous=float((several.max(1) == size).mean()) if len(pairs) else float("nan"),
        tied=float((top[:, 0] == top[:, 1]).mean()),
    )


def find_oddities(votes: VoteTable) -> list[str]:
    """What is odd in the votes.

    Args:
        votes: single votes.

    Returns:
        A line for each finding, the worst first; an empty list is good news.

    Example:
        >>> print(find_oddities(VoteTable.from_counts([[3, 1], [0, 0]]))[0])
        error: 1 of 2 items has no vote at all (1)
    """
    findings = [*_odd_items(votes), *_odd_labels(votes)]
    return sorted(findings, key=lambda line: ("error", "warning", "note").index(line.partition(":")[0]))


def _odd_items(votes: VoteTable) -> Iterator[str]:
    totals, again = votes.counts.sum(1), np.flatnonzero(votes.repeated())

    def named(rows: Index) -> str:
        return shorten([str(votes.items[row]) for row in rows], 5)

    if len(again):
        verb = "vote repeats an earlier one" if len(again) == 1 else "votes repeat earlier ones"
        yield f"warning: {len(again)} {verb} of the same annotator on the same item ({named(votes.item[again])})"
    for level, number, words in (("error", 0, "no vote at all"), ("note", 1, "a single vote")):
        rows = np.flatnonzero(totals == number)
        if len(rows) and not (number == 1 and len(rows) == len(totals)):
            verb = "has" if len(rows) == 1 else "have"
            yield f"{level}: {len(rows)} of {len(totals)} items {verb} {words} ({named(rows)})"
    if (totals <= 1).all():
        yield "warning: no item has two votes: disagreement cannot be seen"


def _odd_labels(votes: VoteTable) -> Iterator[str]:
    plain: dict[str, list[str]] = {}
    for name in votes.label_names:
        plain.setdefault(" ".join(name.split()).casefold(), []).append(name)
    for alike in plain.values():
        if len(alike) > 1:
            yield f"warning: labels that differ in case or blanks only: {' and '.join(map(repr, sorted(alike)))}"
    if unused := [name for r, name in enumerate(votes.label_names) if not (votes.label == r).any()]:
        yield f"warning: {len(unused)} label(s) without a vote ({shorten(unused, 5)})"
