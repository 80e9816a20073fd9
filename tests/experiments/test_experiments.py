"""The experiments: protocols against independent routes, records that survive a kill, and the command line."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from snefy_ldl import SnefyLDL
from snefy_ldl.active import query
from snefy_ldl.cli import app
from snefy_ldl.datasets.named import Dataset
from snefy_ldl.ensemble import DensityWeightedBagging
from snefy_ldl.errors import InputError
from snefy_ldl.experiments import config, runner
from snefy_ldl.experiments.config import Active, Conformal, Ensemble, Query, Sensitivity, Study
from snefy_ldl.experiments.published import TABLES
from snefy_ldl.experiments.records import data_digest, fingerprint
from snefy_ldl.experiments.studies import conformal as conformal_study
from snefy_ldl.experiments.studies import sensitivity as sensitivity_study
from snefy_ldl.experiments.studies.common import held_out_rows, make_model, parted_rows
from snefy_ldl.learners import SABFGS, DirichletLDL
from snefy_ldl.metrics.points import kl_divergence
from snefy_ldl.synthetic import make_city_districts

TINY = (("n_neurons", 6), ("n_readouts", 3), ("hidden_sizes", (8,)), ("epochs", 3))
QUERIES = (
    Query("Random", "random"),
    Query("Kmeans", "kmeans", paper=(("standardize", False),)),
    Query("Dirichlet", "dirichlet"),
    Query("SNEFY-LDL", "entropy", (("method", "uniform"), ("n_draws", 50))),
)
GRID = Sensitivity(Conformal(groups=(2,)), (("n_neurons", (4, 6)), ("epochs", (2, 3))))
STUDIES = {
    "conformal": Study("table3", "", "city", Conformal(groups=(2, 4)), 5, 3, 1.0, baseline=True, model=TINY),
    "active": Study("table4", "", "city", Active(first=40, queried=10, queries=QUERIES), 3, 2, 1.0, model=TINY),
    "ensemble": Study("table6", "", "city", Ensemble(members=4, rows=20), 3, 2, 1.0, model=TINY),
    "figure": Study("figureA1", "", "city", GRID, 3, 2, 1.0, model=TINY),
}
LOADED: list[str] = []


def tiny_data(name: str) -> Dataset:
    """A made-up city in place of a data set; importable, so that worker processes can load it."""
    LOADED.append(name)
    return make_city_districts(n=160, random_state=3)


def run(studies, out, **options):
    return runner.reproduce(studies, out, loader=tiny_data, **{"jobs": 1, **options})


def records(out: Path) -> dict[str, dict]:
    """Every record by its place, without what may differ: the time it took."""
    found = {}
    for path in sorted(out.glob("results/*/*/*.json")):
        record = json.loads(path.read_text())
        assert record.pop("seconds") >= 0.0
        found[path.relative_to(out).as_posix()] = record
    return found


def assert_same(first: dict[str, dict], second: dict[str, dict], tolerance: float = 1e-9) -> None:
    assert first.keys() == second.keys()
    for place, record in first.items():
        _compare(record, second[place], place, tolerance)


def _compare(a, b, place: str, tolerance: float) -> None:
    if isinstance(a, dict):
        assert a.keys() == b.keys(), place
        for key in a:
            _compare(a[key], b[key], f"{place} {key}", tolerance)
    elif isinstance(a, list):
        assert len(a) == len(b), place
        for left, right in zip(a, b):
            _compare(left, right, place, tolerance)
    elif isinstance(a, float):
        assert a == pytest.approx(b, rel=tolerance), place
    else:
        assert a == b, place


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted run of all four families."""
    out = tmp_path_factory.mktemp("whole")
    run(list(STUDIES.values()), out)
    return out


# -- what is written ---------------------------------------------------------------------------------------------------


def test_every_repeat_has_its_file_and_its_place(whole):
    found = records(whole)
    counts: dict[str, int] = {}
    for place, record in found.items():
        folder = Path(place).parent
        counts[folder.as_posix()] = counts.get(folder.as_posix(), 0) + 1
        assert place == f"results/{record['study']}/{record['recipe']}/{record['repeat']:03d}.json"
        assert record["version"] == 1
        assert record["dataset"] == "city"
    assert counts == {
        **{f"results/table3/{recipe}": 5 for recipe in ("paper", "default", "baseline")},
        **{f"results/{name}/{recipe}": 3 for name in ("table4", "table6", "figureA1") for recipe in config.RECIPES},
    }
    about = json.loads((whole / "run.json").read_text())
    assert about["repeats"] == {"table3": 5, "table4": 3, "table6": 3, "figureA1": 3}
    assert about["recipes"] == ["paper", "default"]
    assert about["wall_seconds"] > 0
    assert about["started"] <= about["finished"]
    assert about["machine"]["torch"] == torch.__version__.split("+")[0] or torch.__version__.startswith(
        about["machine"]["torch"]
    )


def test_conformal_figures_by_hand(whole):
    data, study = tiny_data("city"), STUDIES["conformal"]
    record = records(whole)["results/table3/default/004.json"]["figures"]
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
    # the histogram of the model's own cdf, label by label
    law = model.predict_dist(data.X[test])
    for label, counts in enumerate(own["pit"]):
        cdf = law.marginal(label).cdf(torch.as_tensor(data.D[test, label])).numpy()
        assert counts == np.histogram(cdf, 20, (0, 1))[0].tolist()
        assert sum(counts) == len(test)
    assert set(record["methods"]) == {"snefy_quantile"}
    assert 0.0 < record["ceiling"]["4"] <= record["ceiling"]["2"] <= 0.9


def test_label_cdf_is_the_marginals(whole):
    data = tiny_data("city")
    law = SnefyLDL(**dict(TINY), random_state=0).fit(data.X, data.D).predict_dist(data.X)
    slow = [law.marginal(label).cdf(torch.as_tensor(data.D[:, label])).numpy() for label in range(data.D.shape[1])]
    np.testing.assert_allclose(conformal_study.label_cdf(law, data.D), np.transpose(slow), atol=1e-7)


def test_the_dirichlet_baseline_is_under_its_own_recipe(whole):
    found = records(whole)["results/table3/baseline/000.json"]["figures"]
    assert set(found["models"]) == {"dirichlet"}
    assert len(found["models"]["dirichlet"]["coverage"]) == 3


@pytest.mark.parametrize("recipe", config.RECIPES)
def test_active_figures_by_hand(whole, recipe):
    data, study = tiny_data("city"), STUDIES["active"]
    found = records(whole)[f"results/table4/{recipe}/001.json"]["figures"]
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
    chosen = query("kmeans", data.X[pool], 10, random_state=1, standardize=recipe != "paper")
    assert len(set(chosen)) == 10


def test_ensemble_figures_by_hand(whole):
    data, study = tiny_data("city"), STUDIES["ensemble"]
    found = {recipe: records(whole)[f"results/table6/{recipe}/002.json"]["figures"] for recipe in config.RECIPES}
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


def test_a_setting_of_the_figure_is_that_model(whole):
    found = records(whole)["results/figureA1/paper/002.json"]["figures"]
    assert {panel: list(values) for panel, values in found["panels"].items()} == {
        "n_neurons": ["4", "6"],
        "epochs": ["2", "3"],
    }
    # the recipe's own setting is one model, shown in both panels
    assert found["panels"]["n_neurons"]["6"] == found["panels"]["epochs"]["3"]
    assert found["panels"]["n_neurons"]["4"] != found["panels"]["n_neurons"]["6"]
    data, study = tiny_data("city"), STUDIES["figure"]
    alone = replace(study, name="table3", protocol=GRID.protocol, model=(*TINY[1:], ("n_neurons", 4)))
    (outcome,) = conformal_study.run(alone, "paper", [2], data)
    block = outcome.figures["models"]["snefy"]
    assert found["panels"]["n_neurons"]["4"]["width"] == pytest.approx(np.mean(block["width"]), rel=1e-4)
    assert found["panels"]["n_neurons"]["4"]["fsc"]["2"] == pytest.approx(np.mean(block["fsc"]["2"]), rel=1e-4)


# -- resuming ----------------------------------------------------------------------------------------------------------


def test_nothing_is_run_twice(whole):
    before = {path: path.stat().st_mtime_ns for path in whole.rglob("*.json")}
    run(list(STUDIES.values()), whole)
    assert {path: path.stat().st_mtime_ns for path in whole.rglob("*.json")} == before


def test_the_order_of_runs_does_not_matter(whole, tmp_path):
    run(list(STUDIES.values())[:2], tmp_path, recipes=["default"])
    for path in tmp_path.glob("results/*/default/*[02].json"):
        path.unlink()  # companies that are there in part
    run(list(STUDIES.values()), tmp_path)
    assert_same(records(whole), records(tmp_path))


def test_how_repeats_are_trained_together_changes_last_bits_alone(whole, tmp_path):
    studies = [replace(study, chunk=chunk) for study, chunk in zip(STUDIES.values(), (1, 3, 1, 1))]
    run([replace(study, repeats=1) for study in studies], tmp_path, recipes=["paper"])
    run(studies, tmp_path)
    both = records(whole), records(tmp_path)
    for found in both:
        for place, record in found.items():
            if "table4" in place:  # a query by entropy may turn a last bit into another row
                del record["figures"]["strategies"]["SNEFY-LDL"]
    assert_same(*both, tolerance=1e-4)


@pytest.mark.slow
def test_worker_processes_give_the_same(whole, tmp_path):
    run(list(STUDIES.values()), tmp_path, jobs=2)
    assert_same(records(whole), records(tmp_path))


SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
import test_experiments as tests
if __name__ == "__main__":
    tests.run(list(tests.STUDIES.values()), sys.argv[2], jobs=int(sys.argv[3]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("jobs", "seed"), [(1, 0), (2, 1)])
def test_a_killed_run_goes_on(whole, tmp_path, jobs, seed):
    script = tmp_path / "run.py"
    script.write_text(SCRIPT)
    out = tmp_path / "out"
    # its own session: what the kill leaves alive can be found
    process = subprocess.Popen(
        [sys.executable, str(script), str(Path(__file__).parent), str(out), str(jobs)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    wanted = len(records(whole))
    moment = random.Random(seed).randrange(1, wanted - 2)
    until = time.monotonic() + 120
    while len(list(out.glob("results/*/*/*.json"))) < moment:
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    done = {path: path.read_bytes() for path in out.glob("results/*/*/*.json") if "figureA1" not in path.parts}
    assert 0 < len(records(out)) < wanted  # every file there is whole JSON
    _wait_for_the_end_of_group(process.pid)
    run(list(STUDIES.values()), out)
    assert_same(records(whole), records(out))
    assert all(path.read_bytes() == content for path, content in done.items())
    assert json.loads((out / "run.json").read_text())["finished"] is not None


def _wait_for_the_end_of_group(group: int) -> None:
    """Workers end with their parent: soon the whole process group is gone."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        try:
            os.killpg(group, 0)
        except (ProcessLookupError, PermissionError):
            return
        time.sleep(0.05)
    raise AssertionError("worker processes outlived their killed parent")


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"version": 1}', "fingerprint"])
def test_damaged_and_stale_records_are_redone(tmp_path, damage, capsys):
    study = replace(STUDIES["conformal"], repeats=2)
    run([study], tmp_path, recipes=["default"])
    before = records(tmp_path)
    place = "results/table3/default/001.json"
    path = tmp_path / place
    if damage == "fingerprint":
        record = json.loads(path.read_text())
        path.write_text(json.dumps({**record, "fingerprint": "0", "figures": {"models": {}}}))
    else:
        path.write_text(damage)
    other = (tmp_path / "results/table3/default/000.json").stat().st_mtime_ns
    run([study], tmp_path, recipes=["default"])
    assert_same(before, records(tmp_path))
    assert (tmp_path / "results/table3/default/000.json").stat().st_mtime_ns == other
    assert path.with_suffix(".stale").exists()
    assert "1 damaged or outdated result files were set aside" in " ".join(capsys.readouterr().err.split())


def test_leftovers_of_a_kill_are_swept(tmp_path):
    study = replace(STUDIES["conformal"], repeats=1)
    run([study], tmp_path, recipes=["default"])
    old, young = (tmp_path / f"results/table3/default/.000.json.{name}" for name in ("old", "young"))
    for path in (old, young):
        path.write_text("{")
    os.utime(old, (0, 0))
    run([study], tmp_path, recipes=["default"])
    assert not old.exists()
    assert young.exists()  # another run may be writing it


def test_a_wider_grid_adds_to_the_record(tmp_path):
    study = replace(STUDIES["figure"], repeats=1)
    narrow = replace(study, protocol=replace(GRID, panels=(("n_neurons", (4,)), ("epochs", (2,)))))
    run([narrow], tmp_path, recipes=["default"])
    path = tmp_path / "results/figureA1/default/000.json"
    first = json.loads(path.read_text())
    assert sensitivity_study.missing(study, "default", first["figures"]) == ["base"]
    run([study], tmp_path, recipes=["default"])
    second = json.loads(path.read_text())
    assert second["figures"]["panels"]["epochs"]["2"] == first["figures"]["panels"]["epochs"]["2"]
    assert set(second["figures"]["panels"]["epochs"]) == {"2", "3"}
    assert second["seconds"] > first["seconds"]
    run([narrow], tmp_path, recipes=["default"])
    assert json.loads(path.read_text()) == second


# -- fingerprints and settings -----------------------------------------------------------------------------------------


def test_the_fingerprint_knows_what_decides():
    study, data = STUDIES["conformal"], data_digest(tiny_data("city"))
    own = fingerprint(study, "default", data)
    assert own == fingerprint(replace(study, repeats=99, chunk=1, cost=7.0, title="x"), "default", data)
    others = [
        fingerprint(study, "paper", data),
        fingerprint(study, "baseline", data),
        fingerprint(study, "default", data_digest(make_city_districts(n=160, random_state=4))),
        fingerprint(replace(study, protocol=Conformal(level=0.8)), "default", data),
        fingerprint(replace(study, model=(*TINY[:3], ("epochs", 4))), "default", data),
        fingerprint(replace(study, name="table2"), "default", data),
    ]
    assert len({own, *others}) == 7


def test_the_recipes_are_the_papers_and_ours():
    assert make_model(config.STUDIES["table3"], "default").get_params() == SnefyLDL(device="cpu").get_params()
    paper = make_model(config.STUDIES["table4"], "paper")
    assert (paper.batch_size, paper.epochs, paper.recipe) == (16, 100, "paper")
    assert make_model(config.STUDIES["figureA1"], "paper").batch_size == 64
    with pytest.raises(InputError, match="recipe='other'"):
        make_model(config.STUDIES["table3"], "other")


def test_the_plan_is_the_papers():
    studies = config.STUDIES
    assert list(studies) == ["table2", "table3", "table4", "table5", "table6", "table7", "figureA1"]
    assert [study.repeats for study in studies.values()] == [100, 100, 10, 10, 10, 10, 10]
    for name, table in TABLES.items():
        assert table.dataset == studies[name].dataset
        assert table.splits == studies[name].repeats
    rows = {one.name for one in Active().queries}
    assert {strategy for strategy, _ in TABLES["table4"].cells} == rows - {"entropy"}
    assert {learner for learner, _, _ in TABLES["table6"].cells} == {name for name, _ in Ensemble().learners}
    assert config.quick(studies["figureA1"]).repeats == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"recipes": ["papr"]}, "use paper or default"),
        ({"recipes": []}, "use paper or default"),
        ({"repeats": 0}, "repeats must be at least 1"),
        ({"jobs": 0}, "jobs must be at least 1"),
    ],
)
def test_wrong_arguments_are_told_before_any_work(tmp_path, options, message):
    LOADED.clear()
    with pytest.raises(InputError, match=message):
        run([STUDIES["conformal"]], tmp_path, **options)
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="is a file"):
        run([STUDIES["conformal"]], tmp_path / "file")
    with pytest.raises(InputError, match="no study"):
        run([], tmp_path)
    assert not LOADED


def test_a_pool_too_small_is_told(tmp_path, capsys):
    study = replace(STUDIES["active"], protocol=Active(first=140, queried=10))
    with pytest.raises(InputError, match="too few for a query of 10"):
        run([study], tmp_path)
    assert "table4 paper repeat 0-1 failed" in capsys.readouterr().err


# -- the paper's figures -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "key", "cell"),
    [  # typed from the paper's own tables
        ("table2", ("snefy", "8", "8"), (0.4096, 0.2741)),
        ("table2", ("dirichlet", "4", "2"), (0.1644, 0.3396)),
        ("table3", ("dirichlet", "8", "4"), (0.0793, 0.2388)),
        ("table3", ("snefy", "2", "0"), (0.8948, 0.0175)),
        ("table4", ("SNEFY-LDL", "kl"), (0.1209, 0.0049)),
        ("table4", ("Graph Density", "inter"), (0.8013, 0.0076)),
        ("table5", ("Kmeans", "kl"), (1.0498, 0.1078)),
        ("table5", ("SNEFY-LDL", "cheby"), (0.3474, 0.0160)),
        ("table6", ("SA-BFGS", "Weighted", "cheby"), (0.1137, 0.0023)),
        ("table6", ("LDL-LRR", "Average", "canb"), (0.8478, 0.0131)),
    ],
)
def test_published_cells(table, key, cell):
    assert TABLES[table].cells[key] == cell
    assert TABLES[table].place.startswith(f"Table {table[-1]}, section 6.")


def test_published_tables_are_whole():
    sizes = {name: len(table.cells) for name, table in TABLES.items()}
    assert sizes == {"table2": 54, "table3": 36, "table4": 36, "table5": 36, "table6": 48, "table7": 48}
    assert all(0 < mean < 10 and 0 < std < 1 for table in TABLES.values() for mean, std in table.cells.values())


# -- the command line --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["table9"], "there is no study 'table9'"),
        (["table3", "--recipe", "papr"], "use paper, default"),
        (["table3", "--recipe", ","], "use paper, default"),
        (["table3", "--repeats", "0"], "--repeats"),
        (["--jobs", "none"], "--jobs"),
        (["table3", "--report-only"], "it reports on all"),
    ],
)
def test_wrong_usage(words, message, tmp_path):
    result = CliRunner().invoke(app, ["reproduce", *words, "--out", str(tmp_path / "out")], env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert message in " ".join(result.output.replace("│", " ").split())
    assert not (tmp_path / "out").exists()


def test_the_command_runs_and_reports(tmp_path, monkeypatch):
    study = replace(STUDIES["conformal"], repeats=2)
    asked, original = {}, runner.reproduce

    def fake(studies, out, **options):
        asked.update(options, names=[one.name for one in studies], repeats_of=[one.repeats for one in studies])
        return original([study], out, jobs=1, loader=tiny_data)

    monkeypatch.setattr(runner, "reproduce", fake)
    out = tmp_path / "out"
    result = CliRunner().invoke(app, ["reproduce", "table3", "TABLE2", "--quick", "--jobs", "1", "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert asked["names"] == ["table2", "table3"]
    assert asked["repeats_of"] == [4, 4]
    assert asked["recipes"] == ["paper", "default"]
    assert (out / "report.html").exists()
    assert str(out) in result.output
    (out / "report.html").unlink()
    again = CliRunner().invoke(app, ["reproduce", "--report-only", "--out", str(out)])
    assert again.exit_code == 0, again.output
    assert (out / "report.html").exists()
    nothing = CliRunner().invoke(app, ["reproduce", "--report-only", "--out", str(tmp_path / "none")])
    assert nothing.exit_code == 1
