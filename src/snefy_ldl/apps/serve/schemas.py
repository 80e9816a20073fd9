"""The requests that the service accepts, examples that run on the served model, and their OpenAPI description."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Level = Annotated[float, Field(gt=0.0, lt=1.0)]
Levels = Annotated[list[Level], Field(min_length=1, max_length=20)]
Votes = Annotated[dict[str, Annotated[int, Field(ge=0)]], Field(description="Number of votes by label.")]


class Question(BaseModel):
    """What every request contains: rows, and which model to ask.

    Attributes:
        rows: objects with at least the model's features by name, or lists in the model's order; a custom network may
            also take nested lists or texts.
        model: name of the model; the first by default.
    """

    model_config = ConfigDict(extra="forbid", strict=False, allow_inf_nan=False)

    rows: Annotated[
        list[dict[str, Any] | list[Any] | str],
        Field(min_length=1, description="Rows of the table: objects with the features by name."),
    ]
    model: Annotated[str | None, Field(description="Name of the model; the first by default.")] = None


class Predict(Question):
    """Mean, variance, intervals and probabilities of zero."""

    levels: Annotated[Levels, Field(description="Confidence levels of the intervals.")] = [0.9]
    calibrated: Annotated[bool, Field(description="Use conformal intervals at calibrated levels.")] = True


class Density(Question):
    """Log density of whole mixes, or density and probability of one share or a sum of shares."""

    points: Annotated[
        list[list[float]] | None,
        Field(min_length=1, description="Label distributions, one share per label in the model's order."),
    ] = None
    labels: Annotated[list[str] | None, Field(min_length=1, description="Labels whose shares are summed.")] = None
    at: Annotated[
        list[Annotated[float, Field(gt=0.0, lt=1.0)]] | None,
        Field(min_length=1, description="Values of that sum, between 0 and 1."),
    ] = None


class Groups(Question):
    """The distribution of sums of labels."""

    groups: Annotated[
        dict[str, Annotated[list[str], Field(min_length=1)]],
        Field(min_length=1, max_length=100, description="Labels by name of the group; no group may hold all labels."),
    ]
    levels: Levels = [0.9]


class Condition(Question):
    """The distribution of all shares given that some are known."""

    known: Annotated[dict[str, Level], Field(min_length=1, description="Known shares by label, the same for all rows.")]
    levels: Levels = [0.9]


class Update(Question):
    """The distribution given features and votes."""

    votes: Annotated[list[Votes], Field(min_length=1, description="Votes per row; labels left out have none.")]
    levels: Levels = [0.9]


class Next(Question):
    """The items that should get the next votes."""

    votes: Annotated[list[Votes] | None, Field(description="Votes per row so far; none by default.")] = None
    n: Annotated[int, Field(ge=1, le=1000, description="Number of votes to assign.")] = 1
    criterion: Literal["variance", "information"] = "variance"
    max_per_item: Annotated[int, Field(ge=1, le=1000)] = 1
    new_item_cost: Annotated[float, Field(gt=0.0)] = 1.0


class Query(Question):
    """The rows that are most worth labelling."""

    n: Annotated[int, Field(ge=1, le=10_000, description="Number of rows to choose.")] = 1
    strategy: Annotated[str, Field(max_length=40, description="Name of a strategy, as for snefy-ldl query.")] = "auto"
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0


#: Request classes by path.
QUESTIONS: dict[str, type[Question]] = {
    "predict": Predict,
    "density": Density,
    "groups": Groups,
    "condition": Condition,
    "update": Update,
    "next": Next,
    "query": Query,
}


def make_examples(labels: list[str], row: Any, votes: bool = True) -> dict[str, dict[str, Any]]:
    """An example body for every path.

    Args:
        labels: names of at least two labels.
        row: typical features, as a request holds them; None if a custom network decides.
        votes: whether the model supports votes.

    Returns:
        Bodies by path.

    Example:
        >>> make_examples(["a", "b"], [0.5])["predict"]
        {'rows': [[0.5]], 'levels': [0.5, 0.9]}
    """
    first, last = labels[0], labels[-1]
    examples: dict[str, dict[str, Any]] = {
        "predict": {"rows": [row], "levels": [0.5, 0.9]},
        "density": {"rows": [row], "labels": [first], "at": [0.25, 0.5]},
        "groups": {"rows": [row], "groups": {"group": labels[: max(1, len(labels) - 1)]}},
        "query": {"rows": [row, row], "n": 1, "strategy": "entropy"},
    }
    if len(labels) > 2:  # of two, the other share would be known, too
        examples["condition"] = {"rows": [row], "known": {first: 0.4}}
    if votes:
        examples["update"] = {"rows": [row], "votes": [{first: 3, last: 1}]}
        examples["next"] = {"rows": [row, row], "votes": [{first: 3}, {}], "n": 1}
    return {} if row is None else examples


_FAULT: dict[str, Any] = {
    "description": "What is wrong, with row and field if known; after a 503, try again in Retry-After seconds.",
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "properties": {"error": {"type": "string"}, "row": {"type": "integer"}, "field": {"type": "string"}},
                "required": ["error"],
            }
        }
    },
}


def describe(kind: type[Question], example: dict[str, Any] | None) -> dict[str, Any]:
    """The OpenAPI description of one path.

    Args:
        kind: class of its requests.
        example: of a body, or None.

    Returns:
        Request body and responses.

    Example:
        >>> sorted(describe(Predict, None)["responses"])
        ['200', '4XX', '503']
    """
    body: dict[str, Any] = {"schema": kind.model_json_schema()}
    if example is not None:
        body["examples"] = {"typical": {"value": example}}
    answer = {"schema": {"type": "object", "required": ["model", "version", "labels"]}}
    whole = {"description": "The answer.", "content": {"application/json": answer}}
    return {
        "requestBody": {"required": True, "content": {"application/json": body}},
        "responses": {"200": whole, "4XX": _FAULT, "503": _FAULT},
    }
