"""A model card in Markdown, written from what is known about a model: data, measures, calibration, limits."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

__all__ = ["write_card"]

#: Names of labels or features that a card lists before it only counts them.
MOST_NAMES = 40

PAPER = (
    "Zhang, Tsuchida and Sejdinovic, *Label Distribution Learning using the Squared Neural Family on the Probability "
    "Simplex*, UAI 2025."
)


def write_card(
    facts: Mapping[str, Any],
    repo_id: str | None = None,
    data: str | None = None,
    measures: Mapping[str, float] | None = None,
    license: str | None = None,
) -> str:
    """The card of a model, as Markdown with the Hub's head of YAML.

    Args:
        facts: what :func:`snefy_ldl.serve.store.model_card` gathers.
        repo_id: where the model will be, "user/name"; None leaves a place to fill in.
        data: where its rows come from, in words; None says that nobody said.
        measures: figures by name, measured on rows that the fit did not see; None says that there are none.
        license: of the model, as the Hub spells it; None leaves it out.

    Returns:
        The text.

    Example:
        >>> facts = {"name": "soil", "labels": ["sand", "clay"], "features": ["rain"], "n_features": 1,
        ...          "library_version": "0.2.0", "trained_on": {"rows": 80, "epochs": 5, "device": "cpu"},
        ...          "measured": {"mean_log_likelihood_of_rows_held_back": 1.5, "how": "some rows"},
        ...          "intervals": {"calibrated_levels": [], "calibration_rows": None},
        ...          "law": {"members": 1, "neurons": 8}, "limits": ["Few rows."], "example_row": None}
        >>> print(write_card(facts).splitlines()[0])
        ---
    """
    place = repo_id or "USER/NAME"
    parts = [
        _head(license),
        f"# {place.split('/')[-1] if repo_id else facts['name']}",
        _what(facts),
        _use(facts, place),
    ]
    parts += ["## Data", data or "Whoever saved the model did not say where its rows come from."]
    trained = facts["trained_on"]
    parts.append(f"Trained on {trained['rows']:,} rows, {trained['epochs']} epochs.")
    parts += [_measures(facts["measured"], measures), _calibration(facts["intervals"])]
    parts += ["## Limits", "\n".join(f"- {limit}" for limit in facts["limits"])]
    parts += ["## Citation", PAPER]
    return "\n\n".join(parts) + "\n"


def _head(license: str | None) -> str:
    tags = ["label-distribution-learning", "compositional-data", "uncertainty", "tabular"]
    lines = ["---", "library_name: snefy-ldl", "pipeline_tag: tabular-regression"]
    lines += [f"license: {json.dumps(license)}"] if license else []
    return "\n".join([*lines, "tags:", *(f"- {tag}" for tag in tags), "---"])


def _listed(names: list[str]) -> str:
    shown = ", ".join(f"`{name}`" for name in names[:MOST_NAMES])
    return shown if len(names) <= MOST_NAMES else f"{shown} and {len(names) - MOST_NAMES} more"


def _what(facts: Mapping[str, Any]) -> str:
    law, names = facts["law"], facts["features"]
    features = "what its own network takes"
    if names is not None:
        features = _listed(names)
    elif facts["n_features"] is not None:
        features = f"{facts['n_features']} numbers, which had no names"
    members = "one network" if law["members"] == 1 else f"{law['members']} networks whose densities are averaged"
    return (
        "A conditional density over label distributions (shares that sum to one), by "
        f"`snefy-ldl` {facts['library_version']}: {members}, {law['neurons']} neurons each.\n\n"
        f"- **Labels**: {_listed(facts['labels'])}\n- **Features**: {features}"
    )


def _use(facts: Mapping[str, Any], place: str) -> str:
    row = "X"
    if isinstance(facts["example_row"], dict):
        row = f"pandas.DataFrame([{facts['example_row']!r}])"
    elif facts["example_row"] is not None:
        row = f"[{facts['example_row']!r}]"
    imports = ["import pandas"] if row.startswith("pandas") else []
    lines = [
        *imports,
        "from snefy_ldl.integrations.hub import from_pretrained",
        "",
        f'model = from_pretrained("{place}")',
        f"X = {row}" if row != "X" else "X = ...  # rows as the network takes them",
        "model.predict(X)           # expected shares",
        "model.predict_interval(X)  # exact central intervals of the model, 90 %",
        "model.predict_dist(X)      # the whole law",
    ]
    return "\n".join(["## Use", "", "```py", *lines, "```"])


def _measures(measured: Mapping[str, Any], measures: Mapping[str, float] | None) -> str:
    lines = ["## Measures", ""]
    if measures:
        lines += ["On rows that the fit did not see:", "", "| measure | value |", "|---|---|"]
        lines += [f"| {name} | {float(value):.4g} |" for name, value in measures.items()]
    else:
        lines.append("Whoever saved the model gave no measures on rows that the fit did not see.")
    held = measured["mean_log_likelihood_of_rows_held_back"]
    if held is not None:
        lines += ["", f"Mean log likelihood of rows held back: {held:.4g} ({measured['how']})."]
    return "\n".join(lines)


def _calibration(intervals: Mapping[str, Any]) -> str:
    levels = intervals["calibrated_levels"]
    words = "Its intervals are exact under the model and **not** calibrated on other rows."
    if levels:
        listed = ", ".join(f"{100 * level:g} %" for level in levels)
        words = (
            f"Conformal intervals at {listed}, calibrated on {intervals['calibration_rows']:,} rows, come with it "
            "(`HubModel.from_pretrained(...).intervals`): they cover new rows like those at the stated rate."
        )
    return f"## Calibration\n\n{words}"
