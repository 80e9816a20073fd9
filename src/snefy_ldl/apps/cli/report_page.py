"""The page of a report, one HTML file that needs no network, and its pictures, which ``plot`` draws one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from snefy_ldl import plots
from snefy_ldl._internal.text import shorten
from snefy_ldl._internal.types import Array
from snefy_ldl.apps.cli.common import new_figure, note, training_rows
from snefy_ldl.apps.cli.pictures import Pictures, render_page
from snefy_ldl.apps.reports import LEVEL, Answers, JudgedRows, Part, Report, Trust, ask
from snefy_ldl.apps.reports.report import LEVELS, judge_coverage, number_words, permutation_importance
from snefy_ldl.apps.reports.scores import FOLDS
from snefy_ldl.errors import InputError, SnefyError
from snefy_ldl.explain import Importances
from snefy_ldl.plots.groups import caterpillar, caterpillar_height
from snefy_ldl.plots.style import shorten_name
from snefy_ldl.plots.votes import plot_calibration
from snefy_ldl.votes.scores import CountCalibration, calibrate_counts, noise_ceiling

#: Labels that have a ridge, an interval or a histogram, at most.
MOST_LABELS = 8
#: Grid steps along a side of a triangle: enough for a picture of this size.
RESOLUTION = 72
#: What a shuffled column costs.
IMPORTANCE_WORDS = "log likelihood lost, in nats per row"
#: What the three rows are called that return through the page.
TITLES = ("The surest row", "A typical row", "The least sure row")


def render_report(
    report: Report,
    *,
    table: str,
    title: str | None = None,
    ternary: str | None = None,
    notes: Sequence[str] = (),
    commands: Sequence[str] = (),
) -> str:
    """The page as text.

    Args:
        report: The figures.
        table: Name of the judged table.
        title: Headline; made of the labels by default.
        ternary: Three labels or groups for the triangles, "A,B,C" or "A+B,C,D"; by default the two largest and
            the rest.
        notes: What a reader should know first.
        commands: How the page was made, and what to do next.

    Returns:
        One HTML document.

    Raises:
        ImportError: jinja2, matplotlib or mpltern is not installed.
        InputError: ``ternary`` names no three labels or groups.
    """
    labels, counts, model = report.rows.labels, report.rows.counts, report.model
    wanted = choose_corners(labels, report.rows.D, ternary)
    pictures, counted = Pictures(), _count_calibration(report)
    shown, corners = draw_rows(report, pictures, wanted)
    width, mean = report.answers.width, report.rows.D.mean(axis=0)
    joint = None if report.trust is None else report.trust.joint
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
        verdict=_verdict(report),
        notes=list(notes),
        largest=(labels[int(mean.argmax())], float(mean.max())),
        zeros=float((report.rows.D == 0.0).mean()),
        rival_folds=FOLDS,
        kl=report.line("KL divergence"),
        likelihood=report.line("mean log likelihood"),
        fitted_to=training_rows(model.training_),
        given=model.training_.get("given_rows", model.training_["rows"]),
        corners=corners,
        corner_words="" if corners is None else _list(corners.names),
        joint=joint,
        largest_correlation=None if joint is None else _largest_correlation(joint.correlation),
        squared_error=float(np.square(report.rows.D - report.answers.mean).sum(axis=1).mean()),
        noise=noise_ceiling(counts).squared_error if several_votes else None,
        vote_coverage=[] if counted is None else sorted(counted.coverage.items()),
        shown=shown,
        widths=[width.min(), np.median(width), width.max()],
        pictures=draw_pictures(report, pictures, counted),
        groups=_groups(report, pictures),
        model=model,
        is_network=hasattr(model, "net_"),
        choice=model.training_.get("choice"),
        candidates=getattr(model, "candidates_", []),
        commands=list(commands),
    )
    return page.lstrip()


def _list(names: Sequence[str]) -> str:
    """Names as one says them, the first few of many."""
    if len(names) > 5:
        return shorten(list(names), 4)
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _verdict(report: Report) -> str:
    """How the model compares, in one sentence, and whether it is as sure as it should be in another."""
    words = []
    for k, name in enumerate(report.rivals):
        lines = [line.rivals[k] for line in report.scores[:6]]
        verdicts = [line.verdict for line in lines if line is not None]
        rival = f"the {name}" if name.startswith("constant") else name
        counts = [(word, verdicts.count(word)) for word in ("better", "worse")]
        parts = [f"{word} than {rival} on {n}" for word, n in counts if n]
        each = f"{' and '.join(parts)} of {len(verdicts)} measures"
        words.append(each if parts else f"not clearly better or worse than {rival}")
    sentence = f"The model is {'; it is '.join(words)}."
    if report.trust is None:
        return sentence
    gap = float(report.trust.coverage.mean()) - LEVEL
    if abs(gap) <= max(0.02, 2.0 * np.sqrt(LEVEL * (1.0 - LEVEL) / len(report.rows))):
        return f"{sentence} It is about as sure as it should be."
    if gap > 0:
        return f"{sentence} It is less sure than it could be: its intervals are too wide."
    return f"{sentence} It is too sure: its intervals are too narrow."


def _largest_correlation(correlation: Any) -> float:
    """The largest rank correlation of two steps of the joint transform; 0 where there is one step."""
    if correlation.ndim < 2:
        return 0.0
    return float(np.nanmax(np.abs(correlation - np.eye(len(correlation)))))


def _count_calibration(report: Report) -> CountCalibration | None:
    """Calibration of numbers of votes: the mean of the parts, weighted by their rows."""
    counts = report.rows.counts
    if counts is None:
        return None
    made = []
    for part in report.parts:
        law = part.model.predict_dist(report.rows.pick(part.rows).X)
        made.append((len(part.rows), calibrate_counts(law, counts[part.rows])))
    total = sum(n for n, _ in made)
    histogram = sum(n / total * one.histogram for n, one in made)
    coverage = {level: sum(n / total * one.coverage[level] for n, one in made) for level in made[0][1].coverage}
    return CountCalibration(np.asarray(histogram), coverage, sum(n / total * one.error for n, one in made))


def _groups(report: Report, pictures: Pictures) -> dict[str, Any] | None:
    """What groups explain: words, a table of shares of the variance, and the effects of each level's groups."""
    if report.group_shares is None:
        return None
    effects, shares = getattr(report.model, "group_effects_", None), report.group_shares
    columns = list(dict.fromkeys(shares["level"]))
    numbers = shares[["share", "low", "high"]].to_numpy().reshape(len(columns), -1, 3)
    counted = [f"{len(names):,} groups ({level})" for level, names in zip(effects.levels, effects.names)]
    drawn = []
    for number, level in enumerate(effects.levels):
        most = np.sort(np.argsort(-numbers[number, :, 0], kind="stable")[:3]).tolist()
        for label in most:
            picture = pictures.draw(
                f"Effect of each {level} on {report.rows.labels[label]}",
                (2.5, caterpillar_height(len(effects.names[number]))),
                partial(caterpillar, effects, label, level=number),
            )
            drawn.append((f"{report.rows.labels[label]} by {level}", picture))
    return {
        "words": f"The model was fitted to rows of {_list(counted) if len(counted) > 1 else counted[0]}.",
        "columns": columns,
        "lines": [(report.rows.labels[r], numbers[:, r].tolist()) for r in label_order(report)],
        "pictures": drawn,
    }


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
    rows, answers, which = report.rows, report.answers, label_order(report)
    names = [shorten_name(rows.labels[r], 16) for r in which]
    shares, order = rows.D[:, which], np.argsort(answers.width, kind="stable")

    def panels(title: str, chosen: Any) -> str:
        ends, observed, mean = (table[chosen][:, which] for table in (answers.ends, rows.D, answers.mean))
        places = range(len(chosen))
        titles = [rows.name(int(row)) for row in chosen]
        return pictures.figure(
            title,
            (3.7, (0.42 + 0.2 * len(which)) * len(chosen) + 0.25),
            lambda fig: plots.interval_panels(ends, observed, mean, names, places, fig, row_names=titles, columns=1),
        )

    made: dict[str, Any] = {
        "ranges": pictures.draw(
            "How the shares of each label spread over the rows",
            (4.2, 0.7 + 0.34 * len(which)),
            lambda ax: plots.share_ranges(shares, names, ax),
        ),
        "bars": pictures.draw(
            "Observed shares of three rows", (4.2, 1.7), lambda ax: _bars(ax, shares[report.shown], names)
        ),
        "importance": pictures.draw(
            "Likelihood lost when a column is shuffled",
            (3.6, 0.7 + 0.25 * min(12, len(report.importance))),
            lambda ax: Importances(report.importance, IMPORTANCE_WORDS).plot(ax),
        ),
        "surest": panels("The surest rows", order[:3]),
        "least_sure": panels("The least sure rows", order[::-1][:3]),
    }
    if votes is not None:
        made["votes"] = pictures.draw("Where numbers of votes fall", (3.8, 2.5), lambda ax: plot_calibration(votes, ax))
    trust, joint = report.trust, answers.joint
    if trust is not None and answers.pit is not None:
        made["curve"] = pictures.draw(
            "Share of observations inside their interval against the level asked for",
            (3.4, 3.4),
            lambda ax: _coverage_curves(trust, len(rows), ax),
        )
        made["pit"] = [_histogram(pictures, rows.labels[r], answers.pit[:, r], r) for r in which]
        made["joint"] = []
        if joint is not None and trust.joint is not None and len(rows.labels) > 2:  # of two, the first one is enough
            steps = [rows.labels[0], *(f"{label}, given earlier ones" for label in rows.labels[1:-1])]
            steps = steps[:MOST_LABELS]
            made["joint"] = [_histogram(pictures, name, joint[:, k], k) for k, name in enumerate(steps)]
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
    which, laws = label_order(report), [report.dist_of(row) for row in report.shown]
    names = [shorten_name(name, 14) for name in report.rows.labels]
    if corners is not None:
        corners = possible_corners(corners, laws[0], report.rows)

    def density(law: Any, observed: Array, title: str) -> str:
        if corners is None:
            name = report.rows.labels[0]
            words = {"name": shorten_name(name, 22), "truth": observed[0]}
            draw = partial(plots.marginal_density, law, 0, 0, **words)
            return pictures.draw(f"Density of the share of {name}", (2.9, 1.9), draw)
        draw = partial(
            plots.ternary_density,
            corners.law(law),
            labels=[shorten_name(name, 18) for name in corners.names],
            truth=corners.shares(observed),
            resolution=RESOLUTION,
        )
        title = f"{title}: density over all mixes of {', '.join(corners.names)}"
        return pictures.draw(title, (2.9, 2.9), draw, "ternary")

    def ridges(law: Any, observed: Array) -> str:
        draw = partial(plots.share_ridges, law, 0, which=which, labels=names, truth=observed)
        return pictures.draw("Density of the share of each label", (2.9, 0.5 + 0.4 * len(which)), draw)

    rows = [
        {
            "title": title,
            "name": report.rows.name(row),
            "facts": _facts(report, row),
            "density": density(law, report.rows.D[row], title),
            "ridges": ridges(law, report.rows.D[row]),
        }
        for title, row, law in zip(TITLES, report.shown, laws)
    ]
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
        except SnefyError:
            continue
        return one
    return None


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


def _bars(ax: Any, shares: Array, names: list[str]) -> None:
    plots.label_bars(shares, names, ax, row_names=["surest", "typical", "least sure"])
    look: dict[str, Any] = {"fontsize": 9, "frameon": False, "handlelength": 1.0, "columnspacing": 1.2}
    ax.legend(loc="upper left", bbox_to_anchor=(-0.02, 0.0), ncols=3, labelcolor=plots.style.INK, **look)


def _coverage_curves(trust: Trust, n_rows: int, ax: Any) -> None:
    """Coverage against its level: the model's own intervals, and calibrated ones where there are any."""
    lines = {"the model's own": trust.curve, "calibrated": trust.calibrated_curve}
    shown = {name: line for name, line in lines.items() if line is not None}
    plots.calibration_curve(LEVELS, np.stack(list(shown.values()), 1), ax, labels=list(shown), n_rows=n_rows)


def _histogram(pictures: Pictures, name: str, pit: Array, label: int) -> tuple[str, str]:
    def paint(ax: Any) -> None:
        plots.calibration(pit, ax, color=plots.style.label_color(label))
        ax.set(xlabel="", ylabel="")
        ax.set_xticks([0.0, 0.5, 1.0], ["0", "0.5", "1"])

    return name, pictures.draw(f"Histogram of the probability transform: {name}", (2.2, 1.5), paint)


class Painter:
    """Draws one kind of picture of a model on rows with known labels.

    Args:
        model: A fitted model.
        rows: The rows.
        chosen: Numbers of the rows that kinds about single rows draw.
        corners: Text of ``--ternary``, or None.
    """

    def __init__(self, model: Any, rows: JudgedRows, chosen: list[int], corners: str | None) -> None:
        self.model, self.rows, self.chosen, self.corners = model, rows, chosen, corners
        self._parts = [Part(model, np.arange(len(rows)))]

    def figure(self, kind: str) -> Any:
        """The picture of one kind.

        Args:
            kind: "ternary", "marginals", "intervals", "shares", "calibration", "pit", "joint" or "importance".

        Returns:
            A figure of matplotlib.

        Raises:
            InputError: There is no such picture of this model or these rows.
            ImportError: matplotlib or mpltern is not installed.
        """
        return getattr(self, f"_{kind}")()

    def _share_answers(self) -> Answers:
        answers = ask(self._parts, self.rows)
        if answers.pit is None:
            raise InputError("calibration of shares needs shares; votes do not show those behind them.")
        return answers

    def _grid(self, panels: int, most: int, width: float, height: float) -> tuple[Any, int, int]:
        """A figure, and how many panels go down and across."""
        across = min(most, panels)
        down = -(-panels // across)
        return new_figure(width * across, height * down), down, across

    def _ternary(self) -> Any:
        wanted = choose_corners(self.rows.labels, self.rows.D, self.corners)
        if wanted is None:
            raise InputError("a triangle needs three labels; draw marginals instead: snefy-ldl plot marginals.")
        law = self.model.predict_dist(self.rows.pick(self.chosen).X)
        corners = possible_corners(wanted, law, self.rows)
        if corners is None:
            raise InputError("this model has no density of three labels; draw marginals: snefy-ldl plot marginals.")
        if corners is not wanted:
            lacks, three = "this model has no density of sums of labels", ",".join(corners.names)
            if self.corners is not None:
                raise InputError(
                    f"--ternary {self.corners}: {lacks}. Name three single labels, for example --ternary {three}."
                )
            note(f"{lacks}, so {three} are drawn among themselves; --ternary A,B,C picks other labels")
        figure, down, across = self._grid(len(self.chosen), 3, 4.0, 4.0)
        import mpltern  # noqa: F401 - an extra, which registers the projection

        law = corners.law(law)
        for place, row in enumerate(self.chosen):
            ax = figure.add_subplot(down, across, place + 1, projection="ternary")
            truth, title = corners.shares(self.rows.D[row]), self.rows.name(row)
            plots.ternary_density(law, ax, row=place, labels=corners.names, truth=truth, title=title)
        return figure

    def _marginals(self) -> Any:
        figure, down, across = self._grid(len(self.chosen), 2, 4.4, 0.9 + 0.44 * len(self.rows.labels))
        law = self.model.predict_dist(self.rows.pick(self.chosen).X)
        for place, row in enumerate(self.chosen):
            ax = figure.add_subplot(down, across, place + 1)
            plots.share_ridges(law, place, ax, labels=self.rows.labels, truth=self.rows.D[row])
            ax.set_title(self.rows.name(row), fontsize=10, color=plots.style.INK, loc="left")
        return figure

    def _intervals(self) -> Any:
        few = self.rows.pick(self.chosen)
        across = min(3, len(few))
        figure = new_figure(1.4 + 1.9 * across, (0.5 + 0.22 * len(few.labels)) * -(-len(few) // across) + 0.3)
        ends, mean = self.model.predict_interval(few.X, LEVEL), np.asarray(self.model.predict(few.X))
        chosen = range(len(few))
        plots.interval_panels(ends, few.D, mean, few.labels, chosen, figure, row_names=few.names, columns=across)
        return figure

    def _shares(self) -> Any:
        figure = new_figure(5.5, 0.9 + 0.34 * len(self.rows.labels))
        plots.share_ranges(self.rows.D, self.rows.labels, figure.add_subplot())
        return figure

    def _calibration(self) -> Any:
        figure = new_figure(4.4, 4.4)
        trust = judge_coverage(self._parts, self.rows, self._share_answers())
        assert trust is not None
        _coverage_curves(trust, len(self.rows), figure.add_subplot())
        return figure

    def _pit(self) -> Any:
        labels, pit = self.rows.labels, self._share_answers().pit
        assert pit is not None
        figure, down, across = self._grid(len(labels), 3, 2.6, 2.3)
        for r, name in enumerate(labels):
            ax = figure.add_subplot(down, across, r + 1)
            plots.calibration(pit[:, r], ax, color=plots.style.label_color(r))
            ax.set_title(name, fontsize=10, color=plots.style.INK, loc="left")
            ax.set_xlabel("predicted probability of less" if r >= len(labels) - across else "")
            ax.set_ylabel("observed / expected" if r % across == 0 else "")
        return figure

    def _joint(self) -> Any:
        joint = self._share_answers().joint
        if joint is None:
            raise InputError("this model's laws have no joint transform.")
        panels = min(len(self.rows.labels), 12)
        down = -(-panels // 4)
        return plots.joint_calibration(
            joint, new_figure(2.7 * -(-panels // down), 2.4 * down + 0.4), labels=self.rows.labels
        )

    def _importance(self) -> Any:
        columns = permutation_importance(self._parts, self.rows, ask(self._parts, self.rows))
        figure = new_figure(5.5, 0.9 + 0.27 * min(20, len(columns)))
        Importances(columns, IMPORTANCE_WORDS).plot(figure.add_subplot(), most=20)
        return figure
