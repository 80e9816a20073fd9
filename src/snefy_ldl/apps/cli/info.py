"""The command ``info``: what a saved model is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from snefy_ldl._internal.text import shorten
from snefy_ldl.apps.cli import options as opt
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
from snefy_ldl.apps.rows import calibrated_levels


@command()
def info(model: Path, annotators: bool = False, out: str | None = None, as_json: opt.AsJson = False) -> None:
    """Describe a saved model: labels, features, training, versions; or the annotators it has learnt about.

    Args:
        annotators: Print each annotator's votes, agreement with others, accuracy per label, and the probability of
            guessing (spam score), the highest first.
        out: Table to write the annotators to, with 90 % intervals.
    """
    if annotators or out is not None:
        return _show_annotators(model, out, as_json)
    from snefy_ldl.persistence import read_config

    config = read_config(model)
    is_learner = config["kind"] == "Learner"
    if as_json:
        return typer.echo(json.dumps(config, indent=2, ensure_ascii=False))
    lines = _learner_lines(model, config) if is_learner else _model_lines(model, config)
    view = Table.grid(padding=(0, 2))
    view.add_column(style="bold")
    view.add_column()
    for name, text in lines.items():
        view.add_row(name, Text(str(text)))  # a label may be named [/]: no markup
    Console().print(view)
    if len(candidates := config.get("candidates", [])) > 1:
        cells = [
            ("" if one["log_likelihood"] is None else f"{one['log_likelihood']:.4f}", one["epochs"], one["seconds"])
            for one in candidates
        ]
        rows = [(one["name"], *map(str, few), one["outcome"]) for one, few in zip(candidates, cells)]
        heads = ("candidate", "log likelihood", "epochs", "seconds", "outcome")
        Console().print(make_table(heads, rows, ("candidate", "outcome"), box=None, padding=(0, 2, 0, 0)))


def _learner_lines(folder: Path, config: dict[str, Any]) -> dict[str, str]:
    """What a saved learner is, such as a LogRatioLDL."""
    from snefy_ldl.prediction import innermost

    model = innermost(load_model(folder))
    training, names = getattr(model, "training_", None), model.label_names_
    written = f"written by snefy-ldl {config['library_version']} (format {config['format_version']})"
    lines = {
        "model": f"{type(model).__name__}, {written}",
        "labels": str(model.n_labels_) if names is None else f"{len(names)}: {shorten(names)} (shares)",
        "features": str(model.n_features_in_),
        **_column_lines(None if model.columns_ is None else model.columns_.to_dict()),
    }
    if training is None:
        return lines
    loss = training["validation_loss"][0]
    lines |= {
        "members": f"{len(model.net_centres_)}, of {model.n_components} Gaussians each",
        "guides": shorten(model.guide_names_) or "none",
        "trained on": f"{training_rows(training)}, {training_length(training)}, {training['seconds']:.1f} s",
        "rows left out": "none" if loss is None else f"mean log likelihood {-loss:.4f} ({training_kind(model)})",
    }
    return lines | _choice_lines(training) | {"intervals": _calibration_line(folder)}


def _choice_lines(training: dict[str, Any]) -> dict[str, str]:
    """What AutoLDL chose, and why."""
    from snefy_ldl.auto import Choice

    choice = training.get("choice")
    return {} if choice is None else {"AutoLDL": str(Choice(**choice))}


def _model_lines(folder: Path, config: dict[str, Any]) -> dict[str, str]:
    """What a saved SnefyLDL is."""
    network, training = config["network"], config["training"]
    features = config["feature_names"]
    weights = folder / config["weights"]["file"]
    losses = [loss for loss in training["validation_loss"] if loss is not None]
    kind = f" ({training['labels']})" if "labels" in training else ""  # version 0.1 does not record it
    size = f"{weights.stat().st_size:,} bytes" if weights.is_file() else "MISSING"
    return {
        "model": f"SnefyLDL, written by snefy-ldl {config['library_version']} (format {config['format_version']})",
        "labels": f"{len(config['label_names'])}: {shorten(config['label_names'])}{kind}",
        "features": f"{config['n_features']}: {shorten(features)}" if features else f"{config['n_features']}, unnamed",
        **_column_lines(config.get("columns")),
        "network": f"{network['n_members']} member(s), {network['n_neurons']} neurons, {network['n_readouts']} readouts"
        + (", custom backbone" if network["custom_backbone"] else ""),
        "trained on": f"{training_rows(training)}, {training['epochs']} epochs, {training['seconds']:.1f} s, "
        f"{training['device']}"
        if training["rows"]
        else "a custom training loop (SnefyLDL.from_head)",
        "best epoch": ", ".join(str(epoch + 1) for epoch in training["best_epoch"] if epoch >= 0) or "last",
        "held-back rows": f"mean log likelihood {-sum(losses) / len(losses):.4f}{kind}" if losses else "none",
        **_choice_lines(training),
        "scaling": config["scaling"],
        "zeros": f"{config['zero_policy']['mode']}, floor {config['zero_policy']['floor']:.3g}",
        "weights": f"{weights.name}, {size}",
        "intervals": _calibration_line(folder),
    }


def _column_lines(columns: dict[str, Any] | None) -> dict[str, str]:
    """What each column of the table was taken for."""
    if columns is None or not columns["named"]:
        return {}
    words: dict[str, list[str]] = {}
    for column in columns["columns"]:
        name = column["name"]
        if column["kind"] == "number" and column["gaps"]:
            name += f" (empty: {column['fill']:g})"
        elif column["kind"] == "category":
            name += f" ({shorten([*column['levels'], *(['other'] if column['other'] else [])], 6)})"
        elif column["kind"] == "left out":
            name += f" ({column['reason']})"
        words.setdefault(column["kind"], []).append(name)
    titles = {"number": "  numbers", "category": "  categories", "date": "  dates", "left out": "  left out"}
    return {title: shorten(words[kind]) for kind, title in titles.items() if kind in words}


def _calibration_line(folder: Path) -> str:
    from snefy_ldl.persistence import load_calibration

    state = load_calibration(folder)
    if state is None:
        return "not calibrated (snefy-ldl conformalize)"
    return f"calibrated by {state['method']}, level {level_list(calibrated_levels(state))}"


def _show_annotators(model: Path, out: str | None, as_json: bool) -> None:
    """Print what a fit to single votes learnt about its annotators."""
    from snefy_ldl.datasets.table_files import TableSink

    people = getattr(load_model(model), "annotators_", None)
    if people is None:
        raise input_error(f"{model} was not fitted to single votes; fit with --votes long or --annotators.")
    frame = people.to_frame().sort_values("spam_score", ascending=False, kind="stable")
    if out is not None:
        with TableSink(out) as sink:
            sink.write(frame.reset_index())
    if as_json:
        return typer.echo(json.dumps(frame.reset_index().to_dict("records"), ensure_ascii=False))
    shown = ["spam_score", "agreement", *(f"accuracy_{label}" for label in people.label_names)]
    lines = [
        [str(name), f"{row['votes']:.0f}", *(f"{row[one]:.2f}" for one in shown)] for name, row in frame.iterrows()
    ]
    heads = ["annotator", "votes", "spam", "agreement", *people.label_names]
    title = f"{len(people)} annotators; accuracy per latent label (--out writes intervals and biases, too)"
    Console().print(make_table(heads, lines, ["annotator"], title=title))
