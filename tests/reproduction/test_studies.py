"""Each study's figures against an independent route."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_studies import GRID, QUERIES, STUDIES, TINY, records, tiny_data

from reproduction import config
from reproduction.studies import held_out_rows, make_model, parted_rows, run_conformal
from snefy_ldl.ensemble import DensityWeightedBagging
from snefy_ldl.learners import SABFGS, DirichletLDL
from snefy_ldl.metrics.points import kl_divergence


@pytest.mark.slow
def test_every_repeat_has_its_file_and_its_place(whole_run):
    found = records(whole_run)
    counts: dict[str, int] = {}
    for place, record in found.items():
        folder = Path(place).parent
        counts[folder.as_posix()] = counts.get(folder.as_posix(), 0) + 1
        assert place == f"results/{record['study']}/{record['recipe']}/{record['repeat']:03d}.json"
        assert record["version"] == 1
        assert record["dataset"] == "city"
    assert counts == {
        **{f"results/table3/{recipe}": 5 for recipe in (*config.RECIPES, "baseline")},
        **{f"results/{name}/{recipe}": 3 for name in ("table4", "table6", "figureA1") for recipe in config.RECIPES},
    }
    about = json.loads((whole_run / "run.json").read_text())
    assert about["repeats"] == {"table3": 5, "table4": 3, "table6": 3, "figureA1": 3}
    assert about["recipes"] == list(config.RECIPES)
    assert about["wall_seconds"] > 0
    assert about["started"] <= about["finished"]
    assert about["machine"]["torch"] == torch.__version__.split("+")[0] or torch.__version__.startswith(
        about["machine"]["torch"]
    )


@pytest.mark.slow
def test_conformal_figures_by_hand(whole_run):
    data, study = tiny_data("city"), STUDIES["conformal"]
    record = records(whole_run)["results/table3/default/004.json"]["figures"]
    train, calibration, test = parted_rows(160, 4, 0.5, 0.25)
    assert sorted([*train, *calibration, *test]) == list(range(160))
    model = make_model(study, "default", 4).fit(data.X[train], data.D[train])
    # Algorithm A1 in plain NumPy: k = √10, the ⌈0.9 (n + 1)⌉-th smallest score
    k = np.sqrt(10.0)
    mean, sd = model.predict(data.X[calibration]), np.sqrt(model.predict_var(data.X[calibration]))
    scores = np.sort(np.abs(data.D[calibration] - mean) / (k * sd), axis=0)
    q = scores[int(np.ceil(0.9 * (len(calibration) + 1))) - 1]
    mean, sd = model.predict(data.X[test]), np.sqrt(model.predict_var(data.X[test]))
    low, high = np.clip(mean - k * q * sd, 0, 1), np.clip(mean + k * q * sd, 0, 1)
    covered = (data.D[test] >= low) & (data.D[test] <= high)
    own = record["models"]["snefy"]
    np.testing.assert_allclose(own["coverage"], covered.mean(0), atol=1e-9)
    np.testing.assert_allclose(own["width"], (high - low).mean(0), rtol=1e-3)
    feature = data.X[test, 0]
    edges = np.linspace(feature.min(), feature.max(), 5)
    group = np.clip(np.searchsorted(edges, feature, side="right") - 1, 0, 3)
    worst = np.min([covered[group == g].mean(0) for g in range(4) if (group == g).any()], axis=0)
    np.testing.assert_allclose(own["fsc"]["4"], worst, atol=1e-9)
    assert set(record["methods"]) == {"snefy_quantile"}
    assert 0.0 < record["ceiling"]["4"] <= record["ceiling"]["2"] <= 0.9


@pytest.mark.slow
def test_the_dirichlet_baseline_is_under_its_own_recipe(whole_run):
    found = records(whole_run)["results/table3/baseline/000.json"]["figures"]
    assert set(found["models"]) == {"dirichlet"}
    assert len(found["models"]["dirichlet"]["coverage"]) == 3


@pytest.mark.parametrize("recipe", config.RECIPES)
@pytest.mark.slow
def test_active_figures_by_hand(whole_run, recipe):
    data, study = tiny_data("city"), STUDIES["active"]
    found = records(whole_run)[f"results/table4/{recipe}/001.json"]["figures"]
    assert list(found["strategies"]) == [one.name for one in QUERIES]
    train, test = held_out_rows(160, 1, 0.1)
    assert len(test) == 16
    first, pool = train[:40], np.sort(train[40:])
    asked = DirichletLDL(random_state=1).fit(data.X[first], data.D[first])
    # the largest differential entropies of one Dirichlet, taken from torch
    entropy = torch.distributions.Dirichlet(torch.as_tensor(asked._alpha(data.X[pool]))).entropy().numpy()
    rows = np.concatenate([first, pool[np.argsort(-entropy)[:10]]])
    lone = make_model(study, recipe, 1).fit(data.X[rows], data.D[rows])
    value = kl_divergence(data.D[test], lone.predict(data.X[test]))
    assert found["strategies"]["Dirichlet"]["kl"] == pytest.approx(value, rel=1e-3)
    start = make_model(study, recipe, 1).fit(data.X[first], data.D[first])
    assert found["start"]["log_likelihood"] == pytest.approx(start.score(data.X[test], data.D[test]), abs=1e-3)


@pytest.mark.slow
def test_ensemble_figures_by_hand(whole_run):
    data, study = tiny_data("city"), STUDIES["ensemble"]
    found = {recipe: records(whole_run)[f"results/table6/{recipe}/002.json"]["figures"] for recipe in config.RECIPES}
    # the plain average does not depend on the recipe, to the last bit: the members are the same
    for name in found["paper"]["learners"]:
        assert found["paper"]["learners"][name]["Average"] == found["default"]["learners"][name]["Average"]
    train, test = held_out_rows(160, 2, 0.1)
    density = make_model(study, "default", 2).fit(data.X[train], data.D[train])
    base = SABFGS(l2=0.0, standardize=False)
    bag = DensityWeightedBagging(base, density, n_members=4, n_samples=20, random_state=2)
    bag.fit(data.X[train], data.D[train])
    own = found["default"]["learners"]["SA-BFGS"]
    assert own["Weighted"]["kl"] == pytest.approx(kl_divergence(data.D[test], bag.predict(data.X[test])), rel=1e-3)
    members = bag.predict_members(data.X[test])
    assert own["Average"]["kl"] == pytest.approx(kl_divergence(data.D[test], members.mean(0)), rel=1e-9)
    p = np.exp([density.log_prob(data.X[test], member) for member in members])
    by_hand = (p**1 / p.sum(0))[:, :, None] * members
    assert own["Weighted"]["kl"] == pytest.approx(kl_divergence(data.D[test], by_hand.sum(0)), rel=1e-3)
    assert found["default"]["effective_members"]["SA-BFGS"] == pytest.approx(
        float((1.0 / ((p / p.sum(0)) ** 2).sum(0)).mean()), rel=1e-3
    )


@pytest.mark.slow
def test_a_setting_of_the_figure_is_that_model(whole_run):
    found = records(whole_run)["results/figureA1/paper/002.json"]["figures"]
    assert {panel: list(values) for panel, values in found["panels"].items()} == {
        "n_neurons": ["4", "6"],
        "epochs": ["2", "3"],
    }
    # the recipe's own setting is one model, shown in both panels
    assert found["panels"]["n_neurons"]["6"] == found["panels"]["epochs"]["3"]
    assert found["panels"]["n_neurons"]["4"] != found["panels"]["n_neurons"]["6"]
    data, study = tiny_data("city"), STUDIES["figure"]
    alone = replace(study, name="table3", protocol=GRID.protocol, model=(*TINY[1:], ("n_neurons", 4)))
    (outcome,) = run_conformal(alone, "paper", [2], data)
    block = outcome.figures["models"]["snefy"]
    assert found["panels"]["n_neurons"]["4"]["width"] == pytest.approx(np.mean(block["width"]), rel=1e-4)
    assert found["panels"]["n_neurons"]["4"]["fsc"]["2"] == pytest.approx(np.mean(block["fsc"]["2"]), rel=1e-4)
