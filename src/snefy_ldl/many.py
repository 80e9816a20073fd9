"""Many models in one stacked computation: splits, folds, seeds and settings trained side by side."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from joblib import Parallel, delayed
from numpy.typing import NDArray
from sklearn.base import clone

from snefy_ldl.errors import InputError
from snefy_ldl.estimator import SnefyLDL
from snefy_ldl.training.loop import fit_net
from snefy_ldl.training.plan import Job, Member, TrainingData, build_net, conclude, make_target
from snefy_ldl.training.recipe import Recipe
from snefy_ldl.validation import check_rows
from snefy_ldl.validation.rows import take_rows

#: Members in one stack, at most. On a CPU the cost a member is flat from about 4 on; more only takes memory.
CPU_STACK, GPU_STACK = 16, 1024
#: Steps of single members below which processes of their own take longer to start than to work (a few seconds).
FEW_STEPS = 10_000


def fit_many(
    estimator: SnefyLDL,
    X: Any,
    D: Any = None,
    splits: Iterable[Any] = (),
    params: Sequence[Mapping[str, Any]] | None = None,
    *,
    counts: Any = None,
    sample_weight: Any = None,
    n_jobs: int | None = None,
) -> list[SnefyLDL]:
    """Fit one model a split, trained together; model k gets what a lone fit on its rows with its settings gets.

    Args:
        estimator: settings of all models.
        X: features of all rows.
        D: label distributions of all rows; or ``counts``.
        splits: for each model its training rows (an index array or a boolean mask), or a (train, test) pair as
            scikit-learn's splitters give, of which the first counts.
        params: for each model what differs from ``estimator``, e.g. ``{"random_state": 3, "learning_rate": 1e-3}``.
        counts: votes instead of label distributions.
        sample_weight: row weights (N,).
        n_jobs: processes on a CPU; by default all cores, or one where the work is over in a few seconds.

    Returns:
        Fitted models, in the order of the splits.

    Example:
        >>> from snefy_ldl.synthetic import make_city_districts
        >>> city = make_city_districts(n=200, random_state=0)
        >>> halves = [np.arange(0, 100), np.arange(100, 200)]
        >>> models = fit_many(SnefyLDL(epochs=2, random_state=0), city.X, city.D, halves)
        >>> len(models), models[0].predict(city.X[:2]).shape
        (2, (2, 3))
    """
    estimator._check_settings()
    data = TrainingData(X, D, counts, sample_weight, custom=estimator.backbone is not None)
    rows = [_rows(split, data.n_rows, k) for k, split in enumerate(splits)]
    if not rows:
        raise InputError("fit_many needs at least one split: the training rows of each model.")
    if params is not None and len(params) != len(rows):
        raise InputError(f"params must hold one entry a split; got {len(params)} for {len(rows)} splits.")
    models = []
    for k in range(len(rows)):
        model = clone(estimator)
        if params is not None:
            model.set_params(**params[k])
            model._check_settings()
        models.append(model)
    jobs = [Job(model, data, part, warn=False) for model, part in zip(models, rows)]
    for model, job in zip(models, jobs):
        model._remember(X, job)
    device = models[0]._device()
    workers, limit = 1, GPU_STACK
    if device.type == "cpu":
        workers = (n_jobs or os.cpu_count() or 1) if n_jobs or _steps(jobs) >= FEW_STEPS else 1
        members = sum(len(job.plan()) for job in jobs)
        limit = min(CPU_STACK, math.ceil(members / workers))  # no core stands idle while another has a full stack
    stacks = _stacks(jobs, limit)
    workers = min(len(stacks), workers)
    if workers > 1 and estimator.backbone is None:
        settings = Parallel(n_jobs=workers)(delayed(_train_alone)(stack) for stack in stacks)
        for stack, fitted in zip(stacks, settings):
            for job, attributes in zip(stack, fitted):
                job.estimator.__dict__.update(attributes)
    else:
        for stack in stacks:
            _train(stack, device)
    return models


def fit_folds(model: Any, X: Any, D: Any, splits: Iterable[NDArray[np.intp]]) -> list[Any]:
    """One fitted clone a split, by the fastest way there is for the model.

    A model's own ``fit_folds(X, D, splits)`` comes first; a :class:`SnefyLDL` is fitted by :func:`fit_many`; anything
    else that scikit-learn can clone is fitted once a split.

    Args:
        model: an unfitted estimator; it stays as it is.
        X: features of all rows.
        D: label distributions of all rows (N, L).
        splits: training rows of each clone.

    Returns:
        Fitted clones, in the order of the splits.

    Example:
        >>> from snefy_ldl.synthetic import make_city_districts
        >>> city = make_city_districts(n=200, random_state=0)
        >>> halves = [np.arange(0, 100), np.arange(100, 200)]
        >>> len(fit_folds(SnefyLDL(epochs=2, random_state=0), city.X, city.D, halves))
        2
    """
    if callable(getattr(model, "fit_folds", None)):
        return list(model.fit_folds(X, D, splits))
    if type(model) is SnefyLDL:  # a subclass may fit in its own way
        return list(fit_many(model, X, D, splits))
    return [clone(model).fit(take_rows(X, rows), take_rows(D, rows)) for rows in splits]


def _rows(split: Any, n_rows: int, k: int) -> NDArray[np.intp]:
    """Training rows of one split as whole numbers."""
    if isinstance(split, tuple) and len(split) == 2:
        split = split[0]
    return check_rows(split, n_rows, f"split {k}")


def _shape(job: Job, members: Sequence[Member]) -> tuple[Any, ...]:
    """What must agree for members to share a stack."""
    estimator, recipe = job.estimator, job.recipe()
    sizes = (len(members[0].train), len(members[0].valid), min(recipe.batch_size, len(members[0].train)))
    widths = (estimator.n_neurons, estimator.n_readouts, tuple(estimator.hidden_sizes), estimator.recipe)
    return (*sizes, *widths, recipe.epochs, recipe.schedule, recipe.patience, recipe.exponent_rate)


def _steps(jobs: Sequence[Job]) -> int:
    """Steps of all members of some jobs, if none stops early."""
    total = 0
    for job in jobs:
        members, recipe = job.plan(), job.recipe()
        total += len(members) * recipe.epochs * math.ceil(len(members[0].train) / recipe.batch_size)
    return total


def _stacks(jobs: Sequence[Job], limit: int) -> list[list[Job]]:
    """Jobs grouped by shape, at most ``limit`` members a stack (or one job, if it has more)."""
    groups: dict[tuple[Any, ...], list[Job]] = {}
    for job in jobs:
        groups.setdefault(_shape(job, job.plan()), []).append(job)
    stacks = []
    for group in groups.values():
        size = max(1, limit // len(group[0].plan()))
        stacks += [group[start : start + size] for start in range(0, len(group), size)]
    return stacks


def _train(jobs: Sequence[Job], device: torch.device) -> None:
    """Train the members of some jobs in one stack, and fit each job's estimator."""
    plans = [job.plan() for job in jobs]
    members = [member for plan in plans for member in plan]
    data = jobs[0].data
    net = build_net(members).to(device)
    features, target = data.tensor(device), make_target(net, members, device)
    recipes = [member.job.recipe() for member in members]
    run = fit_net(
        net,
        features,
        target,
        [member.split for member in members],
        recipes[0],
        [member.shuffle_seed for member in members],
        weights=data.weight_tensor(device),
        rates=_rates(recipes, device),
        verbose=jobs[0].estimator.verbose,
    )
    start = 0
    for job, plan in zip(jobs, plans):
        own = list(range(start, start + len(plan)))
        conclude(job, net.select(own), plan, run.of(own), features, target.select(own))
        start += len(plan)


def _train_alone(jobs: Sequence[Job]) -> list[dict[str, Any]]:
    """The same in a process of its own with one thread; what the fits added to the estimators comes back."""
    torch.set_num_threads(1)
    _train(jobs, torch.device("cpu"))
    names = ("net_", "scaling_", "history_", "training_")
    return [{name: job.estimator.__dict__[name] for name in names} for job in jobs]


def _rates(recipes: Sequence[Recipe], device: torch.device) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Learning rate and weight decay of each member (K,), or None where all are alike."""
    pairs = [(recipe.learning_rate, recipe.weight_decay) for recipe in recipes]
    if len(set(pairs)) == 1:
        return None
    table = torch.tensor(pairs, device=device)
    return table[:, 0], table[:, 1]
