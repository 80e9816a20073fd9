"""Every small number that a computation rests on, with what it is for: the tolerances other than those of the kernels.

A reader can list the epsilons of the library from here and from :mod:`snefy_ldl._internal.special`.
"""

from __future__ import annotations

#: A positive divisor or logarithm's argument is lifted here where an exact zero can only be underflow.
SMALLEST_POSITIVE = 1e-300
#: A signed sum that is no more than this share of its positive part is rounding: there the distribution has no density.
SMALLEST_DENSITY_SHARE = 1e-12
#: Concentrations reach up to here: beyond, squares and Beta functions are no longer numbers.
LARGEST_CONCENTRATION = 1e100
#: A moment-matched Dirichlet's Σ α is at least this, also where a variance is as large as it can be.
SMALLEST_TOTAL_CONCENTRATION = 1e-6
#: The probability of an observed count is lifted here before it divides a level's distance from it.
SMALLEST_COUNT_PROBABILITY = 1e-12
#: Known shares that leave no more than this of one leave nothing: what is left is rounding.
SMALLEST_REST = 1e-14
#: Weights of a mixture may sum to this much more or less than one: float32 ones do.
WEIGHT_SUM_ROUNDING = 1e-3
#: The part of a component outside a tabulated range.
TAIL_MASS = 1e-13
#: The part of a neuron outside a tabulated range, where pairs are bounded by their neurons.
FACTOR_TAIL_MASS = 1e-17
#: Factors of a density below this are left out of float32 products: their squares would be slow denormal numbers.
SMALLEST_FACTOR = 1e-18
#: Shares below e^-690 count as zero.
LOGIT_LIMIT = 690.0
#: Components whose weight is smaller than this for every row of a block are left out of it.
NEGLIGIBLE_WEIGHT = 1e-13
