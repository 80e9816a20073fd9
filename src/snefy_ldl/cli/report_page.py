"""The page of a report: one HTML file that holds its own pictures and needs no network."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from snefy_ldl._internal.text import shorten
from snefy_ldl._internal.version import __version__
from snefy_ldl.cli.common import training_rows
from snefy_ldl.cli.pictures import Pictures, color_variables
from snefy_ldl.cli.report_pictures import Corners, choose_corners, draw_pictures, draw_rows, label_order
from snefy_ldl.reports import LEVEL, Report
from snefy_ldl.reports.answers import DRAWS
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
    try:
        import jinja2  # an extra, like the library of the pictures
    except ImportError:
        raise ImportError("a report needs jinja2 and matplotlib: pip install 'snefy-ldl[plot]'") from None
    labels, votes = report.rows.labels, report.rows.counts is not None
    corners = choose_corners(labels, report.rows.D, ternary)
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("snefy_ldl.cli"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
    )
    pictures, counted = Pictures(), _count_calibration(report)
    shown, drawn = draw_rows(report, pictures, corners)
    width = report.answers.width
    page: str = environment.get_template("report.html").render(
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
        ternary=drawn is not None,
        ternary_words=_ternary_words(drawn, labels),
        trust_words=_trust_words(report),
        joint_words=_joint_words(report),
        ceiling=_ceiling_words(report),
        vote_coverage=[] if counted is None else sorted(counted.coverage.items()),
        shown=shown,
        widths=[width.min(), np.median(width), width.max()],
        pictures=draw_pictures(report, pictures, counted),
        method=_method(report),
        candidates=report.model.candidates_ if len(report.model.candidates_) > 1 else [],
        commands=list(commands),
        colors=color_variables(),
        version=__version__,
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
    seen = f"rows judged, each by one of {report.folds} models that have not seen it" if report.folds else "rows judged"
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
        cards.append((f"{np.nansum(counts):,.0f}", f"votes, {np.nansum(counts) / len(counts):.1f} a row"))
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
        learned = (
            f"They learned from these rows, {FOLDS - 1} parts of {FOLDS} for the rest; the model from rows of its own."
        )
    return (
        "Against two simple rivals: the constant mean, one answer for every row, and SA-BFGS, a softmax regression, "
        f"the field's plain workhorse. {learned}"
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


def _method(report: Report) -> list[str]:
    training = report.model.training_
    lines = [
        f"The model: {training['rows']:,} rows, {training['epochs']} epochs, {report.model.net_.n_members} network(s), "
        f"{training['seconds']:.1f} s."
    ]
    if report.folds:
        lines.append(
            f"The model's settings were fitted anew {report.folds} times, each time "
            "without one part of the rows, and judged on that part. What is judged is how well these "
            "settings do, not the saved model itself."
        )
    exact = "Intervals and densities are exact, without sampling."
    if report.law_of(report.shown[0]).moves:  # each row has components of its own
        exact = f"Densities are exact; intervals and coverage are by {DRAWS} draws a row."
    lines.append(f"Rows count from 1, the first one that has labels. {exact}")
    lines.append(
        "Importance: one shuffle a column, on at most 8,000 predictions in all. Groups: Welch's test of the KL "
        "divergence, times the number of groups."
    )
    return lines
