"""Pictures of how a fit went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from snefy_ldl.errors import InputError
from snefy_ldl.plots import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["learning_curve"]


def learning_curve(history: Sequence[Mapping[str, float]], ax: Axes | None = None) -> Axes:
    """Training and validation loss by epoch; the best epoch, whose weights are kept, is marked.

    Args:
        history: ``model.history_``.
        ax: Axes to draw on.

    Returns:
        The axes.

    Raises:
        InputError: the history is empty.

    Example:
        >>> learning_curve([{"epoch": 0, "loss": 2.0}, {"epoch": 1, "loss": 1.5}]).get_xlabel()
        'epoch'
    """
    if not history:
        raise InputError("the history is empty: fit the model first.")
    epochs = np.array([record["epoch"] for record in history]) + 1.0
    ax = style.axes(ax, (6.0, 3.2))
    ax.plot(epochs, [record["loss"] for record in history], color=style.QUIET, linewidth=1.6, label="training rows")
    if all("validation_loss" in record for record in history):
        validation = np.array([record["validation_loss"] for record in history])
        best = int(validation.argmin())
        ax.plot(epochs, validation, color=style.MODEL, linewidth=2.2, label="validation rows")
        ax.axvline(epochs[best], color=style.FAINT, linewidth=1.2, zorder=0)
        ax.scatter(
            epochs[best],
            validation[best],
            s=60,
            color="white",
            edgecolors=style.MODEL,
            linewidths=2.0,
            zorder=4,
            label=f"best epoch ({epochs[best]:.0f})",
        )
    ax.set_xlabel("epoch")
    ax.set_ylabel("loss: mean of −log density")
    ax.locator_params(axis="x", integer=True)
    style.quiet(ax, grid="y")
    style.legend(ax, loc="upper right")
    return ax
