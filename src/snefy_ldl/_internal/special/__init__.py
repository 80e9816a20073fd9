"""Special functions of the family: pairs of neurons, log Γ with slope, log-Beta tables, signed sums, every epsilon."""

from __future__ import annotations

from snefy_ldl._internal.special.beta import (
    EXPONENT_LIMIT,
    EXPONENT_MARGIN,
    log_beta,
    log_beta_ratio,
    pair_concentration,
    unit_kernel,
)
from snefy_ldl._internal.special.digits import ten_digits
from snefy_ldl._internal.special.log_gamma import GammaSweep, LogGamma
from snefy_ldl._internal.special.pairs import (
    circulant_from_full,
    diagonal_index,
    full_from_circulant,
    full_index,
    pair_gram,
    pair_index,
    symmetric,
)
from snefy_ldl._internal.special.signed import (
    SMALLEST_SHARE,
    log_quadratic_form,
    log_share,
    log_signed_sum,
    log_squared_norm,
    quick_log_norms,
)

__all__ = [
    "EXPONENT_LIMIT",
    "EXPONENT_MARGIN",
    "SMALLEST_SHARE",
    "GammaSweep",
    "LogGamma",
    "circulant_from_full",
    "diagonal_index",
    "full_from_circulant",
    "full_index",
    "log_beta",
    "log_beta_ratio",
    "log_quadratic_form",
    "log_share",
    "log_signed_sum",
    "log_squared_norm",
    "pair_concentration",
    "pair_gram",
    "pair_index",
    "quick_log_norms",
    "symmetric",
    "ten_digits",
    "unit_kernel",
]
