"""Parameters of a fit, checked, and where training on votes differs."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from snefy_ldl._internal.validation import check_choice, check_count, check_number
from snefy_ldl.datasets.zeros import ZeroOption
from snefy_ldl.errors import InputError
from snefy_ldl.networks.custom import Backbone, BackboneLike
from snefy_ldl.networks.scaling import Scaling

#: Point learners whose predictions the network may see: "auto" tries the library's own; None uses none.
GuideOption = Literal["auto"] | None | Any


#: What a network sees.
Inputs = Literal["features", "guides", "both"]
#: What a candidate is called after its inputs.
TITLES: dict[Inputs, str] = {"features": "features", "guides": "guides", "both": "features and guides"}


@dataclass(frozen=True)
class CandidateSpec:
    """One way to fit a model.

    Args:
        inputs: what the network sees: the ``"features"``, the ``"guides"`` (predictions of quick learners), or
            ``"both"``.
        scaling: how these are scaled; see :mod:`snefy_ldl.networks.scaling`.
        n_members: networks that are compared; the policy sets it.
        folds: whether each member leaves out another part of the rows, so that every row is a validation row, and all
            stop at one common epoch; the policy sets it.

    Raises:
        InputError: inputs or scaling are none of these.

    Example:
        >>> CandidateSpec("both", "pooled").name
        'features and guides, pooled scaling'
    """

    inputs: Inputs = "features"
    scaling: Scaling = "unit"
    n_members: int = 1
    folds: bool = False

    def __post_init__(self) -> None:
        if self.inputs not in TITLES or self.scaling not in ("unit", "pooled", "none"):
            raise InputError(
                f"no candidate sees inputs={self.inputs!r} with scaling={self.scaling!r}: inputs are "
                f'{", ".join(map(repr, TITLES))}, scalings "unit", "pooled" or "none".'
            )

    @property
    def name(self) -> str:
        """The candidate in words."""
        return TITLES[self.inputs] + (", pooled scaling" if self.scaling == "pooled" else "")


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
    candidates: Sequence[Any] | None = None


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
        if self.candidates is not None and not all(isinstance(one, CandidateSpec) for one in self.candidates):
            raise InputError(
                'candidates: give a list such as [CandidateSpec("guides"), CandidateSpec("both", "pooled")].'
            )
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
