"""A fitted model as a program of ``torch.export``: a file that torch runs without this library."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.export import Dim, ExportedProgram

from snefy_ldl._internal.files import replace_file
from snefy_ldl._internal.version import __version__
from snefy_ldl.errors import InputError
from snefy_ldl.integrations.graph import ModelGraph, Precision

__all__ = ["DESCRIPTION", "describe", "export_program", "trace"]

#: Name of the JSON text in a program's file that says what goes in and what comes out.
DESCRIPTION = "snefy_ldl.json"


def export_program(
    model: Any,
    path: str | Path,
    levels: Sequence[float] | None = None,
    *,
    dtype: Precision = "float64",
    verbose: int = 0,
) -> Path:
    """Write a fitted model as a program of ``torch.export`` (``.pt2``): mean, variance and quantiles from features.

    ``torch.export.load(path).module()(features)`` runs it: features (B, d), NaN where the model was fitted with gaps;
    mean (B, L), variance (B, L) and quantiles (B, L, A) come out. Behind a network of the user's own, features are what
    that network takes.

    Args:
        model: a fitted :class:`~snefy_ldl.SnefyLDL`.
        path: file to write, ending in .pt2; one that is there is replaced.
        levels: of the quantiles, strictly between 0 and 1 (A,); an empty list leaves them out. None: nine of them. The
            law of a model whose guides move it gives means and variances alone, which ``left_out`` says in the file.
        dtype: in which features come in: "float64" or "float32".
        verbose: 1 shows progress on stderr.

    Returns:
        The file.

    Raises:
        InputError: where the file has another ending, a level lies outside (0, 1), or the model has parts that no graph
            can hold; it says which, and what to do.
        NotFittedError: before a fit.

    Example:
        >>> import tempfile
        >>> from snefy_ldl import SnefyLDL
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> model = SnefyLDL(n_neurons=4, epochs=1, guides=None, random_state=0).fit(city.X, city.D)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     program = torch.export.load(export_program(model, Path(folder) / "model.pt2", levels=()))
        >>> mean, variance = program.module()(torch.as_tensor(city.X))
        >>> bool(abs(mean.numpy() - model.predict(city.X)).max() < 1e-6)
        True
    """
    path = check_ending(path, ".pt2")
    graph = ModelGraph(model, levels, dtype, verbose)
    program = trace(graph)
    with replace_file(path) as temporary, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of endings, and of its own parts that will change
        with temporary.open("wb") as file:
            torch.export.save(program, file, extra_files={DESCRIPTION: json.dumps(describe(model, graph))})
    return path


def trace(graph: ModelGraph) -> ExportedProgram:
    """The graph as torch's program, for any number of rows.

    Args:
        graph: of a fitted model.

    Returns:
        The program.

    Example:
        >>> from snefy_ldl import SnefyLDL
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> model = SnefyLDL(n_neurons=4, epochs=1, guides=None, random_state=0).fit(city.X, city.D)
        >>> len(trace(ModelGraph(model, levels=())).module()(torch.as_tensor(city.X)))
        2
    """
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # torch warns of its own parts that will change
        return torch.export.export(
            graph.eval(), (graph.inputs.example(),), dynamic_shapes=({0: Dim("rows")},), strict=False
        )


def describe(model: Any, graph: ModelGraph) -> dict[str, Any]:
    """What goes into an exported model and what comes out, as plain JSON values.

    Args:
        model: that was exported.
        graph: of it.

    Returns:
        ``labels``, ``features`` (None where the model knows no names), ``n_features``, ``levels``, ``input`` (a
        sentence), ``dtype`` (in which features must come),
        ``left_out`` (what is missing, a sentence or None), ``columns`` (how text and dates became features,
        or None) and ``library_version``.

    Example:
        >>> from snefy_ldl import SnefyLDL
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> model = SnefyLDL(n_neurons=4, epochs=1, guides=None, random_state=0).fit(city.X, city.D)
        >>> describe(model, ModelGraph(model, levels=(0.5,)))["levels"]
        [0.5]
    """
    return {
        "labels": [str(label) for label in model.label_names_],
        "features": graph.inputs.names,
        "n_features": graph.inputs.width,
        "levels": list(graph.levels),
        "input": graph.inputs.words(),
        "dtype": str(graph.inputs.example().dtype).removeprefix("torch."),
        "left_out": graph.left_out,
        "columns": model.columns_.to_dict() if graph.inputs.encoded else None,
        "library_version": __version__,
    }


def check_ending(path: str | Path, ending: str) -> Path:
    """The path of a file to write.

    Args:
        path: as given.
        ending: that it must have.

    Returns:
        The path.

    Raises:
        InputError: it has another ending, or is a folder.

    Example:
        >>> check_ending("model.pt2", ".pt2").name
        'model.pt2'
    """
    path = Path(path)
    if path.suffix.lower() != ending:
        raise InputError(f"{path}: name a file that ends in {ending}.")
    if path.is_dir():
        raise InputError(f"{path} is a folder; name a file in it.")
    return path
