"""What the command line shows of a model: its scores on a table, and what it is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

if TYPE_CHECKING:
    from snefy_ldl.datasets.named import Dataset
    from snefy_ldl.estimator import SnefyLDL


def score_table(report: dict[str, Any], model: Path, table: Path) -> Table:
    """The scores for people to read."""
    view = Table(title=f"{model} on {table}: {report['rows']:,} rows", header_style="bold", title_style="bold")
    view.add_column("measure")
    view.add_column("value", justify="right")
    view.add_column("± error", justify="right")
    view.add_column("better")
    level = report["interval"]["level"]
    lines = [(name.replace("_", " "), entry) for name, entry in report["metrics"].items()]
    lines.append(("mean log likelihood", report["log_likelihood"]))
    if report["interval"]["coverage"] is not None:
        lines.append((f"coverage of {level:.0%} intervals", report["interval"]["coverage"]))
    lines.append((f"width of {level:.0%} intervals", report["interval"]["width"]))
    for name, entry in lines:
        error = "" if entry["std_error"] is None else f"{entry['std_error']:.4f}"
        view.add_row(name, f"{entry['value']:.4f}", error, entry["better"])
    if report["interval"]["coverage"] is None:
        view.caption = "No coverage: the intervals are about the shares behind the votes, which votes do not show."
    return view


def info_table(folder: Path, config: dict[str, Any]) -> Table:
    """What a saved model is."""
    from snefy_ldl._text import shorten

    network, training = config["network"], config["training"]
    features = config["feature_names"]
    weights = folder / config["weights"]["file"]
    losses = [loss for loss in training["validation_loss"] if loss is not None]
    size = f"{weights.stat().st_size:,} bytes" if weights.is_file() else "MISSING"
    lines = {
        "model": f"SnefyLDL, written by snefy-ldl {config['library_version']} (format {config['format_version']})",
        "labels": f"{len(config['label_names'])}: {shorten(config['label_names'])}",
        "features": f"{config['n_features']}: {shorten(features)}" if features else f"{config['n_features']}, unnamed",
        "network": f"{network['n_members']} member(s), {network['n_neurons']} neurons, {network['n_readouts']} readouts"
        + (", custom backbone" if network["custom_backbone"] else ""),
        "trained on": f"{training['rows']:,} rows, {training['epochs']} epochs, {training['seconds']:.1f} s, "
        f"{training['device']}",
        "best epoch": ", ".join(str(epoch + 1) for epoch in training["best_epoch"] if epoch >= 0) or "last",
        "held-back rows": f"mean log likelihood {-sum(losses) / len(losses):.4f}" if losses else "none",
        "scaling": config["scaling"],
        "zeros": f"{config['zero_policy']['mode']}, floor {config['zero_policy']['floor']:.3g}",
        "weights": f"{weights.name}, {size}",
        "intervals": _calibration_line(folder),
    }
    view = Table.grid(padding=(0, 2))
    view.add_column(style="bold")
    view.add_column()
    for name, text in lines.items():
        view.add_row(name, str(text))
    return view


def _calibration_line(folder: Path) -> str:
    from snefy_ldl.files.models import load_calibration

    state = load_calibration(folder)
    if state is None:
        return "the model's own, not calibrated (snefy-ldl conformalize)"
    levels = state["confidence_level"] if isinstance(state["confidence_level"], list) else [state["confidence_level"]]
    return f"calibrated by {state['method']}, level {', '.join(f'{level:g}' for level in levels)}"


def scores(model: SnefyLDL, data: Dataset, level: float) -> dict[str, Any]:
    """Six measures, likelihood, coverage and width, each with its standard error over rows."""
    import numpy as np

    from snefy_ldl import metrics

    predicted = np.asarray(model.predict(data.X))
    ends = model.predict_interval(data.X, level)
    votes = data.counts is not None
    densities = model.log_prob(data.X, counts=data.counts) if votes else model.log_prob(data.X, data.D)

    def entry(pair: tuple[float, float], better: str) -> dict[str, Any]:
        value, error = (float(number) for number in pair)
        return {"value": value, "std_error": error if np.isfinite(error) else None, "better": better}

    def measure(function: Any, better: str, *arrays: Any) -> dict[str, Any]:
        return entry(function(*arrays, return_std_error=True), better)

    spread = densities.std(ddof=1) / np.sqrt(len(densities)) if len(densities) > 1 else np.inf
    return {
        "rows": len(data.D),
        "metrics": {
            name: measure(getattr(metrics, name), "higher" if higher else "lower", data.D, predicted)
            for name, higher in metrics.HIGHER_IS_BETTER.items()
        },
        "log_likelihood": entry((densities.mean(), spread), "higher"),
        "interval": {
            "level": level,
            "coverage": None if votes else measure(metrics.coverage, f"near {level:g}", data.D, ends),
            "width": measure(metrics.interval_width, "lower", ends),
        },
    }
