"""Many small pieces of work on a Ray cluster give the bits they give here."""

from __future__ import annotations

import json

import numpy as np
import pytest
from joblib import Parallel, delayed

from engine_cases import CITY
from snefy_ldl import SnefyLDL, compare
from snefy_ldl.cluster.places import Place
from snefy_ldl.cluster.tasks import RayTasks, ray_jobs
from snefy_ldl.datasets.named import Dataset
from snefy_ldl.ensemble import DensityWeightedBagging
from snefy_ldl.errors import InputError
from snefy_ldl.estimator import fit_many
from snefy_ldl.learners import AAKNN, SABFGS, DirichletLDL
from snefy_ldl.paper.config import quick, select
from snefy_ldl.paper.runner import reproduce

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("default")]


def city_as_any_set(name):
    X, D = CITY.X[:120], CITY.D[:120]
    return Dataset(X=X, D=D, label_names=list(CITY.label_names), feature_names=list(CITY.feature_names), name=name)


def records(folder):
    """Figures of every record, by its path; the seconds that it took are its own."""
    paths = sorted((folder / "results").rglob("*.json"))
    return {str(path.relative_to(folder)): json.loads(path.read_text())["figures"] for path in paths}


def test_a_reproduction_has_the_records_it_has_here(cluster_address, tmp_path):
    studies = [quick(study) for study in select(["table3"])]
    options = {"recipes": ("default",), "repeats": 2, "loader": city_as_any_set}
    reproduce(studies, tmp_path / "here", jobs=1, **options)
    reproduce(studies, tmp_path / "ray", spread=RayTasks(cluster_address), **options)
    here = records(tmp_path / "here")
    assert len(here) >= 2
    assert records(tmp_path / "ray") == here


def test_joblib_on_the_cluster(cluster_address):
    halves = [np.arange(0, 400), np.arange(400, 800)]
    base = SnefyLDL(epochs=2, n_neurons=16, n_readouts=8, guides=None, random_state=0)
    learners = {"near": AAKNN(), "linear": SABFGS(max_iter=20)}
    bag = DensityWeightedBagging(AAKNN(), DirichletLDL(), n_members=4, n_samples=50, n_jobs=2, random_state=0)
    here = fit_many(base, CITY.X, CITY.D, halves, n_jobs=1)
    table = compare(learners, CITY.X, CITY.D, cv=3, random_state=0)
    members = bag.fit(CITY.X, CITY.D).predict(CITY.X[:9])
    with ray_jobs(cluster_address):
        there = fit_many(base, CITY.X, CITY.D, halves, n_jobs=2)
        again = compare(learners, CITY.X, CITY.D, cv=3, random_state=0, n_jobs=2)
        np.testing.assert_array_equal(bag.fit(CITY.X, CITY.D).predict(CITY.X[:9]), members)
        with pytest.raises(InputError, match="neither pyarrow nor fsspec"):  # as it is raised here
            Parallel(n_jobs=2)(delayed(Place("nowhere://x").open)() for _ in range(2))
    for first, second in zip(here, there):
        np.testing.assert_array_equal(first.predict(CITY.X[:50]), second.predict(CITY.X[:50]))
    assert again.to_markdown() == table.to_markdown()
