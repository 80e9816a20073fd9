"""From settings and data to trained members: what one fit, an ensemble and many models at once have in common.

A *job* is one estimator and the rows it may see. It plans *members*: networks that differ in seed, validation rows or
feature scaling. Members of one shape train stacked, whichever job they belong to; then each job keeps its best.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from snefy_ldl._random import derive_seed
from snefy_ldl._types import Array
from snefy_ldl.errors import InputError, MissingLabelWarning
from snefy_ldl.networks.backbones import CustomBackbone, StackedMLP
from snefy_ldl.networks.net import SnefyNet, fit_dirichlet, label_concentration, paper_init, prototype_init
from snefy_ldl.networks.scaling import Scaling, clearly_better, fit_scaling
from snefy_ldl.special import log_share
from snefy_ldl.training import vote_start as vote_recipe
from snefy_ldl.training.loop import Run, evaluate
from snefy_ldl.training.objectives.gaps import MissingTarget, mean_shares
from snefy_ldl.training.objectives.targets import (
    CountTarget,
    DistributionTarget,
    Target,
    fill_missing,
    fit_dirichlet_multinomial,
)
from snefy_ldl.training.recipe import Recipe
from snefy_ldl.validation import (
    PartialCounts,
    ZeroPolicy,
    check_counts,
    check_distributions,
    check_features,
    check_sample_weight,
    spread_rest,
)
from snefy_ldl.validation.rows import count_rows, move_rows, take_rows

if TYPE_CHECKING:
    from snefy_ldl.estimator import SnefyLDL


#: Share of the background Dirichlet while training; the validation rows settle it afterwards.
BACKGROUND_SHARE = 0.02
#: Range of the concentrations that neurons start with, in units of the labels' own.
PROTOTYPE_SPREAD = (1.0, 32.0)
#: Sparse features are made dense for training when they take at most this many bytes as float32.
DENSE_BYTES = 1 << 31


class TrainingData:
    """What a fit was given, checked once.

    Args:
        X: features; anything of tensors when ``custom``.
        D: label distributions (N, L), or None; NaN where a share is not known.
        counts: votes (N, L), or None.
        sample_weight: row weights (N,), or None.
        custom: whether a custom backbone takes X as it is.
    """

    def __init__(self, X: Any, D: Any, counts: Any, sample_weight: Any, custom: bool) -> None:
        if D is None and counts is None:
            raise InputError(
                "fit needs the labels: label distributions as fit(X, D), or votes as fit(X, counts=K). "
                "(This estimator requires y to be passed, but the target y is None.)"
            )
        if D is not None and counts is not None:
            raise InputError("fit takes label distributions or counts, not both.")
        self.features = X if custom else check_features(X)
        self.n_rows = count_rows(X) if custom else int(self.features.shape[0])
        self.are_counts = counts is not None
        self.partial = counts if isinstance(counts, PartialCounts) else None
        self.labels: Array
        self.names: list[str] | None
        if self.partial is not None:
            self.labels, self.names = self.partial.counts, self.partial.names
            check_counts(self.partial.expected().round() + 1.0, n_rows=self.n_rows)  # as many rows as X, two labels
        elif self.are_counts:
            self.labels, self.names = check_counts(counts, n_rows=self.n_rows, missing=True)
        else:
            self.labels, self.names = check_distributions(D, n_rows=self.n_rows, missing=True)
            _tell_gaps(D)
        self.has_gaps = not self.are_counts and bool(np.isnan(self.labels).any())
        self.weights = check_sample_weight(sample_weight, self.n_rows)

    @property
    def n_labels(self) -> int:
        """L."""
        return int(self.labels.shape[1])

    def tensor(self, device: torch.device) -> Any:
        """Features on the device, dense float32."""
        if isinstance(self.features, np.ndarray):
            return torch.as_tensor(np.ascontiguousarray(self.features, dtype=np.float32), device=device)
        if sp.issparse(self.features):
            if 4 * math.prod(self.features.shape) > DENSE_BYTES:
                raise InputError(
                    f"sparse X of shape {self.features.shape} would take more than {DENSE_BYTES >> 30} GiB dense; "
                    "reduce its columns first (TruncatedSVD, or select features)."
                )
            return torch.as_tensor(self.features.astype(np.float32).toarray(), device=device)
        return move_rows(self.features, device)

    def weight_tensor(self, device: torch.device) -> Tensor | None:
        """Row weights on the device."""
        return None if self.weights is None else torch.as_tensor(self.weights, dtype=torch.float32, device=device)


def _tell_gaps(D: Any) -> None:
    """Unknown shares are welcome, but nobody should have them without knowing."""
    rows = int(np.isnan(np.asarray(D, dtype=np.float64)).any(axis=1).sum())
    if rows:
        warnings.warn(
            f"{rows} of {len(D)} label distributions hold unknown shares (NaN); each counts by the exact density of "
            "what is known. Drop those rows if NaN was not meant so.",
            MissingLabelWarning,
            stacklevel=4,
        )


class Job:
    """One estimator to be fitted on some rows of the data.

    Args:
        estimator: carries the settings.
        data: everything.
        rows: the rows it may see; all by default.
        warn: whether to say how many labels were shrunk.
    """

    def __init__(
        self, estimator: SnefyLDL, data: TrainingData, rows: NDArray[np.intp] | None = None, warn: bool = True
    ) -> None:
        self.estimator, self.data = estimator, data
        self.rows = np.arange(data.n_rows) if rows is None else rows
        self.seed = estimator._seed()
        needed = 2 if estimator.validation_fraction == 0 else 4
        if len(self.rows) < needed:
            raise InputError(
                f"X has {len(self.rows)} row(s) ({len(self.rows)} sample(s)); a fit with "
                f"validation_fraction={estimator.validation_fraction:g} needs at least {needed}."
            )
        seen = data.labels[self.rows]
        self.prior: Array | None = None
        self.n_votes = 0.0
        self.spread = PROTOTYPE_SPREAD
        if data.are_counts:
            votes = fill_missing(data.labels) if data.partial is None else data.partial.expected()
            self.n_votes = max(1.0, float(votes[self.rows].sum(1).mean()))  # an item
            self.prior = fit_dirichlet_multinomial(votes[self.rows])
            self.shares = (votes + self.prior) / (votes + self.prior).sum(1, keepdims=True)
            self.votes_recipe = vote_recipe.count_recipe(self.n_votes)
            rng = np.random.default_rng(derive_seed(self.seed, 8))
            own = self.votes_recipe
            start = vote_recipe.start_labels(votes[self.rows], self.prior, own.start, rng, own.sharpness)
            self.prototypes = self.shares.copy()
            self.prototypes[self.rows] = start
            self.spread = self.votes_recipe.spread
            self.policy = ZeroPolicy.from_data(self.shares[self.rows], estimator.zeros)
        else:
            kept = getattr(estimator, "zero_policy_", None) if estimator.warm_start else None
            self.policy = kept or ZeroPolicy.from_data(seen, estimator.zeros)
            self.policy.apply(seen, warn=warn, names=data.names)
            self.known = self.policy.apply(data.labels, names=data.names)
            self.shares = self.prototypes = self.known
            if data.has_gaps:  # for a start, and to compare means; the likelihood never sees what was filled in
                self.shares = self.prototypes = spread_rest(self.known, mean_shares(self.known[self.rows]))

    @property
    def candidates(self) -> list[Scaling]:
        """The scalings to try."""
        estimator = self.estimator
        if estimator.backbone is not None or estimator.standardize in (False, None):
            return ["none"]
        if estimator.standardize == "pooled":
            return ["pooled"]
        if estimator.standardize == "auto" and estimator.validation_fraction > 0:
            return ["unit", "pooled"]
        return ["unit"]

    def plan(self, candidates: Sequence[Scaling] | None = None, validate: bool = True) -> list[Member]:
        """The job's members: ``n_members`` for each candidate scaling, candidates side by side on the same rows."""
        estimator, n_rows = self.estimator, len(self.rows)
        held = 0
        if validate and estimator.validation_fraction > 0:
            held = min(max(1, round(estimator.validation_fraction * n_rows)), n_rows - 2)
        members = []
        for kind in candidates or self.candidates:
            for k in range(estimator.n_members):
                order = torch.randperm(n_rows, generator=torch.Generator().manual_seed(derive_seed(self.seed, 4, k)))
                rows = torch.as_tensor(self.rows)[order]
                members.append(
                    Member(
                        self, rows[held:], rows[:held], kind, derive_seed(self.seed, 5, k), derive_seed(self.seed, 7, k)
                    )
                )
        return members

    def recipe(self, epochs: int | None = None, constant: bool = False) -> Recipe:
        """The estimator's settings as the loop takes them."""
        estimator = self.estimator
        size: Any = estimator.batch_size
        if size == "auto":
            rows = len(self.rows) * (1.0 - estimator.validation_fraction)
            size = 16 if rows < 200 else 32 if rows < 500 else 64 if rows < 10_000 else 128 if rows < 40_000 else 256
        plain = estimator.recipe == "paper"
        rate, exponent_rate = (1.0, 1.0) if plain else (0.2 if constant else 1.0, 20.0)
        if self.data.are_counts and not plain:
            # votes are a noisier teacher than shares, and a few of them say nothing about concentrations
            rate, exponent_rate = self.votes_recipe.rate * rate, self.votes_recipe.exponent_rate
        return Recipe(
            epochs=int(epochs or estimator.epochs),
            batch_size=int(size),
            learning_rate=float(estimator.learning_rate) * rate,
            exponent_rate=exponent_rate,
            weight_decay=float(estimator.weight_decay),
            schedule="constant" if plain or constant else "one_cycle",
            patience=estimator.patience,
        )


@dataclass(frozen=True)
class Member:
    """One network to train: whose it is, its rows, its scaling and its seeds."""

    job: Job
    train: Tensor
    valid: Tensor
    scaling: Scaling
    start_seed: int
    shuffle_seed: int

    @property
    def split(self) -> tuple[Tensor, Tensor]:
        """Training and validation rows."""
        return self.train, self.valid


def build_net(members: Sequence[Member]) -> SnefyNet:
    """A stack of freshly initialised members; all must have one shape."""
    job = members[0].job
    estimator, data = job.estimator, job.data
    body: StackedMLP | CustomBackbone
    if estimator.backbone is None:
        body = StackedMLP(len(members), data.features.shape[1], tuple(int(w) for w in estimator.hidden_sizes))
    else:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed(job.seed, 3))
            body = CustomBackbone(
                len(members), estimator.backbone, take_rows(data.features, torch.arange(min(2, data.n_rows)))
            )
    plain = estimator.recipe == "paper"
    net = SnefyNet(
        body,
        data.n_labels,
        int(estimator.n_neurons),
        int(estimator.n_readouts),
        exponent_form="clip" if plain else "log",
        balanced=not plain,
    )
    for k, member in enumerate(members):
        _initialise(net, k, member)
    return net


def _initialise(net: SnefyNet, k: int, member: Member) -> None:
    data, plain = member.job.data, member.job.estimator.recipe == "paper"
    rows = member.train.numpy()
    shares = torch.as_tensor(member.job.prototypes[rows])
    generator = torch.Generator().manual_seed(member.start_seed)
    if plain:
        paper_init(net, k, shares, generator)
    else:
        prototype_init(net, k, shares, generator, member.job.spread)
    if isinstance(net.backbone, StackedMLP) and member.scaling != "none":
        scaler = net.backbone.scaler
        scaler.centre[k], scaler.scale[k], limit = fit_scaling(data.features[rows], member.scaling)
        scaler.limit[k] = limit
    if not plain:
        start = shares.mean(0) * max(label_concentration(shares), 1.0)
        prior = member.job.prior
        net.background[k] = fit_dirichlet(shares.log().mean(0), start) if prior is None else torch.as_tensor(prior)
        net.log_odds[k] = math.log(BACKGROUND_SHARE / (1.0 - BACKGROUND_SHARE))


def make_target(net: SnefyNet, members: Sequence[Member], device: torch.device) -> Target:
    """What the members must explain, on the device."""
    data = members[0].job.data
    if data.are_counts:
        named = None if data.partial is None else torch.as_tensor(data.partial.named, device=device)
        sets = None if data.partial is None else torch.as_tensor(data.partial.sets, device=device)
        return CountTarget(torch.as_tensor(data.labels, device=device), net, named, sets)
    jobs = list(dict.fromkeys(member.job for member in members))
    # most data hold no zeros, and then every job sees the same shares
    if all(np.array_equal(job.shares, jobs[0].shares) for job in jobs[1:]):
        jobs = jobs[:1]
    group = torch.tensor([jobs.index(m.job) if len(jobs) > 1 else 0 for m in members], device=device)
    if data.has_gaps:
        return MissingTarget([torch.as_tensor(job.known, device=device) for job in jobs], net, group)
    logs = torch.stack([torch.as_tensor(job.shares, device=device).log() for job in jobs])
    return DistributionTarget(logs, net, group)


def conclude(job: Job, net: SnefyNet, members: Sequence[Member], run: Run, features: Any, target: Target) -> None:
    """Keep the job's better scaling and settle the background's share on validation rows; the estimator is fitted.

    Args:
        job: whose members these are.
        net: the trained stack of exactly these members.
        members: as planned.
        run: what the loop left, for exactly these members.
        features: on the net's device.
        target: for exactly these members.
    """
    estimator, n_members = job.estimator, job.estimator.n_members
    held = torch.stack([member.valid for member in members]).to(net.readout.device)
    kinds = [members[k].scaling for k in range(0, len(members), n_members)]
    chosen = 0
    if len(kinds) > 1:
        log_p = evaluate(net, features, target, held)
        # a density can win on spiky labels with features it hardly sees; its mean must not pay for that
        if clearly_better(log_p[n_members:], log_p[:n_members]):
            losses = [_mean_divergence(net.select([k]), features, members[k]) for k in range(len(members))]
            chosen = int(sum(losses[n_members:]) <= sum(losses[:n_members]))
    keep = list(range(chosen * n_members, (chosen + 1) * n_members))
    background = getattr(target, "background", None)
    if background is not None and held.shape[1]:
        alone = evaluate(net, features, target.without_background(), held)  # type: ignore[attr-defined]
        net.refine_background(alone, background.gather(1, held))
    if len(keep) < net.n_members:
        net = net.select(keep)
    estimator.net_ = net.eval()
    estimator.scaling_ = kinds[chosen]
    estimator.history_ = run.history
    estimator.training_ = summary(net, run.of(keep), len(members[0].train), kinds[chosen])


def _mean_divergence(net: SnefyNet, features: Any, member: Member) -> float:
    """KL divergence of the mean prediction on the member's validation rows."""
    rows = member.valid
    x = features[rows.to(net.readout.device)] if isinstance(features, Tensor) else take_rows(features, rows)
    with torch.no_grad():
        mean = net(x).mean.cpu()
    shares = torch.as_tensor(member.job.shares[rows.numpy()])
    return float((shares * (shares.log() - log_share(mean))).sum(-1).mean())


def summary(net: SnefyNet, run: Run, rows: int, scaling: str) -> dict[str, Any]:
    """What the fit did, as JSON can hold it."""
    return {
        "rows": rows,
        "epochs": run.next_epoch,
        "best_epoch": run.best_epoch,
        "validation_loss": [loss if math.isfinite(loss) else None for loss in run.best_loss],
        "seconds": round(run.seconds, 3),
        "repairs": run.repairs,
        "scaling": scaling,
        "background_share": [round(share, 6) for share in torch.sigmoid(net.log_odds).tolist()],
        "device": str(net.readout.device),
    }
