"""What a comparison found: tests for scores of cross-validation, tables, text and a picture."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import stats

from snefy_ldl._internal.types import Array
from snefy_ldl._internal.validation import check_choice
from snefy_ldl.errors import InputError
from snefy_ldl.plots.comparison import critical_difference_diagram, mean_scores

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def corrected_spread(differences: Array, test_to_train: float) -> float:
    """Standard error of a mean over folds that share training rows: ``√((1/k + n_test/n_train) s²)``.

    Args:
        differences: One number per fold, (k,), k >= 2.
        test_to_train: Test rows over training rows of a fold.

    Returns:
        The standard error.

    Example:
        >>> corrected_spread(np.array([1.0, 3.0]), 0.5)
        1.414...
    """
    return math.sqrt((1.0 / len(differences) + test_to_train) * float(np.var(differences, ddof=1)))


def corrected_t_test(first: Any, second: Any, test_to_train: float) -> tuple[float, float]:
    """Corrected resampled t-test of two learners' scores on the same folds, two-sided.

    ``t = mean(a - b) / √((1/k + n_test/n_train) var(a - b))`` with ``k - 1`` degrees of freedom. The plain paired test
    takes folds for independent; they share training rows, and it finds differences where there are none.

    Args:
        first: Scores ``a`` on k folds, (k,).
        second: Scores ``b`` on the same folds, (k,).
        test_to_train: Test rows over training rows of a fold; 1/9 for ten folds.

    Returns:
        ``t`` and the p-value. Equal scores give (0, 1); a difference that never varies gives an infinite ``t``.

    Raises:
        InputError: Fewer than two folds, other numbers of folds, or a score that is not finite.

    References:
        Nadeau, Bengio, Inference for the generalization error, Machine Learning 52, 2003; Bouckaert, Frank,
        Evaluating the replicability of significance tests for comparing learning algorithms, PAKDD 2004.

    Example:
        >>> t, p = corrected_t_test([1.0, 2.0, 3.0], [0.5, 1.0, 2.5], 1 / 2)
        >>> round(t, 3), round(p, 3)
        (2.53, 0.127)
    """
    a, b = (np.asarray(scores, dtype=np.float64) for scores in (first, second))
    if a.ndim != 1 or a.shape != b.shape or len(a) < 2:
        raise InputError(f"the test needs two scores of at least two folds; got shapes {a.shape} and {b.shape}.")
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise InputError("a score is not a finite number; compare learners on folds that both could be fitted on.")
    gap = a - b
    mean, error = float(gap.mean()), corrected_spread(gap, test_to_train)
    if error == 0.0:
        return (0.0, 1.0) if mean == 0.0 else (math.copysign(math.inf, mean), 0.0)
    t = mean / error
    return t, float(2.0 * stats.t.sf(abs(t), len(a) - 1))


def holm(p_values: Any) -> Array:
    """p-values of several tests at once, adjusted by Holm's step-down rule.

    Args:
        p_values: (m,); NaN entries are no tests, and stay NaN.

    Returns:
        Adjusted p-values, (m,).

    References:
        Holm, A simple sequentially rejective multiple test procedure, Scandinavian Journal of Statistics 6, 1979.

    Example:
        >>> holm([0.01, 0.04, 0.03])
        array([0.03, 0.06, 0.06])
    """
    p = np.asarray(p_values, dtype=np.float64)
    adjusted = np.full(len(p), np.nan)
    order = [int(k) for k in np.argsort(p) if not math.isnan(p[k])]
    largest = 0.0
    for place, k in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - place) * float(p[k])))
        adjusted[k] = largest
    return adjusted


@dataclass(frozen=True, eq=False)
class FriedmanResult:
    """Result of the Friedman test of several learners on several data sets.

    Args:
        ranks: Mean rank of each learner over the data sets, 1 is best, (k,).
        chi2: Friedman's statistic.
        p_value: Of the statistic of Iman and Davenport, an F with ``k - 1`` and ``(k - 1)(n - 1)`` degrees of freedom.
        critical_difference: Mean ranks further apart than this differ by the Nemenyi test.
        alpha: Level of the Nemenyi test.
        n_sets: Data sets, n.

    Example:
        >>> result = friedman_test([[0.1, 0.2, 0.3]] * 4, higher_is_better=False)
        >>> result.ranks, result.p_value
        (array([1., 2., 3.]), 0.0)
    """

    ranks: Array
    chi2: float
    p_value: float
    critical_difference: float
    alpha: float
    n_sets: int

    def groups(self) -> list[list[int]]:
        """Largest groups of learners whose mean ranks lie within the critical difference.

        Returns:
            Numbers of the learners, by rank; groups of one are left out, and groups within another.
        """
        order = [int(k) for k in np.argsort(self.ranks, kind="stable")]
        groups: list[list[int]] = []
        last_end = 0
        for start, first in enumerate(order):
            end = start + 1
            while end < len(order) and self.ranks[order[end]] - self.ranks[first] <= self.critical_difference:
                end += 1
            if end - start > 1 and end > last_end:
                groups.append(order[start:end])
                last_end = end
        return groups


def critical_difference(n_learners: int, n_sets: int, alpha: float = 0.05) -> float:
    """Nemenyi's critical difference of mean ranks: ``q_α √(k(k+1)/(6n))``.

    Args:
        n_learners: k, at least 2.
        n_sets: n.
        alpha: Level.

    Returns:
        The difference.

    References:
        Demšar, Statistical comparisons of classifiers over multiple data sets, JMLR 7, 2006.

    Example:
        >>> round(critical_difference(5, 30), 3)
        1.114
    """
    q = float(stats.studentized_range.ppf(1.0 - alpha, n_learners, np.inf)) / math.sqrt(2.0)
    return q * math.sqrt(n_learners * (n_learners + 1) / (6.0 * n_sets))


def friedman_test(scores: Any, *, higher_is_better: bool, alpha: float = 0.05) -> FriedmanResult:
    """Whether learners differ over several data sets, by their ranks.

    Args:
        scores: Mean score of each learner on each data set, (n, k).
        higher_is_better: Direction of the score.
        alpha: Level of the critical difference.

    Returns:
        Mean ranks, the test, and the critical difference.

    Raises:
        InputError: Fewer than two data sets or learners, or a score that is not finite.

    References:
        Demšar, Statistical comparisons of classifiers over multiple data sets, JMLR 7, 2006; Iman, Davenport,
        Approximations of the critical region of the Friedman statistic, 1980.

    Example:
        >>> friedman_test([[1.0, 2.0], [1.0, 2.0], [2.0, 1.0]], higher_is_better=True).ranks.round(2)
        array([1.67, 1.33])
    """
    table = np.asarray(scores, dtype=np.float64)
    if table.ndim != 2 or min(table.shape) < 2:
        raise InputError(f"the Friedman test needs two data sets and two learners at least; got shape {table.shape}.")
    if not np.isfinite(table).all():
        raise InputError("a score is not a finite number; leave out the learner or the data set that failed.")
    n, k = table.shape
    by_set = stats.rankdata(-table if higher_is_better else table, axis=1)
    ranks = by_set.mean(axis=0)
    total = float(((by_set - (k + 1) / 2) ** 2).sum())  # less than its largest value if there are ties
    chi2 = 0.0 if total == 0.0 else (k - 1) * n**2 * float(((ranks - (k + 1) / 2) ** 2).sum()) / total
    room = n * (k - 1) - chi2
    if chi2 == 0.0:
        p = 1.0
    else:
        p = 0.0 if room <= 1e-12 * n else float(stats.f.sf((n - 1) * chi2 / room, k - 1, (k - 1) * (n - 1)))
    return FriedmanResult(ranks, chi2, p, critical_difference(k, n, alpha), alpha, n)


Rows = list[list[tuple[str, str]]]

_LATEX = str.maketrans(
    {sign: f"\\{sign}" for sign in "&%$#_{}"}
    | {sign: f"${sign}$" for sign in "<>"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$"}
    | {"↑": r"$\uparrow$", "↓": r"$\downarrow$", "×": r"$\times$", "•": r"$\bullet$"}
)


def markdown_table(rows: Rows, note: str) -> str:
    """Rows of (text, mark) as a Markdown table, and a note under it; marks are head, best, worse or nothing.

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
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:], "", note]) + "\n"


def latex_table(rows: Rows, note: str) -> str:
    r"""Rows of (text, mark) as a LaTeX table in the style of ``booktabs``, and a note under it.

    >>> print(latex_table([[("a_b", "head")], [("1 ± 2", "best")]], "One.").splitlines()[4])
    \textbf{1 $\pm$ 2} \\
    """
    marks = {"best": r"\textbf{{{}}}", "worse": r"{} $\bullet$"}
    body = [
        " & ".join(marks.get(mark, "{}").format(text.translate(_LATEX)) for text, mark in row) + r" \\" for row in rows
    ]
    head = [rf"\begin{{tabular}}{{{'l' * len(rows[0])}}}", r"\toprule", body[0], r"\midrule"]
    tail = [r"\bottomrule", r"\end{tabular}", rf"\par\smallskip {note.translate(_LATEX)}"]
    return "\n".join([*head, *body[1:], *tail]) + "\n"


@dataclass(frozen=True, repr=False, eq=False)
class Comparison:
    """What :func:`~snefy_ldl.compare` found; the figures behind the tables.

    Args:
        learners: Names, k.
        data_sets: Names, n.
        measures: Names, and whether higher is better.
        scores: Measure to one table per data set, of each learner on each fold, (k, folds); NaN if a fit failed.
        fit_seconds: Mean seconds of a fit, (n, k); folds that were trained in one stack share its time.
        predict_seconds: Mean seconds of predicting a fold, (n, k).
        test_to_train: Test rows over training rows, one number per data set.
        repeats: Cross-validations.
        errors: What went wrong, by data set and learner.

    Example:
        >>> from snefy_ldl import compare
        >>> from snefy_ldl.learners import AAKNN, SABFGS
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=120, random_state=0)
        >>> result = compare([SABFGS(), AAKNN()], city.X, city.D, cv=3, measures=["kl_divergence"])
        >>> list(result.table.columns)
        ['kl_divergence', 'kl_divergence_std', 'kl_divergence_rank', 'kl_divergence_p']
    """

    learners: list[str]
    data_sets: list[str]
    measures: dict[str, bool]
    scores: dict[str, list[Array]]
    fit_seconds: Array
    predict_seconds: Array
    test_to_train: list[float]
    repeats: int = 1
    errors: dict[tuple[str, str], str] = field(default_factory=dict)

    def mean(self, measure: str) -> Array:
        """Mean of a measure over folds, (n, k)."""
        return np.stack([table.mean(axis=1) for table in self._scores(measure)])

    def std(self, measure: str) -> Array:
        """Standard deviation of a measure over folds, (n, k)."""
        return np.stack([table.std(axis=1, ddof=1) for table in self._scores(measure)])

    def std_error(self, measure: str) -> Array:
        """Standard error of the mean that accounts for shared training rows (Nadeau and Bengio), (n, k)."""
        pairs = zip(self._scores(measure), self.test_to_train)
        return np.stack([[corrected_spread(row, ratio) for row in table] for table, ratio in pairs])

    def rank(self, measure: str) -> Array:
        """Rank of each learner on each data set, 1 is best, (n, k); failed ones come last."""
        means = self.mean(measure)
        losses = np.where(np.isfinite(means), -means if self.measures[measure] else means, np.inf)
        return stats.rankdata(losses, axis=1)

    def best(self, measure: str | None = None, data: str | None = None) -> str:
        """Name of the best learner: by its mean on one data set, or by its mean rank over all.

        Args:
            measure: Which; the first by default.
            data: Name of a data set; all by default.

        Returns:
            The learner's name.

        Raises:
            InputError: There is no such measure or data set.
        """
        ranks = self.rank(self._measure(measure))
        chosen = ranks.mean(axis=0) if data is None else ranks[self._data(data)]
        return self.learners[int(np.argmin(chosen))]

    def p_values(self, measure: str | None = None, data: str | None = None, adjust: str | None = None) -> Any:
        """Corrected resampled t-test of every pair of learners on one data set.

        Args:
            measure: Which; the first by default.
            data: Name of the data set; the first by default.
            adjust: ``"holm"`` adjusts each row for its number of tests.

        Returns:
            A DataFrame (k, k) of two-sided p-values; NaN on the diagonal and for learners that failed.

        Raises:
            InputError: There is no such measure, data set or adjustment.
        """
        import pandas as pd  # an extra

        check_choice("adjust", adjust, (None, "holm"))
        table = self._p_table(self._measure(measure), 0 if data is None else self._data(data))
        table = np.stack([holm(row) for row in table]) if adjust else table
        return pd.DataFrame(table, index=self.learners, columns=self.learners)

    def friedman(self, measure: str | None = None, alpha: float = 0.05) -> FriedmanResult:
        """Friedman test over data sets, with the critical difference of mean ranks.

        Args:
            measure: Which; the first by default.
            alpha: Level of the critical difference.

        Returns:
            Mean ranks and the test.

        Raises:
            InputError: Fewer than two data sets or learners, or a learner that failed.
        """
        name = self._measure(measure)
        return friedman_test(self.mean(name), higher_is_better=self.measures[name], alpha=alpha)

    # -- inside ------------------------------------------------------------------------------------------------------

    def _measure(self, measure: str | None) -> str:
        if measure is not None and measure not in self.measures:
            raise InputError(f"measure={measure!r} was not scored; there are {', '.join(self.measures)}.")
        return next(iter(self.measures)) if measure is None else measure

    def _data(self, data: str) -> int:
        if data not in self.data_sets:
            raise InputError(f"data={data!r} was not compared; there are {', '.join(self.data_sets)}.")
        return self.data_sets.index(data)

    def _scores(self, measure: str | None) -> list[Array]:
        return self.scores[self._measure(measure)]

    def _index(self) -> Any:
        import pandas as pd  # an extra

        if len(self.data_sets) == 1:
            return pd.Index(self.learners, name="learner")
        return pd.MultiIndex.from_product([self.data_sets, self.learners], names=["data", "learner"])

    def _p_table(self, measure: str, d: int) -> Array:
        scores, ratio = self.scores[measure][d], self.test_to_train[d]
        known = np.flatnonzero(np.isfinite(scores).all(axis=1))
        table = np.full((len(scores), len(scores)), np.nan)
        for i, j in combinations(known, 2):
            table[i, j] = table[j, i] = corrected_t_test(scores[i], scores[j], ratio)[1]
        return table

    def _against_best(self, measure: str) -> Array:
        ranks = self.rank(measure)
        tables = [self._p_table(measure, d) for d in range(len(self.data_sets))]
        return np.stack([table[:, int(np.argmin(ranks[d]))] for d, table in enumerate(tables)])

    # -- tables and pictures -------------------------------------------------------------------------------------------

    @property
    def table(self) -> Any:
        """One row per learner (and data set): mean, standard deviation over folds, rank, and p-value against the best.

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

    def to_markdown(self, *, alpha: float = 0.05, times: bool = False) -> str:
        """The table as Markdown: mean ± standard deviation, the best in bold, • if a learner is clearly worse.

        Args:
            alpha: Level of the corrected resampled t-test behind the mark.
            times: Whether to add seconds per fit and per prediction.

        Returns:
            Text.
        """
        return markdown_table(self._cells(alpha, times), self._note(alpha))

    def to_latex(self, *, alpha: float = 0.05, times: bool = False) -> str:
        r"""The table as LaTeX (package ``booktabs``): the best in bold, ``\bullet`` if a learner is clearly worse.

        Args:
            alpha: Level of the corrected resampled t-test behind the mark.
            times: Whether to add seconds per fit and per prediction.

        Returns:
            Text.
        """
        return latex_table(self._cells(alpha, times), self._note(alpha))

    def plot(self, measure: str | None = None, ax: Axes | None = None) -> Axes:
        """A picture: means with 95 % intervals on one data set, mean ranks with the critical difference on several.

        Args:
            measure: Which; the first by default.
            ax: Axes to draw on; a new figure by default.

        Returns:
            The axes.

        Raises:
            InputError: There is no such measure, or too few data sets for ranks.
        """
        name = self._measure(measure)
        if len(self.data_sets) > 1:
            result = self.friedman(name)
            return critical_difference_diagram(
                self.learners, result.ranks, result.critical_difference, result.groups(), name, ax
            )
        means, errors, freedom = self.mean(name)[0], self.std_error(name)[0], self.scores[name][0].shape[1] - 1
        return mean_scores(self.learners, means, errors, freedom, name, self.measures[name], ax)

    def __repr__(self) -> str:
        sets = f"{len(self.data_sets)} data sets" if len(self.data_sets) > 1 else f"data set {self.data_sets[0]!r}"
        head = f"{len(self.learners)} learners on {sets}, best by {self._measure(None)}: {self.best()}"
        return f"{head}\n{self.to_markdown()}"

    def _cells(self, alpha: float, times: bool) -> list[list[tuple[str, str]]]:
        """Rows of (text, mark); marks are ``"head"``, ``"best"``, ``"worse"`` or nothing."""
        several = len(self.data_sets) > 1
        arrows = [f"{m.replace('_', ' ')} {'↑' if self.measures[m] else '↓'}" for m in self.measures]
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
        n_folds = self._scores(None)[0].shape[1]
        folds = f"{self.repeats} × {n_folds // self.repeats} folds" if self.repeats > 1 else f"{n_folds} folds"
        return (
            f"Mean ± standard deviation over {folds}; the best in bold; • is worse than the best by the corrected "
            f"resampled t-test, p < {alpha:g}."
        )
