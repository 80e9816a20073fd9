"""SnefyLDL: the scikit-learn shell around the density, and the only border between NumPy and torch."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any, Literal

import numpy as np
import torch
from sklearn.base import BaseEstimator, clone
from sklearn.utils import RegressorTags, Tags
from sklearn.utils.validation import check_is_fitted

from snefy_ldl._internal.limits import BACKBONE_ROWS, LARGEST_FEATURE, PREDICTION_ROWS, SMALL_BATCH
from snefy_ldl._internal.persistence import StoredModel
from snefy_ldl._internal.progress import track
from snefy_ldl._internal.rows import as_rows, count_rows, take_rows
from snefy_ldl._internal.threads import one_thread
from snefy_ldl._internal.types import Index
from snefy_ldl._internal.validation import (
    ZeroOption,
    ZeroPolicy,
    check_choice,
    check_counts,
    check_distributions,
    check_features,
    check_names,
    check_rows,
)
from snefy_ldl.datasets.groups import GroupedRows, in_groups, read_groups, split_rows
from snefy_ldl.datasets.objects import open_rows
from snefy_ldl.datasets.streams import as_stream
from snefy_ldl.datasets.votes import VoteTable
from snefy_ldl.distributions import SnefySimplex
from snefy_ldl.errors import InputError
from snefy_ldl.networks.custom import Backbone, BackboneLike
from snefy_ldl.networks.head import SnefyHead
from snefy_ldl.training import FittedState, Job, Settings, TrainingData, network_inputs
from snefy_ldl.training.annotators import fit_annotators, learn_new
from snefy_ldl.training.fit import fit, fit_stream
from snefy_ldl.training.groups import forget_groups
from snefy_ldl.training.settings import Parameters
from snefy_ldl.votes.annotators import AnnotatorPredictor

#: Blocks of rows above which a prediction shows its progress, where ``verbose`` asks for it.
MANY_BLOCKS = 50


@dataclass(eq=False, repr=False, kw_only=True)
class SnefyLDL(Parameters, StoredModel, AnnotatorPredictor, BaseEstimator):  # type: ignore[misc]
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
            and constants, which are left out), a dict such as ``{"site": "category", "code": "drop"}`` says it of some:
            "number", "category", "date", "id" or "drop". In arrays NaN is a missing cell.
        backbone: instead of that network, any ``nn.Module`` returning (rows, width), a function that makes one, or a
            :class:`snefy_ldl.Backbone`, which says how it trains; X may then be arrays and tensors of any rank, nested
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
        standardize: "auto" (by validation likelihood), "unit", "pooled" or False; see
            :mod:`snefy_ldl.networks.scaling`.
        zeros: what happens to shares of exactly zero: "shrink" lifts rows that hold a zero just above it, "error"
            refuses them, a number is the floor itself. :class:`snefy_ldl.LogRatioLDL` models zeros. See
            :class:`snefy_ldl._internal.validation.ZeroPolicy`.
        guides: quick point learners whose cross-fitted predictions the network may see: "auto" (SA-BFGS and extremely
            randomised trees, if validation rows favour them over, or next to, the features), None, or a list of your
            own regressors, so that any tuned model becomes a full density.
        device: "auto" (a GPU where there is one), "cpu", "cuda", ...
        random_state: seed, NumPy generator or None; the same seed gives the same bits on one machine.
        verbose: 1 shows progress on stderr.
        recipe: "default", or "paper" for the training the paper describes (:meth:`paper`).
        warm_start: a further ``fit`` goes on from the present weights.
        checkpoint_dir: folder for a checkpoint after every epoch; a killed fit goes on from it. None: no checkpoint.
        group_effects: where ``fit`` is given groups: "auto" learns how far each group lies from where its features put
            it, and uses that where validation rows favour it (where features tell as much, rows are fitted as without
            groups); None splits rows by group and does no more.

    Attributes:
        columns_: what makes features of a table's columns (:mod:`snefy_ldl.datasets.columns`), or None.
        net_: the trained members (:class:`snefy_ldl.networks.net.SnefyNet`).
        guides_: the fitted guides (:class:`snefy_ldl.training.guides.Guides`), or None.
        inputs_: what the network sees: "features", "guides" or "both".
        scaling_: how features are scaled: "unit", "pooled" or "none".
        history_: one record per epoch: ``epoch``, ``loss``, ``seconds``, and ``validation_loss`` where rows were held.
        candidates_: what the fit tried, one dict per candidate: ``name``, ``log_likelihood`` and ``kl`` on validation
            rows, ``epochs``, ``networks``, ``seconds``, and ``outcome``: "kept", "not chosen", "dropped early" or
            "failed". Empty for streams and for models saved by older versions.
        training_: what the fit did: rows, epochs, best epoch and validation loss of each member, repairs, seconds, ...
            The validation loss is minus the mean log likelihood of the rows held back, as ``log_prob`` has it: of
            votes, the multinomial coefficient included. (``history_`` holds losses as training sees them, without it.)
        n_labels_: L.
        label_names_: names of the labels (L); made up where they had none.
        zero_policy_: what happens to shares of zero, as settled by the fit.
        seen_rows_: fingerprints of the training rows (:class:`snefy_ldl._internal.seen.SeenRows`), or None.
        group_effects_: what is known of groups (:class:`snefy_ldl.training.effects.GroupEffects`), or None.
        self_check_: whether quantiles of the fitted law agree with its draws, a dict; None in an old file.
        annotators_: what a fit to single votes learnt about who cast them (:class:`snefy_ldl.votes.Annotators`), or
            None.
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
    def paper(cls, task: Literal["conformal", "active", "ensemble"] = "conformal", **changes: Any) -> SnefyLDL:
        """The paper's model as it describes it: random start, raw features, Adam, clipped weights, 100 epochs.

        Args:
            task: the experiment, which sets the batch size: 64 for "conformal", 16 for "active" and "ensemble".
            changes: other constructor arguments.

        Returns:
            An unfitted model.

        Raises:
            InputError: where the task is none of these.

        Example:
            >>> SnefyLDL.paper("active", random_state=0).batch_size
            16
        """
        sizes = {"conformal": 64, "active": 16, "ensemble": 16}
        check_choice("task", task, list(sizes))
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

    @classmethod
    def from_head(
        cls, backbone: BackboneLike, head: SnefyHead, X: Any, *, label_names: Any = None, zeros: ZeroOption = "shrink"
    ) -> SnefyLDL:
        """A fitted model of a network that was trained in a loop of your own.

        It answers, conformalizes, saves, serves and exports as any other model; its code is named again at loading,
        ``SnefyLDL.load(folder, backbone=...)``. Later training of the network does not change it.

        Args:
            backbone: the trained module whose features the head took, or a :class:`snefy_ldl.Backbone` around it where
                batches need a ``collate``.
            head: the trained :class:`snefy_ldl.SnefyHead`.
            X: some rows as the backbone takes them; a few are read, to see that both fit.
            label_names: of the labels (L); made up where there are none.
            zeros: what :meth:`log_prob` and scores do with shares of exactly zero: "shrink" lifts them to 1/(20 L),
                "error" refuses them, a number is the floor itself.

        Returns:
            The fitted model.

        Raises:
            InputError: where backbone, head and X do not fit each other, or the names are not one per label.

        Example:
            >>> from snefy_ldl import SnefyHead
            >>> body, head = torch.nn.Linear(5, 8), SnefyHead(8, n_labels=3, n_neurons=6)
            >>> X = np.random.default_rng(0).normal(size=(10, 5))
            >>> SnefyLDL.from_head(body, head, X).predict_interval(X, 0.9).shape
            (10, 3, 2)
        """
        settings, net = head.behind(backbone, X)
        n_labels = head.n_labels
        names = [f"label_{r}" for r in range(n_labels)] if label_names is None else [str(name) for name in label_names]
        if len(names) != n_labels or len(set(names)) < n_labels:
            raise InputError(f"label_names must be {n_labels} different names, one per label; got {names}.")
        n_neurons, n_readouts = net.raw_exponents.shape[1], net.readout.shape[1]
        model = cls(
            n_neurons=n_neurons,
            n_readouts=n_readouts,
            n_members=net.n_members,
            backbone=settings,
            zeros=zeros,
            guides=None,
        )
        policy = ZeroPolicy.from_data(np.full((1, n_labels), 1.0 / n_labels), zeros)
        return model.adopt(FittedState.of_net(net, policy, names, label_names is not None))

    # -- fitting -----------------------------------------------------------------------------------------------------

    def fit(
        self,
        X: Any,
        D: Any = None,
        *,
        counts: Any = None,
        sample_weight: Any = None,
        engine: Any = None,
        groups: Any = None,
        votes: VoteTable | None = None,
        gold: Mapping[Any, Any] | None = None,
        trusted: Iterable[Any] | None = None,
    ) -> SnefyLDL:
        """Fit to label distributions, or to votes with ``fit(X, counts=K)``.

        Args:
            X: features (N, d): array, DataFrame, sparse matrix or tensor; with a backbone anything it takes, also a
                torch ``Dataset`` or ``DataLoader`` of pairs (x, shares) or (x, counts), which need no D.
            D: label distributions (N, L), rows that sum to one; NaN where a share is not known (its row counts by the
                density of what is known).
            counts: whole numbers of votes (N, L) instead; zeros and unequal totals are fine, NaN is a label that was
                not on offer; or :class:`snefy_ldl.votes.PartialCounts`.
            sample_weight: how much each row counts (N,); all alike by default.
            engine: where to train, such as :class:`snefy_ldl.apps.cluster.training.RayTraining`; X is then
                :class:`snefy_ldl.apps.cluster.training.ParquetRows`, which names the labels, too. None: here.
            groups: the group of each row (N,), such as the child, the field or the person it belongs to; or one column
                per level (N, k), nested (farm, plot) or crossed (person, item). Validation rows are split by the first
                level, and the effect of each group is learnt (``group_effects``).
            votes: single votes with their annotators (:class:`snefy_ldl.votes.Votes`), one item per row of X in the
                order of ``votes.items``. Each annotator's confusion matrix is learnt along (``annotators_``), and the
                law is that of the items, freed of what annotators add.
            gold: items whose label, or label distribution, is known, by name: ``{"item 7": "cat"}``; with votes.
            trusted: names of annotators who are known to be careful; with votes.

        Returns:
            The model itself.

        Raises:
            InputError: where data or settings break a rule; the message names the row, the column and the rule.
            TrainingError: where losses stay infinite after several repairs, or the checkpoint is another fit's.

        Example:
            >>> from snefy_ldl.datasets import make_annotators
            >>> votes = make_annotators(n=100, random_state=0)
            >>> SnefyLDL(epochs=1, random_state=0).fit(votes.X, counts=votes.counts).training_["epochs"]
            1
        """
        settings = self.settings()
        if isinstance(X, GroupedRows):
            X, groups = split_rows(X)
        if votes is not None:
            if D is not None or counts is not None or sample_weight is not None or engine is not None:
                raise InputError("fit(X, votes=...) takes no D, counts, sample_weight or engine beside the votes.")
            if groups is not None:
                raise InputError(
                    "groups: a fit to single votes has no groups of rows; use fit(X, counts=..., groups=...)."
                )
            return self.adopt(fit_annotators(settings, X, votes, self.backbone, self.columns, gold, trusted))
        if gold is not None or trusted is not None:
            raise InputError("gold and trusted go with single votes: fit(X, votes=Votes(...)).")
        if engine is not None:
            if groups is not None:
                raise InputError("groups: a fit by an engine reads rows as a stream, which has no groups.")
            if sample_weight is not None:
                raise InputError("sample_weight: a fit by an engine reads rows as a stream, which has no weights.")
            if D is not None or counts is not None or not hasattr(X, "shard"):
                raise InputError("a fit by an engine reads Parquet files: fit(ParquetRows(...), engine=...).")
            return self.adopt(engine.fit(settings, X, self.columns))
        stream = as_stream(X)
        if stream is not None and D is None and counts is None:
            if groups is not None:
                raise InputError("groups: rows that are read as a stream have no groups; give X and D as tables.")
            return self.adopt(fit_stream(settings, stream, self.columns))
        start = self._state() if self.warm_start else None
        data = TrainingData(X, D, counts, sample_weight, self.backbone, self._columns(start), groups=groups)
        if self.verbose and data.note is not None:
            print(f"note: {data.note}", file=sys.stderr)
        policy = None if start is None else start.zero_policy
        return self.adopt(*fit([Job(settings, data, start=start, policy=policy)]))

    def partial_fit(self, X: Any, D: Any = None, *, counts: Any = None, sample_weight: Any = None) -> SnefyLDL:
        """One pass over these rows at a constant rate; the first call also sets the model up from them.

        Args:
            X: features (N, d), as :meth:`fit` takes them.
            D: label distributions (N, L); or ``counts``.
            counts: votes (N, L).
            sample_weight: how much each row counts (N,).

        Returns:
            The model itself.

        Raises:
            InputError: where data or settings break a rule, or do not have the shape of the first call's.
            TrainingError: where losses stay infinite after several repairs.

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
        start = self._state()
        data = TrainingData(X, D, counts, sample_weight, self.backbone, self._columns(start), keep_constant=True)
        policy = start.zero_policy if start is not None and self.warm_start else None
        return self.adopt(*fit([Job(settings, data, start=start, one_pass=True, policy=policy)]))

    def _columns(self, start: FittedState | None) -> Any:
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
        return Settings(**{field.name: getattr(self, field.name) for field in fields(Settings)})

    # -- prediction (the rest is DensityPredictor) -------------------------------------------------------------------

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
        check_is_fitted(self, "net_")
        X = split_rows(X)[0]
        if self.backbone is not None:
            backbone = Backbone.of(self.backbone)
            return open_rows(X, backbone.collate, self.n_labels_, backbone.workers)
        if self.columns_ is not None:
            return self.columns_.transform(X)
        check_names(X, getattr(self, "feature_names_in_", None))
        return check_features(X, n_features=self.n_features_in_, largest=LARGEST_FEATURE)

    def _in_groups(self, X: Any, groups: Any) -> Any:
        return in_groups(X, groups)

    def _blocks(self, X: Any, what: str = "predict") -> Iterator[tuple[slice, SnefySimplex]]:
        columns = None
        if isinstance(X, GroupedRows):
            check_is_fitted(self, "net_")
            groups = read_groups(X.groups, X.n_rows)
            columns = None if self.group_effects_ is None else self.group_effects_.columns(groups, X.n_rows)
            X = X.X
        stream, done = as_stream(X), 0
        if stream is not None:
            for chunk in stream.chunks():
                for block, law in self._blocks(chunk.X, what):
                    yield slice(done + block.start, done + block.stop), law
                done += len(chunk)
            return
        features = self.encode(X)
        rows = count_rows(features)
        step = max(256, PREDICTION_ROWS // self.net_.n_members) if self.backbone is None else BACKBONE_ROWS
        starts = range(0, rows, step)
        show = bool(self.verbose) and len(starts) > MANY_BLOCKS
        for start in track(starts, len(starts), what, show=show):
            block = slice(start, min(start + step, rows))
            small = self.backbone is None and block.stop - start <= SMALL_BATCH
            with torch.no_grad(), one_thread(small):
                shown = self.guides_, self.inputs_, features, block, self.group_effects_, columns
                dist = self.net_(*network_inputs(self.net_, *shown))
            yield block, dist

    def predict_dist(self, X: Any, *, groups: Any = None) -> SnefySimplex:
        """The whole conditional law, from which every other prediction follows.

        Args:
            X: features (N, d), as :meth:`fit` takes them.
            groups: of the rows, as :meth:`fit` takes them; None where they are not known. A group that was seen is
                predicted by what is known of it, a new one by how much groups differ.

        Returns:
            A torch distribution with batch (N,) and event (L,).

        Raises:
            InputError: where X does not fit the model.
            NotFittedError: before a fit.

        Example:
            >>> from snefy_ldl.datasets import make_city_districts
            >>> city = make_city_districts(n=60, random_state=0)
            >>> law = SnefyLDL(epochs=1, random_state=0).fit(city.X, city.D).predict_dist(city.X[:4])
            >>> law.mean.shape, law.prob_greater(0, 1).shape
            (torch.Size([4, 3]), torch.Size([4]))
        """
        laws = [law for _, law in self._blocks(self._in_groups(X, groups))]
        law = laws[0] if len(laws) == 1 else laws[0].joined(laws)
        return law.named(self.label_names_).checking()

    def without_groups(self) -> SnefyLDL:
        """A model for rows of unknown groups alone, which has no group effects: for export, or to forget groups.

        Returns:
            A new model that predicts what this one predicts without ``groups``; the model itself where it has no
            group effects.

        Raises:
            NotFittedError: before a fit.

        Example:
            >>> from snefy_ldl.datasets import make_groups
            >>> data = make_groups(n_groups=12, n_rows=20, random_state=0)
            >>> model = SnefyLDL(epochs=5, random_state=0).fit(data.X, data.D, groups=data.groups)
            >>> bool(np.allclose(model.without_groups().predict(data.X), model.predict(data.X), atol=1e-6))
            True
        """
        check_is_fitted(self, "net_")
        if self.group_effects_ is None:
            return self
        model = copy.copy(self)
        model.net_, model.group_effects_ = forget_groups(self.net_, self.group_effects_.n_columns), None
        return model

    def adapt(self, X: Any, D: Any = None, *, counts: Any = None, group: Any = None, groups: Any = None) -> SnefyLDL:
        """A model that knows one more group, from a few of its rows and without a new fit.

        Args:
            X: features of the rows (n, d), as :meth:`fit` takes them.
            D: their label distributions (n, L); or ``counts``.
            counts: their votes (n, L).
            group: name of the new group: ``predict(X, groups=[name, ...])`` then knows it. By default the new model
                takes every row that comes without groups to be of this group.
            groups: with several levels, the name of the group in each level (k,), known ones among them; those that are
                not known are learnt.

        Returns:
            A new model; this one stays as it is.

        Raises:
            InputError: where the model has no group effects, or rows and labels break a rule.
            NotFittedError: before a fit.

        Example:
            >>> from snefy_ldl.datasets import make_groups
            >>> data = make_groups(n_groups=12, n_rows=20, random_state=0)
            >>> model = SnefyLDL(epochs=5, random_state=0).fit(data.X[:200], data.D[:200], groups=data.groups[:200])
            >>> new = model.adapt(data.X[200:205], data.D[200:205])
            >>> new.predict(data.X[205:210]).shape
            (5, 3)
        """
        check_is_fitted(self, "net_")
        effects = self.group_effects_
        if effects is None:
            raise InputError(
                "adapt needs a model with group effects: fit(X, D, groups=...) learns them, and this model has none "
                '(training_["group_effects"] has the reason where groups were given).'
            )
        features = self.encode(X)
        if counts is None:
            labels = self.zero_policy_.apply(check_distributions(D, n_rows=count_rows(features), model=self)[0])
        else:
            votes = check_counts(counts, n_rows=count_rows(features), n_labels=self.n_labels_, model=self)[0]
            labels = (votes + 0.5) / (votes + 0.5).sum(1, keepdims=True)
        names = [str(group)] * len(effects.levels) if groups is None else [str(name) for name in np.ravel(groups)]
        known = [-1] * len(names)
        if groups is not None:
            known = read_groups([names], 1).renamed(effects.names)[0].tolist()
        more = effects.learn(np.array(known), features, labels, names)
        codes = np.array([len(more.names[k]) - 1 if code < 0 else code for k, code in enumerate(known)])
        model = copy.copy(self)
        model.group_effects_ = replace(more, default=codes) if group is None and groups is None else more
        return model

    def with_annotators(self, X: Any, votes: VoteTable) -> SnefyLDL:
        """A model that also knows annotators who joined after the fit; nothing else of it changes.

        Args:
            X: features (N, d), one row per item of the votes.
            votes: of the new annotators, and of known ones on the same items.

        Returns:
            A new model.

        Raises:
            InputError: no annotator of the votes is new, or X does not fit the votes.
        """
        people = self._people()
        if count_rows(as_rows(X)) != len(votes.items):
            raise InputError(f"X must have one row per item of the votes: {len(votes.items)}.")
        other = copy.copy(self)
        other.annotators_ = learn_new(people, self._blocks(X), votes)
        return other

    # -- scikit-learn ------------------------------------------------------------------------------------------------

    @classmethod
    @cache  # scikit-learn reads the signature anew for every clone, which a hundred models feel
    def _get_param_names(cls) -> list[str]:
        return list(super()._get_param_names())

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.estimator_type = "regressor"  # so that partial_dependence and friends take it
        tags.regressor_tags = RegressorTags(poor_score=True)  # the score is a log likelihood, no R²
        tags.target_tags.required = True
        tags.target_tags.multi_output = True
        tags.target_tags.single_output = False
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = True
        tags.non_deterministic = False
        return tags


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
    groups: Any = None,
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
        n_jobs: processes on a CPU; by default all cores, or one where the work is over in a few seconds.
        groups: of all rows, (N,) or (N, k), as :meth:`SnefyLDL.fit` takes them.

    Returns:
        Fitted models, in the order of the splits.

    Raises:
        InputError: where data, settings or splits break a rule; before any work starts.
        TrainingError: where losses stay infinite after several repairs.

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
    X, groups = split_rows(X) if isinstance(X, GroupedRows) else (X, groups)
    data = TrainingData(X, D, counts, sample_weight, estimator.backbone, estimator.columns, groups=groups)
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
        table, targets = as_rows(X), {"D": D, "counts": counts, "sample_weight": sample_weight, "groups": groups}
        parts = [{k: None if v is None else take_rows(as_rows(v), r) for k, v in targets.items()} for r in rows]
        return [model.fit(take_rows(table, split), **part) for model, split, part in zip(models, rows, parts)]
    jobs = [Job(part, data, split, warn=False) for part, split in zip(settings, rows)]
    return [model.adopt(state) for model, state in zip(models, fit(jobs, n_jobs))]


def fit_folds(model: Any, X: Any, D: Any, splits: Iterable[Index], n_jobs: int | None = None) -> list[Any]:
    """One fitted clone per split, by the fastest way there is for the model.

    A model's own ``fit_folds(X, D, splits)`` comes first; a :class:`SnefyLDL` is fitted by :func:`fit_many`; anything
    else that scikit-learn can clone is fitted once per split.

    Args:
        model: an unfitted estimator; it stays as it is.
        X: features of all rows.
        D: label distributions of all rows (N, L).
        splits: training rows of each clone.
        n_jobs: processes on a CPU, for :func:`fit_many`.

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
    if callable(getattr(model, "fit_folds", None)):
        return list(model.fit_folds(X, D, splits))
    if type(model) is SnefyLDL:  # a subclass may fit in its own way
        return list(fit_many(model, X, D, splits, n_jobs=n_jobs))
    if not hasattr(model, "group_effects"):
        X = split_rows(X)[0]
    return [clone(model).fit(take_rows(X, rows), take_rows(D, rows)) for rows in splits]


def _rows(split: Any, n_rows: int, k: int) -> Index:
    """Training rows of one split as whole numbers."""
    if isinstance(split, tuple) and len(split) == 2:
        split = split[0]
    return check_rows(split, n_rows, f"split {k}")
