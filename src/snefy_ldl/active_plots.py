"""The path that earlier documentation used for :mod:`snefy_ldl.plots.active`."""

from snefy_ldl.plots.active import *  # noqa: F403
