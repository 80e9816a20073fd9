"""A fitted model as an ONNX file, for any runtime that reads such files. Needs the extra ``onnx``."""

from __future__ import annotations

import importlib.util
import json
import logging
import warnings
from pathlib import Path
from typing import Any

import torch
from torch.export import Dim

from snefy_ldl._internal.files import write_bytes
from snefy_ldl._internal.progress import Progress
from snefy_ldl._internal.version import __version__
from snefy_ldl.apps.integrations.graph import ModelGraph
from snefy_ldl.apps.table_rows import label_names
from snefy_ldl.errors import InputError

__all__ = ["export_onnx"]

#: Version of ONNX's operators; runtimes of 2024 and later support it.
OPSET = 20
#: The graph's own names.
INPUT, OUTPUTS = "features", ("mean", "variance")


def export_onnx(model: Any, path: str | Path, *, verbose: int = 0) -> Path:
    """Write a fitted model as an ONNX file that gives mean and variance.

    Its input ``features`` is (B, d) in float64: the features, or of a table with gaps, text or dates what
    ``model.encode(table)`` returns. Its outputs are ``mean`` (B, L) and ``variance`` (B, L) in float64, which equal
    the model's to rounding (the network runs in float32). Names of labels and features, and how a table was read, are
    in the file's metadata.

    Args:
        model: a fitted :class:`~snefy_ldl.SnefyLDL`, or an :class:`~snefy_ldl.AutoLDL` that kept one.
        path: file to write, ending in .onnx; one that is there is replaced.
        verbose: 1 shows progress on stderr.

    Returns:
        The file.

    Raises:
        ImportError: onnx or onnxscript is not installed.
        InputError: the file has another ending, or the model has parts that no graph can hold; the message
            names them and what to do.
        NotFittedError: before a fit.

    Example:
        >>> import tempfile
        >>> from snefy_ldl import SnefyLDL
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> model = SnefyLDL(n_neurons=4, epochs=1, guides=None, random_state=0).fit(city.X, city.D)
        >>> with tempfile.TemporaryDirectory() as folder:  # doctest: +SKIP
        ...     file = export_onnx(model, Path(folder) / "model.onnx")
        ...     mean, variance = onnxruntime.InferenceSession(file).run(None, {"features": city.X})
    """
    missing = [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]
    if missing:
        raise ImportError(f"ONNX files need {' and '.join(missing)}: pip install 'snefy-ldl[onnx]'")
    path = Path(path)
    if path.suffix.lower() != ".onnx" or path.is_dir():
        raise InputError(f"{path}: name a file that ends in .onnx.")
    graph = ModelGraph(model).eval()
    log, shapes = logging.getLogger("torch.onnx"), ({0: Dim("rows")},)
    level = log.level
    with Progress("export", 1, show=bool(verbose)) as progress, warnings.catch_warnings(), torch.no_grad():
        progress.update(0, "tracing the model")
        warnings.simplefilter("ignore")  # torch warns about changes in torch
        log.setLevel(logging.ERROR)
        try:
            program = torch.export.export(
                graph, (torch.zeros(3, graph.width, dtype=torch.float64),), dynamic_shapes=shapes, strict=False
            )
            made = torch.onnx.export(program, dynamo=True, opset_version=OPSET, verbose=False)
        finally:
            log.setLevel(level)
        progress.update(1, "done")
    assert made is not None
    proto = made.model_proto
    _rename(proto.graph)
    proto.producer_name = "snefy-ldl"
    for name, value in describe(model, graph).items():
        proto.metadata_props.add(key=name, value=value if isinstance(value, str) else json.dumps(value))
    write_bytes(path, proto.SerializeToString())
    return path


def describe(model: Any, graph: ModelGraph) -> dict[str, Any]:
    """What goes into an exported model and what comes out, as plain JSON values.

    Args:
        model: that was exported.
        graph: of it.

    Returns:
        ``labels``, ``features`` (None if the model has no names), ``n_features``, ``columns`` (how text, dates
        and gaps became features, or None) and ``library_version``.

    Example:
        >>> from snefy_ldl import SnefyLDL
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> model = SnefyLDL(n_neurons=4, epochs=1, guides=None, random_state=0).fit(city.X, city.D)
        >>> describe(model, ModelGraph(model))["n_features"]
        5
    """
    return {
        "labels": label_names(model),
        "features": graph.names,
        "n_features": graph.width,
        "columns": model.columns_.to_dict() if graph.encoded else None,
        "library_version": __version__,
    }


def _rename(graph: Any) -> None:
    """Give input and outputs their names, and all else names that cannot be theirs: torch names values by operation."""
    names = {graph.input[0].name: INPUT}
    names |= {output.name: name for output, name in zip(graph.output, OUTPUTS)}

    def renamed(name: str) -> str:
        return names.get(name, f"inner.{name}") if name else name

    for node in graph.node:
        node.input[:] = [renamed(name) for name in node.input]
        node.output[:] = [renamed(name) for name in node.output]
    for value in (*graph.input, *graph.output, *graph.initializer, *graph.value_info):
        value.name = renamed(value.name)
    for value in (*graph.input, *graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "rows"
