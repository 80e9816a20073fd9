"""Mathematics as MathML, which browsers draw themselves: no script, no font and no network."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml


def draw_inline(writer: Any, node: nodes.Node) -> None:
    """Write mathematics inside a line."""
    writer.body.append(tex2mathml(node.astext(), as_block=False))
    raise nodes.SkipNode


def draw_block(writer: Any, node: nodes.Node) -> None:
    """Write mathematics on lines of its own."""
    writer.body.append(f'<div class="mathml">{tex2mathml(node.astext(), as_block=True)}</div>')
    raise nodes.SkipNode
