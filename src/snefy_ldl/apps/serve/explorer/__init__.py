"""A web page that explores a model: Python exports its numbers once, a script computes from them in the browser."""

from __future__ import annotations

from snefy_ldl.apps.serve.explorer.export import make_page
from snefy_ldl.apps.serve.explorer.page_rows import PageRows

__all__ = ["PageRows", "make_page"]
