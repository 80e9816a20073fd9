"""Questions of ``predict --ask``: probabilities, log-ratios, quantiles and draws, as columns of a table."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from snefy_ldl.apps.cli.common import input_error, number

if TYPE_CHECKING:
    from snefy_ldl.distributions import SimplexDistribution

#: A question: a word, and what stands in its parentheses.
FORM = re.compile(r"\s*(P|log|quantiles|draws)\s*\((.*)\)\s*", re.DOTALL)
USE = 'use "P(A > 2 * B)", "P(A + B > 0.5)", "P(A = 0)", "log(A / B)", "quantiles(0.05, 0.5)" or "draws(10)"'


@dataclass(frozen=True)
class Question:
    """What is asked about every row.

    Args:
        columns: Names of the columns of the answer (k).
        answer: Distributions of some rows (b,) and the number of the first of them to numbers (b, k).
        are_shares: Whether the answers are shares, which are written in the unit of the training table.
    """

    columns: list[str]
    answer: Callable[[SimplexDistribution, int], Any]
    are_shares: bool = False


def read_question(text: str, labels: list[str], names: list[str] | None = None) -> Question:
    """A question out of its text.

    Args:
        text: Such as ``P(sand > 2 * clay)``.
        labels: Names of the labels.
        names: What columns of shares are called in the output; the labels by default.

    Returns:
        The question.

    Raises:
        InputError: It cannot be read.

    >>> read_question("log(sand/clay)", ["sand", "clay"]).columns
    ['log(sand/clay)', 'sd log(sand/clay)']
    """
    found = FORM.fullmatch(text)
    if found is None:
        raise input_error(f"--ask {text}: {USE}.")
    kind, inside = found[1], found[2].strip()
    if kind == "log":
        return _log_ratio(text.strip(), inside, labels)
    if kind == "P":
        return _probability(text.strip(), inside, labels)
    values = [number(part, f"--ask {text}:") for part in inside.split(",")]
    if kind == "quantiles":
        return _quantiles(text, values, names or labels)
    if len(values) != 1 or values[0] != int(values[0]) or not 1 <= values[0] <= 10_000:
        raise input_error(f"--ask {text}: give a number of draws from 1 to 10,000.")
    return _draws(int(values[0]), names or labels)


def _probability(text: str, inside: str, labels: list[str]) -> Question:
    """``P(A > 2 * B)`` and the like, or ``P(A = 0)``."""
    name, sign, value = inside.rpartition("=")
    if sign and name.strip() in labels and value.strip() == "0":
        place = labels.index(name.strip())
        return Question([text], lambda dist, first: dist.prob_zero()[:, [place]])
    return Question([text], lambda dist, first: dist.named(labels).probability(inside)[0][:, None])


def _log_ratio(text: str, inside: str, labels: list[str]) -> Question:
    """Mean and standard deviation of ``log(A / B)``, given that both are there."""
    import torch

    for k in [k for k, letter in enumerate(inside) if letter == "/"]:  # a label's name may contain the sign
        first, second = inside[:k].strip(), inside[k + 1 :].strip()
        if first in labels and second in labels and first != second:
            break
    else:
        raise input_error(f"--ask {text}: name two of the labels {', '.join(labels)}, with a / between them.")

    def answer(dist: Any, start: int) -> Any:
        ratio = dist.log_ratio(labels.index(first), labels.index(second))
        return torch.stack([ratio.mean, ratio.variance.sqrt()], 1)

    return Question([text, f"sd {text}"], answer)


def _quantiles(text: str, levels: list[float], labels: list[str]) -> Question:
    if not all(0.0 < level < 1.0 for level in levels):
        raise input_error(f"--ask {text}: levels must lie strictly between 0 and 1.")
    columns = [f"{label}_q{level:g}" for label in labels for level in levels]
    return Question(columns, lambda dist, start: dist.quantiles(levels).reshape(len(dist), -1), True)


def _draws(n: int, labels: list[str]) -> Question:
    """Draws, the same for any chunks in which rows are read."""
    import torch

    def answer(dist: Any, start: int) -> Any:
        generator = torch.Generator(dist.device)
        rows = [dist[k : k + 1].sample((n,), generator.manual_seed(start + k))[:, 0] for k in range(len(dist))]
        return torch.stack(rows).reshape(len(dist), -1)  # (b, n L)

    return Question([f"{label}_draw{k + 1}" for k in range(n) for label in labels], answer, True)
