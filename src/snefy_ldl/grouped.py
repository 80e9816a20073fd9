"""GroupedLDL: a model of rows that come in groups, such as children, fields or villages, with an effect of each."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from snefy_ldl._internal.rows import count_rows
from snefy_ldl._internal.validation import check_choice, check_counts, check_distributions
from snefy_ldl.datasets.grouping import GroupedRows, in_groups, read_groups, split_rows
from snefy_ldl.datasets.streams import as_stream
from snefy_ldl.distributions import SnefySimplex
from snefy_ldl.errors import InputError
from snefy_ldl.logratio import LogRatioLDL
from snefy_ldl.networks.backbones import as_input
from snefy_ldl.persistence import Asked, save
from snefy_ldl.prediction import ModelWrapper
from snefy_ldl.snefy import SnefyLDL, join_blocks, row_blocks
from snefy_ldl.training import FittedModel, Task, TrainingData
from snefy_ldl.training.group_effects import NOT_WANTED, GroupEffects, MixedModel, fit_grouped, forget_groups
from snefy_ldl.training.guides import pack_guides, unpack_guides
from snefy_ldl.training.stored import pack_state

__all__ = ["GroupedLDL"]

#: Fields of the effects that a file holds as plain values, and as arrays.
PLAIN, ARRAYS = ("levels", "names", "pull", "default"), ("means", "counts")


class GroupedLDL(ModelWrapper):
    """A model of rows in groups: validation rows are split by group, and the effect of each group is learned.

    A group's effect is how far its rows lie from where their features put them. Rows of known groups are predicted with
    the estimated effect of their group, rows of new groups by averaging over the variation between groups; every closed
    form stays exact. Effects are kept if validation rows favour them.

    Args:
        base: an unfitted :class:`~snefy_ldl.SnefyLDL`, the default; or a :class:`~snefy_ldl.LogRatioLDL`, which keeps
            groups together in its folds and learns no effects.
        effects: "auto" fits the effects of groups, with the base's guides and fewer than 100,000 rows; None only splits
            rows by group.

    Attributes:
        model_: the fitted base, for rows of unknown groups; its attributes are also those of this model.
        group_effects_: estimated effects (:class:`snefy_ldl.training.group_effects.GroupEffects`), or None if they did
            not help; ``training_["group_effects"]`` has the reason.
        net_: the network, which sees the columns of groups last if there are effects.

    Example:
        >>> from snefy_ldl.datasets import make_groups
        >>> data = make_groups(n_groups=12, n_rows=20, random_state=0)
        >>> model = GroupedLDL(SnefyLDL(epochs=5, random_state=0)).fit(data.X, data.D, groups=data.groups)
        >>> model.predict(data.X[:2], groups=data.groups[:2]).shape, model.predict(data.X[:2]).shape
        ((2, 3), (2, 3))
    """

    _context: ClassVar[tuple[str, ...]] = ("groups",)
    group_effects_: GroupEffects | None

    def __init__(self, base: Any = None, *, effects: Literal["auto"] | None = "auto") -> None:
        self.base, self.effects = base, effects

    # -- fitting -----------------------------------------------------------------------------------------------------

    def fit(
        self,
        X: Any,
        D: Any = None,
        *,
        groups: Any = None,
        counts: Any = None,
        sample_weight: Any = None,
        y: Any = None,
        **bounds: Any,
    ) -> GroupedLDL:
        """Fit to label distributions or votes of rows in groups.

        Args:
            X: features (N, d), as the base takes them, or :func:`snefy_ldl.datasets.in_groups` of them.
            D: label distributions (N, L); or ``counts``.
            groups: the group of each row (N,). None and NaN stand for an unknown group.
            counts: votes (N, L).
            sample_weight: how much each row counts (N,).
            y: another name of D.
            **bounds: ``below`` or ``between``, which a :class:`~snefy_ldl.LogRatioLDL` takes.

        Returns:
            The model itself.

        Raises:
            InputError: data, groups or settings break a rule.
        """
        check_choice("effects", self.effects, ("auto", None))
        X, given = split_rows(X)
        groups = given if groups is None else groups
        D = y if D is None else D
        base = SnefyLDL() if self.base is None else clone(self.base)
        if groups is None:
            raise InputError("GroupedLDL needs the group of each row: fit(X, D, groups=...).")
        if as_stream(X) is not None:
            raise InputError("rows that are read as a stream have no groups; give X and D as tables.")
        if not isinstance(base, SnefyLDL):
            weights = {} if sample_weight is None else {"sample_weight": sample_weight}
            return self._fit_apart(base, X, D, groups, **weights, **bounds)
        if bounds:
            raise InputError("limits of hidden parts need log-ratios: GroupedLDL(LogRatioLDL()).")
        data = TrainingData(X, D, counts, sample_weight, base.backbone, base.columns, groups=groups)
        return self.adopt(base, *fit_grouped(Task(base.settings(), data), self.effects is not None))

    def _fit_apart(self, base: Any, X: Any, D: Any, groups: Any, **more: Any) -> GroupedLDL:
        """Fit a base that only keeps groups together in its folds."""
        if not isinstance(base, LogRatioLDL):
            raise InputError(f"GroupedLDL takes a SnefyLDL or a LogRatioLDL; got {type(base).__name__}.")
        read = read_groups(groups, count_rows(X))
        self.model_ = base.fit(X, D, groups=read.first, **more)
        self.group_effects_ = None
        about: dict[str, Any] = {"groups": [len(read.names)], "levels": [read.column]}
        about["effects"] = "log-ratio fits keep groups together and learn no effects"
        self.model_.training_ = {**self.model_.training_, "group_effects": about}
        return self

    def adopt(self, base: SnefyLDL, state: FittedModel, effects: GroupEffects | None = None) -> GroupedLDL:
        """Become the model of a state whose network sees groups where there are effects."""
        self.group_effects_ = effects
        if effects is not None:
            self.net_ = state.net
            state = replace(state, net=forget_groups(state.net, effects))
        self.model_ = base.adopt(state)
        return self

    def adapt(self, X: Any, D: Any = None, group: Any = None, *, counts: Any = None) -> GroupedLDL:
        """A model with one more group, from a few of its rows and without a new fit.

        Args:
            X: features of the rows (n, d), as :meth:`fit` takes them.
            D: their label distributions (n, L); or ``counts``.
            group: name of the new group, for ``predict(X, groups=[name, ...])``. By default the new model takes every
                row without groups to be of this group.
            counts: their votes (n, L).

        Returns:
            A new model; this one stays as it is.

        Raises:
            InputError: the model has no group effects, or rows and labels break a rule.
            NotFittedError: before a fit.

        Example:
            >>> from snefy_ldl.datasets import make_groups
            >>> data = make_groups(n_groups=12, n_rows=20, random_state=0)
            >>> model = GroupedLDL(SnefyLDL(epochs=5, random_state=0))
            >>> model = model.fit(data.X[:200], data.D[:200], groups=data.groups[:200])
            >>> model.adapt(data.X[200:205], data.D[200:205]).predict(data.X[205:210]).shape
            (5, 3)
        """
        check_is_fitted(self)
        effects = self.group_effects_
        if effects is None:
            raise InputError(
                "adapt needs a model with group effects, and this one has none: "
                f"{self.model_.training_['group_effects']['effects']}."
            )
        features = self.encode(X)
        if counts is None:
            shares = check_distributions(D, n_rows=count_rows(features), n_labels=self.n_labels_, model=self)[0]
            labels = self.zero_policy_.apply(shares)
        else:
            votes = check_counts(counts, n_rows=count_rows(features), n_labels=self.n_labels_, model=self)[0]
            labels = (votes + 0.5) / (votes + 0.5).sum(1, keepdims=True)
        more = effects.learn(self.model_.guides_, features, labels, str(group))
        model = copy.copy(self)
        model.group_effects_ = replace(more, default=len(more.counts) - 1) if group is None else more
        return model

    # -- prediction --------------------------------------------------------------------------------------------------

    def _blocks(self, X: Any, what: str = "predict", groups: Any = None, **context: Any) -> Iterator[tuple[slice, Any]]:
        check_is_fitted(self)
        X, given = split_rows(X)
        groups, effects = given if groups is None else groups, self.group_effects_
        if effects is None or as_stream(X) is not None or (groups is None and effects.default is None):
            yield from self.model_._blocks(X, what)
            return
        features = self.encode(X)
        n_rows = count_rows(features)
        columns = effects.columns(None if groups is None else read_groups(groups, n_rows), n_rows)
        for block in row_blocks(self.model_, n_rows, what):
            seen = effects.inputs(self.model_.guides_, features[block], columns[block])
            with torch.no_grad():
                yield block, self.net_(as_input(seen, self.net_.readout.device))

    def predict_dist(self, X: Any, *, groups: Any = None) -> SnefySimplex:
        """The predicted distributions: batch (N,), event (L,).

        Args:
            X: features (N, d), as :meth:`fit` takes them.
            groups: of the rows, as :meth:`fit` takes them; None if they are unknown.

        Returns:
            A torch distribution.

        Raises:
            InputError: X or groups do not fit the model.
            NotFittedError: before a fit.
        """
        check_is_fitted(self)
        if self.group_effects_ is None:
            return self.model_.predict_dist(split_rows(X)[0])
        return join_blocks(self, self._blocks(in_groups(X, groups)))

    def encode(self, X: Any) -> Any:
        """The numbers that the fitted model makes of rows (N, d')."""
        check_is_fitted(self)
        return self.model_.encode(X.X if isinstance(X, GroupedRows) else X)

    # -- files -------------------------------------------------------------------------------------------------------

    def save(self, folder: str | Path) -> Path:
        """Write the model into a folder; :func:`snefy_ldl.load` reads it.

        Args:
            folder: made where it is missing; a model in it is replaced.

        Returns:
            The folder.

        Raises:
            NotFittedError: before a fit.
        """
        check_is_fitted(self)
        if self.group_effects_ is None:
            return Path(self.model_.save(folder))  # load finds the groups in its record
        return save(self, "GroupedLDL", folder)

    @classmethod
    def around(cls, model: Any) -> Any:
        """The GroupedLDL that a fitted base without group effects was part of; the model itself if it was not.

        Args:
            model: a fitted estimator, as a file holds it.

        Returns:
            A GroupedLDL, or the model.
        """
        about = getattr(model, "training_", {}).get("group_effects")
        if about is None or isinstance(model, ModelWrapper):
            return model
        grouped = cls(clone(model), effects=None if about["effects"] == NOT_WANTED else "auto")
        grouped.model_, grouped.group_effects_ = model, None
        return grouped

    def pack(self, arrays: dict[str, Any]) -> dict[str, Any]:
        """What JSON holds of the model; its arrays are put into a dict (:mod:`snefy_ldl.persistence`)."""
        assert self.group_effects_ is not None  # the folder of a model without effects is that of its base
        state = replace(self.model_.model_, net=self.net_)
        description = pack_state(self.model_.get_params(deep=False), state, arrays)
        effects = self.group_effects_
        description["effects"] = {name: getattr(effects, name) for name in PLAIN}
        description["effects"]["known"], guides = pack_guides(effects.guides)
        own = {**vars(effects.model), **{name: getattr(effects, name) for name in ARRAYS}}
        own |= {f"known.{name}": array for name, array in guides.items()}
        arrays |= {f"effect.{name}": array for name, array in own.items()}
        return description

    @classmethod
    def unpack(cls, config: dict[str, Any], arrays: dict[str, Any], asked: Asked) -> GroupedLDL:
        """The model that :meth:`pack` packed."""
        names = [name for name in arrays if name.startswith("effect.")]
        own = {name.removeprefix("effect."): arrays.pop(name).numpy() for name in names}
        base, about = SnefyLDL.unpack(config, arrays, asked), config.get("effects")
        if not about:
            return cls(base).adopt(base, base.model_)
        known = {name.removeprefix("known."): own[name] for name in own if name.startswith("known.")}
        effects = GroupEffects(
            MixedModel(*(own[field.name] for field in fields(MixedModel))),
            tuple(about["levels"]),
            tuple(map(tuple, about["names"])),
            guides=unpack_guides(about["known"], known),
            pull=about["pull"],
            default=about["default"],
            **{name: own[name] for name in ARRAYS},
        )
        return cls(base).adopt(base, base.model_, effects)
