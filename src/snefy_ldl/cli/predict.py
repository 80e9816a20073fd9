"""The command ``predict``: label distributions of a table, and their intervals, a part at a time."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from snefy_ldl._internal.limits import MOST_THREADS
from snefy_ldl.cli.common import (
    BackboneCode,
    Device,
    Features,
    Keep,
    ModelFolder,
    TableOut,
    Tables,
    distinct_columns,
    load_model,
    note_other_levels,
    progress_bar,
    say,
    split,
    table_output,
)
from snefy_ldl.cli.entry import command
from snefy_ldl.cli.parts import EngineOptions, predict_parts
from snefy_ldl.cli.tables import feature_names, label_names, no_table_notes, odd_cells, print_odd_cells
from snefy_ldl.cluster.rows import (
    calibrated_intervals,
    calibrated_levels,
    interval_columns,
    model_rows,
    prediction_columns,
    takes_gaps,
)

if TYPE_CHECKING:
    from snefy_ldl.estimator import SnefyLDL

Part = TypeVar("Part")
Answer = TypeVar("Answer")


@command()
def predict(
    model: ModelFolder,
    tables: Tables,
    out: TableOut = "-",
    interval: Annotated[
        float | None,
        typer.Option(metavar="LEVEL", help="Also write each label's interval of this level, for example 0.9."),
    ] = None,
    keep: Keep = None,
    uncalibrated: Annotated[
        bool, typer.Option("--uncalibrated", help="The model's own intervals, even if it has been calibrated.")
    ] = False,
    features: Features = None,
    device: Device = "auto",
    *,
    engine: EngineOptions,
    backbone: BackboneCode = None,
) -> None:
    """Predict the label distributions of a table, a part at a time, however long it is.

    If --out is a folder (a name without an ending), TABLE... are Parquet
    files, folders or addresses such as s3://..., and each part becomes a
    file in that folder; a run that was stopped continues from there.
    """
    from snefy_ldl._internal.validation import check_confidence
    from snefy_ldl.datasets.tables import TableSink, TableSource
    from snefy_ldl.errors import InputError

    if interval is not None:
        check_confidence(interval, "--interval")
    kept = split(keep)
    chosen = engine.choose(tables, out, backbone)
    if chosen is not None:
        return predict_parts(chosen, model, tables, out, kept, features, device, interval, uncalibrated)
    table = Path(tables[0])
    table_output(out, table)
    source = TableSource(table)
    fitted = load_model(model, backbone, device)
    names = feature_names(fitted, features, source)
    source.need(kept, "--keep")
    labels = label_names(fitted)
    if taken := sorted(set(kept) & set(labels)):
        raise InputError(f"--keep {taken[0]}: a predicted column has the same name; leave it out.")
    distinct_columns([*kept, *labels, *(interval_columns(labels) if interval is not None else [])])
    rows, intervals = 0, None if interval is None else _interval_maker(fitted, model, interval, uncalibrated)
    odd: list[Any] = []

    def answer_to(chunk: Any) -> Any:
        odd.extend(odd_cells(fitted, chunk, names))
        return _predictions(fitted, chunk, names, kept, intervals)

    # parts are answered by several threads, which share the filters of warnings: odd cells are added up here
    with no_table_notes(), progress_bar("predict") as progress, TableSink(out) as sink:
        for answer in map_in_order(answer_to, source.chunks(names, kept, progress, finite=not takes_gaps(fitted))):
            sink.write(answer)
            rows += len(answer)
    print_odd_cells(odd)
    if out != "-":
        say(f"{rows:,} rows written to {out}", "green")


def _interval_maker(model: SnefyLDL, folder: Path, level: float, uncalibrated: bool) -> Callable[[Any], Any]:
    """Features to intervals (N, L, 2): calibrated where the folder holds a calibration of that level."""
    calibrated = None if uncalibrated else calibrated_maker(model, folder, level)
    return calibrated or (lambda X: model.predict_interval(X, level))


def calibrated_maker(model: SnefyLDL, folder: Path, level: float) -> Callable[[Any], Any] | None:
    """Features to calibrated intervals (N, L, 2).

    Args:
        model: The fitted model.
        folder: Its folder.
        level: Confidence level.

    Returns:
        A function of features; None where the folder holds no calibration of that level. A note is printed where it
        holds one of other levels.
    """
    from snefy_ldl._internal.files.models import load_calibration

    state = load_calibration(folder)
    if state is None or note_other_levels(calibrated_levels(state), level):
        return None
    return calibrated_intervals(model, state, level)


def _predictions(
    model: SnefyLDL, chunk: Any, names: list[str], keep: list[str], intervals: Callable[[Any], Any] | None
) -> Any:
    """The output's columns: kept ones, and for each label its mean and both ends of its interval."""
    import pandas as pd

    columns = prediction_columns(model, model_rows(model, chunk, names), intervals)
    numbers = pd.DataFrame(columns, index=chunk.index)
    return pd.concat([chunk[keep], numbers], axis=1) if keep else numbers


def map_in_order(work: Callable[[Part], Answer], parts: Iterable[Part], threads: int | None = None) -> Iterator[Answer]:
    """What some work makes of each part, in the parts' order, in bounded memory.

    Threads gain because PyTorch, NumPy and the reader of Parquet files leave the interpreter free while they compute;
    each uses one core, so that they do not wait for each other.

    Args:
        work: Called with a part, in any thread.
        parts: Read in the calling thread, at most ``threads + 1`` ahead of what was handed on.
        threads: How many; by default one per core, up to four.

    Yields:
        The answers.

    >>> list(map_in_order(lambda part: part**2, range(5), threads=2))
    [0, 1, 4, 9, 16]
    """
    import torch  # loaded where it is used: a command that only asks for help should answer at once

    from snefy_ldl._internal.special.threads import one_blas_thread

    cores = os.cpu_count() or 1
    count = threads or min(cores, MOST_THREADS)
    before = torch.get_num_threads()
    waiting: deque[Future[Answer]] = deque()
    torch.set_num_threads(1)
    try:
        with one_blas_thread(), ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            try:
                for part in parts:
                    waiting.append(pool.submit(work, part))
                    if len(waiting) > count:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                for future in waiting:
                    future.cancel()
    finally:
        torch.set_num_threads(before)
