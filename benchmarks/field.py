"""Learners of the field against PyLDL's of the same name: paired splits, both sides scored by the same code.

    SNEFY_LDL_DATA=... python benchmarks/field.py --peer-python PATH     # writes results/field.json and field.md
    SNEFY_LDL_DATA=... python benchmarks/field.py --report               # the page again, from what was measured

At most 1,000 rows of a set, half to train, five splits. PyLDL (python-ldl, MIT) runs at its defaults in a Python of
its own, once on raw and once on standardised features; the better of the two stands in the table. A second run starts
where the first one stopped. Times are CPU seconds of one thread.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np

for library in ("OMP", "MKL", "OPENBLAS", "NUMBA"):
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")
RESULTS = Path(__file__).parent / "results"
SETS, ROWS, SPLITS = ("sjaffe", "sbu_3dfe", "yeast_spo5", "natural_scene"), 1000, 5
#: PyLDL's names, and ours with its settings.
PAIRS = {
    "LDLM": ("LDLM", {}),
    "LDL_HR": ("LDLHR", {}),
    "LDL_HVLC": ("LDLHVLC", {}),
}
CLASSIFIERS = ("LDLM", "LDL_HR")


def split(name: str, seed: int):
    """Training and test rows of a set; a function of the seed only."""
    from snefy_ldl import load_dataset

    ds = load_dataset(name)
    rows = np.random.default_rng(seed).permutation(len(ds.X))[:ROWS]
    train, test = rows[: len(rows) // 2], rows[len(rows) // 2 :]
    return ds.X[train], ds.D[train], ds.X[test], ds.D[test]


def scores(D, P) -> dict[str, float]:
    from snefy_ldl.metrics import score

    P = np.maximum(np.nan_to_num(np.asarray(P, dtype=float), nan=1.0), 1e-12)
    P = P / P.sum(axis=1, keepdims=True)
    chosen = P.argmax(axis=1)
    return score(D, P) | {
        "accuracy": float((chosen == D.argmax(axis=1)).mean()),
        "share": float(D[np.arange(len(D)), chosen].mean()),
    }


def ours(name: str, params: dict, seed: int, X, D, new):
    import snefy_ldl.learners

    model = getattr(snefy_ldl.learners, name)(**params, random_state=seed)
    started = time.process_time()
    P = np.asarray(model.fit(X, D).predict(new))
    return P, time.process_time() - started


def peer(name: str, folder: str) -> None:
    """In the peer's Python: one learner on the rows of every file of a folder."""
    import pyldl.algorithms

    kind = getattr(pyldl.algorithms, name)
    for file in sorted(Path(folder).glob("rows-*.npz")):
        with np.load(file) as loaded:
            X, D, new, seed = loaded["X"], loaded["D"], loaded["new"], int(loaded["seed"])
        if name not in ("LDLSF", "LDL_LCLR", "BD_LDL", "Shallow_S_LDL"):
            X, D, new = (a.astype(np.float32) for a in (X, D, new))
        more = {"pos": np.ones(D.shape[1]), "neg": np.ones(D.shape[1])} if name == "LDL_DVS" else {}
        started = time.process_time()
        try:
            model = kind(random_state=seed, **more)
        except TypeError:
            model = kind(**more)
        model.fit(X, D)
        P = np.asarray(model.predict_proba(new) if name in CLASSIFIERS else model.predict(new), dtype=float)
        np.savez(file.with_name(f"answer-{seed}.npz"), P=P, seconds=time.process_time() - started)


def ask_peer(python: str, name: str, splits: dict, scaled: bool, limit: float) -> dict:
    """Predictions and seconds by seed; a sentence instead where there are none."""
    with tempfile.TemporaryDirectory() as folder:
        for seed, (X, D, new, _) in splits.items():
            mean, spread = (X.mean(axis=0), np.maximum(X.std(axis=0), 1e-9)) if scaled else (0.0, 1.0)
            file = Path(folder) / f"rows-{seed:03d}.npz"
            np.savez(file, X=(X - mean) / spread, D=D, new=(new - mean) / spread, seed=seed)
        command = [python, __file__, "--peer", name, "--folder", folder]
        environment = os.environ | {"KERAS_BACKEND": "torch", "CUDA_VISIBLE_DEVICES": ""}
        why = "?"
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=limit, check=False)
            why = (done.stderr.strip().splitlines() or ["?"])[-1][:90]
        except subprocess.TimeoutExpired:
            why = f"over {limit:.0f} s"
        answers = {}
        for seed in splits:
            file = Path(folder) / f"answer-{seed}.npz"
            if file.exists():
                with np.load(file) as loaded:
                    answers[seed] = (loaded["P"], float(loaded["seconds"]))
            else:
                answers[seed] = (None, why)
        return answers


def run(arguments) -> None:
    warnings.simplefilter("ignore")
    import snefy_ldl.learners

    file = RESULTS / f"field{arguments.suffix}.json"
    for name in arguments.sets:
        splits = {s: split(name, s) for s in range(arguments.first, arguments.first + arguments.splits)}
        for theirs in arguments.names:
            mine, params = PAIRS[theirs]
            for side in arguments.sides:
                records = json.loads(file.read_text()) if file.exists() else {}
                missing = {s: rows for s, rows in splits.items() if f"{name}/{theirs}/{side}/{s}" not in records}
                if not missing or (side == "ours" and not hasattr(snefy_ldl.learners, mine)):
                    continue
                if side == "ours":
                    answers = {seed: ours(mine, params, seed, *rows[:3]) for seed, rows in missing.items()}
                else:
                    answers = ask_peer(arguments.peer_python, theirs, missing, side == "scaled", arguments.limit)
                records = json.loads(file.read_text()) if file.exists() else {}
                for seed, (P, seconds) in answers.items():
                    entry = {"error": seconds} if P is None else scores(missing[seed][3], P) | {"seconds": seconds}
                    records[f"{name}/{theirs}/{side}/{seed}"] = entry
                file.write_text(json.dumps(records, indent=0, sort_keys=True) + "\n")
                whole = [records[f"{name}/{theirs}/{side}/{seed}"] for seed in answers]
                said = [e.get("error") or f"{e['kl_divergence']:.4f}/{e['accuracy']:.3f}" for e in whole]
                print(name, theirs, side, *said, flush=True)


def report() -> None:
    records = json.loads((RESULTS / "field.json").read_text())
    lines = [
        "# Learners of the field, beside PyLDL's",
        "",
        f"`benchmarks/field.py`: at most {ROWS:,} rows, half to train, mean of the splits that both sides ran (up to",
        f"{SPLITS}; some ran on three or one, where PyLDL was slow); python-ldl 0.1.2 at its defaults, on raw or",
        "standardised features, whichever is better where both were run (on SJAFFE; elsewhere mostly raw alone). KL",
        "divergence, and for LDLM and LDL-HR accuracy of the largest label. The difference (ours less PyLDL's)",
        "is paired, ± its standard error; in bold where ours is behind by more than that. CPU seconds of one thread",
        "on a shared machine.",
        "",
        "| PyLDL | here | set | measure | here | PyLDL | difference | s | PyLDL: s |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    behind, cells = [], 0
    for theirs, (mine, params) in PAIRS.items():
        measure, sign = ("accuracy", -1.0) if theirs in CLASSIFIERS else ("kl_divergence", 1.0)
        title = mine + "".join(f'("{value}")' for value in params.values())
        for name in SETS:
            sides = {}
            for side in ("ours", "raw", "scaled"):
                entries = [records.get(f"{name}/{theirs}/{side}/{seed}", {}) for seed in range(SPLITS)]
                entries = [entry for entry in entries if measure in entry]
                sides[side] = (np.array([e[measure] for e in entries]), np.array([e["seconds"] for e in entries]))
            here, seconds = sides.pop("ours")
            if not len(here):
                continue
            sides = {side: values for side, values in sides.items() if len(values[0])}
            if not sides:
                error = records.get(f"{name}/{theirs}/raw/0", {}).get("error", "not run")
                start = f"| {theirs} | {title} | {name} | {measure} |"
                lines.append(f"{start} {here.mean():.4f} | {error} | | {seconds.mean():.2f} | |")
                continue
            there, slow = min(sides.values(), key=lambda values: (-len(values[0]), sign * values[0].mean()))
            here = here[: len(there)]
            gap = here - there[: len(here)]
            error = gap.std(ddof=1) / len(gap) ** 0.5 if len(gap) > 1 else np.nan
            cells += 1
            worse = sign * gap.mean() > error
            if worse:
                behind.append(f"{title} on {name}")
            shown = f"{gap.mean():+.4f} ± {error:.4f}" if len(gap) > 1 else f"{gap.mean():+.4f}, one split"
            lines.append(
                f"| {theirs} | {title} | {name} | {measure} | {here.mean():.4f} | {there.mean():.4f} | "
                f"{f'**{shown}**' if worse else shown} | {seconds.mean():.2f} | {slow.mean():.2f} |"
            )
    lines += ["", f"Of {cells} cells ours is behind by more than a standard error in {len(behind)}: "]
    lines[-1] += ("; ".join(behind) or "none") + "."
    (RESULTS / "field.md").write_text("\n".join(lines) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer-python", help="interpreter with python-ldl, keras and torch")
    parser.add_argument("--names", nargs="*", default=list(PAIRS), help="PyLDL's names")
    parser.add_argument("--sets", nargs="*", default=list(SETS))
    parser.add_argument("--sides", nargs="*", choices=["ours", "raw", "scaled"])
    parser.add_argument("--first", type=int, default=0, help="first seed; from 100 on for settings")
    parser.add_argument("--splits", type=int, default=SPLITS)
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for all splits of a set, PyLDL's")
    parser.add_argument("--suffix", default="", help="of the result file, for trials")
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peer:
        peer(arguments.peer, arguments.folder)
        return
    if arguments.sides is None:
        arguments.sides = ["ours", "raw", "scaled"] if arguments.peer_python else ["ours"]
    if not arguments.report:
        run(arguments)
    if not arguments.suffix:
        report()


if __name__ == "__main__":
    sys.exit(main())
