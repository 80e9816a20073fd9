"""The pictures of the report, as SVG data addresses: they stay sharp on paper and need no file beside the page."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable
from typing import Any

import numpy as np

from snefy_ldl.paper.claims import (
    LEARNERS,
    LEVELS,
    METRICS,
    PANELS,
    STRATEGIES,
    Gap,
    Results,
    Spread,
    Tables,
    fsc,
    labels_of,
    paired,
    panel,
    panel_settings,
    query,
    weighting,
)

INK, QUIET, FAINT = "#1f2933", "#6b7785", "#e3e8ee"
#: One colour and one shape a side, told apart with any kind of colour vision.
COLORS = {"paper": "#D98200", "default": "#0072B2", "dirichlet": "#8a94a0", "published": INK}
SHAPES = {"paper": "s", "default": "o", "dirichlet": "v", "published": "D"}
NAMES = {"paper": "ours, paper's recipe", "default": "ours, default recipe", "dirichlet": "ours, Dirichlet"}
#: The level that the conformal intervals ask for.
ASKED = 0.9


def _printed_marks(ax: Any, x: Any, y: Any, color: str, label: str) -> None:
    """The paper's own figures: open diamonds in every picture."""
    ax.scatter(x, y, marker="D", s=22, facecolor="white", edgecolor=color, linewidth=1.2, zorder=3, label=label)


def conformal_figure(results: Results, tables: Tables, study: str) -> str:
    """Mean feature-stratified coverage of each label, the paper's and ours, with the ceiling of a perfect model."""
    names, table = labels_of(results, study), tables[study]
    sides = [side for side in ("dirichlet", *results.recipes(study)) if fsc(results, study, side)]
    figure, axes = _axes(1, 3, (9.6, 0.9 + 0.34 * len(names)), sharey=True)
    rows = np.arange(len(names))
    for ax, level in zip(axes, LEVELS):
        ceiling = Spread.of(results.series(study, results.recipes(study)[0], "ceiling", level)) if sides else None
        if ceiling is not None:
            ax.axvline(ceiling.mean, color=INK, linewidth=1.0, linestyle=(0, (4, 3)), zorder=1, label="ceiling")
        for kind, face in (("dirichlet", COLORS["dirichlet"]), ("snefy", INK)):
            means = [table.cells.get((kind, level, str(row)), (np.nan, 0.0))[0] for row in rows]
            name = f"published, {'Dirichlet' if kind == 'dirichlet' else 'SNEFY-LDL'}"
            _printed_marks(ax, means, rows + 0.17, face, name)
        for side in sides:
            spreads = [Spread.of(fsc(results, study, side, level, int(row))) for row in rows]
            means = [spread.mean if spread else np.nan for spread in spreads]
            ax.scatter(
                means,
                rows - 0.13,
                marker=SHAPES[side],
                s=30,
                color=COLORS[side],
                linewidth=0,
                zorder=4,
                label=NAMES[side],
            )
        ax.set_title(f"G = {level}", loc="left", fontsize=9.5, color=INK, fontweight="bold")
        ax.set_yticks(rows, names)
        ax.set_ylim(len(names) - 0.5, -0.5)
        ax.locator_params(axis="x", nbins=5)
        for edge in rows[:-1] + 0.5:
            ax.axhline(edge, color=FAINT, linewidth=0.7, zorder=0)
        ax.set_xlabel("lowest coverage of any group")
        _calm(ax, "x")
    _legend(figure, axes[0])
    return _address(figure)


def calibration_figure(results: Results, study: str) -> str | None:
    """PIT histograms label by label and, last, coverage against its level; None where no repeat holds any."""
    counts = {recipe: pit_counts(results, study, recipe) for recipe in results.recipes(study)}
    counts = {recipe: histograms for recipe, histograms in counts.items() if histograms is not None}
    if not counts:
        return None
    names = labels_of(results, study)
    across = 4 if len(names) % 4 != 1 else 5
    down = -(-(len(names) + 1) // across)
    figure, axes = _axes(down, across, (9.6, 1.95 * down + 0.4))
    for place, name in enumerate(names):
        ax = axes[place]
        ax.axhline(1.0, color=INK, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
        for recipe, histograms in counts.items():
            heights = histograms[place] / histograms[place].mean()
            edges = np.linspace(0.0, 1.0, len(heights) + 1)
            filled = recipe == "default"
            ax.stairs(
                heights,
                edges,
                baseline=0.0 if filled else None,
                fill=filled,
                color=COLORS[recipe],
                alpha=0.45 if filled else 1.0,
                linewidth=1.4,
                zorder=2 + (not filled),
                label=NAMES[recipe],
            )
        ax.set_title(name, loc="left", fontsize=9, color=INK)
        ax.set_xlim(0.0, 1.0)
        ax.set_ylim(0.0, max(2.0, ax.get_ylim()[1]))
        ax.set_xticks([0.0, 0.5, 1.0], ["0", "½", "1"])
        _calm(ax, None)
    curve = axes[len(names)]
    curve.plot([0, 1], [0, 1], color=INK, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
    for recipe, histograms in counts.items():
        levels, inside = reliability(histograms.sum(axis=0))
        curve.plot(levels, inside, color=COLORS[recipe], marker=SHAPES[recipe], markersize=3.2, linewidth=1.4, zorder=3)
    curve.set_title("level →, inside ↑", loc="left", fontsize=9, color=INK, fontweight="bold")
    curve.set_xlim(0.0, 1.0)
    curve.set_ylim(0.0, 1.0)
    curve.set_xticks([0.0, 0.5, 1.0], ["0", "½", "1"])
    _calm(curve, "both")
    for ax in axes[len(names) + 1 :]:
        ax.set_visible(False)
    _legend(figure, axes[0])
    return _address(figure)


def pit_counts(results: Results, study: str, recipe: str) -> Any:
    """PIT histograms (L, bins) summed over the repeats; None where no repeat holds any."""
    histograms = [
        record.figures.get("models", {}).get("snefy", {}).get("pit")
        for record in results.repeats(study, recipe).values()
    ]
    kept = [np.asarray(one, dtype=np.float64) for one in histograms if one is not None]
    return np.sum(kept, axis=0) if kept else None


def reliability(counts: Any) -> tuple[Any, Any]:
    """Levels of central intervals and the share of values inside them, read off a PIT histogram.

    Args:
        counts: Numbers of values in equal bins of [0, 1]; an even number of bins.

    Examples:
        >>> levels, inside = reliability([1, 4, 4, 1])
        >>> levels.tolist(), inside.tolist()
        ([0.5, 1.0], [0.8, 1.0])
    """
    values = np.asarray(counts, dtype=np.float64)
    half = len(values) // 2
    levels = np.arange(1, half + 1) / half
    inside = np.cumsum(values[half:] + values[:half][::-1]) / values.sum()
    return levels, inside


def active_figure(results: Results, tables: Tables, study: str) -> str:
    """Gain over random queries for each strategy and measure, in percent of Random's score, with paired intervals."""
    names = [*STRATEGIES[1:], "entropy"]
    table = tables[study]

    def printed(name: str, metric: str) -> float | None:
        printed, random = table.cells.get((name, metric)), table.cells.get(("Random", metric))
        return None if printed is None or random is None else (printed[0] - random[0]) / random[0]

    def ours(recipe: str, name: str, metric: str) -> tuple[Gap | None, float]:
        random = query(results, study, recipe, "Random", metric)
        spread = Spread.of(random)
        gap = paired(query(results, study, recipe, name, metric), random, higher=METRICS[metric].higher)
        return gap, spread.mean if spread else 1.0

    rows = [*names[:-1], "entropy, exact"]
    return _forest(results.recipes(study), rows, names, printed, ours, "gain over Random, %")


def ensemble_figure(results: Results, tables: Tables, study: str) -> str:
    """Gain of Weighted over Average for each learner and measure, in percent of Average's score."""
    table = tables[study]

    def printed(name: str, metric: str) -> float | None:
        average, weighted = (table.cells.get((name, kind, metric)) for kind in ("Average", "Weighted"))
        return None if average is None or weighted is None else (weighted[0] - average[0]) / average[0]

    def ours(recipe: str, name: str, metric: str) -> tuple[Gap | None, float]:
        average = weighting(results, study, recipe, name, "Average", metric)
        spread = Spread.of(average)
        weighted = weighting(results, study, recipe, name, "Weighted", metric)
        return paired(weighted, average, higher=METRICS[metric].higher), spread.mean if spread else 1.0

    return _forest(results.recipes(study), LEARNERS, LEARNERS, printed, ours, "gain of Weighted, %")


def _forest(recipes: list[str], rows: Iterable[str], names: Iterable[str], printed: Any, ours: Any, words: str) -> str:
    """Six panels, a measure each: gains in percent, better to the right whichever way the measure goes."""
    rows, names = list(rows), list(names)
    figure, axes = _axes(2, 3, (9.6, 2 * (0.75 + 0.33 * len(rows))), sharey=True)
    shifts = np.linspace(-0.2, 0.2, len(recipes) + 1)
    for ax, (metric, measure) in zip(axes, METRICS.items()):
        sign = 100.0 if measure.higher else -100.0
        ax.axvline(0.0, color=INK, linewidth=0.9, zorder=1)
        marks = [(place, printed(name, metric)) for place, name in enumerate(names)]
        gains = [sign * gain for _, gain in marks if gain is not None]
        places = [place + shifts[0] for place, gain in marks if gain is not None]
        _printed_marks(ax, gains, places, INK, "published")
        for shift, recipe in zip(shifts[1:], recipes):
            shown = [(place, *ours(recipe, name, metric)) for place, name in enumerate(names)]
            shown = [(place, gap, unit) for place, gap, unit in shown if gap is not None]
            half = [0.0 if gap.high is None else 100.0 * (gap.high - gap.mean) / unit for _, gap, unit in shown]
            ax.errorbar(
                [sign * gap.mean / unit for _, gap, unit in shown],
                [place + shift for place, _, _ in shown],
                xerr=half,
                fmt=SHAPES[recipe],
                markersize=4.6,
                color=COLORS[recipe],
                elinewidth=1.5,
                zorder=4,
                label=NAMES[recipe],
            )
        ax.set_title(measure.name, loc="left", fontsize=9.5, color=INK, fontweight="bold")
        ax.set_yticks(range(len(rows)), rows)
        ax.set_ylim(len(rows) - 0.5, -0.5)
        for edge in np.arange(len(rows) - 1) + 0.5:
            ax.axhline(edge, color=FAINT, linewidth=0.7, zorder=0)
        _calm(ax, "x")
    for ax in axes[3:]:
        ax.set_xlabel(f"{words}  (better →)")
    _legend(figure, axes[0])
    return _address(figure)


def sensitivity_figure(results: Results) -> str:
    """Figure A1: coverage against n, m, batch size and epochs, with the 95 % interval of each mean."""
    recipes = results.recipes("figureA1")
    figure, axes = _axes(2, 4, (9.6, 4.6), sharey="row")
    for column, (name, words) in enumerate(PANELS.items()):
        settings = panel_settings(results, name)
        for row, level in enumerate(("2", "4")):
            ax = axes[4 * row + column]
            ceiling = Spread.of(results.series("figureA1", recipes[0], "ceiling", level))
            if ceiling is not None:
                ax.axhline(ceiling.mean, color=INK, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1, label="ceiling")
            for recipe in recipes:
                series = [panel(results, recipe, name, setting, "fsc", level) for setting in settings]
                # Against zero, the paired interval is the interval of the mean itself.
                gaps = [paired(one, dict.fromkeys(one, 0.0)) for one in series]
                shown = [(place, gap) for place, gap in enumerate(gaps) if gap is not None]
                ax.errorbar(
                    [place for place, _ in shown],
                    [gap.mean for _, gap in shown],
                    yerr=[0.0 if gap.high is None else gap.high - gap.mean for _, gap in shown],
                    marker=SHAPES[recipe],
                    markersize=4.4,
                    color=COLORS[recipe],
                    linewidth=1.5,
                    elinewidth=1.2,
                    zorder=3,
                    label=NAMES[recipe],
                )
            ax.set_xticks(range(len(settings)), settings)
            ax.set_xlim(-0.4, len(settings) - 0.6)
            if row == 0:
                ax.set_title(words, loc="left", fontsize=9.5, color=INK, fontweight="bold")
            if column == 0:
                ax.set_ylabel(f"FSC, G = {level}")
            _calm(ax, "y")
    _legend(figure, axes[0])
    return _address(figure)


# --- drawing ----------------------------------------------------------------------------------------------------------


def _axes(down: int, across: int, size: tuple[float, float], **shared: Any) -> tuple[Any, list[Any]]:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("the report's pictures need matplotlib: pip install 'snefy-ldl[plot]'") from None
    figure = Figure(figsize=size, layout="constrained")
    return figure, list(np.ravel(figure.subplots(down, across, **shared)))


def _calm(ax: Any, grid: str | None) -> None:
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        ax.spines[side].set_color("#c3ccd5")
    ax.tick_params(colors=QUIET, labelsize=8, length=0)
    ax.xaxis.label.set(color=QUIET, fontsize=8.5)
    ax.yaxis.label.set(color=QUIET, fontsize=8.5)
    if grid:
        ax.grid(axis=grid, color=FAINT, linewidth=0.7)
    ax.set_axisbelow(True)


def _legend(figure: Any, ax: Any) -> None:
    handles, names = ax.get_legend_handles_labels()
    figure.legend(
        handles,
        names,
        loc="outside upper left",
        ncols=len(names),
        frameon=False,
        fontsize=8.5,
        labelcolor=INK,
        handletextpad=0.4,
        columnspacing=1.6,
    )


def _address(figure: Any) -> str:
    from matplotlib import rc_context

    content = io.BytesIO()
    with rc_context({"svg.hashsalt": "snefy-ldl", "svg.fonttype": "path"}):  # the same results, the same bytes
        figure.savefig(content, format="svg", metadata={"Date": None})
    return "data:image/svg+xml;base64," + base64.b64encode(content.getvalue()).decode()
