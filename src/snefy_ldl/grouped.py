"""GroupedLDL: a model of rows that come in groups, such as children, fields or villages, with an effect of each."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted, has_fit_parameter

from snefy_ldl._internal.rows import as_rows, count_rows, take_rows
from snefy_ldl._internal.types import Array, Mask
from snefy_ldl._internal.validation import check_choice, check_counts, check_distributions
from snefy_ldl.datasets.grouping import GroupedRows, in_groups, read_groups, split_rows
from snefy_ldl.datasets.streams import as_stream
from snefy_ldl.distributions import SimplexDistribution
from snefy_ldl.errors import InputError
from snefy_ldl.logratio import LogRatioLDL
from snefy_ldl.persistence import Asked, save
from snefy_ldl.prediction import ModelWrapper
from snefy_ldl.snefy import SnefyLDL, join_blocks
from snefy_ldl.training import Task, TrainingData
from snefy_ldl.training.group_effects import (
    NO_DIFFERENCE,
    NOT_WANTED,
    GroupEffects,
    MixedModel,
    measure_effects,
    side_by_side,
)
from snefy_ldl.training.guides import pack_guides, unpack_guides
from snefy_ldl.training.policy import POLICY

__all__ = ["GroupedLDL"]

#: Fields of the effects that a file holds as plain values, and as arrays.
PLAIN, ARRAYS = ("levels", "names", "pull", "default"), ("means", "counts")
#: The kinds of base, as a file names them.
BASES: dict[str, Any] = {kind.__name__: kind for kind in (SnefyLDL, LogRatioLDL)}
#: Rows that are predicted at a time.
BLOCK_ROWS = 2048


class GroupedLDL(ModelWrapper):
    """Two models of rows in groups: one for rows of new groups, and one that sees the effects of known groups.

    A group's effect is how far its rows lie from where their features put them. The model of new groups holds whole
    groups back, so that its distributions are as wide as groups differ. That of known groups is fitted to the features
    and the estimated effect of each row's group, and is made only if groups differ by more than chance.

    Args:
        base: an unfitted :class:`~snefy_ldl.LogRatioLDL`, the default for shares, or :class:`~snefy_ldl.SnefyLDL`, the
            default for votes.
        effects: "auto" estimates the effects of groups, of fewer than 100,000 rows; None only keeps groups together.

    Attributes:
        model_: the fitted base for rows of new groups; its attributes are also those of this model.
        known_: the fitted base for rows of known groups, or None if groups have no effects.
        group_effects_: estimated effects (:class:`snefy_ldl.training.group_effects.GroupEffects`), or None;
            ``training_["group_effects"]`` has the reason.

    Example:
        >>> from snefy_ldl.datasets import make_groups
        >>> data = make_groups(n_groups=12, n_rows=20, random_state=0)
        >>> model = GroupedLDL(SnefyLDL(epochs=5, random_state=0)).fit(data.X, data.D, groups=data.groups)
        >>> model.predict(data.X[:2], groups=data.groups[:2]).shape, model.predict(data.X[:2]).shape
        ((2, 3), (2, 3))
    """

    _context: ClassVar[tuple[str, ...]] = ("groups",)
    known_: Any
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
        if groups is None:
            raise InputError("GroupedLDL needs the group of each row: fit(X, D, groups=...).")
        if as_stream(X) is not None:
            raise InputError("rows that are read as a stream have no groups; give X and D as tables.")
        base = clone(self.base) if self.base is not None else LogRatioLDL() if counts is None else SnefyLDL()
        if not isinstance(base, tuple(BASES.values())):
            raise InputError(f"GroupedLDL takes a SnefyLDL or a LogRatioLDL; got {type(base).__name__}.")
        if bounds and not has_fit_parameter(base, "below"):
            raise InputError("limits of hidden parts need log-ratios: GroupedLDL(LogRatioLDL()).")
        labels = {"D": D} if counts is None else {"counts": counts}
        labels |= {} if sample_weight is None else {"sample_weight": sample_weight}
        read = read_groups(groups, count_rows(X))
        model = clone(base).fit_in_groups(X, groups, **labels, **bounds)
        known, effects, why = self._fit_known(base, model, X, groups, labels, bool(bounds))
        about: dict[str, Any] = {"groups": [len(read.names)], "levels": [read.column], "effects": why}
        if effects is not None:
            about["directions"] = len(effects.model.ratios)
        model.training_ = {**model.training_, "group_effects": about}
        self.model_, self.known_, self.group_effects_ = model, known, effects
        return self

    def _fit_known(
        self, base: Any, model: Any, X: Any, groups: Any, labels: dict[str, Any], hidden: bool
    ) -> tuple[Any, GroupEffects | None, str]:
        """The model of rows of known groups, the effects that it sees, and why there are none."""
        if self.effects is None or hidden or base.backbone is not None:
            return None, None, NOT_WANTED
        features, (D, counts, weights) = model.encode(X), map(labels.get, ("D", "counts", "sample_weight"))
        data = TrainingData(features, D, counts, weights, None, None, groups=groups)
        task = Task(SnefyLDL(random_state=base.random_state).settings(), data, warn=False)
        if not POLICY.guides(task):
            return None, None, NOT_WANTED
        measured = measure_effects(task)
        if measured is None:
            return None, None, NO_DIFFERENCE
        effects, columns = measured
        changes = {"columns": "auto", "checkpoint_dir": None}
        base.set_params(**{name: value for name, value in changes.items() if name in base.get_params()})
        return base.fit(side_by_side(features, columns), **labels), effects, "kept"

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
        more = effects.learn(features, labels, str(group))
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
        rows = as_rows(X)
        n_rows = count_rows(rows)
        columns, known = effects.columns(None if groups is None else read_groups(groups, n_rows), n_rows)
        for start in range(0, n_rows, BLOCK_ROWS):
            block = slice(start, min(start + BLOCK_ROWS, n_rows))
            yield block, self._dist(take_rows(rows, block), columns[block], known[block])

    def _dist(self, X: Any, columns: Array, known: Mask) -> SimplexDistribution:
        """The distributions of rows some of which are of known groups."""
        places = np.flatnonzero(known), np.flatnonzero(~known)
        parts: list[Any] = []
        if len(places[0]):
            features = self.model_.encode(take_rows(X, places[0]))
            parts.append(self.known_.predict_dist(side_by_side(features, columns[places[0]])))
        if len(places[1]):
            parts.append(self.model_.predict_dist(take_rows(X, places[1])))
        if len(parts) == 1:
            return parts[0]
        dist: SimplexDistribution = parts[0].joined(parts)[np.argsort(np.concatenate(places))]
        return dist

    def predict_dist(self, X: Any, *, groups: Any = None) -> SimplexDistribution:
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
        grouped.model_, grouped.known_, grouped.group_effects_ = model, None, None
        return grouped

    def pack(self, arrays: dict[str, Any]) -> dict[str, Any]:
        """What JSON holds of the model; its arrays are put into a dict (:mod:`snefy_ldl.persistence`)."""
        effects = self.group_effects_
        assert effects is not None  # the folder of a model without effects is that of its base
        about: dict[str, Any] = {name: getattr(effects, name) for name in PLAIN}
        about["guides"], guides = pack_guides(effects.guides)
        own = {**vars(effects.model), **{name: getattr(effects, name) for name in ARRAYS}, **guides}
        arrays |= {f"effect.{name}": array for name, array in own.items()}
        second: dict[str, Any] = {}
        known = self.known_.pack(second)
        arrays |= {f"known.{name}": array for name, array in second.items()}
        return {**self.model_.pack(arrays), "base": type(self.model_).__name__, "effects": about, "known": known}

    @classmethod
    def unpack(cls, config: dict[str, Any], arrays: dict[str, Any], asked: Asked) -> GroupedLDL:
        """The model that :meth:`pack` packed."""
        own, second = (
            {name.removeprefix(start): arrays.pop(name) for name in [*arrays] if name.startswith(start)}
            for start in ("effect.", "known.")
        )
        tables = {name: value.numpy() for name, value in own.items()}
        base, about = BASES[config["base"]], config["effects"]
        model = cls(base.unpack(config, arrays, asked))
        model.model_, model.known_ = model.base, base.unpack(config["known"], second, asked)
        model.group_effects_ = GroupEffects(
            MixedModel(*(tables[field.name] for field in fields(MixedModel))),
            tuple(about["levels"]),
            tuple(map(tuple, about["names"])),
            guides=unpack_guides(about["guides"], tables),
            pull=about["pull"],
            default=about["default"],
            **{name: tables[name] for name in ARRAYS},
        )
        return model
