"""Settings of matplotlib for the pictures of the gallery."""

from __future__ import annotations

from typing import Any

from matplotlib import rcParams


def enlarge_text(gallery: Any, program: str) -> None:
    """Draw pictures with large text, so that it can be read in thumbnails."""
    rcParams.update({"font.size": 12, "xtick.labelsize": 11, "ytick.labelsize": 11, "savefig.dpi": 130})
