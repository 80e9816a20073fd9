"""Graphs of varying size made of motifs, with a known law: what a graph is made of settles its mix of labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snefy_ldl._internal.types import Array
from snefy_ldl._internal.validation import check_count
from snefy_ldl.datasets.synthetic.data import SyntheticData
from snefy_ldl.datasets.synthetic.truth import TrueConditional

__all__ = ["MotifGraph", "make_motif_graphs"]

#: Edges of each motif; its node 0 is tied to the graph's trunk.
MOTIFS = {
    "triangle": [(0, 1), (1, 2), (2, 0)],
    "square": [(0, 1), (1, 2), (2, 3), (3, 0)],
    "star": [(0, 1), (0, 2), (0, 3), (0, 4)],
}
MOST_MOTIFS = 6


@dataclass(frozen=True, eq=False)
class MotifGraph:
    """A graph without loops.

    Args:
        n_nodes: its nodes are 0 to n_nodes - 1.
        edge_index: both directions of every edge (2, E).

    Example:
        >>> MotifGraph(3, np.array([[0, 1, 1, 2], [1, 0, 2, 1]])).degrees()
        array([1., 2., 1.])
    """

    n_nodes: int
    edge_index: NDArray[np.int64]

    def degrees(self) -> Array:
        """Neighbours of each node (n_nodes,)."""
        return np.bincount(self.edge_index[0], minlength=self.n_nodes).astype(np.float64)


def make_motif_graphs(n: int = 500, random_state: Any = 0) -> tuple[list[MotifGraph], SyntheticData]:
    """Graphs made of triangles, squares and stars on a trunk, and the mix of labels they give.

    A trunk of 4 to 12 nodes carries 0 to 6 of each motif, at places and with node numbers left to chance. With ``k``
    the motifs' numbers, ``ℓ ~ Dirichlet(1 + s m)``, ``m_r ∝ (k_r + 1)^1.5`` and ``s = 6 + 4 Σ k``: more motifs, less
    doubt.

    Args:
        n: graphs.
        random_state: seed or numpy Generator.

    Returns:
        The graphs, and a table of the motifs' numbers (n, 3) with the law of the labels.

    Raises:
        InputError: ``n`` is no whole number of at least 1.

    Example:
        >>> graphs, data = make_motif_graphs(3)
        >>> len(graphs), data.X.shape, data.label_names
        (3, (3, 3), ['triangle', 'square', 'star'])
    """
    check_count("n", n)
    rng = np.random.default_rng(random_state)
    counts = rng.integers(0, MOST_MOTIFS + 1, (n, len(MOTIFS)))
    graphs = [_build(row, rng) for row in counts]
    X = counts.astype(np.float64)
    truth = TrueConditional(_law, len(MOTIFS), len(MOTIFS))
    D = truth.sample(X, 1, rng)[0]
    names = list(MOTIFS)
    return graphs, SyntheticData(
        X=X,
        D=D,
        label_names=names,
        feature_names=[f"{name}s" for name in names],
        name="motif_graphs",
        source="synthetic: snefy_ldl.datasets.synthetic.make_motif_graphs",
        licence="free of rights",
        truth=truth,
        latent=D,
    )


def _law(X: Array) -> tuple[Array, Array]:
    """One Dirichlet a graph: weights (N, 1) and concentrations (N, 1, 3)."""
    shares = np.power(X + 1.0, 1.5)
    shares /= shares.sum(1, keepdims=True)
    alpha = 1.0 + (6.0 + 4.0 * X.sum(1, keepdims=True)) * shares
    return np.ones((len(X), 1)), alpha[:, None]


def _build(counts: NDArray[np.int64], rng: np.random.Generator) -> MotifGraph:
    trunk = int(rng.integers(4, 13))
    edges = [(node, int(rng.integers(0, node))) for node in range(1, trunk)]  # a random tree
    size = trunk
    for pattern, times in zip(MOTIFS.values(), counts):
        for _ in range(int(times)):
            edges += [(size + a, size + b) for a, b in pattern]
            edges.append((size, int(rng.integers(0, trunk))))
            size += max(max(edge) for edge in pattern) + 1
    numbers = rng.permutation(size)
    pairs = numbers[np.array(edges)].T
    return MotifGraph(size, np.concatenate([pairs, pairs[::-1]], 1).astype(np.int64))
