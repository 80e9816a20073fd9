"""The path that earlier documentation used for :mod:`snefy_ldl.votes.allocation`."""

from snefy_ldl.votes.allocation import *  # noqa: F403
