"""Many arrays as one compressed text, which a browser unpacks by itself."""

from __future__ import annotations

import base64
import gzip
from typing import Any

import numpy as np

__all__ = ["Pack"]

#: Types that JavaScript has arrays for.
_KINDS = {"float32": "f4", "float64": "f8", "uint8": "u1", "uint16": "u2", "int32": "i4"}


class Pack:
    """Arrays, one after the other.

    Example:
        >>> pack = Pack()
        >>> pack.add(np.zeros((2, 3), dtype=np.float32))
        {'kind': 'f4', 'shape': [2, 3], 'at': 0}
        >>> len(pack.text()) > 10
        True
    """

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, values: Any) -> dict[str, Any]:
        """Put an array behind the others.

        Args:
            values: any shape; integers become int32, or the smaller kind that they have.

        Returns:
            Where it is and what it is, for the script.
        """
        array = np.ascontiguousarray(values)
        if array.dtype.name not in _KINDS:
            array = array.astype(np.int32 if array.dtype.kind in "iu" else np.float64)
        content = array.astype(array.dtype.newbyteorder("<")).tobytes()
        entry = {"kind": _KINDS[array.dtype.name], "shape": list(array.shape), "at": self._size}
        padded = content + bytes(-len(content) % 8)  # typed arrays start at multiples of their numbers' size
        self._parts.append(padded)
        self._size += len(padded)
        return entry

    def add_numbers(self, values: Any) -> dict[str, Any]:
        """The same for numbers that may be kept in half the space where nothing is lost.

        Args:
            values: any shape.

        Returns:
            Where it is and what it is.

        Example:
            >>> Pack().add_numbers([0.5, 1.0])["kind"], Pack().add_numbers([0.1])["kind"]
            ('f4', 'f8')
        """
        array = np.asarray(values, dtype=np.float64)
        with np.errstate(over="ignore"):
            single = array.astype(np.float32)
        same = np.array_equal(single.astype(np.float64), array, equal_nan=True)
        return self.add(single if same else array)

    def text(self) -> str:
        """All of it: gzip, then base64."""
        return base64.b64encode(gzip.compress(b"".join(self._parts), 6, mtime=0)).decode("ascii")
