"""Tables and pictures of the benchmarks on votes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from scipy import stats

import common
import votes_tune
from votes_models import METHODS

DATA = ("LIDC", "ChaosNLI_SNLI", "KonIQ10k")
SUBSAMPLED = ("ChaosNLI_SNLI", "KonIQ10k")
SIMULATED = ("ChaosNLI_SNLI", "annotators")
VOTES = (1, 2, 4, 8, 16, 32)
GOALS = ("majority wrong", "squared error", "KL divergence")


def records(folder, study, version):
    """What a study left, one record a split and data set."""
    found = [json.loads(path.read_text()) for path in sorted(Path(folder).glob(f"{study}-*.json"))]
    return [record for record in found if record.get("version") == version and record["found"]]


def paired(first, second):
    """Mean difference, its standard error over splits, and the p-value of a paired t test."""
    gap = np.asarray(first) - np.asarray(second)
    if len(gap) < 2:
        return float(gap.mean()), float("nan"), float("nan")
    error = gap.std(ddof=1) / np.sqrt(len(gap))
    return float(gap.mean()), float(error), float(stats.ttest_1samp(gap, 0.0).pvalue)


def report(folder, version, name="votes"):
    """Tables (Markdown, JSON) and pictures of what is there, into the results folder."""
    text, facts = ["# Learning from votes", ""], {"machine": common.machine(1)}
    text += report_methods(records(folder, "methods", version), facts)
    text += report_subsample(records(folder, "subsample", version), facts, name)
    text += report_next(records(folder, "next", version), facts, name)
    common.write(name, facts, "\n".join(text))
    tuned = [json.loads(path.read_text()) for path in sorted((Path(folder) / "tune").glob("*.json"))]
    tuned = [record for record in tuned if record.get("version") == version]
    if tuned:
        text, facts = votes_tune.report(tuned)
        common.write(f"{name}_tune", facts, "\n".join(text))


def report_methods(done, facts):
    """Held-out figures of every method on all votes, and how far counts are above each."""
    text = []
    for name in DATA:
        own = [r for r in done if r["data"] == name and set(METHODS) <= set(r["found"])]
        if not own:
            continue
        rows = []
        counts = [r["found"]["counts"]["log_likelihood"] for r in own]
        for method in METHODS:
            values = [r["found"][method] for r in own]
            gap, error, p = paired(counts, [v["log_likelihood"] for v in values])
            rows.append(
                {
                    "method": method,
                    "log likelihood": f"{np.mean([v['log_likelihood'] for v in values]):.4f}",
                    "counts above it": "" if method == "counts" else f"{gap:+.4f} ± {error:.4f} (p {p:.1g})",
                    "Brier": f"{np.mean([v['brier'] for v in values]):.4f}",
                    "calibration error": f"{np.mean([v.get('calibration_error', np.nan) for v in values]):.4f}",
                    "s": f"{np.mean([v['seconds'] for v in values]):.1f}",
                }
            )
        floor = np.mean([r["ceiling"]["brier"] for r in own])
        text += [f"## {name}: {len(own)} splits, noise floor of the Brier score {floor:.4f}", "", common.markdown(rows)]
        text.append("")
        facts[name] = rows
    return text


def report_subsample(done, facts, prefix):
    """Likelihood against the number of training votes, with a table of paired differences and one picture."""
    text, curves = [], {}
    for name in SUBSAMPLED:
        own = [r for r in done if r["data"] == name]
        numbers = [n for n in VOTES if own and all(f"{m} {n}" in r["found"] for m in METHODS for r in own)]
        if not numbers:
            continue
        rows, values = [], {}
        for method in METHODS:
            for n in numbers:
                values[method, n] = [r["found"][f"{method} {n}"]["log_likelihood"] for r in own]
        for method in METHODS:
            means = [float(np.mean(values[method, n])) for n in numbers]
            # two standard errors of the difference to counts over the splits, which share them; counts have no band
            gaps = [paired(values["counts", n], values[method, n])[1] for n in numbers]
            curves.setdefault(name, {})[method] = (numbers, means, [0.0 if method == "counts" else 2 * g for g in gaps])
            row = {"method": method}
            for n in numbers:
                cell = f"{np.mean(values[method, n]):.3f}"
                if method != "counts":
                    gap, error, _ = paired(values["counts", n], values[method, n])
                    cell += f" ({gap:+.3f} ± {error:.3f})"
                row[f"{n} votes"] = cell
            rows.append(row)
        text += [f"## {name}: log likelihood of all votes, trained on a few ({len(own)} splits)", ""]
        text += ["In brackets: how far counts are above.", "", common.markdown(rows), ""]
        facts[f"{name} subsampled"] = rows
    if curves:
        draw_subsample(curves, common.RESULTS / f"{prefix}_subsample.png")
    return text


def draw_subsample(curves, path):
    """One panel a data set; methods that fall far below are cut off."""
    import matplotlib.pyplot as plt

    from snefy_ldl.plots.votes import plot_curves

    figure, axes = plt.subplots(1, len(curves), figsize=(8.3, 3.7), squeeze=False, layout="constrained")
    for ax, (name, lines) in zip(axes[0], curves.items()):
        plot_curves(lines, xlabel="votes a training item", ylabel="held-out log likelihood", title=name, ax=ax)
        ax.set_xscale("log", base=2)
        numbers = next(iter(lines.values()))[0]
        ax.set_xticks(numbers, [str(n) for n in numbers])
        ax.minorticks_off()
        if ax is not axes[0][0]:
            ax.set_ylabel("")
            ax.get_legend().remove()
        best = max(max(line[1]) for line in lines.values())
        lowest = min(min(lines[method][1]) for method in ("counts", "Dirichlet-multinomial"))
        ax.set_ylim(lowest - 1.5 * (best - lowest), best + 0.15 * (best - lowest))
    figure.savefig(path, dpi=200)
    plt.close(figure)


def saving(curve, base, at):
    """Share of votes saved when a curve (votes, value) reaches the value that the base has after ``at`` votes."""
    x, y = np.array(base).T
    goal = float(np.interp(at, x, y))
    u, v = np.array(curve).T
    lowest = np.minimum.accumulate(v)
    reached = np.flatnonzero(lowest <= goal)
    if not len(reached):
        return float("nan")
    k = int(reached[0])
    needed = u[k] if k == 0 else np.interp(goal, [lowest[k], lowest[k - 1]], [u[k], u[k - 1]])
    return 1.0 - float(needed) / at


def report_next(done, facts, prefix):
    """Votes saved by choosing, and a picture of the curves."""
    rows, text = [], []
    for name in SIMULATED:
        own = [r["found"] for r in done if r["data"] == name]
        if not own:
            continue
        curves = {how: np.mean([found[how] for found in own], 0) for how in own[0]}  # (rounds, 1 + goals)
        errors = {how: np.std([found[how] for found in own], 0) / np.sqrt(len(own)) for how in own[0]}
        for goal, title in enumerate(GOALS, 1):
            for at in (2, 4, 8, 16):
                if curves["uniform"][-1, 0] < at:
                    continue
                row = {"data": name, "goal": title, "votes an item": at}
                for how in ("variance", "divergence", "information"):
                    if how not in curves:
                        continue
                    for base in ("uniform", "uniform, votes alone"):
                        saved = saving(curves[how][:, [0, goal]], curves[base][:, [0, goal]], at)
                        row[f"{how} against {base}"] = f"{saved:.0%}"
                rows.append(row)
        from snefy_ldl.plots.votes import plot_curves

        lines = {how: (curve[:, 0], curve[:, 1], 2 * errors[how][:, 1]) for how, curve in curves.items()}
        ax = plot_curves(lines, xlabel="votes an item", ylabel="majority label wrong", title=name)
        ax.figure.savefig(common.RESULTS / f"{prefix}_next_{name}.png", dpi=150, bbox_inches="tight")
    if rows:
        words = "Votes saved when reaching what uniform allocation reaches, curves averaged over the splits."
        text = ["## next_vote", "", words, "", common.markdown(rows), ""]
        facts["next"] = rows
    return text
