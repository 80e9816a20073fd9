"""One page that computes a model's law in the browser: numbers exported once, a script that answers from them."""

from __future__ import annotations

from snefy_ldl.serve.explorer.export import make_page
from snefy_ldl.serve.explorer.rows import PageRows

__all__ = ["PageRows", "make_page"]
