"""Model folders that somebody tampered with: seeded cases, and what must come of each.

A load either raises one of the library's own errors, or gives a model that answers finite rows that sum to one, in ten
seconds. ``tests/_internal/files/test_tampering.py`` tries some dozens; a thousand are tried by::

    python tests/tampering.py --cases 1000 --seed 0
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import hashlib
import json
import shutil
import signal
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load as parse
from safetensors.torch import save as format_tensors

from snefy_ldl import AnnotatorLDL, GroupedLDL, LogRatioLDL, SnefyLDL, Votes, load
from snefy_ldl.datasets import make_annotators, make_city_districts, make_groups
from snefy_ldl.errors import SnefyError
from snefy_ldl.prediction import takes_groups

#: Seconds that loading and predicting may take.
PATIENCE = 10
SMALL: dict[str, Any] = {"n_neurons": 6, "n_readouts": 3, "hidden_sizes": (6,), "epochs": 2}
#: What is put in the place of a value of the JSON.
VALUES: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        2,
        3,
        7,
        10**6,
        10**12,
        -(10**12),
        10**30,
        10**400,
        0.5,
        -0.5,
        1e-300,
        1e308,
        -1e308,
    ),
    *("", "x", "model", "log", "../x", [], [1.0], [1e30], ["x"], [[]], {}, {"x": 1}, {"value": 1}),
)
#: What is put in the place of numbers of the weights.
NUMBERS = (
    0.0,
    1.0,
    -1.0,
    1e-300,
    -1e-30,
    1e3,
    -1e3,
    1e6,
    -1e6,
    1e15,
    1e30,
    -1e30,
    3e38,
    1e300,
    np.nan,
    np.inf,
    -np.inf,
)


def write_models(folder: Path) -> list[Path]:
    """Small fitted models of the kinds that differ in what their folders hold."""
    city = make_city_districts(n=60, random_state=3)
    fits = {
        "guides": ({}, city.D),
        "members": ({"guides": None, "n_members": 2}, city.D),
    }
    for name, (settings, D) in fits.items():
        SnefyLDL(**SMALL, **settings, random_state=3).fit(city.X, D).save(folder / name)
    data = make_groups(n_groups=12, n_rows=10, n_features=5, effect=1.0, random_state=0)
    grouped = GroupedLDL(SnefyLDL(**SMALL, random_state=3)).fit(data.X, data.D, groups=data.groups)
    assert grouped.group_effects_ is not None
    grouped.save(folder / "groups")
    items = make_annotators(n=40, n_features=5, votes=4, n_annotators=6, long_table=True, random_state=0)
    people = AnnotatorLDL(SnefyLDL(**SMALL, guides=None, random_state=3))
    people.fit(items.X, Votes.from_long(items.votes)).save(folder / "annotators")
    LogRatioLDL(n_trees=4, max_iter=20, random_state=3).fit(city.X, city.D).save(folder / "logratio")
    return [folder / name for name in (*fits, "groups", "annotators", "logratio")]


def rows() -> Any:
    """Features to predict: of the training rows, and far away."""
    X = make_city_districts(n=60, random_state=3).X[:6].copy()
    X[4], X[5] = 0.0, 1e6
    return X


# -- tampering ---------------------------------------------------------------------------------------------------------


def places(content: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of everything in a JSON."""
    items = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from places(value, (*path, key))


def pick(rng: np.random.Generator, options: Any) -> Any:
    return options[int(rng.integers(len(options)))]


def change_json(config: dict[str, Any], rng: np.random.Generator) -> str:
    """Replace, remove or add something; most of the places are numbers of the history, which nothing depends on."""
    every = list(places(config))
    other = [path for path in every if path[0] not in ("history", "training")]
    path = pick(rng, other if rng.random() < 0.9 else every)
    parent = config
    for key in path[:-1]:
        parent = parent[key]
    act = rng.random()
    if act < 0.15:
        del parent[path[-1]]
        return f"without {path}"
    if act < 0.2 and isinstance(parent, list):
        parent.append(copy.deepcopy(parent[-1]))
        return f"one more in {path[:-1]}"
    old, value = parent[path[-1]], copy.deepcopy(pick(rng, VALUES))
    if isinstance(old, (int, float)) and not isinstance(old, bool) and rng.random() < 0.5:
        value = old * pick(rng, (2, -1, 1e3, 1e10, 1e100))
    parent[path[-1]] = value
    return f"{path} = {value!r}"[:200]


def change_tensor(tensors: dict[str, torch.Tensor], rng: np.random.Generator) -> str:
    """Spoil one of the weights."""
    name = pick(rng, sorted(tensors))
    tensor = tensors[name]
    act = int(rng.integers(9))
    if act == 0:
        del tensors[name]
    elif act == 1:
        tensors[name] = tensor.to(pick(rng, (torch.float16, torch.bfloat16, torch.int8, torch.int64, torch.float64)))
    elif act == 2:
        tensors[name] = pick(
            rng, (tensor.reshape(-1), tensor[None], tensor[:1], tensor[:0], torch.cat([tensor, tensor]))
        )
        tensors[name] = tensors[name].contiguous()
    elif act == 3:
        flat = tensor.reshape(-1)
        tensors[name] = flat[torch.as_tensor(rng.permutation(len(flat)))].reshape(tensor.shape).contiguous()
    elif act == 4:
        tensors[f"{name}{pick(rng, ('x', '_', '.x_'))}"] = tensor.clone()
    else:
        number = pick(rng, NUMBERS)
        flat = tensor.reshape(-1).clone()
        many = pick(rng, (1, 1, len(flat)))
        index = torch.as_tensor(rng.integers(len(flat), size=many)) if many == 1 else slice(None)
        if flat.is_floating_point():
            flat[index] = torch.as_tensor(number, dtype=torch.float64).to(flat.dtype)
        else:
            whole = int(np.clip(np.nan_to_num(number), -(2**62), 2**62))
            wanted = pick(rng, (whole, 0, 1, -1, len(flat), int(rng.integers(max(len(flat), 1)))))
            limits = torch.iinfo(flat.dtype)
            flat[index] = min(max(wanted, limits.min), limits.max)
        tensors[name] = flat.reshape(tensor.shape)
        return f"{name}: {number} in {many} of {len(flat)}"
    return f"{name}: act {act}"


def flip(content: bytes, rng: np.random.Generator, start: int = 0, stop: int | None = None) -> bytes:
    changed = bytearray(content)
    for _ in range(pick(rng, (1, 1, 3))):
        at = int(rng.integers(start, min(stop or len(changed), len(changed))))
        changed[at] = int(rng.integers(256)) if rng.random() < 0.5 else changed[at] ^ (1 << int(rng.integers(8)))
    return bytes(changed)


def tamper(folder: Path, rng: np.random.Generator) -> str:
    """Spoil a model folder, in words."""
    file = folder / "model.json"
    config = json.loads(file.read_text())
    weights = folder / config["weights"]["file"]
    kind = rng.random()
    if kind < 0.45:
        words = " and ".join(change_json(config, rng) for _ in range(pick(rng, (1, 1, 1, 2))))
        file.write_text(json.dumps(config))
        return f"JSON: {words}"
    if kind < 0.5:
        file.write_bytes(flip(file.read_bytes(), rng))
        return "flipped bytes of the JSON"
    if kind < 0.53:
        target = pick(rng, (file, weights))
        content = target.read_bytes()
        target.write_bytes(content[: int(rng.integers(len(content)))])
        return f"truncated {target.suffix}"
    payload = weights.read_bytes()
    if kind < 0.56:
        weights.write_bytes(flip(payload, rng))
        return "flipped bytes of the weights"
    if kind < 0.68:  # with a checksum that agrees
        header = 8 + int.from_bytes(payload[:8], "little")
        where = pick(rng, ((0, 8), (8, header), (header, len(payload))))
        payload, words = flip(payload, rng, *where), f"flipped bytes {where} and the checksum"
    elif kind < 0.7:
        payload, words = payload[: int(rng.integers(len(payload)))], "truncated weights and the checksum"
    else:
        tensors = parse(payload)
        words = " and ".join(change_tensor(tensors, rng) for _ in range(pick(rng, (1, 1, 1, 2))))
        payload = format_tensors(tensors)
    weights.write_bytes(payload)
    config["weights"]["sha256"] = hashlib.sha256(payload).hexdigest()
    file.write_text(json.dumps(config))
    return words


# -- what comes of it --------------------------------------------------------------------------------------------------


class TookTooLong(Exception):
    """The patience is over."""


@contextlib.contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Raise where a block takes too long."""

    def stop(*_: object) -> None:
        raise TookTooLong

    usual = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, usual)


def try_case(source: Path, place: Path, seed: int) -> str:
    """Tamper with a copy of a model and use it: "refused" or "answered", and AssertionError for anything else."""
    folder = Path(shutil.copytree(source, place / "m"))
    words = tamper(folder, np.random.default_rng(seed))
    case = f"{source.name}, seed {seed}: {words}"
    answer, refusal = None, ""
    try:
        with deadline(PATIENCE), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                model = load(folder)
            except SnefyError as error:
                refusal = str(error)
            else:
                asked = {"groups": [0, 1, 2, 3, 4, "new"]} if takes_groups(model) else {}
                answer = np.asarray(model.predict(rows(), **asked))
    except BaseException as error:
        trace = "".join(traceback.format_exception(error)[-3:])
        raise AssertionError(f"{case}: {type(error).__name__}: {error}\n{trace}") from None
    finally:
        shutil.rmtree(folder)
    if answer is None:
        assert len(refusal.splitlines()) == 1, f"{case}: {refusal}"
        return "refused"
    assert np.isfinite(answer).all(), f"{case}: not finite: {answer}"
    assert (answer >= -1e-9).all(), f"{case}: negative: {answer}"
    assert np.allclose(answer.sum(1), 1.0, atol=1e-6), f"{case}: sums to {answer.sum(1)}"
    return "answered"


def main() -> int:
    """Try many cases, print what fails, and how many of each outcome there were."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    outcomes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as place:
        models = write_models(Path(place))
        for case in range(chosen.cases):
            try:
                outcomes[try_case(models[case % len(models)], Path(place), chosen.seed + case)] += 1
            except AssertionError as error:
                outcomes["failed"] += 1
                print(error, flush=True)
    print(dict(outcomes))
    return int(outcomes["failed"] > 0)


if __name__ == "__main__":
    sys.exit(main())
