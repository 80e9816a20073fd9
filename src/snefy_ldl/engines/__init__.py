"""Where rows are worked on: this machine (:mod:`~snefy_ldl.engines.base`) or Ray (:mod:`~snefy_ldl.engines.ray`).

Both take the same questions (:mod:`snefy_ldl.engines.work`) about the same parts of tables
(:mod:`snefy_ldl.engines.parts`), and :func:`snefy_ldl.engines.base.run_parts` runs either.
"""
