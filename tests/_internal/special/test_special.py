"""Orders of pairs and log Γ with its slope, against plain loops and scipy."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from scipy.special import digamma, gammaln
from threadpoolctl import ThreadpoolController

from snefy_ldl._internal.special import gamma_and_slope
from snefy_ldl._internal.threads import one_blas_thread, one_thread


@pytest.mark.parametrize(("dtype", "error"), [(torch.float64, 1e-9), (torch.float32, 3e-6)])
def test_a_swept_log_beta_is_scipys(dtype: torch.dtype, error: float) -> None:
    """B(a, b) from the rows a, b and a + b, and the slope."""
    rng = np.random.default_rng(0)
    a, b = rng.uniform(0.02, 40.0, (2, 300))
    values, slopes = gamma_and_slope(torch.as_tensor(np.stack([a, b, a + b])), dtype)
    assert slopes is not None
    log_beta = (values[0] + values[1] - values[2]).numpy()
    expected = gammaln(a) + gammaln(b) - gammaln(a + b)
    np.testing.assert_allclose(log_beta, expected, rtol=error, atol=20 * error)
    relative = np.abs(slopes[0].double().numpy() - digamma(a)) / (1.0 + np.abs(digamma(a)))
    assert relative.max() < 20 * error


def mkl_threads() -> int | None:
    """Threads that torch's matrix products may use here, if it has MKL."""
    found = re.search(r"mkl_get_max_threads\(\) : (\d+)", torch.__config__.parallel_info())
    return int(found[1]) if found else None


def test_one_thread_counts_for_matrix_products_also_after_torch_was_told_a_number():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with one_thread():
            assert torch.get_num_threads() == 1
            assert mkl_threads() in (1, None)
        assert torch.get_num_threads() == 2
        assert mkl_threads() in (2, None)
    finally:
        torch.set_num_threads(before)


def blas_threads() -> list[int]:
    return [pool["num_threads"] for pool in ThreadpoolController().select(user_api="blas").info()]


def test_one_blas_thread_ends_with_the_last_who_asked():
    before = blas_threads()
    first, second = one_blas_thread(), one_blas_thread()
    with first:
        assert set(blas_threads()) <= {1}
        with second:
            assert set(blas_threads()) <= {1}
        assert set(blas_threads()) <= {1}
    assert blas_threads() == before
