"""Rows in groups: effects, seen and unseen groups, coverage for new groups, and time.

    python benchmarks/groups.py made --jobs 8          # made-up groups whose truth is known
    SNEFY_LDL_DATA=... python benchmarks/groups.py real --jobs 8
    python benchmarks/groups.py coverage --jobs 8
    python benchmarks/groups.py time
    python benchmarks/groups.py report                 # writes results/groups.md from results/groups.json

What is in ``results/groups.json`` already is not run again, unless by ``--again``, which also measures times again;
``made --ours`` and ``real --ours`` fit our model with groups again, and keep what peers and fits without groups had;
``real --data GEMAS`` fits that one alone; ``--quick`` makes a small version of each. Every fit has one thread. The
peer is a Dirichlet regression with random intercepts (softmax of linear predictors, one concentration), by penalised
likelihood and a Laplace update of the intercepts' variance.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import time
import warnings
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from joblib import Parallel, delayed
from scipy import special

from common import RESULTS, machine

OUT = Path(os.environ.get("OUT", RESULTS))
SETS = {"ECAM": "ECAM_infant_microbiome", "GEMAS": "GEMAS_elements", "GEMAS without place": "GEMAS_elements"}


class DirichletMixed:
    """``ℓ ~ Dirichlet(φ special.softmax(B x + u_g))`` with ``u_g ~ N(0, τ²)``, fitted by penalised likelihood."""

    def fit(self, X, D, g):
        import torch

        self.fill = np.nanmean(X, 0)
        X = np.where(np.isnan(X), self.fill, X)
        self.mean, self.sd = X.mean(0), np.maximum(X.std(0), 1e-9)
        Z = torch.as_tensor(self._design(X))
        self.names, which = np.unique(g, return_inverse=True)
        which = torch.as_tensor(which)
        logs = torch.as_tensor(np.log(D))
        n_labels, n_groups = D.shape[1], len(self.names)
        start = torch.as_tensor(np.log(D).mean(0) - np.log(D).mean())
        B = torch.zeros(Z.shape[1], n_labels, dtype=torch.double)
        B[0] = start
        u = torch.zeros(n_groups, n_labels, dtype=torch.double)
        log_phi = torch.tensor(3.0, dtype=torch.double)
        params = [B.requires_grad_(), u.requires_grad_(), log_phi.requires_grad_()]
        self.tau = 0.5
        rows = torch.bincount(which).double()
        for _ in range(6):
            search = torch.optim.LBFGS(params, max_iter=60, history_size=10, line_search_fn="strong_wolfe")

            def closure(search=search):
                search.zero_grad()
                alpha = log_phi.exp() * torch.softmax(Z @ B + u[which], 1)
                log_p = ((alpha - 1) * logs).sum(1) - torch.lgamma(alpha).sum(1) + torch.lgamma(alpha.sum(1))
                loss = -log_p.sum() + 0.5 * (u / self.tau).square().sum() + 1e-3 * B.square().sum()
                loss.backward()
                return loss

            search.step(closure)
            with torch.no_grad():  # curvature of the likelihood in each intercept, by Fisher's information
                alpha = log_phi.exp() * torch.softmax(Z @ B + u[which], 1)
                total = alpha.sum(1, keepdim=True)
                information = alpha.square() * (torch.polygamma(1, alpha) - torch.polygamma(1, total))
                curvature = torch.zeros(n_groups, n_labels, dtype=torch.double).index_add_(0, which, information)
                variance = 1.0 / (curvature + self.tau**-2)
                self.tau = float((u.square() + variance).mean().sqrt())
        self.B, self.u, self.phi = B.detach().numpy(), u.detach().numpy(), float(log_phi.detach().exp())
        self.variance, self.rows = variance.numpy(), rows.numpy()
        return self

    def _design(self, X):
        X = np.where(np.isnan(X), self.fill, X)
        return np.hstack([np.ones((len(X), 1)), (X - self.mean) / self.sd])

    def dists(self, X, g, n_draws=200):
        """Concentrations of a mixture per row (S, N, L)."""
        random, eta = np.random.default_rng(0), self._design(X) @ self.B
        place = {name: k for k, name in enumerate(self.names)}
        at = np.array([place.get(name, -1) for name in (g if g is not None else [None] * len(X))])
        mean = np.where(at[:, None] >= 0, self.u[at], 0.0)
        sd = np.where(at[:, None] >= 0, np.sqrt(self.variance[at]), self.tau)
        noise = random.normal(size=(n_draws, 1, eta.shape[1]))
        return self.phi * special.softmax(eta + mean + noise * sd, axis=2)

    def log_prob(self, X, D, g=None):
        alpha = self.dists(X, g)
        log_p = ((alpha - 1) * np.log(D)).sum(2) - special.gammaln(alpha).sum(2) + special.gammaln(alpha.sum(2))
        return special.logsumexp(log_p, axis=0) - np.log(len(alpha))

    def predict(self, X, g=None):
        alpha = self.dists(X, g)
        return (alpha / alpha.sum(2, keepdims=True)).mean(0)


def kl(D, P):
    return (special.xlogy(D, D) - special.xlogy(D, np.maximum(P, 1e-12))).sum(1)


def fit_timed(X, D, groups=None, effects="auto", **settings):
    import torch

    from snefy_ldl import GroupedLDL, LogRatioLDL

    torch.set_num_threads(1)
    started = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = LogRatioLDL(random_state=0, **settings)
        model = model.fit(X, D) if groups is None else GroupedLDL(model, effects=effects).fit(X, D, groups=groups)
    return model, time.process_time() - started


def _seconds(before: Any, seconds: float) -> dict[str, Any]:
    """Times are compared only if the plain fit ran next to this one."""
    return {"seconds": seconds} if before is None else {"seconds": None}


# -- made-up groups ----------------------------------------------------------------------------------------------------


def true_log_prob(data: Any, noise: str, effect: float, n_draws: int = 1000, concentration: float = 50.0) -> Any:
    """Log density of every row under the truth (N,): group known, or averaged over draws of effects of this size."""
    from scipy.special import gammaln, logsumexp, softmax

    def dirichlet(D: Any, alpha: Any) -> Any:
        return ((alpha - 1) * np.log(D)).sum(1) - gammaln(alpha).sum(1) + gammaln(alpha.sum(1))

    def given(D: Any, logs: Any) -> Any:
        if noise == "dirichlet":
            return dirichlet(D, concentration * softmax(logs, axis=1))
        divided = softmax(np.log(D) - logs, axis=1)
        alpha = np.full_like(divided, concentration / D.shape[1])
        return dirichlet(divided, alpha) + (np.log(divided) - np.log(D)).sum(1)

    if not effect:
        return given(data.D, data.base + data.effects[data.groups])
    draws = np.random.default_rng(0).normal(size=(n_draws, data.D.shape[1])) * effect
    draws -= draws.mean(1, keepdims=True)
    rows = [logsumexp(given(row[None], base + draws)) for row, base in zip(data.D, data.base)]
    return np.array(rows) - np.log(n_draws)


def made(seed: int, effect: float, noise: str, before: Any = None) -> dict[str, Any]:
    """40 groups of 20 rows; tested on 20 more rows of each, and on 40 new groups of 20."""
    from snefy_ldl.datasets import make_groups

    data = make_groups(80, 40, n_labels=4, effect=effect, random_state=seed)
    if noise == "dirichlet":
        around = 50.0 * special.softmax(data.base + data.effects[data.groups], axis=1)
        draws = np.maximum(np.random.default_rng(seed + 1).standard_gamma(around), 1e-12)
        data.D = draws / draws.sum(axis=1, keepdims=True)
    row = np.arange(len(data.X)) % 40
    train, seen = (data.groups < 40) & (row < 20), (data.groups < 40) & (row >= 20)
    new = np.flatnonzero((data.groups >= 40) & (row < 20))
    X, D, g = data.X, data.D, data.groups
    record: dict[str, Any] = dict(before or {"kind": "made", "seed": seed, "effect": effect, "noise": noise})
    if before is None:
        plain, record["seconds_plain"] = fit_timed(X[train], D[train])
        split, _ = fit_timed(X[train], D[train], g[train], effects=None)
        peer = DirichletMixed().fit(X[train], D[train], g[train])
        record["peer_size"] = float(np.sqrt((peer.u**2).sum() / 40 / 3))
        for name, rows in (("seen", seen), ("unseen", new)):
            truth = true_log_prob(data, noise, 0.0 if name == "seen" else effect)[rows]
            record[f"{name}_truth"] = float(truth.mean())
            record[f"{name}_plain"] = float(plain.log_prob(X[rows], D[rows]).mean())
            record[f"{name}_split"] = float(split.log_prob(X[rows], D[rows]).mean())
            record[f"{name}_peer"] = float(peer.log_prob(X[rows], D[rows], g[rows]).mean())
    model, seconds = fit_timed(X[train], D[train], g[train])
    record |= _seconds(before, seconds)
    record["kept"] = model.group_effects_ is not None
    if record["kept"]:
        record["size"] = float(np.sqrt(np.trace(model.group_effects_.model.covariance()) / 3))
        record["true_size"] = float(np.sqrt((data.effects[:40] ** 2).sum() / 40 / 3))
    for name, rows in (("seen", seen), ("unseen", new)):
        record[f"{name}_groups"] = float(model.log_prob(X[rows], D[rows], groups=g[rows]).mean())
    if record["kept"]:
        gains = []
        for group in range(40, 80):
            rows = np.flatnonzero(data.groups == group)
            new_model = model.adapt(X[rows[:5]], D[rows[:5]])
            gains.append(new_model.log_prob(X[rows[20:]], D[rows[20:]]) - model.log_prob(X[rows[20:]], D[rows[20:]]))
        record["adapt_gain"] = float(np.mean(gains))
    return record


def reference(seed: int) -> dict[str, Any]:
    """What the rows of :func:`made` with perturbation noise tell at best: the right model by maximum likelihood (EM).

    Log-ratios are linear in the features, with Gaussian effects of groups and nearly Gaussian rows.
    """
    from scipy.linalg import helmert
    from scipy.stats import multivariate_normal

    from snefy_ldl.datasets import make_groups

    data = make_groups(80, 40, n_labels=4, effect=0.5, random_state=seed)
    row, g = np.arange(len(data.X)) % 40, data.groups
    train, seen = (g < 40) & (row < 20), (g < 40) & (row >= 20)
    new = (g >= 40) & (row < 20)
    Y, Z = np.log(data.D) @ helmert(4).T, np.hstack([np.ones((len(g), 1)), data.X])
    volume = -np.log(data.D).sum(1) - 0.5 * np.log(4)
    u, T, S = np.zeros((40, 3)), 0.1 * np.eye(3), 0.1 * np.eye(3)
    for _ in range(200):
        B = np.linalg.lstsq(Z[train], Y[train] - u[g[train]], rcond=None)[0]
        left = Y[train] - Z[train] @ B
        sums = np.stack([left[g[train] == k].sum(0) for k in range(40)])
        V = np.linalg.inv(np.linalg.inv(T) + 20 * np.linalg.inv(S))
        u = sums @ np.linalg.inv(S) @ V
        rest = left - u[g[train]]
        T, S = u.T @ u / 40 + V, rest.T @ rest / len(rest) + V
    known = multivariate_normal(cov=V + S).logpdf(Y[seen] - Z[seen] @ B - u[g[seen]]) + volume[seen]
    unknown = multivariate_normal(cov=T + S).logpdf(Y[new] - Z[new] @ B) + volume[new]
    return {"kind": "reference", "seed": seed, "seen": float(known.mean()), "unseen": float(unknown.mean())}


# -- real groups -------------------------------------------------------------------------------------------------------


def load(name: str) -> tuple[Any, Any, Any]:
    folder = Path(os.environ["SNEFY_LDL_DATA"]) / "composition" / SETS[name]
    X, D = np.load(folder / "features.npy"), np.load(folder / "labels.npy")
    if name == "ECAM":
        return X, D, np.load(folder / "groups.npy")
    if name.endswith("place"):
        X = X[:, 4:]
    with (folder / "country.csv").open() as file:
        return X, D, np.array([line[0] for line in csv.reader(file)][1:])


def halves(g: Any, seed: int, by_group: bool) -> tuple[Any, Any]:
    """Training rows, and a fifth of the rows or of the groups to test on."""
    random = np.random.default_rng(seed)
    if not by_group:
        order = random.permutation(len(g))
        return order[len(g) // 5 :], order[: len(g) // 5]
    held, total = [], 0
    for name in random.permutation(np.unique(g)):
        size = int((g == name).sum())
        if total < len(g) / 5 and total + size < len(g) / 4:
            held.append(name)
            total += size
    is_held = np.isin(g, held)
    return np.flatnonzero(~is_held), np.flatnonzero(is_held)


def real(name: str, seed: int, by_group: bool, before: Any = None) -> dict[str, Any]:
    X, D, g = load(name)
    train, test = halves(g, seed, by_group)
    record: dict[str, Any] = dict(before or {"kind": "real", "data": name, "seed": seed, "by_group": by_group})
    model, seconds = fit_timed(X[train], D[train], g[train])
    record |= _seconds(before, seconds)
    record["effects"] = model.training_["group_effects"]["effects"]
    answers = {"groups": (model, g[test])}
    if before is None:
        plain, record["seconds_plain"] = fit_timed(X[train], D[train])
        answers["plain"] = (plain, None)
    for label, (one, groups) in answers.items():
        context = {} if groups is None else {"groups": groups}
        record[f"log_prob_{label}"] = float(one.log_prob(X[test], D[test], **context).mean())
        record[f"kl_{label}"] = float(kl(D[test], np.asarray(one.predict(X[test], **context))).mean())
    if before is not None:
        return record
    lifted = np.maximum(D, 1e-5)
    lifted /= lifted.sum(1, keepdims=True)
    peer = DirichletMixed().fit(X[train], lifted[train], g[train])
    record["kl_peer"] = float(kl(D[test], peer.predict(X[test], g[test])).mean())
    if not (D == 0).any():
        record["log_prob_peer"] = float(peer.log_prob(X[test], D[test], g[test]).mean())
    return record


# -- coverage ----------------------------------------------------------------------------------------------------------


def coverage(seed: int) -> dict[str, Any]:
    """100 groups of 20 rows with different features, as children and fields have; tested on 40 new groups.

    Trees know a group by those features, and so err less on rows of groups that they have seen. Coverage depends on
    nothing else of a model, so a quick one does: log-ratios around trees, with one Gaussian for what is left.
    """
    from snefy_ldl.conformal import ConformalIntervals, NewGroupIntervals
    from snefy_ldl.datasets import make_groups
    from snefy_ldl.logratio import LogRatioLDL

    data = make_groups(140, 20, n_labels=3, effect=1.0, random_state=seed)
    random = np.random.default_rng(seed)
    X = np.hstack([data.X, random.normal(size=(140, 4))[data.groups]])
    D, g = data.D, data.groups
    new = np.flatnonzero(g >= 100)[::10]
    order = random.permutation(np.flatnonzero(g < 100))
    quick = {"n_components": 1, "guides": ["trees"], "n_trees": 50, "random_state": 0}
    record: dict[str, Any] = {"kind": "coverage", "seed": seed, "fit": "quick"}
    train, cal = order[:1000], order[1000:1300]
    pooled = LogRatioLDL(**quick).fit(X[train], D[train])
    calibrated = {"pooled": ConformalIntervals(pooled, 0.9, method="beta").conformalize(X[cal], D[cal])}
    train, cal = g < 40, np.flatnonzero((g >= 40) & (g < 100))[::4]
    model = LogRatioLDL(**quick).fit(X[train], D[train])
    for name, method in (("new_groups", "auto"), ("new_groups_cdf", "cdf")):
        calibrated[name] = NewGroupIntervals(model, 0.9, method).conformalize(X[cal], D[cal], groups=g[cal])
    for name, ci in calibrated.items():
        ends = ci.predict_interval(X[new])
        record[name] = float(((D[new] >= ends[..., 0]) & (D[new] <= ends[..., 1])).mean())
        record[f"width_{name}"] = float((ends[..., 1] - ends[..., 0]).mean())
    return record


# -- time --------------------------------------------------------------------------------------------------------------


def large(n_groups: int) -> dict[str, Any]:
    from snefy_ldl.datasets import make_groups

    data = make_groups(n_groups, 20, n_labels=4, random_state=0)
    _, plain = fit_timed(data.X, data.D)
    model, seconds = fit_timed(data.X, data.D, data.groups)
    record = {"kind": "large", "rows": len(data.X), "groups": n_groups, "seconds_plain": plain, "seconds": seconds}
    return record | {"kept": model.group_effects_ is not None}


# -- tables ------------------------------------------------------------------------------------------------------------


def interval(values: Any) -> str:
    """Mean and its 95 % interval, by Student's t."""
    from scipy.stats import t

    values = np.asarray(values, dtype=float)
    half = t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / len(values) ** 0.5 if len(values) > 1 else np.nan
    return f"{values.mean():+.4f} ± {half:.4f}"


def report(records: list[dict[str, Any]], facts: dict[str, Any], remark: str | None = None) -> str:
    here = ", ".join(f"{key} {value}" for key, value in facts.items())
    lines = ["# Rows in groups", "", f"`benchmarks/groups.py`; every fit with one thread. Machine: {here}.", ""]
    lines += [remark, ""] if remark else []
    rows = [r for r in records if r["kind"] == "made"]
    if rows:
        lines += [
            "## Made-up groups: 40 groups of 20 rows, 4 labels",
            "",
            "`LogRatioLDL`; mean log likelihood of 20 further rows of each group (seen), of 40 new groups (unseen).",
            "Truth: the generating distribution; of unseen groups averaged over effects. Plain: without groups.",
            "Split: `effects=None`. Size: standard deviation of the effects, over that of the 40.",
            "",
            "| effect | noise | runs | groups | truth | ours | split | plain | Dirichlet mixed model | ours / truth |",
            "|---|---|---|---|---|---|---|---|---|---|",
        ]
        for effect, noise in sorted({(r["effect"], r["noise"]) for r in rows}):
            part = [r for r in rows if (r["effect"], r["noise"]) == (effect, noise)]
            for kind in ("seen", "unseen"):
                mean = {
                    k: np.mean([r[f"{kind}_{k}"] for r in part]) for k in ("truth", "groups", "split", "plain", "peer")
                }
                cells = [f"{mean[k]:.3f}" for k in ("truth", "groups", "split", "plain", "peer")]
                ratio = f"{100 * (mean['groups'] / mean['truth'] - 1):+.1f} %"
                lines.append(f"| {effect} | {noise} | {len(part)} | {kind} | " + " | ".join(cells) + f" | {ratio} |")
        lines.append("")
        for effect, noise in sorted({(r["effect"], r["noise"]) for r in rows}):
            part = [r for r in rows if (r["effect"], r["noise"]) == (effect, noise)]
            kept = [r for r in part if r["kept"]]
            where = f"effect {effect}, {noise} noise"
            if effect:
                error = [r["size"] / r["true_size"] - 1 for r in kept]
                peer = [r["peer_size"] / r["true_size"] - 1 for r in kept]
                lines.append(
                    f"- {where}: effects kept in {len(kept)} of {len(part)}; size off by {100 * np.mean(error):+.1f} % "
                    f"on average, {100 * np.max(np.abs(error)):.1f} % at most (peer {100 * np.mean(peer):+.1f} %); "
                    f"5 rows of a new group gain {interval([r['adapt_gain'] for r in kept])} nats per row (`adapt`)."
                )
            else:
                change = [r["seen_groups"] - r["seen_split"] for r in part]
                lines.append(
                    f"- {where}: effects kept in {len(kept)} of {len(part)}; likelihood of further rows changes by "
                    f"{interval(change)} against `effects=None`."
                )
            best = [r for r in records if r["kind"] == "reference"] if (effect, noise) == (0.5, "perturbation") else []
            if best:
                each = []
                for kind in ("seen", "unseen"):
                    value, truth = np.mean([r[kind] for r in best]), np.mean([r[f"{kind}_truth"] for r in part])
                    each.append(f"{value:.3f} ({100 * (value / truth - 1):+.1f} %) for {kind} groups")
                lines.append(
                    f"- {where}: the right model, fitted by maximum likelihood to the same rows, has "
                    f"{' and '.join(each)}: no estimate from 40 groups comes much closer to the truth."
                )
            timed = [r["seconds"] / r["seconds_plain"] for r in part if r["seconds"]]
            if timed:
                lines.append(f"- {where}: a fit takes {np.median(timed):.2f} times as long as without groups (median).")
        lines.append("")
    rows = [r for r in records if r["kind"] == "real"]
    if rows:
        lines += [
            "## Children and countries",
            "",
            "A fifth of the rows (seen groups), or of the groups (unseen), to test on; gains over a fit without groups",
            "with 95 % intervals over the splits. ECAM holds zeros, on which the Dirichlet mixed model has no density.",
            "",
            "| data | test rows | splits | log likelihood: plain | ours | gain | mixed model | KL: plain | ours |"
            " gain | mixed model | time |",
            "|---|---|---|---|---|---|---|---|---|---|---|---|",
        ]
        for name in SETS:
            for by_group in (False, True):
                part = [r for r in rows if r["data"] == name and r["by_group"] == by_group]
                if not part:
                    continue
                mean = {
                    k: np.mean([r[k] for r in part])
                    for k in ("log_prob_plain", "log_prob_groups", "kl_plain", "kl_groups", "kl_peer")
                }
                gain = interval([r["log_prob_groups"] - r["log_prob_plain"] for r in part])
                lower = interval([r["kl_plain"] - r["kl_groups"] for r in part])
                peer = np.mean([r.get("log_prob_peer", np.nan) for r in part])
                timed = [r["seconds"] / r["seconds_plain"] for r in part if r["seconds"]]
                ratio = np.median(timed) if timed else np.nan
                cells = [name, "unseen groups" if by_group else "seen groups", len(part)]
                cells += [f"{mean['log_prob_plain']:.3f}", f"{mean['log_prob_groups']:.3f}", gain, f"{peer:.3f}"]
                cells += [f"{mean['kl_plain']:.4f}", f"{mean['kl_groups']:.4f}", lower, f"{mean['kl_peer']:.4f}"]
                lines.append("| " + " | ".join(str(cell) for cell in [*cells, f"{ratio:.2f}"]) + " |")
        lines.append("")
    rows = [r for r in records if r["kind"] == "coverage"]
    if rows:
        lines += ["## Coverage of 90 % intervals for rows of new groups: log-ratios around trees", ""]
        names = {"pooled": "pooled calibration", "new_groups": "`NewGroupIntervals`"}
        names["new_groups_cdf"] = '`NewGroupIntervals(method="cdf")`'
        for key, name in names.items():
            values = np.array([r[key] for r in rows])
            width = np.mean([r[f"width_{key}"] for r in rows])
            lines.append(
                f"- {name}: {values.mean():.4f} (standard error {values.std(ddof=1) / len(rows) ** 0.5:.4f}, "
                f"{len(rows)} repetitions), mean width {width:.3f}."
            )
        lines.append("")
    for r in (r for r in records if r["kind"] == "large"):
        lines += [
            "## Very many rows",
            "",
            f"{r['rows']:,} rows of {r['groups']:,} groups: {r['seconds']:.0f} CPU seconds on one thread, "
            f"{r['seconds_plain']:.0f} without groups.",
            "",
        ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=["made", "real", "coverage", "time", "report"])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--ours", action="store_true")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--data", choices=list(SETS))
    options = parser.parse_args()
    file = OUT / "groups.json"
    content = json.loads(file.read_text()) if file.exists() else {"records": []}
    if options.part == "report":
        text = report(content["records"], content["machine"], content.get("remark"))
        (OUT / "groups.md").write_text(text)
        print(text)
        return
    n = 1 if options.quick else 10
    work: list[tuple[Any, tuple[Any, ...], dict[str, Any]]]
    if options.part == "made":
        kinds = [(0.5, "perturbation"), (0.0, "perturbation"), (0.5, "dirichlet")]
        work = [
            (made, (seed, *kind), {"kind": "made", "seed": seed, "effect": kind[0], "noise": kind[1]})
            for seed in range(n)
            for kind in kinds
        ]
        work += [(reference, (seed,), {"kind": "reference", "seed": seed}) for seed in range(n)]
    elif options.part == "real":
        work = [
            (real, (name, seed, by), {"kind": "real", "data": name, "seed": seed, "by_group": by})
            for seed in range(1 if options.quick else 5)
            for name in (SETS if options.data is None else [options.data])
            for by in (False, True)
        ]
    elif options.part == "coverage":
        n = 2 if options.quick else 200
        work = [(coverage, (seed,), {"kind": "coverage", "seed": seed, "fit": "quick"}) for seed in range(n)]
    else:
        n_groups = 300 if options.quick else 4900
        work = [(large, (n_groups,), {"kind": "large", "groups": n_groups})]
    done = content["records"]
    if options.again:
        done[:] = [one for one in done if not any(task[2].items() <= one.items() for task in work)]
    before = [next((record for record in done if task[2].items() <= record.items()), None) for task in work]
    ours = [options.ours and task[0] is not reference for task in work]
    to_do = [(task, record) for task, record, again in zip(work, before, ours) if record is None or again]
    content["machine"] = machine(1)
    tasks = (delayed(task[0])(*task[1], *([] if record is None else [record])) for task, record in to_do)
    for record in Parallel(n_jobs=options.jobs, return_as="generator_unordered")(tasks):
        names = ("kind", "seed", "effect", "noise", "data", "by_group", "groups", "fit")
        same = {name: record[name] for name in names if name in record}
        done[:] = [one for one in done if not same.items() <= one.items()]
        done.append(record)
        print({k: round(v, 4) if isinstance(v, float) else v for k, v in record.items()}, flush=True)
        file.write_text(json.dumps(content, indent=1))


if __name__ == "__main__":
    main()
