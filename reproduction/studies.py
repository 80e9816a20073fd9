"""The paper's studies: conformal intervals, active learning, ensembles, and sensitivity to settings."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reproduction import strategies
from reproduction.config import GRID, RECIPES, Active, Conformal, Ensemble, Query, Sensitivity, Study
from snefy_ldl import learners, metrics
from snefy_ldl._internal.special import EXPONENT_MARGIN
from snefy_ldl._internal.types import Array
from snefy_ldl.active.strategy import query
from snefy_ldl.conformal import ConformalIntervals
from snefy_ldl.datasets.dataset import Dataset
from snefy_ldl.ensemble import DensityWeightedBagging
from snefy_ldl.errors import InputError
from snefy_ldl.learners import DirichletLDL
from snefy_ldl.metrics.points import score
from snefy_ldl.networks.net import SnefyNet, paper_init
from snefy_ldl.snefy import SnefyLDL, fit_many
from snefy_ldl.training import prepare

Rows = NDArray[np.intp]
#: The paper's short names of the six measures, in its order.
SHORT_NAMES = {
    "cheby": "chebyshev",
    "clark": "clark",
    "canb": "canberra",
    "kl": "kl_divergence",
    "cos": "cosine",
    "inter": "intersection",
}


class Outcome(NamedTuple):
    """The figures of one repeat with one recipe."""

    recipe: str
    repeat: int
    figures: dict[str, Any]


def make_model(study: Study, recipe: str, seed: int | None = None, **changes: Any) -> SnefyLDL:
    """An unfitted density: ``SnefyLDL.paper(task, ...)`` as the recipe sets what the paper leaves open, or ours.

    Args:
        study: what it is for.
        recipe: a name in ``config.RECIPES`` or ``config.GRID``.
        seed: its random state.
        changes: further settings, which go before those of the study.
    """
    settings: dict[str, Any] = {"device": "cpu", **dict(study.model), **changes, "random_state": seed}
    if recipe == "default":
        return SnefyLDL(**settings)
    tasks: dict[type, Any] = {Active: "active", Ensemble: "ensemble"}  # which set the batch size
    chosen = {name: value for name, value in options_of(recipe).items() if name != "start"}
    return SnefyLDL.paper(tasks.get(type(study.protocol), "conformal"), **(chosen | settings))


def options_of(recipe: str) -> dict[str, Any]:
    """What a recipe sets of what the paper leaves open."""
    return dict((RECIPES | GRID)[recipe])


def linear_start(net: SnefyNet, member: int, D: Tensor, generator: torch.Generator) -> None:
    """Start one member as ``torch.nn.Linear`` would: every matrix uniform, within one over the root of its inputs."""
    paper_init(net, member, D, generator)  # the backbone and the head are such layers already
    (n_neurons, n_labels), n_readouts = net.raw_exponents.shape[1:], net.readout.shape[1]
    exponents = (2.0 * torch.rand(n_neurons, n_labels, generator=generator) - 1.0) / math.sqrt(n_labels)
    net.set_exponents(member, exponents.clamp_min(-0.5 + EXPONENT_MARGIN))
    with torch.no_grad():
        uniform = torch.rand(n_readouts, n_neurons, generator=generator)
        net.readout[member] = (2.0 * uniform - 1.0) / math.sqrt(n_neurons)


@contextmanager
def started(recipe: str) -> Iterator[None]:
    """Train within it from the start that a recipe names; ``SnefyLDL.paper`` has but the one of PyLDL."""
    linear = recipe != "default" and options_of(recipe)["start"] == "linear"
    with patch.object(prepare, "paper_init", linear_start if linear else paper_init):
        yield


def parted_rows(n: int, repeat: int, train: float, calibration: float) -> tuple[Rows, Rows, Rows]:
    """Training, calibration and test rows of one repeat; they depend on n and the repeat's number alone.

    Example:
        >>> [len(part) for part in parted_rows(20, 0, 0.5, 0.25)]
        [10, 5, 5]
    """
    order = _order(n, repeat)
    first, second = int(train * n), int(train * n) + int(calibration * n)
    return order[:first], order[first:second], order[second:]


def held_out_rows(n: int, repeat: int, share: float) -> tuple[Rows, Rows]:
    """Training and test rows of one repeat.

    Example:
        >>> [len(part) for part in held_out_rows(20, 0, 0.1)]
        [18, 2]
    """
    order, held = _order(n, repeat), round(share * n)
    return order[held:], order[:held]


def _order(n: int, repeat: int) -> Rows:
    return np.random.default_rng([repeat, n]).permutation(n).astype(np.intp)


def scores(D: Array, predicted: Array) -> dict[str, float]:
    """The six measures of tables 4 to 7, averaged over rows.

    Example:
        >>> scores(np.array([[0.5, 0.5]]), np.array([[0.5, 0.5]]))["inter"]
        1.0
    """
    measures = score(D, predicted)
    return {short: float(measures[name]) for short, name in SHORT_NAMES.items()}


def run_baseline(study: Study, repeats: Sequence[int], data: Dataset) -> list[Outcome]:
    """What every table is compared with: one Dirichlet without features, and in tables 2 and 3 that of SA-BFGS.

    Args:
        study: any.
        repeats: numbers of the splits.
        data: features and label distributions.
    """
    outcomes, protocol, blank = [], study.protocol, np.zeros((len(data.D), 1))
    for repeat in repeats:
        featureless = DirichletLDL("regression", l2=0.0)
        if isinstance(protocol, (Active, Ensemble)):
            train, test = held_out_rows(len(data.D), repeat, protocol.test)
            first = train[: protocol.first] if isinstance(protocol, Active) else train
            featureless.fit(blank[first], data.D[first])
            outcomes.append(Outcome("baseline", repeat, {"constant": _score(featureless, blank[test], data.D[test])}))
            continue
        plan = protocol.protocol if isinstance(protocol, Sensitivity) else protocol
        train, calibration, test = parted_rows(len(data.D), repeat, plan.train, plan.calibration)
        figures = _about_splits(plan, data, test)
        featureless.fit(blank[train], data.D[train])
        own = _calibrated_figures(plan, featureless, data, calibration, test, blank)
        figures["models"] = {"constant": own}
        if isinstance(protocol, Conformal):
            model = DirichletLDL(random_state=repeat).fit(data.X[train], data.D[train])
            figures["models"]["dirichlet"] = _calibrated_figures(plan, model, data, calibration, test)
        outcomes.append(Outcome("baseline", repeat, figures))
    return outcomes


def _about_splits(protocol: Conformal, data: Dataset, test: Rows) -> dict[str, Any]:
    return {"ceiling": ceilings(protocol, data.X[test, 0]), "labels": [str(name) for name in data.label_names]}


def run_conformal(study: Study, recipe: str, repeats: Sequence[int], data: Dataset) -> list[Outcome]:
    """Fit, calibrate and measure some repeats with one recipe.

    Args:
        study: whose protocol is a :class:`Conformal`.
        recipe: a name in ``config.RECIPES`` or ``config.GRID``.
        repeats: numbers of the splits; their models are trained together.
        data: features and label distributions.
    """
    protocol = study.protocol
    assert isinstance(protocol, Conformal)
    splits = [parted_rows(len(data.D), repeat, protocol.train, protocol.calibration) for repeat in repeats]
    trains = [train for train, _, _ in splits]
    models = _fit_splits(study, recipe, data, trains, repeats)
    outcomes = []
    for repeat, model, (_, calibration, test) in zip(repeats, models, splits):
        figures = _about_splits(protocol, data, test)
        figures["models"] = {"snefy": _calibrated_figures(protocol, model, data, calibration, test)}
        outcomes.append(Outcome(recipe, repeat, figures))
    return outcomes


def _fit_splits(
    study: Study, recipe: str, data: Dataset, rows: Sequence[Rows], seeds: Sequence[int], **changes: int
) -> list[SnefyLDL]:
    """One model per training set, all trained in one stack."""
    estimator, seeded = make_model(study, recipe, **changes), [{"random_state": seed} for seed in seeds]
    with started(recipe):
        return list(fit_many(estimator, data.X, data.D, rows, seeded, n_jobs=1))


def _calibrated_figures(
    protocol: Conformal,
    model: Any,
    data: Dataset,
    calibration: Rows,
    test: Rows,
    X: Array | None = None,
) -> dict[str, Any]:
    """Figures of a model's calibrated intervals on the test rows; X replaces the features that it takes."""
    X = data.X if X is None else X
    intervals = ConformalIntervals(model, protocol.level, protocol.score)
    intervals.conformalize(X[calibration], data.D[calibration])
    return interval_figures(protocol, data.D[test], data.X[test, 0], intervals.predict_interval(X[test]))


def interval_figures(protocol: Conformal, D: Array, feature: Array, ends: Array) -> dict[str, Any]:
    """Worst-group coverage (FSC), coverage, width and interval score of each label.

    Args:
        protocol: level and numbers of groups.
        D: test labels (N, L).
        feature: the feature that makes the groups (N,).
        ends: lower and upper ends (N, L, 2).
    """
    return {
        "fsc": {
            str(count): metrics.feature_stratified_coverage(feature, D, ends, count).tolist()
            for count in protocol.groups
        },
        "coverage": metrics.coverage(D, ends, per_label=True).tolist(),
        "width": metrics.interval_width(ends, per_label=True).tolist(),
        "interval_score": metrics.interval_score(D, ends, protocol.level, per_label=True).tolist(),
    }


def ceilings(protocol: Conformal, feature: Array) -> dict[str, float]:
    """The FSC that perfect conditional coverage would show on these rows, by number of groups."""
    expected = metrics.conditional.fsc_ceiling
    return {str(count): float(expected(feature, count, protocol.level)) for count in protocol.groups}


def run_active(study: Study, recipe: str, repeats: Sequence[int], data: Dataset) -> list[Outcome]:
    """All strategies of some repeats: they share the split and the first labels, so differences are paired.

    Every retrained model of every strategy and repeat is trained in one stack, with the seed of its repeat.

    Args:
        study: whose protocol is an :class:`Active`.
        recipe: how the models are trained, both the one that is asked and the ones that are scored.
        repeats: numbers of the splits.
        data: features and label distributions.
    """
    protocol = study.protocol
    assert isinstance(protocol, Active)
    splits = [held_out_rows(len(data.D), repeat, protocol.test) for repeat in repeats]
    spare = len(splits[0][0]) - protocol.first
    if spare < protocol.queried:
        raise InputError(
            f"{study.name}: {protocol.first} first labels leave {spare} rows of {data.name}, "
            f"too few for a query of {protocol.queried}."
        )
    queries = protocol.queries
    starts = _fit_splits(study, recipe, data, [train[: protocol.first] for train, _ in splits], repeats)
    labelled = [
        np.concatenate([train[: protocol.first], _wanted(protocol, one, recipe, start, train, repeat, data)])
        for repeat, start, (train, _) in zip(repeats, starts, splits)
        for one in queries
    ]
    after = iter(_fit_splits(study, recipe, data, labelled, [repeat for repeat in repeats for _ in queries]))
    return [
        Outcome(
            recipe,
            repeat,
            {
                "strategies": {one.name: _score(next(after), data.X[test], data.D[test]) for one in queries},
                "start": _score(start, data.X[test], data.D[test]),
            },
        )
        for repeat, start, (_, test) in zip(repeats, starts, splits)
    ]


def _wanted(
    protocol: Active, one: Query, recipe: str, start: SnefyLDL, train: Rows, repeat: int, data: Dataset
) -> Rows:
    """Rows of the data that a strategy wants labelled."""
    first, pool = train[: protocol.first], np.sort(train[protocol.first :])
    if one.strategy == "dirichlet":  # the paper's baseline: its mean from SA-BFGS, one concentration by likelihood
        alpha = DirichletLDL(random_state=repeat).fit(data.X[first], data.D[first]).predict_concentration(data.X[pool])
        entropy = torch.distributions.Dirichlet(torch.as_tensor(alpha)).entropy().numpy()  # in closed form
        chosen = np.argsort(-entropy, kind="stable")[: protocol.queried]
    elif one.strategy in strategies.STRATEGIES:
        tables = data.X[pool], data.X[first]
        if recipe == "default" or options_of(recipe)["scaling"] != "raw":  # distances see what the density sees
            tables = strategies.standardized(*tables)
        chosen = strategies.STRATEGIES[one.strategy](tables[0], protocol.queried, tables[1], repeat)
    else:
        options: Any = dict(one.options)
        chosen = query(
            one.strategy, data.X[pool], protocol.queried, model=start, random_state=repeat, verbose=False, **options
        )
    return np.asarray(pool[chosen])


def _score(model: Any, X: Array, D: Array) -> dict[str, float]:
    return {**scores(D, np.asarray(model.predict(X))), "log_likelihood": float(model.log_prob(X, D).mean())}


def run_ensemble(study: Study, recipes: Sequence[str], repeats: Sequence[int], data: Dataset) -> list[Outcome]:
    """Both ensembles of every learner in some repeats, weighted by the density of each recipe.

    The members of a bag are fitted once: Average and every recipe's Weighted come from the same ones, so that their
    differences are paired.

    Args:
        study: whose protocol is an :class:`Ensemble`.
        recipes: whose densities weight the members.
        repeats: numbers of the splits; the densities of one recipe are trained together.
        data: features and label distributions.
    """
    protocol = study.protocol
    assert isinstance(protocol, Ensemble)
    splits = [held_out_rows(len(data.D), repeat, protocol.test) for repeat in repeats]
    trains = [train for train, _ in splits]
    densities = {recipe: _fit_splits(study, recipe, data, trains, repeats) for recipe in recipes}
    outcomes = []
    for number, (repeat, (train, test)) in enumerate(zip(repeats, splits)):
        X, D = data.X[test], data.D[test]
        figures: dict[str, dict[str, Any]] = {}
        for recipe in recipes:
            density = densities[recipe][number]
            figures[recipe] = {"learners": {}, "density": _score(density, X, D)}
        for name, *_ in protocol.learners:
            bag = DensityWeightedBagging(
                make_learner(protocol, name),
                n_members=protocol.members,
                n_samples=protocol.rows,
                weighting="uniform",
                random_state=repeat,
            ).fit(data.X[train], data.D[train])
            average = scores(D, bag.predict(X))
            bag.weighting = "density"
            for recipe in recipes:
                bag.density_ = densities[recipe][number]
                figures[recipe]["learners"][name] = {"Average": average, "Weighted": scores(D, bag.predict(X))}
        outcomes += [Outcome(recipe, repeat, figures[recipe]) for recipe in recipes]
    return outcomes


def make_learner(protocol: Ensemble, name: str) -> Any:
    """An unfitted base learner, by its name in the table."""
    kind, settings = next((kind, own) for known, kind, own in protocol.learners if known == name)
    return getattr(learners, kind)(**dict(protocol.settings + settings))


#: The part in which nothing is changed; every panel that holds the recipe's own value shares it.
BASE = "base"


def grid_parts(study: Study, recipe: str) -> dict[str, dict[str, int]]:
    """Distinct settings by name, each as changes to the recipe's model.

    Example:
        >>> from reproduction.config import STUDIES
        >>> grid = grid_parts(STUDIES["figureA1"], "raw")
        >>> len(grid), grid["n_neurons=16"]
        (21, {'n_neurons': 16})
    """
    changes: dict[str, dict[str, int]] = {}
    for panel, values in _protocol(study).panels:
        for value in values:
            name = _part(study, recipe, panel, value)
            changes[name] = {} if name == BASE else {panel: value}
    return changes


def missing_parts(study: Study, recipe: str, figures: Any) -> list[str]:
    """The parts that some panel of a record still needs."""
    panels = figures.get("panels", {}) if isinstance(figures, dict) else {}
    wanted: dict[str, None] = {}
    for panel, values in _protocol(study).panels:
        for value in values:
            if str(value) not in panels.get(panel, {}):
                wanted[_part(study, recipe, panel, value)] = None
    return list(wanted)


def merge_part(
    study: Study, recipe: str, part: str, figures: dict[str, Any] | None, new: dict[str, Any]
) -> dict[str, Any]:
    """A record's figures with one more part in every panel that shows it; values in the order of the grid."""
    held = (figures or {}).get("panels", {})
    panels: dict[str, Any] = {}
    for panel, values in _protocol(study).panels:
        shown = dict(held.get(panel, {}))
        for value in values:
            if _part(study, recipe, panel, value) == part:
                shown[str(value)] = new["setting"]
        panels[panel] = dict(sorted(shown.items(), key=lambda item: int(item[0])))
    return {"panels": panels, "ceiling": new["ceiling"]}


def run_sensitivity(study: Study, recipe: str, part: str, repeats: Sequence[int], data: Dataset) -> list[Outcome]:
    """Fit, calibrate and measure one setting over some splits.

    Args:
        study: whose protocol is a :class:`Sensitivity`.
        recipe: a name in ``config.RECIPES``.
        part: a name of :func:`grid_parts`.
        repeats: numbers of the splits; their models are trained together.
        data: features and label distributions.
    """
    protocol = _protocol(study).protocol
    splits = [parted_rows(len(data.D), repeat, protocol.train, protocol.calibration) for repeat in repeats]
    changes = grid_parts(study, recipe)[part]
    models = _fit_splits(study, recipe, data, [train for train, _, _ in splits], repeats, **changes)
    outcomes = []
    for repeat, model, (_, calibration, test) in zip(repeats, models, splits):
        figures = _calibrated_figures(protocol, model, data, calibration, test)
        setting = {
            "fsc": {count: float(np.mean(labels)) for count, labels in figures["fsc"].items()},
            "coverage": float(np.mean(figures["coverage"])),
            "width": float(np.mean(figures["width"])),
        }
        outcomes.append(Outcome(recipe, repeat, {"setting": setting, "ceiling": ceilings(protocol, data.X[test, 0])}))
    return outcomes


def _protocol(study: Study) -> Sensitivity:
    assert isinstance(study.protocol, Sensitivity)
    return study.protocol


def _part(study: Study, recipe: str, panel: str, value: int) -> str:
    return BASE if getattr(make_model(study, recipe), panel) == value else f"{panel}={value}"
