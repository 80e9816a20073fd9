"""Regions of whole label distributions, by the measures of the unified comparison of Dheur et al. (ICML 2025).

    python benchmarks/regions.py --splits 10     # resumable: one JSON per split

Their code is no package that can be installed, so its scores are written here from the paper's definitions, with its
100 draws per row: M-CP (boxes of quantiles), DR-CP (density), C-HDR (content of the density level set), PCP and C-PCP
(balls around draws, the second with the content of the balls). This library's regions are measured on the same
fitted model and rows.

Measures, as there: marginal coverage; region size (here the share of the simplex, by 100 draws of the
distribution; mean and median over rows); worst slab coverage (slabs of a fifth of the rows); CEC-X and CEC-Z, the mean
squared gap of coverage over five clusters of the features, and of the log densities of 100 draws of a row.
Level 0.8; 50/25/25 splits. Seconds: of the processor, for calibration and coverage; theirs without the draws.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from math import lgamma
from pathlib import Path

import numpy as np
import torch
from sklearn.cluster import KMeans

import snefy_ldl
from common import RESULTS, machine, markdown, write
from conformal import load_rows, mean_error, split_rows
from snefy_ldl import SnefyLDL, metrics
from snefy_ldl.conformal import ConformalIntervals, ConformalRegion
from snefy_ldl.conformal.regions import zero_policy
from snefy_ldl.conformal.thresholds import rank
from snefy_ldl.errors import LabelWarning

DATA = ("GEMAS_texture", "yeast_spo5")
LEVEL, DRAWS, SIZE_DRAWS, CLUSTERS = 0.8, 100, 100, 5
OURS = ("density", "hpd")
THEIRS = ("M-CP", "DR-CP", "C-HDR", "PCP", "C-PCP")
MEASURES = ("coverage", "size", "median size", "worst slab", "CEC-X", "CEC-Z", "seconds")


def log_density(dist, points):
    return dist.log_prob(torch.as_tensor(points)).numpy()


def share_below(drawn, values):
    """Share of each row's drawn values (n, b) that are at most its values (..., b)."""
    return (drawn[:, None] <= values.reshape(-1, values.shape[-1])[None]).mean(axis=0).reshape(values.shape)


def nearest(centres, points):
    """Distance of points (..., b, L) to the nearest of their row's centres (K, b, L)."""
    return np.min([np.linalg.norm(points - centre, axis=-1) for centre in centres], axis=0)


def their_score(method, dist, draws, more_draws):
    """The score of a method, a function of points (..., b, L), from two sets of draws of the rows' distributions."""
    if method == "M-CP":
        low, high = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
        return lambda points: np.maximum(low - points, points - high).max(axis=-1)
    if method == "DR-CP":
        return lambda points: -log_density(dist, points)
    if method == "C-HDR":
        drawn = -log_density(dist, draws)
        return lambda points: share_below(drawn, -log_density(dist, points))
    if method == "PCP":
        return lambda points: nearest(more_draws, points)
    drawn = nearest(more_draws, draws)
    return lambda points: share_below(drawn, nearest(more_draws, points))


def squared_gap(features, calibration_features, covered):
    """Mean squared gap between coverage and level over clusters of the calibration rows' features."""
    found = KMeans(CLUSTERS, n_init=3, random_state=0).fit(calibration_features)
    weights = np.bincount(found.labels_, minlength=CLUSTERS) / len(found.labels_)
    clusters = found.predict(features)
    gaps = [covered[clusters == k].mean() - LEVEL if (clusters == k).any() else 0.0 for k in range(CLUSTERS)]
    return float((weights * np.square(gaps)).sum())


def run_split(name, seed, path):
    """Fit once, calibrate every method, and measure it; the record is written to ``path``."""
    warnings.simplefilter("ignore", LabelWarning)
    data = load_rows(name)
    train, cal, test = split_rows(len(data.D), seed)
    model = SnefyLDL(random_state=seed, device="cpu").fit(data.X[train], data.D[train])
    D = zero_policy(model).apply(data.D)
    dists = {part: model.predict_dist(data.X[rows]) for part, rows in (("cal", cal), ("test", test))}
    draws = {
        part: [dist.sample((n,), torch.Generator().manual_seed(k)).numpy() for k, n in enumerate((DRAWS, DRAWS))]
        for part, dist in dists.items()
    }
    sized = dists["test"].sample((SIZE_DRAWS,), torch.Generator().manual_seed(2)).numpy()
    log_share = -log_density(dists["test"], sized) + lgamma(D.shape[1])
    scale = data.X[cal].std(axis=0)
    centred = {part: data.X[rows] - data.X[cal].mean(axis=0) for part, rows in (("cal", cal), ("test", test))}
    standard = {part: rows / np.where(scale > 0.0, scale, 1.0) for part, rows in centred.items()}
    heights = {part: np.sort(log_density(dist, draws[part][0]), axis=0).T for part, dist in dists.items()}

    def size_of(inside):
        return np.exp(np.where(inside, log_share, -np.inf)).mean(axis=0)

    def measured(covered, size, seconds):
        ends = np.where(covered[:, None, None], [0.0, 1.0], [2.0, 3.0])
        slab = metrics.worst_slab_coverage(standard["test"], np.full((len(covered), 1), 0.5), ends, min_mass=0.2)
        gaps = [squared_gap(f["test"], f["cal"], covered) for f in (standard, heights)]
        return dict(zip(MEASURES, map(float, (covered.mean(), size.mean(), np.median(size), slab[0], *gaps, seconds))))

    record = {"data": name, "seed": seed, "snefy_ldl": snefy_ldl.__version__, "methods": {}}
    for method in THEIRS:
        start = time.process_time()
        scores = np.sort(their_score(method, dists["cal"], *draws["cal"])(D[cal]))
        q = scores[rank(LEVEL, len(cal)) - 1]
        score = their_score(method, dists["test"], *draws["test"])
        covered = score(D[test]) <= q
        seconds = time.process_time() - start
        record["methods"][method] = measured(covered, size_of(score(sized) <= q), seconds)
    for method in OURS:
        start = time.process_time()
        region = ConformalRegion(model, LEVEL, method, n_draws=DRAWS).conformalize(data.X[cal], data.D[cal])
        covered = region.contains(data.X[test], data.D[test])
        seconds = time.process_time() - start
        record["methods"][method] = measured(covered, region.volume(data.X[test], SIZE_DRAWS), seconds)
    start = time.process_time()
    box = ConformalIntervals(model, LEVEL, "quantile", simultaneous=True).conformalize(data.X[cal], data.D[cal])
    ends = box.predict_interval(data.X[test])
    covered = ((data.D[test] >= ends[..., 0]) & (data.D[test] <= ends[..., 1])).all(axis=1)
    seconds = time.process_time() - start
    inside = ((sized >= ends[..., 0]) & (sized <= ends[..., 1])).all(axis=-1)
    record["methods"]["quantile, simultaneous"] = measured(covered, size_of(inside), seconds)
    path.write_text(json.dumps(record))


def report(names, folder, splits):
    """Tables and result files from the records that are there."""
    facts = {"snefy_ldl": snefy_ldl.__version__, "machine": machine(1), "level": LEVEL, "figures": {}}
    about = " ".join(__doc__.split("\n\n", 2)[2].split())
    text = f"# Regions: against the scores of Dheur et al.\n\n`python benchmarks/regions.py`. {about}\n"
    for name in names:
        records = [json.loads(path.read_text()) for path in sorted(folder.glob(f"{name}-*.json"))]
        records = [record["methods"] for record in records if record["seed"] < splits]
        figures = {m: {key: [one[m][key] for one in records] for key in MEASURES} for m in records[0]}
        facts["figures"][name] = figures
        rows = [{"method": m, **{key: mean_error(values[key]) for key in MEASURES}} for m, values in figures.items()]
        text += f"\n## {name} ({len(records)} splits; mean ± standard error over splits)\n\n{markdown(rows)}\n"
    write("regions", facts, text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--data", nargs="+", default=list(DATA))
    parser.add_argument("--out", type=Path, default=RESULTS / "regions")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    asked.out.mkdir(parents=True, exist_ok=True)
    for seed in range(asked.splits):
        for name in asked.data:
            path = asked.out / f"{name}-{seed:03d}.json"
            if not path.exists():
                run_split(name, seed, path)
                print(path, flush=True)
    report(asked.data, asked.out, asked.splits)


if __name__ == "__main__":
    main()
