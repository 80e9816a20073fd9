"""Which claims hold: each one judged by a rule that is written beside it, from the results alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from snefy_ldl.paper.analysis import Results
from snefy_ldl.paper.config import RECIPES
from snefy_ldl.paper.report.gaps import DATASETS, QUERIES, Tables
from snefy_ldl.paper.report.verdicts import (
    MARKS,
    STABLE,
    Verdict,
    judge_best_query,
    judge_drops,
    judge_fsc,
    judge_published,
    judge_random,
    judge_recipe,
    judge_rows,
    judge_stable,
    judge_weighting,
)

__all__ = ["Case", "Claim", "claims_of_ours", "claims_of_the_paper", "tally"]


@dataclass(frozen=True)
class Case:
    """A claim on one data set: a verdict for each recipe."""

    name: str
    verdicts: dict[str, Verdict]


@dataclass(frozen=True)
class Claim:
    """A claim, where it stands, in which words, by which rule it is judged, and how it came out."""

    title: str
    place: str
    quote: str
    rule: str
    cases: list[Case] = field(default_factory=list)


def claims_of_the_paper(results: Results, tables: Tables) -> list[Claim]:
    """The paper's claims, judged for its own recipe and for the default one."""
    return [
        Claim(
            "SNEFY-LDL's intervals reach higher feature-stratified coverage than the Dirichlet's",
            _places(tables, "table2", "table3"),
            "the proposed SNEFY-LDL model outperforms the Dirichlet baseline in most cases",
            "Holds: a higher mean in more than half of the cells (labels × group numbers), and the interval of the "
            "average difference lies above zero. Does not hold: neither. In part: one of the two.",
            _cases(results, tables, ("table2", "table3"), judge_fsc),
        ),
        Claim(
            "The entropy query of SNEFY-LDL is the best of six strategies",
            _places(tables, "table4", "table5"),
            "SNEFY-LDL consistently achieves the best performance in terms of all metrics",
            "Holds: the best mean of the six strategies in all six measures. In part: in more than half of them.",
            _cases(results, tables, ("table4", "table5"), judge_best_query),
        ),
        Claim(
            "The entropy query of SNEFY-LDL is clear of picking at random",
            _places(tables, "table4", "table5"),
            "SNEFY-LDL can pick up more informative unlabeled samples",
            "Holds: better than Random in all six measures, with every interval clear of zero. In part: better on "
            "average in more than half of the measures.",
            _cases(results, tables, ("table4", "table5"), judge_random),
        ),
        Claim(
            "Weighting an ensemble by the density beats its plain average",
            _places(tables, "table6", "table7"),
            "the Weighted strategy is significantly better than Average in terms of all metrics",
            "Holds: better in all 24 cells (learners × measures), with every interval clear of zero. In part: better "
            "on average in more than half of the cells.",
            _cases(results, tables, ("table6", "table7"), judge_weighting),
        ),
        Claim(
            "Coverage is stable under n, m, batch size and epochs",
            "Figure A1",
            "the performance of SNEFY-LDL remains relatively stable with the change of the four hyperparameters in "
            "most cases",
            f"A case is one setting at G = 2 or 4; it is stable when its mean lies within {STABLE} of the panel's "
            "median setting. Holds: all cases but the four settings that the paper excepts. In part: more than half.",
            _cases(results, tables, ("figureA1",), judge_stable),
        ),
        Claim(
            "Coverage drops at m = 48 and 96 and at batch size 32 and 96",
            "Figure A1",
            "except for the cases with m=48 and 96 […] as well as batch size =32 and 96 […] goes through a obvious "
            "drop",
            "A case is one of the four settings, as far as it was run, at G = 2 or 4. Holds: in all cases the interval "
            "of the difference to the mean of the panel's other settings lies below zero. In part: in more than half.",
            _cases(results, tables, ("figureA1",), judge_drops),
        ),
    ]


def claims_of_ours(results: Results, tables: Tables) -> list[Claim]:
    """What the paper could not claim: this library against the paper's own figures and recipe."""
    both = Case(
        "both tables", {recipe: judge_published(results, tables, ("table6", "table7"), recipe) for recipe in RECIPES}
    )
    return [
        Claim(
            "Our Weighted ensembles beat the paper's published Weighted ones",
            _places(tables, "table6", "table7"),
            "",
            "Holds: a better mean than the printed one in every cell. In part: in more than half of them. Clear: "
            "Welch's interval, from both standard deviations, leaves zero out (the splits are not the same).",
            [
                *_cases(results, tables, ("table6", "table7"), lambda r, t, s, c: judge_published(r, t, (s,), c)),
                both,
            ],
        ),
        Claim(
            "With the entropy query, SnefyLDL beats every published row on all six measures",
            _places(tables, "table4", "table5"),
            "",
            "Holds: a better mean than each of the six printed rows in all six measures; otherwise it does not. The "
            "same count for random queries tells what is owed to the model and not to the query.",
            [
                Case(
                    f"{_name(tables, study)}, {words}",
                    {recipe: judge_rows(results, tables, study, recipe, strategy) for recipe in RECIPES},
                )
                for study in ("table4", "table5")
                for strategy, words in QUERIES.items()
            ],
        ),
        Claim(
            "The default recipe beats the paper's on the same splits",
            "Tables 2 to 7",
            "",
            "Holds: better in all cells in which SNEFY-LDL has a part (labels × G; the six measures of its query; "
            "Weighted), every interval clear of zero. In part: better on average in more than half. For FSC better "
            "means higher, as in the paper: read it beside coverage and width.",
            [
                Case(_name(tables, study), {"default": judge_recipe(results, study)})
                for study in ("table2", "table3", "table4", "table5", "table6", "table7")
            ],
        ),
    ]


def tally(claims: Iterable[Claim], recipe: str) -> dict[str, int]:
    """How often each word was said for a recipe, over claims and data sets."""
    words = [case.verdicts[recipe].word for claim in claims for case in claim.cases if recipe in case.verdicts]
    return {word: words.count(word) for word in MARKS if word in words}


Judge = Callable[[Results, Tables, str, str], Verdict]


def _cases(results: Results, tables: Tables, studies: Iterable[str], judge: Judge) -> list[Case]:
    return [
        Case(_name(tables, study), {recipe: judge(results, tables, study, recipe) for recipe in RECIPES})
        for study in studies
    ]


def _name(tables: Tables, study: str) -> str:
    if study == "figureA1":
        return DATASETS["natural_scene"]
    return f"{DATASETS[tables[study].dataset]} (table\u00a0{study.removeprefix('table')})"


def _places(tables: Tables, *studies: str) -> str:
    return "; ".join(tables[study].place for study in studies)
