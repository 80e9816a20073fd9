"""Tables kept for the next question about the same components."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np

from snefy_ldl._internal.limits import KEPT_TABLE_NUMBERS, KEPT_TABLES


class TableCache:
    """Tables kept for the next question about the same components; many threads may ask at once."""

    def __init__(self) -> None:
        self._tables: OrderedDict[bytes, Any] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, make: Callable[[], Any], *parts: Any) -> Any:
        """The table of these arrays and numbers, made if it is not there.

        Args:
            make: makes it.
            parts: arrays, or anything with a ``repr``, that the table depends on.
        """
        digest = hashlib.blake2b(digest_size=16)
        for part in parts:
            digest.update(np.ascontiguousarray(part).tobytes() if isinstance(part, np.ndarray) else repr(part).encode())
        key = digest.digest()
        with self._lock:
            table = self._tables.get(key)
            if table is not None:
                self._tables.move_to_end(key)
                return table
        table = make()  # outside the lock: others go on meanwhile, and at worst the same table is made twice
        with self._lock:
            table = self._tables.setdefault(key, table)
            self._tables.move_to_end(key)
            while len(self._tables) > 1 and self._too_much():
                self._tables.popitem(last=False)
        return table

    def _too_much(self) -> bool:
        total = sum(table.n_numbers for table in self._tables.values())
        return len(self._tables) > KEPT_TABLES or total > 16 * KEPT_TABLE_NUMBERS
