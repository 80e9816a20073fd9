"""Saved models: a folder with a JSON file and a safetensors file, written all or nothing, read without running code.

The JSON names its weights file and that file's checksum, and is renamed into place last: whatever moment a crash comes,
the folder holds the old model or the new one.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from snefy_ldl._version import __version__
from snefy_ldl.errors import ModelFileError
from snefy_ldl.files.atomic import load_tensors, read_json, save_tensors, write_json
from snefy_ldl.networks.backbones import BackboneLike, CustomBackbone, StackedMLP
from snefy_ldl.networks.net import SnefyNet
from snefy_ldl.validation import ZeroPolicy

if TYPE_CHECKING:
    from snefy_ldl.estimator import SnefyLDL

FORMAT = "snefy-ldl model"
FORMAT_VERSION = 1
CONFIG = "model.json"
CALIBRATION = "calibration.json"


def _checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _plain(value: Any) -> Any:
    """A constructor argument as JSON can hold it; None where it cannot."""
    if isinstance(value, (bool, int, float, str)) or value is None:
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else None


def save_model(model: SnefyLDL, folder: Path) -> Path:
    """Write a fitted model into ``folder``, replacing one that is there."""
    folder.mkdir(parents=True, exist_ok=True)
    net = model.net_
    temporary = folder / ".weights.tmp.safetensors"
    save_tensors(temporary, net.state_dict())
    digest = _checksum(temporary)
    weights = folder / f"weights-{digest[:12]}.safetensors"
    temporary.replace(weights)
    names = getattr(model, "feature_names_in_", None)
    config = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "library_version": __version__,
        "weights": {"file": weights.name, "sha256": digest},
        "parameters": {k: _plain(v) for k, v in model.get_params(deep=False).items() if k != "backbone"},
        "network": {
            "n_members": net.n_members,
            "n_neurons": net.raw_exponents.shape[1],
            "n_labels": net.raw_exponents.shape[2],
            "n_readouts": net.readout.shape[1],
            "exponent_form": net.exponent_form,
            "balanced": net.balanced,
            "custom_backbone": isinstance(net.backbone, CustomBackbone),
            "width": net.backbone.width,
        },
        "label_names": list(model.label_names_),
        "labels_were_named": model._labels_were_named,
        "feature_names": None if names is None else [str(name) for name in names],
        "n_features": getattr(model, "n_features_in_", None),
        "zero_policy": asdict(model.zero_policy_),
        "scaling": model.scaling_,
        "training": model.training_,
        "history": model.history_,
    }
    write_json(folder / CONFIG, config)
    for old in folder.glob("weights-*.safetensors"):
        if old != weights:
            old.unlink()
            (folder / CALIBRATION).unlink(missing_ok=True)  # it was made for the old weights
    return folder


def save_calibration(folder: Path, state: dict[str, Any]) -> Path:
    """Put a conformal calibration beside the model it was made with (``ConformalIntervals.to_dict``)."""
    config = read_config(folder)
    path = folder / CALIBRATION
    write_json(path, {"weights_sha256": config["weights"]["sha256"], "intervals": state})
    return path


def load_calibration(folder: Path) -> dict[str, Any] | None:
    """The calibration of a saved model; None where there is none."""
    path = folder / CALIBRATION
    if not path.exists():
        return None
    content = read_json(path)
    if not isinstance(content, dict) or not isinstance(content.get("intervals"), dict):
        raise ModelFileError(f"{path} is damaged: it holds no calibration. Make it again with snefy-ldl conformalize.")
    if content.get("weights_sha256") != read_config(folder)["weights"]["sha256"]:
        raise ModelFileError(f"{path} was made for other weights. Make it again with snefy-ldl conformalize.")
    state: dict[str, Any] = content["intervals"]
    return state


def read_config(folder: Path) -> dict[str, Any]:
    """The JSON of a saved model, checked for format and version."""
    if not folder.is_dir():
        raise ModelFileError(f"{folder} is not a folder; a model is saved as one (model.save(folder)).")
    config = read_json(folder / CONFIG)
    if not isinstance(config, dict) or config.get("format") != FORMAT:
        raise ModelFileError(f"{folder / CONFIG} was not written by this library: no {FORMAT!r} in it.")
    version = config.get("format_version")
    if not isinstance(version, int) or version > FORMAT_VERSION:
        raise ModelFileError(
            f"{folder} has format version {version}, newer than {FORMAT_VERSION}, which this library "
            f"({__version__}) reads. Upgrade snefy-ldl (it was written by {config.get('library_version')})."
        )
    return config


def load_model(
    cls: type[SnefyLDL], folder: Path, backbone: BackboneLike | None = None, device: str | None = None
) -> SnefyLDL:
    """Read a fitted model back."""
    config = read_config(folder)
    try:
        return _build(cls, folder, config, backbone, device)
    except (KeyError, TypeError, AttributeError) as error:
        raise ModelFileError(f"{folder / CONFIG} is damaged: {type(error).__name__} {error}.") from None


def _build(
    cls: type[SnefyLDL], folder: Path, config: dict[str, Any], backbone: BackboneLike | None, device: str | None
) -> SnefyLDL:
    path = folder / Path(config["weights"]["file"]).name
    if path.exists() and _checksum(path) != config["weights"]["sha256"]:
        raise ModelFileError(f"{path} is damaged: its checksum is not the one in {CONFIG}.")
    tensors, _ = load_tensors(path)
    parameters = dict(config["parameters"])
    parameters["hidden_sizes"] = tuple(parameters["hidden_sizes"])
    shape = config["network"]
    if shape["custom_backbone"] and backbone is None:
        raise ModelFileError(
            "the model was fitted with a custom backbone, whose code is not saved: load(folder, backbone=...) needs it."
        )
    model = cls(**parameters, backbone=backbone)
    if device is not None:
        model.device = device
    body: StackedMLP | CustomBackbone
    if backbone is None:
        body = StackedMLP(shape["n_members"], config["n_features"], model.hidden_sizes)
    else:
        body = CustomBackbone.with_width(shape["n_members"], backbone, shape["width"])
    net = SnefyNet(
        body, shape["n_labels"], shape["n_neurons"], shape["n_readouts"], shape["exponent_form"], shape["balanced"]
    )
    try:
        net.load_state_dict(tensors)
    except RuntimeError as error:
        raise ModelFileError(
            f"the weights in {path} do not fit the model {folder / CONFIG} describes: {error}"
        ) from None
    if not all(bool(torch.isfinite(p).all()) for p in net.parameters()):
        raise ModelFileError(f"{path} holds weights that are not finite.")
    model.net_ = net.to(model._device()).eval()
    model.n_labels_ = shape["n_labels"]
    model.label_names_ = config["label_names"]
    model._labels_were_named = config["labels_were_named"]
    model.zero_policy_ = ZeroPolicy(**config["zero_policy"])
    model.scaling_, model.training_, model.history_ = config["scaling"], config["training"], config["history"]
    model._optimizer = None
    if config["n_features"] is not None:
        model.n_features_in_ = config["n_features"]
    if config["feature_names"] is not None:
        model.feature_names_in_ = np.array(config["feature_names"], dtype=object)
    return model
