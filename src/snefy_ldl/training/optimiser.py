"""The optimiser of stacked members: AdamW whose rates may differ between them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from snefy_ldl.networks.backbones import CustomBackbone
from snefy_ldl.networks.net import SnefyNet
from snefy_ldl.training.policy import Schedule

#: Decay of Adam's two moments, and what is added to the root of the second.
FIRST_DECAY, SECOND_DECAY, ROOT_MARGIN = 0.9, 0.999, 1e-8
FUSED: Any = {"beta1": FIRST_DECAY, "beta2": SECOND_DECAY, "eps": ROOT_MARGIN, "amsgrad": False, "maximize": False}


def copy_of_member(name: str) -> int | None:
    """Which member a custom backbone's parameter belongs to; None for stacked parameters."""
    prefix = "backbone.copies."
    return int(name[len(prefix) :].split(".")[0]) if name.startswith(prefix) else None


class StackedAdamW:
    """AdamW for a stack of members, with the least work per step that Python allows.

    A group either shares one ``lr`` and ``weight_decay`` (then torch's fused kernel does it all), or gives ``rates``
    and ``decays``: for each parameter a tensor that broadcasts against it, so that members may differ; a step's rate
    is then ``lr * rates``. It is not a ``torch.optim.Optimizer`` because that class's hooks cost more than the update
    of models this small.

    Args:
        groups: dicts with ``params``, ``peak`` (the rate a schedule scales), ``lr``, and the above.
        current: the groups' rates on the device; on a GPU each ``lr`` is a view of it.

    Attributes:
        before_step: called before every update, where workers exchange their gradients; None calls nothing.
    """

    def __init__(self, groups: list[dict[str, Any]], current: Tensor) -> None:
        self.param_groups, self.current = groups, current
        self.state: dict[Tensor, dict[str, Tensor]] = {}
        self.before_step: Callable[[], None] | None = None
        for group in groups:
            for parameter in group["params"]:
                self.state[parameter] = {
                    "step": torch.zeros((), device=parameter.device),
                    "exp_avg": torch.zeros_like(parameter),
                    "exp_avg_sq": torch.zeros_like(parameter),
                }

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    def forget_layout(self) -> None:
        """Look anew at which parameters have gradients: a backbone was frozen, or thawed."""
        for group in self.param_groups:
            group.pop("kept", None)

    @torch.no_grad()
    def step(self) -> None:
        """One update of every parameter that has a gradient."""
        if self.before_step is not None:
            self.before_step()
        for group in self.param_groups:
            if "rates" in group:
                self._step_apart(group)
            else:
                self._step_together(group)

    def _step_together(self, group: dict[str, Any]) -> None:
        kept = group.get("kept")
        if kept is None:
            params = [parameter for parameter in group["params"] if parameter.grad is not None]
            states = [self.state[parameter] for parameter in params]
            moments = ([state[key] for state in states] for key in ("exp_avg", "exp_avg_sq", "step"))
            kept = group["kept"] = (params, *moments)
        params, first, second, steps = kept
        if not params:
            return
        torch._foreach_add_(steps, 1.0)
        gradients = [parameter.grad for parameter in params]
        rates = {"lr": group["lr"], "weight_decay": group["weight_decay"]}
        torch._fused_adamw_(params, gradients, first, second, [], steps, **rates, **FUSED)

    def _step_apart(self, group: dict[str, Any]) -> None:
        for parameter, rate, decay in zip(group["params"], group["rates"], group["decays"]):
            if parameter.grad is None:
                continue
            state, grad = self.state[parameter], parameter.grad
            state["step"] += 1
            state["exp_avg"].lerp_(grad, 1.0 - FIRST_DECAY)
            state["exp_avg_sq"].mul_(SECOND_DECAY).addcmul_(grad, grad, value=1.0 - SECOND_DECAY)
            size = group["lr"] * rate
            root = (state["exp_avg_sq"] / (1.0 - SECOND_DECAY ** state["step"])).sqrt_().add_(ROOT_MARGIN)
            parameter.mul_(1.0 - size * decay)
            parameter.sub_(size / (1.0 - FIRST_DECAY ** state["step"]) * state["exp_avg"] / root)


def make_optimizer(
    net: SnefyNet,
    schedule: Schedule,
    rates: tuple[Tensor, Tensor] | None = None,
) -> StackedAdamW:
    """AdamW with decay on the network's matrices, and a rate of their own for the exponents.

    Each group carries its ``peak`` rate, which the schedule scales.

    Args:
        net: what to train.
        schedule: rates and decay of all members.
        rates: learning rate and weight decay of each member (K,), where they differ.

    Returns:
        The optimiser, its moments zero.
    """
    learning_rate, weight_decay = schedule.learning_rate, schedule.weight_decay
    exponents: list[tuple[str, Tensor]] = []
    matrices: list[tuple[str, Tensor]] = []
    rest: list[tuple[str, Tensor]] = []
    apart = _backbone_groups(net, learning_rate, weight_decay)
    for name, parameter in net.named_parameters():
        if apart and copy_of_member(name) is not None:
            continue
        far, undecayed = name in net.FAR_TRAVELLING, name in net.NOT_DECAYED or "bias" in name
        (exponents if far else rest if undecayed else matrices).append((name, parameter))
    device = net.readout.device
    base = learning_rate if rates is None else 1.0
    groups: list[dict[str, Any]] = []
    for named, decay, factor in (
        (matrices, weight_decay, 1.0),
        (rest, 0.0, 1.0),
        (exponents, 0.0, schedule.exponent_rate),
    ):
        if not named:
            continue
        group: dict[str, Any] = {"params": [parameter for _, parameter in named], "peak": base * factor}
        if rates is None:
            group |= {"weight_decay": decay}
            alike = next((g for g in groups if (g["peak"], g["weight_decay"]) == (base * factor, decay)), None)
            if alike is not None:  # one call of the kernel instead of two
                alike["params"] += group["params"]
                continue
        else:
            group |= {
                "rates": [_shaped(rates[0], name, p) for name, p in named],
                "decays": [
                    _shaped(rates[1] if decay or named is matrices else torch.zeros_like(rates[1]), name, p)
                    for name, p in named
                ],
            }
        groups.append(group)
    groups += apart
    # On a GPU the rates are one small array there, which a captured graph fills from a table.
    current = torch.tensor([group["peak"] for group in groups], dtype=torch.float32, device=device)
    for number, group in enumerate(groups):
        group["lr"] = current[number] if device.type == "cuda" else float(group["peak"])
    return StackedAdamW(groups, current)


def _backbone_groups(net: SnefyNet, learning_rate: float, weight_decay: float) -> list[dict[str, Any]]:
    """Groups of a backbone with a rate or decay of its own, the same for all members; none where it has neither."""
    settings = net.backbone.settings if isinstance(net.backbone, CustomBackbone) else None
    if settings is None or (settings.learning_rate is None and settings.weight_decay is None):
        return []
    rate = learning_rate if settings.learning_rate is None else settings.learning_rate
    decay = weight_decay if settings.weight_decay is None else settings.weight_decay
    parameters = [*net.backbone.parameters()]
    matrices = [parameter for parameter in parameters if parameter.dim() > 1]
    others = [parameter for parameter in parameters if parameter.dim() <= 1]  # biases, and factors of normalisations
    parts = ((matrices, decay), (others, 0.0))
    return [{"params": part, "peak": float(rate), "weight_decay": float(decay)} for part, decay in parts if part]


def _shaped(values: Tensor, name: str, parameter: Tensor) -> Tensor:
    member = copy_of_member(name)
    return values[member] if member is not None else values.view(-1, *[1] * (parameter.dim() - 1))


def set_rate(optimizer: StackedAdamW, share: float) -> None:
    """Put every group at a share of its peak rate; on a CPU, where a rate is a plain number."""
    for group in optimizer.param_groups:
        group["lr"] = group["peak"] * share


def rate_table(optimizer: StackedAdamW, shares: list[float]) -> Tensor:
    """Rates of every group (steps, groups) for a graph to read, on the device."""
    peaks = torch.tensor([group["peak"] for group in optimizer.param_groups])
    return (torch.tensor(shares)[:, None] * peaks).to(optimizer.current)
