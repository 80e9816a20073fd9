"""Docstrings on the site: names from other libraries become links, and classes name their base class."""

from __future__ import annotations

import re
from typing import Any

#: How a docstring writes a name, and where it is described.
WRITTEN = {
    "DataFrame": "pandas.DataFrame",
    "GridSearchCV": "sklearn.model_selection.GridSearchCV",
    "FrozenEstimator": "sklearn.frozen.FrozenEstimator",
    "Pipeline": "sklearn.pipeline.Pipeline",
    "KFold": "sklearn.model_selection.KFold",
    "nn.Module": "torch.nn.Module",
    "torch.nn.Module": "torch.nn.Module",
    "DataLoader": "torch.utils.data.DataLoader",
    "IterableDataset": "torch.utils.data.IterableDataset",
    "torch.distributions.Dirichlet": "torch.distributions.dirichlet.Dirichlet",
    "torch.distributions.Distribution": "torch.distributions.distribution.Distribution",
    "torch.export.export": "torch.export.export",
    "Generator": "numpy.random.Generator",
    "clone": "sklearn.base.clone",
}
#: Base classes from other libraries, by the module that defines them.
FOREIGN = {
    "sklearn.pipeline.Pipeline": "sklearn.pipeline.Pipeline",
    "sklearn.base.BaseEstimator": "sklearn.base.BaseEstimator",
    "torch.nn.modules.module.Module": "torch.nn.Module",
    "torch.distributions.distribution.Distribution": "torch.distributions.distribution.Distribution",
    "builtins.ValueError": "ValueError",
    "builtins.UserWarning": "UserWarning",
    "builtins.RuntimeError": "RuntimeError",
}
SPAN = re.compile(r"``(" + "|".join(map(re.escape, sorted(WRITTEN, key=len, reverse=True))) + r")``")
PLAIN = re.compile(r"(?<![\w.`])DataFrame(?=s?\b)(?!`)")


def link_names(lines: list[str]) -> None:
    """Turn the first mention of each foreign name into a link; code that a reader copies stays as it is.

    Args:
        lines: of a docstring, changed in place.
    """
    seen: set[str] = set()

    def link(match: re.Match[str]) -> str:
        word = match[1] if match.re is SPAN else match[0]
        if word in seen:
            return match[0]
        seen.add(word)
        role = "func" if word in ("clone", "torch.export.export") else "class"
        return f":{role}:`{word} <{WRITTEN[word]}>`"

    for number, line in enumerate(lines):
        if line.strip() == "Example:":
            return
        parts = re.split(r"(`+[^`]*`+)", line)
        parts[::2] = [PLAIN.sub(link, part) for part in parts[::2]]
        parts[1::2] = [SPAN.sub(link, part) for part in parts[1::2]]
        lines[number] = "".join(parts)


def name_base(value: Any, lines: list[str]) -> None:
    """Add a line that names the base class from another library.

    Args:
        value: the class.
        lines: of its docstring, changed in place.
    """
    for base in value.__mro__[1:]:
        name = FOREIGN.get(f"{base.__module__}.{base.__qualname__}")
        if name is not None:
            first = next((place for place, line in enumerate(lines) if not line.strip()), len(lines))
            lines[first:first] = ["", f"Derived from :class:`{name}`."]
            return
