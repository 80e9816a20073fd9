"""A model folder as bytes that travel to workers: no disk is shared."""

from __future__ import annotations

import hashlib
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snefy_ldl.errors import ModelFileError

if TYPE_CHECKING:
    from snefy_ldl.estimator import SnefyLDL

__all__ = ["ShippedModel"]


@dataclass(frozen=True)
class ShippedModel:
    """The files of a saved model, its calibration among them.

    Args:
        files: content by name.
        device: where the model is put; ``"auto"`` is a GPU where the worker has one.

    Example:
        >>> from snefy_ldl import SnefyLDL
        >>> from snefy_ldl.datasets import make_city_districts
        >>> city = make_city_districts(n=60, random_state=0)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = SnefyLDL(epochs=1, random_state=0).fit(city.X, city.D).save(folder)
        ...     shipped = ShippedModel.read(Path(folder))
        >>> shipped.load()[0].predict(city.X[:2]).shape
        (2, 3)
    """

    files: tuple[tuple[str, bytes], ...]
    device: str = "auto"

    @classmethod
    def read(cls, folder: Path, device: str = "auto") -> ShippedModel:
        """Take the files of a folder.

        Args:
            folder: that ``save`` wrote.
            device: where workers put the model.

        Returns:
            The files.

        Raises:
            ModelFileError: there is no such folder.
        """
        if not folder.is_dir():
            raise ModelFileError(f"{folder} is no folder with a saved model.")
        paths = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
        return cls(tuple((path.name, path.read_bytes()) for path in paths), device)

    @property
    def digest(self) -> str:
        """Of all files."""
        digest = hashlib.sha256()
        for name, content in self.files:
            digest.update(f"{name} {len(content)} ".encode())
            digest.update(content)
        return digest.hexdigest()

    def load(self) -> tuple[SnefyLDL, dict[str, Any] | None]:
        """The model, and its calibration where it has one.

        Returns:
            A fitted model, and what :func:`snefy_ldl._internal.files.models.load_calibration` gives.

        Raises:
            ModelFileError: a file is missing or damaged, or the model needs a backbone, whose code is not saved.
        """
        from snefy_ldl._internal.files.models import load_calibration
        from snefy_ldl.estimator import SnefyLDL  # loads torch

        with tempfile.TemporaryDirectory() as place:
            self.write(Path(place))
            device = None if self.device == "auto" else self.device
            return SnefyLDL.load(place, device=device), load_calibration(Path(place))

    def write(self, folder: Path) -> None:
        """Put the files into a folder.

        Args:
            folder: made where it is missing.
        """
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in self.files:
            (folder / name).write_bytes(content)
