"""After training: which scaling and centre a job keeps, how large its background is, and the fit's summary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor

from snefy_ldl._internal.limits import EVALUATION_ROWS
from snefy_ldl._internal.special import log_share
from snefy_ldl.networks.backbones import CustomBackbone
from snefy_ldl.networks.net import SnefyNet
from snefy_ldl.networks.scaling import as_slice
from snefy_ldl.training.objectives import Objective
from snefy_ldl.training.optimiser import StackedAdamW
from snefy_ldl.training.plan import Job, Member
from snefy_ldl.training.state import FittedState, Run, Validation, lead, summarise
from snefy_ldl.training.step import evaluate, gather_rows


@dataclass(frozen=True)
class HeldScores:
    """What members make of their validation rows.

    Args:
        rows: the validation rows of each member (K, B), on the net's device.
        log_prob: log densities as the members were trained (K, B), on the CPU; None where nothing is to be compared.
        log_odds: of the background's share as those rows settle it (K,), or None without a background.
        means: the members' mean predictions (K, B, L), on the CPU; None where each has to be asked by itself.
        left_out: what the losses leave out of each member's mean log likelihood (K,), or None for nothing.
    """

    rows: Tensor
    log_prob: Tensor | None
    log_odds: Tensor | None
    means: Tensor | None = None
    left_out: Tensor | None = None

    def of(self, part: list[int]) -> HeldScores:
        """The part that concerns some of the members, which stand in a row."""
        here = as_slice(part)
        values = (self.log_prob, self.log_odds, self.means, self.left_out)
        return HeldScores(self.rows[here], *(None if value is None else value[here] for value in values))


def score_held(net: SnefyNet, X: Any, objective: Objective, members: Sequence[Member]) -> HeldScores:
    """Score validation rows for a whole stack at once: asked job by job, a GPU waits for Python.

    Args:
        net: the trained stack of exactly these members; it stays as it is.
        X: features of all rows, on the net's device.
        objective: for exactly these members.
        members: as planned, all with as many validation rows.

    Returns:
        The scores.
    """
    rows = torch.stack([member.valid for member in members]).to(net.readout.device)
    compare = any(len(member.job.members) > member.job.n_members or member.job.compared for member in members)
    if not rows.shape[1]:
        return HeldScores(rows, None, None)
    log_prob, left_out = evaluate(net, X, objective, rows).cpu() if compare else None, objective.mean_left_out(rows)
    means = _member_means(net, X, rows) if compare and members[0].job.data.moves is None else None
    if objective.background is None:
        return HeldScores(rows, log_prob, None, means, left_out)
    before = net.log_odds.clone()
    net.refine_background(evaluate(net, X, objective.without_background(), rows), objective.background.gather(1, rows))
    settled = net.log_odds.clone()
    with torch.no_grad():
        net.log_odds.copy_(before)  # candidates are compared as they were trained
    return HeldScores(rows, log_prob, settled, means, left_out)


@torch.no_grad()
def _member_means(net: SnefyNet, X: Any, rows: Tensor) -> Tensor | None:
    """Mean predictions of all members for their own rows, on the CPU (K, B, L).

    None for laws whose means are integrals, and for backbones that members share or that read rows one by one.
    """
    if net.has_centre or net.has_presence or isinstance(net.backbone, CustomBackbone):
        return None
    parts = []
    for start in range(0, rows.shape[1], EVALUATION_ROWS):
        law = net(gather_rows(net, X, rows[:, start : start + EVALUATION_ROWS]))
        parts.append(law.member_means().cpu())
    return torch.cat(parts, 1)


def conclude(
    job: Job,
    net: SnefyNet,
    run: Run,
    X: Any,
    scores: HeldScores | None,
    optimizer: StackedAdamW | None = None,
    first_member: int = 0,
    members: Sequence[Member] | None = None,
) -> FittedState:
    """Keep the job's best scaling and centre, and settle the background's share on validation rows.

    Args:
        job: whose members these are.
        net: the trained stack that holds the job's members.
        run: the course of its fit.
        X: features of all rows, on the net's device.
        scores: of the whole stack; None where no rows were held back, or what they say is in the net already.
        optimizer: to be kept, where a further pass may go on with it.
        first_member: where the job's members begin in the stack.
        members: those of the job that are in the stack; all of them by default.

    Returns:
        The fitted state; its ``candidates`` say of each group of members whether it was kept, and the KL divergence of
        its mean where that was asked for.
    """
    members, n_members = job.members if members is None else members, job.n_members
    keep, validation = list(range(n_members)), None
    candidates: list[dict[str, Any]] = [{} for _ in range(0, len(members), n_members)]
    if scores is not None and scores.log_prob is not None and (len(job.members) > n_members or job.compared):
        part = list(range(first_member, first_member + len(members)))
        rivals = _Candidates(job, members, net, X, scores.of(part), first_member)
        keep, validation = rivals.best()
        for start, group in enumerate(candidates):
            group["kl"] = rivals.divergences.get(start * n_members)
    candidates[keep[0] // n_members]["kept"] = True
    first = members[keep[0]]
    keep = [first_member + k for k in keep]
    if len(keep) < net.n_members:
        net = net.select(keep)
    if scores is not None and scores.log_odds is not None:
        with torch.no_grad():
            net.log_odds.copy_(scores.log_odds[as_slice(keep)])
    run = run.of(keep)
    history = run.history
    if job.one_pass:
        done = [] if job.start is None else job.start.history
        history = [*done, {**run.history[0], "epoch": float(job.passes_done)}]
    report: dict[str, Any] = {}
    if isinstance(net.backbone, CustomBackbone) and net.backbone.reads is not None:
        report |= {"reads": net.backbone.reads, "row": net.backbone.row}
    if scores is not None and scores.left_out is not None:
        run = run.with_left_out(scores.left_out[as_slice(keep)].tolist())
    n_train = len(first.train)
    if job.lessons is not None:  # which are no rows of the table, and beside which each row counts several times
        n_train = len(job.rows) - len(first.valid)
    report |= summarise(net, run, n_train, len(first.valid), first.scaling)
    report["labels"] = "votes" if job.data.are_counts else "shares"
    if job.data.note is not None:
        report["note"] = job.data.note
    if job.start is not None:  # names and zero policy stay those of the first fit
        return replace(job.start, net=net.eval(), history=history, summary=report, optimizer=optimizer)
    data = job.data
    return FittedState(
        net=net.eval(),
        scaling=first.scaling,
        history=history,
        summary=report,
        zero_policy=job.labels.policy,
        label_names=data.label_names or [f"label_{r}" for r in range(data.n_labels)],
        labels_were_named=data.label_names is not None,
        n_features=data.n_features,
        feature_names=data.feature_names,
        columns=data.columns,
        optimizer=optimizer,
        centre=first.centre,
        validation=validation,
        candidates=[] if scores is None else candidates,  # a stream tries one only
    )


class _Candidates:
    """The members of one job, in groups that differ in scaling or centre.

    Args:
        job: whose they are.
        members: those that were trained to the end.
        net: the stack that holds them.
        X: features of all rows.
        scores: of exactly these members.
        first_member: where they begin in the stack.

    Attributes:
        divergences: mean KL divergence of the groups that were asked for their means, by their first member.
    """

    def __init__(
        self, job: Job, members: Sequence[Member], net: SnefyNet, X: Any, scores: HeldScores, first_member: int
    ) -> None:
        self._job, self._members, self._net, self._X = job, members, net, X
        self._scores, self._first = scores, first_member
        self.divergences: dict[int, float] = {}

    def best(self) -> tuple[list[int], Validation | None]:
        """Members of the candidate that does best on the validation rows, and how it does there."""
        members, n_members, log_p = self._members, self._job.n_members, self._scores.log_prob
        assert log_p is not None
        best, best_validation = list(range(n_members)), None
        for start in range(n_members, len(members), n_members):
            part = list(range(start, start + n_members))
            if lead(log_p[part], log_p[best]) <= -1.0:  # a clear loss that no mean makes good
                continue
            best_validation = best_validation or self._validation(log_p, best)
            validation = self._validation(log_p, part)
            if validation.beats(best_validation):
                best, best_validation = part, validation
        if self._job.compared and best_validation is None:
            best_validation = self._validation(log_p, best)
        return best, best_validation

    def _validation(self, log_p: Tensor, part: list[int]) -> Validation:
        """What some members make of their validation rows; a row that does not count in training has no voice here."""
        divergence = torch.stack([self._divergence(k) for k in part])
        counted = torch.ones_like(divergence, dtype=torch.bool)
        if self._job.data.weights is not None:
            counted = torch.as_tensor(self._job.data.weights)[self._scores.rows[part].cpu()] > 0.0
        validation = Validation(log_p[part][counted], divergence[counted])
        self.divergences[part[0]] = float(validation.divergence.double().mean())
        return validation

    def _divergence(self, k: int) -> Tensor:
        """KL divergence of a member's mean prediction on each of its validation rows (B,)."""
        job, rows = self._job, self._members[k].valid
        mean = self._mean(k) if self._scores.means is None else self._scores.means[k]
        plain = not (job.data.are_counts or job.data.has_gaps)  # then zeros of the labels are zeros here, too
        shares = torch.as_tensor((job.data.labels if plain else job.labels.shares)[rows.numpy()])
        divergence: Tensor = torch.special.xlogy(shares, shares).sum(-1) - (shares * log_share(mean)).sum(-1)
        return divergence

    def _mean(self, k: int) -> Tensor:
        """A member's mean prediction for its validation rows (B, L), asked by itself."""
        rows, moves, net = self._members[k].valid, self._job.data.moves, self._net.select([self._first + k])
        device = net.readout.device
        shifts = () if moves is None else moves.take(rows.numpy()).tensors(device)
        with torch.no_grad():
            mean: Tensor = net(gather_rows(net, self._X, rows[None].to(device)), *shifts).mean.cpu()
        return mean


def join_states(first: FittedState, second: FittedState) -> FittedState:
    """One model of the members of two, which must have one shape and one scaling.

    Args:
        first: whose names, guides and candidates stay.
        second: trained in the same way.

    Returns:
        The fitted state of all members.
    """
    one, other = first.net, second.net
    net = one.select([0] * (one.n_members + other.n_members))
    tensors = other.state_dict()
    net.load_state_dict({name: torch.cat([value, tensors[name]]) for name, value in one.state_dict().items()})
    history = []
    sizes = one.n_members, other.n_members
    for mine, theirs in zip_longest(first.history, second.history):
        if mine is None or theirs is None:  # members that ran out of patience
            history.append(mine or theirs)
            continue
        record = {**mine, "seconds": mine["seconds"] + theirs["seconds"]}
        for name in ("loss", "validation_loss"):
            if name in record:
                record[name] = (sizes[0] * mine[name] + sizes[1] * theirs[name]) / sum(sizes)
        history.append(record)
    summary = {**first.summary, "epochs": max(first.summary["epochs"], second.summary["epochs"])}
    for name in ("best_epoch", "validation_loss", "background_share"):
        summary[name] = first.summary[name] + second.summary[name]
    for name in ("repairs", "seconds"):
        summary[name] = first.summary[name] + second.summary[name]
    return replace(first, net=net.eval(), history=history, summary=summary, validation=None)


def first_members(state: FittedState, number: int) -> FittedState:
    """A model reduced to its first few members.

    Args:
        state: of at least as many.
        number: how many to keep.

    Returns:
        The fitted state.
    """
    if state.net.n_members == number:
        return state
    summary = dict(state.summary)
    for name in ("best_epoch", "validation_loss", "background_share"):
        summary[name] = summary[name][:number]
    return replace(state, net=state.net.select(list(range(number))).eval(), summary=summary, validation=None)
