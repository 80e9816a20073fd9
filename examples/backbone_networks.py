"""Three small networks for the worked examples: one that sees tiles, one that reads words, one that walks on graphs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise

import torch
from torch import Tensor, nn


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


def as_graphs(graphs: list) -> list:
    """Motif graphs as PyTorch Geometric has them, each node with its number of neighbours."""
    from torch_geometric.data import Data

    return [
        Data(x=torch.as_tensor(g.degrees()).float()[:, None] / 3.0, edge_index=torch.as_tensor(g.edge_index))
        for g in graphs
    ]
