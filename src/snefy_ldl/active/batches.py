"""Batches on a kernel: rows that are new to what is labelled, stand for many others, and differ from each other.

Each selection is a function of features (N, width): :func:`lcmd`, :func:`badge`, :func:`bait`; labelled rows count from
the start (the train-pool mode of Holzmüller et al., 2023). The strategies of the same names make the features with one
of :data:`snefy_ldl.active.kernels.KERNELS`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.random import RandomState
from numpy.typing import NDArray
from torch import Tensor

from snefy_ldl._internal.memory import COMPARED_ELEMENTS
from snefy_ldl._internal.rows import as_rows, count_rows, take_rows
from snefy_ldl._internal.types import Array, Index, Mask
from snefy_ldl._internal.validation import check_choice, check_count
from snefy_ldl.active.kernels import KERNELS, has_disagreement, make_kernel
from snefy_ldl.active.pool import Pool
from snefy_ldl.active.strategy import RandomSampling, Strategy, free_rows
from snefy_ldl.errors import InputError

Table = NDArray[Any]

#: Numbers of the table of distances to labelled rows that are held at one time.
DISTANCE_ELEMENTS = 1 << 22


# -- selections --------------------------------------------------------------------------------------------------------


def lcmd(Z: Table, n: int, labeled: Table | None = None, random: RandomState | None = None) -> tuple[Index, Array]:
    """Largest cluster, maximum distance (Holzmüller, Zaverkin, Kästner & Steinwart, 2023).

    Labelled and chosen rows are centres, and every row belongs to the nearest one. The next row comes from the cluster
    with the largest sum of squared distances, and is its farthest. Without labelled rows the first is the row with the
    largest norm.

    Args:
        Z: features of the rows to choose from (N, width).
        n: how many rows.
        labeled: features of labelled rows (k, width), or None.
        random: source of randomness, if only copies of centres are left.

    Returns:
        Row numbers (n,), and what each row counts for before any is chosen (N,): its squared distance to the nearest
        labelled row, or its squared norm.

    Example:
        >>> Z = np.array([[0.0], [1.0], [1.2], [9.0], [9.1]])
        >>> lcmd(Z, 2, labeled=np.array([[0.0]]))[0]
        array([4, 2])
    """
    table, norms, gap, owner = _clusters(Z, labeled)
    utilities = norms if owner is None else gap.clone()
    chosen: list[int] = []
    n_centres = 0 if labeled is None else len(labeled)
    while len(chosen) < n:
        if owner is None:
            pick, owner = int(torch.argmax(norms)), torch.full((len(table),), -1)
        else:
            sizes = torch.bincount(owner, weights=gap)
            largest = int(torch.argmax(sizes))
            if not float(sizes[largest]) > 0.0:
                break  # only copies of centres are left
            pick = int(torch.argmax(torch.where(owner == largest, gap, -1.0)))
        nearer = (to_pick := _distances(table, norms, pick)) < gap
        owner[nearer] = n_centres
        gap = torch.where(nearer, to_pick, gap)
        gap[pick] = 0.0
        chosen.append(pick)
        n_centres += 1
    return _filled(chosen, n, len(table), random), _numbers(utilities)


def badge(Z: Table, n: int, labeled: Table | None = None, random: RandomState | None = None) -> tuple[Index, Array]:
    """Rows drawn with probability proportional to the squared distance to the nearest labelled or chosen row.

    This is k-means++ on the kernel, the selection of BADGE (Ash et al., 2020).

    Args:
        Z: features of the rows to choose from (N, width).
        n: how many rows.
        labeled: features of labelled rows (k, width), or None; the first row is then drawn by its squared norm.
        random: source of randomness.

    Returns:
        Row numbers (n,), and each row's weight in the first draw (N,).

    Example:
        >>> Z = np.array([[0.0], [5.0], [0.0], [9.0]])
        >>> np.sort(badge(Z, 2, np.zeros((1, 1)), RandomState(0))[0])
        array([1, 3])
    """
    random = random or RandomState(0)
    table, norms, gap, owner = _clusters(Z, labeled)
    weight = norms if owner is None else gap
    utilities = weight.clone()
    chosen: list[int] = []
    while len(chosen) < n and float(weight.sum()) > 0.0:
        mass = _numbers(weight)
        chosen.append(int(random.choice(len(mass), p=mass / mass.sum())))
        gap = torch.minimum(gap, _distances(table, norms, chosen[-1]))
        gap[chosen] = 0.0
        weight = gap
    return _filled(chosen, n, len(table), random), _numbers(utilities)


def bait(
    Z: Table, n: int, labeled: Table | None = None, random: RandomState | None = None, noise: float = 1e-3
) -> tuple[Index, Array]:
    """Rows after which the posterior variance summed over all rows is smallest (Ash et al., 2021): tr(Σ F).

    Greedily 2 n rows that lower the sum most (as far as there are so many), of which then n are taken back, always the
    one that is missed least.

    Args:
        Z: features of the rows to choose from (N, width).
        n: how many rows.
        labeled: features of labelled rows (k, width), or None.
        random: not used.
        noise: variance of the noise, as a share of the rows' mean squared norm.

    Returns:
        Row numbers (n,), and by how much each row by itself lowers the mean variance (N,).

    Example:
        >>> Z = np.array([[1.0, 0.0], [1.1, 0.0], [0.9, 0.0], [0.0, 1.0]])
        >>> sorted(bait(Z, 2)[0].tolist())
        [1, 3]
    """
    table = torch.as_tensor(Z)
    scale = max(float(table.square().sum(1).double().mean()), float(np.finfo(np.float32).tiny))
    rows = table if labeled is None or not len(labeled) else torch.cat([table, torch.as_tensor(labeled)])
    target = (rows.T @ rows).double() / len(rows)  # F
    known = rows[len(table) :].double()
    covariance = torch.linalg.inv(scale * torch.eye(rows.shape[1], dtype=torch.float64) + known.T @ known / noise)  # Σ
    variance = _quadratic(table, covariance)
    lowered = _quadratic(table, covariance @ target @ covariance)
    utilities = lowered / (noise + variance)
    chosen: list[int] = []
    while len(chosen) < min(2 * n, len(table)):
        score = lowered / (noise + variance.clamp_min(0.0))
        score[chosen] = -torch.inf
        chosen.append(int(torch.argmax(score)))
        row = table[chosen[-1]].double()
        s = covariance @ row
        t = covariance @ target @ s
        total = noise + float(row @ s)
        covariance = covariance - torch.outer(s, s) / total
        along, across = ((table @ v.to(table.dtype)).double() for v in (s, t))
        variance = variance - along**2 / total
        lowered = lowered - 2.0 * along * across / total + along**2 * float(s @ target @ s) / total**2
    while len(chosen) > n:
        batch = table[chosen].double()
        s = batch @ covariance
        left = (noise - (s * batch).sum(1)).clamp_min(1e-12 * noise)
        least = int(torch.argmin(((s @ target) * s).sum(1) / left))  # missed least
        covariance = covariance + torch.outer(s[least], s[least]) / left[least]
        chosen.pop(least)
    return np.array(chosen, dtype=np.intp), _numbers(utilities)


def _quadratic(table: Tensor, matrix: Tensor) -> Tensor:
    """``zᵀ A z`` of every row, float64."""
    step = max(1, DISTANCE_ELEMENTS // table.shape[1])
    return torch.cat([((part @ matrix.to(part.dtype)) * part).sum(1).double() for part in table.split(step)])


def _clusters(Z: Table, labeled: Table | None) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Rows, squared norms, squared distances to the nearest labelled row and its number; no number without any."""
    table = torch.as_tensor(Z)
    norms = torch.einsum("ij,ij->i", table, table)
    if labeled is None or not len(labeled):
        return table, norms, torch.full_like(norms, torch.inf), None
    known = torch.as_tensor(labeled)
    known_norms, gap, owner = (known * known).sum(1), torch.empty_like(norms), torch.empty(len(table), dtype=torch.long)
    step = max(1, DISTANCE_ELEMENTS // len(known))
    for start in range(0, len(table), step):
        part = slice(start, start + step)
        squares = known_norms - 2.0 * table[part] @ known.T
        nearest = squares.min(1)
        gap[part], owner[part] = (nearest.values + norms[part]).clamp_min(0.0), nearest.indices
    return table, norms, _not_rounding(gap, norms), owner


def _distances(table: Tensor, norms: Tensor, pick: int) -> Tensor:
    """Squared distances of all rows to one of them."""
    return _not_rounding((norms + norms[pick] - 2.0 * (table @ table[pick])).clamp_min(0.0), norms)


def _not_rounding(gap: Tensor, norms: Tensor) -> Tensor:
    """Squared distances, zero if they are rounding errors of norms: copies of a row."""
    return torch.where(gap > 16.0 * torch.finfo(gap.dtype).eps * norms, gap, 0.0)


def _filled(chosen: list[int], n: int, n_rows: int, random: RandomState | None) -> Index:
    """The chosen rows, made up to n by others at random."""
    rest = np.setdiff1d(np.arange(n_rows), chosen) if len(chosen) < n else np.zeros(0, dtype=np.intp)
    others = (random or RandomState(0)).permutation(rest)[: n - len(chosen)]
    return np.concatenate([np.array(chosen, dtype=np.intp), others]).astype(np.intp)


def _numbers(values: Tensor) -> Array:
    return np.asarray(values.numpy(), dtype=np.float64)


# -- strategies --------------------------------------------------------------------------------------------------------


class KernelStrategy(Strategy):
    """A batch on a kernel of the model.

    Args:
        kernel: ``"trees"``, ``"members"``, or ``"auto"`` for trees if the model has any.
        max_rows: a larger pool is thinned at random to this many rows; None for as many as 512 MiB of features hold
            (1.4 million with trees).

    Raises:
        InputError: there is no such kernel, or ``max_rows`` is no whole number of at least 1.

    Example:
        >>> LCMD("trees").kernel
        'trees'
    """

    needs_model = True

    def __init__(self, kernel: str = "auto", max_rows: int | None = None) -> None:
        check_choice("kernel", kernel, ("auto", *KERNELS))
        self.kernel = kernel
        self.max_rows = None if max_rows is None else check_count("max_rows", max_rows)

    #: Chooses rows by their features; see :func:`lcmd`.
    select: Callable[..., tuple[Index, Array]]

    def choose(
        self,
        pool: Pool,
        n: int,
        *,
        model: Any = None,
        X_labeled: Any = None,
        random: RandomState,
        exclude: Mask | None = None,
    ) -> tuple[Index, Array]:
        """See :meth:`Strategy.choose`."""
        with pool.naming():
            kernel = make_kernel(self.kernel, model, pool.first(), random)
        known = None
        if X_labeled is not None and count_rows(as_rows(X_labeled)):
            known = kernel.features(X_labeled)
        wanted = np.flatnonzero(free_rows(pool.count(), n, exclude))
        most = max(n, self.max_rows or 2 * COMPARED_ELEMENTS // kernel.width)
        if len(wanted) > most:
            wanted = np.sort(random.choice(wanted, most, replace=False))
        parts = []
        for start, block in pool.blocks("features"):
            rows = as_rows(block)
            if len(wanted) < pool.count():
                low, high = np.searchsorted(wanted, [start, start + count_rows(rows)])
                if low == high:
                    continue
                rows = take_rows(rows, wanted[low:high] - start)
            with pool.naming(start):
                parts.append(kernel.features(rows))
        Z = np.concatenate(parts)
        chosen, values = self.select(Z, n, known, random)
        utilities = np.full(pool.count(), np.nan)
        utilities[wanted] = values
        return wanted[chosen], utilities


class LCMD(KernelStrategy, name="lcmd"):
    """Largest cluster, maximum distance; see :func:`lcmd`.

    Args:
        kernel: see :class:`KernelStrategy`.
        max_rows: see :class:`KernelStrategy`.

    Example:
        >>> pool = np.array([[0.0, 0.1], [5.0, 5.0], [0.1, 0.0]], dtype=np.float32)
        >>> LCMD().select(pool, 1, pool[:1], np.random.RandomState(0))[0]  # unlike the labelled one
        array([1])
    """

    select = staticmethod(lcmd)


class BADGE(KernelStrategy, name="badge"):
    """Rows drawn by their squared distance to labelled and chosen rows; see :func:`badge`.

    Args:
        kernel: see :class:`KernelStrategy`.
        max_rows: see :class:`KernelStrategy`.

    Example:
        >>> pool = np.array([[0.0, 0.1], [5.0, 5.0], [0.1, 0.0]], dtype=np.float32)
        >>> BADGE().select(pool, 1, pool[:1], np.random.RandomState(0))[0]  # unlike the labelled one
        array([1])
    """

    select = staticmethod(badge)


class BAIT(KernelStrategy, name="bait"):
    """Rows after which the summed posterior variance is smallest; see :func:`bait`.

    Args:
        kernel: see :class:`KernelStrategy`.
        max_rows: see :class:`KernelStrategy`.

    Raises:
        InputError: A setting is out of its range.

    Example:
        >>> pool = np.array([[0.0, 0.1], [5.0, 5.0], [0.1, 0.0]], dtype=np.float32)
        >>> BAIT().select(pool, 1, pool[:1], np.random.RandomState(0))[0]  # unlike the labelled one
        array([1])
    """

    select = staticmethod(bait)


class Auto(Strategy, name="auto"):
    """The strategy that paid most in our study: ``lcmd`` if the model has trees or several members, else ``random``.

    Args:
        diagnosis: the result of :func:`snefy_ldl.active.will_it_help`; rows are taken at random if random rows are
            as good. None without one.

    Raises:
        InputError: ``diagnosis`` is something else.

    Example:
        >>> Auto().diagnosis is None
        True
    """

    needs_model = True

    def __init__(self, diagnosis: Any = None) -> None:
        if diagnosis is not None and not hasattr(diagnosis, "helps"):
            raise InputError(f"diagnosis={diagnosis!r}: pass what will_it_help(...) returned, or None.")
        self.diagnosis = diagnosis

    def choose(self, pool: Pool, n: int, *, model: Any = None, **rest: Any) -> tuple[Index, Array]:
        """See :meth:`Strategy.choose`."""
        random_is_as_good = self.diagnosis is not None and not self.diagnosis.helps
        with pool.naming():
            choose = not random_is_as_good and has_disagreement(model, pool.first())
        strategy = LCMD() if choose else RandomSampling()
        return strategy.choose(pool, n, model=model, **rest)
