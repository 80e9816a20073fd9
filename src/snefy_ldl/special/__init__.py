"""Special functions of the family: pair tables, log-Beta kernels, signed sums, and every epsilon."""

from __future__ import annotations

from snefy_ldl.special.functions import (
    LogGamma,
    full_index,
    log_beta,
    log_beta_ratio,
    log_quadratic_form,
    log_share,
    log_signed_sum,
    log_squared_norm,
    pair_concentration,
    pair_gram,
    pair_index,
    symmetric,
    unit_kernel,
)

__all__ = [
    "LogGamma",
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
    "symmetric",
    "unit_kernel",
]
