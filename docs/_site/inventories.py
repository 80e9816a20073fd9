"""Small inventories of other libraries: the names that docstrings mention, and the pages that describe them."""

from __future__ import annotations

import zlib
from pathlib import Path

MAPPING = {
    "numpy": "https://numpy.org/doc/stable/",
    "pandas": "https://pandas.pydata.org/docs/",
    "python": "https://docs.python.org/3/",
    "scipy": "https://docs.scipy.org/doc/scipy/",
    "sklearn": "https://scikit-learn.org/stable/",
    "torch": "https://docs.pytorch.org/docs/stable/",
}
#: Library -> (pattern of the page, role, names).
NAMES: dict[str, list[tuple[str, str, list[str]]]] = {
    "numpy": [
        ("reference/generated/{}.html", "class", ["numpy.ndarray"]),
        ("reference/random/generator.html", "class", ["numpy.random.Generator"]),
    ],
    "pandas": [("reference/api/{}.html", "class", ["pandas.DataFrame", "pandas.Series"])],
    "python": [
        ("library/exceptions.html", "exception", ["ValueError", "UserWarning", "RuntimeError", "ImportError"]),
        ("library/stdtypes.html", "class", ["dict"]),
        ("library/pathlib.html", "class", ["pathlib.Path"]),
    ],
    "scipy": [("reference/generated/{}.html", "data", ["scipy.stats.loguniform"])],
    "sklearn": [
        (
            "modules/generated/{}.html",
            "class",
            [
                "sklearn.base.BaseEstimator",
                "sklearn.base.RegressorMixin",
                "sklearn.frozen.FrozenEstimator",
                "sklearn.model_selection.GridSearchCV",
                "sklearn.model_selection.KFold",
                "sklearn.ensemble.RandomForestRegressor",
                "sklearn.pipeline.Pipeline",
                "sklearn.base.TransformerMixin",
            ],
        ),
        ("modules/generated/{}.html", "function", ["sklearn.base.clone", "sklearn.model_selection.cross_val_score"]),
    ],
    "torch": [
        ("tensors.html", "class", ["torch.Tensor"]),
        ("generated/{}.html", "class", ["torch.nn.Module", "torch.Generator"]),
        (
            "data.html",
            "class",
            ["torch.utils.data.DataLoader", "torch.utils.data.Dataset", "torch.utils.data.IterableDataset"],
        ),
        (
            "distributions.html",
            "class",
            ["torch.distributions.distribution.Distribution", "torch.distributions.dirichlet.Dirichlet"],
        ),
        ("export.html", "function", ["torch.export.export"]),
    ],
}


def write_inventories(folder: Path) -> None:
    """Write one inventory per library, in version 2 of Sphinx's format."""
    folder.mkdir(parents=True, exist_ok=True)
    for library, groups in NAMES.items():
        lines = [f"{name} py:{role} 1 {page.format(name)}#{name} -" for page, role, names in groups for name in names]
        head = f"# Sphinx inventory version 2\n# Project: {library}\n# Version: \n"
        head += "# The remainder of this file is compressed using zlib.\n"
        content = head.encode() + zlib.compress("\n".join([*lines, ""]).encode())
        file = folder / f"{library}.inv"
        if not file.exists() or file.read_bytes() != content:
            file.write_bytes(content)
