"""The paper's experiments, run again: settings, studies, the runner, the paper's own figures, and the report.

In a checkout, ``python -m reproduction`` runs everything and writes the report, and ``python -m reproduction table3
--quick`` runs one table with a few repeats. The folder is next to the library and is not installed with it.
"""
