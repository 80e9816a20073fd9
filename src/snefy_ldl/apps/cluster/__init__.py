"""Where rows are worked on: here (:mod:`~snefy_ldl.apps.cluster.base`) or on Ray (:mod:`~snefy_ldl.apps.cluster.ray`).

Both take the same questions (:mod:`snefy_ldl.apps.cluster.work`) about the same parts of tables
(:mod:`snefy_ldl.apps.cluster.parts`), and :func:`snefy_ldl.apps.cluster.base.run_parts` runs either.
"""
