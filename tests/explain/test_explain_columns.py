"""What columns are worth: shuffled columns."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from snefy_ldl import SnefyLDL
from snefy_ldl.apps.reports import JudgedRows, make_report
from snefy_ldl.datasets import make_annotators, make_city_districts
from snefy_ldl.errors import InputError
from snefy_ldl.explain import permutation_importance

CITY = make_city_districts(n=120, random_state=0)


class Line:
    """Shares that the first column alone moves, in a straight line; the second is a text."""

    label_names_ = ("no", "yes")

    def predict(self, X: pd.DataFrame) -> np.ndarray:
        yes = 0.5 + 0.1 * X["a"].to_numpy(float) + 0.2 * (X["b"] == "up").to_numpy(float)
        return np.stack([1 - yes, yes], 1)

    def predict_dist(self, X: pd.DataFrame) -> torch.distributions.Dirichlet:
        return torch.distributions.Dirichlet(torch.from_numpy(50.0 * self.predict(X)))


def line_rows() -> pd.DataFrame:
    return pd.DataFrame({"a": [-1.0, 0.0, 1.0, 2.0], "b": ["up", "down", "up", "down"], "c": [1, 2, 3, 4]})


@pytest.mark.slow
def test_likelihood_is_what_a_report_says() -> None:
    model = SnefyLDL(epochs=5, random_state=0).fit(CITY.X, CITY.D)
    rows = JudgedRows(CITY.X, CITY.D, list(CITY.label_names))
    report = {one.column: one for one in make_report(model, rows, random_state=1).importance}
    mine = permutation_importance(model, CITY.X, CITY.D)
    for entry in mine.entries:  # other shuffles of the same rows: they agree as far as either knows
        other = report[entry.column]
        assert abs(entry.loss - other.loss) < 5 * np.hypot(entry.std_error, other.std_error) + 1e-6
    assert mine.entries[0].loss == max(mine.frame["estimate"])


def test_unused_columns_lose_nothing() -> None:
    rows = pd.concat([line_rows()] * 10, ignore_index=True)
    D = Line().predict(rows) * 0.98 + 0.01
    found = permutation_importance(Line(), rows, D)
    assert "<table" in found._repr_html_()
    frame = found.frame.set_index("term")
    assert frame.loc["c", "estimate"] == 0.0
    assert frame.loc["a", "estimate"] > 0.0
    assert frame.loc["b", "estimate"] > 0.0


@pytest.mark.slow
def test_votes_and_what_is_wrong() -> None:
    votes = make_annotators(n=80, random_state=0)
    model = SnefyLDL(epochs=2, random_state=0).fit(votes.X, counts=votes.counts)
    assert len(permutation_importance(model, votes.X, counts=votes.counts).entries) == votes.X.shape[1]
    with pytest.raises(InputError, match="either"):
        permutation_importance(model, votes.X)
