"""coverage_report: its figures against the metrics, and its forms."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from known_models import KnownModel
from rich.console import Console

from snefy_ldl import metrics
from snefy_ldl.conformal import ConformalIntervals, coverage_report
from snefy_ldl.errors import InputError


@pytest.fixture(scope="module")
def case():
    model = KnownModel()
    X, D = model.draw(900, seed=1)
    groups = np.where(X[:, 0] > 0, "right", "left")
    return model, X[:300], D[:300], X[300:], D[300:], groups[300:]


def rows_of(report, part):
    return [row for row in report.table if row["part"] == part]


def one(report, part, name=None):
    (row,) = (row for row in rows_of(report, part) if name in (None, row["name"]))
    return row


@pytest.mark.slow
def test_figures_are_the_metrics(case):
    model, X_cal, D_cal, X, D, groups = case
    ci = ConformalIntervals(model, 0.9).conformalize(X_cal, D_cal)
    report = coverage_report(ci, X, D, groups=groups, label_names=["a", "b", "c"])
    ends = ci.predict_interval(X)
    row = one(report, "marginal")
    assert (row["coverage"], row["std_error"]) == metrics.coverage(D, ends, return_std_error=True)
    assert row["width"] == metrics.interval_width(ends)
    assert row["score"] == pytest.approx(metrics.interval_score(D, ends, 0.9), rel=1e-12)
    assert (row["level"], row["expected"], row["n"]) == (0.9, 0.9, 600)
    assert one(report, "joint")["coverage"] == metrics.joint_coverage(D, ends)
    assert one(report, "joint")["expected"] is None  # nobody promised it
    assert one(report, "label", "b")["coverage"] == metrics.coverage(D, ends, per_label=True)[1]
    left = metrics.conditional.group_coverage(groups, D, ends)["left"]
    assert one(report, "group", "left")["coverage"] == pytest.approx(left.mean())
    assert one(report, "worst group")["expected"] < 0.9
    ssc = one(report, "SSC")
    assert ssc["coverage"] == metrics.size_stratified_coverage(D, ends, 4).mean()
    assert ssc["expected"] == metrics.conditional.ssc_ceiling(ends, 4, 0.9).mean()
    fsc = one(report, "FSC", "8 groups, mean label")
    assert fsc["coverage"] == metrics.feature_stratified_coverage(X[:, 0], D, ends, 8).mean()
    assert fsc["expected"] == metrics.conditional.fsc_ceiling(X[:, 0], 8, 0.9)
    dist = model.predict_dist(X)
    predicted = np.hstack([dist.mean.numpy(), np.sqrt(dist.variance.numpy())])
    slab = one(report, "worst slab")
    assert (slab["coverage"], slab["expected"]) == (metrics.worst_slab_coverage(predicted, D, ends).mean(), 0.9)
    joint = ConformalIntervals(model, 0.9, simultaneous=True).conformalize(X_cal, D_cal)
    assert one(coverage_report(joint, X, D), "joint")["expected"] == 0.9


def test_a_plain_model_is_judged_by_its_own_intervals(case):
    model, _, _, X, D, _ = case
    report = coverage_report(model, X, D, confidence_level=[0.5, 0.9], feature=None)
    by_level = {row["level"]: row["coverage"] for row in rows_of(report, "marginal")}
    assert abs(by_level[0.5] - 0.5) < 0.06  # the right model: within four standard errors
    assert abs(by_level[0.9] - 0.9) < 0.04
    assert not rows_of(report, "FSC")


@pytest.mark.slow
def test_calibrations_with_groups_get_them(case):
    model, X_cal, D_cal, X, D, groups = case
    sides = np.where(X_cal[:, 0] > 0, "right", "left")
    made = ConformalIntervals(model).conformalize(X_cal, D_cal, groups=sides)
    assert len(rows_of(coverage_report(made, X, D, groups=groups), "group")) == 2
    with pytest.raises(InputError, match="calibration used groups"):
        coverage_report(made, X, D)


@pytest.mark.slow
def test_forms(case):
    model, X_cal, D_cal, X, D, _ = case
    ci = ConformalIntervals(model, [0.8, 0.9]).conformalize(X_cal, D_cal)
    names = ["<b>", "two", "three"]
    report = coverage_report(ci, pd.DataFrame(X, columns=["u", "v"]), pd.DataFrame(D, columns=names), feature="v")
    assert [row["name"] for row in rows_of(report, "label")] == names * 2
    by_name = [row["coverage"] for row in rows_of(report, "FSC")]
    assert by_name == [row["coverage"] for row in rows_of(coverage_report(ci, X, D, feature=1), "FSC")]
    assert by_name == [row["coverage"] for row in rows_of(coverage_report(ci, X, D, feature=X[:, 1]), "FSC")]
    frame = report.to_frame()
    assert len(frame) == len(report.table)
    assert "marginal" in str(report)
    console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(report)
    assert "SSC" in console.export_text()
    console.file.close()
    with pytest.raises(InputError, match="2 names for 3 labels"):
        coverage_report(ci, X, D, label_names=["a", "b"])


def test_joint_calibration_is_said_under_the_table(case):
    """The right model's p-value is uniform, so this seed's alarm would be one in a hundred; a wrong one's is tiny."""
    model, X_cal, D_cal, X, D, _ = case
    X, D = X[:300], D[:300]
    ci = ConformalIntervals(model, 0.9, method="absolute").conformalize(X_cal, D_cal)
    right, wrong = (coverage_report(one, X, D, feature=None) for one in (ci, model.wrong()))
    assert right.joint_calibration.calibrated
    assert not wrong.joint_calibration.calibrated
    expected = metrics.joint_calibration_test(metrics.joint_pit(model, X, D))
    assert right.joint_calibration.p_value == expected.p_value
    assert "joint calibration: the model is off" in " ".join(str(wrong).split())
