"""What a notebook shows of a distribution: means and 90 % intervals of a few rows."""

from __future__ import annotations

import html
from typing import Any

#: Rows and labels that are shown.
ROWS, LABELS = 5, 12


def describe_html(dist: Any, title: str) -> str:
    """A small table.

    Args:
        dist: a few rows of a distribution over shares, batch (N,).
        title: what the table is of.

    Returns:
        HTML.
    """
    names = [html.escape(str(name)) for name in (dist.label_names or range(dist.n_labels))][:LABELS]
    mean, ends = dist.mean.tolist(), dist.quantiles([0.05, 0.95]).tolist()
    rows = [
        "".join(f"<td>{m:.3f} <small>[{a:.3f}, {b:.3f}]</small></td>" for m, (a, b), _ in zip(*row, names))
        for row in zip(mean, ends)
    ]
    body = "".join(f"<tr><td>{number}</td>{cells}</tr>" for number, cells in enumerate(rows))
    head = "".join(f"<th>{name}</th>" for name in names)
    caption = f"{html.escape(title)}: mean and 90 % interval of each share"
    return f"<table><caption>{caption}</caption><tr><th>row</th>{head}</tr>{body}</table>"
