"""A probabilistic regressor of skpro, and the law as one of its distributions. Needs the extra ``skpro``."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.base import clone

from snefy_ldl._internal.random import torch_generator
from snefy_ldl._internal.types import Array, Mask
from snefy_ldl._internal.validation import CLOSURE_TOLERANCE
from snefy_ldl.distributions.law import SnefySimplex
from snefy_ldl.errors import InputError
from snefy_ldl.estimator import SnefyLDL

try:
    import pandas as pd
    from skpro.distributions.base import BaseDistribution
    from skpro.regression.base import BaseProbaRegressor
except ImportError:
    raise ImportError("skpro's regressor needs skpro: pip install 'snefy-ldl[skpro]'") from None

__all__ = ["LawRows", "SnefyDistribution", "SnefyRegressor"]

#: Room on either side of a target that is no share, as a part of its range in the training rows.
ROOM = 0.05


class LawRows:
    """A law as a parameter that may be copied: laws do not change, so a copy is the same one.

    Args:
        law: of N rows.

    Example:
        >>> import copy
        >>> from snefy_ldl import SnefySimplex
        >>> one = torch.ones(1, 1).double()
        >>> rows = LawRows(SnefySimplex(torch.ones(1, 3).double(), one, one))
        >>> copy.deepcopy(rows) is rows
        True
    """

    def __init__(self, law: SnefySimplex) -> None:
        self.law = law

    def __deepcopy__(self, memo: Any) -> LawRows:
        return self


class SnefyDistribution(BaseDistribution):  # type: ignore[misc]
    """The law of some rows as skpro sees it: one column per label, each with its exact marginal law.

    Mean, variance, density, cdf and quantiles of every column are exact. Draws are joint: the columns of one draw
    belong together, and shares of all labels sum to one. A column may be a share on another scale,
    ``lower + width · share``.

    Args:
        rows: the law, in :class:`LawRows`.
        labels: which label each column is (c,); None for all of them in order.
        lower: where share 0 lies, one number or one per column (c,).
        width: how far share 1 lies from there, one number or one per column (c,).
        index: of the rows, as pandas has it; None for one row and one column, a scalar.
        columns: names of the columns (c,).

    Example:
        >>> import torch
        >>> from snefy_ldl import SnefySimplex
        >>> from snefy_ldl.integrations.skpro import LawRows, SnefyDistribution
        >>> one = torch.ones(1, 1).double()
        >>> law = SnefySimplex(torch.ones(1, 3).double(), one, one)
        >>> dist = SnefyDistribution(LawRows(law), index=[0], columns=["a", "b", "c"])
        >>> dist.mean().round(3).to_numpy().tolist()
        [[0.333, 0.333, 0.333]]
    """

    _tags = {  # noqa: RUF012 - skpro's own spelling
        "authors": ["snefy-ldl"],
        "distr:measuretype": "mixed",
        "distr:paramtype": "composite",
        "capabilities:approx": ["energy", "pdfnorm"],
        "capabilities:exact": ["mean", "var", "pdf", "log_pdf", "cdf", "ppf"],
        "broadcast_init": "off",
    }

    def __init__(
        self, rows: Any, labels: Any = None, lower: Any = 0.0, width: Any = 1.0, index: Any = None, columns: Any = None
    ) -> None:
        self.rows, self.labels, self.lower, self.width = rows, labels, lower, width
        super().__init__(index=index, columns=columns)

    def _parts(self) -> tuple[SnefySimplex, list[int], Array, Array]:
        """The law, each column's label, and its scale (1, c)."""
        law = self.rows.law
        labels = list(range(law.n_labels)) if self.labels is None else [int(label) for label in self.labels]
        lower, width = (
            np.broadcast_to(np.asarray(part, dtype=np.float64), (1, len(labels))) for part in (self.lower, self.width)
        )
        return law, labels, lower, width

    def _iloc(self, rowidx: Any = None, colidx: Any = None) -> SnefyDistribution:
        if np.isscalar(rowidx) and np.isscalar(colidx):
            return self._iat(rowidx, colidx)
        law, labels, lower, width = self._parts()
        rows = np.arange(len(law)) if rowidx is None else np.atleast_1d(np.arange(len(law))[rowidx])
        kept = np.arange(len(labels)) if colidx is None else np.atleast_1d(np.arange(len(labels))[colidx])
        return SnefyDistribution(
            LawRows(law[rows]),
            [labels[k] for k in kept],
            lower[0, kept],
            width[0, kept],
            self.index.take(rows),
            self.columns.take(kept),
        )

    def _iat(self, rowidx: Any = None, colidx: Any = None) -> SnefyDistribution:
        if rowidx is None or colidx is None:
            raise ValueError("iat method requires both row and column index")
        law, labels, lower, width = self._parts()
        rows = LawRows(law[[int(rowidx)]])
        return SnefyDistribution(rows, [labels[colidx]], float(lower[0, colidx]), float(width[0, colidx]))

    def _back(self, table: Array) -> Any:
        """(N, c) as skpro expects it: a number where the distribution is a scalar."""
        return table if self.ndim > 0 else table.reshape(())

    def _by_column(self, question: str, values: Any) -> Array:
        """Each column's marginal law asked at that column's values (N, c)."""
        law, labels, _, _ = self._parts()
        table = torch.as_tensor(np.broadcast_to(values, (len(law), len(labels))).copy())
        answers = [getattr(law.marginal(label), question)(table[:, k]) for k, label in enumerate(labels)]
        return torch.stack(answers, 1).cpu().numpy()

    def _shares(self, x: Any) -> tuple[Array, Mask]:
        """Values as shares, and which of them lie between 0 and 1."""
        _, _, lower, width = self._parts()
        shares = (np.asarray(x, dtype=np.float64) - lower) / width
        return np.clip(shares, 0.0, 1.0), (shares >= 0.0) & (shares <= 1.0)

    def _mean(self) -> Any:
        law, labels, lower, width = self._parts()
        return self._back(lower + width * law.mean.cpu().numpy()[:, labels])

    def _var(self) -> Any:
        law, labels, _, width = self._parts()
        return self._back(width**2 * law.variance.cpu().numpy()[:, labels])

    def _log_pdf(self, x: Any) -> Any:
        shares, inside = self._shares(x)
        logs = self._by_column("log_prob", shares) - np.log(self._parts()[3])
        return self._back(np.where(inside, logs, -np.inf))

    def _pdf(self, x: Any) -> Any:
        return np.exp(self._log_pdf(x))

    def _cdf(self, x: Any) -> Any:
        shares, inside = self._shares(x)
        return self._back(np.where(inside, self._by_column("cdf", shares), shares))

    def _ppf(self, p: Any) -> Any:
        _, _, lower, width = self._parts()
        return self._back(lower + width * self._by_column("icdf", np.asarray(p, dtype=np.float64)))

    def _quantile_grid(self) -> tuple[Array, Array]:
        """Levels (A,), and every column's quantiles at them (N, c, A): expectations are sums over these."""
        law, labels, lower, width = self._parts()
        n_levels = self.get_tag("approx_energy_spl")
        levels = (np.arange(n_levels) + 0.5) / n_levels
        shares = law.quantiles(levels).cpu().numpy()[:, labels]
        return levels, lower[..., None] + width[..., None] * shares

    def _energy_x(self, x: Any) -> Any:
        _, grid = self._quantile_grid()
        away = np.abs(grid - np.asarray(x, dtype=np.float64).reshape(*grid.shape[:2], 1)).mean(-1)
        return away.sum(1, keepdims=True) if self.ndim > 0 else away.reshape(())

    def _energy_self(self) -> Any:
        levels, grid = self._quantile_grid()
        apart = 2.0 * (grid * (2.0 * levels - 1.0)).mean(-1)  # E|X - Y| of two independent draws
        return apart.sum(1, keepdims=True) if self.ndim > 0 else apart.reshape(())

    def pdfnorm(self, a: float = 2) -> Any:
        """``∫ p(x)^a dx`` of every column's density, by draws.

        Args:
            a: the power.

        Returns:
            A DataFrame of the distribution's shape; a number where that is a scalar.

        Example:
            >>> from snefy_ldl.integrations.skpro import SnefyDistribution
            >>> SnefyDistribution.create_test_instance().pdfnorm(1).to_numpy().tolist()[0]
            [1.0, 1.0, 1.0]
        """
        law, labels, _, width = self._parts()
        draws = torch.as_tensor(self._draws(self.get_tag("approx_spl")))  # (n, N, c)
        logs = [law.marginal(label).log_prob(draws[..., k]) - np.log(width[0, k]) for k, label in enumerate(labels)]
        norms = ((a - 1.0) * torch.stack(logs, -1)).exp().mean(0).cpu().numpy()
        return float(norms[0, 0]) if self.ndim == 0 else pd.DataFrame(norms, index=self.index, columns=self.columns)

    def _draws(self, n: int) -> Array:
        """Joint draws of the shares (n, N, c), seeded by NumPy's global generator as all of skpro is."""
        law, labels, _, _ = self._parts()
        shares: Array = law.sample((n,), torch_generator(None, law.device)).cpu().numpy()[..., labels]
        return shares

    def _sample(self, n_samples: int | None = None) -> Any:
        _, _, lower, width = self._parts()
        draws = lower + width * self._draws(n_samples or 1)
        if self.ndim == 0:
            return float(draws[0, 0, 0]) if n_samples is None else pd.DataFrame(draws[:, 0])
        tables = [pd.DataFrame(draw, index=self.index, columns=self.columns) for draw in draws]
        return tables[0] if n_samples is None else pd.concat(tables, keys=range(n_samples))

    @classmethod
    def get_test_params(cls, parameter_set: str = "default") -> list[dict[str, Any]]:
        """Parameters that skpro's tests make instances of.

        Args:
            parameter_set: unused, there is one.

        Returns:
            Two sets: a table of shares, and a scalar on another scale.

        Example:
            >>> len(SnefyDistribution.get_test_params())
            2
        """
        weights = torch.linspace(0.2, 3.0, 12, dtype=torch.float64).reshape(4, 3)
        scale = torch.linspace(-1.0, 1.0, 20, dtype=torch.float64).reshape(5, 4)
        law = SnefySimplex(weights, torch.eye(4, dtype=torch.float64) + 0.3, scale)
        table = {"rows": LawRows(law), "index": pd.Index([3, 1, 2, 5, 8]), "columns": pd.Index(["a", "b", "c"])}
        return [table, {"rows": LawRows(law[[0]]), "labels": [1], "lower": -2.0, "width": 10.0}]


class SnefyRegressor(BaseProbaRegressor):  # type: ignore[misc]
    """skpro's regressor around :class:`~snefy_ldl.SnefyLDL`: ``predict_proba`` is the law of several targets at once.

    Targets that are shares (columns between 0 and 1 whose rows sum to one) are taken as they are. Other targets are
    scaled: each column's range in the training rows, with some room, becomes a share, and what is left of one is a part
    of its own, so that any bounded targets have a joint law.

    Args:
        estimator: the model to fit, unfitted; None for ``SnefyLDL()``.
        bounds: (low, high) of targets that are no shares, one number or one per column; "auto" takes the range of the
            training rows and a twentieth of it on either side.

    Attributes:
        estimator_: the fitted model.

    Raises:
        InputError: where a target lies outside the bounds.

    Example:
        >>> import pandas as pd
        >>> from snefy_ldl import SnefyLDL
        >>> from snefy_ldl.integrations.skpro import SnefyRegressor
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> X, D = pd.DataFrame(city.X, columns=list("abcde")), pd.DataFrame(city.D, columns=["home", "work", "green"])
        >>> regressor = SnefyRegressor(SnefyLDL(n_neurons=4, epochs=1, guides=None, random_state=0)).fit(X, D)
        >>> regressor.predict_proba(X).mean().shape
        (60, 3)
    """

    _tags = {  # noqa: RUF012 - skpro's own spelling
        "authors": ["snefy-ldl"],
        "capability:multioutput": True,
        "capability:missing": True,
        "X_inner_mtype": "pd_DataFrame_Table",
        "y_inner_mtype": "pd_DataFrame_Table",
    }

    def __init__(self, estimator: Any = None, bounds: Any = "auto") -> None:
        self.estimator, self.bounds = estimator, bounds
        super().__init__()

    def _fit(self, X: Any, y: Any, C: Any = None) -> SnefyRegressor:
        values = y.to_numpy(dtype=np.float64)
        self.target_names_ = y.columns
        self.are_shares_ = _are_shares(values)
        self.lower_, self.width_ = np.zeros(values.shape[1]), np.ones(values.shape[1])
        if not self.are_shares_:
            low, high = self._bounds(values)
            self.lower_, self.width_ = low, (high - low) * values.shape[1]
            parts = (values - low) / self.width_
            values = np.hstack([parts, 1.0 - parts.sum(1, keepdims=True)])
        estimator = SnefyLDL() if self.estimator is None else clone(self.estimator)
        self.estimator_ = estimator.fit(X, values)
        return self

    def _bounds(self, values: Array) -> tuple[Array, Array]:
        if isinstance(self.bounds, str):
            if self.bounds != "auto":
                raise InputError(f'bounds={self.bounds!r}: use "auto" or (low, high).')
            low, high = values.min(axis=0), values.max(axis=0)
            room = ROOM * np.where(high > low, high - low, np.maximum(np.abs(low), 1.0))
            return low - room, high + room
        low, high = (np.broadcast_to(np.asarray(end, dtype=np.float64), values.shape[1:]) for end in self.bounds)
        outside = np.argwhere((values < low) | (values > high))
        if len(outside) or not (low < high).all():
            where = f"row {outside[0][0]}, column {outside[0][1]}" if len(outside) else "low is not below high"
            raise InputError(f"bounds={self.bounds!r}: every target must lie between them; {where}.")
        return low, high

    def _predict_proba(self, X: Any) -> SnefyDistribution:
        law = self.estimator_.predict_dist(X)
        labels = list(range(len(self.target_names_)))
        return SnefyDistribution(LawRows(law), labels, self.lower_, self.width_, X.index, self.target_names_)

    @classmethod
    def get_test_params(cls, parameter_set: str = "default") -> list[dict[str, Any]]:
        """Parameters that skpro's tests make instances of.

        Args:
            parameter_set: unused, there is one.

        Returns:
            Two sets.

        Example:
            >>> len(SnefyRegressor.get_test_params())
            2
        """
        small = SnefyLDL(n_neurons=6, epochs=2, guides=None, centre=None, random_state=0)
        return [{"estimator": small}, {"estimator": clone(small).set_params(n_members=2), "bounds": (-10.0, 1000.0)}]


def _are_shares(values: Array) -> bool:
    """Whether rows (N, m) are label distributions."""
    close = np.abs(values.sum(axis=1) - 1.0) <= CLOSURE_TOLERANCE
    return values.shape[1] > 1 and bool((values >= 0.0).all() and close.all())
