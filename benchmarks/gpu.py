"""Hundreds of models at once, and millions of predictions per second, on one GPU.

    python benchmarks/gpu.py      # needs CUDA; SBU_3DFE if SNEFY_LDL_DATA is set, else random data of its shape

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
from snefy_ldl import SnefyLDL, fit_many, load_dataset


def paper_data():
    if os.environ.get("SNEFY_LDL_DATA"):
        data = load_dataset("sbu_3dfe")
        return data.X.astype(np.float32), data.D, "SBU_3DFE"
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2500, 243)).astype(np.float32) * 0.1 + 0.3
    return X, rng.dirichlet(np.full(6, 5.0), size=2500), "random data of SBU_3DFE's shape"


def halves(n_models: int, rows: int) -> list[np.ndarray]:
    return [np.random.default_rng(k).permutation(rows)[: rows // 2] for k in range(n_models)]


def fit_row(X, D, recipe: str, n_models: int, epochs: int) -> dict[str, object]:
    """One call of fit_many after a small one (libraries load, kernels compile), and three single fits on the CPU."""
    base = SnefyLDL.paper("conformal", epochs=epochs) if recipe == "paper" else SnefyLDL(epochs=epochs, guides=None)
    splits, params = halves(n_models, len(X)), [{"random_state": k} for k in range(n_models)]
    fit_many(base, X, D, splits[:2], params[:2])
    start = time.perf_counter()
    models = fit_many(base, X, D, splits, params)
    seconds = time.perf_counter() - start
    on_gpu, on_cpu = [], []
    for model, rows in zip(models[:3], splits):
        test = np.setdiff1d(np.arange(len(X)), rows)
        lone = SnefyLDL(**(model.get_params() | {"device": "cpu"})).fit(X[rows], D[rows])
        on_gpu.append(-model.score(X[test], D[test]))
        on_cpu.append(-lone.score(X[test], D[test]))
    return {
        "recipe": recipe,
        "models": n_models,
        "epochs": epochs,
        "whole call, s": f"{seconds:.2f}",
        "test NLL, GPU": f"{np.mean(on_gpu):.3f}",
        "test NLL, lone CPU fits": f"{np.mean(on_cpu):.3f}",
    }


def predict_rate(X, D, rows: int) -> float:
    """Rows per second of mean and variance, features already on the GPU."""
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
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("no CUDA device here")
    X, D, source = paper_data()
    rows = [fit_row(X, D, "paper", n_models, arguments.epochs) for n_models in arguments.models]
    rows.append(fit_row(X, D, "default", min(arguments.models), 30))
    rate = predict_rate(X, D, arguments.rows)
    facts = {"machine": machine(), "training": rows, "predictions a second": rate}
    text = (
        f"# On a GPU\n\n`python benchmarks/gpu.py` on one {facts['machine'].get('gpu')}, torch "
        f"{facts['machine']['torch']}; {source}, 1,250 rows each.\n\n{markdown(rows)}\n\n"
        f"Mean and variance: {rate / 1e6:.1f} million rows per second with the features on the GPU.\n"
    )
    write("gpu", facts, text)


if __name__ == "__main__":
    main()
