"""When an epoch goes wrong: what counts as wrong, what is said, and when to give up."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from snefy_ldl.errors import TrainingError, TrainingWarning
from snefy_ldl.networks.net import SnefyNet
from snefy_ldl.networks.scaling import ScaledFeatures
from snefy_ldl.training.state import Run

#: How often a fit may undo an epoch and halve its learning rate before it gives up.
MAX_REPAIRS = 8


def is_sound(net: SnefyNet, loss: Tensor, validation: Tensor | None) -> bool:
    """Whether parameters, training losses and validation losses are all finite."""
    sizes = torch.stack([norm.double() for norm in torch._foreach_norm([*net.parameters()])])
    checks = torch.isfinite(sizes).all() & torch.isfinite(loss).all()
    return bool(checks if validation is None else checks & torch.isfinite(validation).all())


def count_repair(run: Run, loss: Tensor, diagnosis: str) -> None:
    """Count one more repair in the run, and say so.

    Args:
        run: the fit so far.
        loss: of each member (K,), in the epoch that was undone.
        diagnosis: what is known about the trouble.

    Raises:
        TrainingError: where it was one too many.
    """
    run.repairs += 1
    member = int(torch.nonzero(~torch.isfinite(loss)).flatten()[0]) if not torch.isfinite(loss).all() else 0
    what = f"epoch {run.next_epoch}: the loss of member {member} was not finite"
    if run.repairs > MAX_REPAIRS:
        raise TrainingError(f"{what} {run.repairs} times in a row of repairs. {diagnosis}")
    warnings.warn(
        f"{what}; the epoch was undone and the learning rate halved (repair {run.repairs} of {MAX_REPAIRS}).",
        TrainingWarning,
        stacklevel=8,  # the line that called SnefyLDL.fit
    )


def diagnose(net: SnefyNet, X: Any, learning_rate: float) -> str:
    """What is known about a net that does not train.

    Args:
        net: K members.
        X: features of all rows.
        learning_rate: as it is now.

    Returns:
        A sentence with the largest feature and exponent, and what to try.
    """
    facts = []
    features = X.values if isinstance(X, ScaledFeatures) else X
    if isinstance(features, Tensor):
        facts.append(f"largest |feature| {float(features.abs().max()):.3g}")
    facts.append(f"largest exponent {float(net.exponents.detach().max()):.3g}")
    return (
        f"Diagnosis: {', '.join(facts)}, learning rate now {learning_rate:.2g}. "
        'Scale the features (standardize="auto"), lower learning_rate, or check the backbone for NaN.'
    )
