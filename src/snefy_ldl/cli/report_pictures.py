"""The pictures of a report's page, each small enough to be read on a phone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from snefy_ldl import plots
from snefy_ldl._internal.types import Array
from snefy_ldl.cli.pictures import Pictures
from snefy_ldl.errors import InputError, SnefyError
from snefy_ldl.plots.importance import shorten_name
from snefy_ldl.plots.votes import plot_calibration
from snefy_ldl.reports import JudgedRows, Report
from snefy_ldl.reports.report import LEVELS, number_words
from snefy_ldl.votes.scores import CountCalibration

#: Labels that have a ridge, an interval or a histogram, at most.
MOST_LABELS = 8
#: Grid steps along a side of a triangle: enough for a picture of this size.
RESOLUTION = 72
#: What the three rows are called that return through the page.
TITLES = ("The surest row", "A typical row", "The least sure row")


@dataclass(frozen=True)
class Corners:
    """What stands at the corners of a triangle.

    Args:
        groups: Labels of each corner, by number.
        names: Of the corners.
        merged: Whether the corners are sums that hold every label; otherwise shares among three labels alone.

    Example:
        >>> Corners([[0], [1], [2]], ["sand", "silt", "clay"], True).names[0]
        'sand'
    """

    groups: list[list[int]]
    names: list[str]
    merged: bool

    def law(self, law: Any) -> Any:
        """The law of the three corners.

        Args:
            law: Of all labels.

        Returns:
            A law of three labels.
        """
        if self.merged:
            return law if self.groups == [[0], [1], [2]] and law.n_labels == 3 else law.amalgamate(self.groups)
        return law.subcomposition([group[0] for group in self.groups])

    def shares(self, shares: Array) -> Array | None:
        """Shares of the three corners.

        Args:
            shares: Of all labels (L,).

        Returns:
            (3,), or None where none of the three was observed.
        """
        sums = np.array([shares[group].sum() for group in self.groups])
        return sums / sums.sum() if sums.sum() > 0.0 else None


def choose_corners(labels: Sequence[str], D: Array, text: str | None = None) -> Corners | None:
    """The corners of the triangles: three labels or groups that a person named, or the two largest and the rest.

    Args:
        labels: Names of all labels.
        D: Observed shares (N, L).
        text: "A,B,C", each a label or several with a plus between them, "A+B,C,D+E"; None chooses.

    Returns:
        The corners; None for two labels.

    Raises:
        InputError: There are not three parts, a label is not there or named twice, or two labels are all there is.

    Example:
        >>> choose_corners(["a", "b", "c", "d"], np.array([[0.1, 0.2, 0.3, 0.4]])).names
        ['d', 'c', 'the others']
        >>> choose_corners(["a", "b", "c", "d"], np.ones((1, 4)) / 4, "a+b,c,d").groups
        [[0, 1], [2], [3]]
    """
    if text is None:
        if len(labels) <= 3:
            return Corners([[0], [1], [2]], list(labels), True) if len(labels) == 3 else None
        order = [int(r) for r in np.argsort(-D.mean(axis=0), kind="stable")]
        groups = [[order[0]], [order[1]], sorted(order[2:])]
        return Corners(groups, [labels[order[0]], labels[order[1]], "the others"], True)
    names = [part.strip() for part in text.split(",")]
    parts = [[one.strip() for one in name.split("+")] for name in names]
    if len(parts) != 3 or len(labels) < 3:
        raise InputError(f"--ternary {text}: name three labels, or three groups like A+B,C,D, of a model with three.")
    flat = [one for part in parts for one in part]
    for one in flat:
        if one not in labels:
            raise InputError(f"--ternary {text}: there is no label {one!r}; the labels are {', '.join(labels)}.")
        if flat.count(one) > 1:
            raise InputError(f"--ternary {text}: {one!r} is named twice.")
    groups = [[list(labels).index(one) for one in part] for part in parts]
    whole = len(flat) == len(labels)
    if not whole and any(len(group) > 1 for group in groups):
        raise InputError(f"--ternary {text}: groups must hold every label; {len(labels) - len(flat)} are not named.")
    return Corners(groups, names, whole)


def label_order(report: Report) -> list[int]:
    """The labels with the largest mean shares, at most eight, in the order of the table.

    Args:
        report: The figures.

    Returns:
        Numbers of the labels.
    """
    largest = np.argsort(-report.rows.D.mean(axis=0), kind="stable")[:MOST_LABELS]
    return sorted(int(r) for r in largest)


def draw_pictures(report: Report, pictures: Pictures, votes: CountCalibration | None = None) -> dict[str, Any]:
    """Every picture of the page that is not about one row.

    Args:
        report: The figures.
        pictures: Draws them.
        votes: Calibration of numbers of votes; None for shares.

    Returns:
        ``svg`` elements by name; lists of a title and an element for the histograms.
    """
    rows, which = report.rows, label_order(report)
    names = [shorten_name(rows.labels[r], 16) for r in which]
    shares, height = rows.D[:, which], 0.34 * len(which)
    order = np.argsort(report.answers.width, kind="stable")
    columns = report.importance
    made: dict[str, Any] = {
        "ranges": pictures.draw(
            "How the shares of each label spread over the rows",
            (4.2, 0.7 + height),
            lambda ax: plots.share_ranges(shares, names, ax),
        ),
        "bars": pictures.draw(
            "Observed shares of three rows",
            (4.2, 1.7),
            lambda ax: _bars(ax, shares[report.shown], names),
        ),
        "importance": pictures.draw(
            "Likelihood lost when a column is shuffled",
            (3.6, 0.7 + 0.25 * min(12, len(columns))),
            lambda ax: plots.importance(
                [one.column for one in columns], [one.loss for one in columns], [one.std_error for one in columns], ax
            ),
        ),
        "surest": _panels(report, pictures, which, names, order[:3], "The surest rows"),
        "least_sure": _panels(report, pictures, which, names, order[::-1][:3], "The least sure rows"),
    }
    if votes is not None:
        made["votes"] = pictures.draw("Where numbers of votes fall", (3.8, 2.5), lambda ax: plot_calibration(votes, ax))
    if report.trust is not None and report.answers.pit is not None:
        made["curve"] = _curve(report, pictures)
        made["pit"] = [_histogram(pictures, rows.labels[r], report.answers.pit[:, r], r) for r in which]
        made["joint"] = _joint(report, pictures)
    return made


def draw_rows(
    report: Report, pictures: Pictures, corners: Corners | None
) -> tuple[list[dict[str, str]], Corners | None]:
    """The three rows that return through the page, with their densities.

    Args:
        report: The figures.
        pictures: Draws them.
        corners: Of the triangles; None for two labels.

    Returns:
        For each row its title, name, facts, density and ridges; and the corners that could be drawn: a law with a
        centre has no joint law of sums, so that three labels are drawn among themselves instead.
    """
    which, laws = label_order(report), [report.law_of(row) for row in report.shown]
    if corners is not None:
        corners = possible_corners(corners, laws[0], report.rows)
    rows = []
    for title, row, law in zip(TITLES, report.shown, laws):
        observed = report.rows.D[row]
        if corners is None:
            density = _first_share(pictures, law, report, observed)
        else:
            density = _triangle(pictures, corners, law, observed, title)
        rows.append(
            {
                "title": title,
                "name": report.rows.name(row),
                "facts": _facts(report, row),
                "density": density,
                "ridges": _ridges(pictures, law, which, report, observed),
            }
        )
    return rows, corners


def possible_corners(corners: Corners, law: Any, rows: JudgedRows) -> Corners | None:
    """The corners, or three labels among themselves where the law cannot merge.

    Args:
        corners: As they are wanted.
        law: Of all labels.
        rows: Whose labels with the largest mean shares are taken otherwise.

    Returns:
        The same corners, others, or None where the law can do neither.
    """
    order = [int(r) for r in np.argsort(-rows.D.mean(axis=0), kind="stable")[:3]]
    for one in (corners, Corners([[r] for r in order], [rows.labels[r] for r in order], False)):
        try:
            one.law(law)
        except (SnefyError, NotImplementedError):
            continue
        return one
    return None


def _triangle(pictures: Pictures, corners: Corners, law: Any, observed: Array, title: str) -> str:
    three = corners.law(law)
    names = [shorten_name(name, 18) for name in corners.names]
    truth = corners.shares(observed)
    return pictures.draw(
        f"{title}: density over all mixes of {', '.join(corners.names)}",
        (2.9, 2.9),
        lambda ax: plots.ternary_density(three, ax, labels=names, truth=truth, resolution=RESOLUTION),
        "ternary",
    )


def _first_share(pictures: Pictures, law: Any, report: Report, observed: Array) -> str:
    name = report.rows.labels[0]
    return pictures.draw(
        f"Density of the share of {name}",
        (2.9, 1.9),
        lambda ax: plots.marginal_density(law, 0, 0, ax, name=shorten_name(name, 22), truth=observed[0]),
    )


def _ridges(pictures: Pictures, law: Any, which: list[int], report: Report, observed: Array) -> str:
    names = [shorten_name(name, 14) for name in report.rows.labels]
    return pictures.draw(
        "Density of the share of each label",
        (2.9, 0.5 + 0.4 * len(which)),
        lambda ax: plots.share_ridges(law, 0, ax, which=which, labels=names, truth=observed),
    )


def _facts(report: Report, row: int) -> str:
    """Values of the most important columns in a row."""
    X, words = report.rows.X, []
    if not hasattr(X, "columns"):
        return ""
    for entry in report.importance[:3]:
        words.append(f"{entry.column} {_cell_words(X[entry.column].iloc[row])}")
    return ", ".join(words)


def _cell_words(value: Any) -> str:
    """A cell of a table in words."""
    if value is None or str(value) in ("nan", "NaT", "<NA>", "None"):
        return "missing"
    if hasattr(value, "strftime"):
        return str(value.strftime("%Y-%m-%d"))
    return number_words(float(value)) if isinstance(value, (float, int, np.number)) else str(value)


def _bars(ax: Any, shares: Array, names: list[str]) -> None:
    plots.label_bars(shares, names, ax, row_names=["surest", "typical", "least sure"])
    ax.get_legend().remove()
    handles, words = ax.get_legend_handles_labels()
    ax.legend(
        handles,
        words,
        loc="upper left",
        bbox_to_anchor=(-0.02, 0.0),
        ncols=3,
        fontsize=9,
        frameon=False,
        labelcolor=plots.style.INK,
        handlelength=1.0,
        columnspacing=1.2,
    )


def _panels(report: Report, pictures: Pictures, which: list[int], names: list[str], rows: Any, title: str) -> str:
    answers, chosen = report.answers, [int(row) for row in rows]
    return pictures.figure(
        title,
        (3.7, (0.42 + 0.2 * len(which)) * len(chosen) + 0.25),
        lambda fig: plots.interval_panels(
            answers.ends[chosen][:, which],
            report.rows.D[chosen][:, which],
            answers.mean[chosen][:, which],
            names,
            range(len(chosen)),
            fig,
            row_names=[report.rows.name(row) for row in chosen],
            columns=1,
        ),
    )


def _curve(report: Report, pictures: Pictures) -> str:
    assert report.trust is not None
    lines, names = [report.trust.curve], ["the model's own"]
    if report.trust.calibrated_curve is not None:
        lines, names = [*lines, report.trust.calibrated_curve], [*names, "calibrated"]
    return pictures.draw(
        "Share of observations inside their interval against the level asked for",
        (3.4, 3.4),
        lambda ax: plots.calibration_curve(LEVELS, np.stack(lines, 1), ax, labels=names, n_rows=len(report.rows)),
    )


def _histogram(pictures: Pictures, name: str, pit: Array, label: int) -> tuple[str, str]:
    def paint(ax: Any) -> None:
        plots.calibration(pit, ax, color=plots.style.label_color(label))
        ax.set_xlabel("")
        ax.set_ylabel("")
        ax.set_xticks([0.0, 0.5, 1.0], ["0", "0.5", "1"])

    return name, pictures.draw(f"Histogram of the probability transform: {name}", (2.2, 1.5), paint)


def _joint(report: Report, pictures: Pictures) -> list[tuple[str, str]]:
    """Histograms of the steps of the joint transform; none for two labels, where the first one says it all."""
    joint, labels = report.answers.joint, report.rows.labels
    if joint is None or len(labels) < 3 or report.trust is None or report.trust.joint is None:
        return []
    names = [labels[0], *(f"{label}, given earlier ones" for label in labels[1:-1])]
    return [_histogram(pictures, name, joint[:, k], k) for k, name in enumerate(names[:MOST_LABELS])]
