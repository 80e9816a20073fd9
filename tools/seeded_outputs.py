"""Seeded outputs of the library, to show that a change of its code leaves every number as it was.

    python tools/seeded_outputs.py --write before.json      # on the commit before the change
    python tools/seeded_outputs.py --against before.json    # after it: exits 1 and names what differs, and by how much

Prints one line per output: its name, a digest of its numbers (rounded to nine digits) and the largest of them. Compare
on one machine and with one thread: torch and BLAS round differently elsewhere.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import numpy as np
import pandas as pd
import torch

from kinds import ANSWERS, LAWS, numbers_of
from learners.learner_cases import CASES, TEST, TRAIN, D, X
from snefy_ldl import SnefyLDL, SnefySimplex, compare, fit_density, fit_many, logratios, metrics
from snefy_ldl.active import STRATEGIES, query
from snefy_ldl.conformal import ConformalIntervals, ConformalRegion
from snefy_ldl.datasets import make_annotators, make_city_districts, make_groups
from snefy_ldl.ensemble import DensityWeightedBagging
from snefy_ldl.errors import InputError
from snefy_ldl.explain import dependence
from snefy_ldl.learners.enhancement import FCM, GLLE, KM, LEVI, LIBLE, LP, ML, binarise
from snefy_ldl.logratio import LogRatioLDL
from snefy_ldl.tuning import tune
from snefy_ldl.votes import Votes

#: An output that is a table, and its name.
Output = tuple[str, Any]
SMALL: dict[str, Any] = {"n_neurons": 8, "n_readouts": 4, "hidden_sizes": (8,), "epochs": 4, "random_state": 0}
PLAIN = SMALL | {"guides": None, "centre": None, "zeros": "shrink", "standardize": "unit"}
LEVELS = [0.05, 0.3, 0.5, 0.95]


def draws_of(law: SnefySimplex) -> Any:
    """Twenty draws."""
    return law.sample((20,), torch.Generator().manual_seed(1))


def entropy_of(law: SnefySimplex) -> Any:
    """The entropy, from a hundred draws."""
    return law.entropy(100, generator=torch.Generator().manual_seed(2))


#: What is asked of every law: those of three labels that tests build, and those of fitted models.
QUESTIONS: dict[str, Callable[[SnefySimplex], Any]] = {**ANSWERS, "sample": draws_of, "entropy": entropy_of}
FITTED_QUESTIONS: dict[str, Callable[[SnefySimplex], Any]] = {
    "mean": lambda law: law.mean,
    "variance": lambda law: law.variance,
    "covariance": lambda law: law.covariance_matrix,
    "prob_zero": lambda law: law.prob_zero(),
    "prob_greater": lambda law: law.prob_greater(0, 1),
    "quantiles": lambda law: law.quantiles(LEVELS),
    "cdf": lambda law: law.marginal(1).cdf(torch.full(law.batch_shape, 0.3, dtype=law.dtype)),
    "icdf": lambda law: law.marginal([0, 2]).icdf(torch.full(law.batch_shape, 0.6, dtype=law.dtype)),
    "posterior": lambda law: law.posterior([2.0, 0.0, 1.0]).mean,
    "condition": lambda law: law.condition({0: 0.3}, n_draws=200, generator=torch.Generator().manual_seed(3)).mean,
    "rosenblatt": lambda law: law.rosenblatt(torch.full((*law.batch_shape, 3), 1 / 3, dtype=law.dtype)),
    "sample": draws_of,
    "entropy": entropy_of,
}


def ask(questions: dict[str, Callable[[Any], Any]], law: Any, name: str) -> Iterator[Output]:
    """Every answer of a law; where it refuses, the reason."""
    for question, answer in questions.items():
        try:
            value = answer(law)
        except InputError as refusal:
            value = str(refusal)
        yield f"{name}: {question}", value


def laws() -> Iterator[Output]:
    """Answers of laws that are made of numbers."""
    for kind, members, voted in LAWS:
        if (members > 1) != voted:  # the other half takes as long and goes the same ways
            name = f"law, {kind}, {members} members{', votes' if voted else ''}"
            yield from ask(QUESTIONS, numbers_of(kind, members, voted).law(), name)
    concentration = torch.tensor([[2.0, 3.0, 5.0], [9.0, 1.0, 4.0]], dtype=torch.float64)
    mixture = SnefySimplex.from_mixture(torch.tensor([[0.4, 0.6]], dtype=torch.float64), concentration)
    yield from ask(QUESTIONS, mixture.expand((3,)), "law, mixture")


def answers(model: Any, X: Any, D: Any, name: str) -> Iterator[Output]:
    """Answers of a fitted model."""
    yield f"{name}: predict", model.predict(X)
    yield f"{name}: interval", model.predict_interval(X, 0.8)
    yield f"{name}: log_prob", model.log_prob(X, D)
    yield f"{name}: model sample", model.sample(X, 3, random_state=0)
    yield from ask(FITTED_QUESTIONS, model.predict_dist(X), name)


def models() -> Iterator[Output]:
    """Answers of models, fitted in every way there is, and of one read back from its folder."""
    city, votes = make_city_districts(n=160, random_state=0), make_annotators(120, 3, random_state=0, n_features=5)
    people = make_annotators(60, 3, random_state=0, n_features=5, n_annotators=20, long_table=True)
    groups = make_groups(20, 12, n_features=5, effect=1.0, random_state=0)
    X, D, X_new, D_new = city.X[:120], city.D[:120], city.X[120:126], city.D[120:126]
    zeros = np.where(D < 0.2, 0.0, D)
    zeros /= zeros.sum(1, keepdims=True)
    gaps = np.where(np.arange(120)[:, None] % 4, D, [[np.nan, 0.2, np.nan]])
    ways: dict[str, Callable[[], Any]] = {
        "plain": lambda: SnefyLDL(**PLAIN).fit(X, D),
        "paper": lambda: SnefyLDL.paper("active", **SMALL).fit(X, D),
        "members": lambda: SnefyLDL(**PLAIN | {"n_members": 2}).fit(X, D),
        "linear": lambda: SnefyLDL(**PLAIN | {"hidden_sizes": ()}).fit(X, D),
        "network": lambda: SnefyLDL(**PLAIN, backbone=seeded_network()).fit(X, D),
        "sample weights": lambda: SnefyLDL(**PLAIN).fit(X, D, sample_weight=np.linspace(0.5, 2.0, 120)),
        "gaps": lambda: SnefyLDL(**PLAIN).fit(X, gaps),
        "search": lambda: SnefyLDL(**SMALL).fit(X, D),
        "search with zeros": lambda: SnefyLDL(**SMALL).fit(X, zeros),
        "no guides": lambda: SnefyLDL(**SMALL, guides=None).fit(X, D),
        "centre": lambda: SnefyLDL(**PLAIN | {"centre": "geometric"}).fit(X, D),
        "zeros": lambda: SnefyLDL(**PLAIN | {"zeros": "model"}).fit(X, zeros),
        "zeros and centre": lambda: SnefyLDL(**PLAIN | {"zeros": "model", "centre": [1.0, 0.2, 3.0]}).fit(X, zeros),
        "partial": lambda: SnefyLDL(**PLAIN).partial_fit(X[:60], D[:60]).partial_fit(X[60:], D[60:]),
        "groups": lambda: SnefyLDL(**SMALL).fit(groups.X, groups.D, groups=groups.groups),
        "counts": lambda: SnefyLDL(**PLAIN).fit(votes.X, counts=votes.counts),
        "counts, centre": lambda: SnefyLDL(**PLAIN | {"centre": "geometric"}).fit(votes.X, counts=votes.counts),
        "counts, guides": lambda: SnefyLDL(**SMALL).fit(votes.X, counts=votes.counts),
        "annotators": lambda: SnefyLDL(**PLAIN).fit(people.X, votes=Votes.from_long(people.votes)),
        "log-ratios": lambda: LogRatioLDL(n_trees=5, max_iter=10, random_state=0).fit(X, D),
        "fit_density": lambda: fit_density(X, D, snefy=SnefyLDL(**PLAIN), cv=2, random_state=0),
    }
    for name, fit in ways.items():
        model = fit()
        yield from answers(model, X_new, D_new, f"model, {name}")
        yield f"model, {name}: history", [record["loss"] for record in getattr(model, "history_", [])]
        if name == "groups":
            yield "model, groups: known", model.predict(groups.X[:6], groups=groups.groups[:6])
            yield "model, groups: adapted", model.adapt(groups.X[:5], groups.D[:5]).predict(X_new)
        elif name == "annotators":
            yield "model, annotators: one", model.predict_annotator(X_new, model.annotators_.names[0])
        elif name.startswith("counts"):
            yield f"model, {name}: log_prob_counts", model.predict_dist(votes.X).log_prob_counts(votes.counts)
        if name != "network":
            with tempfile.TemporaryDirectory() as folder:
                again = type(model).load(model.save(Path(folder) / "model"))
            yield f"model, {name}: loaded", again.predict_dist(X_new).mean
    folds = [np.arange(0, 80), np.arange(40, 120)]
    yield "fit_many", [model.predict(X_new) for model in fit_many(SnefyLDL(**PLAIN), X, D, folds)]
    space = {"learning_rate": [1e-3, 1e-2]}
    yield "tune", tune(SnefyLDL(**PLAIN), X, D, space, cv=2, random_state=0).best_estimator_.predict(X_new)
    bagging = DensityWeightedBagging(CASES["SABFGS"].learner(), SnefyLDL(**PLAIN), n_members=2, random_state=0)
    yield "bagging", bagging.fit(X, D).predict(X_new)


def seeded_network() -> torch.nn.Module:
    """A small network of one's own."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Tanh())


def learners() -> Iterator[Output]:
    """Predictions of the other learners and of label enhancers."""
    for name, case in CASES.items():
        model = case.learner(random_state=0, **case.quick).fit(X[TRAIN], D[TRAIN])
        yield f"learner, {name}: predict", model.predict(X[TEST])
        with tempfile.TemporaryDirectory() as folder:
            yield f"learner, {name}: loaded", type(model).load(model.save(Path(folder) / "model")).predict(X[TEST])
        if hasattr(model, "predict_dist"):
            yield from ask(FITTED_QUESTIONS, model.predict_dist(X[TEST]), f"learner, {name}")
    logical = binarise(D)
    for enhancer in (FCM, GLLE, KM, LEVI, LIBLE, LP, ML):
        yield f"enhancer, {enhancer.__name__}", enhancer(random_state=0).fit(X, logical).transform()
    quick = {"knn": CASES["AAKNN"].learner(), "bfgs": CASES["SABFGS"].learner()}
    yield "compare", compare(quick, X, D, cv=3).to_markdown()


def uses() -> Iterator[Output]:
    """Conformal prediction, active learning, explanations and metrics, of one model."""
    city = make_city_districts(n=260, random_state=1)
    model = SnefyLDL(**PLAIN | {"n_members": 2}).fit(city.X[:100], city.D[:100])
    calibration, new = slice(100, 220), slice(220, 240)
    X, D, X_new, D_new = city.X[calibration], city.D[calibration], city.X[new], city.D[new]
    for method in ("auto", "chebyshev", "quantile", "beta"):
        for simultaneous in (False, True):
            intervals = ConformalIntervals(model, [0.5, 0.9], method, simultaneous).conformalize(X, D)
            words = ", simultaneous" if simultaneous else ""
            yield f"intervals, {method}{words}", intervals.predict_interval(X_new)
    conditional = ConformalIntervals(model, 0.9, "quantile", conditional_on=[0]).conformalize(X, D)
    yield "intervals, conditional", conditional.predict_interval(X_new)
    cross = ConformalIntervals(CASES["DirichletLDL"].learner(), 0.9, "quantile", cv=3).conformalize(X, D)
    yield "intervals, cross", cross.predict_interval(X_new)
    for method in ("density", "hpd", "mahalanobis"):
        region = ConformalRegion(model, 0.9, method, n_draws=100).conformalize(X, D)
        yield f"region, {method}: p_value", region.p_value(X_new, D_new)
        yield f"region, {method}: volume", region.volume(X_new)
    for strategy in STRATEGIES:
        chosen = query(strategy, X, 5, model=model, X_labeled=city.X[:50], random_state=0, return_utilities=True)
        yield f"query, {strategy}: rows", chosen[0]
        yield f"query, {strategy}: utilities", chosen[1]
    yield "dependence", dependence(model, X, 0, grid=4, max_rows=50).frame
    predicted, band = model.predict(X_new), model.predict_interval(X_new, 0.9)
    for name in metrics.MEASURES:
        yield f"metric, {name}", getattr(metrics, name)(D_new, predicted)
    yield "metric, coverage", metrics.coverage(D_new, band)
    yield "metric, interval_width", metrics.interval_width(band)
    yield "metric, joint_pit", metrics.joint_pit(model, X_new, D_new)


def transforms() -> Iterator[Output]:
    """Log-ratios there and back."""
    basis = logratios.partition_basis([[0, 1], [2, 3]])
    principal = logratios.principal_balances(D)
    yield "log-ratios, clr", logratios.clr(D)
    yield "log-ratios, clr_inverse", logratios.clr_inverse(logratios.clr(D))
    yield "log-ratios, alr", logratios.alr(D, 1)
    yield "log-ratios, alr_inverse", logratios.alr_inverse(logratios.alr(D, 1), 1)
    for name, chosen in {"default": None, "partition": basis, "principal": principal}.items():
        yield f"log-ratios, ilr, {name}", logratios.ilr(D, chosen)
        yield f"log-ratios, ilr_inverse, {name}", logratios.ilr_inverse(logratios.ilr(D, chosen), chosen)
    yield "log-ratios, variation", logratios.variation_matrix(D)


def commands() -> Iterator[Output]:
    """What commands write."""
    from commands import succeed

    city = make_city_districts(n=160, random_state=0)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        frame = pd.DataFrame(np.c_[city.X, city.D], columns=[*city.feature_names, *city.label_names])
        frame[:120].to_csv(folder / "table.csv", index=False)
        frame[120:].to_csv(folder / "new.csv", index=False)
        small = [f"--set={name}={value}" for name, value in {"n_neurons": 4, "guides": None, "centre": None}.items()]
        model, out, new = folder / "model", folder / "out.csv", folder / "new.csv"
        names = ",".join(city.label_names)
        succeed("fit", folder / "table.csv", "--labels", names, "--out", model, "--epochs", "2", "--quiet", *small)
        succeed("predict", model, new, "--interval", "0.9", "--out", out)
        yield "command, predict", pd.read_csv(out)[[name for name in pd.read_csv(out) if name not in frame]]
        succeed("query", model, new, "--n", "5", "--out", out)
        yield "command, query", pd.read_csv(out).select_dtypes("number")
        succeed("conformalize", model, new, "--level", "0.9")
        succeed("predict", model, new, "--out", out)
        yield "command, calibrated", pd.read_csv(out).select_dtypes("number")


PARTS = {part.__name__: part for part in (laws, models, learners, uses, transforms, commands)}


def numbers_in(value: Any) -> tuple[np.ndarray, list[float] | str]:
    """An output as what its digest is made of, and as JSON holds it."""
    if isinstance(value, str):
        return np.frombuffer(value.encode(), np.uint8), value
    table = np.asarray(value.select_dtypes("number") if isinstance(value, pd.DataFrame) else value, dtype=float).ravel()
    digits = np.array([float(f"{number:.9g}") for number in table])
    return digits + 0.0, table.tolist()


def compute(parts: list[Callable[[], Iterator[Output]]]) -> dict[str, list[float] | str]:
    """Every output by its name; prints each."""
    outputs: dict[str, list[float] | str] = {}
    for part in parts:
        start = time.process_time()
        for name, value in part():
            digits, outputs[name] = numbers_in(value)
            largest = f"{np.nanmax(digits):.6g}" if np.isfinite(digits).any() else "none"
            print(name, hashlib.sha256(digits.tobytes()).hexdigest()[:16], f"max {largest}")
        print(f"{part.__name__}: {time.process_time() - start:.1f} s", file=sys.stderr)
    return outputs


def differences(before: dict[str, Any], after: dict[str, Any], tolerance: float) -> list[str]:
    """One line per output that is not what it was."""
    lines = [f"{name}: missing" for name in before if name not in after]
    lines += [f"{name}: new" for name in after if name not in before]
    for name in before.keys() & after.keys():
        old, new = before[name], after[name]
        if isinstance(old, str) or isinstance(new, str) or len(old) != len(new):
            if old != new:
                lines.append(f"{name}: {old!r:.200} became {new!r:.200}")
            continue
        old, new = np.array(old), np.array(new)
        with np.errstate(invalid="ignore"):
            gap = np.where((old == new) | (np.isnan(old) & np.isnan(new)), 0.0, np.abs(old - new))
        if not (gap <= tolerance).all():
            lines.append(f"{name}: differs by up to {np.nanmax(gap):.3g}")
    return sorted(lines)


def main() -> int:
    """Print the outputs; write them, or compare them with a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, help="JSON file for the outputs")
    parser.add_argument("--against", type=Path, help="JSON file to compare with")
    parser.add_argument("--tolerance", type=float, default=0.0, help="largest difference that passes; 0 by default")
    parser.add_argument("--only", nargs="+", choices=PARTS, help="parts to compute; all by default")
    words = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    start = time.process_time()
    outputs = compute([PARTS[name] for name in words.only or PARTS])
    print(f"{len(outputs)} outputs in {time.process_time() - start:.0f} s of CPU", file=sys.stderr)
    if words.write:
        words.write.write_text(json.dumps(outputs), encoding="utf-8")
    if not words.against:
        return 0
    before = json.loads(words.against.read_text(encoding="utf-8"))
    if words.only:
        before = {name: value for name, value in before.items() if name in outputs}
    found = differences(before, outputs, words.tolerance)
    print("\n".join(found) if found else f"all {len(outputs)} outputs are as in {words.against}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
