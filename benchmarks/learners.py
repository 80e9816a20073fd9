"""Every learner against PyLDL (python-ldl) at its defaults: accuracy and fit time, one thread, in one process tree.

    python benchmarks/learners.py --peer-python /path/to/python    # with python-ldl, keras and torch installed
    python benchmarks/learners.py                                  # ours only
    python benchmarks/learners.py --cap 3                          # three splits of each setting, to try it out
    python benchmarks/learners.py --report                         # rewrite benchmarks/learners.md from the results

Data come from ``SNEFY_LDL_DATA/ldl``. Results lie in ``benchmarks/results/learners/``; a second run starts
where the first one stopped. Both sides run as workers of the same kind, on the same splits, scored by the same code.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
THREADS = {f"{lib}_NUM_THREADS": "1" for lib in ("OMP", "MKL", "OPENBLAS", "NUMEXPR")}

PEER = {
    "SABFGS": "SA_BFGS",
    "SAIIS": "SA_IIS",
    "DFLDL": "DF_LDL",
    "LDLSCL": "LDL_SCL",
    "LDLLRR": "LDL_LRR",
    "LDLDPA": "LDL_DPA",
    "PTBayes": "PT_Bayes",
    "PTSVM": "PT_SVM",
    "AAKNN": "AA_KNN",
    "AABP": "AA_BP",
    "CPNN": "CPNN",
    "BCPNN": "BCPNN",
    "ACPNN": "ACPNN",
    "LDLForest": "LDLF",
    "DirichletLDL": None,
    "DeltaLDL": "Delta_LDL",
    "EvidentialLDL": None,
    "LDLDPM": "LDL_DPM",
    "RKNNLDL": "RKNN_LDL",
    "SLDL": "S_KLD",
}
SETTINGS = {"sjaffe": 100, "sbu": 10, "bag": 10}
TITLES = {
    "sjaffe": "SJAFFE, 10 x 10-fold",
    "sbu": "SBU_3DFE, ten random 90/10 splits",
    "bag": "SBU_3DFE, ten bags of 50 rows, tested on 250 others",
}
#: Splits on which the peer's slow learners run, and the seconds a fit takes there; the others run on all of them.
PEER_CAPS = {
    "sjaffe": {
        "SAIIS": 2,
        "ACPNN": 3,
        "LDLForest": 5,
        "CPNN": 10,
        "BCPNN": 10,
        "LDLSCL": 20,
        "DFLDL": 20,
        "AABP": 20,
        "LDLDPM": 2,
    },
    "sbu": {
        "SAIIS": 0,
        "ACPNN": 0,
        "LDLForest": 1,
        "CPNN": 2,
        "BCPNN": 2,
        "LDLSCL": 5,
        "DFLDL": 10,
        "AABP": 5,
        "LDLDPM": 0,
    },
    "bag": {
        "SAIIS": 0,
        "ACPNN": 0,
        "LDLForest": 0,
        "CPNN": 0,
        "BCPNN": 0,
        "AABP": 0,
        "PTSVM": 0,
        "PTBayes": 0,
        "LDLDPM": 0,
    },
}
#: Whose fit times are compared: setting and learner.
SPEED = [("bag", name) for name in ("DFLDL", "LDLSCL", "SABFGS", "LDLLRR")]
SPEED += [("sjaffe", name) for name in ("SAIIS", "ACPNN", "LDLForest", "CPNN")]
BASE_LEARNERS = ["SABFGS", "DFLDL", "LDLSCL", "LDLLRR"]
METRICS = ["chebyshev", "clark", "canberra", "kl_divergence", "cosine", "intersection"]
HIGHER = {"cosine", "intersection"}


# --- splits -----------------------------------------------------------------------------------------------------------


def load(name: str, folder: str) -> tuple[Any, Any]:
    from scipy.io import loadmat

    table = loadmat(Path(folder) / "ldl" / f"{name}.mat")
    D = np.asarray(table["labels"], dtype=float)
    return np.asarray(table["features"], dtype=float), D / D.sum(axis=1, keepdims=True)


def split(setting: str, index: int, n_rows: int) -> tuple[Any, Any]:
    """Training and test rows of one split; a function of its number only."""
    if setting == "sjaffe":
        repeat, fold = divmod(index, 10)
        parts = np.array_split(np.random.default_rng(repeat).permutation(n_rows), 10)
        return np.concatenate(parts[:fold] + parts[fold + 1 :]), parts[fold]
    order = np.random.default_rng(1000 + index).permutation(n_rows)
    n_train = round(0.9 * n_rows)
    return (order[:50] if setting == "bag" else order[:n_train]), order[n_train:]


# --- the worker: one fit at a time, here or in the peer's Python -----------------------------------------------------


def make_peer(name: str, seed: int) -> Any:
    import types

    # The wheel lacks two compiled modules; DF_LDL shares a file with their users and needs neither.
    for module, names in (("_tree", ("_Node", "best_split")), ("_rbm", ("train_rbm",))):
        stand_in = types.ModuleType(f"pyldl.algorithms.{module}")
        for attribute in names:
            setattr(stand_in, attribute, object)
        sys.modules.setdefault(stand_in.__name__, stand_in)
    import pyldl.algorithms

    return getattr(pyldl.algorithms, name)(random_state=seed)


def make_ours(name: str, seed: int) -> Any:
    import snefy_ldl.learners

    return getattr(snefy_ldl.learners, name)(random_state=seed)


def worker(side: str, folder: str) -> None:
    """Answer one JSON line per task; prints of the libraries go to stderr."""
    import torch

    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    data = {"sjaffe": load("SJAFFE", folder), "sbu": load("SBU_3DFE", folder)}
    data["bag"] = data["sbu"]
    make = make_peer if side == "peer" else make_ours
    warm: set[str] = set()
    for line in sys.stdin:
        task = json.loads(line)
        X, D = data[task["setting"]]
        train, test = split(task["setting"], task["split"], len(X))
        try:
            model = make(task["name"], task["split"])
            if side == "ours" and task["name"] not in warm:  # imports and first calls are not part of a fit
                make(task["name"], 0).fit(X[:20], D[:20])
                warm.add(task["name"])
            start = time.perf_counter()
            model.fit(X[train], D[train])
            fitted = time.perf_counter()
            P = np.asarray(model.predict(X[test]), dtype=float)
            answer = {"fit_s": fitted - start, "predict_s": time.perf_counter() - fitted, "P": P.tolist()}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"[:300]}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


class Worker:
    """A worker process of one side, started at the first task."""

    def __init__(self, side: str, python: str, folder: str) -> None:
        self.side, self.python, self.folder = side, python, folder
        self.process: subprocess.Popen[str] | None = None

    def __call__(self, **task: Any) -> dict[str, Any]:
        if self.process is None:
            command = [self.python, __file__, "--worker", self.side, "--data", self.folder]
            environment = os.environ | THREADS | {"KERAS_BACKEND": "torch", "CUDA_VISIBLE_DEVICES": ""}
            log = open(HERE / "results" / "learners" / f"{self.side}.log", "w")  # noqa: SIM115
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=environment
            )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(task) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"The {self.side} worker died; see benchmarks/results/learners/{self.side}.log.")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()
            self.process.wait()


# --- running ----------------------------------------------------------------------------------------------------------


def result_file(side: str, learner: str, setting: str) -> Path:
    return HERE / "results" / "learners" / f"{setting}-{learner}-{side}.json"


def read(side: str, learner: str, setting: str) -> dict[str, Any]:
    path = result_file(side, learner, setting)
    return json.loads(path.read_text()) if path.exists() else {}


def score(D: Any, P: Any) -> dict[str, float]:
    from snefy_ldl.metrics import score as six

    P = np.clip(P, 0.0, None)
    return {name: float(value) for name, value in six(D, P / P.sum(axis=1, keepdims=True)).items()}


def n_splits(side: str, learner: str, setting: str, cap: int | None) -> int:
    n = SETTINGS[setting]
    if side == "peer":
        n = min(n, PEER_CAPS[setting].get(learner, n)) if PEER[learner] else 0
    return min(n, cap) if cap is not None else n


def run(args: argparse.Namespace) -> None:
    (HERE / "results" / "learners").mkdir(parents=True, exist_ok=True)
    workers = {"ours": Worker("ours", sys.executable, args.data)}
    if args.peer_python:
        workers["peer"] = Worker("peer", args.peer_python, args.data)
    for setting in args.settings:
        _, D = load("SJAFFE" if setting == "sjaffe" else "SBU_3DFE", args.data)
        for learner in args.learners:
            for side, ask in workers.items():
                done = read(side, learner, setting)
                todo = [i for i in range(n_splits(side, learner, setting, args.cap)) if str(i) not in done]
                for index in todo:
                    answer = ask(name=PEER[learner] if side == "peer" else learner, setting=setting, split=index)
                    P = answer.pop("P", None)
                    if P is not None:
                        answer["score"] = score(D[split(setting, index, len(D))[1]], np.array(P))
                    done[str(index)] = answer
                    path = result_file(side, learner, setting)
                    path.with_suffix(".tmp").write_text(json.dumps(done))
                    path.with_suffix(".tmp").replace(path)
                if todo:
                    print(f"{setting:7} {learner:13} {side:5} {summary(done)}", flush=True)
    if not args.no_bags:
        seconds = time_bags(args.data)
        print(f"250 bags of {', '.join(BASE_LEARNERS)} on two cores: {seconds:.1f} s")
        (HERE / "results" / "learners" / "bags.json").write_text(json.dumps({"seconds": seconds}))
    for one in workers.values():
        one.close()
    versions = {"machine": machine(), "ours": package_versions(sys.executable, "snefy-ldl")}
    if args.peer_python:
        versions["peer"] = package_versions(args.peer_python, "python-ldl", "keras")
    path = HERE / "results" / "learners" / "versions.json"
    kept = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(kept | versions))


def summary(done: dict[str, Any]) -> str:
    good = [r for r in done.values() if "score" in r]
    if not good:
        return next(iter(done.values()))["error"] if done else "nothing"
    kl = np.mean([r["score"]["kl_divergence"] for r in good])
    return f"{len(good):3} splits, fit {np.median([r['fit_s'] for r in good]):.4f} s, KL {kl:.4f}"


def _fit_bag(name: str, X: Any, D: Any, seed: int) -> None:
    import torch

    torch.set_num_threads(1)
    make_ours(name, seed).fit(X, D)


def time_bags(folder: str) -> float:
    """Seconds for 250 bags of 50 rows with each base learner, on two processes."""
    from joblib import Parallel, delayed

    X, D = load("SBU_3DFE", folder)
    bags = [split("bag", 100 + i, len(X))[0] for i in range(250)]
    os.environ.update(THREADS)
    start = time.perf_counter()
    Parallel(n_jobs=2)(
        delayed(_fit_bag)(name, X[rows], D[rows], i) for i, rows in enumerate(bags) for name in BASE_LEARNERS
    )
    return time.perf_counter() - start


def machine() -> str:
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        model = next((li.split(":")[1].strip() for li in info.read_text().splitlines() if "model name" in li), model)
    return f"{model}, {os.cpu_count()} cores, {platform.system()}"


def package_versions(python: str, *names: str) -> str:
    wanted = [*names, "torch", "numpy", "scipy", "scikit-learn"]
    code = f"import importlib.metadata as m; print(', '.join(n + ' ' + m.version(n) for n in {wanted}))"
    found = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    version = subprocess.run([python, "-V"], capture_output=True, text=True, check=True)
    return f"{version.stdout.strip()}, {found.stdout.strip()}"


# --- the report -------------------------------------------------------------------------------------------------------


def compare(ours: dict[str, Any], peer: dict[str, Any]) -> tuple[list[str], list[str], list[str], int]:
    """Cells of both sides on their common splits, the measures on which ours is worse, and the number of splits."""
    common = [k for k in ours if "score" in ours[k] and (not peer or "score" in peer.get(k, {}))]
    cells: dict[str, list[str]] = {"ours": [], "peer": []}
    worse = []
    for metric in METRICS:
        values = {
            side: np.array([table[k]["score"][metric] for k in common])
            for side, table in (("ours", ours), ("peer", peer))
            if table
        }
        for side, v in values.items():
            error = f" ± {v.std(ddof=1) / np.sqrt(len(v)):.4f}" if len(v) > 1 else ""
            cells[side].append(f"{v.mean():.4f}{error}")
        if peer and common:
            gap = (values["ours"] - values["peer"]) * (-1.0 if metric in HIGHER else 1.0)
            error = gap.std(ddof=1) / np.sqrt(len(gap)) if len(gap) > 1 else 0.0
            if gap.mean() > error:
                worse.append(metric)
    return cells["ours"], cells["peer"], worse, len(common)


def report(command: str) -> str:
    versions_file = HERE / "results" / "learners" / "versions.json"
    versions = json.loads(versions_file.read_text()) if versions_file.exists() else {}
    lines = ["# Learners against PyLDL", "", f"Command: `{command}`", ""]
    lines += [f"- {side}: {text}" for side, text in versions.items()]
    lines += [
        "- one thread a fit, both sides in one process tree, raw features in, every learner at its defaults",
        "- a cell is the mean over splits ± its standard error, both sides on the same splits; *worse on* names the "
        "measures on which ours is worse by more than one standard error of the paired difference",
        "- our defaults were set on other data (Movie, Natural_Scene, Yeast, GEMAS, ArcticLake), with exceptions made "
        "after scores of a few SJAFFE and SBU_3DFE splits had been seen: the paper's fusion in DFLDL, the unit-free "
        "scaling in AAKNN, the weaker penalty above the first layer of CPNN, BCPNN and ACPNN, and that a second "
        "scaling is tried at all",
        "- PyLDL's wheel cannot import DF_LDL (two compiled modules are missing); empty stand-ins take their "
        "place, which DF_LDL does not call",
        "",
        "## Speed",
        "",
        "| setting | learner | ours, median s | PyLDL, median s | times faster |",
        "|---|---|---|---|---|",
    ]
    for setting, learner in SPEED:
        times = {
            side: [r["fit_s"] for r in read(side, learner, setting).values() if "fit_s" in r]
            for side in ("ours", "peer")
        }
        if times["ours"] and times["peer"]:
            a, b = np.median(times["ours"]), np.median(times["peer"])
            lines.append(f"| {TITLES[setting]} | {learner} | {a:.4f} | {b:.3f} | {b / a:.0f} |")
    bags = HERE / "results" / "learners" / "bags.json"
    if bags.exists():
        seconds = json.loads(bags.read_text())["seconds"]
        lines += ["", f"250 bags of 50 rows with each of {', '.join(BASE_LEARNERS)}, two processes: {seconds:.1f} s."]
    for setting, n_all in SETTINGS.items():
        head = "| learner | side | splits | fit s | Cheby ↓ | Clark ↓ | Canb ↓ | KL ↓ | Cos ↑ | Inter ↑ | worse on |"
        lines += ["", f"## {TITLES[setting]}", "", head, "|" + "---|" * 11]
        capped = []
        for learner in PEER:
            tables = {side: read(side, learner, setting) for side in ("ours", "peer")}
            if not tables["ours"]:
                continue
            ours, peer, worse, n = compare(tables["ours"], tables["peer"])
            if tables["peer"] and not n:
                reason = next(iter(tables["peer"].values())).get("error", "")
                lines.append(f"| {learner} | PyLDL | 0 | | | | | | | | failed: {reason} |")
                ours, peer, worse, n = compare(tables["ours"], {})
                tables["peer"] = {}
            if tables["peer"] and n < len(tables["ours"]):
                capped.append(learner)
            fit = {
                side: np.median([r["fit_s"] for r in table.values() if "fit_s" in r])
                for side, table in tables.items()
                if table
            }
            verdict = ", ".join(worse) if worse else ("none" if peer else "")
            lines.append(f"| {learner} | ours | {n} | {fit['ours']:.4f} | {' | '.join(ours)} | {verdict} |")
            if peer:
                lines.append(f"| | PyLDL | {n} | {fit['peer']:.3f} | {' | '.join(peer)} | |")
        if capped:
            lines += ["", f"Fewer than {n_all} splits, because PyLDL is slow there: {', '.join(capped)}."]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=os.environ.get("SNEFY_LDL_DATA", "data"), help="folder that holds ldl/*.mat")
    parser.add_argument("--peer-python", help="a Python with python-ldl; ours only when left out")
    parser.add_argument("--learners", nargs="+", choices=list(PEER), default=list(PEER))
    parser.add_argument("--settings", nargs="+", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--cap", type=int, help="at most this many splits of each setting")
    parser.add_argument("--no-bags", action="store_true", help="leave out the timing of 250 bags")
    parser.add_argument("--report", action="store_true", help="only rewrite benchmarks/learners.md")
    parser.add_argument("--worker", choices=["ours", "peer"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        worker(args.worker, args.data)
        return
    if not args.report:
        run(args)
    shown = "python benchmarks/learners.py" + (
        " --peer-python PEER/bin/python" if read("peer", "SABFGS", "bag") else ""
    )
    (HERE / "learners.md").write_text(report(shown))
    print(f"wrote {HERE.name}/learners.md")


if __name__ == "__main__":
    main()
