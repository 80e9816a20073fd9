"""Separate processes, for tests that kill one or let several race.

They are forked from a server that has imported the library once: an import of torch and scikit-learn takes seconds.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from typing import Any

_context: Any = multiprocessing.get_context("forkserver" if os.name == "posix" else "spawn")
if os.name == "posix":
    _context.set_forkserver_preload(["snefy_ldl.snefy", "snefy_ldl.active", "snefy_ldl.datasets"])
#: Seconds to wait for a process at most.
PATIENCE = 100.0


class Child:
    """A process that runs ``function(channel, *words)``, a function of a module.

    Attributes:
        pid: of the process.
    """

    def __init__(self, function: Callable[..., None], *words: Any) -> None:
        self._channel, theirs = _context.Pipe()
        self._process = _context.Process(target=function, args=(theirs, *words))
        self._process.start()
        theirs.close()
        self.pid: int = self._process.pid

    def tell(self, message: Any) -> None:
        """Send a message."""
        self._channel.send(message)

    def hear(self) -> Any:
        """The next message of the process."""
        assert self._channel.poll(PATIENCE), f"nothing came within {PATIENCE:g} s"
        return self._channel.recv()

    @property
    def alive(self) -> bool:
        """Whether the process is still running."""
        return bool(self._process.is_alive())

    def kill(self) -> None:
        """End it by SIGKILL, wherever it is, and wait for that."""
        if self.alive:
            os.kill(self.pid, signal.SIGKILL)
        self._process.join(PATIENCE)

    def end(self) -> int:
        """Wait until it ends by itself; its exit code."""
        self._process.join(PATIENCE)
        assert self._process.exitcode is not None, f"it did not end within {PATIENCE:g} s"
        return int(self._process.exitcode)
