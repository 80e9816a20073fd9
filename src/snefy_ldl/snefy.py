"""SnefyLDL: the scikit-learn shell around the squared family, and the only border between NumPy and torch."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from snefy_ldl._internal.memory import BACKBONE_ROWS, LARGEST_FEATURE, PREDICTION_ROWS, SMALL_BATCH
from snefy_ldl._internal.progress import Progress
from snefy_ldl._internal.rows import as_rows, count_rows, take_rows
from snefy_ldl._internal.threads import one_thread
from snefy_ldl._internal.types import Index, NamedTable
from snefy_ldl._internal.validation import (
    align_labels,
    as_float,
    check_choice,
    check_features,
    check_names,
    check_rows,
    check_same_index,
    known_labels,
)
from snefy_ldl.datasets.grouping import GroupedRows, split_rows
from snefy_ldl.datasets.objects import open_rows
from snefy_ldl.datasets.streams import as_stream
from snefy_ldl.distributions import SnefySimplex
from snefy_ldl.errors import InputError, ModelFileError
from snefy_ldl.networks.backbones import as_input, batch_of
from snefy_ldl.networks.custom import Backbone, BackboneLike
from snefy_ldl.persistence import Asked, read_model, save, unpack
from snefy_ldl.prediction import DistributionPredictor, Estimator, takes_groups
from snefy_ldl.training import CandidateSpec, FittedModel, Settings, Task, TrainingData
from snefy_ldl.training import choose as training
from snefy_ldl.training.policy import Parameters
from snefy_ldl.training.stored import pack_state, unpack_state
from snefy_ldl.training.stream_fit import StreamFit

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["SnefyLDL", "fit_many", "fit_stream"]

#: Blocks of rows above which a prediction shows its progress, if ``verbose`` is set.
MANY_BLOCKS = 50


def _part(field: str) -> Any:
    """A fitted attribute that shows one field of ``model_``."""
    return property(lambda self: getattr(self.model_, field))


class FittedParts:
    """The fitted state of an estimator and its parts, under the names that scikit-learn gives fitted attributes."""

    model_: FittedModel
    net_, guides_, columns_, inputs_ = _part("net"), _part("guides"), _part("columns"), _part("inputs")
    scaling_, history_, candidates_ = _part("scaling"), _part("history"), _part("candidates")
    n_labels_, label_names_, zero_policy_ = _part("n_labels"), _part("label_names"), _part("zero_policy")
    seen_rows_, _labels_were_named = _part("seen"), _part("labels_were_named")

    @property
    def training_(self) -> dict[str, Any]:
        """What the fit did."""
        return self.model_.summary

    @training_.setter
    def training_(self, summary: dict[str, Any]) -> None:
        self.model_ = replace(self.model_, summary=summary)

    @property
    def validation_log_prob_(self) -> Any:
        """Log density of every training row by networks that did not learn from it; None if none was held back."""
        return self.model_.held_log_prob

    @property
    def n_features_in_(self) -> int:
        """d."""
        return self._known("n_features_in_", self.model_.n_features)

    @property
    def feature_names_in_(self) -> Any:
        """Names of the features (d,)."""
        return np.array(self._known("feature_names_in_", self.model_.feature_names), dtype=object)

    @staticmethod
    def _known(name: str, value: Any) -> Any:
        if value is None:
            raise AttributeError(f"this fit has no {name}")
        return value


@dataclass(eq=False, repr=False, kw_only=True)
class SnefyLDL(Parameters, FittedParts, DistributionPredictor, Estimator):
    """Label distribution learning with a full conditional density ``p(ℓ|x)`` over the simplex.

    The density is the squared neural family (Zhang, Tsuchida, Sejdinovic; UAI 2025): mean, variance, covariance,
    marginal quantiles, draws and vote probabilities are exact.

    By default ``fit`` tries several candidates and keeps the one that does best on validation rows (``candidates_``).
    ``guides=None, standardize="unit"`` switches that search off.

    Args:
        n_neurons: n, neurons of the density; it has n(n+1)/2 Dirichlet components.
        n_readouts: m, rows of the readout V.
        hidden_sizes: widths of the network that sees x; empty for a linear one.
        columns: what the columns of a DataFrame are: "auto" looks at each (numbers, categories, dates, names of rows
            and constants, which are left out), a dict such as ``{"site": "category", "code": "drop"}`` overrides some:
            "number", "category", "date", "id" or "drop". In arrays NaN is a missing cell.
        backbone: instead of that network, any ``nn.Module`` returning (rows, width), a function that makes one, or a
            :class:`snefy_ldl.Backbone`, with settings of training; X may then be arrays and tensors of any rank, nested
            in tuples and dicts, texts, graphs, a data set or a loader. None: the library's own network.
        n_members: networks whose densities are averaged; every closed form stays exact. "auto" takes one, but three
            where guides are seen by up to 10,000 rows, and five below 500 rows: each leaves out another fifth of the
            rows to validate on, and all stop at one common epoch.
        epochs: passes over the data.
        batch_size: rows per step; "auto" picks 16 to 2,048 by the number of rows.
        learning_rate: peak rate of AdamW; 1.6 to 2.4 times that where "auto" doubles the rows per step to 128.
        weight_decay: AdamW's decay of the network's matrices.
        validation_fraction: part of the rows kept aside to pick the best epoch, in [0, 1); 0 keeps the last.
        patience: epochs without progress on those rows before stopping; None runs all epochs.
        standardize: "auto" ("unit" with guides, else by validation likelihood), "unit", "pooled" or False; see
            :mod:`snefy_ldl.networks.backbones`.
        zeros: what happens to shares of exactly zero: "shrink" lifts rows that hold a zero just above it, "error"
            refuses them, a number is the floor itself. :class:`snefy_ldl.LogRatioLDL` models zeros. See
            :class:`snefy_ldl.datasets.zeros.ZeroPolicy`.
        guides: quick point learners whose cross-fitted predictions the network may see: "auto" (SA-BFGS and extremely
            randomised trees, if validation rows favour them over, or next to, the features), None, or a list of your
            own regressors, so that any tuned model becomes a full density.
        candidates: what to compare instead of the library's own choice, such as ``[CandidateSpec("both", "pooled")]``
            (:class:`snefy_ldl.training.CandidateSpec`); not written to files.
        device: "auto" (a GPU if available), "cpu", "cuda", ...
        random_state: seed, NumPy generator or None; the same seed gives the same bits on one machine.
        verbose: 1 shows progress on stderr.
        warm_start: a further ``fit`` goes on from the present weights.
        checkpoint_dir: folder for a checkpoint after every epoch; a killed fit goes on from it. None: no checkpoint.
        recipe: "default", or "paper" or "paper-sgd" for the training the paper describes (:meth:`paper`).

    Attributes:
        model_: the fitted state, frozen; the attributes below are its parts.
        columns_: what makes features of a table's columns (:mod:`snefy_ldl.datasets.columns`), or None.
        net_: the trained members (:class:`snefy_ldl.networks.net.SnefyNet`).
        guides_: the fitted guides (:class:`snefy_ldl.training.guides.Guides`), or None.
        inputs_: what the network sees: "features", "guides" or "both".
        scaling_: how features are scaled: "unit", "pooled" or "none".
        history_: one record per epoch: ``epoch``, ``loss``, ``seconds``, and ``validation_loss`` where rows were held.
        candidates_: what the fit tried, one dict per candidate: ``name``, ``log_likelihood`` on validation rows,
            ``epochs``, ``networks``, ``seconds``, and ``outcome``: "kept", "not chosen" or "failed". Empty for streams
            and for models saved by older versions.
        training_: what the fit did: rows, epochs, best epoch and validation loss of each member, seconds, ...
            The validation loss is minus the mean log likelihood of the rows held back, as ``log_prob`` has it: of
            votes, the multinomial coefficient included. (``history_`` holds losses as training sees them, without it.)
        n_labels_: L.
        label_names_: names of the labels (L); made up where they had none.
        zero_policy_: what happens to shares of zero, as chosen in the fit.
        seen_rows_: fingerprints of the training rows (:class:`snefy_ldl._internal.seen.SeenRows`), or None.
        n_features_in_: d; not with a custom backbone.
        feature_names_in_: names of the features (d,); only where X had some.

    Example:
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=200, random_state=0)
        >>> model = SnefyLDL(epochs=5, random_state=0).fit(city.X, city.D)
        >>> model.predict(city.X[:2]).shape, model.predict_interval(city.X[:2]).shape
        ((2, 3), (2, 3, 2))
    """

    @classmethod
    def paper(
        cls,
        task: Literal["conformal", "active", "ensemble"] = "conformal",
        *,
        scaling: Literal["raw", "standard"] = "raw",
        optimizer: Literal["adam", "sgd"] = "adam",
        **changes: Any,
    ) -> SnefyLDL:
        """The paper's model: n = 64, m = 32, one ReLU layer, random start, clipped weights, 100 epochs.

        The paper leaves scaling, optimiser ("stochastic gradient descent"), rate and initialisation open; its
        conclusions depend on them, which the page on the reproduction shows. The initialisation is ``W1 ~ N(0, 2/L)``,
        clipped at -.495, and ``V ~ N(0, 1/(mn))``, as in PyLDL.

        Args:
            task: the experiment, which sets the batch size: 64 for "conformal", 16 for "active" and "ensemble".
            scaling: "raw" features, or "standard": mean 0 and deviation 1, clipped at ±5.
            optimizer: "adam", or "sgd" without momentum.
            changes: other constructor arguments, such as ``learning_rate``, 1e-3 unless given.

        Returns:
            An unfitted model.

        Raises:
            InputError: task, scaling or optimizer is none of these.

        Example:
            >>> SnefyLDL.paper("active", scaling="standard", random_state=0).batch_size
            16
        """
        sizes = {"conformal": 64, "active": 16, "ensemble": 16}
        check_choice("task", task, list(sizes))
        check_choice("scaling", scaling, ("raw", "standard"))
        check_choice("optimizer", optimizer, ("adam", "sgd"))
        settings: dict[str, Any] = {
            "epochs": 100,
            "batch_size": sizes[task],
            "learning_rate": 1e-3,
            "weight_decay": 0.0,
            "validation_fraction": 0.0,
            "standardize": "unit" if scaling == "standard" else False,
            "recipe": "paper" if optimizer == "adam" else "paper-sgd",
        }
        return cls(**(settings | changes))

    # -- fitting -----------------------------------------------------------------------------------------------------

    def fit(
        self,
        X: Any,
        D: Any = None,
        *,
        counts: Any = None,
        sample_weight: Any = None,
        y: Any = None,
    ) -> SnefyLDL:
        """Fit to label distributions, or to votes with ``fit(X, counts=K)``.

        Args:
            X: features (N, d): array, DataFrame, sparse matrix or tensor; with a backbone anything it takes, also a
                torch ``Dataset`` or ``DataLoader`` of pairs (x, shares) or (x, counts), which need no D.
            D: label distributions (N, L), rows that sum to one; NaN where a share is unknown (such a row contributes
                the density of its known shares). With ``warm_start`` a frame is aligned with the labels of the first
                fit by the names of its columns; rows go by position.
            counts: whole numbers of votes (N, L) instead; zeros and unequal totals are fine, NaN is a label that was
                not on offer.
            sample_weight: how much each row counts (N,); all alike by default.
            y: another name of D.

        Returns:
            The model itself.

        Raises:
            InputError: where data or settings break a rule; the message names the row, the column and the rule.
            TrainingError: a loss is not finite, or the checkpoint is another fit's.

        Example:
            >>> from snefy_ldl.datasets import make_annotators
            >>> votes = make_annotators(n=100, random_state=0)
            >>> SnefyLDL(epochs=1, random_state=0).fit(votes.X, counts=votes.counts).training_["epochs"]
            1
        """
        settings = self.settings()
        D = y if D is None else D
        if isinstance(X, GroupedRows):
            raise InputError("SnefyLDL learns nothing of groups: use GroupedLDL(SnefyLDL()).fit(X, D, groups=...).")
        if D is None and counts is None and as_stream(X) is not None:
            raise InputError("X is read as a stream: use snefy_ldl.snefy.fit_stream(model, X).")
        start = self.model_ if self.warm_start and hasattr(self, "model_") else None
        D, counts = _in_order(X, D, counts, sample_weight, start)
        data = TrainingData(X, D, counts, sample_weight, self.backbone, self._columns(start))
        if self.verbose and data.note is not None:
            print(f"note: {data.note}", file=sys.stderr)
        policy = None if start is None else start.zero_policy
        return self.adopt(*training.fit([Task(settings, data, start=start, policy=policy)]))

    def fit_in_groups(
        self, X: Any, groups: Any, D: Any = None, *, counts: Any = None, sample_weight: Any = None
    ) -> SnefyLDL:
        """Fit with whole groups held back, for :class:`~snefy_ldl.GroupedLDL`; labels as :meth:`fit` takes them."""
        data = TrainingData(X, D, counts, sample_weight, self.backbone, self.columns, groups=groups)
        return self.adopt(*training.fit([Task(self.settings(), data)]))

    def partial_fit(self, X: Any, D: Any = None, *, counts: Any = None, sample_weight: Any = None) -> SnefyLDL:
        """One pass over these rows at a constant rate; the first call also sets the model up from them.

        Args:
            X: features (N, d), as :meth:`fit` takes them.
            D: label distributions (N, L); or ``counts``. A frame is aligned with the first call's labels by name.
            counts: votes (N, L).
            sample_weight: how much each row counts (N,).

        Returns:
            The model itself.

        Raises:
            InputError: data or settings break a rule, or do not have the shape and labels of the first call's.
            TrainingError: a loss is not finite.

        Example:
            >>> from snefy_ldl.datasets import make_city_districts
            >>> city = make_city_districts(n=100, random_state=0)
            >>> model = SnefyLDL(random_state=0)
            >>> for part in (slice(0, 50), slice(50, 100)):
            ...     model = model.partial_fit(city.X[part], city.D[part])
            >>> len(model.history_)
            2
        """
        settings = self.settings()
        start = getattr(self, "model_", None)
        D, counts = _in_order(X, D, counts, sample_weight, start)
        data = TrainingData(X, D, counts, sample_weight, self.backbone, self._columns(start), keep_constant=True)
        policy = start.zero_policy if start is not None and self.warm_start else None
        return self.adopt(*training.fit([Task(settings, data, start=start, one_pass=True, policy=policy)]))

    def adopt(self, state: FittedModel) -> Self:
        """Become the fitted model of a state; what was fitted before is forgotten.

        Args:
            state: what :func:`snefy_ldl.training.choose.fit` returned for this model's settings.

        Returns:
            The model itself.
        """
        self.model_ = state
        return self

    def _columns(self, start: FittedModel | None) -> Any:
        """How columns are read: where a fit goes on, as the first one did."""
        return self.columns if start is None or start.columns is None else start.columns

    def settings(self) -> Settings:
        """The parameters as training takes them, checked.

        Returns:
            The settings.

        Raises:
            InputError: where a parameter breaks its rule.

        Example:
            >>> SnefyLDL(epochs=3).settings().epochs
            3
        """
        return Settings(**{field.name: getattr(self, field.name) for field in fields(Parameters)})

    def settled(self) -> Self:
        """An unfitted copy whose fit compares nothing again: its only candidate is the one that this fit kept.

        Example:
            >>> from snefy_ldl.datasets import make_city_districts
            >>> city = make_city_districts(n=60, random_state=0)
            >>> SnefyLDL(epochs=1, guides=None, random_state=0).fit(city.X, city.D).settled().candidates[0].name
            'features'
        """
        copy: Self = clone(self)
        if hasattr(self, "model_"):
            copy.set_params(candidates=[CandidateSpec(self.inputs_, self.scaling_)])
            if self.inputs_ == "features":
                copy.set_params(guides=None)
        return copy

    # -- prediction (the rest is DistributionPredictor) ---------------------------------------------------------------

    def encode(self, X: Any) -> Any:
        """The numbers that the model makes of a table: text, dates and gaps as the fit read them.

        Args:
            X: features (N, d), as :meth:`fit` takes them.

        Returns:
            Numbers (N, d'), sparse where X is; with a backbone, rows as it takes them.

        Raises:
            InputError: where X does not fit the model.
            NotFittedError: before a fit.

        Example:
            >>> from snefy_ldl.datasets import make_city_districts
            >>> city = make_city_districts(n=60, random_state=0)
            >>> SnefyLDL(epochs=1, random_state=0).fit(city.X, city.D).encode(city.X[:4]).shape
            (4, 5)
        """
        if not hasattr(self, "model_"):  # scikit-learn's check takes longer than a small prediction
            check_is_fitted(self, "model_")
        if isinstance(X, GroupedRows):
            X = X.X
        if self.backbone is not None:
            backbone = Backbone.of(self.backbone)
            return open_rows(X, backbone.collate, self.n_labels_, backbone.workers)
        columns = self.model_.columns
        if isinstance(X, np.ndarray) and columns is not None and columns.is_plain:
            features = check_features(X, n_features=self.n_features_in_, largest=LARGEST_FEATURE, missing=True)
            return columns.transform(X) if np.isnan(features).any() else features
        if columns is not None:
            return columns.transform(X)
        check_names(X, getattr(self, "feature_names_in_", None))
        return check_features(X, n_features=self.n_features_in_, largest=LARGEST_FEATURE)

    def _blocks(self, X: Any, what: str = "predict", **context: Any) -> Iterator[tuple[slice, SnefySimplex]]:
        stream, done = None if hasattr(X, "shape") else as_stream(X), 0
        if stream is not None:
            for chunk in stream.chunks():
                for block, dist in self._blocks(chunk.X, what):
                    yield slice(done + block.start, done + block.stop), dist
                done += len(chunk)
            return
        features, net = self.encode(X), self.net_
        for block in row_blocks(self, features.shape[0] if self.backbone is None else count_rows(features), what):
            with torch.no_grad(), one_thread(self.backbone is None and block.stop - block.start <= SMALL_BATCH):
                dist = net(self._inputs(features, block))
            yield block, dist

    def _inputs(self, features: Any, block: slice) -> Any:
        """What the network takes of a block of encoded rows, on its device."""
        device, guides = self.net_.readout.device, self.guides_
        if self.backbone is not None:
            return batch_of(features, torch.arange(block.start, block.stop), device)
        seen = features[block] if guides is None else guides.inputs(features[block], self.inputs_)
        return as_input(seen, device)

    def predict_dist(self, X: Any) -> SnefySimplex:
        """The predicted distributions, from which every other prediction follows.

        Args:
            X: features (N, d), as :meth:`fit` takes them.

        Returns:
            A torch distribution with batch (N,) and event (L,).

        Raises:
            InputError: X does not fit the model.
            NotFittedError: before a fit.

        Example:
            >>> from snefy_ldl.datasets import make_city_districts
            >>> city = make_city_districts(n=60, random_state=0)
            >>> dist = SnefyLDL(epochs=1, random_state=0).fit(city.X, city.D).predict_dist(city.X[:4])
            >>> dist.mean.shape, dist.prob_greater(0, 1).shape
            (torch.Size([4, 3]), torch.Size([4]))
        """
        return join_blocks(self, self._blocks(X))

    # -- files -------------------------------------------------------------------------------------------------------

    def save(self, folder: str | Path) -> Path:
        """Write the model into a folder: safetensors weights and a JSON file; no pickle, and all or nothing.

        Args:
            folder: made where it is missing; a model in it is replaced.

        Returns:
            The folder.

        Raises:
            NotFittedError: before a fit.

        Example:
            >>> import tempfile
            >>> from snefy_ldl.datasets import make_city_districts
            >>> city = make_city_districts(n=60, random_state=0)
            >>> model = SnefyLDL(epochs=1, random_state=0).fit(city.X, city.D)
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     again = SnefyLDL.load(model.save(folder))
            >>> bool((again.predict(city.X) == model.predict(city.X)).all())
            True
        """
        check_is_fitted(self, "model_")
        return save(self, "SnefyLDL", folder)

    @classmethod
    def load(
        cls,
        folder: str | Path,
        backbone: BackboneLike | None = None,
        device: str | None = None,
        guides: Sequence[Any] | None = None,
    ) -> Self:
        """Read a model that :meth:`save` wrote; nothing in the folder is executed.

        Args:
            folder: where it is.
            backbone: needed again when the model was fitted with one: code is never saved.
            device: where to put it; as it was constructed by default.
            guides: fitted guides, needed again if the model was fitted with ones that could not be saved.

        Returns:
            The fitted model; :meth:`save` has an example.

        Raises:
            ModelFileError: a file is missing, damaged, foreign or of a newer version, or a backbone is needed.
        """
        config, arrays = read_model(Path(folder))
        if config["kind"] != "SnefyLDL":
            raise ModelFileError(f"{folder} holds a {config['kind']}: snefy_ldl.load(folder) reads it.")
        model: Self = unpack(cls, config, arrays, Asked(Path(folder), backbone, device, guides))
        return model

    def pack(self, arrays: dict[str, Any]) -> dict[str, Any]:
        """What JSON holds of the model; its arrays are put into a dict (:mod:`snefy_ldl.persistence`)."""
        return pack_state(self.get_params(deep=False), self.model_, arrays)

    @classmethod
    def unpack(cls, config: dict[str, Any], arrays: dict[str, Any], asked: Asked) -> Self:
        """The model that :meth:`pack` packed."""
        parameters, state = unpack_state(config, arrays, asked)
        return cls(**parameters).adopt(state)

    # -- scikit-learn ------------------------------------------------------------------------------------------------

    @classmethod
    @cache  # scikit-learn reads the signature again for every clone, which a hundred models feel
    def _get_param_names(cls) -> list[str]:
        return list(super()._get_param_names())


def row_blocks(model: SnefyLDL, n_rows: int, what: str) -> Iterator[slice]:
    """Consecutive blocks of rows that a fitted model predicts at a time, with progress shown for many of them."""
    step = max(256, PREDICTION_ROWS // model.net_.n_members) if model.backbone is None else BACKBONE_ROWS
    blocks = [slice(start, min(start + step, n_rows)) for start in range(0, n_rows, step)]
    if not model.verbose or len(blocks) <= MANY_BLOCKS:
        yield from blocks
        return
    with Progress(what, len(blocks)) as progress:
        for block in blocks:
            yield block
            progress.advance()


def join_blocks(model: Any, blocks: Iterator[tuple[slice, SnefySimplex]]) -> SnefySimplex:
    """The distributions of all blocks as one, under the names of the model's labels where those had names."""
    parts = [dist for _, dist in blocks]
    dist = parts[0] if len(parts) == 1 else parts[0].joined(parts)
    return dist.named(known_labels(model)).checking()


def _in_order(X: Any, D: Any, counts: Any, sample_weight: Any, start: FittedModel | None) -> tuple[Any, Any]:
    """Labels aligned with those of an earlier fit by name; raises if two indexes hold the same rows shuffled."""
    for what, table in (("D", D), ("counts", counts), ("sample_weight", sample_weight)):
        check_same_index(X, table, ("X", what))
    if start is None or not start.labels_were_named:
        return D, counts
    aligned = (
        table
        if table is None
        else NamedTable.of(as_float(align_labels(table, start.label_names, what), what), start.label_names)
        for what, table in (("D", D), ("counts", counts))
    )
    return next(aligned), next(aligned)


# -- many models at once -----------------------------------------------------------------------------------------------


def fit_many(
    estimator: SnefyLDL,
    X: Any,
    D: Any = None,
    splits: Iterable[Any] = (),
    params: Sequence[Mapping[str, Any]] | None = None,
    *,
    counts: Any = None,
    sample_weight: Any = None,
    n_jobs: int | None = None,
) -> list[SnefyLDL]:
    """Fit one model per split, trained together; model k gets what a lone fit on its rows with its settings gets.

    Args:
        estimator: settings of all models; left unfitted.
        X: features of all rows (N, d), as :meth:`SnefyLDL.fit` takes them.
        D: label distributions of all rows (N, L); or ``counts``.
        splits: for each model its training rows (an index array or a boolean mask (N,)), or a (train, test) pair as
            scikit-learn's splitters give, of which the first counts.
        params: for each model what differs from ``estimator``, e.g. ``{"random_state": 3, "learning_rate": 1e-3}``;
            nothing by default.
        counts: votes (N, L) instead of label distributions.
        sample_weight: row weights (N,); all alike by default.
        n_jobs: processes on a CPU, as scikit-learn counts them: None is all cores if there are guides, else one.

    Returns:
        Fitted models, in the order of the splits.

    Raises:
        InputError: where data, settings or splits break a rule; before any work starts.
        TrainingError: a loss is not finite.

    Example:
        >>> import numpy as np
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=200, random_state=0)
        >>> halves = [np.arange(0, 100), np.arange(100, 200)]
        >>> models = fit_many(SnefyLDL(epochs=2, random_state=0), city.X, city.D, halves)
        >>> len(models), models[0].predict(city.X[:2]).shape
        (2, (2, 3))
    """
    estimator.settings()
    D, counts = _in_order(X, D, counts, sample_weight, None)
    data = TrainingData(X, D, counts, sample_weight, estimator.backbone, estimator.columns)
    rows = [_rows(split, data.n_rows, k) for k, split in enumerate(splits)]
    if not rows:
        raise InputError("fit_many needs at least one split: the training rows of each model.")
    if params is not None and len(params) != len(rows):
        raise InputError(f"params must hold one entry per split; got {len(params)} for {len(rows)} splits.")
    models = [clone(estimator) for _ in rows]
    for model, changes in zip(models, params or []):
        model.set_params(**changes)
    settings = [model.settings() for model in models]
    if data.columns is not None and (data.columns.has_gaps or not data.columns.is_plain):
        # each model learns from its rows alone what the columns are
        table, targets = as_rows(X), {"D": D, "counts": counts, "sample_weight": sample_weight}
        parts = [{k: None if v is None else take_rows(as_rows(v), r) for k, v in targets.items()} for r in rows]
        return [model.fit(take_rows(table, split), **part) for model, split, part in zip(models, rows, parts)]
    tasks = [Task(part, data, split, warn=False) for part, split in zip(settings, rows)]
    return [model.adopt(state) for model, state in zip(models, training.fit(tasks, n_jobs))]


def fit_folds(
    model: Any, X: Any, D: Any, splits: Iterable[Index], n_jobs: int | None = None, below: Any = None
) -> list[Any]:
    """One fitted clone per split, by the fastest way there is for the model.

    A model's own ``fit_folds(X, D, splits)`` comes first; a :class:`SnefyLDL` is fitted by :func:`fit_many`; anything
    else that scikit-learn can clone is fitted once per split.

    Args:
        model: an unfitted estimator; it stays as it is.
        X: features of all rows.
        D: label distributions of all rows (N, L).
        splits: training rows of each clone.
        n_jobs: processes on a CPU, for :func:`fit_many`.
        below: limits of shares (N, L), NaN if exact, for models with log-ratios.

    Returns:
        Fitted clones, in the order of the splits.

    Example:
        >>> import numpy as np
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=200, random_state=0)
        >>> halves = [np.arange(0, 100), np.arange(100, 200)]
        >>> len(fit_folds(SnefyLDL(epochs=2, random_state=0), city.X, city.D, halves))
        2
    """
    if not takes_groups(model):
        X = split_rows(X)[0]
    if below is not None:
        return [clone(model).fit(take_rows(X, rows), D[rows], below=below[rows]) for rows in splits]
    if callable(getattr(model, "fit_folds", None)):
        return list(model.fit_folds(X, D, splits))
    if getattr(type(model), "fit", None) is SnefyLDL.fit:  # a subclass may fit in its own way
        return list(fit_many(model, X, D, splits, n_jobs=n_jobs))
    return [clone(model).fit(take_rows(X, rows), take_rows(D, rows)) for rows in splits]


def _rows(split: Any, n_rows: int, k: int) -> Index:
    """Training rows of one split as whole numbers."""
    if isinstance(split, tuple) and len(split) == 2:
        split = split[0]
    return check_rows(split, n_rows, f"split {k}")


def fit_stream(model: SnefyLDL, rows: Any) -> SnefyLDL:
    """Fit a model to rows that are read a chunk at a time and need not fit into memory.

    What needs all rows beforehand is settled simply: no guides, zeros are shrunk, and features are scaled by the first
    chunk.

    Args:
        model: with its settings; fitted in place.
        rows: a torch ``DataLoader`` or ``IterableDataset`` of pairs (x, shares) or (x, counts), or a
            :class:`snefy_ldl.datasets.streams.Stream`.

    Returns:
        The model itself.

    Raises:
        InputError: the stream is empty or has no labels, or a chunk breaks a rule.
        TrainingError: a loss is not finite.

    Example:
        >>> from snefy_ldl.datasets.streams import Stream
        >>> blocks = lambda: ((np.eye(3), np.full((3, 2), 0.5)) for _ in range(4))
        >>> fit_stream(SnefyLDL(epochs=1, random_state=0), Stream(blocks)).n_labels_
        2
    """
    stream = as_stream(rows)
    if stream is None:
        raise InputError(f"fit_stream reads loaders, iterable data sets and streams; got {type(rows).__name__}.")
    fit = StreamFit(model.settings(), stream, model.columns)
    total, done = fit.schedule.epochs, fit.run.next_epoch
    with Progress("stream", total, show=model.verbose >= 1, completed=done) as progress:
        while not fit.finished:
            fit.epoch()
            progress.update(fit.run.next_epoch, f"loss {fit.run.history[-1]['loss']:.3f}")
    return model.adopt(fit.model())
