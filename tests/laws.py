"""Short names for kinds of laws, as tests build them."""

from __future__ import annotations

from torch import Tensor

from snefy_ldl import SnefySimplex


def mixture(
    weights: Tensor, concentration: Tensor, offset: Tensor | None = None, validate_args: bool | None = None
) -> SnefySimplex:
    return SnefySimplex.from_mixture(weights, concentration, offset, validate_args)


def with_zeros(
    exponents: Tensor,
    presence: Tensor,
    readout: Tensor,
    log_scale: Tensor,
    centre: Tensor | None = None,
    log_members: Tensor | None = None,
    validate_args: bool | None = None,
) -> SnefySimplex:
    return SnefySimplex(
        exponents, readout, log_scale, None, log_members, validate_args, centre=centre, presence=presence
    )


def moving(
    exponents: Tensor,
    presence: Tensor | None,
    readout: Tensor,
    log_scale: Tensor,
    log_centre: Tensor,
    shift: Tensor | None = None,
) -> SnefySimplex:
    return SnefySimplex(
        exponents, readout, log_scale, validate_args=False, centre=log_centre.exp(), presence=presence, shift=shift
    )
