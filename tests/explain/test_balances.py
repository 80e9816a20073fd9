"""The table of linear effects on balances, against R's formulas written out plainly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from scipy.linalg import helmert

from snefy_ldl.errors import InputError
from snefy_ldl.explain import logratio_effects
from snefy_ldl.logratio import LogRatioLDL
from snefy_ldl.logratios import ilr

NAMES = ["sand", "silt", "clay"]
random = np.random.default_rng(0)
X = pd.DataFrame(random.normal(size=(60, 2)), columns=["rain", "slope"])
groups = np.repeat(np.arange(12), 5)
z = X.to_numpy() @ np.array([[0.5, -0.2], [0.0, 0.3]]) + 0.4 * random.normal(size=(60, 2))
z += 0.5 * random.normal(size=(12, 2))[groups]
D = np.exp(z @ helmert(3))
D = pd.DataFrame(D / D.sum(1, keepdims=True), columns=NAMES)


@pytest.fixture(scope="module")
def model() -> Any:
    return LogRatioLDL(n_components=1, guides=["ridge"]).fit(X, D)


def test_ilr_is_what_lm_computes(model: Any) -> None:
    table = logratio_effects(model, X, D)
    assert table["balance"].tolist() == ["sand/silt"] * 3 + ["sand+silt/clay"] * 3
    for column, (name, part) in enumerate(table.groupby("balance", sort=False)):
        y = ilr(D)[name].to_numpy()
        for row, x in enumerate(["rain", "slope"], 1):  # Frisch-Waugh: a slope is that of what the other leaves
            other = np.column_stack([np.ones(60), X.drop(columns=x)])
            left = X[x] - other @ np.linalg.lstsq(other, X[x], rcond=None)[0]
            slope = float(left @ y / (left @ left))
            full = np.column_stack([np.ones(60), X])
            errors = y - full @ np.linalg.lstsq(full, y, rcond=None)[0]
            error = float(np.sqrt(errors @ errors / 57 / (left @ left)))
            found = part.iloc[row]
            expected = [slope, error, slope / error, 2 * stats.t.sf(abs(slope / error), 57)]
            np.testing.assert_allclose(found[["estimate", "std_error", "statistic", "p_value"]].astype(float), expected)
        assert abs(part.iloc[1]["estimate"] - [0.5, -0.2][column]) < 0.3


def test_groups_widen_standard_errors_as_cr1_does(model: Any) -> None:
    found = logratio_effects(model, X, D, {"mine": ("clay", ["sand", "silt"])}, groups=groups)
    full = np.column_stack([np.ones(60), X])
    y = np.sqrt(2 / 3) * (np.log(D["clay"]) - 0.5 * np.log(D["sand"]) - 0.5 * np.log(D["silt"])).to_numpy()
    bread = np.linalg.inv(full.T @ full)
    errors = y - full @ (bread @ full.T @ y)
    meat = sum(np.outer(s, s) for s in (full[groups == g].T @ errors[groups == g] for g in range(12)))
    cov = 12 / 11 * 59 / 57 * bread @ meat @ bread
    np.testing.assert_allclose(found["std_error"], np.sqrt(np.diag(cov)))
    np.testing.assert_allclose(found["conf_high"] - found["estimate"], stats.t.ppf(0.975, 11) * np.sqrt(np.diag(cov)))


def test_rows_with_zeros_are_left_out_of_their_balances(model: Any) -> None:
    holes = D.copy()
    holes.loc[:4, "silt"] = 0.0
    holes = holes.div(holes.sum(axis=1), axis=0)
    found = logratio_effects(model, X, holes, {"a": ("sand", "clay"), "b": ("sand", "silt")})
    assert found["rows"].tolist() == [60] * 3 + [55] * 3


@pytest.mark.parametrize(
    ("basis", "words"),
    [("alr", "use "), ({"a": ("sand", "sand")}, "each once"), ({"a": ("gold", "clay")}, "no label 'gold'")],
)
def test_wrong_balances_are_named(model: Any, basis: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        logratio_effects(model, X, D, basis)
