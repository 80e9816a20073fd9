"""One panel of a tabulated law: its nodes, and where in it a quantile lies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.special
from numpy.polynomial import legendre

from snefy_ldl._internal.special import newton
from snefy_ldl._internal.types import Array, Index

#: Gauss-Legendre points a panel.
POINTS = 8
NODES, NODE_WEIGHTS = legendre.leggauss(POINTS)
#: Values at the nodes -> Legendre coefficients.
TO_LEGENDRE = (np.arange(POINTS) + 0.5)[:, None] * (legendre.legvander(NODES, POINTS - 1) * NODE_WEIGHTS[:, None]).T


@dataclass(frozen=True)
class Located:
    """Where some quantiles lie: a panel each, and what the row's law is in it.

    Args:
        left: left edge of the panel on the logit scale (Q,).
        half: half its width (Q,).
        mass: probability wanted between that edge and the quantile (Q,).
        values: the row's density of logit(share) at the panel's nodes (Q, 8).
    """

    left: Array
    half: Array
    mass: Array
    values: Array

    def logits(self) -> Array:
        """The quantiles on the logit scale (Q,)."""
        density = TO_LEGENDRE @ self.values.T * self.half
        return self.left + self.half * (_solve_panel(density, self.mass) + 1.0)

    def solve(self) -> Array:
        """The quantiles as shares (Q,)."""
        return scipy.special.expit(self.logits())


def _solve_panel(density: Array, mass: Array) -> Array:
    """u in [-1, 1] with ``∫_{-1}^u density = mass``: Newton, kept inside a shrinking bracket.

    Args:
        density: Legendre coefficients (8, Q).
        mass: (Q,).
    """
    integral = legendre.legint(density, lbnd=-1)
    total = integral.sum(0)  # every Legendre polynomial is one at the right end
    with np.errstate(divide="ignore", invalid="ignore"):
        u = np.clip(np.where(total > 0.0, 2.0 * mass / total - 1.0, 0.0), -0.999, 0.999)

    def rising(u: Array, rows: Index) -> tuple[Any, Any]:
        value, slope = (legendre.legval(u, part[:, rows], tensor=False) for part in (integral, density))
        return value, slope

    return newton(rising, mass, u, np.full(len(mass), -1.0), np.full(len(mass), 1.0), 1e-14, 1e-12)
