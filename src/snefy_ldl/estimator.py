"""SnefyLDL: the scikit-learn shell around the density, and the only border between NumPy and torch."""

from __future__ import annotations

import hashlib
import json
import math
import numbers
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp
import torch
from rich.progress import track
from sklearn.base import BaseEstimator
from sklearn.utils import Tags, check_random_state
from sklearn.utils.validation import check_is_fitted

from snefy_ldl._random import derive_seed
from snefy_ldl.distributions.snefy import SnefySimplex
from snefy_ldl.errors import InputError
from snefy_ldl.files import models as persistence
from snefy_ldl.networks.backbones import BackboneLike
from snefy_ldl.networks.net import SnefyNet
from snefy_ldl.networks.scaling import Scaling
from snefy_ldl.prediction import DensityPredictor
from snefy_ldl.training.loop import fit_net
from snefy_ldl.training.optimiser import StackedAdamW, make_optimizer
from snefy_ldl.training.plan import Job, TrainingData, build_net, conclude, make_target, summary
from snefy_ldl.validation import ZeroOption, check_features, column_names
from snefy_ldl.validation.rows import count_rows, move_rows, take_rows

#: Rows a prediction handles at a time; a million rows need no more memory than this many.
PREDICTION_ROWS = 8192


class SnefyLDL(DensityPredictor, BaseEstimator):  # type: ignore[misc]
    """Label distribution learning with a full conditional density ``p(ℓ|x)`` over the simplex.

    The density is the squared neural family (Zhang, Tsuchida, Sejdinovic; UAI 2025): mean, variance, covariance,
    marginal quantiles, draws and vote probabilities are exact.

    Args:
        n_neurons: n, neurons of the density; it has n(n+1)/2 Dirichlet components.
        n_readouts: m, rows of the readout V.
        hidden_sizes: widths of the network that sees x.
        backbone: instead of that network, any ``nn.Module`` returning (rows, width), or a function that makes one; X
            may then be any tensor, or nested tuples and dicts of tensors.
        n_members: networks whose densities are averaged; every closed form stays exact.
        epochs: passes over the data.
        batch_size: rows a step; "auto" picks 16 to 256 by the number of rows.
        learning_rate: peak rate of AdamW.
        weight_decay: AdamW's decay of the network's matrices.
        validation_fraction: rows kept aside to pick the best epoch; 0 keeps the last.
        patience: epochs without progress on those rows before stopping; None runs all epochs.
        standardize: "auto" (by validation likelihood), "unit", "pooled" or False; see
            :mod:`snefy_ldl.networks.scaling`.
        zeros: "shrink", "error" or a floor; see :class:`snefy_ldl.validation.ZeroPolicy`.
        device: "auto", "cpu", "cuda", ...
        random_state: seed; the same seed gives the same bits on one machine.
        verbose: 1 shows progress bars.
        recipe: "default", or "paper" for the training the paper describes (:meth:`paper`).
        warm_start: a further ``fit`` goes on from the present weights.
        checkpoint_dir: folder for a checkpoint after every epoch; a killed fit goes on from it.

    Example:
        >>> from snefy_ldl.synthetic import make_city_districts
        >>> city = make_city_districts(n=200, random_state=0)
        >>> model = SnefyLDL(epochs=5, random_state=0).fit(city.X, city.D)
        >>> model.predict(city.X[:2]).shape, model.predict_interval(city.X[:2]).shape
        ((2, 3), (2, 3, 2))
    """

    net_: SnefyNet
    scaling_: Scaling
    history_: list[dict[str, float]]
    training_: dict[str, Any]
    n_features_in_: int
    feature_names_in_: Any
    _optimizer: StackedAdamW | None

    def __init__(
        self,
        n_neurons: int = 64,
        n_readouts: int = 32,
        hidden_sizes: tuple[int, ...] = (64,),
        backbone: BackboneLike | None = None,
        n_members: int = 1,
        epochs: int = 30,
        batch_size: int | Literal["auto"] = "auto",
        learning_rate: float = 5e-3,
        weight_decay: float = 1.0,
        validation_fraction: float = 0.15,
        patience: int | None = None,
        standardize: str | bool = "auto",
        zeros: ZeroOption = "shrink",
        device: str = "auto",
        random_state: Any = None,
        verbose: int = 0,
        recipe: Literal["default", "paper"] = "default",
        warm_start: bool = False,
        checkpoint_dir: str | Path | None = None,
    ) -> None:
        self.n_neurons = n_neurons
        self.n_readouts = n_readouts
        self.hidden_sizes = hidden_sizes
        self.backbone = backbone
        self.n_members = n_members
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.standardize = standardize
        self.zeros = zeros
        self.device = device
        self.random_state = random_state
        self.verbose = verbose
        self.recipe = recipe
        self.warm_start = warm_start
        self.checkpoint_dir = checkpoint_dir

    @classmethod
    def paper(cls, task: Literal["conformal", "active", "ensemble"] = "conformal", **changes: Any) -> SnefyLDL:
        """The paper's model as it describes it: random start, raw features, Adam, clipped weights, 100 epochs.

        Args:
            task: the experiment, which sets the batch size: 64 for "conformal", 16 for "active" and "ensemble".
            changes: other constructor arguments.
        """
        sizes = {"conformal": 64, "active": 16, "ensemble": 16}
        if task not in sizes:
            raise InputError(f"task={task!r}: use one of {', '.join(sizes)}.")
        settings: dict[str, Any] = {
            "epochs": 100,
            "batch_size": sizes[task],
            "learning_rate": 1e-3,
            "weight_decay": 0.0,
            "validation_fraction": 0.0,
            "standardize": False,
            "recipe": "paper",
        }
        return cls(**(settings | changes))

    # -- fitting -----------------------------------------------------------------------------------------------------

    def fit(self, X: Any, D: Any = None, *, counts: Any = None, sample_weight: Any = None) -> SnefyLDL:
        """Fit to label distributions D (N, L), or to vote counts (N, L) with ``fit(X, counts=K)``.

        Args:
            X: features (N, d): array, DataFrame, sparse matrix or tensor; anything of tensors with a custom backbone.
            D: rows that sum to one; NaN where a share is not known (its row counts by the density of what is known).
            counts: whole numbers of votes; zeros and unequal totals are fine.
            sample_weight: how much each row counts (N,).
        """
        self._check_settings()
        data = TrainingData(X, D, counts, sample_weight, custom=self.backbone is not None)
        job = Job(self, data)
        go_on = self.warm_start and hasattr(self, "net_")
        if go_on:
            self._check_same_shape(data)
            members = job.plan([self.scaling_])
            net = self.net_
        else:
            self._remember(X, job)
            members = job.plan()
            net = build_net(members)
        device = self._device()
        net.to(device)
        features, target = data.tensor(device), make_target(net, members, device)
        checkpoint = None if self.checkpoint_dir is None else Path(self.checkpoint_dir) / "checkpoint.safetensors"
        run = fit_net(
            net,
            features,
            target,
            [member.split for member in members],
            job.recipe(),
            [member.shuffle_seed for member in members],
            weights=data.weight_tensor(device),
            verbose=self.verbose,
            checkpoint=checkpoint,
            fingerprint=self._fingerprint(job) if checkpoint else "",
        )
        conclude(job, net, members, run, features, target)
        self._optimizer = None
        return self

    def partial_fit(self, X: Any, D: Any = None, *, counts: Any = None, sample_weight: Any = None) -> SnefyLDL:
        """One pass over these rows at a constant rate; the first call also sets the model up from them."""
        self._check_settings()
        data = TrainingData(X, D, counts, sample_weight, custom=self.backbone is not None)
        job = Job(self, data)
        if hasattr(self, "net_"):
            self._check_same_shape(data)
            members = job.plan([self.scaling_], validate=False)
        else:
            self._remember(X, job)
            members = job.plan(job.candidates[:1], validate=False)
            self.net_ = build_net(members).to(self._device())
            self.scaling_, self.history_ = members[0].scaling, []
        device, recipe = self._device(), job.recipe(epochs=1, constant=True)
        self._optimizer = self._optimizer or make_optimizer(
            self.net_, recipe.learning_rate, recipe.exponent_rate, recipe.weight_decay
        )
        done = len(self.history_)
        run = fit_net(
            self.net_,
            data.tensor(device),
            make_target(self.net_, members, device),
            [member.split for member in members],
            recipe,
            [derive_seed(member.shuffle_seed, done) for member in members],
            weights=data.weight_tensor(device),
            optimizer=self._optimizer,
        )
        self.history_.append({**run.history[0], "epoch": float(done)})
        self.training_ = summary(self.net_, run, data.n_rows, self.scaling_)
        return self

    def _check_settings(self) -> None:
        for name in ("n_neurons", "n_readouts", "n_members", "epochs"):
            value = getattr(self, name)
            if not isinstance(value, numbers.Integral) or value < 1:
                raise InputError(f"{name} must be a whole number of at least 1; got {value!r}.")
        if self.batch_size != "auto" and (not isinstance(self.batch_size, numbers.Integral) or self.batch_size < 1):
            raise InputError(f'batch_size must be "auto" or a whole number of at least 1; got {self.batch_size!r}.')
        if not self.learning_rate > 0 or not math.isfinite(self.learning_rate):
            raise InputError(f"learning_rate must be a positive number; got {self.learning_rate!r}.")
        if not self.weight_decay >= 0:
            raise InputError(f"weight_decay must be >= 0; got {self.weight_decay!r}.")
        if not 0.0 <= self.validation_fraction < 1.0:
            raise InputError(f"validation_fraction must lie in [0, 1); got {self.validation_fraction!r}.")
        if self.patience is not None and (not isinstance(self.patience, numbers.Integral) or self.patience < 1):
            raise InputError(f"patience must be None or a whole number of at least 1; got {self.patience!r}.")
        if self.recipe not in ("default", "paper"):
            raise InputError(f'recipe={self.recipe!r}: use "default" or "paper".')
        if self.standardize not in ("auto", "unit", "pooled", True, False, None):
            raise InputError(f'standardize={self.standardize!r}: use "auto", "unit", "pooled" or False.')
        if not all(isinstance(w, numbers.Integral) and w > 0 for w in self.hidden_sizes):
            raise InputError(f"hidden_sizes must hold positive whole numbers; got {self.hidden_sizes!r}.")

    def _check_same_shape(self, data: TrainingData) -> None:
        if data.n_labels != self.n_labels_:
            raise InputError(f"D has {data.n_labels} labels, but the model was fitted with {self.n_labels_}.")
        if self.backbone is None:
            check_features(data.features, n_features=self.n_features_in_)

    def _remember(self, X: Any, job: Job) -> None:
        self.n_labels_ = job.data.n_labels
        self._labels_were_named = job.data.names is not None
        self.label_names_ = job.data.names or [f"label_{r}" for r in range(self.n_labels_)]
        self.zero_policy_ = job.policy
        self._optimizer = None
        self.__dict__.pop("feature_names_in_", None)
        if self.backbone is None:
            self.n_features_in_ = int(job.data.features.shape[1])
            names = column_names(X)
            if names is not None:
                self.feature_names_in_ = np.array(names, dtype=object)

    def _seed(self) -> int:
        if isinstance(self.random_state, numbers.Integral):
            return int(self.random_state)
        if isinstance(self.random_state, np.random.Generator):
            return int(self.random_state.integers(2**31))
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _device(self) -> torch.device:
        if self.device == "auto":
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        return torch.device(self.device)

    def _fingerprint(self, job: Job) -> str:
        digest = hashlib.blake2b(digest_size=16)
        passing = ("verbose", "checkpoint_dir")
        settings = {key: repr(value) for key, value in self.get_params(deep=False).items() if key not in passing}
        digest.update(json.dumps([settings, job.seed], sort_keys=True).encode())
        features = job.data.features
        parts = [job.data.labels]
        if job.data.partial is not None:
            parts += [job.data.partial.named, job.data.partial.sets]
        if job.data.weights is not None:
            parts.append(job.data.weights)
        if isinstance(features, np.ndarray):
            parts.append(features)
        elif sp.issparse(features):
            parts += [features.data, features.indices, features.indptr]
        for part in parts:
            digest.update(np.ascontiguousarray(part).view(np.uint8).data)
        return digest.hexdigest()

    # -- prediction (the rest is DensityPredictor) -------------------------------------------------------------------

    def _inputs(self, X: Any) -> tuple[Any, int]:
        check_is_fitted(self, "net_")
        if self.backbone is not None:
            return X, count_rows(X)
        names = column_names(X)
        if names is not None and hasattr(self, "feature_names_in_") and names != list(self.feature_names_in_):
            known = list(self.feature_names_in_)
            missing, extra = [n for n in known if n not in names], [n for n in names if n not in known]
            raise InputError(
                "The feature names should match those that were passed during fit.\n"
                + (f"Feature names unseen at fit time:\n- {', '.join(extra)}\n" if extra else "")
                + (f"Feature names seen at fit time, yet now missing:\n- {', '.join(missing)}\n" if missing else "")
                + ("Feature names must be in the same order as they were in fit.\n" if not extra + missing else "")
            )
        features = check_features(X, n_features=self.n_features_in_)
        return features, int(features.shape[0])

    def _blocks(self, X: Any, what: str = "predict") -> Iterator[tuple[slice, SnefySimplex]]:
        features, rows = self._inputs(X)
        device = self.net_.readout.device
        step = max(256, PREDICTION_ROWS // self.net_.n_members)
        starts: Any = range(0, rows, step)
        if self.verbose and len(starts) > 50:
            starts = track(starts, description=what)
        for start in starts:
            block = slice(start, min(start + step, rows))
            with torch.no_grad():
                dist = self.net_(self._features_tensor(features, block, device))
            yield block, dist

    def _features_tensor(self, features: Any, block: slice, device: torch.device) -> Any:
        if self.backbone is not None:
            return move_rows(take_rows(features, torch.arange(block.start, block.stop)), device)
        part = features[block]
        part = part.toarray() if sp.issparse(part) else part
        return torch.as_tensor(np.ascontiguousarray(part, dtype=np.float32), device=device)

    def predict_dist(self, X: Any) -> SnefySimplex:
        """The whole conditional law: a torch distribution with batch (N,) and event (L,)."""
        laws = [law for _, law in self._blocks(X)]
        scale = torch.cat([law.log_scale for law in laws])
        return SnefySimplex(laws[0].exponents, laws[0].readout, scale, validate_args=False)

    # -- files and scikit-learn --------------------------------------------------------------------------------------

    def save(self, folder: str | Path) -> Path:
        """Write the model into a folder: safetensors weights and a JSON file; no pickle, and all or nothing."""
        check_is_fitted(self, "net_")
        return persistence.save_model(self, Path(folder))

    @classmethod
    def load(cls, folder: str | Path, backbone: BackboneLike | None = None, device: str | None = None) -> SnefyLDL:
        """Read a model that :meth:`save` wrote; nothing in the folder is executed.

        Args:
            folder: where it is.
            backbone: needed again when the model was fitted with one: code is never saved.
            device: where to put it; as it was constructed by default.
        """
        return persistence.load_model(cls, Path(folder), backbone, device)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.target_tags.multi_output = True
        tags.target_tags.single_output = False
        tags.input_tags.sparse = True
        tags.non_deterministic = False
        return tags
