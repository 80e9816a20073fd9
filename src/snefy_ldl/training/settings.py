"""Everything a fit must know beside its data: the estimator's parameters, checked, as training takes them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from snefy_ldl._internal.validation import ZeroOption, check_count, check_number
from snefy_ldl.errors import InputError
from snefy_ldl.networks.custom import Backbone, BackboneLike
from snefy_ldl.networks.scaling import Scaling

#: By what labels are divided: "geometric" is the training labels' geometric mean; "auto" leaves it to validation rows.
CentreOption = Literal["auto", "geometric"] | None | Any
#: Point learners whose predictions the network may see: "auto" tries the library's own; None uses none.
GuideOption = Literal["auto"] | None | Any


@dataclass(frozen=True)
class Settings:
    """Parameters of one model; :class:`snefy_ldl.estimator.SnefyLDL` says what each of them means.

    Raises:
        InputError: where one of them breaks its rule, which the message names.

    Example:
        >>> Settings(epochs=0)
        Traceback (most recent call last):
        ...
        snefy_ldl.errors.InputError: epochs must be a whole number >= 1; got 0.
    """

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
    zeros: ZeroOption = "auto"
    centre: CentreOption = "auto"
    guides: GuideOption = "auto"
    device: str = "auto"
    random_state: Any = None
    verbose: int = 0
    recipe: Literal["default", "paper"] = "default"
    checkpoint_dir: str | Path | None = None

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
        if self.recipe not in ("default", "paper"):
            raise InputError(f'recipe={self.recipe!r}: use "default" or "paper".')
        scalings = {"auto", "unit", "pooled", True, False, None}
        if not isinstance(self.standardize, Hashable) or self.standardize not in scalings:
            raise InputError(f'standardize={self.standardize!r}: use "auto", "unit", "pooled" or False.')
        if isinstance(self.centre, str) or self.centre is None:
            if self.centre not in ("auto", "geometric", None):
                raise InputError(f'centre={self.centre!r}: use "auto", "geometric", None or one number a label.')
        elif not (np.asarray(self.centre, dtype=np.float64) > 0.0).all():
            raise InputError(f"centre must hold positive numbers, one a label; got {self.centre!r}.")
        is_text = isinstance(self.guides, str)
        if (is_text and self.guides != "auto") or not isinstance(self.guides, (Iterable, type(None))):
            raise InputError(f'guides={self.guides!r}: use "auto", None or a list of regressors.')
        resolve_device(self.device)
        if not isinstance(self.hidden_sizes, Iterable):
            raise InputError(f"hidden_sizes={self.hidden_sizes!r}: give one whole number a layer, (64,) say.")
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
    def centres(self) -> list[Any]:
        """The centres to try: None, ``"geometric"`` or an array (L,)."""
        if self.is_paper or self.centre is None:
            return [None]
        if isinstance(self.centre, str):
            if self.centre == "geometric":
                return ["geometric"]
            return [None, "geometric"] if self.validation_fraction > 0 and self.backbone is None else [None]
        return [np.asarray(self.centre, dtype=np.float64)]

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
