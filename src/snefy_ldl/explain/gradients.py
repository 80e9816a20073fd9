"""Which pixels or words move a prediction: gradients of the mean share, or of its interval's width, by the input.

The mean is a closed form, so its gradient is autograd's. A quantile ``q`` solves ``F(q; x) = a``, so ``dq/dx = -∂F/∂x /
f(q)``; the components of ``F`` do not depend on x, and ``F`` is one product of weights and a table of Beta laws.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
from scipy.special import betainc, betaln
from torch import Tensor, nn

from snefy_ldl._internal.rows import count_rows, move_rows, take_rows
from snefy_ldl._internal.types import Array
from snefy_ldl._internal.validation import check_confidence
from snefy_ldl.datasets.objects import Objects, describe, open_rows
from snefy_ldl.distributions import SnefySimplex
from snefy_ldl.errors import InputError
from snefy_ldl.networks.custom import Backbone

#: Rows whose gradients are taken at a time.
BLOCK = 64


def input_gradients(
    model: Any, X: Any, label: Any, of: Literal["mean", "width"] = "mean", confidence_level: float = 0.9
) -> Array:
    """How much each input number, or each word, moves one label's predicted share or its uncertainty.

    Args:
        model: a fitted :class:`snefy_ldl.SnefyLDL` with a backbone.
        X: rows as the model takes them: tensors and arrays of real numbers or 8-bit images, or texts (anything that the
            backbone looks up in an ``nn.Embedding``).
        label: name or number.
        of: "mean", the predicted share; or "width", of its central interval.
        confidence_level: of that interval.

    Returns:
        For numbers the gradient, in the shape of X, by an image's values from 0 to 1. For looked-up words (N, words):
        the gradient times the word's embedding, which is what the share would lose, to first order, without the word;
        texts of different length end in zeros.

    Raises:
        InputError: where the model has no backbone, X holds no numbers and no words that are looked up, or the law is
            of a kind whose quantiles are integrals.

    Example:
        >>> from snefy_ldl import SnefyLDL
        >>> images, D = torch.rand(30, 1, 4, 4), np.full((30, 2), 0.5)
        >>> model = SnefyLDL(backbone=nn.Sequential(nn.Flatten(), nn.Linear(16, 4)), epochs=1, random_state=0)
        >>> input_gradients(model.fit(images, D), images[:3], 0).shape
        (3, 1, 4, 4)
    """
    if getattr(model, "backbone", None) is None:
        raise InputError("input_gradients explains models with a backbone; explain tables by their columns' effects.")
    if of not in ("mean", "width"):
        raise InputError(f'of={of!r}: use "mean" or "width".')
    tail = 0.5 * (1.0 - check_confidence(confidence_level))
    rows = open_rows(X, Backbone.of(model.backbone).collate, model.n_labels_)
    device, parts = model.net_.readout.device, []
    for start in range(0, count_rows(rows), BLOCK):
        index = torch.arange(start, min(start + BLOCK, count_rows(rows)))
        batch = move_rows(rows.batch(index) if isinstance(rows, Objects) else take_rows(rows, index), device)
        parts.append(_gradients(model.net_, batch, lambda law: _target(law, label, model.label_names_, of, tail)))
    width = max(part.shape[1] for part in parts)
    if all(part.ndim == 2 for part in parts) and any(part.shape[1] < width for part in parts):
        parts = [np.pad(part, ((0, 0), (0, width - part.shape[1]))) for part in parts]
    return np.concatenate(parts)


def _gradients(net: Any, batch: Any, target: Callable[[Any], Tensor]) -> Array:
    if isinstance(batch, Tensor) and (batch.is_floating_point() or batch.dtype == torch.uint8):
        x = batch.float() / 255.0 if batch.dtype == torch.uint8 else batch.float()
        x = x.detach().clone().requires_grad_(True)
        (gradient,) = torch.autograd.grad(target(net(x)), x)
        return np.asarray(gradient.cpu().numpy(), dtype=np.float64)
    tables = [_first_table(module) for module in net.backbone.copies]
    looked_up: list[Tensor] = []

    def keep(_module: nn.Module, _inputs: Any, output: Tensor) -> Tensor:
        leaf = output.detach().clone().requires_grad_(True)
        looked_up.append(leaf)
        return leaf

    hooks = [table.register_forward_hook(keep) for table in tables if table is not None]
    try:
        value = target(net(batch))
    finally:
        for hook in hooks:
            hook.remove()
    if not looked_up or looked_up[0].dim() != 3:
        what = describe(batch, rows=True)
        raise InputError(f"no gradient by {what}: it holds no real numbers, and no words that are looked up.")
    gradients = torch.autograd.grad(value, looked_up, allow_unused=True)
    moved = sum((leaf * part).sum(-1) for leaf, part in zip(looked_up, gradients) if part is not None)
    return np.asarray(moved.detach().cpu().numpy(), dtype=np.float64)  # type: ignore[union-attr]


def _first_table(module: nn.Module) -> nn.Embedding | None:
    return next((part for part in module.modules() if isinstance(part, nn.Embedding)), None)


def _target(law: Any, label: Any, names: Any, of: str, tail: float) -> Tensor:
    """A number whose gradient is that of the mean, or of the width, summed over the rows (each sees only itself)."""
    if not isinstance(law, SnefySimplex) or law.parts.scale is not None or law.has_atoms:
        raise InputError("input_gradients needs a model without a centre and without modelled zeros.")
    label = law.named(names).label_number(label)
    if of == "mean":
        return law.mean[:, label].sum()
    weights, alpha = law.weights(), law.concentration.detach().cpu().numpy()  # (N, P), (P, L)
    a, b = alpha[:, label], alpha.sum(1) - alpha[:, label]
    with torch.no_grad():
        ends = law.quantiles([tail, 1.0 - tail])[:, label].cpu().numpy()  # (N, 2)
    c = weights.detach().cpu().numpy()
    factor = np.zeros_like(c)
    for end, sign in ((1, 1.0), (0, -1.0)):
        q = ends[:, end, None]
        density = (c * np.exp((a - 1.0) * np.log(q) + (b - 1.0) * np.log1p(-q) - betaln(a, b))).sum(1, keepdims=True)
        factor -= sign * betainc(a, b, q) / density
    return (weights * torch.as_tensor(factor, device=weights.device)).sum()
