"""Tables and picture of the benchmark of densities."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from scipy import stats

import common

FIGURES = ("nll", "kl", "coverage", "randomised_coverage", "width", "energy", "seconds")
OURS = ("SnefyLDL", "LogRatioLDL", "AutoLDL", "LogRatioLDL, groups given")
VARIANTS = {"plain": "", "jitter": ", jittered", "zeros": ", zeros scored", "zeros jitter": ", zeros scored, jittered"}
NOTES = """\
Half of the rows train (70 % of HouseholdExp, Fairclough_timeuse and Mite_peat), the other half is scored; rows of a
group (a child) stay together. `±` is the standard deviation over splits, square brackets hold the 95 % confidence
interval of the paired difference (Student's t over splits; the splits overlap, so read it as a spread rather than as a
test). The best peer is the one with the lowest mean on the test rows, chosen after the fact, which flatters it.
SnefyLDL has three members (five below 500 rows), LogRatioLDL five; every peer is one model, the best of the settings
it tried. There are five splits, and two of Movie, IMDb and KonIQ10k for this library (each cell pairs the splits that
both have).

NLL: nats, mean over test rows, with respect to Lebesgue measure on the first L-1 shares; densities of isometric
log-ratios carry their exact Jacobian. KL: KL(true ‖ mean); the mean is exact for SnefyLDL, the Dirichlets and the point
learners, that of quasi-random draws for LogRatioLDL and of 512 draws for the others. Cover, width: of central
90 % intervals of each share (500 test rows), for peers the quantiles of 512 draws. An interval from zero covers all
zeros; `cover, randomised` counts a share of 0 or 1 by the part of its probability that lies inside. Energy: the energy
score of 512 draws on those rows, lower is better; Treeffuser, from which one can only draw, has it, too (two splits of
ArcticLake, on another machine). TabICL and TabPFN, which predict means, are in the benchmark, but not in these tables:
their weights were not at hand. Seconds: one fit on one thread next to others, the search for sizes and rates
included; `AutoLDL` is the choice between the fits of the other two rows, and its seconds are theirs together. The
machine has sixteen cores, on which up to sixteen fits ran next to each other.

Peers with networks: three sizes, two rates and two weight decays raced for 8 epochs on the validation rows (15 % of
the training rows); the best of each rate goes on to at most 100 epochs with early stopping on the same rows. Features
are standardised and clipped at five standard deviations, log-ratios standardised. Ridge: a penalty for each
coordinate, covariance of five-fold residuals. NGBoost: two rates, at most 300 rounds, left out above 100 trees a round
or if 300 rounds would take more than 100 s. XGBoostLSS Dirichlet: three stabilisations, two rates and two depths, at
most 300 rounds, the likelihood of the validation rows stops and picks; left out if 300 rounds would take more than
100 s. Distributional forest: random forests of 300 trees on standardised log-ratios; the training rows that share
leaves with a row are weighted by how often they do, which gives the mean and, with a Gaussian kernel on log-ratios, the
density; leaf size, features per split and bandwidth by the likelihood of the training rows under the trees that did not
see them. Neither starts on a further setting after 100 s. Features that were missing are filled with the median and
marked in a further column, for every method alike.

Shares of exactly zero: in the plain tables every method sees and is scored on labels shrunk by the library's zero
policy (KL is against the labels as they came). If more than 1 % of rows hold a zero, a further table scores zeros
as zeros: counting measure on supports times Lebesgue measure on the face. If more than half of the positive shares,
or of the ratios of two of them, take values seen ten times or more, or a fifth of the rows has a twin, spikes can drive
a density up (SBU_3DFE: sums of whole scores, closed); a further table has the same rows after uniform noise of half a
lattice step on the raw shares (half the row's smallest share for Natural_Scene), once more with zeros kept as zeros."""


def read(folder, version):
    """All records of a folder, as (data, variant) -> method -> seed -> record."""
    cases = {}
    for path in sorted(Path(folder).glob("*-*.json")):
        record = json.loads(path.read_text())
        if record.get("version") == version:
            methods = cases.setdefault((record["data"], record["variant"]), {})
            methods.setdefault(record["method"], {})[record["seed"]] = record
    return dict(sorted(cases.items(), key=lambda item: (item[0][0].lower(), list(VARIANTS).index(item[0][1]))))


def column(methods, method, key):
    """seed -> figure of a method, if it has one."""
    return {seed: record[key] for seed, record in methods.get(method, {}).items() if key in record}


def best_peer(methods, key):
    """The peer with the lowest mean among those that have every split any peer has."""
    columns = {method: column(methods, method, key) for method in methods if method not in OURS}
    most = max((len(values) for values in columns.values()), default=0)
    full = {m: np.mean(list(v.values())) for m, v in columns.items() if len(v) == most and most > 0}
    return min(full, key=full.get) if full else None


def paired(first, second):
    """Mean, standard deviation and 95 % interval of the difference on common splits; None without one."""
    seeds = sorted(first.keys() & second.keys())
    if not seeds:
        return None
    gap = np.array([first[seed] - second[seed] for seed in seeds])
    if len(gap) == 1:
        return {"mean": float(gap[0]), "sd": None, "low": None, "high": None, "splits": 1}
    sd = float(gap.std(ddof=1))
    reach = float(stats.t.ppf(0.975, len(gap) - 1)) * sd / np.sqrt(len(gap))
    mean = float(gap.mean())
    return {"mean": mean, "sd": sd, "low": mean - reach, "high": mean + reach, "splits": len(gap)}


def gap_text(gap, digits):
    if gap is None:
        return ""
    if gap["sd"] is None:
        return f"{gap['mean']:+.{digits}f}"
    return f"{gap['mean']:+.{digits}f} [{gap['low']:+.{digits}f}, {gap['high']:+.{digits}f}]"


def cell(values, digits):
    if not values:
        return ""
    numbers = np.array(list(values.values()))
    if np.abs(numbers).max() >= 1e5:
        return f"{numbers.mean():.1e}"
    spread = f" ± {numbers.std(ddof=1):.{digits}f}" if len(numbers) > 1 else ""
    return f"{numbers.mean():.{digits}f}{spread}"


def table_of(methods):
    """One row a method, the best likelihood first; what is left out stands below."""
    peers = {key: best_peer(methods, key) for key in ("nll", "kl")}
    rows, order = [], []
    for method in methods:
        values = {key: column(methods, method, key) for key in FIGURES}
        if not values["kl"]:
            continue
        row = {"method": f"**{method}**" if method in OURS else method}
        for key, digits in (("nll", 3), ("kl", 4)):
            row[key.upper()] = cell(values[key], digits)
            row[f"{key.upper()} to best peer"] = ""
            if method != peers[key] and values[key] and peers[key]:
                row[f"{key.upper()} to best peer"] = gap_text(
                    paired(values[key], column(methods, peers[key], key)), digits
                )
            elif method == peers[key]:
                row[f"{key.upper()} to best peer"] = "best peer"
        row["cover"] = cell(values["coverage"], 3)
        if any(column(methods, one, "randomised_coverage") for one in methods):
            row["cover, randomised"] = cell(values["randomised_coverage"], 3)
        row |= {"width": cell(values["width"], 3), "energy": cell(values["energy"], 4)}
        row["s"] = f"{np.mean(list(values['seconds'].values())):.1f}"
        rows.append(row)
        order.append(np.mean(list(values["nll"].values())) if values["nll"] else np.inf)
    return [rows[i] for i in np.argsort(order, kind="stable")]


def left_out(methods):
    reasons = {}
    for method, runs in methods.items():
        for record in runs.values():
            if "skipped" in record:
                reasons.setdefault(method, record["skipped"])
    return [f"Left out: {method} ({reason})." for method, reason in reasons.items()]


def summary_of(cases):
    """For each table how far ours are from the best peer; negative is better than it."""
    rows, facts = [], []
    for (data, variant), methods in cases.items():
        row, fact = {"data": data + VARIANTS[variant]}, {"data": data, "variant": variant}
        for key, digits in (("nll", 3), ("kl", 4)):
            peer = best_peer(methods, key)
            base = column(methods, peer, key)
            row[f"{key.upper()}: best peer"] = f"{peer} {np.mean(list(base.values())):.{digits}f}" if base else ""
            for method in OURS:
                gap = paired(column(methods, method, key), base)
                row[f"{key.upper()}: {method}"] = gap_text(gap, digits)
                fact[f"{key} {method}"] = gap
            fact[f"{key} best peer"] = peer
        rows.append(row)
        facts.append(fact)
    return rows, facts


def auto_verdict(cases):
    """Where ``AutoLDL`` has the best likelihood, and who is ahead of it elsewhere, on the splits that it has."""
    best, behind = [], []
    for (data, variant), methods in cases.items():
        own = column(methods, "AutoLDL", "nll")
        if not own:
            continue
        title, ahead = f"{data}{VARIANTS[variant]} ({len(own)} split{'s' * (len(own) > 1)})", {}
        for method in methods.keys() - {"AutoLDL"}:
            values = column(methods, method, "nll")
            if own.keys() <= values.keys():
                ahead[method] = paired(own, values)
        if not ahead:
            continue
        first = max(ahead, key=lambda method: ahead[method]["mean"])
        gap = ahead[first]
        if gap["mean"] > 0.0:
            behind.append(f"{title}: {first} is better by {gap_text(gap, 3).lstrip('+')}")
        else:
            best.append(title)
    if not best + behind:
        return []
    return [
        f"`AutoLDL` has the best mean likelihood of all methods on {', '.join(best) if best else 'no table'}.",
        f"It is not best on {'; '.join(behind)}." if behind else "There is no table where it is not best.",
        "",
    ]


def report(folder, out, version, name="density"):
    """density.json (every record), density.md and density.png from what a folder holds."""
    cases = read(folder, version)
    if not cases:
        print(f"nothing to report in {folder}")
        return
    machine = json.loads((Path(folder) / "machine.json").read_text())
    rows, facts = summary_of(cases)
    text = ["# Conditional densities against the alternatives", "", NOTES, ""]
    text += ["Machine: " + ", ".join(f"{key} {value}" for key, value in machine.items()) + ".", ""]
    text += ["## Ours minus the best peer", "", "Negative is better than the best peer.", "", common.markdown(rows), ""]
    text += auto_verdict(cases)
    text += ["![Likelihood and mean, ours and the peers](density.png)", ""]
    records = []
    for (data, variant), methods in cases.items():
        runs = [record for seeds in methods.values() for record in seeds.values()]
        records += runs
        first, splits = runs[0], len({record["seed"] for record in runs})
        size = f"{first['rows'][0]} training rows, {first['features']} features, {first['labels']} labels"
        text += [f"## {data}{VARIANTS[variant]}", "", f"{size}; splits: {splits}.", ""]
        text += [common.markdown(table_of(methods)), "", *left_out(methods), ""]
    Path(out).mkdir(parents=True, exist_ok=True)
    facts = {"machine": machine, "summary": facts, "records": records}
    (Path(out) / f"{name}.json").write_text(json.dumps(facts, indent=1) + "\n")
    (Path(out) / f"{name}.md").write_text("\n".join(text).rstrip() + "\n")
    draw(cases, Path(out) / f"{name}.png")


def draw(cases, path):
    """Two panels, a line a table: nats a free share from the best peer, and KL as a multiple of the best peer's."""
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        print("no picture: matplotlib is not installed")
        return
    cases = {case: methods for case, methods in cases.items() if best_peer(methods, "nll")}
    figure, axes = plt.subplots(1, 2, figsize=(11, 1.6 + 0.42 * len(cases)), sharey=True)
    names = [data.replace("_", " ") + VARIANTS[variant] for data, variant in cases]
    reaches = ((-0.5, 1.5), (0.7, 2.0))
    words = ("NLL above the best peer, nats a free share", "KL of the mean, times the best peer's")
    for ax, key, reach, label in zip(axes, ("nll", "kl"), reaches, words):
        panel(ax, cases, key, reach)
        ax.set_xlabel(label)
    axes[0].set_yticks(range(len(names)), names)
    axes[0].set_ylim(len(names) - 0.5, -0.5)
    handles, labels = axes[0].get_legend_handles_labels()
    shown = dict(zip(labels, handles))
    figure.legend(shown.values(), shown.keys(), loc="upper center", ncols=len(shown), frameon=False, fontsize=9)
    figure.tight_layout(rect=(0, 0, 1, 1 - 0.45 / figure.get_figheight()))
    figure.savefig(path, dpi=150)
    plt.close(figure)


def panel(ax, cases, key, reach):
    """Peers as grey marks, ours in colour with the interval over splits; an arrow marks what lies beyond the edge."""
    from snefy_ldl.plots import style

    blues = style.SHADES
    looks = {"SnefyLDL": (style.MODEL, "o"), "AutoLDL": (blues[-1], "D")}
    looks |= {"LogRatioLDL": (style.TRUTH, "^")}
    looks |= {"LogRatioLDL, groups given": (style.TRUTH, "v")}
    low, high = reach
    for line, (_, methods) in enumerate(cases.items()):
        base = column(methods, best_peer(methods, key), key)
        if not base:
            continue
        labels = next(iter(next(iter(methods.values())).values()))["labels"]
        for method in sorted(methods, key=lambda m: m in OURS):
            gap = paired(column(methods, method, key), base)
            if gap is None:
                continue
            unit, origin = (labels - 1, 0.0) if key == "nll" else (np.mean(list(base.values())), 1.0)
            place = origin + gap["mean"] / unit
            color, mark = looks.get(method, (style.QUIET, "|"))
            y = line + {"SnefyLDL": -0.15, "AutoLDL": 0.15}.get(method, 0.0)
            name = method if method in OURS else "peers"
            if not low <= place <= high:
                edge, mark = (low, "<") if place < low else (high, ">")
                ax.plot(edge, y, mark, color=color, ms=5 if method in OURS else 3.5, clip_on=False)
                continue
            if method in OURS and gap["sd"] is not None:
                span = np.clip([origin + gap["low"] / unit, origin + gap["high"] / unit], low, high)
                ax.plot(span, [y, y], color=color, lw=1.6, alpha=0.55, solid_capstyle="round")
            ax.plot(place, y, mark, color=color, ms=6 if method in OURS else 9, ls="", label=name)
    ax.axvline(0.0 if key == "nll" else 1.0, color=style.INK, lw=0.9)
    ax.set_xlim(low, high)
    style.quiet(ax, "both")
