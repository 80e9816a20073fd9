"""The path that earlier documentation used for :mod:`snefy_ldl.datasets.label_studio`."""

from snefy_ldl.datasets.label_studio import *  # noqa: F403
