"""A picture of which pixels move a prediction. Needs the extra ``plot``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from snefy_ldl.errors import InputError
from snefy_ldl.plots import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def pixel_gradients(image: Any, gradient: Any, title: str = "", ax: Axes | None = None) -> Axes:
    """An image in grey, and over it where it moves the prediction: blue raises it, orange lowers it.

    Args:
        image: (channels, height, width), 8-bit or between 0 and 1.
        gradient: of the same shape; a pixel's colour is the sum over its channels.
        ax: Axes to draw on.
        title: above the picture.

    Returns:
        The axes.

    Raises:
        InputError: the shapes differ.

    Example:
        >>> pixel_gradients(np.zeros((3, 8, 8)), np.ones((3, 8, 8)), title="share of green").get_title()
        'share of green'
    """
    pixels, slopes = np.asarray(image, dtype=np.float64), np.asarray(gradient, dtype=np.float64)
    if pixels.ndim != 3 or pixels.shape != slopes.shape:
        raise InputError(
            f"image and gradient must be (channels, height, width), alike; got {pixels.shape} and {slopes.shape}."
        )
    from matplotlib.colors import LinearSegmentedColormap  # the extra ``plot``

    grey = pixels.mean(0) / (255.0 if pixels.max() > 1.0 else 1.0)
    moved = slopes.sum(0)
    ax = style.axes(ax, (3.0, 3.2))
    ax.imshow(0.55 + 0.45 * grey, cmap="gray", vmin=0.0, vmax=1.0)
    colors = LinearSegmentedColormap.from_list("moved", [style.TRUTH, "#ffffff", style.MODEL])
    limit = max(float(np.quantile(np.abs(moved), 0.995)), 1e-300)
    ax.imshow(moved, cmap=colors, vmin=-limit, vmax=limit, alpha=np.clip(np.abs(moved) / limit, 0.0, 1.0))
    ax.set_xticks([])
    ax.set_yticks([])
    ax.set_title(title, fontsize=9, color=style.INK)
    return ax
