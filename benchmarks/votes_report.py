"""Tables and pictures of the benchmarks on votes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from scipy import stats

import common
from votes_models import METHODS

DATA = ("LIDC", "ChaosNLI_SNLI", "KonIQ10k", "POPQUORN")
SUBSAMPLED = ("ChaosNLI_SNLI", "KonIQ10k", "POPQUORN")
SIMULATED = ("ChaosNLI_SNLI", "annotators")
VOTES = (1, 2, 4, 8, 16, 32)
GOALS = ("majority wrong", "squared error", "KL divergence")
#: Ways to give out votes, in the words of a picture.
NEXT_NAMES = {
    "uniform": "evenly",
    "uniform, votes alone": "evenly, without the model",
    "variance": "where the variance falls most",
    "information": "where a vote is most informative",
}


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


def draw_curves(curves, xlabel, ylabel, ax):
    """Lines against the number of votes, one for each method: numbers, values, and half-widths of a band if known."""
    from snefy_ldl.plots import style

    for k, (name, (x, y, *bands)) in enumerate(curves.items()):
        ax.plot(x, y, color=style.label_color(k), lw=2.5 if k == 0 else 1.6, label=name, zorder=4 if k == 0 else 3)
        for half in bands:
            low, high = np.asarray(y) - np.asarray(half), np.asarray(y) + np.asarray(half)
            ax.fill_between(x, low, high, color=style.label_color(k), alpha=0.18, linewidth=0, zorder=2)
    ax.set_xlabel(xlabel)
    ax.set_ylabel(ylabel)
    style.quiet(ax, grid="y")
    style.legend(ax)


def draw_subsample(curves, path):
    """One panel a data set; methods that fall far below are cut off."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(curves), figsize=(8.3, 3.7), squeeze=False, layout="constrained")
    for ax, (name, lines) in zip(axes[0], curves.items()):
        draw_curves(lines, "votes a training item", "held-out log likelihood", ax)
        ax.set_title(name, fontsize=11, fontweight="bold")
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


def keep_next(done, path):
    """Curves of the replay, averaged over the splits, into one file that pictures can be drawn from again.

    Of every way to give out votes and every round: votes per item, the figures of :data:`GOALS`, and two standard
    errors of their difference to uniform rounds over the splits, which share items and order of votes.
    """
    kept = json.loads(path.read_text())["curves"] if path.exists() else {}
    for name in SIMULATED:
        own = [r["found"] for r in done if r["data"] == name]
        if not own:
            continue
        base, lines = np.array([found["uniform"] for found in own]), {}
        for how in own[0]:
            values = np.array([found[how] for found in own])  # (splits, rounds, 1 + goals)
            gap = values[..., 1:] - base[..., 1:]
            error = 2 * gap.std(0, ddof=1) / np.sqrt(len(own)) if len(own) > 1 else np.zeros_like(gap[0])
            line = {"votes": values[0, :, 0]}
            for k, goal in enumerate(GOALS):
                line[goal], line[f"{goal}, error"] = values[..., 1 + k].mean(0), error[:, k]
            lines[how] = {key: [float(f"{value:.4g}") for value in column] for key, column in line.items()}
        kept[name] = {"splits": len(own), "curves": lines}
    path.write_text(json.dumps({"machine": common.machine(1), "curves": kept}) + "\n")
    return kept


def next_rows(kept):
    """Votes saved by choosing."""
    rows = []
    for name, entry in kept.items():
        curves = entry["curves"]
        for goal in GOALS:
            for at in (2, 4, 8, 16):
                if curves["uniform"]["votes"][-1] < at:
                    continue
                row = {"data": name, "goal": goal, "votes per item": at}
                for how in ("variance", "information"):
                    for base in ("uniform", "uniform, votes alone"):
                        pair = [np.stack([curves[one]["votes"], curves[one][goal]], 1) for one in (how, base)]
                        row[f"{how} against {base}"] = f"{saving(*pair, at):.0%}"
                rows.append(row)
    return rows


def report_next(done, facts, prefix):
    """Votes saved by choosing, and a picture of the curves."""
    kept = keep_next(done, common.RESULTS / f"{prefix}_next.json") if done else {}
    if not kept:
        return []
    for name in kept:
        draw_next(name, kept[name], common.RESULTS / f"{prefix}_next_{name}.png")
    common.stamp(f"{prefix}_next.json", *(f"{prefix}_next_{name}.png" for name in kept))
    facts["next"] = next_rows(kept)
    words = "Votes saved when reaching what uniform allocation reaches, curves averaged over the splits."
    return ["## next_vote", "", words, "", common.markdown(facts["next"]), ""]


def report_next_alone(folder, version, name="votes"):
    """The table and pictures of the replay again; what the other studies left in the result files stays as it is."""
    facts, text = (common.RESULTS / f"{name}.{ending}" for ending in ("json", "md"))
    known = json.loads(facts.read_text())
    head = text.read_text().partition("## next_vote")[0]
    section = report_next(records(folder, "next", version), known, name)
    common.write(name, known, head + "\n".join(section), measured=False)


def draw_next(name, entry, path):
    """How often the most frequent label is missed against the votes spent, for every way to give them out."""
    import matplotlib.pyplot as plt

    from snefy_ldl.plots import style

    goal, curves = GOALS[0], entry["curves"]
    lines = {}
    for how, words in NEXT_NAMES.items():
        line = curves[how]
        band = [0.0] * len(line["votes"]) if how == "uniform" else line[f"{goal}, error"]
        lines[words] = (line["votes"], line[goal], band)
    figure, ax = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
    draw_curves(lines, "votes per item", "most frequent label missed", ax)
    ax.set_title(f"{name}: fewer votes for the same answers", fontsize=11, fontweight="bold")
    ax.set_ylim(0.0, 1.25 * curves["uniform"][goal][0])  # votes alone start far above
    ax.set_xlim(0.0, 20.0)
    ax.set_xticks(range(0, 21, 4))
    ax.yaxis.set_major_formatter("{x:.0%}")
    note = f'{entry["splits"]} splits; bands: difference to "evenly", two standard errors'
    ax.text(1.0, -0.2, note, transform=ax.transAxes, ha="right", va="top", fontsize=8, color=style.QUIET)
    figure.savefig(path, dpi=200)
    plt.close(figure)
