"""The worst slab: half of the rows search it, the other half measures it."""

from __future__ import annotations

import numpy as np
import pytest

from snefy_ldl.errors import InputError
from snefy_ldl.metrics import worst_slab_coverage


def test_perfect_coverage_is_found_to_be_perfect():
    """Mean over 100 labels with perfect coverage within 5 standard errors of the level: the search adds no bias."""
    rng = np.random.default_rng(1)
    covered = rng.random((300, 100)) < 0.9
    D, ends = np.full(covered.shape, 0.5), np.where(covered[..., None], [0.4, 0.6], [0.6, 0.7])
    values = worst_slab_coverage(rng.normal(size=(300, 2)), D, ends, n_directions=40)
    assert abs(values.mean() - 0.9) < 5 * values.std(ddof=1) / 10.0
    with pytest.raises(InputError, match=r"\(300, d\)"):
        worst_slab_coverage(np.zeros(300), D, ends)
    with pytest.raises(InputError, match="finite"):
        worst_slab_coverage(np.full((300, 2), np.nan), D, ends)
