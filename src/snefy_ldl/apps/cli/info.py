"""The command ``info``: what a saved model is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from snefy_ldl._internal.text import shorten
from snefy_ldl.apps.cli.common import (
    input_error,
    level_list,
    load_model,
    make_table,
    training_kind,
    training_length,
    training_rows,
)
from snefy_ldl.apps.cli.entry import command
from snefy_ldl.apps.cli.tables import hidden_cells
from snefy_ldl.apps.table_rows import calibrated_levels, label_names, load_intervals


@command()
def info(model: Path, annotators: bool = False, out: str | None = None) -> None:
    """Describe a saved model: labels, features, training, versions; or its annotators.

    Args:
        annotators: Print each annotator's votes, agreement with others, accuracy per label, and the probability of
            guessing (spam score), the highest first.
        out: Table to write the annotators to, with 90 % intervals.
    """
    if annotators or out is not None:
        return _show_annotators(model, out)
    from snefy_ldl.persistence import read_config
    from snefy_ldl.prediction import innermost

    config = read_config(model)
    view = Table.grid(padding=(0, 2))
    view.add_column(style="bold")
    view.add_column()
    for name, text in _model_lines(model, config, innermost(load_model(model))).items():
        view.add_row(name, Text(str(text)))  # a label may be named [/]: no markup
    Console().print(view)


def _model_lines(folder: Path, config: dict[str, Any], model: Any) -> dict[str, str]:
    """What a saved model is."""
    from snefy_ldl.auto import Choice

    training, names = getattr(model, "training_", None), getattr(model, "feature_names_in_", None)
    written = f"written by snefy-ldl {config['library_version']} (format {config['format_version']})"
    known = training is not None and "labels" in training  # version 0.1 does not record them
    labels = label_names(model)
    lines = {
        "model": f"{type(model).__name__}, {written}",
        "labels": f"{len(labels)}: {shorten(labels)}" + (f" ({training_kind(model)})" if known else ""),
        "features": f"{model.n_features_in_}" + (", unnamed" if names is None else f": {shorten(list(names))}"),
        **_column_lines(None if model.columns_ is None else model.columns_.to_dict()),
    }
    if training is None:
        return lines
    net, guides = getattr(model, "net_", None), getattr(model, "guide_names_", ())
    if net is not None:
        of = f"{net.raw_exponents.shape[1]} neurons, {net.readout.shape[1]} readouts"
        lines |= {"network": f"{net.n_members} member(s), {of}", "scaling": model.scaling_}
        policy = model.zero_policy_
        lines["zeros"] = f"{policy.mode}, floor {policy.floor:.3g}"
    else:
        lines["network"] = f"{len(model.net_centres_)} member(s), {model.n_components} Gaussians each"
        lines["guides"] = shorten(guides) or "none"
    if hidden := hidden_cells(model):
        lines["below limits"] = hidden
    losses = [loss for loss in training["validation_loss"] if loss is not None]
    lines["trained on"] = f"{training_rows(training)}, {training_length(training)}, {training['seconds']:.1f} s"
    held = f"mean log likelihood {-sum(losses) / len(losses):.4f} ({training_kind(model)})" if losses else "none"
    choice = training.get("choice")
    lines |= {"rows held back": held} | ({} if choice is None else {"AutoLDL": str(Choice(**choice))})
    return lines | {"intervals": _calibration_line(folder, model)}


def _column_lines(columns: dict[str, Any] | None) -> dict[str, str]:
    """What each column of the table was taken for."""
    if columns is None or not columns["named"]:
        return {}
    words: dict[str, list[str]] = {}
    for column in columns["columns"]:
        name = column["name"]
        if column["kind"] == "number" and column["gaps"]:
            name += f" (empty: {column['fills'][0]:g})"
        elif column["kind"] == "category":
            name += f" ({shorten([*column['levels'], *(['other'] if column['other'] else [])], 6)})"
        elif column["kind"] == "left out":
            name += f" ({column['reason']})"
        words.setdefault(column["kind"], []).append(name)
    titles = {"number": "  numbers", "category": "  categories", "date": "  dates", "left out": "  left out"}
    return {title: shorten(words[kind]) for kind, title in titles.items() if kind in words}


def _calibration_line(folder: Path, model: Any) -> str:
    calibrated = load_intervals(folder, model)
    if calibrated is None:
        return "not calibrated (snefy-ldl conformalize)"
    return f"calibrated by {calibrated.method}, level {level_list(calibrated_levels(calibrated))}"


def _show_annotators(model: Path, out: str | None) -> None:
    """Print the annotators of a fit to single votes."""
    from snefy_ldl.datasets.table_files import TableSink

    people = getattr(load_model(model), "annotators_", None)
    if people is None:
        raise input_error(f"{model} was not fitted to single votes; fit with --votes long or --annotators.")
    frame = people.to_frame().sort_values("spam_score", ascending=False, kind="stable")
    if out is not None:
        with TableSink(out) as sink:
            sink.write(frame.reset_index())
    shown = ["spam_score", "agreement", *(f"accuracy_{label}" for label in people.label_names)]
    lines = [
        [str(name), f"{row['votes']:.0f}", *(f"{row[one]:.2f}" for one in shown)] for name, row in frame.iterrows()
    ]
    heads = ["annotator", "votes", "spam", "agreement", *people.label_names]
    title = f"{len(people)} annotators; accuracy per latent label (--out writes intervals and biases, too)"
    Console().print(make_table(heads, lines, ["annotator"], title=title))
