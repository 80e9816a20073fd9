"""The service's description of its questions and answers, with examples for the model that is served."""

from __future__ import annotations

from typing import Any

from snefy_ldl.serve.arrow import ARROW
from snefy_ldl.serve.schemas import Question, make_examples

__all__ = ["describe"]

_FAULTS = {
    "401": "The token is missing or wrong.",
    "404": "There is no such model.",
    "408": "The body did not come in time.",
    "413": "The body is too long, or its rows would take too long; the message says how many would do.",
    "415": "The body is neither JSON nor an Arrow stream.",
    "422": "The body breaks a rule; row and field are named.",
    "503": "More than the service takes on; try again after Retry-After seconds.",
}
_FAULT_SCHEMA = {
    "type": "object",
    "properties": {"error": {"type": "string"}, "row": {"type": "integer"}, "field": {"type": "string"}},
    "required": ["error"],
}


def describe(path: str, kind: type[Question], labels: list[str], row: Any) -> dict[str, Any]:
    """What OpenAPI says about one question.

    Args:
        path: of the question.
        kind: its class.
        labels: of the model, for the example.
        row: a typical one, for the example.

    Returns:
        Request body, parameters and responses.

    Example:
        >>> from snefy_ldl.serve.schemas import Predict
        >>> sorted(describe("predict", Predict, ["a", "b"], [0.0])["responses"])
        ['200', '401', '404', '408', '413', '415', '422', '503']
    """
    schema = _inlined(kind.model_json_schema())
    body: dict[str, Any] = {"schema": schema}
    example = make_examples(labels, row).get(path)
    if example is not None:
        body["examples"] = {"typical": {"value": example}}
    binary = {"schema": {"type": "string", "format": "binary"}}
    answer = {"schema": {"type": "object", "required": ["model", "version", "labels"]}}
    responses: dict[str, Any] = {
        "200": {"description": "The answer.", "content": {"application/json": answer, ARROW: binary}}
    }
    for status, text in _FAULTS.items():
        responses[status] = {"description": text, "content": {"application/json": {"schema": _FAULT_SCHEMA}}}
    options = {
        "name": "options",
        "in": "query",
        "required": False,
        "description": "With an Arrow body: everything but rows, as JSON.",
        "schema": {"type": "string"},
    }
    return {
        "requestBody": {"required": True, "content": {"application/json": body, ARROW: binary}},
        "parameters": [options],
        "responses": responses,
    }


def _inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema without references, which would point into another document."""
    assert "$defs" not in schema
    return schema
