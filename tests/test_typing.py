"""What mypy makes of a user's script: right lines pass, lines with a typing mistake do not."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

SCRIPT = """
import numpy as np
from snefy_ldl import AutoLDL, GroupedLDL, LogRatioLDL, SnefyLDL, fit_many, load, load_dataset
from snefy_ldl.conformal import ConformalIntervals
from snefy_ldl.datasets import make_city_districts
from snefy_ldl.logratios import clr
from snefy_ldl.metrics import kl_divergence

city = make_city_districts(n=100, random_state=0)
model = SnefyLDL(epochs=2, n_neurons=16, hidden_sizes=(32,), guides=None, random_state=0).fit(city.X, y=city.D)
mean = model.predict(city.X)
low_high = model.predict_interval(city.X, confidence_level=0.8)
medians = model.predict_quantiles(city.X, [0.5])
dist = model.predict_dist(city.X)
one = dist.marginal(0).cdf(0.5)
both = dist.marginal([0, 1]).mean
later = dist.posterior(np.eye(3)).mean
intervals = ConformalIntervals(model, 0.9).conformalize(city.X, city.D).predict_interval(city.X)
auto = AutoLDL(random_state=0).fit(city.X, city.D)
print(auto.choice_, auto.predict_zero(city.X), LogRatioLDL(random_state=0).fit(city.X, city.D).sample(city.X, 3))
grouped = GroupedLDL(SnefyLDL()).fit(city.X, city.D, groups=city.D[:, 0] > 0.5)
grouped.predict(city.X, groups=city.D[:, 0] > 0.5)
models = fit_many(SnefyLDL(), city.X, city.D, [np.arange(50)], [{"learning_rate": 1e-3}])
again = load(model.save("folder"))
ratios = clr(city.D)
error = kl_divergence(city.D, mean)

SnefyLDL(epoch=3)  # wrong
SnefyLDL(64)  # wrong
model.predict_intervals(city.X)  # wrong
model.predict(city.X, group=1)  # wrong
model.fit(city.X, city.D, weight=1)  # wrong
auto.predict_intervals(city.X)  # wrong
LogRatioLDL(epochs=3)  # wrong
dist.marginals(0)  # wrong
dist.marginal(0).quantile(0.5)  # wrong
grouped.adopt_group(city.X)  # wrong
"""


@pytest.mark.slow
def test_mistakes_of_a_user_are_found_and_nothing_else(tmp_path: Path) -> None:
    from mypy import api

    root = Path(__file__).parent.parent
    script = tmp_path / f"script_{time.time_ns()}.py"  # the cache would answer with the path of an earlier run
    script.write_text(SCRIPT)
    options = ["--config-file", str(root / "pyproject.toml"), "--cache-dir", str(root / ".mypy_cache")]
    said, trouble, _ = api.run([*options, str(script)])
    found = {int(line.split(":")[1]) for line in said.splitlines() if line.startswith(str(script)) and "error" in line}
    wrong = {number for number, line in enumerate(SCRIPT.splitlines(), 1) if line.endswith("# wrong")}
    assert found == wrong, said + trouble
