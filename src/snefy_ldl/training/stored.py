"""The fitted state of a SnefyLDL as a model folder holds it, and back.

A new field of :class:`~snefy_ldl.training.FittedModel` that JSON can hold needs no line here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch

from snefy_ldl._internal.seen import SeenRows
from snefy_ldl.datasets.columns import read_encoder
from snefy_ldl.datasets.zeros import ZeroPolicy
from snefy_ldl.errors import InputError, ModelFileError
from snefy_ldl.networks.backbones import CustomBackbone, StackedMLP
from snefy_ldl.networks.net import SnefyNet
from snefy_ldl.persistence import CONFIG, Asked
from snefy_ldl.training import FittedModel, resolve_device
from snefy_ldl.training.guides import pack_guides, unpack_guides

#: Name of the fingerprints among the weights.
SEEN = "seen_rows"
#: Fields of a fitted state that are written in another form, or not at all; JSON holds the others as they are.
OWN_FORM = ("net", "summary", "zero_policy", "guides", "columns", "seen", "optimizer", "held_log_prob")
PLAIN = [field.name for field in fields(FittedModel) if field.name not in OWN_FORM]


def pack_state(parameters: Mapping[str, Any], state: FittedModel, arrays: dict[str, Any]) -> dict[str, Any]:
    """A fitted state as plain JSON values, its arrays added to others.

    Args:
        parameters: of the estimator; the backbone is left out, since code is never saved.
        state: what the fit returned.
        arrays: where its arrays go.

    Returns:
        What :func:`unpack_state` takes.
    """
    net, is_custom = state.net, isinstance(state.net.backbone, CustomBackbone)
    shape = {"n_members": net.n_members, "custom_backbone": is_custom, "width": net.backbone.width}
    shape["n_inputs"] = None if is_custom else net.backbone.n_inputs
    arrays |= net.state_dict()
    description = {name: getattr(state, name) for name in PLAIN} | {
        "parameters": _plain({name: value for name, value in parameters.items() if _is_written(name, value)}),
        "network": net.sizes | shape,
        "training": state.summary,
        "zero_policy": asdict(state.zero_policy),
        "columns": None if state.columns is None else state.columns.to_dict(),
    }
    if state.seen is not None:
        description["seen_rows"], arrays[SEEN] = state.seen.rows, state.seen.prints.view(np.int64)
    if state.guides is not None:
        description["guides"], more = pack_guides(state.guides)
        arrays |= more
    return description


def unpack_state(config: dict[str, Any], arrays: dict[str, Any], asked: Asked) -> tuple[dict[str, Any], FittedModel]:
    """The fitted state that :func:`pack_state` described.

    Args:
        config: the JSON of the folder.
        arrays: its tensors, no others among them.
        asked: the folder, and what else the caller gave.

    Returns:
        The estimator's parameters, and the state.

    Raises:
        ModelFileError: weights do not fit, or a backbone or a device is needed.
    """
    prints = arrays.pop(SEEN, None)  # folders may be older than fingerprints
    guides = {name: arrays.pop(name).numpy() for name in list(arrays) if name.startswith("guide.")}
    parameters = {"device": "auto"} | config["parameters"]
    parameters["hidden_sizes"] = tuple(parameters["hidden_sizes"])
    if config["network"]["custom_backbone"]:
        if asked.backbone is None:
            raise ModelFileError(
                f"{asked.folder} holds a model with a network of your own, whose code is not saved: "
                "load(folder, backbone=...) needs the module, or the function that makes it."
            )
        parameters["backbone"] = asked.backbone
    if asked.device is not None:
        parameters["device"] = asked.device
    net = _filled(_build_net(config, parameters), arrays, asked.folder)
    try:
        net.to(resolve_device(parameters["device"]))
    except (InputError, RuntimeError, AssertionError, TypeError):  # which one depends on the device
        raise ModelFileError(
            f"{asked.folder} cannot be put on device {parameters['device']!r}, which is not here; choose one: "
            "load(folder, device='cpu')."
        ) from None
    return parameters, FittedModel(
        net=net.eval(),
        **{name: config[name] for name in PLAIN if name in config},  # 0.1 wrote fewer
        summary=config["training"],
        zero_policy=ZeroPolicy(**config["zero_policy"]),
        guides=None if config.get("guides") is None else unpack_guides(config["guides"], guides, asked.guides),
        columns=read_encoder(config.get("columns")),
        seen=None if prints is None else SeenRows(prints.numpy().view(np.uint64), config["seen_rows"]),
    )


def _build_net(config: dict[str, Any], parameters: dict[str, Any]) -> SnefyNet:
    """A net of the shape that the JSON describes, its weights not yet set; only a custom backbone takes memory."""
    shape, custom = config["network"], config["network"]["custom_backbone"]
    with nullcontext() if custom else torch.device("meta"):
        body: CustomBackbone | StackedMLP
        if custom:
            reads = config["training"].get("reads")
            body = CustomBackbone(shape["n_members"], parameters["backbone"], None, shape["width"], reads)
        else:
            n_inputs = shape.get("n_inputs") or config["n_features"]
            body = StackedMLP(shape["n_members"], n_inputs, parameters["hidden_sizes"])
        sizes = ("n_labels", "n_neurons", "n_readouts", "exponent_form", "balanced")
        return SnefyNet(body, **{name: shape[name] for name in sizes})


def _filled(net: SnefyNet, arrays: Mapping[str, Any], folder: Path) -> SnefyNet:
    """The net with weights of exactly these names and shapes."""
    try:
        net.load_state_dict({name: value.clone() for name, value in arrays.items()}, assign=True)
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise ModelFileError(f"the weights in {folder} do not fit the model {CONFIG} describes: {reason}") from None
    if not all(bool(torch.isfinite(parameter).all()) for parameter in net.parameters()):
        raise ModelFileError(f"{folder} holds weights that are not finite.")
    return net


def _is_written(name: str, value: Any) -> bool:
    """Whether a parameter has a place in the file: code has none, neither a backbone's nor a guide's."""
    own_guides = name == "guides" and value is not None and not isinstance(value, str)
    return name not in ("backbone", "candidates") and not own_guides


def _plain(value: Any) -> Any:
    """Constructor arguments as JSON can hold them; None for what it cannot."""

    def convert(one: Any) -> Any:
        if isinstance(one, (np.generic, np.ndarray)):
            return one.tolist()
        return str(one) if isinstance(one, Path) else None

    return json.loads(json.dumps(value, default=convert))
