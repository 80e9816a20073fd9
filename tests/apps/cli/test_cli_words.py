"""What commands tell a person who types them: options of the shell, the extra that is missing, six measures."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from commands import fail, succeed
from snefy_ldl.apps.cli import fit
from snefy_ldl.apps.cli.report_page import LEVELS, verdict
from snefy_ldl.metrics import MEASURES

SIX = ["chebyshev", "clark", "canberra", "kl_divergence", "cosine", "intersection"]
QUICK = ("--set", "epochs=2", "-q", "--set", "guides=null", "--set", "n_neurons=12")


@pytest.fixture(scope="module")
def holes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table with four labels and zeros, and a model of it."""
    folder = tmp_path_factory.mktemp("holes")
    rng = np.random.default_rng(0)
    D = rng.dirichlet(np.ones(4), 120) * (rng.random((120, 4)) > 0.3)
    D[D.sum(1) == 0, 0] = 1.0
    table = pd.DataFrame(rng.normal(size=(120, 2)), columns=["x", "y"])
    table.assign(**dict(zip("abcd", (D / D.sum(1, keepdims=True)).T))).to_csv(folder / "t.csv", index=False)
    succeed("fit", folder / "t.csv", "--labels", "a,b,c,d", "--out", folder / "model", *QUICK)
    return folder


@pytest.mark.slow
@pytest.mark.usefixtures("blank_pictures")
def test_a_report_of_a_model_with_zeros_draws_single_labels(holes: Path, tmp_path: Path) -> None:
    words = ("report", holes / "model", holes / "t.csv", "--folds", 0, "--out", tmp_path)
    succeed(*words)
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "proportions among" in page
    assert "one that begins at zero contains all zeros" in page


def test_texts_without_numbers_name_the_extra(tmp_path: Path) -> None:
    items = pd.DataFrame({"item": range(12), "text": [f"a story about {k} cats" for k in range(12)]})
    items.to_csv(tmp_path / "items.csv", index=False)
    votes = pd.DataFrame({"item": np.repeat(range(12), 3), "annotator": list("abc") * 12, "label": ["no", "yes"] * 18})
    votes.to_csv(tmp_path / "votes.csv", index=False)
    line = fail("fit", tmp_path / "items.csv", "--vote-file", tmp_path / "votes.csv", "--out", tmp_path / "m")
    assert "pip install 'snefy-ldl[text]'" in line


@pytest.mark.slow
def test_compare_has_six_measures_and_more_on_request(holes: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    common = ("--labels", "a,b,c,d", "--learners", "SABFGS", "--folds", 2, "-q", "--out", out)
    words = ("compare", holes / "t.csv", *common)

    def measures(*more: object) -> list[str]:
        succeed(*words, *more)
        return [name for name in pd.read_csv(out) if name in MEASURES]

    assert measures() == SIX
    assert measures("--measures", "kl_divergence,manhattan") == ["kl_divergence", "manhattan"]
    assert measures("--measures", "all") == list(MEASURES)
    assert "--measures entropy: use all, or names" in fail(*words, "--measures", "entropy")


@pytest.mark.parametrize(
    ("p_value", "shift", "said"),
    [
        (0.3, 0.0, "contain 90% of the shares."),
        (1.8e-15, 0.0, "contain 90% of the shares, but whole rows are not calibrated (p = 2e-15)."),
        (1.8e-15, 0.06, "too wide: it is less sure than it could be."),
        (0.3, -0.06, "too narrow: it is too sure."),
    ],
)
def test_a_report_says_whether_intervals_and_whole_rows_are_right(p_value: float, shift: float, said: str) -> None:
    joint = SimpleNamespace(calibrated=p_value > 0.05, p_value=p_value)
    trust = SimpleNamespace(curve=np.array(LEVELS) + shift, joint=joint, coverage=np.full(3, 0.9))
    report: Any = SimpleNamespace(rivals=[], scores=[], trust=trust, rows=range(1000), seen=0.0)
    assert verdict(report).endswith(said)
    report.seen = 0.5
    assert "50% of these rows trained it" in verdict(report)


def test_the_candidate_that_was_kept_is_named_apart_from_those_dropped(capsys: pytest.CaptureFixture[str]) -> None:
    outcomes = {"features": "not chosen", "guides": "kept", "both": "failed"}
    tried = [{"name": name, "outcome": outcome} for name, outcome in outcomes.items()]
    done = {"validation_loss": [-1.5], "rows": 80, "validation_rows": 20, "seconds": 1.0, "device": "cpu", "epochs": 3}
    fit._conclude(SimpleNamespace(training_=done, candidates_=tried), "2 features", Path("m"))
    said = capsys.readouterr().out
    assert "inputs: guides, kept from 3 candidates" in said
    assert "mean log likelihood of the rows held back (shares): 1.5000" in said
