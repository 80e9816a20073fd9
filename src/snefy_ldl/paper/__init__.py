"""The paper's experiments, run again: what is run, the runner, the paper's own figures, and the report.

``snefy-ldl reproduce all`` is the command; :func:`snefy_ldl.paper.runner.reproduce` is the function behind it.
"""
