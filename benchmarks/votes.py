"""Learning from votes: counts against smoothed proportions, against two other count models, and fewer votes by choice.

    python benchmarks/votes.py study --jobs 16 --seeds 100..109    # held-out figures on splits
    python benchmarks/votes.py report                              # tables and pictures from what is there
    python benchmarks/votes.py next                                # those of the replay alone, the others stay
    python benchmarks/votes.py study --seeds 0..0 --tiny           # everything once, small, to see that it runs

Everything is resumable: one JSON a case in ``--folder``; ``--minutes`` starts no further case after that time.
Data and rival models: :mod:`votes_models`.
"""

from __future__ import annotations

import argparse
import json
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from scipy.special import xlogy

import common
import votes_report
from snefy_ldl import SnefyLDL
from snefy_ldl._internal.files import write_json
from snefy_ldl.votes import noise_ceiling, vote_value
from votes_models import METHODS, draw_votes, fit_and_score, load, smoothed, split_rows
from votes_report import DATA, SIMULATED, SUBSAMPLED, VOTES

#: Change it when a result file would mean something else: old files are then not reused.
VERSION = 2
FOLDER = common.RESULTS / "votes"


# -- studies ---------------------------------------------------------------------------------------------------------


def settings_of(tiny):
    return {"epochs": 3, "n_neurons": 12, "n_readouts": 6} if tiny else {"epochs": 30}


def study_methods(name, seed, tiny, record, save):
    """Held-out vote likelihood of every method on one split."""
    X, counts, groups = load(name, tiny)
    train, test = split_rows(groups, seed)
    record["rows"] = [len(train), len(test)]
    ceiling = noise_ceiling(counts[test])
    record["ceiling"] = {"brier": ceiling.brier, "log_loss": ceiling.log_loss}
    for method in METHODS:
        if method not in record["found"]:
            found = fit_and_score(method, X[train], counts[train], X[test], counts[test], seed, settings_of(tiny))
            record["found"][method] = found
            save()


def study_subsample(name, seed, tiny, record, save):
    """The same when only a few votes of each training item are seen; the test rows keep all of theirs."""
    X, counts, groups = load(name, tiny)
    train, test = split_rows(groups, seed)
    train = np.random.default_rng([seed, 12]).permutation(train)[:2500]
    for n in VOTES[:2] if tiny else VOTES:
        few = draw_votes(counts[train], n, np.random.default_rng([seed, n])).astype(float)
        for method in METHODS:
            key = f"{method} {n}"
            if key not in record["found"]:
                found = fit_and_score(method, X[train], few, X[test], counts[test], seed, settings_of(tiny))
                record["found"][key] = found
                save()


def study_next_vote(name, seed, tiny, record, save):
    """Replay: votes given out in rounds, uniformly or by value, on items the model was not fitted on.

    Test items start without votes; a round takes one more of an item's real votes, in a random order, for a tenth of
    the items. What is estimated is the proportions of all its votes, and which label is the most frequent.
    """
    if record["found"]:
        return
    X, counts, groups = load(name, tiny)
    train, test = split_rows(groups, seed)
    rng = np.random.default_rng([seed, 3])
    model = SnefyLDL(random_state=seed, device="cpu", **settings_of(tiny)).fit(X[train], counts=counts[train])
    truth = counts[test] / counts[test].sum(1, keepdims=True)
    queue = [rng.permutation(np.repeat(np.arange(counts.shape[1]), row.astype(int))) for row in counts[test]]
    budget = (5 if tiny else 20) * len(test)
    dist, curves = model.predict_dist(X[test]), {}
    for how in ("uniform", "variance", "information"):
        curves |= replay(dist, truth, queue, how, budget, np.random.default_rng([seed, 5]))
    record["found"] = curves
    save()


def accuracy(mean, truth):
    """The three figures of :data:`GOALS`."""
    wrong = float((mean.argmax(1) != truth.argmax(1)).mean())
    divergence = float((xlogy(truth, truth) - xlogy(truth, np.maximum(mean, 1e-12))).sum(1).mean())
    return [wrong, float(np.square(mean - truth).sum(1).mean()), divergence]


def replay(dist, truth, queue, how, budget, rng):
    """After every round the votes spent an item and the figures; for uniform rounds also of the votes alone."""
    seen, size = np.zeros_like(truth), len(truth)
    batch = max(1, size // 10)
    mean, value = dist.mean.numpy().copy(), np.zeros(size)
    if how != "uniform":
        value = vote_value(dist, how)
    curves = {how: []} | ({"uniform, votes alone": []} if how == "uniform" else {})
    lengths, order = np.array([len(votes) for votes in queue]), rng.permutation(size)
    for spent in range(0, budget, batch):
        if how == "uniform":
            rows = order[np.arange(spent, spent + batch) % size]
        else:
            rows = np.argsort(-np.where(seen.sum(1) < lengths, value, -np.inf), kind="stable")[:batch]
        for i in rows[seen[rows].sum(1) < lengths[rows]]:
            seen[i, queue[i][int(seen[i].sum())]] += 1
        after = dist[torch.as_tensor(rows)].posterior(torch.as_tensor(seen[rows]))
        mean[rows] = after.mean.numpy()
        if how != "uniform":
            value[rows] = vote_value(after, how)
        curves[how].append([(spent + batch) / size, *accuracy(mean, truth)])
        if how == "uniform":
            curves["uniform, votes alone"].append([(spent + batch) / size, *accuracy(smoothed(seen, 0.5), truth)])
    return curves


STUDIES = {"methods": (study_methods, DATA), "subsample": (study_subsample, SUBSAMPLED)}
STUDIES["next"] = (study_next_vote, SIMULATED)


def run_one(folder, study, name, seed, tiny):
    """One study of one data set on one split; goes on from its file."""
    torch.set_num_threads(1)
    path = Path(folder) / f"{study}-{name}-{seed:03d}.json"
    record = {"version": VERSION, "study": study, "data": name, "seed": seed, "found": {}}
    if path.exists():
        saved = json.loads(path.read_text())
        if saved.get("version") == VERSION:
            record = saved
    STUDIES[study][0](name, seed, tiny, record, lambda: write_json(path, record))


def run_all(work, tasks, jobs, minutes):
    """Every task, on several processes; after so many minutes no further one is started."""
    stop = time.monotonic() + 60.0 * minutes
    bar = Console(stderr=True)
    if jobs == 1:
        for task in track(tasks, console=bar, description="cases"):
            if time.monotonic() < stop:
                work(*task)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(_until, stop - time.monotonic() + time.time(), work, task) for task in tasks]
        for done in track(as_completed(futures), total=len(futures), console=bar, description="cases"):
            done.result()


def _until(stop, work, task):
    if time.time() < stop:
        work(*task)


# -- commands --------------------------------------------------------------------------------------------------------


def seed_range(text):
    """ "100..109" or "100" as a range."""
    first, _, last = text.partition("..")
    return range(int(first), int(last or first) + 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("study", "report", "next"))
    parser.add_argument("--seeds", type=seed_range, help='splits, as "100..109"')
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=8.0, help="start no further case after this time")
    parser.add_argument("--studies", nargs="+", default=list(STUDIES), choices=list(STUDIES))
    parser.add_argument("--data", nargs="+", default=[*DATA, "annotators"])
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    folder = options.folder / "tiny" if options.tiny else options.folder
    if options.command == "study":
        places = [(study, name) for study in options.studies for name in STUDIES[study][1] if name in options.data]
        places.sort(key=lambda place: (place[1] != "KonIQ10k", place[0] != "subsample"))  # the long ones first
        tasks = [(folder, *place, seed, options.tiny) for place in places for seed in options.seeds or range(100, 110)]
        run_all(run_one, tasks, options.jobs, options.minutes)
    elif options.command == "next":
        votes_report.report_next_alone(folder, VERSION, "votes_tiny" if options.tiny else "votes")
    else:
        votes_report.report(folder, VERSION, "votes_tiny" if options.tiny else "votes")


if __name__ == "__main__":
    main()
