"""The path that earlier documentation used for :mod:`snefy_ldl.votes.scores`."""

from snefy_ldl.votes.scores import *  # noqa: F403
