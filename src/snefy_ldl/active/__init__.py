"""Active learning: which rows of a pool are worth the next labels.

:func:`query` chooses rows of a pool; :func:`will_it_help` estimates beforehand whether choosing rows will pay. Any
model with ``predict_dist(X)`` serves, and it is never changed.

==========  ==========================================================================================================
auto        ``lcmd`` if the model has trees or several members, else ``random``
lcmd        the farthest row of the largest cluster around labelled and chosen rows, on a kernel of the model
bait        rows that lower the variance summed over the pool most, on a kernel
badge       rows drawn by their squared distance to labelled and chosen rows, on a kernel
entropy     the largest differential entropy, the paper's strategy
random      the baseline
==========  ==========================================================================================================
"""

from __future__ import annotations

from snefy_ldl.active.diagnosis import will_it_help
from snefy_ldl.active.pool import Pool
from snefy_ldl.active.strategy import STRATEGIES, ScoreStrategy, Strategy, query

__all__ = [
    "STRATEGIES",
    "Pool",
    "ScoreStrategy",
    "Strategy",
    "query",
    "will_it_help",
]
