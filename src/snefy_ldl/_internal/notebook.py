"""What a notebook shows of a distribution: means and 90 % intervals, a triangle for three labels and bars for more."""

from __future__ import annotations

import html
from typing import Any

import torch

#: Rows that are shown, draws of the first of them, and labels of a row.
ROWS, DRAWS, LABELS = 5, 300, 12


def describe_html(dist: Any, title: str) -> str:
    """A small table, and a picture of the first row.

    Args:
        dist: a few rows of a distribution over shares, batch (N,).
        title: what the table is of.

    Returns:
        HTML with an inline picture; no script.
    """
    names = [html.escape(str(name)) for name in (dist.label_names or range(dist.n_labels))]
    mean, ends = dist.mean, dist.quantiles([0.05, 0.95])
    shown = range(min(dist.n_labels, LABELS))
    head = "".join(f"<th>{names[r]}</th>" for r in shown)
    body = "".join(
        f"<tr><td>{row}</td>" + "".join(_cell(mean[row, r], ends[row, r]) for r in shown) + "</tr>"
        for row in range(len(mean))
    )
    if dist.n_labels == 3:
        picture = _triangle(dist.sample((DRAWS,), torch.Generator(dist.device).manual_seed(0))[:, 0], names)
    else:
        picture = _bars(mean[0], ends[0], names)
    caption = f"{html.escape(title)}: mean and 90 % interval of each share; the picture shows row 0"
    return f"<div><table><caption>{caption}</caption><tr><th>row</th>{head}</tr>{body}</table>{picture}</div>"


def _cell(mean: Any, ends: Any) -> str:
    return f"<td>{mean:.3f} <small>[{ends[0]:.3f}, {ends[1]:.3f}]</small></td>"


def _triangle(draws: Any, names: list[str]) -> str:
    x, y = 20 + 180 * (draws[:, 1] + 0.5 * draws[:, 2]), 180 - 156 * draws[:, 2]
    dots = "".join(f'<circle cx="{a:.1f}" cy="{b:.1f}" r="1.6" fill="#0072B2" opacity="0.45"/>' for a, b in zip(x, y))
    corners = zip(((4, 196, "start"), (216, 196, "end"), (110, 18, "middle")), names)
    words = "".join(
        f'<text x="{a}" y="{b}" font-size="11" text-anchor="{c}">{name}</text>' for (a, b, c), name in corners
    )
    return (
        '<svg width="220" height="200" role="img" fill="currentColor"><path d="M20 180 L200 180 L110 24 Z" fill="none" '
        f'stroke="currentColor"/>{dots}{words}</svg>'
    )


def _bars(mean: Any, ends: Any, names: list[str]) -> str:
    lines = []
    for r, name in enumerate(names[:LABELS]):
        top, (low, high) = 6 + 18 * r, (90 + 200 * float(end) for end in ends[r])
        lines.append(
            f'<text x="84" y="{top + 9}" font-size="11" text-anchor="end">{name[:14]}</text>'
            f'<rect x="90" y="{top}" width="{200 * float(mean[r]):.1f}" height="11" fill="#56B4E9"/>'
            f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{top + 5.5}" y2="{top + 5.5}" stroke="currentColor"/>'
        )
    return f'<svg width="300" height="{12 + 18 * len(lines)}" role="img" fill="currentColor">{"".join(lines)}</svg>'
