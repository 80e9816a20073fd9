"""Make the picture of docs/which-density.md from results: ``python examples/make_which_density.py [file.png]``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from snefy_ldl.plots import style

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
SNEFY, LOGRATIO = style.LABEL_COLORS[0], style.LABEL_COLORS[1]
#: Tables that are taken from small_tables.json, and the rows they are cut to there; the others are in density.json.
SMALL_TABLES = {"HouseholdExp": 28, "ArcticLake": 30, "SJAFFE": 100, "Fairclough_timeuse": 118, "Jura": 200}
NAMES = {"ECAM_infant_microbiome": "ECAM microbiome", "Fairclough_timeuse": "Fairclough time use"}


def main(file: Path) -> Path:
    figure = Figure(figsize=(7.2, 8.0), facecolor="white")
    draw_decision(figure.add_axes((0.02, 0.6, 0.96, 0.39)))
    draw_measured(figure.add_axes((0.44, 0.115, 0.53, 0.41)), measured())
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=150)
    return file


def measured() -> list[dict[str, Any]]:
    """Per table: rows, parts, kind of shares, and how much likelier LogRatioLDL is than SnefyLDL per free share."""
    records = json.loads((RESULTS / "density.json").read_text())["records"]
    variants: dict[str, set[str]] = {}
    cases: dict[tuple[str, int], dict[str, Any]] = {}
    for record in records:
        variants.setdefault(record["data"], set()).add(record["variant"])
        if record["variant"] == "plain" and "nll" in record and record["data"] not in SMALL_TABLES:
            cell = (record["nll"], record["rows"][0], record["labels"])
            cases.setdefault((record["data"], record["seed"]), {})[record["method"]] = cell
    for record in json.loads((RESULTS / "small_tables.json").read_text())["records"]:
        if SMALL_TABLES.get(record["data"]) == record["rows"] and "nll" in record:
            cell = (record["nll"], record["rows"], record["parts"])
            cases.setdefault((record["data"], record["split"]), {})[record["method"]] = cell
    gaps: dict[str, list[float]] = {}
    sizes: dict[str, tuple[int, int]] = {}
    for (name, _), methods in cases.items():
        if {"SnefyLDL", "LogRatioLDL"} <= methods.keys():
            (ours, rows, parts), (other, _, _) = methods["SnefyLDL"], methods["LogRatioLDL"]
            gaps.setdefault(name, []).append((ours - other) / (parts - 1))
            sizes.setdefault(name, (rows, parts))
    lines = [
        {
            "name": NAMES.get(name, name.replace("_", " ")),
            "rows": sizes[name][0],
            "parts": sizes[name][1],
            "gap": float(np.mean(gap)),
            "error": float(np.std(gap, ddof=1) / np.sqrt(len(gap))),
            "continuous": not any("jitter" in one or "zeros" in one for one in variants.get(name, ())),
        }
        for name, gap in gaps.items()
    ]
    return sorted(lines, key=lambda line: line["gap"])


def draw_decision(axes: Axes) -> None:
    """Two questions and three answers."""
    axes.set(xlim=(0, 100), ylim=(0, 50))
    axes.axis("off")
    axes.text(0, 49, "Which density when", fontsize=15, color=style.INK, va="top", fontweight="bold")
    questions = [
        (36, "Shares of exactly zero, votes, or unknown shares?", "yes"),
        (21.5, "A composition measured on few rows or with\nmany parts, or questions about ratios of shares?", "yes"),
        (7, "Anything else, or unsure: let the rows decide.", ""),
    ]
    answers = [
        ("SnefyLDL", "the default", SNEFY),
        ("LogRatioLDL", "no zeros, no votes", LOGRATIO),
        ("fit_density", "tries both on held-out rows", style.LABEL_COLORS[2]),
    ]
    for (y, question, word), (name, note, color) in zip(questions, answers, strict=True):
        frame = {"fc": "white", "ec": style.FRAME, "lw": 1.2}
        axes.add_patch(_box(0.5, y - 4.8, 58, 9.6, **frame))
        axes.text(2.5, y, question, fontsize=10, color=style.INK, va="center", linespacing=1.35)
        axes.annotate("", (68, y), (58.8, y), arrowprops={"arrowstyle": "-|>", "color": style.QUIET, "lw": 1.3})
        axes.text(63, y + 0.9, word, fontsize=10, color=style.QUIET, ha="center", va="bottom")
        axes.add_patch(_box(68.5, y - 4.8, 31, 9.6, fc=color, ec=color))
        ink = style.ink_on(color)
        axes.text(84, y + 1.7, name, fontsize=11.5, color=ink, ha="center", va="center", fontweight="bold")
        axes.text(84, y - 2.2, note, fontsize=8.8, color=ink, ha="center", va="center")
    for y in (30.7, 16.2):
        axes.annotate("", (10, y - 4), (10, y + 0.5), arrowprops={"arrowstyle": "-|>", "color": style.QUIET, "lw": 1.3})
        axes.text(12, y - 1.9, "no", fontsize=10, color=style.QUIET, va="center")


def _box(x: float, y: float, width: float, height: float, **look: Any) -> FancyBboxPatch:
    return FancyBboxPatch((x, y), width, height, boxstyle="round,pad=0,rounding_size=1.2", **look)


def draw_measured(axes: Axes, lines: list[dict[str, Any]]) -> None:
    """One bar per table, towards the density with the better likelihood."""
    for y, line in enumerate(lines):
        color = LOGRATIO if line["gap"] > 0 else SNEFY
        fill = {"facecolor": color} if line["continuous"] else {"facecolor": "white", "hatch": "/////"}
        axes.barh(y, line["gap"], height=0.66, edgecolor=color, **fill)
        axes.plot(line["gap"] + 2 * line["error"] * np.array([-1, 1]), [y, y], color=style.INK, lw=1.2)
    axes.axvline(0, color=style.INK, lw=1)
    names = [f"{line['name']}: {line['rows']:,} rows, {line['parts']} parts" for line in lines]
    axes.set_yticks(range(len(lines)), names, fontsize=9, color=style.INK)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=9, colors=style.QUIET)
    axes.set(xlim=(-0.72, 0.5), ylim=(-0.6, len(lines) + 0.4))
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(style.FRAME)
    axes.set_xlabel("nats of log likelihood per free share", fontsize=9.5, color=style.QUIET, loc="right")
    axes.text(-0.02, len(lines), "SnefyLDL likelier  ", fontsize=10, color=SNEFY, ha="right", va="center")
    axes.text(0.02, len(lines), "LogRatioLDL likelier", fontsize=10, color="#9a6700", ha="left", va="center")
    figure = axes.figure
    figure.text(0.02, 0.563, "What was measured", fontsize=12.5, color=style.INK, fontweight="bold", va="center")
    key = (
        "Filled: shares without zeros that vary freely. Hatched: zeros (replaced) or few distinct values.\n"
        "Test rows of 5 or 8 splits; lines are two standard errors long on either side."
    )
    figure.text(0.02, 0.014, key, fontsize=8.8, color=style.QUIET, linespacing=1.4)


if __name__ == "__main__":
    default = ROOT / "docs" / "images" / "which_density.png"
    print(main(Path(sys.argv[1]) if len(sys.argv) > 1 else default))
