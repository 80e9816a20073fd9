"""The command ``plot``: one picture of a model on a table, as a PNG, SVG or PDF file."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from snefy_ldl.cli.common import (
    VOTE_COLUMNS,
    BackboneCode,
    Counts,
    Features,
    IdColumn,
    KnownForm,
    Labels,
    ModelFolder,
    Normalize,
    TableFile,
    VoteColumns,
    VoteFile,
    load_model,
    not_an_input,
    note,
    say,
    split,
)
from snefy_ldl.cli.model_tables import no_table_notes
from snefy_ldl.cli.reader import Source
from snefy_ldl.cli.report import judged_rows

if TYPE_CHECKING:
    from snefy_ldl.cli.report_pictures import Corners
    from snefy_ldl.estimator import SnefyLDL
    from snefy_ldl.reports import Answers, JudgedRows


#: Each kind of picture, and what it shows.
KINDS = {
    "ternary": "density over all mixes of three labels or groups",
    "marginals": "density of each label's share",
    "intervals": "interval of each label, a panel a row",
    "shares": "how the shares of each label spread over the rows",
    "calibration": "coverage against the level asked for",
    "pit": "histograms of the probability transform",
    "joint": "joint calibration of all shares",
    "importance": "what shuffling each column costs",
}
#: Kinds that draw some rows, and how many by default.
ROW_KINDS = {"ternary": 1, "marginals": 1, "intervals": 12}
ENDINGS = (".png", ".svg", ".pdf")

EXAMPLES = """Density of the rows 3 and 8 over three groups of labels:
  snefy-ldl plot ternary model test.csv --rows 3,8 --ternary sand,silt+loam,clay --out rows.png

Which columns matter:
  snefy-ldl plot importance model test.csv --out columns.svg
"""


def plot(
    kind: Annotated[str, typer.Argument(metavar="KIND", help=f"One of: {', '.join(KINDS)}.")],
    model: ModelFolder,
    table: TableFile,
    out: Annotated[Path, typer.Option(help="File to write: .png, .svg or .pdf.")],
    rows: Annotated[
        str | None, typer.Option(metavar="1,5,9", help="Rows to draw, the first one is 1; of ternary, up to 6.")
    ] = None,
    ternary: Annotated[
        str | None, typer.Option(metavar="A,B,C", help="Labels at the corners, or groups of them: A+B,C,D.")
    ] = None,
    dpi: Annotated[int, typer.Option(min=30, max=1200, help="Dots an inch of a PNG file.")] = 150,
    labels: Labels = None,
    features: Features = None,
    counts: Counts = False,
    votes: KnownForm = "auto",
    vote_file: VoteFile = None,
    columns: VoteColumns = VOTE_COLUMNS,
    id_name: IdColumn = None,
    normalize: Normalize = False,
    backbone: BackboneCode = None,
) -> None:
    """Draw one picture of a model on a table whose labels are known: a density, intervals, calibration, ..."""
    from snefy_ldl._internal.files import write_bytes
    from snefy_ldl.errors import InputError

    if kind not in KINDS:
        raise typer.BadParameter(f"there is no picture {kind!r}; use one of {', '.join(KINDS)}.")
    if out.suffix.lower() not in ENDINGS or out.is_dir():
        raise InputError(f"--out {out}: name a file that ends in {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}.")
    not_an_input("--out", out, table)
    fitted = load_model(model, backbone)
    form = "counts" if counts else votes
    judged = judged_rows(fitted, Source(table, labels, features, form, vote_file, columns, id_name, normalize))
    chosen = _chosen(rows, kind, len(judged))
    with no_table_notes():
        figure = _Painter(fitted, judged, chosen, ternary).figure(kind)
    content = io.BytesIO()
    figure.savefig(content, format=out.suffix[1:].lower(), dpi=dpi, bbox_inches="tight", pad_inches=0.08)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(out, content.getvalue())
    say(f"{KINDS[kind]}: {out}", "green")


def _chosen(text: str | None, kind: str, n_rows: int) -> list[int]:
    """Numbers of the rows to draw, counted from 0."""
    from snefy_ldl.errors import InputError

    if text is None:
        return list(range(min(ROW_KINDS.get(kind, 0), n_rows)))
    if kind not in ROW_KINDS:
        raise InputError(f"--rows {text}: {kind} is about all rows; it goes with {', '.join(ROW_KINDS)}.")
    chosen = []
    for word in split(text):
        if not word.isdigit() or not 1 <= int(word) <= n_rows:
            raise InputError(f"--rows {text}: {word!r} is no row; they are numbered from 1 to {n_rows}.")
        chosen.append(int(word) - 1)
    if kind == "ternary" and len(chosen) > 6:
        raise InputError(f"--rows {text}: a picture holds up to 6 triangles.")
    return chosen


@dataclass
class _Painter:
    """Draws one kind of picture on a figure of its own."""

    model: SnefyLDL
    rows: JudgedRows
    chosen: list[int]
    corners: str | None

    def figure(self, kind: str) -> Any:
        """The picture of one kind."""
        try:
            from matplotlib.figure import Figure  # an extra, loaded with the first picture
        except ImportError:
            raise ImportError("pictures need matplotlib and mpltern: pip install 'snefy-ldl[plot]'") from None
        size, paint = getattr(self, f"_{kind}")()
        figure = Figure(figsize=size, layout="constrained")
        paint(figure)
        return figure

    def _answers(self) -> Answers:
        import numpy as np

        from snefy_ldl.reports import Part, ask

        return ask([Part(self.model, np.arange(len(self.rows)))], self.rows)

    def _law(self) -> Any:
        return self.model.predict_dist(self.rows.pick(self.chosen).X)

    def _ternary(self) -> tuple[tuple[float, float], Callable[[Any], Any]]:
        from snefy_ldl import plots
        from snefy_ldl.cli.report_pictures import choose_corners, possible_corners
        from snefy_ldl.errors import InputError

        wanted: Corners | None = choose_corners(self.rows.labels, self.rows.D, self.corners)
        if wanted is None:
            raise InputError("a triangle needs three labels; draw marginals instead: snefy-ldl plot marginals.")
        law = self._law()
        corners = possible_corners(wanted, law, self.rows)
        if corners is None:
            raise InputError("this model has no density of three labels; draw marginals: snefy-ldl plot marginals.")
        if corners is not wanted:
            lacks, three = "this model has no density of sums of labels", ",".join(corners.names)
            if self.corners is not None:
                raise InputError(f"--ternary {self.corners}: {lacks}. Name three single labels, --ternary {three} say.")
            note(f"{lacks}, so {three} are drawn among themselves; --ternary A,B,C picks other labels")
        law = corners.law(law)
        across = min(3, len(self.chosen))
        down = -(-len(self.chosen) // across)

        def paint(figure: Any) -> None:
            import mpltern  # noqa: F401 - an extra, which registers the projection

            for place, row in enumerate(self.chosen):
                ax = figure.add_subplot(down, across, place + 1, projection="ternary")
                truth = corners.shares(self.rows.D[row])
                title = self.rows.name(row)
                plots.ternary_density(law, ax, row=place, labels=corners.names, truth=truth, title=title)

        return (4.0 * across, 4.0 * down), paint

    def _marginals(self) -> tuple[tuple[float, float], Callable[[Any], Any]]:
        from snefy_ldl import plots

        law = self._law()
        across = min(2, len(self.chosen))
        down = -(-len(self.chosen) // across)

        def paint(figure: Any) -> None:
            for place, row in enumerate(self.chosen):
                ax = figure.add_subplot(down, across, place + 1)
                plots.share_ridges(law, place, ax, labels=self.rows.labels, truth=self.rows.D[row])
                ax.set_title(self.rows.name(row), fontsize=10, color=plots.style.INK, loc="left")

        return (4.4 * across, (0.9 + 0.44 * len(self.rows.labels)) * down), paint

    def _intervals(self) -> tuple[tuple[float, float], Callable[[Any], Any]]:
        import numpy as np

        from snefy_ldl import plots
        from snefy_ldl.reports import LEVEL

        few = self.rows.pick(self.chosen)
        ends, mean = self.model.predict_interval(few.X, LEVEL), np.asarray(self.model.predict(few.X))
        across, names = min(3, len(few)), few.names
        height = (0.5 + 0.22 * len(few.labels)) * -(-len(few) // across) + 0.3

        def paint(figure: Any) -> None:
            plots.interval_panels(
                ends, few.D, mean, few.labels, range(len(few)), figure, row_names=names, columns=across
            )

        return (1.4 + 1.9 * across, height), paint

    def _shares(self) -> tuple[tuple[float, float], Callable[[Any], Any]]:
        from snefy_ldl import plots

        size = (5.5, 0.9 + 0.34 * len(self.rows.labels))
        return size, lambda figure: plots.share_ranges(self.rows.D, self.rows.labels, figure.add_subplot())

    def _calibration(self) -> tuple[tuple[float, float], Callable[[Any], Any]]:
        import numpy as np

        from snefy_ldl import plots
        from snefy_ldl.reports import Part, judge_coverage
        from snefy_ldl.reports.report import LEVELS

        trust = judge_coverage([Part(self.model, np.arange(len(self.rows)))], self.rows, self._shares_only())
        assert trust is not None
        lines = {"the model's own": trust.curve, "calibrated": trust.calibrated_curve}
        shown = {name: line for name, line in lines.items() if line is not None}

        def paint(figure: Any) -> None:
            curves = np.stack(list(shown.values()), 1)
            plots.calibration_curve(LEVELS, curves, figure.add_subplot(), labels=list(shown), n_rows=len(self.rows))

        return (4.4, 4.4), paint

    def _shares_only(self) -> Answers:
        from snefy_ldl.errors import InputError

        answers = self._answers()
        if answers.pit is None:
            raise InputError("calibration of shares needs shares; votes do not show those behind them.")
        return answers

    def _pit(self) -> tuple[tuple[float, float], Callable[[Any], Any]]:
        from snefy_ldl import plots

        pit = self._shares_only().pit
        assert pit is not None
        across = min(3, len(self.rows.labels))
        down = -(-len(self.rows.labels) // across)

        def paint(figure: Any) -> None:
            for r, name in enumerate(self.rows.labels):
                ax = figure.add_subplot(down, across, r + 1)
                plots.calibration(pit[:, r], ax, color=plots.style.label_color(r))
                ax.set_title(name, fontsize=10, color=plots.style.INK, loc="left")
                ax.set_xlabel("predicted probability of less" if r >= len(self.rows.labels) - across else "")
                ax.set_ylabel("observed / expected" if r % across == 0 else "")

        return (2.6 * across, 2.3 * down), paint

    def _joint(self) -> tuple[tuple[float, float], Callable[[Any], Any]]:
        from snefy_ldl import plots
        from snefy_ldl.errors import InputError

        joint = self._shares_only().joint
        if joint is None:
            raise InputError("this model's laws have no joint transform.")
        panels = min(len(self.rows.labels), 12)
        down = -(-panels // 4)
        size = (2.7 * -(-panels // down), 2.4 * down + 0.4)
        return size, lambda figure: plots.joint_calibration(joint, figure, labels=self.rows.labels)

    def _importance(self) -> tuple[tuple[float, float], Callable[[Any], Any]]:
        import numpy as np

        from snefy_ldl import plots
        from snefy_ldl.reports import Part, permutation_importance

        columns = permutation_importance([Part(self.model, np.arange(len(self.rows)))], self.rows, self._answers())
        names, losses, errors = zip(*((one.column, one.loss, one.std_error) for one in columns))

        def paint(figure: Any) -> None:
            plots.importance(names, losses, errors, figure.add_subplot(), most=20)

        return (5.5, 0.9 + 0.27 * min(20, len(names))), paint
