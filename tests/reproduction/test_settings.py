"""Fingerprints, recipes, the paper's own figures, and the command line."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tiny_studies import STUDIES, TINY, tiny_data

from reproduction import config, runner
from reproduction.__main__ import main
from reproduction.claims import TABLES
from reproduction.config import Active, Conformal, Ensemble
from reproduction.runner import data_digest, fingerprint
from reproduction.studies import make_model, started
from snefy_ldl import SnefyLDL
from snefy_ldl.datasets import make_city_districts
from snefy_ldl.networks.net import paper_init
from snefy_ldl.training import prepare


def test_the_fingerprint_knows_what_decides():
    study, data = STUDIES["conformal"], data_digest(tiny_data("city"))
    own = fingerprint(study, "default", data)
    assert own == fingerprint(replace(study, repeats=99, chunk=1), "default", data)
    others = [
        fingerprint(study, "raw", data),
        fingerprint(study, "baseline", data),
        fingerprint(study, "default", data_digest(make_city_districts(n=160, random_state=4))),
        fingerprint(replace(study, protocol=Conformal(level=0.8)), "default", data),
        fingerprint(replace(study, model=(*TINY[:3], ("epochs", 4))), "default", data),
        fingerprint(replace(study, name="table2"), "default", data),
    ]
    assert len({own, *others}) == 7


def test_the_recipes_are_the_papers_and_ours():
    assert make_model(config.STUDIES["table3"], "default").get_params() == SnefyLDL(device="cpu").get_params()
    assert (
        make_model(config.STUDIES["table4"], "raw").get_params() == SnefyLDL.paper("active", device="cpu").get_params()
    )
    sgd = make_model(config.STUDIES["table6"], "sgd-0.1-standard-linear")
    assert (sgd.recipe, sgd.learning_rate, sgd.standardize) == ("paper-sgd", 0.1, "unit")


@pytest.mark.parametrize("recipe", ["sgd-0.001-raw-normal", "sgd-0.001-raw-linear"])
def test_the_start_is_that_of_the_recipe(recipe):
    city = make_city_districts(n=40, random_state=0)
    with started(recipe):
        net = make_model(STUDIES["conformal"], recipe, 0, epochs=1, n_neurons=500).fit(city.X, city.D).net_
    exponents = net.exponents.detach().numpy().ravel()
    if recipe.endswith("linear"):  # uniform within one over the root of three labels, cut at -.495
        assert exponents.max() == pytest.approx(3**-0.5, abs=0.01)
        assert exponents[exponents > 0].mean() == pytest.approx(0.5 * 3**-0.5, abs=0.02)
    else:
        assert np.std(exponents[exponents > 0]) == pytest.approx((2 / 3) ** 0.5 * (1 - 2 / np.pi) ** 0.5, abs=0.03)
    assert prepare.paper_init is paper_init


def test_the_plan_is_the_papers():
    studies = config.STUDIES
    assert list(studies) == ["table2", "table3", "table4", "table5", "table6", "table7", "figureA1"]
    assert [study.repeats for study in studies.values()] == [100, 100, 10, 10, 10, 10, 10]
    for name, table in TABLES.items():
        assert table.dataset == studies[name].dataset
        assert table.splits == studies[name].repeats
    rows = {one.name for one in Active().queries}
    assert {strategy for strategy, _ in TABLES["table4"].cells} == rows
    assert {learner for learner, _, _ in TABLES["table6"].cells} | {"LDL-LRR, alpha .001"} == {
        name for name, *_ in Ensemble().learners
    }


def test_published_cells():
    typed = {  # from the paper's own tables
        "table2": [("snefy", "8", "8"), (0.4096, 0.2741)],
        "table3": [("dirichlet", "8", "4"), (0.0793, 0.2388)],
        "table4": [("SNEFY-LDL", "kl"), (0.1209, 0.0049)],
        "table5": [("Kmeans", "kl"), (1.0498, 0.1078)],
        "table6": [("LDL-LRR", "Average", "canb"), (0.8478, 0.0131)],
        "table7": [("SA-BFGS", "Weighted", "cheby"), (0.0842, 0.0084)],
    }
    assert {name: table.cells[typed[name][0]] for name, table in TABLES.items()} == {
        n: c for n, (_, c) in typed.items()
    }


@pytest.mark.parametrize(
    ("words", "message"),
    [("table9", "no study 'table9'"), ("--recipe papr", "use any of raw, standard"), ("--repeats 0", "--repeats")],
)
def test_wrong_usage(words, message, tmp_path, capsys):
    with pytest.raises(SystemExit) as exit_:
        main([*words.split(), "--out", str(tmp_path / "out")])
    assert exit_.value.code == 2
    assert message in capsys.readouterr().err


def test_the_command_runs_and_reports(tmp_path, monkeypatch, capsys):
    study = replace(STUDIES["ensemble"], repeats=1)
    asked, original = {}, runner.reproduce

    def fake(studies, out, **options):
        asked.update(options, names=[one.name for one in studies], repeats_of=[one.repeats for one in studies])
        return original([study], out, recipes=["default"], jobs=1, loader=tiny_data)

    monkeypatch.setattr(runner, "reproduce", fake)
    out = tmp_path / "out"
    main(["table3", "TABLE2", "--quick", "--jobs", "1", "--out", str(out)])
    assert asked["names"] == ["table2", "table3"]
    assert asked["repeats_of"] == [4, 4]
    assert asked["recipes"] == list(config.RECIPES)
    assert str(out) in capsys.readouterr().out
    main(["--report-only", "--out", str(out), "--page", str(tmp_path / "page")])
    assert (tmp_path / "page" / "reproduction.md").read_text() == (out / "reproduction.md").read_text()
