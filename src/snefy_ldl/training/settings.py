"""Parameters of a fit, checked, and the recipe that follows from them: rates, batches and the start on votes."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from snefy_ldl._internal.validation import ZeroOption, check_choice, check_count, check_number
from snefy_ldl.errors import InputError
from snefy_ldl.networks.custom import Backbone, BackboneLike
from snefy_ldl.networks.scaling import Scaling

#: Point learners whose predictions the network may see: "auto" tries the library's own; None uses none.
GuideOption = Literal["auto"] | None | Any
#: Exponents learn this many times faster than the rest.
EXPONENT_RATE = 20.0
#: A pass of ``partial_fit`` runs at this share of the learning rate.
ONE_PASS_RATE = 0.2
#: Largest numbers of rows for which a step takes 16, 32, ... of them; beyond the last it takes LARGEST_BATCH.
#: (From 100,000 rows on larger batches were better on new rows: 7.37, 7.45, 7.51 and 7.52 nats with 256, 512, 1,024
#: and 2,048 of a million synthetic rows after 10 epochs; 3.44 and 3.56 with 256 and 1,024 of 300,000 others.)
BATCH_LIMITS = {16: 200, 32: 500, 64: 10_000, 128: 40_000, 256: 85_000, 1024: 400_000}
LARGEST_BATCH = 2048
#: Of shares, steps of 64 rows become steps of 128 at so many times the rate: as good, in two thirds of the time.
DOUBLED_BATCH, DOUBLED_RATE = 64, 1.6


@dataclass(eq=False, repr=False, kw_only=True)
class Parameters:
    """Parameters of one model; :class:`snefy_ldl.snefy.SnefyLDL` says what each of them means."""

    n_neurons: int = 64
    n_readouts: int = 32
    hidden_sizes: tuple[int, ...] = (64,)
    backbone: BackboneLike | None = None
    n_members: int | Literal["auto"] = "auto"
    epochs: int = 30
    batch_size: int | Literal["auto"] = "auto"
    learning_rate: float = 5e-3
    weight_decay: float = 1.0
    validation_fraction: float = 0.15
    patience: int | None = None
    standardize: str | bool | None = "auto"
    zeros: ZeroOption = "shrink"
    guides: GuideOption = "auto"
    device: str = "auto"
    random_state: Any = None
    verbose: int = 0
    recipe: Literal["default", "paper"] = "default"
    warm_start: bool = False
    checkpoint_dir: str | Path | None = None
    columns: Any = "auto"


@dataclass(eq=False, kw_only=True)
class Settings(Parameters):
    """Parameters of one model, checked.

    Raises:
        InputError: where one of them breaks its rule, which the message names.

    Example:
        >>> Settings(epochs=0)
        Traceback (most recent call last):
        ...
        snefy_ldl.errors.InputError: epochs must be a whole number >= 1; got 0.
    """

    group_effects: Literal["auto"] | None = None

    def __post_init__(self) -> None:
        for name in ("n_neurons", "n_readouts", "epochs"):
            check_count(name, getattr(self, name))
        for name in ("n_members", "batch_size"):
            if getattr(self, name) != "auto":
                check_count(f'{name}, unless "auto",', getattr(self, name))
        check_number("learning_rate", self.learning_rate, strict=True)
        check_number("weight_decay", self.weight_decay)
        if check_number("validation_fraction", self.validation_fraction) >= 1.0:
            raise InputError(f"validation_fraction must lie in [0, 1); got {self.validation_fraction!r}.")
        if self.patience is not None:
            check_count("patience, unless None,", self.patience)
        check_choice("recipe", self.recipe, ("default", "paper"))
        check_choice("group_effects", self.group_effects, ("auto", None))
        scalings = {"auto", "unit", "pooled", True, False, None}
        if not isinstance(self.standardize, Hashable) or self.standardize not in scalings:
            raise InputError(f'standardize={self.standardize!r}: use "auto", "unit", "pooled" or False.')
        is_text = isinstance(self.guides, str)
        if (is_text and self.guides != "auto") or not isinstance(self.guides, (Iterable, type(None))):
            raise InputError(f'guides={self.guides!r}: use "auto", None or a list of regressors.')
        resolve_device(self.device)
        if not isinstance(self.hidden_sizes, Iterable):
            raise InputError(f"hidden_sizes={self.hidden_sizes!r}: give one whole number per layer, (64,) say.")
        for width in self.hidden_sizes:
            check_count("each of hidden_sizes", width)

    @property
    def shares_backbone(self) -> bool:
        """Whether members share one backbone of the user's own."""
        return isinstance(self.backbone, Backbone) and self.backbone.shared

    @property
    def is_paper(self) -> bool:
        """Whether the model is trained as the paper describes it."""
        return self.recipe == "paper"

    @property
    def scalings(self) -> list[Scaling]:
        """The feature scalings to try; the validation rows decide where there are two."""
        if self.backbone is not None or self.standardize in (False, None):
            return ["none"]
        if self.standardize == "pooled":
            return ["pooled"]
        if self.standardize == "auto" and self.validation_fraction > 0:
            return ["unit", "pooled"]
        return ["unit"]

    @property
    def torch_device(self) -> torch.device:
        """Where to train."""
        return resolve_device(self.device)


def resolve_device(device: str) -> torch.device:
    """A device by name.

    Args:
        device: ``"auto"`` is a GPU where there is one; any other name is torch's.

    Returns:
        The device.

    Raises:
        InputError: there is no such device on this machine.

    Example:
        >>> resolve_device("cpu")
        device(type='cpu')
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        place = torch.device(device)
        torch.zeros(1, device=place).item()  # a device that cannot hold a number fails here, before any work
    except (RuntimeError, TypeError, AssertionError, NotImplementedError) as error:
        there = f"{torch.cuda.device_count()} CUDA device(s)" if torch.cuda.is_available() else "no CUDA"
        raise InputError(
            f'device={device!r} cannot be used here ({there}): {str(error).splitlines()[0]} Use "auto" or "cpu".'
        ) from None
    return place


@dataclass(frozen=True)
class VoteSettings:
    """Where training on votes differs from training on label distributions.

    Args:
        rate: learning rate in units of the estimator's.
        exponent_rate: the exponents' rate in units of that.
        sharpness: neurons start at draws of each item's posterior, under one Dirichlet for all items, with this many
            times its concentration; 1 is the posterior itself.
        concentration_range: of the neurons at the start, in units of the start labels' own concentration.
    """

    rate: float = 0.4
    exponent_rate: float = 20.0
    sharpness: float = 1.0
    concentration_range: tuple[float, float] = (1.0, 32.0)


def vote_settings(votes: float) -> VoteSettings:
    """The settings for so many votes per item, on average.

    A start takes from the votes what they can tell. One vote an item says nothing about how far items differ beyond
    their features: neurons then start wide, at draws only a little sharper than the posterior. The more votes, the
    nearer they start to the posterior means, and the higher their concentrations may be. Settled on development rows
    of four data sets, see ``benchmarks/votes.py tune``.

    Args:
        votes: per item, on average.

    Returns:
        The settings.

    Example:
        >>> vote_settings(1).concentration_range, vote_settings(100).concentration_range
        ((0.5, 1.0), (1.0, 32.0))
    """
    return VoteSettings(
        exponent_rate=float(round(1.0 + 19.0 * (votes - 1.0) / (votes + 10.0))),
        sharpness=min(16.0, 4.0 * votes**2),
        concentration_range=(min(1.0, 0.5 * votes), max(1.0, min(32.0, votes**2))),
    )


@dataclass(frozen=True)
class Recipe:
    """How to train: everything about the optimiser.

    Args:
        epochs: passes over the training rows.
        batch_size: rows per step.
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


def make_recipe(
    settings: Settings,
    n_rows: int,
    votes: VoteSettings | None = None,
    one_pass: bool = False,
) -> Recipe:
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
        (128, 16)
    """
    size = settings.batch_size
    rate, exponent_rate = (1.0, 1.0) if settings.is_paper else (ONE_PASS_RATE if one_pass else 1.0, EXPONENT_RATE)
    if size == "auto":
        rows = n_rows * (1.0 - settings.validation_fraction)
        size = next((size for size, limit in BATCH_LIMITS.items() if rows < limit), LARGEST_BATCH)
        plain = votes is None and settings.backbone is None and not (settings.is_paper or one_pass)
        if size == DOUBLED_BATCH and plain:
            size, rate = 2 * size, DOUBLED_RATE
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
