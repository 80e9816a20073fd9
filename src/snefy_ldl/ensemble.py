"""Bagging whose members are weighted, row by row, by a conditional density (the paper's Algorithm A4)."""

from __future__ import annotations

import numbers
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from scipy.special import logsumexp
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted

from snefy_ldl._internal.files import write_json
from snefy_ldl._internal.types import Array
from snefy_ldl._internal.validation import check_choice, check_count, check_number
from snefy_ldl.errors import InputError, ModelFileError
from snefy_ldl.learners.learner import Learner, close_rows, seeded_clone
from snefy_ldl.persistence import load, make_head, read_description

__all__ = ["DensityWeightedBagging"]

FILE_FORMAT, CONFIG_FILE = "snefy_ldl.ensemble", "ensemble.json"
#: Settings that the file holds.
PARAMETERS = ("n_members", "n_samples", "weighting", "random_state")


@dataclass(eq=False, repr=False)
class DensityWeightedBagging(Learner):
    """Average of base learners, each fitted to a few rows, weighted by how plausible a density finds its prediction.

    ``ℓ̂(x) = Σ_i w_i(x) ℓ_i(x)`` with ``w_i(x) ∝ p(ℓ_i(x)|x)`` (Algorithm A4).

    Args:
        base: a label distribution learner (fit, predict); cloned for each member.
        density: a model of ``p(ℓ|x)`` with ``log_prob(X, D)``. Unfitted: a clone is fitted to all training rows.
            Fitted: used as it is and left unchanged. None if the weights are uniform.
        n_members: members.
        n_samples: rows each member is fitted to, drawn without replacement: a number, or a share of the rows in (0, 1].
        weighting: ``"density"``, or ``"uniform"``, the paper's Average.
        random_state: seed of the draws and of the members.

    Attributes:
        members_: fitted base learners.
        density_: the density in use.
        samples_: rows each member saw, (n_members, rows).

    Example:
        >>> from snefy_ldl.learners import SABFGS, DirichletLDL
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=200, random_state=0)
        >>> bag = DensityWeightedBagging(SABFGS(), DirichletLDL(), n_members=5, random_state=0).fit(city.X, city.D)
        >>> bag.predict(city.X[:2]).shape, bag.weights(city.X[:2]).shape
        ((2, 3), (2, 5))
    """

    base: Any
    density: Any = None
    n_members: int = 25
    n_samples: float = 50
    weighting: Literal["density", "uniform"] = "density"
    random_state: Any = None

    def _check_params(self) -> None:
        if isinstance(self.base, type) or not (hasattr(self.base, "fit") and hasattr(self.base, "predict")):
            raise InputError(f"base must be a learner with fit and predict; got {self.base!r}.")
        check_choice("weighting", self.weighting, ("density", "uniform"))
        if self.density is None and self.weighting == "density":
            raise InputError('weighting="density" needs a density, e.g. SnefyLDL(); for a plain average use "uniform".')
        if self.density is not None and not hasattr(self.density, "log_prob"):
            raise InputError(f"density must have log_prob(X, D); got {self.density!r}.")
        check_count("n_members", self.n_members)
        if isinstance(self.n_samples, numbers.Integral):
            check_count("n_samples", self.n_samples)
        elif check_number("n_samples", self.n_samples, strict=True) > 1.0:
            raise InputError(f"n_samples must be a whole number or a share in (0, 1]; got {self.n_samples!r}.")

    # -- fitting -----------------------------------------------------------------------------------------------------

    def _fit(self, X: Array, D: Array, random: np.random.RandomState) -> None:
        n_rows = len(X)
        whole = isinstance(self.n_samples, numbers.Integral)
        size = int(self.n_samples) if whole else max(1, round(float(self.n_samples) * n_rows))
        if size > n_rows:
            raise InputError(
                f"n_samples={self.n_samples} rows per member, drawn without replacement, but X has {n_rows}."
            )
        self.samples_ = np.stack([random.permutation(n_rows)[:size] for _ in range(self.n_members)])
        seeds = random.randint(2**31 - 1, size=self.n_members + 1).tolist()
        self.density_ = self.density
        if self.density is not None and not _is_fitted(self.density):
            self.density_ = seeded_clone(self.density, seeds[0], keep=True).fit(X, D)
        n_labels = getattr(self.density_, "n_labels_", D.shape[1])
        if n_labels != D.shape[1]:
            raise InputError(f"D has {D.shape[1]} labels, but the density was fitted with {n_labels}.")
        density_names, names = (getattr(one, "feature_names_in_", None) for one in (self.density_, self))
        if density_names is not None and names is not None and list(density_names) != list(names):
            raise InputError("the density was fitted with other feature names than X has.")
        models = [seeded_clone(self.base, seed) for seed in seeds[1:]]
        self.members_: list[Any] = [model.fit(X[rows], D[rows]) for model, rows in zip(models, self.samples_)]

    # -- predictions -------------------------------------------------------------------------------------------------

    def predict_members(self, X: Any) -> Array:
        """What each member predicts.

        Args:
            X: features (N, d).

        Returns:
            Label distributions, (n_members, N, L).
        """
        return self._members(self._check_X(X))

    def weights(self, X: Any) -> Array:
        """Weight of each member for each row.

        Args:
            X: features (N, d).

        Returns:
            Weights, (N, n_members); rows sum to one.
        """
        features = self._check_X(X)
        return self._weights(features, self._members(features))

    def effective_members(self, X: Any) -> Array:
        """Effective number of members ``1 / Σ_i w_i²``: 1 when one decides, n_members when all do.

        Args:
            X: features (N, d).

        Returns:
            Numbers from 1 to n_members, (N,).
        """
        return 1.0 / (self.weights(X) ** 2).sum(axis=1)

    def _for_density(self, features: Array) -> Any:
        """Features under the names of a density, if it was fitted with names."""
        names = getattr(self.density_, "feature_names_in_", None)
        if names is None:
            return features
        import pandas as pd

        return pd.DataFrame(features, columns=names)

    def _members(self, features: Array) -> Array:
        predictions = [np.asarray(member.predict(features)) for member in self.members_]
        return np.stack([close_rows(shares, self.share_floor_) for shares in predictions])

    def _predict(self, X: Array) -> Array:
        predictions = self._members(X)  # (K, N, L)
        return np.einsum("nk,knl->nl", self._weights(X, predictions), predictions)

    def _weights(self, features: Array, predictions: Array) -> Array:
        """Weights (N, K)."""
        if self.weighting == "uniform":
            return np.full((len(features), len(predictions)), 1.0 / len(predictions))
        X = self._for_density(features)
        logs = np.stack([np.asarray(self.density_.log_prob(X, D)) for D in predictions], axis=1)
        logs = np.where(np.isnan(logs), -np.inf, logs)
        # a density that finds every prediction impossible has no opinion
        logs = np.where(np.isneginf(logs).all(axis=1, keepdims=True), 0.0, logs)
        return np.exp(logs - logsumexp(logs, axis=1, keepdims=True))

    # -- files -------------------------------------------------------------------------------------------------------

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write the ensemble to a folder: one saved model per member, one for the density, and ``ensemble.json`` last.

        Args:
            folder: where; an ensemble that is there is replaced, anything else is left alone.

        Returns:
            The folder.

        Raises:
            ModelFileError: the folder holds something else, or a member is not of this library.
        """
        check_is_fitted(self, "n_labels_")
        return _write(self, Path(folder))

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> DensityWeightedBagging:
        """Read an ensemble that :meth:`save` wrote; nothing in the folder is executed.

        Args:
            folder: where it is.

        Returns:
            The fitted ensemble.

        Raises:
            ModelFileError: the folder is missing, damaged, foreign or of a newer version.
        """
        return _read(cls, Path(folder))


def _is_fitted(model: Any) -> bool:
    """Whether a density can answer already; an object that cannot be fitted can."""
    if not hasattr(model, "fit"):
        return True
    try:
        check_is_fitted(model)
    except (NotFittedError, TypeError):
        return False
    return True


def _write(bag: DensityWeightedBagging, path: Path) -> Path:
    if path.exists() and not (path / CONFIG_FILE).is_file() and (path.is_file() or any(path.iterdir())):
        raise ModelFileError(f"{path} exists and holds no saved ensemble; it was left alone.")
    for part in [*bag.members_, *([] if bag.density_ is None else [bag.density_])]:
        if not hasattr(part, "save"):
            raise ModelFileError(f"{type(part).__name__} cannot be saved; save needs this library's own models.")
    (path / CONFIG_FILE).unlink(missing_ok=True)
    shutil.rmtree(path / "members", ignore_errors=True)
    for k, member in enumerate(bag.members_):
        member.save(path / "members" / f"{k:04d}")
    if bag.density_ is not None:
        bag.density_.save(path / "density")
    names = getattr(bag, "feature_names_in_", None)
    params = {name: getattr(bag, name) for name in PARAMETERS}
    if not isinstance(bag.random_state, numbers.Integral):
        params["random_state"] = None  # a generator has no place in a file
    description = {
        **make_head(FILE_FORMAT),
        **{name: value.item() if isinstance(value, np.generic) else value for name, value in params.items()},
        "n_features": bag.n_features_in_,
        "n_labels": bag.n_labels_,
        "label_names": bag.label_names_,
        "feature_names": None if names is None else [str(name) for name in names],
        "samples": bag.samples_.tolist(),
    }
    write_json(path / CONFIG_FILE, description)
    return path


def _read(cls: type[DensityWeightedBagging], path: Path) -> DensityWeightedBagging:
    description = read_description(path / CONFIG_FILE, FILE_FORMAT)
    try:
        members = [load(path / "members" / f"{k:04d}") for k in range(description["n_members"])]
        density = load(path / "density") if (path / "density").is_dir() else None
        bag = cls(clone(members[0]), density, **{name: description[name] for name in PARAMETERS})
        bag.members_, bag.density_ = members, density
        bag.samples_ = np.array(description["samples"], dtype=np.intp)
        bag.n_features_in_, bag.n_labels_ = int(description["n_features"]), int(description["n_labels"])
        bag.label_names_ = description["label_names"]
        if description["feature_names"] is not None:
            bag.feature_names_in_ = np.array(description["feature_names"], dtype=object)
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, ModelFileError):
            raise
        raise ModelFileError(f"{path / CONFIG_FILE} is damaged: {type(error).__name__} {error}.") from None
    return bag
