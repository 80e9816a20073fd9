"""The fitted state of a SnefyLDL as a model folder holds it, and back."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from snefy_ldl._internal.seen import SeenRows
from snefy_ldl.datasets.columns import read_encoder
from snefy_ldl.datasets.zeros import ZeroPolicy
from snefy_ldl.errors import InputError, ModelFileError, SnefyError
from snefy_ldl.networks.backbones import CustomBackbone, StackedMLP
from snefy_ldl.networks.custom import Backbone, BackboneLike
from snefy_ldl.networks.head import Features
from snefy_ldl.networks.net import SnefyNet
from snefy_ldl.persistence import CONFIG, Asked, check_shapes
from snefy_ldl.training import FittedModel, resolve_device
from snefy_ldl.training.guides import pack_guides, unpack_guides

#: Name of the fingerprints among the weights.
SEEN = "seen_rows"


def pack_state(parameters: Mapping[str, Any], state: FittedModel, arrays: dict[str, Any]) -> dict[str, Any]:
    """A fitted state as plain JSON values, its arrays put beside others.

    Args:
        parameters: of the estimator; the backbone is left out, since code is never saved.
        state: what the fit returned.
        arrays: where its arrays go.

    Returns:
        What :func:`unpack_state` takes.
    """
    net = state.net
    description = {
        "parameters": {name: _plain(value) for name, value in parameters.items() if _is_written(name, value)},
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
        "candidates": state.candidates,
        "inputs": state.inputs,
        "columns": None if state.columns is None else state.columns.to_dict(),
    }
    arrays |= net.state_dict()
    if state.seen is not None:
        description["seen_rows"] = state.seen.rows
        arrays[SEEN] = state.seen.prints.view(np.int64)
    if state.guides is not None:
        description["guides"], more = pack_guides(state.guides)
        arrays |= more
    return description


def unpack_state(
    config: dict[str, Any], arrays: dict[str, Any], asked: Asked, free: tuple[str, ...] = ()
) -> tuple[dict[str, Any], FittedModel]:
    """The fitted state that :func:`pack_state` described, on the CPU.

    Args:
        config: the JSON of the folder.
        arrays: all its tensors.
        asked: the folder, and what else the caller gave.
        free: patterns of names of tensors that are not the state's.

    Returns:
        The estimator's parameters without its backbone, and the state.

    Raises:
        ModelFileError: a place or a tensor is missing, damaged or does not fit the others, or a backbone is needed.
    """
    folder, backbone = asked.folder, asked.backbone
    with naming(str(folder / CONFIG), "is"):
        seen = _read_seen(config, arrays)
        tensors = {name: value for name, value in arrays.items() if not any(fnmatchcase(name, one) for one in free)}
        network = config["network"]
        check_shapes(
            {name: tuple(t.shape) for name, t in tensors.items()},
            _expected_shapes(config),
            ("guide.*", "backbone.*") if network["custom_backbone"] else ("guide.*",),
            folder,
        )
    if network["custom_backbone"] and backbone is None:
        raise ModelFileError(
            f"{folder} holds a model with a network of your own, whose code is not saved: "
            "load(folder, backbone=...) needs the module, or the function that makes it."
        )
    with naming(str(folder / CONFIG), "is"):
        parameters = dict(config["parameters"])
        parameters["hidden_sizes"] = tuple(parameters["hidden_sizes"])
        if backbone is not None:
            backbone = _as_it_was(Backbone.of(backbone), tensors, network["n_members"])
        net = _build_net(config, backbone)
        _fill(net, {name: tensors[name] for name in tensors if not name.startswith("guide.")}, folder)
        guides = None
        if config.get("guides") is not None:
            with naming(f"the guides in {folder}", "are", f"{folder} cannot be loaded: "):
                own = {name: value.numpy() for name, value in tensors.items() if name.startswith("guide.")}
                guides = unpack_guides(config["guides"], own, asked.guides)
        return parameters, FittedModel(
            net=net.eval(),
            scaling=config["scaling"],
            history=config["history"],
            summary=config["training"],
            zero_policy=ZeroPolicy(**config["zero_policy"]),
            label_names=config["label_names"],
            labels_were_named=config["labels_were_named"],
            n_features=config["n_features"],
            feature_names=config["feature_names"],
            inputs=config.get("inputs", "features"),
            guides=guides,
            columns=read_encoder(config.get("columns")),
            candidates=config.get("candidates", []),  # 0.1 wrote none
            seen=seen,
        )


@contextmanager
def naming(what: str, verb: str, start: str = "") -> Iterator[None]:
    """Name the part of a folder that could not be read: what a damaged entry meets depends on the entry."""
    try:
        yield
    except SnefyError as error:
        if not start or str(error).startswith(start):
            raise
        raise ModelFileError(f"{start}{error}") from None
    except Exception as error:
        raise ModelFileError(f"{what} {verb} damaged: {type(error).__name__} {error}.") from None


def _read_seen(config: dict[str, Any], tensors: dict[str, Tensor]) -> SeenRows | None:
    """Fingerprints of the training rows, taken out of the tensors; None where the folder is older than they are."""
    prints = tensors.pop(SEEN, None)
    if prints is None:
        return None
    return SeenRows(prints.numpy().view(np.uint64), config["seen_rows"])


def _as_it_was(backbone: Backbone, tensors: Mapping[str, Tensor], n_members: int) -> Backbone:
    """The backbone with one module for all members, or one each, as the saved weights have it."""
    copies = {name.split(".")[2] for name in tensors if name.startswith("backbone.copies.")}
    if copies and n_members > 1 and backbone.shared != (len(copies) == 1):
        backbone = copy.copy(backbone)
        backbone.shared = len(copies) == 1
    return backbone


def _expected_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the weights that a checked JSON describes, but for a custom backbone's own and guides'."""
    with torch.device("meta"):  # no room is made for the weights
        net = _build_net(config, None)
    return {name: tuple(tensor.shape) for name, tensor in net.state_dict().items()}


def _build_net(config: dict[str, Any], backbone: BackboneLike | None) -> SnefyNet:
    """A net of the shape that the JSON describes, its weights not yet set; a missing backbone has none of its own."""
    shape = config["network"]
    body: StackedMLP | CustomBackbone | Features
    if backbone is not None:
        reads, row = (config["training"].get(name) for name in ("reads", "row"))
        body = CustomBackbone(shape["n_members"], backbone, None, shape["width"], reads, row)
    elif shape["custom_backbone"]:
        body = Features(shape["n_members"], shape["width"])
    else:
        n_inputs = shape.get("n_inputs") or config["n_features"]
        body = StackedMLP(shape["n_members"], n_inputs, tuple(config["parameters"]["hidden_sizes"]))
    return SnefyNet(
        body,
        shape["n_labels"],
        shape["n_neurons"],
        shape["n_readouts"],
        shape["exponent_form"],
        shape["balanced"],
    )


def _fill(net: SnefyNet, tensors: dict[str, Tensor], folder: Path) -> None:
    try:
        net.load_state_dict(tensors)
    except RuntimeError as error:
        raise ModelFileError(f"the weights in {folder} do not fit the model {CONFIG} describes: {error}") from None
    if not all(bool(torch.isfinite(parameter).all()) for parameter in net.parameters()):
        raise ModelFileError(f"{folder} holds weights that are not finite.")


def _is_written(name: str, value: Any) -> bool:
    """Whether a parameter has a place in the file: code has none, neither a backbone's nor a guide's."""
    own_guides = name == "guides" and value is not None and not isinstance(value, str)
    return name not in ("backbone", "candidates") and not own_guides


def _plain(value: Any) -> Any:
    """A constructor argument as JSON can hold it; None where it cannot."""
    if isinstance(value, (bool, int, float, str)) or value is None:
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return value.tolist()
    return str(value) if isinstance(value, Path) else None


def put_on_device(state: FittedModel, device: str, folder: str | Path) -> None:
    """Move the network of a state that was read from a folder; raises if there is no such device here."""
    try:
        state.net.to(resolve_device(device))
    except (InputError, RuntimeError, AssertionError, TypeError):  # which one depends on the device
        raise ModelFileError(
            f"{folder} cannot be put on device {device!r}, which is not here; choose one: load(folder, device='cpu')."
        ) from None
