"""Settings of a fit on votes, compared on development rows: a quarter of the training part of each split.

Test rows are never looked at. Every candidate is fitted on the other three quarters, with all votes or a few of each
item, and scored by the log likelihood of all votes of the development rows.
"""

from __future__ import annotations

import time
import warnings
from dataclasses import fields, replace

import numpy as np
from scipy import stats

import common
import votes_models as models
from snefy_ldl import SnefyLDL
from snefy_ldl.errors import LabelWarning
from snefy_ldl.training import data as training_data
from snefy_ldl.training.settings import VoteSettings
from snefy_ldl.votes import brier_score, log_likelihood

#: Votes an item that candidates learn from, the telling ones first; 0 stands for all of them.
LEVELS = {
    "LIDC": (0, 1, 2),
    "ChaosNLI_SNLI": (0, 1, 2, 4, 16, 8, 32),
    "annotators": (0, 1, 2, 4, 16, 8, 32),
    "KonIQ10k": (0, 1, 2, 4, 16, 8, 32),
}
#: Rows that a candidate learns from, and rows that it is scored on, at most.
TRAIN_ROWS, DEVELOPMENT_ROWS = 1200, 1000
#: Splits of the first round, and of the second.
SEEDS = {1: (100, 101, 102), 2: (103, 104, 105)}

ANCHORS = ("proportions+0.5", "proportions+0.05", "proportions", "Dirichlet-multinomial", "softmax")

#: The recipe that the first round's candidates change: what stood before this comparison.
BEFORE = VoteSettings(rate=0.4, sharpness=1.0, concentration_range=(1.0, 32.0))


def _grid():
    """Candidates by name: fields of VoteSettings, and settings of SnefyLDL."""
    candidates = {"before": {}}
    for sharpness in (1, 2, 4, 16):
        for low, high in ((1, 32), (1, 4), (0.5, 2)):
            if (sharpness, low, high) != (1, 1, 32):
                change = {"sharpness": sharpness, "concentration_range": (low, high)}
                candidates[f"sharp {sharpness} spread {low}-{high}"] = change
    candidates |= {f"rate {rate}": {"rate": rate} for rate in (0.2, 1.0)}
    candidates |= {f"exponents {rate}": {"exponent_rate": rate} for rate in (1, 5, 20)}
    candidates |= {f"neurons {n}": {"n_neurons": n} for n in (24, 96)}
    candidates |= {f"decay {decay}": {"weight_decay": decay} for decay in (0.1, 4.0)}
    candidates |= {"epochs 60": {"epochs": 60}}
    middle = {"sharpness": 4, "concentration_range": (1, 4)}
    for name, change in {
        "rate 0.2": {"rate": 0.2},
        "rate 1.0": {"rate": 1.0},
        "exponents 1": {"exponent_rate": 1},
        "exponents 20": {"exponent_rate": 20},
        "neurons 24": {"n_neurons": 24},
        "decay 4.0": {"weight_decay": 4.0},
        "epochs 60": {"epochs": 60},
    }.items():
        candidates[f"middle, {name}"] = middle | change
    return candidates


def rule(votes, high=2.0):
    """What the first round led to: the start grows sharper with the votes, and its concentrations larger."""
    return {
        "sharpness": min(16.0, 4.0 * votes**2),
        "concentration_range": (min(1.0, 0.5 * votes), max(1.0, min(32.0, high * votes**2))),
    }


def grown(votes, at):
    """The exponents' rate: 1 for one vote, on its way to 20, and half-way after ``at`` votes."""
    return float(round(1.0 + 19.0 * (votes - 1.0) / (votes + at)))


#: Second round: functions of the votes an item.
RULES = {
    "rule": rule,
    "rule, exponents sooner": lambda votes: rule(votes) | {"exponent_rate": grown(votes, 2.0)},
    "rule, exponents 20": lambda votes: rule(votes) | {"exponent_rate": 20.0},
    "rule, sharper": lambda votes: rule(votes) | {"sharpness": min(64.0, 4.0 * votes**2)},
    "rule, narrower": lambda votes: rule(votes, 1.0),
    "rule, wider": lambda votes: rule(votes, 4.0),
    "rule, rate 1.0": lambda votes: rule(votes) | {"rate": 1.0},
    "rule, decay 4.0": lambda votes: rule(votes) | {"weight_decay": 4.0},
    "rule, neurons 96": lambda votes: rule(votes) | {"n_neurons": 96},
    "rule, epochs 60": lambda votes: rule(votes) | {"epochs": 60},
}
GRID = _grid()
CANDIDATES = {1: list(GRID), 2: ["before", *RULES]}


def cases(number, seeds):
    """A round's (data, votes, seed, candidate), the telling ones first: a run cut short compares all candidates."""
    names = [*CANDIDATES[number], *ANCHORS]
    most = max(len(levels) for levels in LEVELS.values())
    places = [(name, levels[k]) for k in range(most) for name, levels in LEVELS.items() if k < len(levels)]
    first, last = [p for p in places if p[1] not in (8, 32)], [p for p in places if p[1] in (8, 32)]
    order = [(place, seed) for part in (first, last) for seed in seeds for place in part]
    return [(*place, seed, candidate) for place, seed in order for candidate in names]


def development(name, votes, seed, tiny=False):
    """Features and votes to fit on, features and votes to compare on: rows of the training part alone."""
    X, counts, groups = models.load(name, tiny)
    train, _ = models.split_rows(groups, seed)
    own = np.unique(groups[train])
    held = np.random.default_rng([seed, 11]).permutation(own)[: max(1, len(own) // 4)]
    is_held = np.isin(groups[train], held)
    rows = np.random.default_rng([seed, 12]).permutation(train[~is_held])[:TRAIN_ROWS]
    compare = train[is_held][:DEVELOPMENT_ROWS]
    few = counts[rows]
    if votes:
        few = models.draw_votes(few, votes, np.random.default_rng([seed, votes])).astype(float)
    return X[rows], few, X[compare], counts[compare]


def score(name, votes, seed, candidate, tiny=False):
    """Development figures of one candidate."""
    X, few, X_held, held = development(name, votes, seed, tiny)
    started = time.perf_counter()
    if candidate in ("Dirichlet-multinomial", "softmax"):
        predict = models.fit_rival(candidate, X, few, seed, 3 if tiny else 30)
        seconds = time.perf_counter() - started
        mean, log_p = predict(X_held, held)
        log_p, extra = log_p + models.coefficient(held), {}
    else:
        model = fit_candidate(candidate, X, few, seed, tiny)
        seconds = time.perf_counter() - started
        dist = model.predict_dist(X_held)
        log_p, mean = log_likelihood(dist, held), dist.mean.numpy()
        extra = {key: model.training_[key] for key in ("best_epoch", "scaling", "background_share")}
        extra["total"] = float(np.median(effective_total(dist)))
    found = {"log_likelihood": float(log_p.mean()), "worst": float(np.quantile(log_p, 0.02))}
    return found | {"brier": float(brier_score(mean, held).mean()), "seconds": seconds} | extra


def effective_total(dist):
    """Total concentration (N,) of the Dirichlets with the distributions' own means and variances."""
    mean, variance = (part.numpy() for part in dist.mean_and_variance())
    return (1.0 - np.square(mean).sum(1)) / variance.sum(1) - 1.0


def fit_candidate(candidate, X, few, seed, tiny=False):
    """A SnefyLDL with one candidate's settings."""
    votes = max(1.0, float(few.sum(1).mean()))
    changes = dict(RULES[candidate](votes) if candidate in RULES else GRID.get(candidate, {}))
    own = {field.name: changes.pop(field.name) for field in fields(BEFORE) if field.name in changes}
    settings = {"random_state": seed, "device": "cpu"} | changes | ({"epochs": 3, "n_neurons": 8} if tiny else {})
    model = SnefyLDL(**settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LabelWarning)
        if candidate == "proportions":
            return model.fit(X, few / few.sum(1, keepdims=True))
        if candidate in ANCHORS:
            return model.fit(X, models.smoothed(few, float(candidate.split("+")[1])))
        default = training_data.vote_settings
        changed = replace(BEFORE, **({"exponent_rate": grown(votes, 10.0)} | own))
        training_data.vote_settings = lambda votes: changed
        try:
            return model.fit(X, counts=few)
        finally:
            training_data.vote_settings = default


def report(records):
    """Tables: each candidate's development likelihood less that of "before", paired over the splits."""
    text, facts = ["# Settings of a fit on votes, on development rows", ""], {}
    by_place = {}
    for record in records:
        place = by_place.setdefault((record["data"], record["votes"]), {})
        place.setdefault(record["candidate"], {})[record["seed"]] = record["found"]
    for (name, votes), found in sorted(by_place.items()):
        base = found.get("before", {})
        rows = []
        for candidate, runs in found.items():
            seeds = sorted(set(runs) & set(base))
            if not seeds:
                continue
            gap = np.array([runs[s]["log_likelihood"] - base[s]["log_likelihood"] for s in seeds])
            error = stats.sem(gap) if len(gap) > 1 else float("nan")
            rows.append(
                {
                    "candidate": candidate,
                    "log likelihood": f"{np.mean([runs[s]['log_likelihood'] for s in seeds]):.4f}",
                    "above before": f"{gap.mean():+.4f} ± {error:.4f}",
                    "Brier": f"{np.mean([runs[s]['brier'] for s in seeds]):.4f}",
                    "total": f"{np.mean([runs[s].get('total', np.nan) for s in seeds]):.1f}",
                    "s": f"{np.mean([runs[s]['seconds'] for s in seeds]):.1f}",
                    "splits": len(seeds),
                }
            )
        rows.sort(key=lambda row: -float(row["log likelihood"]))
        if rows:
            text += [f"## {name}, {votes or 'all'} votes an item", "", common.markdown(rows), ""]
            facts[f"{name} {votes}"] = rows
    return text, facts
