"""City districts and the mix of uses in them: two peaks near the centre, features in mixed units."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from scipy.special import softmax

from snefy_ldl._internal.types import Array
from snefy_ldl._internal.validation import check_count
from snefy_ldl.datasets.synthetic.data import SyntheticData
from snefy_ldl.datasets.synthetic.truth import TrueConditional
from snefy_ldl.errors import InputError

__all__ = ["make_city_districts"]

_DISTRICT_LABELS = ("business", "entertainment", "education", "residential", "industry", "green")
_DISTRICT_FEATURES = (
    "distance_to_centre_km",
    "office_floor_area_m2",
    "students_per_km2",
    "night_bus_lines",
    "mean_rent_eur_per_m2",
)


def make_city_districts(n: int = 600, noise: float = 1.0, random_state: Any = 0, *, n_labels: int = 3) -> SyntheticData:
    """City districts and the mix of uses in them; near the centre a district is *either* business *or* entertainment.

    Each use ``j`` has a component that leans toward it, and one more is an even mix. The lean and the concentration
    grow toward the centre: ``α_j(x) = 1 + s(x) · ((1 - t_j(x)) / L + t_j(x) e_j)``, ``s(x) = (12 + 60 c) / noise``,
    ``c = exp(-distance / 4 km)``. Features are in mixed units, as found in a city's open data.

    Args:
        n: Districts.
        noise: Divides the concentrations: 2 makes districts with the same features twice as scattered.
        random_state: Seed or numpy Generator.
        n_labels: 3 (business, entertainment, education) to 6 (also residential, industry, green).

    Returns:
        The districts with the law they were drawn from.

    Raises:
        InputError: A number is out of its range.

    >>> data = make_city_districts(n=100)
    >>> data
    SyntheticData('city_districts': 100 rows, 5 features, 3 labels (business, entertainment, education))
    >>> data.truth.log_prob(data.X, data.D).shape
    (100,)
    """
    check_count("n", n)
    if not 3 <= check_count("n_labels", n_labels) <= len(_DISTRICT_LABELS):
        raise InputError(
            f"n_labels must lie between 3 and {len(_DISTRICT_LABELS)}: at least 3 uses of the city; got {n_labels}."
        )
    if not np.isfinite(noise) or noise <= 0.0:
        raise InputError(f"noise must be a positive number; got {noise!r}.")
    rng = np.random.default_rng(random_state)
    distance = 15.0 * rng.beta(1.2, 1.8, n)
    centrality = np.exp(-distance / 4.0)
    offices = 2e5 * centrality * rng.lognormal(0.0, 0.6, n) + 1e3
    campus = rng.random(n) < 0.3
    students = np.where(campus, rng.lognormal(np.log(2500.0), 0.5, n), rng.lognormal(np.log(120.0), 0.5, n))
    buses = rng.poisson(0.5 + 9.0 * centrality).astype(np.float64)
    rent = np.maximum(6.0, 9.0 + 16.0 * centrality + rng.normal(0.0, 1.5, n))
    X = np.column_stack([distance, offices, students, buses, rent])
    truth = TrueConditional(partial(_district_law, n_labels=n_labels, noise=float(noise)), X.shape[1], n_labels)
    D = truth.sample(X, 1, rng)[0]
    return SyntheticData(
        X=X,
        D=D,
        label_names=list(_DISTRICT_LABELS[:n_labels]),
        feature_names=list(_DISTRICT_FEATURES),
        name="city_districts",
        source="synthetic: snefy_ldl.datasets.synthetic.make_city_districts",
        licence="free of rights",
        truth=truth,
        latent=D,
    )


def _district_law(X: Array, *, n_labels: int, noise: float) -> tuple[Array, Array]:
    """Weights (N, L + 1) and concentrations (N, L + 1, L) of the city's law; the last component is the even mix."""
    distance, offices, students, buses, rent = X.T
    centrality = np.exp(-distance / 4.0)
    campus = np.tanh(students / 1500.0)
    pull = [
        3.0 * centrality + 0.4 * np.log(np.maximum(offices, 1.0) / (2e5 * centrality + 1e3)),  # business
        3.0 * centrality + 0.12 * (buses - 9.0 * centrality),  # entertainment
        -0.8 + 3.2 * campus,  # education
        1.5 - np.square(distance - 5.0) / 12.0,  # residential
        0.8 * np.tanh((distance - 4.0) / 3.0) - 0.1 * (rent - 12.0),  # industry
        -3.0 + 0.35 * distance,  # green
    ][:n_labels]
    lean = [0.25 + 0.6 * centrality] * 2 + [0.15 + 0.65 * campus] + [0.3 + 0.03 * np.minimum(distance, 15.0)] * 3
    even = np.zeros_like(distance)
    weights: Array = softmax(np.column_stack([*pull, even]), axis=1)  # (N, L + 1)
    toward = np.column_stack([*lean[:n_labels], even])[:, :, None]  # the last component is the even mix
    corners = np.vstack([np.eye(n_labels), np.full((1, n_labels), 1.0 / n_labels)])
    strength = (12.0 + 60.0 * centrality) / noise
    alpha: Array = 1.0 + strength[:, None, None] * ((1.0 - toward) / n_labels + toward * corners)
    return weights, alpha
