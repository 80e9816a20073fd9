"""Backbones measured: images, texts, graphs, and a stream that is larger than memory.

    python benchmarks/backbones.py images --out results        # for a GPU: 20,000 tiles of 64 x 64
    SNEFY_LDL_DATA=... python benchmarks/backbones.py texts --out results
    python benchmarks/backbones.py graphs --out results
    python benchmarks/backbones.py stream --out results --gigabytes 20

Each part prints its figures and writes ``backbones_<part>.json`` into the folder. ``--tiny`` is a quick look whether
all of it runs.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import sys
import time
from pathlib import Path

import numpy as np
import torch
from joblib import Parallel, delayed
from scipy.special import gammaln
from torch import nn
from torch.utils.data import IterableDataset

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
sys.path.insert(0, str(Path(__file__).parent))

from backbone_networks import (
    TileCNN,
    Vocabulary,
    WordTransformer,
    as_graphs,
    draw_tiles,
    make_gin,
    make_motif_graphs,
)
from common import machine
from snefy_ldl import Backbone, SnefyLDL
from snefy_ldl.datasets import make_city_districts
from snefy_ldl.metrics.points import kl_divergence
from snefy_ldl.training import CandidateSpec, Task, TrainingData
from snefy_ldl.training.prepare import prepare
from snefy_ldl.training.train import Stack


def distance(model, X, truth, features, D):
    """KL of the distribution to the truth (nats a row, with its standard error), and of the mean."""
    gap = truth.log_prob(features, D) - model.log_prob(X, D)
    return {
        "density_kl": float(gap.mean()),
        "density_kl_se": float(gap.std() / len(gap) ** 0.5),
        "mean_kl": float(kl_divergence(truth.mean(features), np.asarray(model.predict(X)))),
    }


# -- images ------------------------------------------------------------------------------------------------------------


def city_tiles(n, size, seed, jobs):
    """Districts and their tiles, drawn by several processes."""
    city = make_city_districts(n, random_state=seed)
    parts = np.array_split(np.arange(n), max(1, n // 500))
    draws = [delayed(draw_tiles)(city.X[p], size, np.random.default_rng([seed, k])) for k, p in enumerate(parts)]
    return np.ascontiguousarray(np.concatenate(Parallel(n_jobs=jobs)(draws)).transpose(0, 3, 1, 2)), city


def step_seconds(update, device, repeats):
    """Median time of a step, the device waited for."""
    times = []
    for number in range(repeats + 5):
        if device.type == "cuda":
            torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(10 if device.type == "cuda" else 1):
            update()
        if device.type == "cuda":
            torch.cuda.synchronize()
        if number >= 5:
            times.append((time.perf_counter() - started) / (10 if device.type == "cuda" else 1))
    return float(np.median(times))


def cost_of_the_head(tiles, D, device, batch, precision, repeats, channels):
    """A step of the CNN with a softmax head, and with ours; the same rows, optimiser and precision."""
    backbone = Backbone(TileCNN(channels=channels), learning_rate=2e-3, mixed_precision=precision, clip=None)
    settings = SnefyLDL(backbone=backbone, batch_size=batch, epochs=1, random_state=0, device=str(device)).settings()
    data = TrainingData(tiles, D, None, None, backbone)
    stack = Stack([prepare(CandidateSpec("features", "none"), Task(settings, data))], device)
    stack.net.train()
    X, rows = stack.X, stack.train_rows[:, :batch]
    index = rows[0]

    def step():
        stack.learn(X, stack.learnt, rows, lambda *_: 1.0, 0, None)

    ours = step_seconds(step, device, repeats)

    twin = nn.ModuleDict({"cnn": TileCNN(channels=channels), "out": nn.Linear(64, D.shape[1])}).to(device).train()
    adam = torch.optim.AdamW(twin.parameters(), lr=2e-3, weight_decay=0.01, fused=True)
    table = torch.as_tensor(D, device=device).float()
    half = precision == "bf16"

    def update():
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=half):
            features = twin["cnn"](X[index].float() / 255.0)
        loss = -(table[index] * torch.log_softmax(twin["out"](features.float()), -1)).sum(-1).mean()
        adam.zero_grad()
        loss.backward()
        adam.step()

    plain = step_seconds(update, device, repeats)
    return {"softmax_ms": 1e3 * plain, "snefy_ms": 1e3 * ours, "overhead": ours / plain - 1.0}


def images(args):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    n, n_test, size, epochs = (600, 200, 32, 2) if args.tiny else (args.rows, args.rows // 5, 64, args.epochs or 50)
    started = time.perf_counter()
    tiles, city = city_tiles(n, size, args.seed, args.jobs)
    test_tiles, test = city_tiles(n_test, size, args.seed + 1, args.jobs)
    facts = {
        "rows": n,
        "seed": args.seed,
        "size": size,
        "epochs": epochs,
        "drawing_seconds": time.perf_counter() - started,
    }
    print(f"{n} tiles in {facts['drawing_seconds']:.1f} s", flush=True)
    batch = 128 if args.tiny else 256
    repeats = 4 if args.tiny else 20
    facts["step"] = {
        f"{name}, {len(channels)} stages": cost_of_the_head(tiles, city.D, device, batch, precision, repeats, channels)
        for name, precision in (("bf16", "bf16"), ("float32", None))
        for channels in ((32, 64), (32, 64, 128, 128))
    }
    print("step", facts["step"], flush=True)
    plain = SnefyLDL(epochs=epochs, batch_size=batch, guides=None, random_state=0)
    facts["features"] = distance(plain.fit(city.X, city.D), test.X, test.truth, test.X, test.D)
    facts["features"]["seconds"] = plain.training_["seconds"]
    print("true features", facts["features"], flush=True)
    for name, precision in (("bf16", "bf16"), ("float32", None)):
        cnn = TileCNN(channels=(32, 64))
        backbone = Backbone(cnn, learning_rate=2e-3, weight_decay=0.05, mixed_precision=precision)
        model = SnefyLDL(backbone=backbone, epochs=epochs, batch_size=batch, random_state=0).fit(tiles, city.D)
        facts[name] = distance(model, test_tiles, test.truth, test.X, test.D)
        facts[name] |= {"seconds": model.training_["seconds"], "best_epoch": model.training_["best_epoch"]}
        facts[name]["log_likelihood"] = float(model.score(test_tiles, test.D))
        for measure in ("density_kl", "mean_kl"):
            facts[name][f"{measure}_ratio"] = facts[name][measure] / facts["features"][measure]
        print(name, facts[name], flush=True)
    return facts


# -- texts -------------------------------------------------------------------------------------------------------------


def coefficient(k):
    return gammaln(k.sum(1) + 1) - gammaln(k + 1).sum(1)


class Twin(nn.Module):
    """The same network with a softmax, or the parameters of one Dirichlet, at its end."""

    def __init__(self, body, width, n_labels, kind):
        super().__init__()
        self.body, self.out, self.kind = body, nn.Linear(width, n_labels), kind

    def log_prob(self, batch, k):
        out = self.out(self.body(**batch)).double()
        if self.kind == "softmax":
            return (k * torch.log_softmax(out, -1)).sum(-1)
        alpha = out.clamp(-6.0, 10.0).exp()
        ratio = (torch.lgamma(alpha + k) - torch.lgamma(alpha)).sum(-1)
        return ratio + torch.lgamma(alpha.sum(-1)) - torch.lgamma(alpha.sum(-1) + k.sum(-1))


def fit_twin(kind, body, collate, texts, counts, epochs, seed, rate):
    """The network alone on the same rows: one cycle, 15 % validation, the best epoch."""
    torch.manual_seed(seed)
    net = Twin(copy.deepcopy(body), 64, counts.shape[1], kind)
    optimizer = torch.optim.AdamW(net.parameters(), lr=rate, weight_decay=0.05)
    order = np.random.default_rng(seed).permutation(len(texts))
    held, rows = order[: round(0.15 * len(texts))], order[round(0.15 * len(texts)) :]
    k = torch.as_tensor(counts).double()
    size = 64
    steps = -(-len(rows) // size)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=epochs * steps)
    best, state = -np.inf, None
    for epoch in range(epochs):
        net.train()
        shuffled = np.random.default_rng([seed, epoch]).permutation(rows)
        for start in range(0, len(rows), size):
            part = shuffled[start : start + size]
            optimizer.zero_grad()
            (-net.log_prob(collate([texts[i] for i in part]), k[part]).mean()).backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            schedule.step()
        value = score_twin(net, collate, [texts[i] for i in held], counts[held]).mean()
        if value > best:
            best, state = value, copy.deepcopy(net.state_dict())
    net.load_state_dict(state)
    return net


def score_twin(net, collate, texts, counts):
    net.eval()
    with torch.no_grad():
        parts = [
            net.log_prob(collate(texts[s : s + 256]), torch.as_tensor(counts[s : s + 256]).double())
            for s in range(0, len(texts), 256)
        ]
    return torch.cat(parts).numpy() + coefficient(counts)


def chaos_nli(data, seeds, epochs, rows):
    """Vote likelihood of held-out items: the Transformer with our head, and its twins."""
    import pandas as pd

    folder = data / "votes" / "ChaosNLI_SNLI"
    table = pd.read_csv(folder / "text.csv", keep_default_na=False)[:rows]
    counts = np.load(folder / "counts.npy")[:rows].astype(float)
    pairs = list(zip(table["premise"], table["hypothesis"]))
    scores = {name: [] for name in ("snefy", "softmax", "dirichlet")}
    for seed in range(seeds):
        order = np.random.default_rng(100 + seed).permutation(len(pairs))
        train, test = order[len(pairs) // 4 :], order[: len(pairs) // 4]
        words = Vocabulary([pairs[i] for i in train])
        torch.manual_seed(seed)
        body = WordTransformer(words.size)
        few, new = [pairs[i] for i in train], [pairs[i] for i in test]
        backbone = Backbone(body, learning_rate=1e-3, weight_decay=0.05, collate=words)
        model = SnefyLDL(backbone=backbone, epochs=epochs, batch_size=64, random_state=seed)
        model.fit(few, counts=counts[train])
        scores["snefy"].append(float(model.log_prob(new, counts=counts[test]).mean()))
        for kind in ("softmax", "dirichlet"):
            twin = fit_twin(kind, body, words, few, counts[train], epochs, seed, 1e-3)
            scores[kind].append(float(score_twin(twin, words, new, counts[test]).mean()))
        print("ChaosNLI", seed, {name: round(values[-1], 3) for name, values in scores.items()}, flush=True)
    return {"items": len(pairs), "epochs": epochs, "held_out_log_likelihood": scores}


def popquorn(data, seeds, epochs, rows):
    """Static embeddings: SNEFY on votes against Dirichlet-multinomials, with and without the embeddings."""
    import pandas as pd

    from snefy_ldl.training.data import fit_dirichlet_multinomial
    from votes_models import fit_rival

    folder = data / "annotators" / "POPQUORN_offensiveness"
    texts = pd.read_csv(folder / "text.csv", keep_default_na=False)[:rows]
    votes = pd.read_csv(folder / "votes.csv", keep_default_na=False)
    counts = pd.crosstab(votes["item"], votes["label"]).reindex(texts["item"]).to_numpy(dtype=float)
    import wordllama

    words = wordllama.WordLlama.load(cache_dir=Path(wordllama.__file__).parent, disable_download=True)
    E = np.asarray(words.embed(texts["text"].astype(str).tolist()), dtype=np.float64)
    scores = {name: [] for name in ("snefy", "network_dirichlet_multinomial", "one_dirichlet_multinomial")}
    for seed in range(seeds):
        order = np.random.default_rng(200 + seed).permutation(len(E))
        train, test = order[len(E) // 4 :], order[: len(E) // 4]
        model = SnefyLDL(epochs=epochs, n_members=4, random_state=seed).fit(E[train], counts=counts[train])
        scores["snefy"].append(float(model.log_prob(E[test], counts=counts[test]).mean()))
        rival = fit_rival("dirichlet", E[train], counts[train], seed, epochs)
        value = rival(E[test], counts[test])[1] + coefficient(counts[test])
        scores["network_dirichlet_multinomial"].append(float(value.mean()))
        alpha, k = fit_dirichlet_multinomial(counts[train]), counts[test]
        one = (gammaln(alpha + k) - gammaln(alpha)).sum(1) + gammaln(alpha.sum()) - gammaln(alpha.sum() + k.sum(1))
        scores["one_dirichlet_multinomial"].append(float((one + coefficient(k)).mean()))
        print("POPQUORN", seed, {name: round(values[-1], 4) for name, values in scores.items()}, flush=True)
    return {"items": len(E), "epochs": epochs, "held_out_log_likelihood": scores}


def texts(args):
    data = Path(os.environ["SNEFY_LDL_DATA"])
    seeds, epochs, rows = (1, 2, 200) if args.tiny else (args.seeds, args.epochs or 15, None)
    static = popquorn(data, seeds, 2 if args.tiny else 30, rows)
    return {"popquorn": static, "chaosnli": chaos_nli(data, seeds, epochs, rows)}


# -- graphs ------------------------------------------------------------------------------------------------------------


def graphs(args):
    n, epochs = (200, 2) if args.tiny else (args.rows if args.rows != 20_000 else 3000, args.epochs or 30)
    some, data = make_motif_graphs(n, random_state=0)
    new, test = make_motif_graphs(max(100, n // 3), random_state=1)
    facts = {"graphs": n, "epochs": epochs}
    plain = SnefyLDL(epochs=epochs, guides=None, random_state=0).fit(data.X, data.D)
    facts["counts"] = distance(plain, test.X, test.truth, test.X, test.D)
    print("true counts", facts["counts"], flush=True)
    torch.manual_seed(0)
    model = SnefyLDL(backbone=Backbone(make_gin(), learning_rate=5e-3), epochs=epochs, batch_size=64, random_state=0)
    model.fit(as_graphs(some), data.D)
    facts["gin"] = distance(model, as_graphs(new), test.truth, test.X, test.D)
    facts["gin"] |= {"seconds": model.training_["seconds"]}
    facts["gin"]["ratio_to_counts"] = facts["gin"]["density_kl"] / facts["counts"]["density_kl"]
    print("GIN", facts["gin"], flush=True)
    return facts


# -- a stream larger than memory ---------------------------------------------------------------------------------------


class Virtual(IterableDataset):
    """Rows made one by one: a wave whose height and length settle the mix; 12,500 numbers, 50 kB each."""

    WIDTH = 12_500

    def __init__(self, rows, watch):
        self.rows, self.watch = rows, watch

    def __len__(self):
        return self.rows

    def __iter__(self):
        rng = np.random.default_rng(0)
        wave = np.sin(np.arange(self.WIDTH, dtype=np.float32) * np.float32(0.01))
        noise = rng.standard_normal(1_000_000, dtype=np.float32) * np.float32(0.1)  # each row takes a piece of it
        for number in range(self.rows):
            if number % 2000 == 0:
                self.watch(number)
            height, level = rng.random(2)
            start = rng.integers(len(noise) - self.WIDTH)
            row = np.float32(height) * wave
            row += noise[start : start + self.WIDTH]
            row += np.float32(level)
            shares = rng.dirichlet(2.0 + 20.0 * np.array([height, level, 1.0 - level]))
            yield torch.from_numpy(row), shares


class Summary(nn.Module):
    """A wave in 50 numbers, and one layer."""

    def __init__(self):
        super().__init__()
        self.pool, self.layer = nn.AvgPool1d(250), nn.Linear(50, 32)

    def forward(self, x):
        return torch.relu(self.layer(self.pool(x[:, None])[:, 0]))


def stream(args):
    import psutil

    process, memory = psutil.Process(), []
    started = time.perf_counter()

    def watch(number):
        memory.append((number, process.memory_info().rss / 2**20))
        if number % 20_000 == 0:
            print(f"{number} rows, {memory[-1][1]:.0f} MiB, {time.perf_counter() - started:.0f} s", flush=True)

    gigabytes = 0.3 if args.tiny else args.gigabytes
    rows = int(gigabytes * 1e9 / (4 * Virtual.WIDTH))
    model = SnefyLDL(backbone=Backbone(Summary(), learning_rate=1e-3), epochs=1, random_state=0)
    model.fit(Virtual(rows, watch))
    early = max(m for n, m in memory if n <= max(20_000, rows // 10))
    return {
        "gigabytes": gigabytes,
        "rows": rows,
        "seconds": time.perf_counter() - started,
        "memory_mib_first_tenth": early,
        "memory_mib_most": max(m for _, m in memory),
        "validation_loss": model.training_["validation_loss"],
        "memory_mib": memory[:: max(1, len(memory) // 50)],
    }


PARTS = {"images": images, "texts": texts, "graphs": graphs, "stream": stream}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--gigabytes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=100, help="of the tiles; the net was chosen on seed 0")
    parser.add_argument("--jobs", type=int, default=1, help="processes that draw tiles")
    args = parser.parse_args()
    facts = {"machine": machine(), **PARTS[args.part](args)}
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / f"backbones_{args.part}.json").write_text(json.dumps(facts, indent=1) + "\n")
    print(json.dumps({key: value for key, value in facts.items() if key != "memory_mib"}, indent=1))


if __name__ == "__main__":
    main()
