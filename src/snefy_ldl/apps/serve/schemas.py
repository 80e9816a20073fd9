"""The requests that the service accepts."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

Level = Annotated[float, Field(gt=0.0, lt=1.0)]
Levels = Annotated[list[Level], Field(min_length=1, max_length=20)]
Votes = Annotated[dict[str, Annotated[int, Field(ge=0)]], Field(description="Number of votes by label.")]


class Question(BaseModel):
    """What every request contains: rows, and which model to ask.

    Attributes:
        rows: objects with at least the model's features by name, or lists in the model's order.
        model: name of the model; the first by default.
    """

    model_config = ConfigDict(extra="forbid", strict=False, allow_inf_nan=False)

    rows: Annotated[
        list[dict[str, Any] | list[Any]],
        Field(min_length=1, description="Rows of the table: objects with the features by name."),
    ]
    model: Annotated[str | None, Field(description="Name of the model; the first by default.")] = None


class Predict(Question):
    """Mean, variance, intervals and probabilities of zero."""

    levels: Annotated[Levels, Field(description="Confidence levels of the intervals.")] = [0.9]
    calibrated: Annotated[bool, Field(description="Use conformal intervals at calibrated levels.")] = True


class Condition(Question):
    """The distribution of all shares given that some are known."""

    known: Annotated[dict[str, Level], Field(min_length=1, description="Known shares by label, the same for all rows.")]
    levels: Levels = [0.9]


class Update(Question):
    """The distribution given features and votes."""

    votes: Annotated[list[Votes], Field(min_length=1, description="Votes per row; labels left out have none.")]
    levels: Levels = [0.9]


#: Request classes by path.
QUESTIONS: dict[str, type[Question]] = {
    "predict": Predict,
    "condition": Condition,
    "update": Update,
}
