"""Label enhancement as the literature measures it: binarise, enhance, score; ours and PyLDL's.

    SNEFY_LDL_DATA=... python benchmarks/enhancement.py --peer-python PATH    # writes results/enhancement.md

Both sides see the same rows (at most 1,000 of a set, by a fixed seed) and the same logical labels: the largest labels,
as few as hold half of the whole. Times are CPU seconds. Without --peer-python only our side runs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np

from common import RESULTS, write

SETS = ("movie", "natural_scene", "sbu_3dfe", "sjaffe", "yeast_alpha", "yeast_spo5")
LITERATURE = ("FCM", "KM", "LP", "ML", "GLLE", "LEVI", "LIBLE", "ConLE")
ROWS, PEER_SECONDS = 1000, 240
NOTES = """If a PyLDL cell is empty it was not run (all of Yeast_alpha, some networks); "over 240 s" is by the clock
on a busy machine. Single runs, one seed.

If ours and PyLDL's differ, and why. KM: the same to four digits since features keep their units; before, each was
divided by its spread. LP and ML on Movie: units again, of which PyLDL's, too, are the raw ones; with
`standardize=False` ours have KL .083 and .325 (of 800 other rows), but are worse on most other sets, so it is not the
default. ML on SJAFFE and Yeast_spo5: not settled; a scaling that damps columns of small spread gave .276 and .368 on
these rows (ahead of PyLDL's), but .269 and .409 on others, against .260 and .375 as it is. FCM on Movie: PyLDL does
not divide the cluster-by-label matrix by the number of rows a label has, and ours are all but even shares; whether
that is the whole difference was not tried. LEVI on SBU_3DFE: not found; the damped scaling moved it by +.001 on these
rows and by -.004 on 800 others.

`SnefyEnhancer` with the threshold gets the rule that made the labels, unlike the others. With the order alone it does
not, and the scale of the shares is lost.""".splitlines()
os.environ.setdefault("OMP_NUM_THREADS", "1")


def data(name: str):
    from snefy_ldl import load_dataset

    ds = load_dataset(name)
    rows = np.sort(np.random.default_rng(0).permutation(len(ds.X))[:ROWS])
    return ds.X[rows], ds.D[rows]


def enhancers():
    from snefy_ldl.learners import enhancement

    made = {name: getattr(enhancement, name)(random_state=0) for name in LITERATURE}
    made["SnefyEnhancer"] = enhancement.SnefyEnhancer(random_state=0)
    made["SnefyEnhancer, order alone"] = enhancement.SnefyEnhancer(threshold=None, random_state=0)
    return made


def peer(name: str, file: str) -> None:
    """In the peer's Python: one method on the rows of a file."""
    import pyldl.algorithms

    loaded = np.load(file)
    model = getattr(pyldl.algorithms, name)
    started = time.process_time()
    try:
        model = model(random_state=0)
    except TypeError:
        model = model()
    model.fit(loaded["X"], loaded["L"].copy())
    P = np.asarray(model.transform() if hasattr(model, "transform") else model._D, dtype=float)
    np.savez(file + ".out.npz", P=P, seconds=time.process_time() - started)


def ask_peer(python: str, name: str, X, L):
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "rows.npz")
        np.savez(file, X=X, L=L)
        environment = os.environ | {"KERAS_BACKEND": "torch", "CUDA_VISIBLE_DEVICES": ""}
        command = [python, __file__, "--peer", name, "--file", file]
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=PEER_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            return {"error": f"over {PEER_SECONDS} s"}
        if done.returncode:
            return {"error": done.stderr.strip().splitlines()[-1][:80]}
        with np.load(file + ".out.npz") as loaded:
            return {"P": loaded["P"], "seconds": float(loaded["seconds"])}


def scored(D, answer) -> dict:
    from snefy_ldl.metrics import score

    P = answer.pop("P", None)
    if P is None:
        return answer
    if not np.isfinite(P).all():
        return {"error": "NaN"}
    P = np.clip(P, 0.0, None)
    return answer | {"score": score(D, P / P.sum(axis=1, keepdims=True))}


def run(python: str | None) -> dict:
    import torch

    from snefy_ldl.learners.enhancement import binarise

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    file = RESULTS / "enhancement.json"
    facts = json.loads(file.read_text()) if file.exists() else {}
    for name in SETS:
        X, D = data(name)
        L = binarise(D)
        for method, model in enhancers().items():
            entry = facts.setdefault(name, {}).setdefault(method, {})
            if "ours" not in entry:
                started = time.process_time()
                entry["ours"] = scored(D, {"P": np.asarray(model.fit_transform(X, L))})
                entry["ours"]["seconds"] = time.process_time() - started
            if python and "peer" not in entry and method in LITERATURE:
                entry["peer"] = scored(D, ask_peer(python, method, X, L.astype(float)))
            file.write_text(json.dumps(facts, indent=1))
            print(
                name, method, {side: e.get("score", e).get("kl_divergence", e) for side, e in entry.items()}, flush=True
            )
    return facts


def report(facts: dict) -> None:
    lines = [
        "# Label enhancement: recovery of known distributions",
        "",
        f"`python benchmarks/enhancement.py`: at most {ROWS:,} rows, logical labels by the rule of Xu et al. (2018), "
        "threshold 0.5, the same for all. KL divergence and Chebyshev distance of the recovered distributions, lower "
        "is better, and CPU seconds of one thread on a shared machine. PyLDL is python-ldl 0.1.2 at its defaults.",
        "",
        "| set | method | KL | Chebyshev | s | PyLDL: KL | Chebyshev | s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    wins = []
    for name, methods in facts.items():
        best = min(
            e["ours"]["score"]["kl_divergence"] for m, e in methods.items() if m in LITERATURE and "score" in e["ours"]
        )
        for method, entry in methods.items():
            cells = []
            for side in ("ours", "peer"):
                e = entry.get(side, {})
                if "score" in e:
                    cells += [f"{e['score'][m]:.4f}" for m in ("kl_divergence", "chebyshev")] + [f"{e['seconds']:.1f}"]
                else:
                    cells += [e.get("error", ""), "", ""]
            lines.append(f"| {name} | {method} | {' | '.join(cells)} |")
        ours = methods.get("SnefyEnhancer", {}).get("ours", {}).get("score", {}).get("kl_divergence", np.inf)
        peers = [e["peer"]["score"]["kl_divergence"] for e in methods.values() if "score" in e.get("peer", {})]
        other = f"of PyLDL's {min(peers):.4f}" if peers else "PyLDL's not run"
        wins.append(f"{name}: {ours:.4f}, best of the eight here {best:.4f}, {other}")
    lines += ["", "`SnefyEnhancer` by KL: " + "; ".join(wins) + ".", "", *NOTES]
    write("enhancement", facts, "\n".join(lines) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer-python", help="interpreter with python-ldl, keras and torch")
    parser.add_argument("--report", action="store_true", help="the page again, from what was measured")
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    parser.add_argument("--file", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peer:
        peer(arguments.peer, arguments.file)
    elif arguments.report:
        report(json.loads((RESULTS / "enhancement.json").read_text()))
    else:
        report(run(arguments.peer_python))


if __name__ == "__main__":
    main()
