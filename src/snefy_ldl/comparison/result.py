"""What a comparison found: tables, text and a picture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from snefy_ldl import metrics
from snefy_ldl._types import Array
from snefy_ldl.comparison.statistics import Scores
from snefy_ldl.errors import InputError
from snefy_ldl.plots.comparison import critical_difference_diagram, mean_scores

if TYPE_CHECKING:
    from matplotlib.axes import Axes


Rows = list[list[tuple[str, str]]]

_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "×": r"$\times$",
    "•": r"$\bullet$",
    "<": r"$<$",
    ">": r"$>$",
}


def markdown_table(rows: Rows, note: str) -> str:
    """Rows of (text, mark) as a Markdown table, and a note under it.

    Args:
        rows: The first is the head; marks are ``"head"``, ``"best"``, ``"worse"`` or nothing.
        note: A sentence.

    Returns:
        Text that ends with a line break.

    Example:
        >>> print(markdown_table([[("learner", "head")], [("kNN", "best")]], "One."), end="")
        | learner |
        |---|
        | **kNN** |
        <BLANKLINE>
        One.
    """
    marks = {"best": "**{}**", "worse": "{} •"}
    lines = [
        "| " + " | ".join(marks.get(mark, "{}").format(text.replace("|", "\\|")) for text, mark in row) + " |"
        for row in rows
    ]
    lines.insert(1, "|" + "---|" * len(rows[0]))
    return "\n".join([*lines, "", note]) + "\n"


def latex_table(rows: Rows, note: str) -> str:
    r"""Rows of (text, mark) as a LaTeX table in the style of ``booktabs``, and a note under it.

    Args:
        rows: As :func:`markdown_table` takes them.
        note: A sentence.

    Returns:
        Text that ends with a line break.

    Example:
        >>> print(latex_table([[("a_b", "head")], [("1 ± 2", "best")]], "One.").splitlines()[4])
        \textbf{1 $\pm$ 2} \\
    """
    marks = {"best": r"\textbf{{{}}}", "worse": r"{} $\bullet$"}
    body = [" & ".join(marks.get(mark, "{}").format(_escape(text)) for text, mark in row) + r" \\" for row in rows]
    n_words = sum(not any(sign in text for sign in "↑↓") and not text.endswith(" s") for text, _ in rows[0])
    columns = "l" * n_words + "r" * (len(rows[0]) - n_words)
    lines = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", body[0], r"\midrule", *body[1:], r"\bottomrule"]
    return "\n".join([*lines, r"\end{tabular}", rf"\par\smallskip {_escape(note)}"]) + "\n"


def _escape(text: str) -> str:
    return "".join(_LATEX.get(sign, sign) for sign in text)


@dataclass(frozen=True, repr=False, eq=False)
class Comparison(Scores):
    """What :func:`~snefy_ldl.compare` found; the figures behind the tables.

    Its fields (learners, data sets, measures, scores and seconds of every fold) are those of
    :class:`~snefy_ldl.comparison.statistics.Scores`; :func:`~snefy_ldl.compare` fills them.

    Example:
        >>> from snefy_ldl import compare
        >>> from snefy_ldl.learners import AAKNN, SABFGS
        >>> from snefy_ldl.synthetic import make_city_districts
        >>> city = make_city_districts(n=120, random_state=0)
        >>> result = compare([SABFGS(), AAKNN()], city.X, city.D, cv=3, measures=["kl_divergence"])
        >>> list(result.table.columns)
        ['kl_divergence', 'kl_divergence_std', 'kl_divergence_rank', 'kl_divergence_p']
    """

    @property
    def table(self) -> Any:
        """One row a learner (and data set): mean, standard deviation over folds, rank, and p-value against the best.

        The p-value is that of the corrected resampled t-test against the learner with the best mean, NaN for that
        learner itself. Times are in :attr:`times`: they differ from run to run, and this table does not.
        """
        import pandas as pd  # an extra

        columns: dict[str, Array] = {}
        for measure in self.measures:
            columns[measure] = self.mean(measure).ravel()
            columns[f"{measure}_std"] = self.std(measure).ravel()
            columns[f"{measure}_rank"] = self.rank(measure).ravel()
            columns[f"{measure}_p"] = self._against_best(measure).ravel()
        return pd.DataFrame(columns, index=self._index())

    @property
    def times(self) -> Any:
        """Mean seconds of a fit and of predicting a fold, one row a learner (and data set)."""
        import pandas as pd  # an extra

        columns = {"fit_seconds": self.fit_seconds.ravel(), "predict_seconds": self.predict_seconds.ravel()}
        return pd.DataFrame(columns, index=self._index())

    @property
    def folds(self) -> Any:
        """Every score: one row a data set, learner and fold, one column a measure."""
        import pandas as pd  # an extra

        parts = []
        for d, data in enumerate(self.data_sets):
            for k, learner in enumerate(self.learners):
                rows = {measure: self.scores[measure][d][k] for measure in self.measures}
                parts.append(pd.DataFrame({"data": data, "learner": learner, **rows}).rename_axis("fold").reset_index())
        return pd.concat(parts, ignore_index=True)

    def to_markdown(self, *, alpha: float = 0.05, times: bool = False) -> str:
        """The table as Markdown: mean ± standard deviation, the best in bold, • where a learner is clearly worse.

        Args:
            alpha: Level of the corrected resampled t-test behind the mark.
            times: Whether to add seconds a fit and a prediction.

        Returns:
            Text.
        """
        return markdown_table(self._cells(alpha, times), self._note(alpha))

    def to_latex(self, *, alpha: float = 0.05, times: bool = False) -> str:
        r"""The table as LaTeX (package ``booktabs``): the best in bold, ``\bullet`` where a learner is clearly worse.

        Args:
            alpha: Level of the corrected resampled t-test behind the mark.
            times: Whether to add seconds a fit and a prediction.

        Returns:
            Text.
        """
        return latex_table(self._cells(alpha, times), self._note(alpha))

    def plot(
        self, measure: str | None = None, kind: Literal["auto", "means", "ranks"] = "auto", ax: Axes | None = None
    ) -> Axes:
        """A picture: means with 95 % intervals on one data set, mean ranks with the critical difference on several.

        Args:
            measure: Which; the first by default.
            kind: ``"means"`` (of the first data set), ``"ranks"``, or the one that suits the number of data sets.
            ax: Axes to draw on; a new figure by default.

        Returns:
            The axes.

        Raises:
            InputError: There is no such measure or kind, or too few data sets for ranks.
        """
        name = self._measure(measure)
        if kind not in ("auto", "means", "ranks"):
            raise InputError(f'kind={kind!r}: use "auto", "means" or "ranks".')
        if kind == "ranks" or (kind == "auto" and len(self.data_sets) > 1):
            result = self.friedman(name)
            return critical_difference_diagram(
                self.learners, result.ranks, result.critical_difference, result.groups(), name, ax
            )
        n_folds = self.scores[name][0].shape[1]
        return mean_scores(
            self.learners,
            self.mean(name)[0],
            self.std_error(name)[0],
            n_folds - 1,
            name,
            metrics.MEASURES[name],
            ax,
        )

    def __repr__(self) -> str:
        sets = f"{len(self.data_sets)} data sets" if len(self.data_sets) > 1 else f"data set {self.data_sets[0]!r}"
        head = f"{len(self.learners)} learners on {sets}, best by {self.measures[0]}: {self.best()}"
        return f"{head}\n{self.to_markdown()}"

    def _cells(self, alpha: float, times: bool) -> list[list[tuple[str, str]]]:
        """Rows of (text, mark); marks are ``"head"``, ``"best"``, ``"worse"`` or nothing."""
        several = len(self.data_sets) > 1
        arrows = [f"{m.replace('_', ' ')} {'↑' if metrics.MEASURES[m] else '↓'}" for m in self.measures]
        head = [*(["data"] if several else []), "learner", *arrows, *(["fit s", "predict s"] if times else [])]
        rows = [[(text, "head") for text in head]]
        facts = {m: (self.mean(m), self.std(m), self.rank(m), self._against_best(m)) for m in self.measures}
        for d, data in enumerate(self.data_sets):
            for k, learner in enumerate(self.learners):
                row = [*([(data, "")] if several else []), (learner, "")]
                for mean, std, rank, p in facts.values():
                    if not np.isfinite(mean[d, k]):
                        row.append(("failed", ""))
                        continue
                    mark = "best" if rank[d, k] == rank[d].min() else "worse" if p[d, k] < alpha else ""
                    row.append((f"{mean[d, k]:.4f} ± {std[d, k]:.4f}", mark))
                if times:
                    row += [(f"{seconds[d, k]:.3g}", "") for seconds in (self.fit_seconds, self.predict_seconds)]
                rows.append(row)
        return rows

    def _note(self, alpha: float) -> str:
        n_folds = self.scores[self.measures[0]][0].shape[1]
        folds = f"{self.repeats} × {n_folds // self.repeats} folds" if self.repeats > 1 else f"{n_folds} folds"
        return (
            f"Mean ± standard deviation over {folds}; the best in bold; • is worse than the best by the corrected "
            f"resampled t-test, p < {alpha:g}."
        )
