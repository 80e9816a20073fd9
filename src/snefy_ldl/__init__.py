"""SNEFY-LDL: label distribution learning with a probability density over the simplex, in closed form."""

__version__ = "0.1.0"
