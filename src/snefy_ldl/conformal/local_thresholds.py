"""Thresholds that depend on x: coverage that is exact over the span of given functions (Gibbs, Cherian & Candès).

With functions ``φ(x)`` of a row, among them a constant, and scores ``S``, the threshold of a new row is the largest
score that the quantile regression of all n + 1 scores on ``φ`` does not exceed when the new row's score is that one.
Then for every ``f >= 0`` in the span of the functions ``E[f(X) (1{covered} - c)] >= 0``; with indicators of groups this
is coverage of at least ``c`` within every group, overlapping or not.

**How it is computed.** In the dual of the quantile regression, ``max Σ S_i η_i + S η`` subject to
``Σ η_i φ_i + η φ = 0`` and all ``η`` in ``[c - 1, c]``, the new row's ``η`` grows with ``S``, and the threshold is
where it reaches ``c``. With ``η`` held at ``u``, only the right-hand side ``-u φ`` depends on the new row, and the
threshold is ``φ·β(u)`` with the multipliers ``β``. So the program is solved once for the calibration rows (``u = 0``),
and every new row follows ``u`` from 0 to ``c`` by a few pivots, all new rows and labels side by side.

References:
    Gibbs, Cherian & Candès, Conformal prediction with conditional guarantees, JRSS B 2025.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from sklearn.preprocessing import SplineTransformer

from snefy_ldl._internal.types import Array, Index, Mask
from snefy_ldl.errors import InputError

#: Scores are moved up by at most this share of their range, which breaks ties: thresholds only grow by it.
TIES = 1e-10
#: Rounding of dual variables, of slopes in a ratio test, and of a row that leaves the span of the calibration rows.
DUAL_ROUNDING, SLOPE_ROUNDING, SPAN_ROUNDING = 1e-9, 1e-11, 1e-7
#: (new rows, calibration rows) arrays hold at most this many numbers at a time.
BLOCK_ELEMENTS = 1 << 20
#: Pivots after which a row is given up and gets the whole range; some ten are usual.
MOST_PIVOTS = 10_000


# -- functions of a row ------------------------------------------------------------------------------------------------


def column_values(X: Any, column: int | str) -> NDArray[Any]:
    """One column of a table.

    Args:
        X: An array, a sparse matrix or a DataFrame, (N, d).
        column: Its name or number.

    Returns:
        Its values (N,), of any type.

    Raises:
        InputError: There is no such column.

    Example:
        >>> column_values(np.eye(2), 1)
        array([0., 1.])
    """
    try:
        if isinstance(column, str):
            return np.asarray(X[column])
        if hasattr(X, "iloc"):
            return np.asarray(X.iloc[:, column])
        if hasattr(X, "tocsr"):
            return np.asarray(X.tocsr()[:, [column]].toarray()[:, 0])
        return np.asarray(X)[:, column]
    except (KeyError, IndexError) as error:
        raise InputError(f"X has no column {column!r} to condition on.") from error


def _numbers(X: Any, column: int | str) -> Array:
    raw = column_values(X, column)
    try:
        values = np.asarray(raw, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"column {column!r} holds no numbers; use Groups({column!r}).") from error
    if not np.isfinite(values).all():
        raise InputError(f"column {column!r}, row {int(np.flatnonzero(~np.isfinite(values))[0])} is not finite.")
    return values


class Basis(ABC):
    """Functions of a row over whose span coverage holds; a constant is always added.

    A subclass is a frozen dataclass whose fields are its settings, so that it can be stored.

    Attributes:
        learns: Whether edges, knots or centres come from rows, which are then set aside.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class FirstColumn(Basis):
        ...     def values(self, X, model):
        ...         return np.asarray(X)[:, :1]
        >>> FirstColumn().values([[2.0, 3.0]], None)
        array([[2.]])
    """

    learns: ClassVar[bool] = False

    def prepare(self, X: Any, aside: Index, model: Any) -> Basis:
        """The basis with what it learns; by default itself.

        Args:
            X: Calibration rows.
            aside: Numbers of those that do not calibrate, from which edges, knots and centres may be learned.
            model: The fitted model.

        Returns:
            The prepared basis.
        """
        return self

    @abstractmethod
    def values(self, X: Any, model: Any) -> Array:
        """Values of the functions.

        Args:
            X: Rows.
            model: The fitted model.

        Returns:
            (N, k).
        """


@dataclass(frozen=True)
class Columns(Basis):
    """Columns of X as they are: coverage that is exact against every linear function of them.

    Args:
        columns: Names or numbers.

    Example:
        >>> Columns((1,)).values(np.array([[1.0, 5.0], [2.0, 6.0]]), None)
        array([[5.],
               [6.]])
    """

    columns: tuple[int | str, ...]

    def values(self, X: Any, model: Any) -> Array:
        """See the base class."""
        return np.stack([_numbers(X, column) for column in self.columns], axis=1)


@dataclass(frozen=True)
class Groups(Basis):
    """An indicator for each value of a column: coverage within every group; a group not seen before gets [0, 1].

    Args:
        column: Name or number of a column of text, truth values or numbers.
        names: The values; by default those of the calibration rows.

    Example:
        >>> Groups(0, ("a", "b")).values(np.array([["b"], ["c"]]), None)
        array([[0., 1., 0.],
               [0., 0., 1.]])
    """

    column: int | str
    names: tuple[str, ...] | None = None

    def prepare(self, X: Any, aside: Index, model: Any) -> Basis:
        """See the base class."""
        return replace(self, names=tuple(np.unique(column_values(X, self.column).astype(np.str_)).tolist()))

    def values(self, X: Any, model: Any) -> Array:
        """See the base class; the last function is the indicator of all other values."""
        found = column_values(X, self.column).astype(np.str_)
        same = found[:, None] == np.asarray(self.names or ())[None, :]
        return np.column_stack([same, ~same.any(axis=1)]).astype(np.float64)


@dataclass(frozen=True)
class Splines(Basis):
    """Cubic splines of a column, linear beyond the outer knots.

    Args:
        column: Name or number.
        n_knots: Knots at quantiles.
        knots: Their places; by default quantiles of rows that are set aside.

    Example:
        >>> Splines(0, knots=(0.0, 0.5, 1.0)).values(np.array([[0.25], [2.0]]), None).shape
        (2, 5)
    """

    column: int | str
    n_knots: int = 4
    knots: tuple[float, ...] | None = None
    learns: ClassVar[bool] = True

    def prepare(self, X: Any, aside: Index, model: Any) -> Basis:
        """See the base class.

        Raises:
            InputError: A column with one value only.
        """
        if self.knots is not None:
            return self
        knots = np.unique(np.quantile(_numbers(X, self.column)[aside], np.linspace(0.0, 1.0, self.n_knots)))
        if len(knots) < 2:
            raise InputError(f"column {self.column!r} has one value only; a spline needs more.")
        return replace(self, knots=tuple(knots.tolist()))

    def values(self, X: Any, model: Any) -> Array:
        """See the base class."""
        knots = np.asarray(self.knots)[:, None]
        spline = SplineTransformer(degree=3, knots=knots, extrapolation="linear").fit(knots)
        return spline.transform(_numbers(X, self.column)[:, None])


@dataclass(frozen=True)
class _Several(Basis):
    """Several bases next to each other."""

    bases: tuple[Basis, ...]

    @property
    def learns(self) -> bool:  # type: ignore[override]
        """See the base class."""
        return any(basis.learns for basis in self.bases)

    def prepare(self, X: Any, aside: Index, model: Any) -> Basis:
        """See the base class."""
        return replace(self, bases=tuple(basis.prepare(X, aside, model) for basis in self.bases))

    def values(self, X: Any, model: Any) -> Array:
        """See the base class."""
        return np.hstack([basis.values(X, model) for basis in self.bases])


STORED: dict[str, type[Basis]] = {kind.__name__: kind for kind in (Columns, Groups, Splines)}


def as_basis(conditional_on: Any) -> Basis:
    """A basis from what ``conditional_on=`` may be.

    Args:
        conditional_on: A column's name or number, a :class:`Basis`, or a list of these.

    Returns:
        The basis.

    Raises:
        InputError: Anything else.

    Example:
        >>> as_basis(["distance", 2])
        Columns(columns=('distance', 2))
    """
    if isinstance(conditional_on, Basis):
        return conditional_on
    if isinstance(conditional_on, (str, int)) and not isinstance(conditional_on, bool):
        return Columns((conditional_on,))
    if isinstance(conditional_on, (list, tuple)) and conditional_on:
        if all(isinstance(part, (str, int)) for part in conditional_on):
            return Columns(tuple(conditional_on))
        if all(isinstance(part, (str, int, Basis)) for part in conditional_on):
            return _Several(tuple(as_basis(part) for part in conditional_on))
    raise InputError(
        f"conditional_on={conditional_on!r}: give columns of X (names or numbers), Groups(column) or Splines(column)."
    )


def store_basis(basis: Basis) -> Any:
    """Plain values for JSON; None for a basis of the user's, which is given again when the calibration is read."""
    if isinstance(basis, _Several):
        parts = [store_basis(part) for part in basis.bases]
        return None if None in parts else parts
    if type(basis) not in STORED.values():
        return None
    return {"kind": type(basis).__name__, **asdict(basis)}  # type: ignore[call-overload]


def restore_basis(state: Any) -> Basis:
    """The basis that :func:`store_basis` described.

    Args:
        state: What it returned.

    Returns:
        An equal basis.

    Example:
        >>> restore_basis({"kind": "Columns", "columns": [0]})
        Columns(columns=(0,))
    """
    if isinstance(state, list):
        return _Several(tuple(restore_basis(part) for part in state))
    fields = {name: _frozen(value) for name, value in state.items() if name != "kind"}
    return STORED[state["kind"]](**fields)


def _frozen(value: Any) -> Any:
    return tuple(_frozen(part) for part in value) if isinstance(value, (list, tuple)) else value


# -- thresholds --------------------------------------------------------------------------------------------------------


@dataclass
class _Vertices:
    """Vertices of m dual programs: which scores each fit passes through, and on which side of it the others lie.

    Args:
        scores: (m, n).
        basis: Calibration rows that the fit passes through, (m, d).
        upper: Which of the others lie above it, (m, n).
        inverse: Inverses of the functions' values there, (m, d, d).
        rest: ``-Σ η_i φ_i`` over the other rows, (m, d).
    """

    scores: Array
    basis: Index
    upper: Mask
    inverse: Array
    rest: Array

    def take(self, which: Any) -> _Vertices:
        return _Vertices(
            self.scores[which], self.basis[which], self.upper[which], self.inverse[which], self.rest[which]
        )

    def coefficients(self) -> Array:
        """``β`` (m, d) of the fit through the basis."""
        at_basis = np.take_along_axis(self.scores, self.basis, axis=1)
        return (self.inverse @ at_basis[:, :, None])[:, :, 0]

    def duals(self, right: Array) -> Array:
        """Dual variables (m, d) of the basis for right-hand sides (m, d)."""
        return (right[:, None, :] @ self.inverse)[:, 0, :]

    def pivot(self, table: Array, level: float, leaving: Index, to_upper: Mask) -> Mask:
        """Let one row of each basis leave to a bound, and the first row enter that the fit then meets.

        Args:
            table: The functions of the calibration rows, (n, d).
            level: ``c``.
            leaving: Place in the basis, (m,).
            to_upper: Whether it leaves to the upper bound, (m,).

        Returns:
            Which programs have no such row: (m,), and nothing is changed there.
        """
        m = np.arange(len(leaving))
        side = np.where(to_upper, 1.0, -1.0)
        direction = -side[:, None] * self.inverse[m, :, leaving]
        residuals = self.scores - self.coefficients() @ table.T
        slopes = direction @ table.T  # residuals fall at this rate
        sign = np.where(self.upper, 1.0, -1.0)
        slopes, residuals = slopes * sign, np.maximum(residuals * sign, 0.0)
        np.put_along_axis(slopes, self.basis, 0.0, axis=1)
        meets = slopes > SLOPE_ROUNDING
        times = np.where(meets, residuals / np.where(meets, slopes, 1.0), np.inf)
        entering = times.argmin(axis=1)
        unbounded: Mask = ~np.isfinite(times[m, entering])
        go = np.flatnonzero(~unbounded)
        out, into, place = self.basis[go, leaving[go]], entering[go], leaving[go]
        self.rest[go] += np.where(self.upper[go, into], level, level - 1.0)[:, None] * table[into]
        self.rest[go] -= np.where(to_upper[go], level, level - 1.0)[:, None] * table[out]
        self.upper[go, out] = to_upper[go]
        self.basis[go, place] = into
        weights = (table[into][:, None, :] @ self.inverse[go])[:, 0, :]
        pivot = weights[np.arange(len(go)), place]
        weights[np.arange(len(go)), place] -= 1.0
        column = self.inverse[go, :, place] / pivot[:, None]
        self.inverse[go] -= column[:, :, None] * weights[:, None, :]
        return unbounded


class ConditionalThresholds:
    """Thresholds of new rows that cover exactly over the span of functions of the row.

    Args:
        scores: Conformity scores of the calibration rows, (n, C, S): S = 1 or one kind of score per level.
        values: The functions there, (n, k); a constant is added.
        levels: Confidence levels, A of them.

    Example:
        >>> one = ConditionalThresholds(np.arange(1.0, 20.0).reshape(-1, 1, 1), np.zeros((19, 0)), [0.9])
        >>> one.thresholds(np.zeros((1, 0))).round(6)  # no function but the constant: the usual rank
        array([[[18.]]])
    """

    def __init__(self, scores: Array, values: Array, levels: Sequence[float]) -> None:
        self.scores, self.values, self.levels = scores, values, list(levels)
        table = self._with_constant(values)
        largest = np.abs(table).max(axis=0)
        self._largest = np.where(largest > 0.0, largest, 1.0)
        _, sizes, axes = np.linalg.svd(table / self._largest, full_matrices=False)
        rank = int((sizes > SPAN_ROUNDING * sizes[0]).sum())
        self._axes, self._sizes = axes[:rank], sizes[:rank] / np.sqrt(len(table))
        self._table = (table / self._largest) @ self._axes.T / self._sizes  # (n, d), uncorrelated
        self._starts = [
            [self._start(scores[:, c, a % scores.shape[2]], level) for c in range(scores.shape[1])]
            for a, level in enumerate(self.levels)
        ]

    @staticmethod
    def _with_constant(values: Array) -> Array:
        return np.column_stack([np.ones(len(values)), values])

    def _start(self, scores: Array, level: float) -> _Vertices:
        """The optimal vertex of the calibration rows alone: by HiGHS, finished by our own pivots."""
        finite = np.isfinite(scores)
        top, bottom = (scores[finite].max(), scores[finite].min()) if finite.any() else (1.0, 0.0)
        reach = (top - bottom) or max(abs(top), 1.0)
        broken = np.where(finite, scores, top + 10.0 * reach)
        broken = broken + TIES * reach * np.random.default_rng(0).random(len(scores))
        found = linprog(
            -broken,
            A_eq=self._table.T,
            b_eq=np.zeros(self._table.shape[1]),
            bounds=(level - 1.0, level),
            method="highs",
        )
        fit = np.zeros(self._table.shape[1]) if found.x is None else -np.asarray(found.eqlin.marginals)
        basis = self._independent(np.argsort(np.abs(broken - self._table @ fit), kind="stable"))
        inverse = np.linalg.inv(self._table[basis])
        upper = broken > self._table @ (inverse @ broken[basis])
        duals = np.where(upper, level, level - 1.0)
        duals[basis] = 0.0
        start = _Vertices(broken[None], basis[None], upper[None], inverse[None], -(duals @ self._table)[None])
        for _ in range(MOST_PIVOTS):
            duals = start.duals(start.rest)
            excess = np.maximum(duals - level, level - 1.0 - duals)[0]
            worst = int(excess.argmax())
            if excess[worst] <= DUAL_ROUNDING:
                break
            start.pivot(self._table, level, np.array([worst]), np.array([duals[0, worst] > level]))
        return start

    def _independent(self, order: Index) -> Index:
        """The first rows in an order whose functions are linearly independent."""
        chosen: list[int] = []
        frame = np.zeros((0, self._table.shape[1]))
        for row in order:
            vector = self._table[row]
            left = vector - frame.T @ (frame @ vector)
            left -= frame.T @ (frame @ left)
            size = np.linalg.norm(left)
            if size > SPAN_ROUNDING * np.linalg.norm(vector):
                chosen.append(int(row))
                frame = np.vstack([frame, left / size])
            if len(chosen) == self._table.shape[1]:
                break
        return np.array(chosen, dtype=np.intp)

    def thresholds(self, values: Array) -> Array:
        """Thresholds of new rows, +inf if nothing smaller is safe.

        Args:
            values: The functions there, (N, k).

        Returns:
            (N, C, A).

        Raises:
            InputError: Another number of functions than at the calibration.
        """
        if values.shape[1] != self.values.shape[1]:
            raise InputError(
                f"conditional_on gives {values.shape[1]} numbers per row; the calibration had {self.values.shape[1]}."
            )
        scaled = self._with_constant(values) / self._largest
        rows = scaled @ self._axes.T
        outside = np.linalg.norm(scaled - rows @ self._axes, axis=1)
        inside = np.flatnonzero(outside <= SPAN_ROUNDING * np.maximum(np.linalg.norm(scaled, axis=1), 1.0))
        rows = rows / self._sizes
        n_columns = self.scores.shape[1]
        out = np.full((len(values), n_columns, len(self.levels)), np.inf)
        step = max(1, BLOCK_ELEMENTS // (len(self._table) * n_columns))
        for a in range(len(self.levels)):
            for block in np.array_split(inside, max(1, -(-len(inside) // step))):
                row, column = np.repeat(block, n_columns), np.tile(np.arange(n_columns), len(block))
                out[row, column, a] = self._follow(a, column, rows[row])
        return out

    def _follow(self, a: int, column: Index, rows: Array) -> Array:
        """Thresholds (m,) of programs: where the dual variable of the new row reaches the level."""
        level, starts = self.levels[a], self._starts[a]
        infinite = ~np.isfinite(self.scores[:, :, a % self.scores.shape[2]]).T  # (C, n)
        now = _Vertices(
            *(
                np.stack([getattr(start, name)[0] for start in starts])[column]
                for name in ("scores", "basis", "upper", "inverse", "rest")
            )
        )
        out = np.full(len(rows), np.inf)
        at, going = np.zeros(len(rows)), np.arange(len(rows))
        for _ in range(MOST_PIVOTS):
            if not len(going):
                break
            toward = rows[going]
            duals = now.duals(now.rest - at[going, None] * toward)
            slopes = -now.duals(toward)
            bound = np.where(slopes > 0.0, level, level - 1.0)
            moves = np.abs(slopes) > SLOPE_ROUNDING
            room = np.where(moves, np.maximum((bound - duals) / np.where(moves, slopes, 1.0), 0.0), np.inf)
            leaving = room.argmin(axis=1)
            m = np.arange(len(going))
            reached = at[going] + room[m, leaving]
            done = reached >= level - DUAL_ROUNDING
            if done.any():
                ended = now.take(done)
                answer = (ended.coefficients() * rows[going[done]]).sum(axis=1)
                unknown = infinite[column[going[done]][:, None], ended.basis] & moves[done]
                out[going[done]] = np.where(unknown.any(axis=1), np.inf, answer)
            if done.all():
                break
            left = ~done
            now, going = now.take(left), going[left]
            at[going] = reached[left]
            leaving = leaving[left]
            unbounded = now.pivot(self._table, level, leaving, slopes[left][np.arange(len(going)), leaving] > 0.0)
            now, going = now.take(~unbounded), going[~unbounded]  # no solution: the threshold stays at infinity
        return out
