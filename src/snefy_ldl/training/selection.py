"""After training: which scaling a job keeps, how large its background is, and what is told about the fit."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from snefy_ldl.networks.net import SnefyNet
from snefy_ldl.special import log_share
from snefy_ldl.training.evaluate import evaluate
from snefy_ldl.training.objectives import Objective
from snefy_ldl.training.optimiser import StackedAdamW
from snefy_ldl.training.plan import Job, Member
from snefy_ldl.training.state import FittedState, Run
from snefy_ldl.validation.rows import take_rows


def conclude(
    job: Job, net: SnefyNet, run: Run, X: Any, objective: Objective, optimizer: StackedAdamW | None = None
) -> FittedState:
    """Keep the job's better scaling and settle the background's share on validation rows.

    Args:
        job: whose members these are.
        net: the trained stack of exactly the job's members.
        run: the course of their fit.
        X: features of all rows, on the net's device.
        objective: for exactly these members.
        optimizer: to be kept, where a further pass may go on with it.

    Returns:
        The fitted state.
    """
    members, n_members = job.members, job.settings.n_members
    held = torch.stack([member.valid for member in members]).to(net.readout.device)
    scalings = [members[k].scaling for k in range(0, len(members), n_members)]
    chosen = 0
    if len(scalings) > 1:
        log_p = evaluate(net, X, objective, held)
        # A density can win on spiky labels with features it hardly sees; its mean must not pay for that.
        if clearly_better(log_p[n_members:], log_p[:n_members]):
            losses = [_mean_divergence(net.select([k]), X, members[k]) for k in range(len(members))]
            chosen = int(sum(losses[n_members:]) <= sum(losses[:n_members]))
    keep = list(range(chosen * n_members, (chosen + 1) * n_members))
    if objective.background is not None and held.shape[1]:
        alone = evaluate(net, X, objective.without_background(), held)
        net.refine_background(alone, objective.background.gather(1, held))
    if len(keep) < net.n_members:
        net = net.select(keep)
    run = run.of(keep)
    history = run.history
    if job.one_pass:
        done = [] if job.start is None else job.start.history
        history = [*done, {**run.history[0], "epoch": float(job.passes_done)}]
    report = summarise(net, run, len(members[0].train), scalings[chosen])
    if job.start is not None:  # names and zero policy stay those of the first fit
        return replace(job.start, net=net.eval(), history=history, summary=report, optimizer=optimizer)
    data = job.data
    return FittedState(
        net=net.eval(),
        scaling=scalings[chosen],
        history=history,
        summary=report,
        zero_policy=job.labels.policy,
        label_names=data.label_names or [f"label_{r}" for r in range(data.n_labels)],
        labels_were_named=data.label_names is not None,
        n_features=int(data.features.shape[1]) if job.settings.backbone is None else None,
        feature_names=data.feature_names,
        optimizer=optimizer,
    )


def clearly_better(challenger: Tensor, incumbent: Tensor) -> bool:
    """Whether the challenger's paired log likelihoods lead by more than one standard error.

    Args:
        challenger: log likelihoods of any shape.
        incumbent: those of the same rows.

    Returns:
        Whether it leads.

    Example:
        >>> clearly_better(torch.tensor([1.0, 1.1, 0.9]), torch.zeros(3))
        True
    """
    gain = (challenger - incumbent).double().flatten()
    if len(gain) < 2:
        return False
    return bool(gain.mean() > gain.std() / len(gain) ** 0.5)


def _mean_divergence(net: SnefyNet, X: Any, member: Member) -> float:
    """KL divergence of the mean prediction on the member's validation rows."""
    rows = member.valid
    x = X[rows.to(net.readout.device)] if isinstance(X, Tensor) else take_rows(X, rows)
    with torch.no_grad():
        mean = net(x).mean.cpu()
    shares = torch.as_tensor(member.job.labels.shares[rows.numpy()])
    return float((shares * (shares.log() - log_share(mean))).sum(-1).mean())


def summarise(net: SnefyNet, run: Run, rows: int, scaling: str) -> dict[str, Any]:
    """What a fit did, as JSON can hold it.

    Args:
        net: as it ended.
        run: its course.
        rows: it learnt from.
        scaling: of its features.

    Returns:
        The estimator's ``training_``.
    """
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
