"""Mathematics as MathML, which browsers render without scripts, fonts or downloads."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml


def draw_inline(writer: Any, node: nodes.Node) -> None:
    """Write inline mathematics."""
    writer.body.append(tex2mathml(node.astext(), as_block=False))
    raise nodes.SkipNode


def draw_block(writer: Any, node: nodes.Node) -> None:
    """Write displayed mathematics."""
    writer.body.append(f'<div class="mathml">{tex2mathml(node.astext(), as_block=True)}</div>')
    raise nodes.SkipNode
