"""The rules: each looks at one study with one recipe and says whether a claim holds, with the figures behind it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from snefy_ldl.paper.analysis import METRICS, Gap, Results, Spread, paired, unpaired
from snefy_ldl.paper.report.gaps import (
    LEARNERS,
    STRATEGIES,
    Tables,
    conformal,
    fsc,
    fsc_gaps,
    panel_gaps,
    query,
    query_gaps,
    recipe_gaps,
    weighting,
    weighting_gaps,
)
from snefy_ldl.paper.report.words import gap_text, signed

#: A setting of figure A1 counts as stable when its mean coverage is this close to the panel's median setting.
STABLE = 0.05
#: The settings at which the paper itself reports a drop.
NAMED_DROPS = (("n_readouts", "48"), ("n_readouts", "96"), ("batch_size", "32"), ("batch_size", "96"))

HOLDS, IN_PART, FAILS, OPEN, MISSING = "holds", "in part", "does not hold", "not decided", "not run"
MARKS = {HOLDS: "✓", IN_PART: "◐", FAILS: "✗", OPEN: "?", MISSING: "–"}


@dataclass(frozen=True)
class Verdict:
    """What the results say about a claim, and the figures behind it."""

    word: str
    evidence: str = ""

    @property
    def mark(self) -> str:
        """A sign for the word, so that colour is not needed."""
        return MARKS[self.word]

    @property
    def slug(self) -> str:
        """The word as a class name."""
        return self.word.replace(" ", "-")


def _all_better(gaps: Iterable[Gap], cells: str, expected: int) -> Verdict:
    """The rule of "better in all": everywhere and clearly, or in more than half of the cells, or not."""
    gaps = list(gaps)
    if not gaps:
        return Verdict(MISSING)
    better, worse = sum(gap.better for gap in gaps), sum(gap.worse for gap in gaps)
    clear, against = sum(gap.better and gap.clear for gap in gaps), sum(gap.worse and gap.clear for gap in gaps)
    text = f"better in {better} of {len(gaps)} {cells}, {clear} clear of zero"
    text += f"; worse in {worse}, {against} clear of zero" if worse else ""
    if any(gap.n < 2 for gap in gaps):
        return Verdict(OPEN, f"{text}. One repeat only: no interval")
    if len(gaps) < expected:
        return Verdict(OPEN, f"{text}. Of {expected} {cells} the others have no results")
    return Verdict(HOLDS if clear == len(gaps) else IN_PART if 2 * better > len(gaps) else FAILS, text)


def judge_fsc(results: Results, tables: Tables, study: str, recipe: str) -> Verdict:
    """SNEFY-LDL against the Dirichlet, cell by cell and on average (tables 2 and 3)."""
    gaps = list(fsc_gaps(results, study, recipe).values())
    average = paired(fsc(results, study, recipe), fsc(results, study, "dirichlet"))
    if not gaps or average is None:
        return Verdict(MISSING)
    higher, clear = sum(gap.better for gap in gaps), sum(gap.better and gap.clear for gap in gaps)
    lower = sum(gap.worse and gap.clear for gap in gaps)
    text = (
        f"higher in {higher} of {len(gaps)} cells, {clear} clear of zero ({lower} clearly lower); "
        f"average {gap_text(average)}{_beside(results, study, recipe)}"
    )
    if average.n < 2:
        return Verdict(OPEN, f"{text}. One repeat only: no interval")
    signs = (2 * higher > len(gaps)) + (average.better and average.clear)
    return Verdict((FAILS, IN_PART, HOLDS)[signs], text)


def _beside(results: Results, study: str, recipe: str) -> str:
    """Coverage and width of both sides: a higher FSC may be bought with either."""
    parts = []
    for name in ("coverage", "width"):
        sides = [Spread.of(conformal(results, study, side, name)) for side in (recipe, "dirichlet")]
        if all(sides):
            parts.append(f"{name} " + " against ".join(f"{side.mean:.3f}" for side in sides if side))
    return f"; {', '.join(parts)}" if parts else ""


def judge_best_query(results: Results, tables: Tables, study: str, recipe: str) -> Verdict:
    """Whether the entropy query has the best mean of the six strategies (tables 4 and 5)."""
    leaders, leads, repeats = [], [], []
    for metric, measure in METRICS.items():
        series = {name: query(results, study, recipe, name, metric) for name in STRATEGIES}
        means = {name: spread.mean for name, one in series.items() if (spread := Spread.of(one)) is not None}
        if "SNEFY-LDL" not in means or len(means) < 2:
            continue
        first, second, *_ = sorted(means, key=means.__getitem__, reverse=measure.higher)
        leaders.append(first)
        repeats.append(len(series["SNEFY-LDL"]))
        lead = paired(series[first], series[second], higher=measure.higher)
        leads.append(first == "SNEFY-LDL" and lead is not None and lead.clear)
    if not leaders:
        return Verdict(MISSING)
    won = leaders.count("SNEFY-LDL")
    text = f"best in {won} of {len(leaders)} measures"
    text += f", the lead over the second clear of zero in {sum(leads)}" if won else ""
    others = {name: leaders.count(name) for name in STRATEGIES if name in leaders and name != "SNEFY-LDL"}
    text += "; best instead: " + ", ".join(f"{name} ({count})" for name, count in others.items()) if others else ""
    if min(repeats) < 2:
        return Verdict(OPEN, f"{text}. One repeat only")
    return Verdict(HOLDS if won == len(METRICS) else IN_PART if 2 * won > len(METRICS) else FAILS, text)


def judge_random(results: Results, tables: Tables, study: str, recipe: str) -> Verdict:
    """The entropy query against random queries (tables 4 and 5)."""
    return _all_better(query_gaps(results, study, recipe, "SNEFY-LDL").values(), "measures", len(METRICS))


def judge_weighting(results: Results, tables: Tables, study: str, recipe: str) -> Verdict:
    """Weighted against Average (tables 6 and 7)."""
    return _all_better(weighting_gaps(results, study, recipe).values(), "cells", len(LEARNERS) * len(METRICS))


def judge_recipe(results: Results, study: str) -> Verdict:
    """The default recipe against the paper's, on the same splits."""
    gaps = recipe_gaps(results, study)
    verdict = _all_better(gaps.values(), "cells", len(gaps))
    parts = []
    for name in ("coverage", "width", "interval_score"):  # of tables 2 and 3 alone
        gap = paired(*(conformal(results, study, recipe, name) for recipe in ("default", "paper")))
        if gap is not None:
            parts.append(f"{name.replace('_', ' ')} {gap_text(gap)}")
    return Verdict(verdict.word, "; ".join([verdict.evidence, *parts]))


def judge_published(results: Results, tables: Tables, studies: Iterable[str], recipe: str) -> Verdict:
    """Our Weighted against the paper's printed Weighted (tables 6 and 7)."""
    gaps, expected = [], 0
    for study in studies:
        table = tables[study]
        expected += len(LEARNERS) * len(METRICS)
        for learner in LEARNERS:
            for metric, measure in METRICS.items():
                ours = Spread.of(weighting(results, study, recipe, learner, "Weighted", metric))
                printed = table.cells.get((learner, "Weighted", metric))
                gap = unpaired(ours, printed, table.splits, higher=measure.higher) if printed else None
                if gap is not None:
                    gaps.append(gap)
    if not gaps:
        return Verdict(MISSING)
    better, clear = sum(gap.better for gap in gaps), sum(gap.better and gap.clear for gap in gaps)
    text = f"better in {better} of {len(gaps)} cells, {clear} clear of the paper's"
    if len(gaps) < expected:
        return Verdict(OPEN, f"{text}. Of {expected} cells the others have no results")
    return Verdict(HOLDS if better == len(gaps) else IN_PART if 2 * better > len(gaps) else FAILS, text)


def judge_rows(results: Results, tables: Tables, study: str, recipe: str, strategy: str) -> Verdict:
    """Our model after a strategy's query against all printed rows (tables 4 and 5)."""

    def beaten(name: str) -> list[bool]:
        """For each measure, whether our mean is better than all printed ones."""
        wins = []
        for metric, measure in METRICS.items():
            ours = Spread.of(query(results, study, recipe, name, metric))
            if ours is not None:
                sign = 1.0 if measure.higher else -1.0
                printed = [mean for (_, one), (mean, _) in tables[study].cells.items() if one == metric]
                wins.append(all(sign * ours.mean > sign * mean for mean in printed))
        return wins

    wins = beaten(strategy)
    if not wins:
        return Verdict(MISSING)
    text = f"beats all published rows in {sum(wins)} of {len(wins)} measures (random queries: {sum(beaten('Random'))})"
    return Verdict(HOLDS if len(wins) == len(METRICS) and all(wins) else FAILS, text)


def judge_stable(results: Results, tables: Tables, study: str, recipe: str) -> Verdict:
    """Whether the settings of figure A1 stay near their panel's median."""
    gaps = panel_gaps(results, recipe, "median")
    if not gaps:
        return Verdict(MISSING)
    stable = {key: abs(gap.mean) <= STABLE for key, gap in gaps.items()}
    judged = [fine for (name, _, setting), fine in stable.items() if (name, setting) not in NAMED_DROPS]
    (name, level, setting), worst = max(gaps.items(), key=lambda item: abs(item[1].mean))
    text = (
        f"stable in {sum(judged)} of {len(judged)} cases that the paper does not except, in {sum(stable.values())} of "
        f"{len(stable)} in all; the farthest is {name} = {setting} at G = {level}: {signed(worst.mean)}"
    )
    if min(gap.n for gap in gaps.values()) < 2:
        return Verdict(OPEN, f"{text}. One repeat only")
    return Verdict(HOLDS if all(judged) else IN_PART if 2 * sum(judged) > len(judged) else FAILS, text)


def judge_drops(results: Results, tables: Tables, study: str, recipe: str) -> Verdict:
    """Whether coverage drops where the paper saw it drop (figure A1)."""
    gaps = {key: gap for key, gap in panel_gaps(results, recipe, "others").items() if (key[0], key[2]) in NAMED_DROPS}
    if not gaps:
        return Verdict(MISSING)
    drops = sum(gap.clear and gap.mean < 0.0 for gap in gaps.values())
    deepest = min(gap.mean for gap in gaps.values())
    text = f"a clear drop in {drops} of {len(gaps)} cases; the lowest difference is {signed(deepest)}"
    if min(gap.n for gap in gaps.values()) < 2:
        return Verdict(OPEN, f"{text}. One repeat only: no interval")
    return Verdict(HOLDS if drops == len(gaps) else IN_PART if 2 * drops > len(gaps) else FAILS, text)
