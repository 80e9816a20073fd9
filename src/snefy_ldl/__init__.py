"""SNEFY-LDL: label distribution learning with a probability density over the simplex, in closed form."""

__version__ = "0.1.0"

from snefy_ldl.datasets import load_dataset, load_table
from snefy_ldl.distribution import SnefySimplex
from snefy_ldl.estimator import SnefyLDL

__all__ = ["SnefyLDL", "SnefySimplex", "__version__", "load_dataset", "load_table"]
