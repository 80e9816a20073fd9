"""Measures over batches equal those over all rows at once."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from door_models import fitted
from snefy_ldl import metrics
from snefy_ldl.errors import InputError

pytest.importorskip("torchmetrics", reason="metrics over batches need the extra metrics")
from torchmetrics import MetricCollection

from snefy_ldl.integrations.torchmetrics import LabelDistributionMetric, NegativeLogLikelihood


def test_batches_add_up() -> None:
    model, X, D = fitted("plain")
    kinds = {name: LabelDistributionMetric(name) for name in metrics.HIGHER_IS_BETTER}
    collection = MetricCollection({**kinds, "nll": NegativeLogLikelihood()})
    for rows in np.array_split(np.arange(len(X)), 7):
        collection.update(model.predict_dist(X[rows]), torch.as_tensor(D[rows]))
    answers = collection.compute()
    for name, value in metrics.score(D, model.predict(X)).items():
        assert float(answers[name]) == pytest.approx(value, rel=1e-9)
    assert float(answers["nll"]) == pytest.approx(-model.score(X, D), rel=1e-9)
    collection.reset()
    assert int(collection["nll"].rows) == 0


def test_better_is_known_and_others_are_refused() -> None:
    assert LabelDistributionMetric("cosine").higher_is_better
    assert not LabelDistributionMetric("clark").higher_is_better
    with pytest.raises(InputError, match="kl_divergence"):
        LabelDistributionMetric("accuracy")
