"""The path that earlier documentation used for :mod:`snefy_ldl.plots.votes`."""

from snefy_ldl.plots.votes import *  # noqa: F403
