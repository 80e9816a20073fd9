"""Hundreds of models at once, and millions of predictions a second, on one GPU.

    python benchmarks/gpu.py      # needs CUDA; SBU_3DFE where SNEFY_LDL_DATA is set, else random data of its shape
    python benchmarks/gpu.py --parts --models 100     # only where the time of one call of fit_many goes; also on a CPU

The paper's SBU_3DFE setting: 1,250 rows, 243 features, 6 labels, n = 64, m = 32, batch 64, 100 epochs.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

import numpy as np
import torch

from common import machine, markdown, write
from snefy_ldl import SnefyLDL, load_dataset
from snefy_ldl.snefy import fit_many
from snefy_ldl.training import Job, TrainingData
from snefy_ldl.training import step as training_step
from snefy_ldl.training.loop import Trainer, TrainingLoop
from snefy_ldl.training.plan import build_net, make_objective


def paper_data():
    if os.environ.get("SNEFY_LDL_DATA"):
        data = load_dataset("sbu_3dfe")
        return data.X.astype(np.float32), data.D, "SBU_3DFE"
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2500, 243)).astype(np.float32) * 0.1 + 0.3
    return X, rng.dirichlet(np.full(6, 5.0), size=2500), "random data of SBU_3DFE's shape"


def halves(n_models: int, rows: int) -> list[np.ndarray]:
    return [np.random.default_rng(k).permutation(rows)[: rows // 2] for k in range(n_models)]


def train_seconds(X, D, n_models: int, recipe: str, epochs: int) -> dict[str, float]:
    """Seconds of the training loop alone (after warm-up and capture), and of the whole call."""
    base = SnefyLDL.paper("conformal", epochs=epochs) if recipe == "paper" else SnefyLDL(epochs=epochs, guides=None)
    splits = halves(n_models, len(X))
    params = [{"random_state": k} for k in range(n_models)]
    device = torch.device("cuda")
    data = TrainingData(X, D, None, None, custom=False)
    settings = [SnefyLDL(**(base.get_params() | change)).settings() for change in params]
    jobs = [Job(part, data, rows, warn=False) for part, rows in zip(settings, splits)]
    members = [member for job in jobs for member in job.members]
    net = build_net(members).to(device)
    loop = TrainingLoop(
        net,
        data.tensor(device),
        make_objective(net, members, device),
        [(member.train, member.valid) for member in members],
        jobs[0].recipe,
        [member.shuffle_seed for member in members],
    )
    loop.epoch()  # warm-up and capture
    torch.cuda.synchronize()
    start = time.perf_counter()
    while not loop.finished:
        loop.epoch()
    torch.cuda.synchronize()
    loop_seconds = (time.perf_counter() - start) * epochs / (epochs - 1)
    start = time.perf_counter()
    models = fit_many(base, X, D, splits, params)
    whole = time.perf_counter() - start
    return {"loop": loop_seconds, "whole": whole, "members": len(members), "models": models, "splits": splits}


def call_parts(X, D, n_models: int, device: str, epochs: int = 30) -> dict[str, float]:
    """Seconds of one call of fit_many on default models without guides: set-up, loop, finish, and the whole.

    Guides are fitted model by model on the CPU and are no part of the stacked call.
    """
    base = SnefyLDL(epochs=epochs, guides=None, device=device)
    splits, params = halves(n_models, len(X)), [{"random_state": k} for k in range(n_models)]
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    fit_many(base, X, D, splits[:2], params[:2], n_jobs=1)  # libraries load, kernels compile
    loops: list[tuple[float, float]] = []
    plain = Trainer.advance

    def timed(*arguments, **options):
        wait()
        start = time.perf_counter()
        plain(*arguments, **options)
        wait()
        loops.append((start, time.perf_counter()))

    Trainer.advance = timed
    try:
        wait()
        start = time.perf_counter()
        fit_many(base, X, D, splits, params, n_jobs=1)
        wait()
        end = time.perf_counter()
    finally:
        Trainer.advance = plain
    inside = sum(stop - begin for begin, stop in loops)
    setup = loops[0][0] - start
    return {"set-up": setup, "loop": inside, "finish": end - start - inside - setup, "whole": end - start}


def median_parts(X, D, n_models: int, device: str, repeats: int = 5) -> dict[str, float]:
    """Medians of :func:`call_parts`; the first call in a process is left out."""
    calls = [call_parts(X, D, n_models, device) for _ in range(repeats + 1)][1:]
    return {name: statistics.median(call[name] for call in calls) for name in calls[0]}


def eager_seconds(X, D, epochs: int) -> float:
    """One eager model, for comparison."""

    class Eager:
        def __init__(self, step, *_):
            self.step = step

        def __call__(self):
            self.step()

    graphed, training_step.GraphedStep = training_step.GraphedStep, Eager
    try:
        rows = halves(1, len(X))[0]
        start = time.perf_counter()
        SnefyLDL.paper("conformal", epochs=epochs, random_state=0).fit(X[rows], D[rows])
        torch.cuda.synchronize()
        return time.perf_counter() - start
    finally:
        training_step.GraphedStep = graphed


def predict_rate(X, D, rows: int) -> float:
    """Rows a second of mean and variance, features already on the GPU."""
    model = SnefyLDL.paper("conformal", epochs=1, random_state=0).fit(X, D)
    big = torch.as_tensor(np.tile(X, (rows // len(X), 1)), device="cuda")

    def once():
        with torch.no_grad():
            for start in range(0, len(big), 1 << 17):
                model.net_(big[start : start + (1 << 17)]).mean_and_variance()
        torch.cuda.synchronize()

    once()
    times = []
    for _ in range(5):
        start = time.perf_counter()
        once()
        times.append(time.perf_counter() - start)
    return len(big) / statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=int, nargs="*", default=[100, 1000])
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--parts", action="store_true", help="only the parts of one call of fit_many")
    arguments = parser.parse_args()
    if arguments.parts:
        X, D, source = paper_data()
        for n_models in arguments.models:
            parts = median_parts(X, D, n_models, "cuda" if torch.cuda.is_available() else "cpu")
            print(f"{n_models} default models, {source}:", {name: round(part, 3) for name, part in parts.items()})
        return
    if not torch.cuda.is_available():
        raise SystemExit("no CUDA device here")
    X, D, source = paper_data()
    rows = []
    for recipe in ("paper", "default"):
        for n_models in arguments.models:
            if recipe == "default" and n_models > 100:
                continue
            found = train_seconds(X, D, n_models, recipe, arguments.epochs if recipe == "paper" else 30)
            models, splits = found["models"][:3], found["splits"][:3]
            test = [np.setdiff1d(np.arange(len(X)), part) for part in splits]
            nll = -np.mean([m.score(X[t], D[t]) for m, t in zip(models, test)])
            lone = [
                SnefyLDL(**(m.get_params() | {"device": "cpu"})).fit(X[part], D[part])
                for m, part in zip(models, splits)
            ]
            nll_cpu = -np.mean([m.score(X[t], D[t]) for m, t in zip(lone, test)])
            rows.append(
                {
                    "recipe": recipe,
                    "models": n_models,
                    "members": found["members"],
                    "epochs": arguments.epochs if recipe == "paper" else 30,
                    "training loop, s": f"{found['loop']:.2f}",
                    "whole call, s": f"{found['whole']:.2f}",
                    "test NLL, GPU": f"{nll:.3f}",
                    "test NLL, lone CPU fits": f"{nll_cpu:.3f}",
                }
            )
            print(rows[-1], flush=True)
    eager = eager_seconds(X, D, arguments.epochs)
    rate = predict_rate(X, D, arguments.rows)
    parts = median_parts(X, D, 100, "cuda")
    facts = {"machine": machine(), "training": rows, "one eager model, s": eager, "predictions a second": rate}
    facts["one call of fit_many, 100 default models, s"] = parts
    spent = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in parts.items())
    text = (
        f"# On a GPU\n\n`python benchmarks/gpu.py` on one {facts['machine'].get('gpu')}, torch "
        f"{facts['machine']['torch']}; {source}, 1,250 rows each.\n\n{markdown(rows)}\n\n"
        f"One call of `fit_many` for 100 default models, medians of five: {spent}.\n\n"
        f"A single eager model of the paper's recipe: {eager:.2f} s. Mean and variance: {rate / 1e6:.1f} million rows "
        "a second with the features on the GPU.\n"
    )
    write("gpu", facts, text)


if __name__ == "__main__":
    main()
