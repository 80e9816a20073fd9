"""Saving and loading of estimators: from a fitted state to a model folder and back."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from snefy_ldl._internal.limits import LARGEST_FEATURE
from snefy_ldl._internal.model_files import (
    CONFIG,
    check_description,
    check_shapes,
    n_encoded,
    read_model,
    require,
    write_model,
)
from snefy_ldl._internal.seen import SeenRows
from snefy_ldl._internal.special import EXPONENT_LIMIT, EXPONENT_MARGIN
from snefy_ldl._internal.validation import ZeroPolicy
from snefy_ldl.datasets.columns import read_encoder
from snefy_ldl.errors import InputError, ModelFileError, SnefyError
from snefy_ldl.networks.backbones import CustomBackbone, StackedMLP
from snefy_ldl.networks.custom import Backbone, BackboneLike
from snefy_ldl.networks.head import Features
from snefy_ldl.networks.net import SnefyNet
from snefy_ldl.training import FittedState, resolve_device
from snefy_ldl.training.effects import pack_effects, unpack_effects
from snefy_ldl.training.guides import pack_guides, unpack_guides
from snefy_ldl.votes.confusion import Annotators

#: Weights of a fit stay far below this; above it, float32 overflows after a few layers.
LARGEST_WEIGHT = 1e6
#: Bounds that fits keep, by name; what is not named here is a weight.
BOUNDS = {
    "raw_exponents": (-LARGEST_WEIGHT, 1.001 * EXPONENT_LIMIT),
    "background": (EXPONENT_MARGIN, 2.001 * EXPONENT_LIMIT),
    "log_odds": (-100.0, 100.0),
    "backbone.scaler.centre": (-LARGEST_FEATURE, LARGEST_FEATURE),
    "backbone.scaler.scale": (torch.finfo(torch.float32).tiny, LARGEST_FEATURE),
    "backbone.scaler.limit": (torch.finfo(torch.float32).tiny, 1e3),
}
#: Numbers that stand for nothing where they are infinite: no background, no limit.
INFINITE = {"log_odds": -torch.inf, "backbone.scaler.limit": torch.inf}
#: Name of the fingerprints among the weights.
SEEN = "seen_rows"
#: What names of annotators' arrays start with among the weights.
PEOPLE = "annotator."


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
        "self_check": state.self_check,
    }
    tensors, more = net.state_dict(), dict[str, Any]()
    if state.seen is not None:
        description["seen_rows"] = state.seen.rows
        tensors[SEEN] = torch.as_tensor(state.seen.prints.view(np.int64))
    description["columns"] = None if state.columns is None else state.columns.to_dict()
    if state.guides is not None:
        description["guides"], arrays = pack_guides(state.guides)
        more |= arrays
    if state.effects is not None:
        description["effects"], arrays = pack_effects(state.effects, state.guides)
        more |= arrays
    if state.annotators is not None:
        description["annotators"], people = state.annotators.pack()
        more |= {f"{PEOPLE}{name}": array for name, array in people.items()}
    tensors |= {name: torch.as_tensor(np.ascontiguousarray(array)) for name, array in more.items()}
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
    _refuse_what_left(config, tensors, folder)
    check_description(config, folder / CONFIG)
    seen_rows = _read_seen(config, tensors, folder)
    people = _read_annotators(config, tensors, folder)
    free = ("guide.*", "backbone.*") if config["network"]["custom_backbone"] else ("guide.*", "effect.*")
    check_shapes({name: tuple(t.shape) for name, t in tensors.items()}, _expected_shapes(config), free, folder)
    check_values(tensors, config["network"]["exponent_form"], folder)
    try:
        parameters = dict(config["parameters"])
        parameters["hidden_sizes"] = tuple(parameters["hidden_sizes"])
        if config["network"]["custom_backbone"] and backbone is None:
            message = f"{folder} holds a model with a network of your own, whose code is not saved: "
            raise ModelFileError(
                f"{message}load(folder, backbone=...) needs the module, or the function that makes it.",
                command=f"{message}name the function that makes it with --backbone MODULE:FUNCTION.",
            )
        if backbone is not None:
            backbone = _as_it_was(Backbone.of(backbone), tensors, config["network"]["n_members"])
        net = _build_net(config, backbone)
        _fill(net, {name: tensors[name] for name in tensors if not name.startswith(("guide.", "effect."))}, folder)
        fitted, effects = None, None
        arrays = {name: tensors[name].numpy() for name in tensors if name.startswith(("guide.", "effect."))}
        n_labels = config["network"]["n_labels"]
        if config.get("guides") is not None:
            with _naming("the guides", folder):
                fitted = unpack_guides(config["guides"], arrays, n_encoded(config, folder / CONFIG), n_labels, guides)
        if config.get("effects") is not None:
            with _naming("the group effects", folder):
                n_features = n_encoded(config, folder / CONFIG)
                effects = unpack_effects(config["effects"], arrays, fitted, n_features, n_labels)
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
            inputs=config.get("inputs", "features"),
            guides=fitted,
            columns=read_encoder(config.get("columns")),
            candidates=config.get("candidates", []),  # older models do not say
            seen=seen_rows,
            self_check=config.get("self_check"),
            effects=effects,
            annotators=people,
        )
    except SnefyError:
        raise
    except Exception as error:  # what a damaged entry meets depends on the entry
        raise ModelFileError(f"{folder / CONFIG} is damaged: {type(error).__name__} {error}.") from None


def _refuse_what_left(config: dict[str, Any], tensors: dict[str, Tensor], folder: Path) -> None:
    """Raise for a development version's model with a centre, modelled zeros or moves, and drop its empty entries."""
    guides, network, parameters = (config.get(name) for name in ("guides", "network", "parameters"))
    centre = tensors.pop("centre", None)
    models_zeros = isinstance(network, dict) and bool(network.get("presence"))
    moves = isinstance(guides, dict) and guides.get("mover") is not None
    if models_zeros or moves or (centre is not None and bool((centre != 1.0).any())):
        raise ModelFileError(
            f"{folder} holds a SnefyLDL with a centre or modelled zeros, which this version does not have: fit again "
            "with LogRatioLDL."
        )
    if isinstance(parameters, dict):
        parameters.pop("centre", None)
        if parameters.get("zeros") in ("auto", "model"):
            parameters["zeros"] = "shrink"


def _read_seen(config: dict[str, Any], tensors: dict[str, Tensor], folder: Path) -> SeenRows | None:
    """Fingerprints of the training rows, taken out of the tensors; None where the folder is older than they are."""
    prints = tensors.pop(SEEN, None)
    if prints is None:
        return None
    fits = prints.dtype == torch.int64 and prints.ndim == 1 and len(prints) <= config.get("seen_rows", 0)
    require(fits, folder, f"{SEEN} does not hold one fingerprint per training row.")
    return SeenRows(prints.numpy().view(np.uint64), config["seen_rows"])


def _read_annotators(config: dict[str, Any], tensors: dict[str, Tensor], folder: Path) -> Annotators | None:
    """What the fit learnt about its annotators, its arrays taken out of the tensors; None where it saw none."""
    arrays = {name: tensors.pop(name).numpy() for name in [*tensors] if name.startswith(PEOPLE)}
    plain: Any = config.get("annotators")
    if plain is None and not arrays:
        return None
    with _naming("the annotators", folder):
        return Annotators.unpack(plain, {name.removeprefix(PEOPLE): array for name, array in arrays.items()})


@contextmanager
def _naming(what: str, folder: Path) -> Iterator[None]:
    """Name the part of a folder that could not be read: what a damaged entry meets depends on the entry."""
    try:
        yield
    except ModelFileError as error:
        raise ModelFileError(f"{folder} cannot be loaded: {error}") from None
    except Exception as error:
        raise ModelFileError(f"{what} in {folder} are damaged: {type(error).__name__} {error}.") from None


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


def check_values(tensors: Mapping[str, Tensor], exponent_form: str, folder: Path) -> None:
    """Raise where weights hold numbers that no fit leaves behind.

    Args:
        tensors: the weights by name, of the right shapes.
        exponent_form: "log" or "clip".
        folder: for the message.

    Raises:
        ModelFileError: a number is not finite, outside the bounds that fits keep, or a readout is zero everywhere.
    """
    for name, tensor in tensors.items():
        if name.startswith(("guide.", "effect.", "backbone.copies.")):
            continue
        require(tensor.is_floating_point(), folder, f"{name} does not hold real numbers.")
        low, high = BOUNDS.get(name, (-LARGEST_WEIGHT, LARGEST_WEIGHT))
        if name == "raw_exponents" and exponent_form == "log":
            high = math.log(high)
        values = tensor.double()[tensor != INFINITE[name]] if name in INFINITE else tensor.double()
        require(bool(torch.isfinite(values).all()), folder, f"{name} holds numbers that are not finite.")
        inside = bool(((values >= low) & (values <= high)).all())
        require(inside, folder, f"{name} holds numbers that are not from {low:.4g} to {high:.4g}.")
    has_readouts = bool((tensors["readout"] != 0).flatten(1).any(1).all())
    require(has_readouts, folder, "a readout is zero everywhere, which is no density.")
    above = exponent_form != "clip" or bool((tensors["raw_exponents"] > -0.5).all())
    require(above, folder, "raw_exponents holds numbers that are not above -1/2.")


def _is_written(name: str, value: Any) -> bool:
    """Whether a parameter has a place in the file: code has none, neither a backbone's nor a guide's."""
    return name != "backbone" and not (name == "guides" and value is not None and not isinstance(value, str))


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


def put_on_device(state: FittedState, device: str, folder: str | Path) -> None:
    """Move the network of a state that was read from a folder.

    Args:
        state: as it was read.
        device: where to.
        folder: for the message.

    Raises:
        ModelFileError: there is no such device here.
    """
    try:
        state.net.to(resolve_device(device))
    except (InputError, RuntimeError, AssertionError, TypeError):  # which one depends on the device
        raise ModelFileError(
            f"{folder} cannot be put on device {device!r}, which is not here; choose one: load(folder, device='cpu')."
        ) from None
