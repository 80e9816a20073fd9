"""Three small networks for the worked examples: one that sees tiles, one that reads words, one that walks on graphs.

And tiles of the made-up city, and graphs made of motifs, whose label distributions are known.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from snefy_ldl.datasets.synthetic import SyntheticData, TrueConditional, make_city_districts


class TileCNN(nn.Module):
    """Convolutions, halved from stage to stage, and the mean over the picture: (rows, 3, s, s) -> (rows, width).

    A map means the same from either side and wherever it is cut out: in training, tiles are mirrored and shifted round.
    """

    def __init__(self, width: int = 64, channels: tuple[int, ...] = (32, 64, 128, 128)) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        before = 3
        for number in channels:
            for stride in (1, 2):
                layers += [nn.Conv2d(before, number, 3, stride, 1, bias=False), nn.BatchNorm2d(number), nn.ReLU()]
                before = number
        self.convolutions = nn.Sequential(*layers)
        self.last = nn.Sequential(nn.Linear(before, width), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            mirrored = torch.rand(2, len(x), 1, 1, 1, device=x.device) < 0.5
            x = torch.where(mirrored[0], x.flip(-1), x)
            x = torch.where(mirrored[1], x.flip(-2), x)
            x = torch.roll(x, torch.randint(x.shape[-1], (2,)).tolist(), (2, 3))
        return self.last(self.convolutions(x).mean((2, 3)))


class Vocabulary:
    """Words that occur often enough, and batches of word numbers: a ``collate`` for texts and for pairs of texts."""

    def __init__(self, texts: Iterable[str | tuple[str, str]], least: int = 2, longest: int = 64) -> None:
        words = Counter(word for text in texts for word in self.words(text))
        self.numbers = {word: k + 3 for k, (word, times) in enumerate(sorted(words.items())) if times >= least}
        self.size, self.longest = max(self.numbers.values(), default=2) + 1, longest

    @staticmethod
    def words(text: str | tuple[str, str]) -> list[str]:
        parts = [text] if isinstance(text, str) else list(text)
        split = [re.findall(r"[a-z']+|[0-9]+|[^\w\s]", part.lower()) for part in parts]
        return split[0] if len(split) == 1 else [*split[0], "[SEP]", *split[1]]

    def __call__(self, texts: list[str | tuple[str, str]]) -> dict[str, Tensor]:
        rows = [[self.numbers.get(word, 1) for word in self.words(text)][: self.longest] or [1] for text in texts]
        ids = nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
        second = [(torch.tensor([w == self.numbers.get("[SEP]", 2) for w in row]).cumsum(0) > 0).long() for row in rows]
        return {"ids": ids, "second": nn.utils.rnn.pad_sequence(second, batch_first=True)}


class WordTransformer(nn.Module):
    """Two layers of attention over words, averaged: word numbers (rows, words) -> (rows, width)."""

    def __init__(self, n_words: int, width: int = 64, layers: int = 2, heads: int = 4, dropout: float = 0.2) -> None:
        super().__init__()
        self.words = nn.Embedding(n_words, width, padding_idx=0)
        self.places, self.parts = nn.Embedding(512, width), nn.Embedding(2, width)
        layer = nn.TransformerEncoderLayer(width, heads, 2 * width, dropout, batch_first=True, norm_first=True)
        self.attention = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.last = nn.LayerNorm(width)

    def forward(self, ids: Tensor, second: Tensor) -> Tensor:
        there = ids > 0
        x = self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device)) + self.parts(second)
        x = self.last(self.attention(x, src_key_padding_mask=~there))
        return (x * there[..., None]).sum(1) / there.sum(1, keepdim=True)


def make_gin(width: int = 32, layers: int = 3) -> nn.Module:
    """A GIN of PyTorch Geometric on node degrees, summed over each graph: a batch of graphs -> (graphs, width)."""
    from torch_geometric.nn import GINConv, global_add_pool

    class GIN(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            sizes = [1] + [width] * layers

            def mlp(a: int, b: int) -> nn.Module:
                return nn.Sequential(nn.Linear(a, b), nn.BatchNorm1d(b), nn.ReLU(), nn.Linear(b, b), nn.ReLU())

            self.layers = nn.ModuleList(GINConv(mlp(a, b)) for a, b in pairwise(sizes))
            self.last = nn.Sequential(nn.Linear(layers * width, width), nn.ReLU())

        def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
            pooled = []
            for layer in self.layers:
                x = layer(x, edge_index)
                pooled.append(global_add_pool(x, batch) / 10.0)
            return self.last(torch.cat(pooled, 1))

    return GIN()


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
    """

    n_nodes: int
    edge_index: np.ndarray

    def degrees(self) -> np.ndarray:
        """Neighbours of each node (n_nodes,)."""
        return np.bincount(self.edge_index[0], minlength=self.n_nodes).astype(np.float64)


def make_motif_graphs(n: int = 500, random_state: int = 0) -> tuple[list[MotifGraph], SyntheticData]:
    """Graphs made of triangles, squares and stars on a trunk, and the mix of labels they give.

    A trunk of 4 to 12 nodes carries 0 to 6 of each motif, at places and with node numbers left to chance. With ``k``
    the motifs' numbers, ``ℓ ~ Dirichlet(1 + s m)``, ``m_r ∝ (k_r + 1)^1.5`` and ``s = 6 + 4 Σ k``: more motifs, less
    doubt.

    Args:
        n: graphs.
        random_state: seed or numpy Generator.

    Returns:
        The graphs, and a table of the motifs' numbers (n, 3) with the distribution of the labels.
    """
    rng = np.random.default_rng(random_state)
    counts = rng.integers(0, MOST_MOTIFS + 1, (n, len(MOTIFS)))
    graphs = [_build(row, rng) for row in counts]
    X = counts.astype(np.float64)
    truth = TrueConditional(_graph_distribution, len(MOTIFS), len(MOTIFS))
    D = truth.sample(X, 1, rng)[0]
    names = list(MOTIFS)
    return graphs, SyntheticData(
        X=X,
        D=D,
        label_names=names,
        feature_names=[f"{name}s" for name in names],
        name="motif_graphs",
        truth=truth,
        latent=D,
    )


def _graph_distribution(X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One Dirichlet per graph: weights (N, 1) and concentrations (N, 1, 3)."""
    shares = np.power(X + 1.0, 1.5)
    shares /= shares.sum(1, keepdims=True)
    alpha = 1.0 + (6.0 + 4.0 * X.sum(1, keepdims=True)) * shares
    return np.ones((len(X), 1)), alpha[:, None]


def _build(counts: np.ndarray, rng: np.random.Generator) -> MotifGraph:
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


def as_graphs(graphs: list) -> list:
    """Motif graphs as PyTorch Geometric has them, each node with its number of neighbours."""
    from torch_geometric.data import Data

    return [
        Data(x=torch.as_tensor(g.degrees()).float()[:, None] / 3.0, edge_index=torch.as_tensor(g.edge_index))
        for g in graphs
    ]


#: Cells of houses along one side of a tile.
CELLS = 8
#: Bus lines that fit on a tile.
MOST_LINES = 16
BUS, STUDENT = (235, 40, 200), (255, 225, 40)


def make_city_tiles(n: int, size: int, random_state: int) -> tuple[np.ndarray, SyntheticData]:
    """Tiles (n, 3, size, size), 8-bit, and the districts with the distribution they were drawn from."""
    rng = np.random.default_rng(random_state)
    city = make_city_districts(n, random_state=rng)
    tiles = np.concatenate([draw_tiles(city.X[start : start + 1000], size, rng) for start in range(0, n, 1000)])
    return np.ascontiguousarray(tiles.transpose(0, 3, 1, 2)), city


def draw_tiles(X: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
    """Pictures (N, size, size, 3) of districts with features X (N, 5).

    A tile shows all features: the ground turns from green to grey toward the centre, blue cells are offices (brighter
    with more floors), each magenta line is a night bus, yellow dots are students, and roofs are redder where rents are
    higher. The places of cells, lines and dots are random.
    """
    distance, offices, students, buses, rent = X.T
    n, cell = len(X), size // CELLS
    central = np.exp(-distance / 4.0)[:, None, None, None]
    green, grey = np.array([60.0, 140.0, 60.0]), np.array([150.0, 150.0, 145.0])
    picture = green + central * (grey - green) + rng.normal(0.0, 6.0, (n, size, size, 1))
    # houses and offices: cells with a border of ground around them
    order = rng.random((n, CELLS * CELLS)).argsort(1).reshape(n, CELLS, CELLS)
    floor = np.clip((np.log10(np.maximum(offices, 1.0)) - 3.0) / 3.0, 0.0, 1.1)[:, None, None]  # 1e3 m² to 1e6 m²
    kind = np.where(order < 12, 2, np.where(order < 12 + 16 + 16 * central[..., 0], 1, 0))
    cells = np.zeros((n, CELLS, CELLS, 3))
    roof = np.clip((rent[:, None, None] - 6.0) / 26.0, 0.0, 1.0)
    cells[..., 0] = np.where(kind == 2, 30.0, 110.0 + 130.0 * roof)
    cells[..., 1] = np.where(kind == 2, 40.0 + 60.0 * floor, 85.0)
    cells[..., 2] = np.where(kind == 2, 60.0 + 175.0 * floor, 70.0)
    inside = np.zeros((cell, cell), dtype=bool)
    inside[1 : cell - 1, 1 : cell - 1] = True
    built = np.kron(kind > 0, inside[None]).astype(bool).reshape(n, size, size)
    picture = np.where(built[..., None], cells.repeat(cell, 1).repeat(cell, 2), picture)
    # night buses: one horizontal line each, at distinct heights
    gap = size // MOST_LINES
    run = rng.random((n, MOST_LINES)).argsort(1) < np.minimum(buses, MOST_LINES)[:, None]  # (n, places)
    lines = np.zeros((n, size), dtype=bool)
    lines[:, gap // 2 : gap * MOST_LINES : gap] = run
    picture = np.where(lines[:, :, None, None], np.array(BUS, dtype=np.float64), picture)
    # students: dots at distinct pixels
    dots = np.round(0.08 * size * size * np.tanh(students / 1500.0)).astype(np.intp)
    chance = rng.random((n, size * size))
    level = np.take_along_axis(np.sort(chance, 1), np.maximum(dots - 1, 0)[:, None], 1)
    dotted = ((chance <= level) & (dots > 0)[:, None]).reshape(n, size, size)
    picture = np.where(dotted[..., None], np.array(STUDENT, dtype=np.float64), picture)
    return np.clip(picture.round(), 0, 255).astype(np.uint8)
