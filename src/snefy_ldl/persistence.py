"""From a fitted state to a model folder and back; the folder itself is :mod:`snefy_ldl.files.models`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from snefy_ldl.errors import ModelFileError
from snefy_ldl.files.models import CONFIG, load_calibration, read_config, read_model, save_calibration, write_model
from snefy_ldl.learners.guides import pack_guides, unpack_guides
from snefy_ldl.networks.backbones import BackboneLike, CustomBackbone, StackedMLP
from snefy_ldl.networks.net import SnefyNet
from snefy_ldl.training import FittedState
from snefy_ldl.validation import ZeroPolicy

__all__ = ["load_calibration", "load_state", "read_config", "save_calibration", "save_state"]


def save_state(folder: Path, parameters: Mapping[str, Any], state: FittedState) -> Path:
    """Write a fitted model into a folder, replacing one that is there.

    Args:
        folder: made where it is missing.
        parameters: of the estimator; the backbone is left out, since code is never saved.
        state: what the fit returned.

    Returns:
        The folder.
    """
    net = state.net
    description = {
        "parameters": {name: _plain(value) for name, value in parameters.items() if name not in ("backbone", "guides")},
        "network": {
            "n_members": net.n_members,
            "n_neurons": net.raw_exponents.shape[1],
            "n_labels": net.raw_exponents.shape[2],
            "n_readouts": net.readout.shape[1],
            "exponent_form": net.exponent_form,
            "balanced": net.balanced,
            "custom_backbone": isinstance(net.backbone, CustomBackbone),
            "width": net.backbone.width,
            "n_inputs": net.backbone.n_inputs if isinstance(net.backbone, StackedMLP) else None,
        },
        "label_names": list(state.label_names),
        "labels_were_named": state.labels_were_named,
        "feature_names": None if state.feature_names is None else [str(name) for name in state.feature_names],
        "n_features": state.n_features,
        "zero_policy": asdict(state.zero_policy),
        "scaling": state.scaling,
        "training": state.summary,
        "history": state.history,
    }
    tensors = net.state_dict()
    description["inputs"] = state.inputs
    if state.guides is not None:
        description["guides"], arrays = pack_guides(state.guides)
        tensors |= {name: torch.as_tensor(np.ascontiguousarray(array)) for name, array in arrays.items()}
    return write_model(folder, description, tensors)


def load_state(
    folder: Path, backbone: BackboneLike | None = None, guides: Sequence[Any] | None = None
) -> tuple[dict[str, Any], FittedState]:
    """Read a fitted model back.

    Args:
        folder: where it is.
        backbone: needed again when the model was fitted with one.
        guides: fitted guides, needed again where they could not be saved.

    Returns:
        The estimator's parameters without its backbone, and the fitted state, on the CPU.

    Raises:
        ModelFileError: where a file is missing, damaged, foreign, of a newer version, or needs a backbone.
    """
    config, tensors = read_model(folder)
    try:
        parameters = dict(config["parameters"])
        parameters["hidden_sizes"] = tuple(parameters["hidden_sizes"])
        if config["network"]["custom_backbone"] and backbone is None:
            raise ModelFileError(
                "the model was fitted with a custom backbone, whose code is not saved: load(folder, backbone=...) "
                "needs it."
            )
        net = _build_net(config, parameters["hidden_sizes"], backbone)
        weights = {name: value for name, value in tensors.items() if not name.startswith("guide.")}
        weights.setdefault("centre", torch.ones_like(net.centre))  # models of 0.1 have none
        _fill(net, weights, folder)
        seen = None
        if config.get("guides") is not None:
            arrays = {name: value.numpy() for name, value in tensors.items() if name.startswith("guide.")}
            seen = unpack_guides(config["guides"], arrays, guides)
        return parameters, FittedState(
            net=net.eval(),
            scaling=config["scaling"],
            history=config["history"],
            summary=config["training"],
            zero_policy=ZeroPolicy(**config["zero_policy"]),
            label_names=config["label_names"],
            labels_were_named=config["labels_were_named"],
            n_features=config["n_features"],
            feature_names=config["feature_names"],
            centre=net.centre[0].numpy() if net.has_centre else None,
            inputs=config.get("inputs", "features"),
            guides=seen,
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ModelFileError(f"{folder / CONFIG} is damaged: {type(error).__name__} {error}.") from None


def _build_net(config: dict[str, Any], hidden_sizes: tuple[int, ...], backbone: BackboneLike | None) -> SnefyNet:
    """A net of the shape that the JSON describes, its weights not yet set."""
    shape = config["network"]
    body: StackedMLP | CustomBackbone
    if backbone is None:
        body = StackedMLP(shape["n_members"], shape.get("n_inputs", config["n_features"]), hidden_sizes)
    else:
        body = CustomBackbone.with_width(shape["n_members"], backbone, shape["width"])
    return SnefyNet(
        body, shape["n_labels"], shape["n_neurons"], shape["n_readouts"], shape["exponent_form"], shape["balanced"]
    )


def _fill(net: SnefyNet, tensors: dict[str, Tensor], folder: Path) -> None:
    try:
        net.load_state_dict(tensors)
    except RuntimeError as error:
        raise ModelFileError(f"the weights in {folder} do not fit the model {CONFIG} describes: {error}") from None
    if not all(bool(torch.isfinite(parameter).all()) for parameter in net.parameters()):
        raise ModelFileError(f"{folder} holds weights that are not finite.")


def _plain(value: Any) -> Any:
    """A constructor argument as JSON can hold it; None where it cannot."""
    if isinstance(value, (bool, int, float, str)) or value is None:
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return value.tolist()
    return str(value) if isinstance(value, Path) else None
