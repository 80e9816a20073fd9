"""A stack: the members of some jobs, trained side by side, of which each job keeps its best."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from snefy_ldl.errors import TrainingError
from snefy_ldl.training.checkpoint import Checkpoint
from snefy_ldl.training.loop import Standing, Trainer
from snefy_ldl.training.optimiser import make_optimizer
from snefy_ldl.training.plan import Job, build_net, make_objective
from snefy_ldl.training.recipe import Recipe
from snefy_ldl.training.selection import conclude, score_held
from snefy_ldl.training.state import FittedState, Run

#: From this many labels on, networks learn without their background, which joins them on validation rows.
MANY_LABELS = 15


class Stack:
    """Members of some jobs that have one shape.

    Args:
        jobs: on one and the same data.
        device: where to train.
        checkpoint: written after every epoch; no member is dropped then, so that a fit that was killed can go on.

    Attributes:
        jobs: as given.
        failure: why the stack trains no further, or None.
    """

    def __init__(self, jobs: Sequence[Job], device: torch.device, checkpoint: Checkpoint | None = None) -> None:
        self.jobs = list(jobs)
        self.failure: TrainingError | None = None
        self._run: Run | None = None
        first = self.jobs[0]
        self._members = [member for job in jobs for member in job.members]
        self._net = (build_net(self._members) if first.start is None else first.start.net).to(device)
        self._X = first.data.tensor(device)
        self._objective = objective = make_objective(self._net, self._members, device)
        self._optimizer = None
        self.recipe = recipe = first.recipe
        if first.one_pass:
            kept = None if first.start is None else first.start.optimizer
            rates = recipe.learning_rate, recipe.exponent_rate, recipe.weight_decay
            self._optimizer = kept or make_optimizer(self._net, *rates)
        # With many labels a background can out-score untrained networks by so many nats that their gradients vanish.
        alone = first.data.n_labels >= MANY_LABELS and objective.background is not None
        self._may_drop = checkpoint is None
        self._trainer = Trainer(
            self._net,
            self._X,
            objective.without_background() if alone else objective,
            [(member.train, member.valid) for member in self._members],
            recipe,
            [member.shuffle_seed for member in self._members],
            weights=first.data.weight_tensor(device),
            optimizer=self._optimizer,
            rates=_rates([member.job.recipe for member in self._members], device),
            checkpoint=checkpoint,
        )

    @property
    def may_drop(self) -> bool:
        """Whether members may be dropped."""
        return self._may_drop and not self.jobs[0].one_pass

    @property
    def epochs_done(self) -> int:
        """Epochs that the stack has trained."""
        return self._trainer.run.next_epoch

    @property
    def note(self) -> str:
        """The last epoch's losses in words."""
        return self._trainer.note

    def members_of(self, job: Job) -> list[int]:
        """The numbers of a job's members."""
        return [k for k, member in enumerate(self._members) if member.job is job]

    def valid_rows(self, member: int) -> Tensor:
        """Validation rows of a member (B,)."""
        return self._members[member].valid

    def scaling(self, member: int) -> str:
        """How the features of a member are scaled."""
        return self._members[member].scaling

    def advance(self, until: int, after_epoch: Callable[[], None] | None = None) -> None:
        """Train until so many epochs are done.

        Args:
            until: epochs in all.
            after_epoch: called after each.

        Raises:
            TrainingError: where losses stay infinite after several repairs.
        """
        self._trainer.advance(until, after_epoch)

    def standings(self) -> dict[int, Standing]:
        """How the members stand that are still trained, by number."""
        return self._trainer.standings()

    def drop(self, members: Sequence[int]) -> None:
        """Train some members no further."""
        self._trainer.drop(members)

    def effort(self, members: Sequence[int]) -> tuple[int, float]:
        """Epochs that some members trained, and the seconds that took."""
        return max(self._trainer.epochs[k] for k in members), sum(self._trainer.seconds[k] for k in members)

    def log_likelihood(self, members: Sequence[int]) -> float | None:
        """Mean log likelihood of some members' validation rows at their best epochs; None where there is none."""
        losses = [] if self._run is None else [self._run.best_loss[k] for k in members]
        value = -sum(losses) / len(losses) if losses else -math.inf
        return value if math.isfinite(value) else None

    def conclude(self) -> list[FittedState | None]:
        """End the training.

        Returns:
            The state of each job, None where all of its members were dropped.
        """
        self._run = run = self._trainer.finish()
        net, objective, members = self._net, self._objective, self._members
        alive = [k for k in range(len(members)) if k not in self._trainer.dropped]
        if not alive:
            return [None] * len(self.jobs)
        if len(alive) < len(members):
            net, objective, run = net.select(alive), objective.select(alive), run.of(alive)
            members = [members[k] for k in alive]
        scores = score_held(net, self._X, objective, members)
        states: list[FittedState | None] = []
        start = 0
        for job in self.jobs:
            own = [member for member in members if member.job is job]
            state = conclude(job, net, run, self._X, scores, self._optimizer, start, own) if own else None
            states.append(state)
            start += len(own)
        return states


def _rates(recipes: Sequence[Recipe], device: torch.device) -> tuple[Tensor, Tensor] | None:
    """Learning rate and weight decay of each member (K,), or None where all are alike."""
    pairs = [(recipe.learning_rate, recipe.weight_decay) for recipe in recipes]
    if len(set(pairs)) == 1:
        return None
    table = torch.tensor(pairs, device=device)
    return table[:, 0], table[:, 1]
