"""Important columns: how much likelihood, or how much of a measure, is lost when a column is shuffled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from snefy_ldl._internal.dists import dist_blocks, log_probs, to_numpy
from snefy_ldl._internal.random import seed_from
from snefy_ldl._internal.rows import as_rows, count_rows, take_rows
from snefy_ldl._internal.types import Array, Index
from snefy_ldl._internal.validation import check_counts, check_distributions, check_same_index
from snefy_ldl.datasets.grouping import in_groups, read_groups, split_rows
from snefy_ldl.errors import InputError
from snefy_ldl.explain.features import Table, column_names
from snefy_ldl.explain.quantities import as_frame, frame_html
from snefy_ldl.metrics.averages import mean_over_rows
from snefy_ldl.plots import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes


#: Rows predicted in all, over the columns: what bounds the time.
MOST_PREDICTIONS = 8000
#: Fewest rows per column, at any cost.
FEWEST_ROWS = 60
#: What a column is worth, as pictures say it.
LOST = "log likelihood lost, in nats per row"
#: What is observed: label distributions (b, L), and numbers of votes (b, L) if there are some.
Observed = tuple[Array, Array | None]


@dataclass(frozen=True)
class Importance:
    """What shuffling one column costs.

    Args:
        column: Its name.
        loss: Mean log likelihood lost, in nats per row; or by how much a measure gets worse.
        std_error: Its standard error over rows.
        moves: The label whose predicted share changes most.
        shift: Mean absolute change of that share.

    Example:
        >>> Importance("depth", 0.4, 0.05, "clay", 0.12).column
        'depth'
    """

    column: str
    loss: float
    std_error: float
    moves: str
    shift: float


@dataclass(frozen=True, eq=False)
class Importances:
    """What each column is worth; made by :func:`permutation_importance`.

    Args:
        entries: One per column, the most important first.

    Example:
        >>> Importances([Importance("depth", 0.4, 0.05, "clay", 0.12)]).frame["term"].tolist()
        ['depth']
    """

    entries: list[Importance]

    @cached_property
    def frame(self) -> Any:
        """One row per column: term, estimate, std_error, label moved most, shift of it, conf_low, conf_high (95 %)."""
        fields = {"column": "term", "loss": "estimate", "std_error": "std_error", "moves": "label", "shift": "shift"}
        frame = as_frame({name: [getattr(entry, field) for entry in self.entries] for field, name in fields.items()})
        reach = 1.96 * frame["std_error"]
        return frame.assign(conf_low=frame["estimate"] - reach, conf_high=frame["estimate"] + reach)

    def _repr_html_(self) -> str:
        return frame_html(self.frame)

    def plot(self, most: int = 12, ax: Axes | None = None) -> Axes:
        """One bar per column, with its 95 % interval.

        Args:
            most: Bars at most.
            ax: Axes to draw on; a new figure by default.

        Returns:
            The axes.
        """
        shown = self.entries[:most]
        losses, errors = np.array([[entry.loss, 1.96 * entry.std_error] for entry in shown]).T
        ax, places = style.axes(ax, (4.6, 0.8 + 0.27 * len(shown))), np.arange(len(shown))
        ax.barh(places, losses, height=0.62, color=style.MODEL, alpha=0.85, zorder=2)
        ax.errorbar(losses, places, xerr=errors, fmt="none", ecolor=style.INK, elinewidth=1.1, zorder=3)
        ax.axvline(0.0, color=style.FRAME, linewidth=1.0, zorder=1)
        ax.set_yticks(places, [style.shorten_name(entry.column) for entry in shown])
        style.quiet(ax, grid="x", ylim=(len(shown) - 0.4, -0.6), xlabel=LOST)
        ax.tick_params(axis="y", length=0)
        return ax


def permutation_importance(
    model: Any,
    X: Any,
    D: Any = None,
    *,
    counts: Any = None,
    random_state: Any = 0,
    groups: Any = None,
) -> Importances:
    """What is lost when a column is shuffled, for every column as the table has it.

    A column that another one can stand in for loses little: what is measured is what this model would miss.

    Args:
        model: A fitted model with ``predict_dist``.
        X: Features (N, d), best of rows that the model has not seen: a DataFrame or an array.
        D: Observed label distributions (N, L).
        counts: Numbers of votes (N, L) instead.
        random_state: Seed of the shuffles, and of the choice of rows if there are many.
        groups: Of the rows, as ``fit`` took them; None if they are not known. Rows keep their groups, and standard
            errors are those of whole groups.

    Returns:
        One entry per column, the most important first: ``.frame``, ``.plot()``.

    Raises:
        InputError: X is no table, labels break a rule, or the model predicts means alone.

    Example:
        >>> from snefy_ldl import SnefyLDL
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=120, random_state=0)
        >>> model = SnefyLDL(epochs=3, random_state=0).fit(city.X, city.D)
        >>> len(permutation_importance(model, city.X, city.D).frame)
        5
    """
    if not hasattr(model, "predict_dist"):
        raise InputError(f"{type(model).__name__} predicts means alone; permutation_importance needs predict_dist(X).")
    if (D is None) == (counts is None):
        raise InputError("give either label distributions D, or votes as counts=...")
    for what, table in (("D", D), ("counts", counts)):
        check_same_index(X, table, ("X", what))
    X = in_groups(X, groups)
    features, groups = split_rows(X)
    n_rows = count_rows(features)
    votes = None if counts is None else check_counts(counts, n_rows=n_rows, model=model)[0]
    if votes is None:
        shares = check_distributions(D, n_rows=n_rows, model=model)[0]
    else:
        shares = votes / votes.sum(axis=1, keepdims=True)
    names = getattr(model, "label_names_", None)
    labels = [str(label) for label in (range(shares.shape[1]) if names is None else names)]
    random = np.random.default_rng(seed_from(random_state))
    entries = rank_columns([(model, np.arange(n_rows))], X, (shares, votes), labels, random)
    return Importances(entries)


def rank_columns(
    parts: Sequence[tuple[Any, Index]],
    X: Any,
    observed: Observed,
    labels: Sequence[str],
    random: np.random.Generator,
    before: tuple[Array, Array] | None = None,
) -> list[Importance]:
    """What shuffling each column costs, by models that answer for some of the rows each.

    Args:
        parts: Models, and the numbers of the rows that each answers for.
        X: All rows (N, d), with their groups if they have some.
        observed: Label distributions and votes of all rows.
        labels: Names of the labels (L).
        random: Where the shuffles and the choice of rows come from.
        before: Log likelihoods (N,) and means (N, L) of the rows as they are, if they are known already.

    Returns:
        One entry per column, the most important first.
    """
    features, groups = split_rows(X)
    names, n_rows = column_names(features), count_rows(features)
    each = min(n_rows, max(FEWEST_ROWS, MOST_PREDICTIONS // len(names)))  # so few that every column can be shuffled
    chosen = np.zeros(n_rows, dtype=bool)
    chosen[random.choice(n_rows, each, replace=False)] = True
    losses: list[list[Array]] = [[] for _ in names]
    shifts: list[list[Array]] = [[] for _ in names]
    for model, rows in parts:
        here = rows[chosen[rows]]
        if not len(here):
            continue
        known: Observed = (observed[0][here], None if observed[1] is None else observed[1][here])
        if before is None:
            log_prob, mean = _predict(model, take_rows(as_rows(X), here), known)
        else:
            log_prob, mean = before[0][here], before[1][here]
        table = Table(take_rows(as_rows(X), here))
        for column in range(len(names)):
            donors = Table(take_rows(as_rows(features), random.choice(rows, len(here)))).X
            cells = donors.iloc[:, column].array if hasattr(donors, "iloc") else donors[:, column]
            less_likely, other = _predict(model, table.replaced({column: cells}), known)
            losses[column].append(log_prob - less_likely)
            shifts[column].append(np.abs(other - mean))
    order = np.concatenate([rows[chosen[rows]] for _, rows in parts])
    which = None if groups is None else read_groups(groups, n_rows).first[order]
    entries = [
        sum_up(name, np.concatenate(loss), np.concatenate(shift), labels, which)
        for name, loss, shift in zip(names, losses, shifts)
    ]
    return sorted(entries, key=lambda entry: -entry.loss)


def sum_up(name: str, losses: Array, shifts: Array, labels: Sequence[str], groups: Index | None = None) -> Importance:
    """What a column costs, out of what each row lost (n,) and how far each share moved (n, L)."""
    mean, error = mean_over_rows(losses, True)
    if groups is not None and len(set(groups)) > 1:  # standard errors of whole groups
        sums = np.bincount(np.unique(groups, return_inverse=True)[1], losses - mean)
        error = float(np.sqrt((sums**2).sum() * len(sums) / (len(sums) - 1)) / len(losses))
    by_label = shifts.mean(axis=0)
    label = int(by_label.argmax())
    return Importance(name, mean, error, labels[label], float(by_label[label]))


def _predict(model: Any, X: Any, observed: Observed) -> tuple[Array, Array]:
    """Log likelihoods (b,) and means (b, L)."""
    policy, (shares, counts) = getattr(model, "zero_policy_", None), observed
    if policy is not None:
        shares = policy.apply(shares)
    log_prob, mean = [], []
    for block, dist in dist_blocks(model, X):
        known = None if counts is None else counts[block]
        log_prob.append(log_probs(dist, shares[block], known))
        mean.append(to_numpy(dist.mean))
    return np.concatenate(log_prob), np.concatenate(mean)
