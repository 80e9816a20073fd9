"""Answers that carry the labels' names, in the kind of table that a user holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from snefy_ldl._internal.types import Array
from snefy_ldl.datasets.frames import frame_of
from snefy_ldl.errors import InputError

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["NamedAnswers"]


class NamedAnswers:
    """Gives predictions (N, L) the names of the labels, where these came with names or somebody asks for them.

    Attributes:
        label_names_: names of the labels (L).
    """

    label_names_: Any
    _labels_were_named: bool
    #: "pandas", "polars" or "arrow" where :meth:`set_output` asked for one.
    _output_kind: str | None

    def _named(self, values: Array, X: Any) -> Any:
        """Back in a DataFrame when the labels came in one, or when :meth:`set_output` asks for one."""
        kind = getattr(self, "_output_kind", None)
        if kind is None and not self._labels_were_named:
            return values
        return frame_of(values, self.label_names_, X, kind)

    def set_output(self, *, transform: Literal["default", "pandas", "polars", "arrow"] | None = None) -> Self:
        """In what kind of table ``predict`` and its like answer.

        Args:
            transform: "pandas" or "polars" for a DataFrame with the labels' names, "arrow" for a ``pyarrow.Table``;
                "default" for one where the labels came in one, of the kind that X has, and for an array elsewhere; None
                changes nothing. The argument has the name that scikit-learn gives it.

        Returns:
            The model itself.

        Raises:
            InputError: where there is no such kind.

        Example:
            >>> from snefy_ldl import SnefyLDL
            >>> from snefy_ldl.datasets import make_city_districts
            >>> city = make_city_districts(n=80, random_state=0)
            >>> model = SnefyLDL(epochs=1, random_state=0).set_output(transform="pandas").fit(city.X, city.D)
            >>> model.predict(city.X[:2]).shape
            (2, 3)
        """
        if transform not in (None, "default", "pandas", "polars", "arrow"):
            raise InputError(f'transform={transform!r}: use "default", "pandas", "polars" or "arrow".')
        if transform is not None:
            self._output_kind = None if transform == "default" else transform
        return self
