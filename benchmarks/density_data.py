"""The data sets of the benchmark of densities: where they lie, how they are split, filled and freed of a lattice."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import scipy.io
import scipy.sparse as sp

from snefy_ldl.datasets.zeros import ZeroPolicy

LDL = ("Movie", "Natural_Scene", "SBU_3DFE", "SJAFFE", "Yeast_alpha", "Yeast_spo5")
COMPOSITION = ("GEMAS_elements", "GEMAS_texture", "IMDb_movies", "ECAM_infant_microbiome", "ArcticLake")
COMPOSITION += ("HouseholdExp", "Fairclough_timeuse", "Jura", "Swiss_branded_foods", "Mite_peat")
#: Tables so small that 70 % of the rows train, in place of half.
SMALL = ("HouseholdExp", "Fairclough_timeuse", "Mite_peat")
#: Shares of votes, many of them zero.
VOTES = ("ChaosNLI_SNLI", "KonIQ10k", "LIDC")
#: Values that the raw shares of a data set may take, and what lies between two of them: percentages, or the sums of
#: whole scores of 23 judges that SBU_3DFE was closed from.
LATTICES = {
    "Movie": (np.arange(101.0), 1.0),
    "SBU_3DFE": (np.arange(116.0), 1.0),
    "IMDb_movies": (np.array([0, 4.5, 14.5, 24.5, 34.5, 44.5, 45.5, 64.5, 74.5, 84.5, 94.5]), 10.0),
}


@dataclass
class Table:
    """Features with gaps as they came, label distributions, and who is kept together by a split."""

    X: np.ndarray
    D: np.ndarray
    groups: np.ndarray | None


@lru_cache(maxsize=2)
def load(name):
    folder = Path(os.environ["SNEFY_LDL_DATA"])
    groups = None
    if name in LDL:
        content = scipy.io.loadmat(folder / "ldl" / f"{name}.mat")
        X, D = content["features"], content["label_distribution" if "label_distribution" in content else "labels"]
        X = X.toarray() if sp.issparse(X) else X
    else:
        folder = folder / ("votes" if name in VOTES else "composition") / name
        X, D = np.load(folder / "features.npy"), np.load(folder / ("counts.npy" if name in VOTES else "labels.npy"))
        if (folder / "groups.npy").is_file():
            groups = np.load(folder / "groups.npy")
        if name == "LIDC":
            studies = (line.split(",")[1] for line in (folder / "rows.csv").read_text().splitlines()[1:])
            groups = np.unique(list(studies), return_inverse=True)[1]
    D = np.asarray(D, dtype=float)
    D = np.where(D <= 1e-9, 0.0, D)
    return Table(np.asarray(X, dtype=float), D / D.sum(1, keepdims=True), groups)


def zero_rows(D):
    return float((D == 0).any(1).mean())


def repeated(D):
    """Share of the positive entries whose value, to a millionth of itself, is seen at least ten times."""
    _, counts = np.unique(np.log(D[D > 0]).round(6), return_counts=True)
    return float(counts[counts >= 10].sum() / counts.sum())


def twins(D):
    """Share of the rows that are seen more than once."""
    _, counts = np.unique(D.round(6), axis=0, return_counts=True)
    return float(counts[counts > 1].sum() / len(D))


def repeated_ratios(D):
    """Share of the ratios of two positive shares of a row that are seen at least ten times: a lattice, closed."""
    one, other = np.triu_indices(D.shape[1], 1)
    both = (D[:, one] > 0) & (D[:, other] > 0)
    _, counts = np.unique((np.log(D[:, one][both]) - np.log(D[:, other][both])).round(6), return_counts=True)
    return float(counts[counts >= 10].sum() / counts.sum())


def variants(name):
    """What is measured on a data set: as it is, without its lattice, with its zeros as zeros, and with both."""
    D = load(name).D
    if name in VOTES:
        return ["zeros"]
    names = ["plain"]
    lattice = repeated(D) > 0.5 or twins(D) > 0.2 or repeated_ratios(D) > 0.5
    lattice = lattice and (name in LATTICES or not (D == 0).any())  # a step is known, or the smallest share is one
    if lattice:
        names.append("jitter")
    if zero_rows(D) > 0.01:
        names += ["zeros", "zeros jitter"] if lattice else ["zeros"]
    return names


def jittered(name, D, seed, keep_zeros=False):
    """Labels with uniform noise of half a lattice step on the raw shares, reflected at zero, and closed again.

    A row's raw shares are found by trying every total that brings its largest share onto the lattice. If labels
    repeat without a known lattice (Natural_Scene), the step is the row's smallest share, its stand-in for zero.
    """
    rng = np.random.default_rng([seed, 7])
    noise = rng.uniform(-0.5, 0.5, D.shape)
    if name not in LATTICES:
        raw, step = D, D.min(1, keepdims=True)
    else:
        values, step = LATTICES[name]
        totals = values[None, values > 0] / D.max(1, keepdims=True)  # (N, candidates)
        trial = D[:, None] * totals[..., None]  # (N, candidates, L)
        nearest = values[np.searchsorted((values[1:] + values[:-1]) / 2, trial)]
        gaps = np.abs(trial - nearest).max(-1)
        raw = D * np.take_along_axis(totals, (gaps + 1e-6 * np.abs(totals - 100)).argmin(1)[:, None], 1)
    noisy = np.maximum(np.abs(raw + step * noise), 1e-6 * step)
    raw = np.where(raw == 0, 0.0, noisy) if keep_zeros else noisy
    return raw / raw.sum(1, keepdims=True)


def halves(size, groups, seed, part=0.5):
    """Training and test rows; rows of a group stay together."""
    rng = np.random.default_rng([seed, 13])
    if groups is None:
        order, n_train = rng.permutation(size), int(part * size)
        return np.sort(order[:n_train]), np.sort(order[n_train:])
    names = rng.permutation(np.unique(groups))
    chosen = np.isin(groups, names[: len(names) // 2])
    return np.flatnonzero(chosen), np.flatnonzero(~chosen)


def training_groups(name, seed):
    """The group of each training row, if a table has groups."""
    groups = load(name).groups
    return None if groups is None else groups[halves(len(groups), groups, seed)[0]]


def learning_rows(size, groups, seed):
    """Mask of the training rows that peers learn from; the other 15 % pick sizes, rates and epochs."""
    rng = np.random.default_rng([seed, 17])
    units = np.arange(size) if groups is None else groups
    names = rng.permutation(np.unique(units))
    return ~np.isin(units, names[: max(2, round(0.15 * len(names)))])


def filled(train, test):
    """Gaps become the training rows' median, with a missing indicator."""
    gaps = np.isnan(train).any(0) | np.isnan(test).any(0)
    if not gaps.any():
        return train, test
    median = np.nanmedian(train, axis=0)
    return tuple(np.hstack([np.where(np.isnan(X), median, X), np.isnan(X[:, gaps])]) for X in (train, test))


def split(name, variant, seed):
    """Features and labels of both halves, labels without the zero policy, and the rows that peers learn from."""
    table = load(name)
    D = jittered(name, table.D, seed, variant != "jitter") if "jitter" in variant else table.D
    train, test = halves(len(D), table.groups, seed, 0.7 if name in SMALL else 0.5)
    X, X_test = filled(table.X[train], table.X[test])
    raw = D[test]
    if variant == "plain":
        policy = ZeroPolicy.from_data(D[train], "shrink")
        D = policy.apply(D)
    keep = learning_rows(len(train), None if table.groups is None else table.groups[train], seed)
    return X, D[train], X_test, D[test], raw, keep
