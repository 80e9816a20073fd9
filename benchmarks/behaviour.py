"""A few numbers for every part of the library: a change that alters none of them leaves the results as they are.

    python benchmarks/behaviour.py [PART ...]    # half a minute on one core; leaves out what this version cannot run

Each part fits and predicts on small made-up tables with fixed seeds. ``results/behaviour.json`` has the numbers, by the
digest of the library's code.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy and torch are loaded

import json
import subprocess
import sys
import time
import warnings
from functools import cache
from importlib import import_module
from pathlib import Path

import numpy as np
from scipy.special import rel_entr

RECORDS = Path(__file__).parent / "results" / "behaviour.json"
#: Absolute and relative tolerance, by the first word of a number's name. Tables resolve .01 nats, two digits of KL and
#: .001 of coverage over thousands of rows. Other kernels of the same processor move no number by a tenth of this.
TOLERANCES = {"nats": (0.002, 0.0), "kl": (0.0, 0.01), "share": (0.002, 0.0)}


def differences(old, new):
    """Numbers of a part that differ by more than the tolerance, as (old, new); all if one record is missing."""
    old, new, found = old or {}, new or {}, {}
    for name in {**old, **new} or {"no record": None}:
        absolute, relative = TOLERANCES.get(name.split()[0], (0.0, 0.0))
        first, second = old.get(name, float("nan")), new.get(name, float("nan"))
        if not abs(first - second) <= absolute + relative * abs(first):  # also if one is missing
            found[name] = (first, second)
    return found


def recorded(digest, source=None):
    """Numbers of the library of a digest; those of one in a folder are computed and stored if they are not known."""
    known = json.loads(RECORDS.read_text()) if RECORDS.exists() else {}
    if digest not in known and source:
        print("computing the numbers of results/behaviour.json: half a minute", file=sys.stderr, flush=True)
        environment = os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
        done = subprocess.run([sys.executable, __file__], env=environment, check=True, stdout=subprocess.PIPE)
        known[digest] = json.loads(done.stdout)
        RECORDS.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n")
    return known.get(digest, {})


def get(name, package=""):
    """A public name of the library, imported only now: an older version may not have it."""
    return getattr(import_module(f"snefy_ldl{package and '.'}{package}"), name)


@cache
def city(zeros=False):
    """City districts, half of them to test on: features and shares, some of which are zero if asked."""
    data = get("make_city_districts", "datasets")(n=320, random_state=0)
    D = data.D * (data.D >= 0.1) if zeros else data.D
    D = D / D.sum(1, keepdims=True)
    return data.X[:160], D[:160], data.X[160:], D[160:]


def mean_kl(P, D):
    """Mean KL of predicted means."""
    return float(rel_entr(D, np.maximum(np.asarray(P), 1e-12)).sum(1).mean())


def figures(model, X, D, name="", intervals=None, **context):
    """Mean log likelihood, KL of the mean, and of 90 % intervals the width and how far inside the shares lie."""
    found = {"kl": mean_kl(model.predict(X, **context), D)}
    if hasattr(model, "log_prob"):
        found["nats"] = float(model.log_prob(X, D, **context).mean())
        ends = (intervals or model).predict_interval(X, **context)
        found["share width"] = float((ends[..., 1] - ends[..., 0]).mean())
        found["share inside"] = float((D - ends[..., 0]).clip(max=ends[..., 1] - D).mean())
    return {f"{key} {name}".strip(): value for key, value in found.items()}


def density(model, tables=(False, True)):
    """A model on the table without zeros, and on the one with them."""
    found = {}
    for zeros in tables:
        X, D, X_test, D_test = city(zeros)
        found |= figures(model.fit(X, D), X_test, D_test, "with zeros" if zeros else "")
    return found


def paper():
    kinds = {kind: get("SnefyLDL").paper(kind, epochs=20, random_state=0) for kind in ("conformal", "active")}
    return {f"{key} {kind}": value for kind, one in kinds.items() for key, value in density(one, [False]).items()}


def below():
    X, D, X_test, D_test = city()
    limits = [float("nan"), float("nan"), sorted(D[:, 2])[50]]
    shown = D + 0.0
    shown[:, 2][D[:, 2] < limits[2]] = float("nan")
    return figures(get("LogRatioLDL")(random_state=0).fit(X, shown, below=limits), X_test, D_test)


def votes():
    items = get("make_annotators", "datasets")(n=300, random_state=0)
    X, counts = items.X, items.counts
    model = get("SnefyLDL")(random_state=0).fit(X[:200], counts=counts[:200])
    dist, shares = model.predict_dist(X[200:]), counts[200:] / counts[200:].sum(1, keepdims=True)
    found = {
        "nats": float(model.log_prob(X[200:], counts=counts[200:]).mean()),
        "kl": mean_kl(dist.mean.numpy(), shares),
    }
    values = {how: get("vote_value", "votes")(dist, how) for how in ("variance", "information")}
    return found | {f"nats {how}": float(value.mean()) for how, value in values.items()}


def annotators():
    items = get("make_annotators", "datasets")(n=150, votes=5, n_annotators=15, long_table=True, random_state=0)
    parts, names = zip(
        *(np.unique(items.votes[name], return_inverse=True)[::-1] for name in ("item", "annotator", "label"))
    )
    table = get("Votes", "votes")(*parts, *(list(one) for one in names))
    model = get("AnnotatorLDL")(get("SnefyLDL")(random_state=0)).fit(items.X, table)
    shares = get("aggregate", "votes")(table, "dawid-skene").shares
    means = {"panel": np.asarray(model.predict(items.X)), "dawid-skene": np.asarray(shares)}
    return {f"share {name} {k}": float((P[:, k] ** 2).mean()) for name, P in means.items() for k in range(P.shape[1])}


def groups():
    data = get("make_groups", "datasets")(20, 16, random_state=0)
    train = [k % 16 < 12 for k in range(320)]
    test = [not one for one in train]
    base = get("SnefyLDL")(random_state=0)
    model = get("GroupedLDL")(base).fit(data.X[train], data.D[train], groups=data.groups[train])
    seen = figures(model, data.X[test], data.D[test], groups=data.groups[test])
    return seen | figures(model, data.X[test], data.D[test], "of new groups")


def conformal():
    X, D, X_test, D_test = city()
    model, found = get("DirichletLDL", "learners")(random_state=0).fit(X, D), {}
    kinds = {kind: {"method": kind} for kind in ("chebyshev", "quantile", "beta", "cdf", "auto")}
    kinds["splines"] = {"method": "beta", "conditional_on": get("Splines", "conformal")(0)}
    for kind, settings in kinds.items():
        made = get("ConformalIntervals", "conformal")(model, 0.9, **settings).conformalize(X_test[:100], D_test[:100])
        found |= figures(model, X_test[100:], D_test[100:], kind, made)
    return {key: value for key, value in found.items() if key.startswith("share")}


def active():
    X, D, pool, _ = city()
    model, found = get("SnefyLDL")(random_state=0, n_neurons=16, n_readouts=8, epochs=12).fit(X, D), {}
    for kind in ("lcmd", "badge", "entropy", "random"):
        picks = get("query", "active")(kind, pool, 20, model, X, 0)
        found |= {f"share {kind}, place": float(picks.mean()) / len(pool), f"share {kind}": float(D[picks, 0].mean())}
    helps = get("will_it_help", "active")(model, X, D, pool, 0)
    return found | {f"share {name}": float(getattr(helps, name)) for name in ("helps", "foreseen", "redundancy")}


def explain():
    X, D, *_ = city()
    model = get("DirichletLDL", "learners")(random_state=0).fit(X, D)
    entries = get("effects", "explain")(
        model, X, None, D, step={0: float(X[:, 0].std()), 1: float(X[:, 1].std())}
    ).entries
    parts = ("estimate", "conf_low", "conf_high")
    return {f"share {part} {k}": getattr(one, part) for k, one in enumerate(entries[:6]) for part in parts}


def ensemble():
    base, guide = get("SABFGS", "learners")(), get("DirichletLDL", "learners")()
    return density(get("DensityWeightedBagging", "ensemble")(base, guide, n_members=5, random_state=0), [False])


def seeded(names, package):
    """Methods of a package with a fixed seed, by their names."""
    for name in names.split():
        made = get(name, package)()
        yield name, made.set_params(random_state=0) if "random_state" in made.get_params() else made


def learners():
    X, D, X_test, D_test = city()
    made = seeded("SABFGS DirichletLDL TreesLDL AAKNN CPNN DFLDL LDLLRR", "learners")
    return {f"kl {name}": mean_kl(one.fit(X, D).predict(X_test), D_test) for name, one in made}


def enhancement():
    X, D, *_ = city()
    binary, made = (
        get("binarise", "learners.enhancement")(D),
        seeded("FCM GLLE KM LP ML LIBLE", "learners.enhancement"),
    )
    return {f"kl {name}": mean_kl(one.fit(X, binary).transform(), D) for name, one in made}


def metrics():
    X, D, *_ = city()
    draws, made = np.random.default_rng(0).dirichlet(np.ones(3), (40, len(D))), import_module("snefy_ldl.metrics")
    ends = np.quantile(draws, (0.2, 0.8), axis=0).transpose(1, 2, 0)
    found = {name: getattr(made, name)(D, ends) for name in ("coverage", "interval_score")}
    found |= {name: getattr(made, name)(D, draws) for name in ("crps", "energy_score")}
    found |= {"slab": made.worst_slab_coverage(X, D, ends), "ece": made.reliability((draws < D).mean(0)).ece}
    found["strata"] = made.feature_stratified_coverage(X[:, 0], D, ends, 4)
    return {f"share {name}": float(np.mean(value)) for name, value in found.items()}


PARTS = {
    "snefy": lambda: density(get("SnefyLDL")(random_state=0)),
    "logratio": lambda: density(get("LogRatioLDL")(random_state=0)),
    "auto": lambda: density(get("AutoLDL")(random_state=0)),
}
PARTS |= {one.__name__: one for one in (paper, below, votes, annotators, groups, conformal, active, explain, ensemble)}
PARTS |= {one.__name__: one for one in (learners, enhancement, metrics)}


def main():
    """Print the numbers of every part of the version that is imported."""
    warnings.simplefilter("ignore")
    found = {}
    for name in sys.argv[1:] or PARTS:
        start = time.perf_counter()
        try:
            found[name] = {key: round(value, 6) for key, value in PARTS[name]().items()}
            print(f"{name}: {time.perf_counter() - start:.1f} s", file=sys.stderr, flush=True)
        except Exception as error:  # an older version has not all names and settings
            print(f"{name} left out: {error!r}", file=sys.stderr, flush=True)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
