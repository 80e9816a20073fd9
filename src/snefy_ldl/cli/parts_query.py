"""``query`` in parts: the best rows of each part, and of these the best of all."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from snefy_ldl.cli.common import note, say
from snefy_ldl.cli.parts import Setup, work_through

if TYPE_CHECKING:
    from snefy_ldl.cluster.base import Engine

__all__ = ["query_parts"]

#: What the table of chosen rows is called, beside the folder of the parts.
CHOSEN, PARTS = "chosen.parquet", "parts"


def query_parts(
    engine: Engine,
    model: Path,
    pools: list[str],
    out: str,
    strategy: Any,
    n: int,
    seed: int,
    *,
    id_name: str | None,
    keep: list[str],
    features: str | None,
    skip: list[Path],
) -> None:
    """``query`` in parts.

    Args:
        engine: Where the work is done.
        model: Folder of the model.
        pools: Parquet files, folders, patterns and addresses.
        out: Folder to write to: ``chosen.parquet``, and the best rows of each part in ``parts``.
        strategy: One that scores each row by itself.
        n: How many rows.
        seed: Of draws.
        id_name: Column that names the rows.
        keep: Further columns to copy.
        features: Text of ``--features``, or None.
        skip: Files that name rows which must not be chosen.
    """
    from snefy_ldl.cluster.work import Query
    from snefy_ldl.datasets.labelled import ID_NAMES, named_rows
    from snefy_ldl.errors import InputError

    setup = Setup.read(model, pools)
    scored = _scores_rows(strategy, setup.model)
    setup.table.need(keep, "--keep")
    key = setup.key(id_name, features)
    ids = () if key is None else (key,)
    names = setup.features(features, (*ids, *keep))
    kept = tuple(name for name in keep if name not in (*ids, *names))
    skipped: set[str] = set()
    for file in skip:
        listed, column = named_rows(file, id_name)
        if column != (key or ID_NAMES[-1]):
            raise InputError(f"--skip {file}: it names rows by {column!r}, the pool by {key or ID_NAMES[-1]!r}.")
        skipped.update(listed)
    work = Query(setup.shipped, names, kept, scored, n, seed, key, tuple(sorted(skipped)))
    run = work_through(engine, work, setup.table, f"{out.rstrip('/')}/{PARTS}", "query")
    free = sum(int(outcome.summary["free"]) for outcome in run.outcomes)
    if free < n:
        raise InputError(f"n={n} rows were asked for, but the pool has {free} to choose from.")
    _write_chosen(out, n, setup.labels)
    say(f"{n:,} of {run.rows:,} rows written to {out.rstrip('/')}/{CHOSEN}", "green")


def _scores_rows(strategy: Any, model: Any) -> Any:
    """The strategy, where it needs no row but the one it scores."""
    from snefy_ldl.active import Auto, Epistemic, LawStrategy, Variance
    from snefy_ldl.errors import InputError

    if isinstance(strategy, Auto):
        note("in parts, rows are chosen by their scores alone: no diverse batch")
        several = getattr(model, "n_members", 1) not in (1, "auto")
        strategy = Epistemic(target="vote") if several else Variance()
    if not isinstance(strategy, LawStrategy) or strategy.diverse:
        raise InputError(
            "in parts, each row is scored by itself: use variance, entropy, logdet, vote_information, epistemic or "
            "dirichlet, and no --diverse; the others look at all rows of one table."
        )
    return strategy


def _write_chosen(out: str, n: int, labels: list[str]) -> None:
    """The best rows of all parts, best first, with empty columns to fill the labels in."""
    import pyarrow
    from pyarrow import parquet

    from snefy_ldl.cluster.parts import Place
    from snefy_ldl.cluster.work import NUMBER, take_best

    tables = []
    for place in Place(f"{out.rstrip('/')}/{PARTS}").files():
        system, path = place.open()
        with system.open_input_file(path) as file:
            tables.append(parquet.read_table(file))
    best = take_best(pyarrow.concat_tables(tables), n).drop_columns([NUMBER])
    for number, label in enumerate([label for label in labels if label not in best.column_names], 2):
        best = best.add_column(number, label, pyarrow.nulls(best.num_rows, pyarrow.float64()))
    with Place(out).child(CHOSEN).replaced() as file:
        parquet.write_table(best.replace_schema_metadata(None), file)
