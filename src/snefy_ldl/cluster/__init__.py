"""Where rows are worked on: this machine (:mod:`~snefy_ldl.cluster.base`) or Ray (:mod:`~snefy_ldl.cluster.ray`).

Both take the same questions (:mod:`snefy_ldl.cluster.work`) about the same parts of tables
(:mod:`snefy_ldl.cluster.parts`), and :func:`snefy_ldl.cluster.base.run_parts` runs either.
"""
