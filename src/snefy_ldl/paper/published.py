"""The paper's own figures, as it prints them: mean and standard deviation of every cell of tables 2 to 7.

Zhang, Tsuchida, Sejdinovic, "Label Distribution Learning using the Squared Neural Family on the Probability Simplex",
UAI 2025. Figure A1 is a picture without numbers, so it has no entry here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from types import MappingProxyType

__all__ = ["TABLES", "PublishedTable"]


@dataclass(frozen=True)
class PublishedTable:
    """One table of the paper.

    Args:
        name: the study that runs it again, ``"table3"``.
        place: where it stands, ``"Table 3, section 6.1"``.
        dataset: the data set, as :func:`snefy_ldl.load_dataset` calls it.
        splits: random splits that the paper averages over.
        cells: key to (mean, standard deviation). Tables 2 and 3: ("snefy" or "dirichlet", number of groups, label from
            0); tables 4 and 5: (strategy, measure); tables 6 and 7: (learner, "Average" or "Weighted", measure).

    Example:
        >>> TABLES["table3"].cells["snefy", "2", "0"]
        (0.8948, 0.0175)
    """

    name: str
    place: str
    dataset: str
    splits: int
    cells: Mapping[tuple[str, ...], tuple[float, float]]


def _load() -> dict[str, PublishedTable]:
    content = json.loads(files("snefy_ldl.paper").joinpath("published.json").read_text(encoding="utf-8"))
    return {
        name: PublishedTable(
            name,
            table["place"],
            table["dataset"],
            table["splits"],
            MappingProxyType({tuple(key): (mean, std) for key, mean, std in table["cells"]}),
        )
        for name, table in content.items()
    }


#: Tables 2 to 7, by the name of the study that runs them again.
TABLES: dict[str, PublishedTable] = _load()
