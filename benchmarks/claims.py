"""Every sentence of README and site that compares, with its cell, spread and command: writes docs/claims.md.

    python benchmarks/claims.py

The sentences take their numbers from the result files, and so do those that README and other pages repeat: all are
written again. A test compares them with what comes out here.
"""

from __future__ import annotations

import json
import re
import tarfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t as student

from refresh import BENCHMARKS, RESULTS, ROOT, stale

PAGE = ROOT / "docs" / "claims.md"
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
    covered = [np.asarray(figures[model]["auto"]["coverage"]) for model in ("SNEFY", "Dirichlet")]
    texts.append(f"coverage {spread(covered[0])} and {spread(covered[1])}")
    sentence = (
        f"On {title}, calibrated 90 % intervals are {means['width'][0]} wide and those around SA-BFGS's Dirichlet, "
        f"calibrated in the same way, {means['width'][1]}; in the worst of eight groups they cover "
        f"{means['fsc_8'][0]} and {means['fsc_8'][1]} ({len(sides[0])} splits)."
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
    seeds = Counter((one["data"], one["variant"], one["method"]) for one in load("density.json")["records"])
    splits = sorted(n for (_, variant, method), n in seeds.items() if variant in PLAIN and method == "AutoLDL")
    sentence = (
        f"Against the best of the other methods on each table, {words}, clear of zero: {', '.join(parts)} tables "
        f"({splits[0]} to {splits[-1]} splits)."
    )
    return sentence, ", ".join(undecided) + "; each difference with its interval is in the cell"


def real_coverage() -> tuple[str, str]:
    """What uncalibrated 90 % intervals cover, on the tables that all three models were fitted to."""
    found: dict[str, dict[tuple[str, str], list[float]]] = {}
    for record in load("density.json")["records"]:
        if record["variant"] in PLAIN and "coverage" in record:
            place = record["data"], record["variant"]
            found.setdefault(record["method"], {}).setdefault(place, []).append(record["coverage"])
    models = ("SnefyLDL", "LogRatioLDL", "DirichletLDL")
    shared = set.intersection(*(set(found[model]) for model in models))
    parts, ranges = [], []
    for model in models:
        means = [float(np.mean(found[model][place])) for place in sorted(shared)]
        parts.append(f"`{model}` {short(float(np.mean(means)), 2)}")
        ranges.append(f"{model} {short(min(means))} to {short(max(means))}")
    sentence = f"Before calibration, 90 % intervals cover on average over {len(shared)} tables: {', '.join(parts)}."
    return sentence, "; ".join(ranges)


@cache
def reproduced(study: str) -> dict[str, list[Any]]:
    """Records of a table of the reproduction, recipe by recipe."""
    with tarfile.open(RESULTS / "reproduction.tar.gz") as archive:
        found: dict[str, list[Any]] = {}
        for member in archive.getmembers():
            parts = Path(member.name).parts
            if study in parts and member.isfile():
                found.setdefault(parts[-2], []).append(json.loads(archive.extractfile(member).read())["figures"])  # type: ignore[union-attr]
    return found


def paper_model(study: str, title: str) -> tuple[str, str]:
    """The paper's model, the default and one Dirichlet without features, by the likelihood of held-out rows."""
    found = {
        recipe: [(one.get("constant") or one.get("density"))["log_likelihood"] for one in records]
        for recipe, records in reproduced(study).items()
    }
    names = {"baseline": "one Dirichlet without features", "raw": "the paper's model with raw features"}
    names |= {
        "standard": "with standardised ones",
        "nearest": "as nearest to the printed cells",
        "default": "`SnefyLDL()`",
    }
    words = ", ".join(f"{words} {short(float(np.mean(found[key])), 2)}" for key, words in names.items())
    spreads = "; ".join(f"{key} {spread(found[key], 2)}" for key in names)
    return f"Log-likelihood of held-out rows of {title}: {words} ({len(found['raw'])} splits).", spreads


def own_mean(study: str, title: str) -> tuple[str, str]:
    """The default density's own mean, and the best ensemble that it weights."""
    records = reproduced(study)["default"]
    own = np.array([one["density"]["kl"] for one in records])
    bags = {
        name: np.array([one["learners"][name]["Weighted"]["kl"] for one in records]) for name in records[0]["learners"]
    }
    best = min(bags, key=lambda name: bags[name].mean())
    sentence = (
        f"KL on {title}: the density's own mean {short(own.mean(), 4)}, the best of the ensembles that it weights "
        f"{short(bags[best].mean(), 4)} ({len(own)} splits)."
    )
    return (
        sentence,
        f"{spread(own, 4)} against {best} {spread(bags[best], 4)}, difference {spread(own - bags[best], 4)}",
    )


def paper_queries() -> tuple[str, str]:
    """Every strategy of tables 4 and 5 against random rows, with the default density."""
    better = worse = cells = 0
    for study in ("table4", "table5"):
        records = reproduced(study)["default"]
        for name in records[0]["strategies"]:
            for metric in ("cheby", "clark", "canb", "kl", "cos", "inter"):
                if name != "Random":
                    sides = [np.array([one["strategies"][who][metric] for one in records]) for who in (name, "Random")]
                    gap = (sides[0] - sides[1]) * (-1 if metric in ("cos", "inter") else 1)
                    radius = student.ppf(0.975, len(gap) - 1) * gap.std(ddof=1) / np.sqrt(len(gap))
                    cells += 1
                    better, worse = better + (gap.mean() + radius < 0), worse + (gap.mean() - radius > 0)
    sentence = (
        f"Of the cells of the five strategies in tables 4 and 5, {better} of {cells} are clearly "
        f"better than random rows and {worse} clearly worse, with the default density (10 splits)."
    )
    return (
        sentence,
        "k-means, core-set, graph density, entropy of a Dirichlet and of SnefyLDL; each cell is in the tables",
    )


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


def preprocessing(title: str) -> tuple[str, str]:
    """Base learners at their defaults, and what standardised features alone do for the peer's."""
    facts, parts, spreads = load("peer.json")["accuracy"], [], []
    for name in ("AA_KNN", "SA_BFGS", "LDL_LRR"):
        ways, ours = facts["peer"][title][name], facts["ours"][title][name]["own"]
        raw, standard = (short(float(np.mean(ways[way])), 4) for way in ("raw", "standard"))
        parts.append(f"{name} {raw}, {standard}, {short(float(np.mean(ours)), 4)}")
        spreads.append(f"{name} {spread(ways['raw'], 4)}, {spread(ways['standard'], 4)}, {spread(ours, 4)}")
    sentence = (
        f"KL on {title} of base learners at their defaults, in PyLDL with raw and standardised features, and here: "
        f"{'; '.join(parts)} ({len(ours)} splits)."
    )
    return sentence, "; ".join(spreads)


def panels(name: str, title: str) -> tuple[str, str]:
    """Manhattan distance to the shares of the votes on the shared task's test items."""
    runs = load("annotators.json")[name]
    who = {
        "annotators": "expected shares",
        'annotators, point="manhattan"': '`point="manhattan"`',
        "majority": "classifier of majority labels",
        "most frequent label": "most frequent label",
    }
    found = {words: [run["methods"][key]["manhattan"] for run in runs] for key, words in who.items()}
    parts = ", ".join(f"{words} {short(float(np.mean(values)))}" for words, values in found.items())
    ranges = ", ".join(f"{words} {short(min(values))} to {short(max(values))}" for words, values in found.items())
    rows = runs[0]["rows"][1]
    return f"Manhattan distance on {title}: {parts} ({rows} test items, {len(runs)} seeds).", f"{ranges} over seeds"


def counted() -> tuple[str, str]:
    """Counts against the best way to turn them into proportions."""
    facts, parts, spreads = load("votes.json"), [], []
    for name in ("LIDC", "POPQUORN", "ChaosNLI_SNLI"):
        rows = [row for row in facts[name] if row["method"].startswith("proportions")]
        best = max(rows, key=lambda row: float(row["log likelihood"]))
        gain = re.match(r"([+-])0?([.\d]+) ± 0?([.\d]+)", best["counts above it"])
        parts.append(f"{name.partition('_')[0]} {gain[1].replace('-', '−')}{gain[2]} ± {gain[3]}")  # type: ignore[index]
        spreads.append(f"{name} against {best['method']} {best['log likelihood']}")
    sentence = (
        "Log-likelihood of the votes of held-out items, counts minus the best of three kinds of proportions: "
        f"{', '.join(parts)} (3 splits, ± one standard error)."
    )
    return sentence, "; ".join(spreads).replace("-", "−")


def hidden_parts() -> tuple[str, str]:
    """Fits with limits of detection against completed tables, clear of zero."""
    words = {"substitution": "constants", "multiplicative": "multiplicative constants", "regression": "regression"}
    rows, parts = load("below.json")["rows"], []
    for key, name in words.items():
        gaps = [tuple(map(float, row[f"below= minus {key}"].split(" ± "))) for row in rows]
        wins, losses = sum(mean > radius for mean, radius in gaps), sum(mean < -radius for mean, radius in gaps)
        parts.append(f"{name} {wins} and {losses}")
    sentence = (
        "Log-likelihood of new rows, fits with limits against tables completed first, clear wins and losses of "
        f"{len(rows)} cases: {', '.join(parts)} ({rows[0]['seeds']} seeds)."
    )
    cover = [float(row["90 % coverage of hidden shares"]) for row in rows]
    return sentence, f"90 % intervals of hidden shares cover {short(min(cover))} to {short(max(cover))}"


def pictures() -> tuple[str, str]:
    """How far predicted densities of images are from the true ones."""
    runs = load("backbones_images.json")["runs"]
    ways = {"bf16": "BF16", "float32": "float32", "features": "a fit to the numbers that were drawn"}
    found = {words: [run[way]["density_kl"] for run in runs] for way, words in ways.items()}
    parts = ", ".join(f"{words} {short(float(np.mean(values)))}" for words, values in found.items())
    size, rows = runs[0]["size"], runs[0]["rows"]
    sentence = (
        f"Log density missing on made-up images of {size} × {size} pixels, in nats: {parts} "
        f"({rows:,} images, {len(runs)} seeds)."
    )
    return sentence, "; ".join(f"{words} {spread(values)}" for words, values in found.items())


CLAIMS = {
    "sbu": Claim(lambda: intervals("sbu_3dfe", "SBU_3DFE"), "conformal.md", "conformal"),
    "scenes": Claim(lambda: intervals("natural_scene", "Natural_Scene"), "conformal.md", "conformal"),
    "likelihood": Claim(lambda: versus_best("nll", "by likelihood"), "density.md", "density"),
    "kl": Claim(lambda: versus_best("kl", "by KL of the mean"), "density.md", "density"),
    "coverage": Claim(real_coverage, "density.md", "density"),
    "paper on SBU": Claim(lambda: paper_model("table6", "SBU_3DFE"), "reproduction", "reproduction"),
    "paper on SJAFFE": Claim(lambda: paper_model("table7", "SJAFFE"), "reproduction", "reproduction"),
    "ensemble on SBU": Claim(lambda: own_mean("table6", "SBU_3DFE"), "reproduction", "reproduction"),
    "ensemble on SJAFFE": Claim(lambda: own_mean("table7", "SJAFFE"), "reproduction", "reproduction"),
    "queries": Claim(paper_queries, "reproduction", "reproduction"),
    "speed": Claim(speed, "peer.md", "peer"),
    "learners on SBU": Claim(lambda: preprocessing("SBU_3DFE"), "peer.md", "peer"),
    "learners on SJAFFE": Claim(lambda: preprocessing("SJAFFE"), "peer.md", "peer"),
    "votes": Claim(counted, "votes.md", "votes"),
    "Brexit": Claim(lambda: panels("HS_Brexit", "HS_Brexit"), "annotators.md", "annotators"),
    "abuse": Claim(lambda: panels("ConvAbuse", "ConvAbuse"), "annotators.md", "annotators"),
    "limits": Claim(hidden_parts, "below.md", "below"),
    "images": Claim(pictures, "backbones_images.json", "backbones"),
}
#: Pages that repeat sentences, word for word, each in a line of its own.
REPEATED = {
    "README.md": (
        *("sbu", "scenes", "likelihood", "kl", "paper on SBU", "paper on SJAFFE", "speed"),
        *("learners on SBU", "learners on SJAFFE"),
    ),
    "docs/compare.md": ("ensemble on SBU", "ensemble on SJAFFE"),
    "docs/active.md": ("queries",),
    "docs/votes.md": ("votes", "Brexit", "abuse"),
    "docs/zeros.md": ("limits",),
    "docs/backbones.md": ("images",),
}

QUESTIONS = (
    ("likelihood and mean against flows, mixture networks, Dirichlets, forests", ("density", "below")),
    ("calibration at every level", ("calibration",)),
    ("time, memory and learners against PyLDL's; label enhancement", ("peer", "enhancement")),
    ("coverage and width of conformal intervals", ("conformal", "conditional")),
    ("votes, annotators, groups", ("votes", "annotators", "groups")),
    ("choosing rows to label", ("active_study",)),
    ("thresholds of a fit against their neighbours", ("thresholds",)),
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


def sentences() -> dict[str, str]:
    """The claims by name."""
    return {name: claim.write()[0] for name, claim in CLAIMS.items()}


def written_again(text: str, new: list[str]) -> str:
    """A page with these sentences in place of the lines that begin with the same words, up to the first number."""
    for sentence in new:
        start = re.escape(re.match(r"[^\d.+−]*", sentence)[0])  # type: ignore[index]
        text = re.sub(rf"(?m)^- {start}.*$", lambda _, new=sentence: f"- {new}", text)
    return text


def link(page: str) -> str:
    """Where a result page is."""
    if page == "reproduction":
        return "reproduction.md"
    return f"../benchmarks/results/{page}"


def main() -> None:
    """Write the page."""
    lines = [HEAD]
    for claim in CLAIMS.values():
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
    found = sentences()
    for name, keys in REPEATED.items():
        page = ROOT / name
        page.write_text(written_again(page.read_text(encoding="utf-8"), [found[key] for key in keys]), encoding="utf-8")
    print(f"{PAGE}: {len(CLAIMS)} claims; {len(stale())} results are stale")


if __name__ == "__main__":
    main()
