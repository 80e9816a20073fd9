"""The page of a report: one HTML file that needs no network, with its pictures inside."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from snefy_ldl import plots
from snefy_ldl._internal.text import shorten
from snefy_ldl._internal.types import Array
from snefy_ldl.apps.cli.common import training_length, training_rows
from snefy_ldl.apps.cli.pictures import Pictures, render_page
from snefy_ldl.apps.reports.model_report import FEW_SEEN, FOLDS, LEVEL, LEVELS, JudgedRows, Report, number_words
from snefy_ldl.explain.importance import Importances
from snefy_ldl.plots.style import shorten_name
from snefy_ldl.plots.votes import plot_calibration
from snefy_ldl.votes.held_out import CountCalibration, calibrate_counts, noise_ceiling

#: Labels that have a ridge, an interval or a histogram, at most, and labels in a column of a picture of all of them.
MOST_LABELS, COLUMN_LABELS = 8, 16
#: Grid steps along a side of a triangle: enough for a picture of this size.
RESOLUTION = 72
#: What the three rows are called that return through the page.
TITLES = ("The surest row", "A typical row", "The least sure row")


def render_report(
    report: Report,
    *,
    table: str,
    title: str | None = None,
    notes: Sequence[str] = (),
    commands: Sequence[str] = (),
    first: tuple[str, str, int] | None = None,
) -> str:
    """The page as text.

    Args:
        report: The figures.
        table: Name of the judged table.
        title: Headline; made of the labels by default.
        notes: Notes at the top of the page.
        commands: How the page was made, and what to do next.
        first: Heading, text and number of a row that the page starts with.

    Returns:
        One HTML document.

    Raises:
        ImportError: jinja2, matplotlib or mpltern is not installed.
    """
    rows, model, pictures = report.rows, report.model, Pictures()
    counts, labels, mean = rows.counts, rows.labels, rows.D.mean(axis=0)
    dists = [report.dist_of(row) for row in report.shown]
    corners = choose_corners(labels, rows.D, dists[0].supports("amalgamate"))
    counted, joint = _count_calibration(report), None if report.trust is None else report.trust.joint
    several_votes = counts is not None and bool((np.nansum(counts, axis=1) >= 2).any())
    page = render_page(
        "report.html",
        report=report,
        labels=labels,
        label_order=label_order(report),
        votes=counts is not None,
        n_votes=None if counts is None else float(np.nansum(counts)),
        trust=report.trust,
        level=f"{LEVEL:.0%}",
        table=table,
        title=title or f"How well can {_list(labels)} be predicted?",
        verdict=verdict(report),
        notes=list(notes),
        first=first
        and {
            "title": first[0],
            "words": first[1],
            "density": _draw_density(report, pictures, first[2], report.dist_of(first[2]), corners, first[0]),
        },
        largest=(labels[int(mean.argmax())], float(mean.max())),
        zeros=float((rows.D == 0.0).mean()),
        rival_folds=FOLDS,
        kl=report.line("KL divergence"),
        likelihood=report.line("mean log likelihood"),
        fitted_to=training_rows(model.training_),
        corners=corners,
        corner_words="" if corners is None else _list(corners.names),
        joint=joint,
        squared_error=float(np.square(rows.D - report.answers.mean).sum(axis=1).mean()),
        noise=noise_ceiling(counts).squared_error if several_votes else None,
        vote_coverage=[] if counted is None else sorted(counted.coverage.items()),
        shown=_draw_rows(report, pictures, dists, corners),
        pictures=_draw_pictures(report, pictures, counted),
        model=model,
        by_draws=bool((dists[0].mean_error > 0.0).any()),
        n_members=dists[0].n_members,
        length=training_length(model.training_),
        choice=model.training_.get("choice"),
        candidates=getattr(model, "candidates_", []),
        commands=list(commands),
    )
    return page.lstrip()


def _list(names: Sequence[str]) -> str:
    """Names in a sentence, the first few of many."""
    return shorten(list(names), 4) if len(names) > 5 else f"{', '.join(names[:-1])} and {names[-1]}"


def verdict(report: Report) -> str:
    """How the model compares, in one sentence, and whether its intervals are right in another."""
    words = []
    for k, name in enumerate(report.rivals):
        verdicts = [one.verdict for line in report.scores[:6] if (one := line.rivals[k]) is not None]
        rival = f"the {name}" if name.startswith("constant") else name
        counts = [(word, verdicts.count(word)) for word in ("better", "worse")]
        parts = [f"{word} than {rival} on {n}" for word, n in counts if n]
        each = f"{' and '.join(parts)} of {len(verdicts)} measures"
        words.append(each if parts else f"not clearly better or worse than {rival}")
    sentence = f"The model is {'; it is '.join(words)}."
    if report.seen > FEW_SEEN:
        sentence += f" {report.seen:.0%} of these rows trained it, which flatters it."
    if report.trust is None:
        return sentence
    # an interval that begins at zero contains all zeros; the curve counts them by their probability
    gap, joint = float(report.trust.curve[LEVELS.index(LEVEL)]) - LEVEL, report.trust.joint
    if abs(gap) > max(0.02, 2.0 * np.sqrt(LEVEL * (1.0 - LEVEL) / len(report.rows))):
        problem = "wide: it is less sure than it could be" if gap > 0 else "narrow: it is too sure"
        return f"{sentence} Its intervals are too {problem}."
    covered = f"Its {LEVEL:.0%} intervals contain {report.trust.coverage.mean():.0%} of the shares"
    if joint is not None and not joint.calibrated:
        return f"{sentence} {covered}, but whole rows are not calibrated (p = {joint.p_value:.1g})."
    return f"{sentence} {covered}."


def _count_calibration(report: Report) -> CountCalibration | None:
    """Calibration of numbers of votes: the mean of the parts, weighted by their rows; None for shares."""
    counts = report.rows.counts
    if counts is None:
        return None
    made = []
    for model, judged in report.parts:
        dist = model.predict_dist(report.rows.pick(judged).X)
        made.append((len(judged) / len(counts), calibrate_counts(dist, counts[judged])))
    coverage = {level: sum(share * one.coverage[level] for share, one in made) for level in made[0][1].coverage}
    histogram = np.asarray(sum(share * one.histogram for share, one in made))
    return CountCalibration(histogram, coverage, sum(share * one.error for share, one in made))


# -- triangles ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Corners:
    """The corners of a triangle.

    Args:
        groups: Labels of each corner, by number.
        names: Of the corners.
        merged: Whether the corners are sums that contain every label; otherwise shares among three labels alone.

    Example:
        >>> Corners([[0], [1], [2]], ["sand", "silt", "clay"], True).names[0]
        'sand'
    """

    groups: list[list[int]]
    names: list[str]
    merged: bool

    def dist(self, dist: Any) -> Any:
        """The distribution of the three corners, of that of all labels."""
        if not self.merged:
            return dist.subcomposition([group[0] for group in self.groups])
        return dist if self.groups == [[0], [1], [2]] else dist.amalgamate(self.groups)

    def shares(self, shares: Array) -> Array | None:
        """Shares (3,) of the three corners, of those of all labels (L,); None if none of the three was observed."""
        sums = np.array([shares[group].sum() for group in self.groups])
        return sums / sums.sum() if sums.sum() > 0.0 else None


def choose_corners(labels: Sequence[str], D: Array, sums: bool = True) -> Corners | None:
    """The corners of the triangles: the two largest labels and the rest.

    Args:
        labels: Names of all labels.
        D: Observed shares (N, L).
        sums: Whether the model has densities of sums of labels; otherwise the three largest labels are chosen.

    Returns:
        The corners; None for two labels.

    Example:
        >>> choose_corners(["a", "b", "c", "d"], np.array([[0.1, 0.2, 0.3, 0.4]])).names
        ['d', 'c', 'the others']
        >>> choose_corners(["a", "b", "c", "d"], np.array([[0.1, 0.2, 0.3, 0.4]]), sums=False).groups
        [[3], [2], [1]]
    """
    if len(labels) < 3:
        return None
    order = [int(r) for r in np.argsort(-D.mean(axis=0), kind="stable")]
    if len(labels) == 3:
        return Corners([[0], [1], [2]], list(labels), True)
    if sums:
        groups = [[order[0]], [order[1]], sorted(order[2:])]
        return Corners(groups, [labels[order[0]], labels[order[1]], "the others"], True)
    return Corners([[r] for r in order[:3]], [labels[r] for r in order[:3]], False)


# -- pictures ----------------------------------------------------------------------------------------------------------


def label_order(report: Report) -> list[int]:
    """The labels with the largest mean shares, at most eight, in the order of the table.

    Args:
        report: The figures.

    Returns:
        Numbers of the labels.
    """
    largest = np.argsort(-report.rows.D.mean(axis=0), kind="stable")[:MOST_LABELS]
    return sorted(int(r) for r in largest)


def _draw_pictures(report: Report, pictures: Pictures, votes: CountCalibration | None) -> dict[str, Any]:
    """Every picture of the page that is not about one row, by name; lists of a title and a picture for histograms."""
    rows, answers, trust, which = report.rows, report.answers, report.trust, label_order(report)

    def histogram(name: str, pit: Array, label: int) -> tuple[str, str]:
        def paint(ax: Any) -> None:
            plots.calibration(pit, ax=ax, color=plots.style.label_color(label))
            ax.set(xlabel="", ylabel="")
            ax.set_xticks([0.0, 0.5, 1.0], ["0", "0.5", "1"])

        return name, pictures.draw(f"PIT histogram: {name}", (2.2, 1.5), paint)

    tall = 0.7 + 0.25 * min(12, len(report.importance))
    weights = Importances(report.importance)
    made: dict[str, Any] = {
        "ranges": _draw_ranges(pictures, rows),
        "importance": pictures.draw(
            "Likelihood lost if a column is shuffled", (3.6, tall), lambda ax: weights.plot(ax=ax)
        ),
    }
    if votes is not None:
        made["votes"] = pictures.draw(
            "Where numbers of votes fall", (3.8, 2.5), lambda ax: plot_calibration(votes, ax=ax)
        )
    if trust is not None and answers.pit is not None and answers.joint is not None:
        draw = partial(plots.calibration_curve, LEVELS, trust.curve, n_rows=len(rows))
        made["curve"] = pictures.draw("Coverage against the nominal level", (3.4, 3.4), lambda ax: draw(ax=ax))
        made["pit"] = [histogram(rows.labels[r], answers.pit[:, r], r) for r in which]
    return made


def _draw_ranges(pictures: Pictures, rows: JudgedRows) -> str:
    """How the shares of all labels vary; of many labels in columns and on a log scale, on which traces are seen."""
    n_labels, positive = len(rows.labels), rows.D[rows.D > 0.0]
    many, order = n_labels > MOST_LABELS, np.argsort(-rows.D.mean(axis=0), kind="stable")
    columns = np.array_split(order, -(-n_labels // COLUMN_LABELS)) if many else [np.arange(n_labels)]

    def paint(figure: Any) -> None:
        for ax, part in zip(figure.subplots(1, len(columns), squeeze=False)[0], columns):
            plots.share_ranges(rows.D[:, part], [wrap_name(rows.labels[r], 20) for r in part], ax=ax)
            if many:
                ax.set(xscale="log", xlim=(np.quantile(positive, 0.01), 1.0))

    size = (3.4 * len(columns) if many else 4.2, 0.7 + 0.34 * len(columns[0]))
    return pictures.figure("How the shares of each label vary over the rows", size, paint)


def wrap_name(name: str, width: int) -> str:
    """A name in two lines at most.

    Args:
        name: Any text.
        width: Letters of a line.

    Returns:
        The lines; what does not fit ends with an ellipsis.

    >>> wrap_name("coarse sand and gravel", 12).splitlines()
    ['coarse sand', 'and gravel']
    """
    return "\n".join(textwrap.wrap(name, width, max_lines=2, placeholder="…")) or name


def _draw_rows(report: Report, pictures: Pictures, dists: list[Any], corners: Corners | None) -> list[dict[str, str]]:
    """The three rows that return through the page: title, name, facts, density and ridges."""
    which = label_order(report)
    names = [wrap_name(name, 14) for name in report.rows.labels]
    rows = []
    for title, row, dist in zip(TITLES, report.shown, dists):
        observed = report.rows.D[row]
        draw = partial(plots.share_ridges, dist, 0, which=which, labels=names, truth=observed)
        ridges = pictures.draw("Density of the share of each label", (2.9, 0.5 + 0.4 * len(which)), draw)
        about = {"title": title, "name": report.rows.name(row), "facts": _facts(report, row)}
        density = _draw_density(report, pictures, row, dist, corners, title)
        rows.append({**about, "density": density, "ridges": ridges})
    return rows


def _draw_density(report: Report, pictures: Pictures, row: int, dist: Any, corners: Corners | None, title: str) -> str:
    """The density of a row in a triangle; of two labels, that of the first one."""
    observed = report.rows.D[row]
    if corners is None:
        words = {"name": shorten_name(report.rows.labels[0], 22), "truth": observed[0]}
        draw = partial(plots.marginal_density, dist, 0, 0, **words)
        return pictures.draw(f"Density of the share of {report.rows.labels[0]}", (2.9, 1.9), draw)
    short = [shorten_name(name, 18) for name in corners.names]
    of_corners, truth = corners.dist(dist), corners.shares(observed)
    paint = partial(plots.ternary_density, of_corners, labels=short, truth=truth, resolution=RESOLUTION)
    return pictures.draw(f"{title}: density over {', '.join(corners.names)}", (2.9, 2.9), paint, "ternary")


def _facts(report: Report, row: int) -> str:
    """Values of the most important columns in a row."""
    X = report.rows.features
    if not hasattr(X, "columns"):
        return ""
    return ", ".join(f"{one.column} {_cell_words(X[one.column].iloc[row])}" for one in report.importance[:3])


def _cell_words(value: Any) -> str:
    """A cell of a table in words."""
    if value is None or str(value) in ("nan", "NaT", "<NA>", "None"):
        return "missing"
    if hasattr(value, "strftime"):
        return str(value.strftime("%Y-%m-%d"))
    return number_words(float(value)) if isinstance(value, (float, int, np.number)) else str(value)
