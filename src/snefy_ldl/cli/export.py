"""The command ``export``: a model as a file for other runtimes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, cast

import typer

from snefy_ldl.cli.common import BackboneCode, ModelFolder, load_model, say

EXAMPLES = """Examples:

snefy-ldl export model/ model.onnx

snefy-ldl export model/ model.onnx --dtype float32

snefy-ldl export model/ model.pt2 --levels 0.05,0.5,0.95
"""


def export(
    model: ModelFolder,
    out: Annotated[Path, typer.Argument(metavar="FILE", help="File to write: .onnx, or .pt2 for torch.export.")],
    levels: Annotated[
        str | None,
        typer.Option(metavar="A,B,C", help="Levels of the quantiles; none leaves them out. By default nine of them."),
    ] = None,
    dtype: Annotated[
        str, typer.Option(metavar="TYPE", help="In which features come in: float64, or float32 as many runtimes send.")
    ] = "float64",
    backbone: BackboneCode = None,
) -> None:
    """Write a model as a file that gives mean, variance and quantiles without Python.

    Text and dates are not part of the file: it takes the numbers that the
    model makes of them, and says how in its metadata.
    """
    # torch, and what reads models: only when the command runs
    from snefy_ldl.errors import InputError
    from snefy_ldl.integrations.graph import LEFT_OUT
    from snefy_ldl.integrations.onnx import export_onnx
    from snefy_ldl.integrations.program import export_program

    write = {".onnx": export_onnx, ".pt2": export_program}.get(out.suffix.lower())
    if write is None:
        raise InputError(f"{out}: name a file that ends in .onnx or .pt2.")
    try:
        wanted = None if levels is None else [] if levels == "none" else [float(part) for part in levels.split(",")]
    except ValueError:
        raise InputError(f"--levels {levels}: give numbers between 0 and 1 with commas between them.") from None
    fitted = load_model(model, backbone, "cpu")
    if dtype not in ("float64", "float32"):
        raise InputError(f"--dtype {dtype}: use float64 or float32.")
    write(fitted, out, wanted, dtype=cast(Any, dtype), verbose=1)
    say(f"{out.stat().st_size / 1e6:.1f} MB written to {out}", "green")
    if fitted.inputs_ == "moving":
        say(LEFT_OUT, "yellow")
    if fitted.columns_ is not None and not fitted.columns_.is_plain:
        say("text, dates and gaps: the file's metadata says what goes in", "yellow")
