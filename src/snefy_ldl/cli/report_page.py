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
from snefy_ldl.cli.common import new_figure, note, training_rows
from snefy_ldl.cli.pictures import Pictures, render_page
from snefy_ldl.errors import InputError, SnefyError
from snefy_ldl.plots.explain import shorten_name
from snefy_ldl.plots.groups import caterpillar, caterpillar_height
from snefy_ldl.plots.votes import plot_calibration
from snefy_ldl.reports import LEVEL, Answers, JudgedRows, Part, Report, Trust, ask
from snefy_ldl.reports.answers import DRAWS
from snefy_ldl.reports.report import LEVELS, judge_coverage, number_words, permutation_importance
from snefy_ldl.reports.scores import FOLDS
from snefy_ldl.votes.scores import CountCalibration, calibrate_counts, noise_ceiling


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
    labels, votes = report.rows.labels, report.rows.counts is not None
    corners = choose_corners(labels, report.rows.D, ternary)
    pictures, counted = Pictures(), _count_calibration(report)
    shown, drawn = draw_rows(report, pictures, corners)
    width = report.answers.width
    page = render_page(
        "report.html",
        report=report,
        labels=labels,
        label_order=label_order(report),
        some_labels=len(label_order(report)) < len(labels),
        votes=votes,
        trust=report.trust,
        level=f"{LEVEL:.0%}",
        table=table,
        title=title or f"How well can {_list(labels)} be predicted?",
        verdict=_verdict(report),
        cards=_cards(report),
        notes=list(notes),
        data_words=_data_words(report),
        rival_words=_rival_words(report),
        carry_words=_carry_words(report),
        ternary=drawn is not None,
        ternary_words=_ternary_words(drawn, labels),
        trust_words=_trust_words(report),
        joint_words=_joint_words(report),
        by_row=_by_row(report),
        ceiling=_ceiling_words(report),
        vote_coverage=[] if counted is None else sorted(counted.coverage.items()),
        shown=shown,
        widths=[width.min(), np.median(width), width.max()],
        pictures=draw_pictures(report, pictures, counted),
        groups=_groups(report, pictures),
        method=_method(report),
        candidates=list(report.model.candidates_) if len(report.model.candidates_) > 1 else [],
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
        better, worse = verdicts.count("better"), verdicts.count("worse")
        rival = f"the {name}" if name.startswith("constant") else name
        if not better and not worse:
            words.append(f"not clearly better or worse than {rival}")
        else:
            parts = [f"{word} than {rival} on {n}" for word, n in (("better", better), ("worse", worse)) if n]
            words.append(" and ".join(parts) + f" of {len(verdicts)} measures")
    sentence = f"The model is {'; it is '.join(words)}."
    if report.trust is None:
        return sentence
    gap = float(report.trust.coverage.mean()) - LEVEL
    if abs(gap) <= max(0.02, 2.0 * np.sqrt(LEVEL * (1.0 - LEVEL) / len(report.rows))):
        return f"{sentence} It is about as sure as it should be."
    if gap > 0:
        return f"{sentence} It is less sure than it could be: its intervals are too wide."
    return f"{sentence} It is too sure: its intervals are too narrow."


def _cards(report: Report) -> list[tuple[str, str]]:
    kl, likelihood = report.line("KL divergence"), report.line("mean log likelihood")
    rows = f"{len(report.rows):,}"
    what = "it" if report.rows.groups is None else "its group"
    seen = f"rows judged, each by one of {report.folds} models that have not seen {what}"
    seen = seen if report.folds else "rows judged"
    cards = [(rows, f"{seen}; the model was fitted to {training_rows(report.model.training_)}")]
    constant = kl.rivals[0]
    words = "KL divergence of the mean, in nats"
    if constant is not None:
        words += f"; the constant mean has {constant.value:.3f}"
    cards.append((f"{kl.value:.3f}", words))
    constant = likelihood.rivals[0]
    what = "votes" if report.rows.counts is not None else "shares"
    words = f"mean log likelihood of the {what}"
    if constant is not None:
        words += f"; one law for all rows gets {constant.value:.2f}"
    cards.append((f"{likelihood.value:.2f}", words))
    if report.trust is not None:
        words = f"of the shares lie inside their {LEVEL:.0%} interval"
        if report.trust.calibrated is not None:
            words += f"; {report.trust.calibrated.mean():.1%} once calibrated"
        cards.append((f"{report.trust.coverage.mean():.1%}", words))
    else:
        counts = report.rows.counts
        assert counts is not None
        cards.append((f"{np.nansum(counts):,.0f}", f"votes, {np.nansum(counts) / len(counts):.1f} per row"))
    return cards


def _data_words(report: Report) -> str:
    mean, zeros = report.rows.D.mean(axis=0), float((report.rows.D == 0.0).mean())
    largest = int(mean.argmax())
    words = f"The largest on average is {report.rows.labels[largest]} ({mean[largest]:.0%})."
    if zeros > 0.0 and report.rows.counts is None:
        words += f" {zeros:.1%} of the shares are exactly zero."
    return words


def _rival_words(report: Report) -> str:
    if not report.trained_here:
        learned = "They learned from the training table."
    elif report.folds:
        learned = f"They, too, learned without the part of the rows that they are judged on ({FOLDS} parts)."
    else:
        learned = f"They learned from these rows, {FOLDS - 1} of {FOLDS} parts at a time; the model from other rows."
    return (
        "Against two simple rivals: the constant mean, one answer for every row, and SA-BFGS, a softmax regression, "
        f"the field's plain workhorse. {learned}"
    )


def _carry_words(report: Report) -> str:
    """How far the data carry: rows per label, and what the last doubling of rows gained the plain regression."""
    rows, doubling = report.rival_rows, report.doubling
    given = report.model.training_.get("given_rows", report.model.training_["rows"])
    verdict = {
        "better": "so more rows of this kind are likely to help further",
        "worse": "so more rows of this kind do not help it",
        "even": "which these rows cannot tell from chance, so more rows of this kind may help it little",
    }[doubling.verdict]
    return (
        f"How far the data carry: {given:,} rows for the model, {given / len(report.rows.labels):,.0f} per label. "
        f"With {rows // 2:,} rows to learn from, SA-BFGS has a KL divergence of {doubling.value:.3f}, with twice as "
        f"many {doubling.value + doubling.mean:.3f} ({doubling.mean:+.3f} ± {doubling.half_width:.3f}), {verdict}."
    )


def _ternary_words(corners: Corners | None, labels: Sequence[str]) -> str:
    if corners is None:
        return "Here is that of one share." if len(labels) == 2 else "Here is that of one share, for three rows."
    names = _list(corners.names)
    if corners.merged:
        words = f"Here it is drawn over all mixes of {names}: the nearer to a corner, the more of it."
        return (
            words if len(labels) == 3 else f"{words} The shares that belong to one corner are added up, which is exact."
        )
    return f"Here it is drawn over the proportions among {names}: the nearer to a corner, the more of it."


def _trust_words(report: Report) -> str:
    trust = report.trust
    if trust is None:
        return ""
    words = f"At {LEVEL:.0%} the model's own intervals hold {trust.coverage.mean():.1%} of the shares"
    if trust.calibrated is None:
        return f"{words}. Fewer than 40 rows are too few to calibrate on one half and judge on the other."
    how = "by the model folder's calibration" if trust.stored else "each half of the rows calibrated on the other half"
    return f"{words}; calibrated ones ({how}) {trust.calibrated.mean():.1%}."


def _by_row(report: Report) -> list[tuple[str, str, str, str]]:
    """How far coverage depends on the row: name, meaning, figure, and what perfect intervals would show."""
    meanings = {
        "worst group": "the lowest coverage among rows with the same largest predicted share",
        "CovGap": "the mean distance from the level among the same groups",
        "SSC": "the lowest coverage among narrow to wide intervals, four groups",
        "FSC": "the lowest coverage among four equal stretches of the first column",
        "worst slab": "the lowest coverage in a tenth of the rows along any direction of what is predicted",
        "ERT": "how well a forest tells from what is predicted which rows are missed; 0 or less is best",
    }
    lines = []
    for row in report.trust.by_row if report.trust is not None else ():
        form = "{:.4f}" if row["part"] == "ERT" else "{:.1%}"
        figure = row["score"] if row["coverage"] is None else row["coverage"]
        lines.append((row["part"], meanings[row["part"]], form.format(figure), form.format(row["expected"])))
    return lines


def _joint_words(report: Report) -> str:
    if report.trust is None or report.trust.joint is None:
        return ""
    test = report.trust.joint
    words = str(test)
    correlation = (
        np.abs(test.correlation - np.eye(len(test.correlation))) if test.correlation.ndim == 2 else np.zeros(1)
    )
    largest = float(np.nanmax(correlation))
    return f"{words[0].upper()}{words[1:]}. The largest rank correlation of two of them is {largest:.2f}."


def _ceiling_words(report: Report) -> str:
    counts = report.rows.counts
    if counts is None or not (np.nansum(counts, axis=1) >= 2).any():
        return ""
    floor = noise_ceiling(counts)
    proportions = np.square(report.rows.D - report.answers.mean).sum(axis=1).mean()
    return (
        "The measures compare with proportions of few votes, which scatter by themselves: the mean squared distance is "
        f"{proportions:.3f}, of which about {floor.squared_error:.3f} is noise that no prediction can avoid."
    )


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
    effects, shares = report.model.group_effects_, report.group_shares
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
    order = label_order(report)
    return {
        "words": f"The model was fitted to rows of {_list(counted) if len(counted) > 1 else counted[0]}.",
        "columns": columns,
        "lines": [(report.rows.labels[r], numbers[:, r].tolist()) for r in order],
        "pictures": drawn,
    }


def density_words(model: Any) -> list[str]:
    """Which density was taken and why, in sentences; none where nothing was compared and nothing asked for.

    Args:
        model: Fitted.

    Returns:
        Sentences.
    """
    choice = model.density_choice_
    if choice is None:
        return []
    lines = [f"Density {choice['kept']}: {choice['reason']}."]
    if choice["log_likelihood"] is not None:
        each = ", ".join(f"{name} {value:.3f}" for name, value in choice["log_likelihood"].items())
        lines.append(
            f"Mean log likelihood of {choice['rows']:,} rows, each left out of the fit that judged it: {each}."
        )
    lines += [f"What {name} answers: {words}." for name, words in choice["answers"].items()]
    return lines


def _method(report: Report) -> list[str]:
    model, training = report.model, report.model.training_
    if hasattr(model, "net_"):
        what = f"{training['epochs']} epochs, {model.net_.n_members} network(s)"
    else:
        what = f"a log-ratio density of {len(model.centre_)} member(s), {training['epochs']} steps"
    lines = [f"The model: {training['rows']:,} rows, {what}, {training['seconds']:.1f} s."]
    lines += density_words(model)
    if report.folds:
        rows = "rows" if report.rows.groups is None else "groups"
        lines.append(
            f"The model's settings were fitted anew {report.folds} times, each time "
            f"without one part of the {rows}, and judged on that part. What is judged is how well these "
            "settings do, not the saved model itself."
        )
    exact = "Intervals and densities are exact, without sampling."
    if not hasattr(model, "net_"):
        exact = "Densities are exact; means, intervals and coverage are by 4,096 quasi-random draws per row."
    elif report.law_of(report.shown[0]).moves:  # each row has components of its own
        exact = f"Densities are exact; intervals and coverage are by {DRAWS} draws per row."
    lines.append(f"Rows count from 1, the first one that has labels. {exact}")
    lines.append(
        "Importance: one shuffle per column, on at most 8,000 predictions in all. Groups: Welch's test of the KL "
        "divergence, times the number of groups."
    )
    return lines


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
        except SnefyError:
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
    X, words = report.rows.features, []
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
    trust = report.trust
    assert trust is not None
    return pictures.draw(
        "Share of observations inside their interval against the level asked for",
        (3.4, 3.4),
        lambda ax: _coverage_curves(trust, len(report.rows), ax),
    )


def _coverage_curves(trust: Trust, n_rows: int, ax: Any) -> None:
    """Coverage against its level: the model's own intervals, and calibrated ones where there are any."""
    lines = {"the model's own": trust.curve, "calibrated": trust.calibrated_curve}
    shown = {name: line for name, line in lines.items() if line is not None}
    plots.calibration_curve(LEVELS, np.stack(list(shown.values()), 1), ax, labels=list(shown), n_rows=n_rows)


def _histogram(pictures: Pictures, name: str, pit: Array, label: int) -> tuple[str, str]:
    def paint(ax: Any) -> None:
        plots.calibration(pit, ax, color=plots.style.label_color(label))
        ax.set_xlabel("")
        ax.set_ylabel("")
        ax.set_xticks([0.0, 0.5, 1.0], ["0", "0.5", "1"])

    return name, pictures.draw(f"Histogram of the probability transform: {name}", (2.2, 1.5), paint)


def _joint(report: Report, pictures: Pictures) -> list[tuple[str, str]]:
    """Histograms of the steps of the joint transform; none for two labels, where the first one is enough."""
    joint, labels = report.answers.joint, report.rows.labels
    if joint is None or len(labels) < 3 or report.trust is None or report.trust.joint is None:
        return []
    names = [labels[0], *(f"{label}, given earlier ones" for label in labels[1:-1])]
    return [_histogram(pictures, name, joint[:, k], k) for k, name in enumerate(names[:MOST_LABELS])]


@dataclass(frozen=True)
class Painter:
    """Draws one kind of picture of a model on rows with known labels.

    Args:
        model: A fitted model.
        rows: The rows.
        chosen: Numbers of the rows that kinds about single rows draw.
        corners: Text of ``--ternary``, or None.
    """

    model: Any
    rows: JudgedRows
    chosen: list[int]
    corners: str | None

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

    @property
    def _parts(self) -> list[Part]:
        return [Part(self.model, np.arange(len(self.rows)))]

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
        plots.interval_panels(
            ends, few.D, mean, few.labels, range(len(few)), figure, row_names=few.names, columns=across
        )
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
        figure = new_figure(2.7 * -(-panels // down), 2.4 * down + 0.4)
        plots.joint_calibration(joint, figure, labels=self.rows.labels)
        return figure

    def _importance(self) -> Any:
        columns = permutation_importance(self._parts, self.rows, ask(self._parts, self.rows))
        names, losses, errors = zip(*((one.column, one.loss, one.std_error) for one in columns))
        figure = new_figure(5.5, 0.9 + 0.27 * min(20, len(names)))
        plots.importance(names, losses, errors, figure.add_subplot(), most=20)
        return figure
