"""The recipe: how to train."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from snefy_ldl.training.settings import Settings
from snefy_ldl.training.vote_settings import VoteSettings

#: Exponents learn this many times faster than the rest.
EXPONENT_RATE = 20.0
#: ... and, where labels may be absent, exponents and presence this many times.
PRESENCE_RATE = 5.0
#: A pass of ``partial_fit`` runs at this share of the learning rate.
ONE_PASS_RATE = 0.2
#: Largest numbers of rows for which a step takes 16, 32, ... of them; beyond the last it takes LARGEST_BATCH.
#: (From 100,000 rows on larger batches were better on new rows: 7.37, 7.45, 7.51 and 7.52 nats with 256, 512, 1,024
#: and 2,048 of a million synthetic rows after 10 epochs; 3.44 and 3.56 with 256 and 1,024 of 300,000 others.)
BATCH_LIMITS = {16: 200, 32: 500, 64: 10_000, 128: 40_000, 256: 85_000, 1024: 400_000}
LARGEST_BATCH = 2048


@dataclass(frozen=True)
class Recipe:
    """How to train: everything about the optimiser.

    Args:
        epochs: passes over the training rows.
        batch_size: rows a step.
        learning_rate: the peak rate.
        exponent_rate: the exponents' rate in units of ``learning_rate``; they live on a log scale and must travel far.
        weight_decay: AdamW's, on the network's matrices only.
        schedule: ``"one_cycle"`` (warm up, then cosine to zero) or ``"constant"``.
        patience: epochs without a better validation likelihood before a member stops; None never stops early.
        warm_up: part of the epochs in which a one-cycle rate grows.

    Example:
        >>> [round(Recipe(epochs=1, batch_size=1, learning_rate=1.0).rate(p), 2) for p in (0.0, 0.15, 0.3, 0.65)]
        [0.04, 0.5, 1.0, 0.5]
    """

    epochs: int
    batch_size: int
    learning_rate: float
    exponent_rate: float = EXPONENT_RATE
    weight_decay: float = 0.0
    schedule: Literal["one_cycle", "constant"] = "one_cycle"
    patience: int | None = None
    warm_up: float = 0.3

    def rate(self, progress: float) -> float:
        """Share of the peak rate at ``progress`` in [0, 1)."""
        if self.schedule == "constant":
            return 1.0
        if progress < self.warm_up:
            return max(0.04, progress / self.warm_up)
        return max(1e-3, 0.5 * (1.0 + math.cos(math.pi * (progress - self.warm_up) / (1.0 - self.warm_up))))


def make_recipe(settings: Settings, n_rows: int, votes: VoteSettings | None = None, one_pass: bool = False) -> Recipe:
    """The recipe of some settings.

    Args:
        settings: of the model.
        n_rows: rows that the model may see.
        votes: where votes are trained on, how.
        one_pass: for one pass at a constant rate (``partial_fit``).

    Returns:
        The recipe.

    Example:
        >>> make_recipe(Settings(), 1000).batch_size, make_recipe(Settings(), 100).batch_size
        (64, 16)
    """
    size = settings.batch_size
    if size == "auto":
        rows = n_rows * (1.0 - settings.validation_fraction)
        size = next((size for size, limit in BATCH_LIMITS.items() if rows < limit), LARGEST_BATCH)
    rate, exponent_rate = (1.0, 1.0) if settings.is_paper else (ONE_PASS_RATE if one_pass else 1.0, EXPONENT_RATE)
    if votes is not None and not settings.is_paper:
        # Votes are a noisier teacher than shares, and a few of them say nothing about concentrations.
        rate, exponent_rate = votes.rate * rate, votes.exponent_rate
    return Recipe(
        epochs=1 if one_pass else int(settings.epochs),
        batch_size=int(size),
        learning_rate=float(settings.learning_rate) * rate,
        exponent_rate=exponent_rate,
        weight_decay=float(settings.weight_decay),
        schedule="constant" if settings.is_paper or one_pass else "one_cycle",
        patience=settings.patience,
    )
