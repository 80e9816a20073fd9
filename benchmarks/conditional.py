"""Thresholds that depend on x: ours and MAPIE's ConditionalSplitConformalRegressor, same scores, same functions.

    python benchmarks/conditional.py --peer PYTHON     # an interpreter that has mapie >= 1.6 and cvxpy

Both sides get the same numbers: 500 calibration rows, ten functions (a constant among them), level 0.9, the absolute
residual as score, in the conservative form. MAPIE answers one output at a time, so there is one. One thread each;
processor seconds. Both follow the path of the dual program for every new row. If they differ, a third way decides:
the program of all rows, solved again by HiGHS at every step of a bisection over the new row's score.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from scipy.optimize import linprog

CALIBRATION, FUNCTIONS, LEVEL = 500, 10, 0.9

PEER = """
import json, sys, time, warnings
import numpy as np
warnings.simplefilter("ignore")
import cvxpy, mapie
from mapie.conditional_conformal_prediction import ConditionalSplitConformalRegressor
from sklearn.base import BaseEstimator, RegressorMixin

class Zero(RegressorMixin, BaseEstimator):
    def fit(self, X, y):
        return self
    def predict(self, X):
        return np.zeros(len(X))
    def __sklearn_is_fitted__(self):
        return True

data = np.load(sys.argv[1])
model = ConditionalSplitConformalRegressor(lambda x: np.atleast_2d(x), Zero().fit(None, None), float(sys.argv[2]))
start = time.process_time()
model.conformalize(data["X"], data["y"])
ready = time.process_time()
_, ends = model.predict_interval(data["new"])
done = time.process_time()
print(json.dumps({"conformalize": ready - start, "predict": done - ready, "thresholds": ends[:, 1, 0].tolist(),
                  "mapie": mapie.__version__, "cvxpy": cvxpy.__version__}))
"""


def rows(n, seed):
    """A constant and nine features, and a residual whose spread depends on them."""
    rng = np.random.default_rng(seed)
    X = np.column_stack([np.ones(n), rng.normal(size=(n, FUNCTIONS - 1))])
    return X, rng.normal(size=n) * np.exp(0.4 * X[:, 1]) * (1.0 + 0.5 * np.abs(X[:, 2]))


def threshold_by_programs(X, scores, new, top):
    """Threshold of one new row: the score from which its dual variable is at the level, to 1e-9."""
    low, high = 0.0, top
    while high - low > 1e-9:
        middle = 0.5 * (low + high)
        table, values = np.vstack([X, new]), np.append(scores, middle)
        zeros = np.zeros(X.shape[1])
        solved = linprog(-values, A_eq=table.T, b_eq=zeros, bounds=(LEVEL - 1.0, LEVEL), method="highs-ds")
        low, high = (middle, high) if solved.x[-1] < LEVEL - 1e-9 else (low, middle)
    return high


def main():
    import torch

    import snefy_ldl
    from common import machine, markdown, write
    from snefy_ldl.conformal.local_thresholds import ConditionalThresholds

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", default=sys.executable, help="interpreter that has mapie and cvxpy")
    parser.add_argument("--rows", type=int, default=1000, help="new rows")
    parser.add_argument("--peer-rows", type=int, default=1000, help="new rows that MAPIE answers")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    X, y = rows(CALIBRATION, 0)
    new, truth = rows(asked.rows, 1)
    start = time.process_time()
    made = ConditionalThresholds(np.abs(y)[:, None, None], X[:, 1:], [LEVEL])
    ready = time.process_time()
    thresholds = made.thresholds(new[:, 1:])[:, 0, 0]
    done = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        np.savez(Path(folder) / "data.npz", X=X, y=y, new=new[: asked.peer_rows])
        words = [asked.peer, "-c", PEER, str(Path(folder) / "data.npz"), str(LEVEL)]
        answer = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    peer = json.loads(answer.splitlines()[-1])
    theirs = np.array(peer.pop("thresholds"))
    difference = np.abs(theirs - thresholds[: len(theirs)])
    apart = [
        {
            "row": int(row),
            "ours": float(thresholds[row]),
            "MAPIE": float(theirs[row]),
            "programs": threshold_by_programs(X, np.abs(y), new[row], 2.0 * float(theirs[row])),
        }
        for row in np.flatnonzero(difference > 1e-6)
    ]
    each = {"ours": (done - ready) / asked.rows, "MAPIE": peer["predict"] / len(theirs)}
    lines = [
        {
            "": "ours",
            "calibration, s": f"{ready - start:.3f}",
            "new rows": asked.rows,
            "ms per row": f"{1e3 * each['ours']:.3f}",
            "1,000 rows with the calibration, s": f"{ready - start + 1e3 * each['ours']:.2f}",
        },
        {
            "": f"MAPIE {peer['mapie']}",
            "calibration, s": f"{peer['conformalize']:.3f}",
            "new rows": len(theirs),
            "ms per row": f"{1e3 * each['MAPIE']:.3f}",
            "1,000 rows with the calibration, s": f"{peer['conformalize'] + 1e3 * each['MAPIE']:.2f}",
        },
    ]
    covered = float((np.abs(truth) <= thresholds).mean())
    facts = {
        "snefy_ldl": snefy_ldl.__version__,
        "machine": machine(1),
        "peer": peer,
        "ours": {"conformalize": ready - start, "predict": done - ready, "rows": asked.rows, "coverage": covered},
        "ratio per row": each["MAPIE"] / each["ours"],
        "median difference of thresholds": float(np.median(difference)),
        "largest difference of thresholds": float(difference.max()),
        "rows that differ": apart,
    }
    text = (
        "# Coverage along functions of x: against MAPIE\n\n"
        f"`python benchmarks/conditional.py`, {facts['machine']['processor']}, one thread, processor seconds. "
        f"{CALIBRATION} calibration rows, {FUNCTIONS} functions, level {LEVEL:g}, conservative form, one output "
        f"(MAPIE {peer['mapie']}, cvxpy {peer['cvxpy']}).\n\n{markdown(lines)}\n\n"
        f"Ratio per row: {facts['ratio per row']:.0f}. Thresholds of the rows that both answered differ by "
        f"{facts['median difference of thresholds']:.1e} (median) and {facts['largest difference of thresholds']:.1e} "
        f"(largest); ours cover {covered:.3f} of the {asked.rows:,} new rows."
    )
    for row in apart:
        text += (
            f"\n\nRow {row['row']}: ours {row['ours']:.6f}, MAPIE {row['MAPIE']:.6f}; the program of all rows, solved "
            f"again at each step of a bisection, gives {row['programs']:.6f}."
        )
    if apart:
        text += (
            " MAPIE's path leaves out points at which the fit changes that lie within 1e-5 of the one before, and then "
            "follows another path; with 1e-9 in that place of its code it gives the same threshold as ours."
        )
    write("conditional", facts, text)


if __name__ == "__main__":
    main()
