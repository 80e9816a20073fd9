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
from numpy.typing import NDArray
from rich.progress import track
from sklearn.base import BaseEstimator
from sklearn.utils import Tags, check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from snefy_ldl import backbones, persistence
from snefy_ldl.backbones import BackboneLike, CustomBackbone, StackedMLP
from snefy_ldl.distribution import SnefySimplex
from snefy_ldl.errors import InputError
from snefy_ldl.model import SnefyNet, fit_dirichlet, label_concentration, paper_init, prototype_init
from snefy_ldl.scaling import Scaling, clearly_better, fit_scaling
from snefy_ldl.training import (
    CountTarget,
    DistributionTarget,
    Recipe,
    Run,
    Target,
    derive_seed,
    evaluate,
    fit_net,
    make_optimizer,
)
from snefy_ldl.validation import (
    ZeroOption,
    ZeroPolicy,
    check_confidence,
    check_counts,
    check_distributions,
    check_features,
    check_sample_weight,
    column_names,
)

Array = NDArray[np.float64]

#: Rows a prediction handles at a time; a million rows need no more memory than this many.
PREDICTION_ROWS = 8192
#: Share of the background Dirichlet while training.
BACKGROUND_SHARE = 0.02
#: Sparse features are made dense for training when they take at most this many bytes as float32.
DENSE_BYTES = 1 << 31


class SnefyLDL(BaseEstimator):  # type: ignore[misc]
    """Label distribution learning with a full conditional density ``p(ℓ|x)`` over the simplex.

    The density is the squared neural family (Zhang, Tsuchida, Sejdinovic; UAI 2025): mean, variance, covariance,
    marginal quantiles, draws and vote probabilities are exact.

    Args:
        n_neurons: n, neurons of the density; it has n(n+1)/2 Dirichlet components.
        n_readouts: m, rows of the readout V.
        hidden_sizes: widths of the network that sees x.
        backbone: instead of that network, any ``nn.Module`` returning (rows, width), or a function that makes one; X may
            then be any tensor, or nested tuples and dicts of tensors.
        n_members: networks whose densities are averaged; every closed form stays exact.
        epochs: passes over the data.
        batch_size: rows a step; "auto" picks 16 to 256 by the number of rows.
        learning_rate: peak rate of AdamW.
        weight_decay: AdamW's decay of the network's matrices.
        validation_fraction: rows kept aside to pick the best epoch; 0 keeps the last.
        patience: epochs without progress on those rows before stopping; None runs all epochs.
        standardize: "auto" (by validation likelihood), "unit", "pooled" or False; see :mod:`snefy_ldl.scaling`.
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
            D: rows that sum to one.
            counts: whole numbers of votes; zeros and unequal totals are fine.
            sample_weight: how much each row counts (N,).
        """
        self._check_settings()
        data = self._check_data(X, D, counts, sample_weight)
        go_on = self.warm_start and hasattr(self, "net_")
        if go_on:
            self._check_same_shape(data)
        else:
            self._remember(X, data)
        seed = self._seed()
        kinds = [self.scaling_] if go_on else self._candidates()
        net = self.net_ if go_on else self._make_net(data, kinds, seed)
        splits = self._splits(len(data.labels), seed, n_candidates=net.n_members // self.n_members)
        recipe = self._recipe(len(splits[0][0]))
        if not go_on:
            self._initialise(net, data, kinds, splits, seed)
        device = self._device()
        net.to(device)
        features = data.tensor(device)
        target = data.target(net, device)
        weights = None if data.weights is None else torch.as_tensor(data.weights, dtype=torch.float32, device=device)
        checkpoint = None if self.checkpoint_dir is None else Path(self.checkpoint_dir) / "checkpoint.safetensors"
        run = fit_net(
            net,
            features,
            target,
            splits,
            recipe,
            [derive_seed(seed, 7, k % self.n_members) for k in range(net.n_members)],
            weights=weights,
            verbose=self.verbose,
            checkpoint=checkpoint,
            fingerprint=self._fingerprint(data, seed) if checkpoint else "",
        )
        self._choose(net, kinds, run, features, target, splits)
        return self

    def partial_fit(self, X: Any, D: Any = None, *, counts: Any = None, sample_weight: Any = None) -> SnefyLDL:
        """One pass over these rows at a constant rate; the first call also sets the model up from them."""
        self._check_settings()
        data = self._check_data(X, D, counts, sample_weight)
        seed = self._seed()
        rows = torch.arange(len(data.labels))
        splits = [(rows, rows[:0])] * self.n_members
        if not hasattr(self, "net_"):
            self._remember(X, data)
            kinds: list[Scaling] = [k for k in self._candidates() if k != "pooled"] or ["pooled"]
            net = self._make_net(data, kinds, seed)
            self._initialise(net, data, kinds, splits, seed)
            self.net_, self.scaling_ = net.to(self._device()), kinds[0]
            self.history_: list[dict[str, float]] = []
        else:
            self._check_same_shape(data)
        device = self._device()
        recipe = self._recipe(len(rows), epochs=1, constant=True)
        if getattr(self, "_optimizer", None) is None:
            self._optimizer = make_optimizer(self.net_, recipe)
        weights = None if data.weights is None else torch.as_tensor(data.weights, dtype=torch.float32, device=device)
        seeds = [derive_seed(seed, 7, k, len(self.history_)) for k in range(self.n_members)]
        target = data.target(self.net_, device)
        features = data.tensor(device)
        run = fit_net(
            self.net_, features, target, splits, recipe, seeds, weights=weights, optimizer=self._optimizer
        )
        record = {**run.history[0], "epoch": float(len(self.history_))}
        self.history_.append(record)
        self.training_ = self._summary(run, len(rows))
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
        if self.recipe not in ("default", "paper"):
            raise InputError(f'recipe={self.recipe!r}: use "default" or "paper".')
        if self.standardize not in ("auto", "unit", "pooled", True, False, None):
            raise InputError(f'standardize={self.standardize!r}: use "auto", "unit", "pooled" or False.')
        if not all(isinstance(w, numbers.Integral) and w > 0 for w in self.hidden_sizes):
            raise InputError(f"hidden_sizes must hold positive whole numbers; got {self.hidden_sizes!r}.")

    def _check_data(self, X: Any, D: Any, counts: Any, sample_weight: Any) -> _Data:
        if (D is None) == (counts is None):
            raise InputError(
                "fit needs the labels: label distributions as fit(X, D), or votes as fit(X, counts=K); one of the two. "
                "This estimator requires y to be passed, but the target y is None."
                if D is None
                else "fit takes label distributions or counts, not both."
            )
        if self.backbone is None:
            features = check_features(X)
            rows = features.shape[0]
        else:
            features, rows = X, backbones.n_rows(X)
        labels, names = (check_distributions if counts is None else check_counts)(
            D if counts is None else counts, n_rows=rows
        )
        weights = check_sample_weight(sample_weight, rows)
        needed = 2 if self.validation_fraction == 0 else 4
        if rows < needed:
            raise InputError(
                f"X has {rows} row(s) ({rows} sample(s)); a fit with validation_fraction={self.validation_fraction:g} "
                f"needs at least {needed}."
            )
        shares = labels
        policy = None
        if counts is None:
            policy = getattr(self, "zero_policy_", None) if self.warm_start else None
            policy = policy or ZeroPolicy.from_data(labels, self.zeros)
            shares = policy.apply(labels, warn=True, names=names)
        else:
            shares = (labels + 0.5) / (labels + 0.5).sum(1, keepdims=True)
            policy = ZeroPolicy.from_data(shares, self.zeros)
        return _Data(features, labels, shares, counts is not None, weights, policy, names)

    def _check_same_shape(self, data: _Data) -> None:
        if data.labels.shape[1] != self.n_labels_:
            raise InputError(f"D has {data.labels.shape[1]} labels, but the model was fitted with {self.n_labels_}.")
        if self.backbone is None:
            check_features(data.features, n_features=self.n_features_in_)

    def _remember(self, X: Any, data: _Data) -> None:
        self.n_labels_ = data.labels.shape[1]
        self.label_names_ = data.names or [f"label_{r}" for r in range(self.n_labels_)]
        self._labels_were_named = data.names is not None
        self.zero_policy_ = data.policy
        if hasattr(self, "feature_names_in_"):
            del self.feature_names_in_
        if self.backbone is None:
            self.n_features_in_ = data.features.shape[1]
            names = column_names(X)
            if names is not None:
                self.feature_names_in_ = np.array(names, dtype=object)
        self._optimizer: torch.optim.Optimizer | None = None

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

    def _candidates(self) -> list[Scaling]:
        if self.backbone is not None or self.standardize in (False, None):
            return ["none"]
        if self.standardize == "pooled":
            return ["pooled"]
        if self.standardize == "auto" and self.validation_fraction > 0:
            return ["unit", "pooled"]
        return ["unit"]

    def _make_net(self, data: _Data, kinds: list[Scaling], seed: int) -> SnefyNet:
        n_members = self.n_members * len(kinds)
        backbone: StackedMLP | CustomBackbone
        if self.backbone is None:
            backbone = StackedMLP(n_members, data.features.shape[1], tuple(int(w) for w in self.hidden_sizes))
        else:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(derive_seed(seed, 3))
                example = backbones.take(data.features, torch.arange(min(2, len(data.labels))))
                backbone = CustomBackbone(n_members, self.backbone, example)
        plain = self.recipe == "paper"
        return SnefyNet(
            backbone,
            data.labels.shape[1],
            int(self.n_neurons),
            int(self.n_readouts),
            exponent_form="clip" if plain else "log",
            balanced=not plain,
        )

    def _splits(self, rows: int, seed: int, n_candidates: int) -> list[tuple[Tensor, Tensor]]:
        held = 0 if self.validation_fraction == 0 else max(1, round(self.validation_fraction * rows))
        held = min(held, rows - 2)
        splits = []
        for member in range(self.n_members):
            order = torch.randperm(rows, generator=torch.Generator().manual_seed(derive_seed(seed, 4, member)))
            splits.append((order[held:], order[:held]))
        return splits * n_candidates

    def _recipe(self, rows: int, epochs: int | None = None, constant: bool = False) -> Recipe:
        size = self.batch_size
        if size == "auto":
            size = 16 if rows < 200 else 32 if rows < 500 else 64 if rows < 10_000 else 128 if rows < 40_000 else 256
        plain = self.recipe == "paper"
        return Recipe(
            epochs=int(epochs or self.epochs),
            batch_size=int(size),
            learning_rate=float(self.learning_rate) * (0.2 if constant and not plain else 1.0),
            exponent_rate=1.0 if plain else 20.0,
            weight_decay=float(self.weight_decay),
            schedule="constant" if plain or constant else "one_cycle",
            patience=self.patience,
        )

    def _initialise(
        self, net: SnefyNet, data: _Data, kinds: list[Scaling], splits: list[tuple[Tensor, Tensor]], seed: int
    ) -> None:
        for k in range(net.n_members):
            kind, member = kinds[k // self.n_members], k % self.n_members
            rows = splits[k][0].numpy()
            shares = torch.as_tensor(data.shares[rows])
            generator = torch.Generator().manual_seed(derive_seed(seed, 5, member))
            (paper_init if self.recipe == "paper" else prototype_init)(net, k, shares, generator)
            if isinstance(net.backbone, StackedMLP) and kind != "none":
                centre, scale, limit = fit_scaling(data.features[rows], kind)
                scaler = net.backbone.scaler
                scaler.centre[k], scaler.scale[k], scaler.limit[k] = centre, scale, limit
            if self.recipe == "default":
                start = shares.mean(0) * max(label_concentration(shares), 1.0)
                net.background[k] = fit_dirichlet(shares.log().mean(0), start)
                net.log_odds[k] = math.log(BACKGROUND_SHARE / (1.0 - BACKGROUND_SHARE))

    def _choose(
        self,
        net: SnefyNet,
        kinds: list[Scaling],
        run: Run,
        features: Any,
        target: Target,
        splits: list[tuple[Tensor, Tensor]],
    ) -> None:
        """Keep the better scaling and settle the background's share, both on the validation rows."""
        held = torch.stack([valid for _, valid in splits]).to(net.readout.device)
        chosen = 0
        if len(kinds) > 1:
            log_p = evaluate(net, features, target, held)
            first, second = log_p[: self.n_members], log_p[self.n_members :]
            chosen = int(clearly_better(second, first))
        members = list(range(chosen * self.n_members, (chosen + 1) * self.n_members))
        if self.recipe == "default" and held.shape[1]:
            background = getattr(target, "background", None)
            if background is not None:
                background = background.gather(1, held)
                target.background = None  # type: ignore[attr-defined]
                net.refine_background(evaluate(net, features, target, held), background)
        if len(members) < net.n_members:
            net = net.select(members)
        self.net_ = net.eval()
        self.scaling_ = kinds[chosen]
        self.history_ = run.history
        self._optimizer = None
        kept = Run([run.best_loss[k] for k in members], [run.best_epoch[k] for k in members], run.history)
        kept.next_epoch, kept.repairs, kept.seconds = run.next_epoch, run.repairs, run.seconds
        self.training_ = self._summary(kept, len(splits[0][0]))

    def _summary(self, run: Run, rows: int) -> dict[str, Any]:
        shares = torch.sigmoid(self.net_.log_odds).tolist()
        return {
            "rows": rows,
            "epochs": run.next_epoch,
            "best_epoch": run.best_epoch,
            "validation_loss": [loss if math.isfinite(loss) else None for loss in run.best_loss],
            "seconds": round(run.seconds, 3),
            "repairs": run.repairs,
            "scaling": self.scaling_,
            "background_share": [round(share, 6) for share in shares],
            "device": str(self.net_.readout.device),
        }

    def _fingerprint(self, data: _Data, seed: int) -> str:
        digest = hashlib.blake2b(digest_size=16)
        settings = {k: repr(v) for k, v in self.get_params(deep=False).items() if k not in ("verbose", "checkpoint_dir")}
        digest.update(json.dumps([settings, seed], sort_keys=True).encode())
        parts = [data.labels] + ([data.features] if isinstance(data.features, np.ndarray) else [])
        if sp.issparse(data.features):
            parts += [data.features.data, data.features.indices, data.features.indptr]
        for part in parts:
            digest.update(np.ascontiguousarray(part).view(np.uint8).data)
        return digest.hexdigest()

    # -- prediction --------------------------------------------------------------------------------------------------

    def _inputs(self, X: Any) -> tuple[Any, int]:
        check_is_fitted(self, "net_")
        if self.backbone is not None:
            return X, backbones.n_rows(X)
        names = column_names(X)
        if names is not None and hasattr(self, "feature_names_in_") and names != list(self.feature_names_in_):
            missing = [n for n in self.feature_names_in_ if n not in names]
            extra = [n for n in names if n not in set(self.feature_names_in_)]
            raise InputError(
                "The feature names should match those that were passed during fit.\n"
                + (f"Feature names unseen at fit time:\n- {', '.join(extra)}\n" if extra else "")
                + (f"Feature names seen at fit time, yet now missing:\n- {', '.join(missing)}\n" if missing else "")
                + ("Feature names must be in the same order as they were in fit.\n" if not extra + missing else "")
            )
        features = check_features(X, n_features=self.n_features_in_)
        return features, features.shape[0]

    def _batches(self, X: Any, what: str = "predict") -> Iterator[tuple[slice, SnefySimplex]]:
        """The density of some rows at a time, so that memory stays bounded."""
        features, rows = self._inputs(X)
        device = self.net_.readout.device
        step = max(256, PREDICTION_ROWS // self.net_.n_members)
        starts = range(0, rows, step)
        if self.verbose and len(starts) > 50:
            starts = track(starts, description=what)  # type: ignore[assignment]
        for start in starts:
            chunk = slice(start, min(start + step, rows))
            with torch.no_grad():
                yield chunk, self.net_(self._features_tensor(features, chunk, device))

    def _features_tensor(self, features: Any, chunk: slice, device: torch.device) -> Any:
        if self.backbone is not None:
            return backbones.to_device(backbones.take(features, torch.arange(chunk.start, chunk.stop)), device)
        part = features[chunk]
        part = part.toarray() if sp.issparse(part) else part
        return torch.as_tensor(np.ascontiguousarray(part, dtype=np.float32), device=device)

    def _named(self, values: Array, X: Any) -> Any:
        """Back in a DataFrame when the labels came in one."""
        if not self._labels_were_named:
            return values
        import pandas as pd

        return pd.DataFrame(values, columns=self.label_names_, index=getattr(X, "index", None))

    def _collect(self, X: Any, answer: Any, what: str = "predict") -> Array:
        parts = [np.asarray(answer(dist).cpu().numpy(), dtype=np.float64) for _, dist in self._batches(X, what)]
        return np.concatenate(parts)

    def predict(self, X: Any) -> Any:
        """Conditional mean of the label distribution (N, L); rows sum to one."""
        return self._named(self._collect(X, lambda dist: dist.mean), X)

    def predict_var(self, X: Any) -> Any:
        """Conditional variance of each share (N, L)."""
        return self._named(self._collect(X, lambda dist: dist.variance), X)

    def predict_mean_var(self, X: Any) -> tuple[Any, Any]:
        """Mean and variance (N, L) in one pass."""
        both = self._collect(X, lambda dist: torch.stack(dist.mean_and_variance(), 1))
        return self._named(both[:, 0], X), self._named(both[:, 1], X)

    def predict_cov(self, X: Any) -> Array:
        """Conditional covariance (N, L, L)."""
        return self._collect(X, lambda dist: dist.covariance_matrix)

    def predict_quantiles(self, X: Any, alpha: Any) -> Array:
        """Exact marginal quantiles (N, L, len(alpha)) at the levels alpha."""
        levels = np.atleast_1d(np.asarray(alpha, dtype=np.float64))
        if levels.ndim != 1 or not ((levels >= 0) & (levels <= 1)).all():
            raise InputError(f"alpha must hold levels between 0 and 1; got {alpha!r}.")

        def answer(dist: SnefySimplex) -> Tensor:
            return torch.stack([dist.marginal(r).quantiles(levels) for r in range(self.n_labels_)], 1)

        return self._collect(X, answer, "quantiles")

    def predict_interval(self, X: Any, confidence_level: float = 0.9) -> Array:
        """Exact central marginal interval (N, L, 2) of the model; not conformal."""
        tail = 0.5 * (1.0 - check_confidence(confidence_level))
        return self.predict_quantiles(X, [tail, 1.0 - tail])

    def predict_dist(self, X: Any) -> SnefySimplex:
        """The whole conditional law: a torch distribution with batch (N,) and event (L,)."""
        features, rows = self._inputs(X)
        scales = [dist.log_scale for _, dist in self._batches(X)]
        with torch.no_grad():
            one = self.net_(self._features_tensor(features, slice(0, 1), self.net_.readout.device))
        return SnefySimplex(one.exponents, one.readout, torch.cat(scales), validate_args=False)

    def log_prob(self, X: Any, D: Any = None, *, counts: Any = None) -> Array:
        """Log density (N,) at label distributions D, or the exact log probability of vote counts."""
        _, rows = self._inputs(X)
        if counts is not None:
            table = torch.as_tensor(check_counts(counts, n_rows=rows, n_labels=self.n_labels_)[0])
        else:
            checked, names = check_distributions(D, n_rows=rows, n_labels=self.n_labels_)
            table = torch.as_tensor(self.zero_policy_.apply(checked, names=names))
        parts = []
        for chunk, dist in self._batches(X):
            labels = table[chunk].to(self.net_.readout.device)
            parts.append(dist.log_prob(labels) if counts is None else dist.log_prob_counts(labels))
        return np.asarray(torch.cat(parts).cpu().numpy(), dtype=np.float64)

    def score(self, X: Any, D: Any = None, sample_weight: Any = None, *, counts: Any = None) -> float:
        """Mean log likelihood; higher is better."""
        values = self.log_prob(X, D, counts=counts)
        return float(np.average(values, weights=check_sample_weight(sample_weight, len(values))))

    def sample(self, X: Any, n: int = 1, random_state: Any = None) -> Array:
        """Exact draws (n, N, L) from the conditional law."""
        generator = self._generator(random_state)
        parts = [dist.sample((n,), generator).cpu().numpy() for _, dist in self._batches(X, "sample")]
        return np.concatenate(parts, axis=1)

    def entropy(
        self,
        X: Any,
        n: int = 1000,
        method: Literal["model", "uniform"] = "model",
        random_state: Any = 0,
        return_std_error: bool = False,
    ) -> Any:
        """Differential entropy (N,) by n draws a row: the model's exact draws, or the paper's uniform ones (A2)."""
        generator = self._generator(random_state)
        pairs = [dist.entropy(n, method, generator, return_std_error=True) for _, dist in self._batches(X, "entropy")]
        value, error = (np.concatenate([pair[i].cpu().numpy() for pair in pairs]) for i in (0, 1))
        return (value, error) if return_std_error else value

    def _generator(self, random_state: Any) -> torch.Generator:
        check_is_fitted(self, "net_")
        generator = torch.Generator(self.net_.readout.device)
        if isinstance(random_state, numbers.Integral):
            return generator.manual_seed(int(random_state))
        return generator.manual_seed(int(check_random_state(random_state).randint(2**31 - 1)))

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


class _Data:
    """What a fit was given, checked."""

    def __init__(
        self,
        features: Any,
        labels: Array,
        shares: Array,
        are_counts: bool,
        weights: Array | None,
        policy: ZeroPolicy,
        names: list[str] | None,
    ) -> None:
        self.features, self.labels, self.shares, self.are_counts = features, labels, shares, are_counts
        self.weights, self.policy, self.names = weights, policy, names

    def tensor(self, device: torch.device) -> Any:
        """Features on the device, dense float32."""
        if isinstance(self.features, np.ndarray):
            return torch.as_tensor(np.ascontiguousarray(self.features, dtype=np.float32), device=device)
        if sp.issparse(self.features):
            if 4 * math.prod(self.features.shape) > DENSE_BYTES:
                raise InputError(
                    f"sparse X of shape {self.features.shape} would take more than {DENSE_BYTES >> 30} GiB dense; "
                    "reduce its columns first (TruncatedSVD, or select features)."
                )
            return torch.as_tensor(self.features.astype(np.float32).toarray(), device=device)
        return backbones.to_device(self.features, device)

    def target(self, net: SnefyNet, device: torch.device) -> Target:
        """What the members must explain, on the device."""
        if self.are_counts:
            return CountTarget(torch.as_tensor(self.labels, device=device), net)
        return DistributionTarget(torch.as_tensor(self.shares, device=device).log(), net)


