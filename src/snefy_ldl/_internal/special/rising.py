"""Rising factorials of very many votes, without the huge numbers that cancel between components.

    log (β)_m = log Γ(m) + [log Γ(β+m) - log Γ(m)] - log Γ(β)

``log Γ(m)`` is about 2e10 at a billion votes, where float64 holds no more than five decimals of it; but it is the same
for every β. The bracket, about ``β log m``, follows from Stirling's series with the large parts cancelled by hand.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import gammaln

from snefy_ldl._internal.special.log_gamma import STIRLING
from snefy_ldl._internal.types import Array

#: From here on four terms of Stirling's series leave less than 1e-16.
LARGE_COUNT = 64.0


def log_gamma_growth(beta: Any, count: Any) -> Array:
    """``log Γ(β+m) - log Γ(m)`` for m >= 1, to a relative 1e-13 however large m is.

    For ``z = m``: ``(z + β - ½) log1p(β/z) + β log z - β + Σ_k c_k [(z+β)^(1-2k) - z^(1-2k)]``.

    Args:
        beta: ``β``, positive numbers of any shape.
        count: ``m``, whole numbers >= 1, broadcast against ``beta``.

    Returns:
        The differences, of the common shape.

    Example:
        >>> float(log_gamma_growth(2.0, 1e9).round(9)) == round(float(np.log(1e9) + np.log1p(1e9)), 9)
        True
    """
    beta, count = np.broadcast_arrays(np.asarray(beta, dtype=np.float64), np.asarray(count, dtype=np.float64))
    large = np.maximum(count, LARGE_COUNT)
    above = large + beta
    growth = (above - 0.5) * np.log1p(beta / large) + beta * (np.log(large) - 1.0)
    for power, coefficient in enumerate(STIRLING[:4]):
        growth += coefficient * (above ** -(2.0 * power + 1.0) - large ** -(2.0 * power + 1.0))
    answer: Array = np.where(count < LARGE_COUNT, gammaln(beta + count) - gammaln(count), growth)
    return answer
