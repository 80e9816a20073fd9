"""Malformed bodies, by a seed: every answer is a sentence, none is a 5xx, and nothing grows."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from starlette.testclient import TestClient

from snefy_ldl.apps.serve.app import create_app
from snefy_ldl.apps.serve.schemas import QUESTIONS

ROUNDS = 600
ODD: list[Any] = [
    *(None, True, "", "x", "\ud800", "\x00", -1, 0, 0.5, 1, 1.0, 1e308, -1e308, 2**63, 10**30, 1e-320, [], {}),
    *([[]], {"": {}}, [None], "business", ["business"], {"business": 1}, {"business": 0.5}, [0.5], [[0.2, 0.3, 0.5]]),
]


def mutate(chance: random.Random, body: Any) -> Any:
    """A body with one to three places changed, removed, doubled or renamed."""
    body = copy.deepcopy(body)
    for _ in range(chance.randint(1, 3)):
        holder, key = body, None
        for _ in range(chance.randint(1, 4)):
            keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
            if not keys:
                break
            key = chance.choice(keys)
            if not isinstance(holder[key], (dict, list)):
                break
            if chance.random() < 0.3:
                break
            holder, key = holder[key], None
        deed = chance.random()
        if key is None:
            if isinstance(holder, dict):
                holder[chance.choice(["rows", "levels", "n", "model", "odd", "\ud800"])] = chance.choice(ODD)
            else:
                holder.append(chance.choice(ODD))
        elif deed < 0.6:
            holder[key] = copy.deepcopy(chance.choice(ODD))
        elif deed < 0.8:
            del holder[key]
        elif isinstance(holder, list):
            holder.extend([holder[key]] * chance.randint(1, 50))
        else:
            holder[f"{key}x"] = holder.pop(key)
    return body


def as_bytes(chance: random.Random, body: Any) -> bytes:
    """The body as JSON, now and then with bytes that are not."""
    text = json.dumps(body).encode()
    deed = chance.random()
    if deed < 0.1 and text:
        at = chance.randrange(len(text))
        return text[:at] + chance.randbytes(chance.randint(0, 4)) + text[at + 1 :]
    if deed < 0.15:
        return text[: chance.randrange(len(text) + 1)]
    if deed < 0.2:
        return chance.randbytes(chance.randint(0, 200))
    if deed < 0.22:
        return text.replace(b"0.5", b"NaN").replace(b"1", b"Infinity")
    return text


@pytest.fixture(scope="module")
def client(folder: Path) -> Any:
    with TestClient(create_app([folder]), raise_server_exceptions=True) as made:
        yield made


@pytest.mark.slow
def test_no_malformed_body_meets_a_5xx(client: TestClient, city: tuple[pd.DataFrame, pd.DataFrame]) -> None:
    chance = random.Random(0)
    row, first = city[0].iloc[0].to_dict(), str(city[1].columns[0])
    examples: dict[str, dict[str, Any]] = {
        "predict": {"rows": [row], "levels": [0.5, 0.9]},
        "condition": {"rows": [row], "known": {first: 0.4}},
        "update": {"rows": [row], "votes": [{first: 3}]},
    }
    assert set(examples) == set(QUESTIONS)
    statuses = dict.fromkeys([200, 400, 404, 422], 0)
    for number in range(ROUNDS):
        path = chance.choice(list(examples))
        body = as_bytes(chance, mutate(chance, examples[path]))
        answer = client.post(f"/v1/{path}", content=body, headers={"content-type": "application/json"})
        assert answer.status_code in statuses, (number, path, body, answer.text)
        statuses[answer.status_code] += 1
        if answer.status_code != 200:
            assert answer.json()["error"]
    assert statuses[422] > ROUNDS / 2
    assert statuses[200] > ROUNDS / 50  # some changes are harmless
