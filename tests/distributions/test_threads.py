"""Many threads ask one model at once: no error, the same bits as one thread alone, and torch's threads stay as many."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from snefy_ldl import LogRatioLDL, SnefyLDL
from snefy_ldl._internal.threads import one_thread
from snefy_ldl.datasets import make_city_districts
from snefy_ldl.learners import SABFGS

THREADS = 8
ROUNDS = 1
SMALL = {"n_neurons": 6, "n_readouts": 3, "hidden_sizes": (6,), "epochs": 1, "random_state": 0}


@pytest.fixture(autouse=True)
def _two_threads() -> Iterator[None]:
    """Torch with two threads, so that sampling shares its blocks."""
    usual = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(usual)


def model_of(kind: str) -> tuple[Any, Any]:
    """A small fitted model and rows to ask about."""
    city = make_city_districts(n=60, random_state=0)
    if kind == "plain":
        return SnefyLDL(**SMALL, n_members=2, guides=[SABFGS(max_iter=3)]).fit(city.X, city.D), city.X[:20]
    D = city.D.copy()
    D[::2, 0] = 0.0
    D /= D.sum(1, keepdims=True)
    return LogRatioLDL(n_members=2, max_iter=20, random_state=0).fit(city.X, D), city.X[:20]


QUESTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "predict": lambda model, X: model.predict(X),
    "predict_interval": lambda model, X: model.predict_interval(X, 0.8),
    "predict_quantiles": lambda model, X: model.predict_quantiles(X, [0.1, 0.5]),
    "sample": lambda model, X: model.sample(X, 30, random_state=4),
    "sample again": lambda model, X: model.sample(X, 30, random_state=5),
}


def ask_at_once(work: Callable[[int], None]) -> list[BaseException]:
    """Run work(0), work(1), ... in threads that start together; what they raised."""
    barrier, errors = threading.Barrier(THREADS), []

    def run(number: int) -> None:
        try:
            barrier.wait(30)
            work(number)
        except BaseException as error:  # a thread's own errors are printed, not raised
            errors.append(error)

    threads = [threading.Thread(target=run, args=(k,)) for k in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert not any(thread.is_alive() for thread in threads)
    return errors


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "zeros"])
def test_a_model_serves_many_threads(kind: str) -> None:
    model, X = model_of(kind)
    alone = {name: np.asarray(question(model, X)) for name, question in QUESTIONS.items()}
    names = list(QUESTIONS)

    def work(number: int) -> None:
        for k in range(ROUNDS * len(names)):
            name = names[(number + k) % len(names)]
            np.testing.assert_array_equal(np.asarray(QUESTIONS[name](model, X)), alone[name], err_msg=name)

    assert ask_at_once(work) == []
    assert torch.get_num_threads() == 2


def test_small_work_keeps_to_one_thread_and_leaves_others_theirs() -> None:
    """Also threads that start meanwhile use as many as before: the number is not set for the whole process."""
    seen: list[int] = []
    with one_thread():
        seen.append(torch.get_num_threads())
        other = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
        other.start()
        other.join()
        with one_thread(False):
            seen.append(torch.get_num_threads())
    assert seen == [1, 2, 1]
    assert torch.get_num_threads() == 2
