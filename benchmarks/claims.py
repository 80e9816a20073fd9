"""Every sentence of README and site that compares, with its cell, spread and command: writes docs/claims.md.

    python benchmarks/claims.py

The sentences take their numbers from the result files, and so do those that README repeats: both are written again. A
test compares them with what comes out here.
"""

from __future__ import annotations

import json
import re
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from refresh import BENCHMARKS, RESULTS, ROOT, stale

PAGE = ROOT / "docs" / "claims.md"
README = ROOT / "README.md"
#: Tables of the density benchmark as they came; the others are changed copies of them.
PLAIN = ("plain", "zeros")


@cache
def load(name: str) -> Any:
    """A result file."""
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def short(value: float, digits: int = 3) -> str:
    """A number without the zero before its point."""
    return f"{value:.{digits}f}".replace("-", "−").replace("0.", ".", int(abs(value) < 1.0))


def spread(values: Any, digits: int = 3) -> str:
    """Mean ± standard error over splits."""
    numbers = np.asarray(values, dtype=float)
    return f"{short(numbers.mean(), digits)} ± {short(numbers.std(ddof=1) / np.sqrt(len(numbers)), digits)}"


@dataclass(frozen=True)
class Claim:
    """A sentence that compares.

    Args:
        write: the sentence, and its figures with their spreads.
        cell: page and heading of its cell.
        benchmark: a name in ``refresh.BENCHMARKS``.
    """

    write: Callable[[], tuple[str, str]]
    cell: str
    benchmark: str


def intervals(name: str, title: str) -> tuple[str, str]:
    """Calibrated intervals of SnefyLDL and of a Dirichlet, both with ``method="auto"``."""
    figures = load("conformal.json")["figures"][name]
    means, texts = {}, []
    for key, words in (("width", "width"), ("fsc_8", "worst of eight groups")):
        sides = [np.asarray(figures[model]["auto"][key]) for model in ("SNEFY", "Dirichlet")]
        means[key] = [short(side.mean()) for side in sides]
        texts.append(f"{words} {spread(sides[0])} and {spread(sides[1])}, difference {spread(sides[0] - sides[1])}")
    texts.append(f"{len(sides[0])} splits")
    sentence = (
        f"On {title}, calibrated 90 % intervals are {means['width'][0]} wide and those around a Dirichlet, calibrated "
        f"in the same way, {means['width'][1]}; in the worst of eight groups they cover {means['fsc_8'][0]} and "
        f"{means['fsc_8'][1]}."
    )
    return sentence, "; ".join(texts)


def versus_best(key: str, words: str) -> tuple[str, str]:
    """Wins and losses against the best other method of each table, clear of zero."""
    parts, undecided = [], []
    for model in ("SnefyLDL", "LogRatioLDL", "AutoLDL"):
        gaps = [case[f"{key} {model}"] for case in load("density.json")["summary"] if case["variant"] in PLAIN]
        gaps = [gap for gap in gaps if gap and gap["low"] is not None]
        wins, losses = sum(gap["high"] < 0.0 for gap in gaps), sum(gap["low"] > 0.0 for gap in gaps)
        parts.append(f"`{model}` wins {wins} and loses {losses} of {len(gaps)}")
        undecided.append(f"{model} {len(gaps) - wins - losses} undecided")
    sentence = f"Against the best of the other methods on each table, {words}, clear of zero: {', '.join(parts)}."
    return sentence, ", ".join(undecided) + "; each difference with its interval is in the cell"


def real_coverage() -> tuple[str, str]:
    """What uncalibrated 90 % intervals cover."""
    found: dict[str, dict[tuple[str, str], list[float]]] = {}
    for record in load("density.json")["records"]:
        if record["variant"] in PLAIN and "coverage" in record:
            place = record["data"], record["variant"]
            found.setdefault(record["method"], {}).setdefault(place, []).append(record["coverage"])
    parts, ranges = [], []
    for model in ("SnefyLDL", "LogRatioLDL", "DirichletLDL"):
        means = [float(np.mean(values)) for values in found[model].values()]
        parts.append(f"`{model}` {short(float(np.mean(means)), 2)}")
        ranges.append(f"{model} {short(min(means))} to {short(max(means))} over {len(means)} tables")
    return f"Before calibration, 90 % intervals cover on average: {', '.join(parts)}.", "; ".join(ranges)


def paper_model() -> tuple[str, str]:
    """The paper's model, the default and one Dirichlet without features, by the likelihood of held-out rows."""
    with tarfile.open(RESULTS / "reproduction.tar.gz") as archive:
        found: dict[str, list[float]] = {}
        for member in archive.getmembers():
            parts = Path(member.name).parts
            if "table7" in parts and member.isfile():
                figures = json.loads(archive.extractfile(member).read())["figures"]  # type: ignore[union-attr]
                value = figures.get("constant") or figures.get("density")
                found.setdefault(parts[-2], []).append(value["log_likelihood"])
    names = {"baseline": "one Dirichlet without features", "raw": "the paper's model with raw features"}
    names |= {
        "standard": "with standardised ones",
        "nearest": "as nearest to the printed cells",
        "default": "`SnefyLDL()`",
    }
    words = ", ".join(f"{words} {short(float(np.mean(found[key])), 2)}" for key, words in names.items())
    spreads = "; ".join(f"{key} {spread(found[key], 2)}" for key in names)
    return f"Log-likelihood of held-out rows of SJAFFE: {words}.", spreads


def speed() -> tuple[str, str]:
    """A fit of the paper's model here and in PyLDL, in CPU time, which a busy machine hardly changes."""
    facts, key = load("peer.json"), "fit, CPU time"
    ours, theirs = ([run[key] for run in runs] for runs in (facts["ours"], facts["peer"]["torch"]))
    ratio = np.median(theirs) / np.median(ours)
    sentence = (
        f"A fit of the paper's model takes PyLDL {ratio:.1f} times the CPU time that it takes here, both on PyTorch."
    )
    ranges = [f"{min(runs):.0f} to {max(runs):.0f} ms" for runs in (ours, theirs)]
    return sentence, f"{ranges[1]} against {ranges[0]} over {len(ours)} runs each"


def preprocessing() -> tuple[str, str]:
    """Base learners at their defaults, and what standardised features alone do for the peer's."""
    facts, parts, spreads = load("peer.json")["accuracy"], [], []
    for name, ways in facts["peer"]["SBU_3DFE"].items():
        ours = facts["ours"]["SBU_3DFE"][name]["own"]
        raw, standard = (short(float(np.mean(ways[way])), 4) for way in ("raw", "standard"))
        parts.append(f"{name} {raw}, {standard}, {short(float(np.mean(ours)), 4)}")
        spreads.append(f"{name} {spread(ways['raw'], 4)}, {spread(ways['standard'], 4)}, {spread(ours, 4)}")
    sentence = (
        "KL on SBU_3DFE of base learners at their defaults, in PyLDL with raw and standardised features, and here: "
        f"{'; '.join(parts)}."
    )
    return sentence, "; ".join(spreads)


CLAIMS = (
    Claim(lambda: intervals("sbu_3dfe", "SBU_3DFE"), "conformal.md", "conformal"),
    Claim(lambda: intervals("natural_scene", "Natural_Scene"), "conformal.md", "conformal"),
    Claim(lambda: versus_best("nll", "by likelihood"), "density.md#ours-minus-the-best-peer", "density"),
    Claim(lambda: versus_best("kl", "by KL of the mean"), "density.md#ours-minus-the-best-peer", "density"),
    Claim(real_coverage, "density.md", "density"),
    Claim(paper_model, "reproduction", "reproduction"),
    Claim(speed, "peer.md", "peer"),
    Claim(preprocessing, "peer.md", "peer"),
)
#: Sentences that README repeats, word for word.
IN_README = (0, 2, 5, 6, 7)

QUESTIONS = (
    ("likelihood and mean against flows, mixture networks, Dirichlets, forests", ("density", "below")),
    ("calibration at every level", ("calibration",)),
    ("time, memory and learners against PyLDL's; label enhancement", ("peer", "enhancement")),
    ("coverage and width of conformal intervals", ("conformal", "conditional")),
    ("votes, annotators, groups", ("votes", "annotators", "groups")),
    ("choosing rows to label", ("active_study",)),
    ("waiting times, GPUs, the service, effects", ("waits", "gpu", "service", "effects")),
)

HEAD = """---
myst:
  html_meta:
    keywords: "claims, results, benchmarks, tables, measured, figures, speed, fast, accurate"
---

# Claims and benchmarks

`python benchmarks/claims.py` writes this page. Each sentence of ours that compares takes its numbers from a result
file; a test compares them. [The paper, reproduced](reproduction.md) judges the paper's own claims.
"""


def sentences() -> list[str]:
    """The claims, in order."""
    return [claim.write()[0] for claim in CLAIMS]


def link(page: str) -> str:
    """Where a result page is."""
    if page == "reproduction":
        return "reproduction.md"
    return f"../benchmarks/results/{page}"


def main() -> None:
    """Write the page."""
    lines = [HEAD]
    for claim in CLAIMS:
        sentence, figures = claim.write()
        benchmark = BENCHMARKS[claim.benchmark]
        lines.append(
            f"- {sentence} ([cell]({link(claim.cell.partition('#')[0])}); {figures}; "
            f"`{benchmark.command.format(jobs=16)}`, {60 * benchmark.minutes:.0f} s)"
        )
    lines += ["", "## All results", "", "| question | page |", "|---|---|"]
    for question, names in QUESTIONS:
        kept = [name for name in names if (RESULTS / f"{name}.md").exists()]
        pages = ", ".join(f"[{name}]({link(f'{name}.md')})" for name in kept)
        if kept:
            lines.append(f"| {question} | {pages} |")
    lines += [
        "",
        "`python benchmarks/refresh.py` lists results that a change of the code made stale, and how long each takes.",
        "",
        "```{toctree}",
        ":maxdepth: 1",
        ":glob:",
        "",
        "results/*",
        "```",
    ]
    PAGE.write_text("\n".join(lines) + "\n", encoding="utf-8")
    text = README.read_text(encoding="utf-8")
    for sentence in (sentences()[place] for place in IN_README):  # the line that begins with the same words
        start = re.escape(re.match(r"\D*", sentence)[0])  # type: ignore[index]
        text = re.sub(rf"(?m)^- {start}.*$", lambda _, new=sentence: f"- {new}", text)
    README.write_text(text, encoding="utf-8")
    print(f"{PAGE}: {len(CLAIMS)} claims; {len(stale())} results are stale")


if __name__ == "__main__":
    main()
