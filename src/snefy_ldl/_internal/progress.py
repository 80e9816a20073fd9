"""One progress bar for the library: a bar on a terminal, and a plain line now and then where output goes to a file."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

#: Seconds between two lines where no bar can be drawn.
LINE_SECONDS = 10.0


class Progress:
    """How far some work has come, on stderr, so that what a program prints stays clean. Use it in a ``with`` block.

    Args:
        what: the work, one word.
        total: its size, in any units; None if unknown.
        show: whether to show anything at all.
        completed: how much is done already.

    Example:
        >>> with Progress("fit", total=3, show=False) as progress:
        ...     progress.update(2, "loss 0.5")
        ...     progress.advance()
        ...     progress.completed
        3
    """

    def __init__(self, what: str, total: int | None, *, show: bool = True, completed: int = 0) -> None:
        self.what, self.total, self.completed, self.note = what, total, completed, ""
        self._show, self._bar, self._written = show, None, ""
        self._started = self._last_line = time.monotonic()
        if not show:
            return
        self._console = Console(stderr=True)
        if self._console.is_terminal:
            columns = "{task.description}", BarColumn(), MofNCompleteColumn(), "{task.fields[note]}"
            self._bar = RichProgress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=self._console)
            self._task = self._bar.add_task(what, total=total, completed=completed, note="")

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif self._show:
            self._write_line()

    def update(self, completed: int, note: str = "") -> None:
        """Show how much is done in all, and a few words about it."""
        self.completed, self.note = completed, note
        if self._bar is not None:
            self._bar.update(self._task, completed=completed, note=note)
        elif self._show and time.monotonic() - self._last_line >= LINE_SECONDS:
            self._write_line()

    def extend(self, amount: int) -> None:
        """Raise the amount of work."""
        self.total = (self.total or 0) + amount
        if self._bar is not None:
            self._bar.update(self._task, total=self.total)

    def advance(self, amount: int = 1) -> None:
        """Add to the work that is done."""
        self.update(self.completed + amount, self.note)

    def _write_line(self) -> None:
        self._last_line = time.monotonic()
        whole = "" if self.total is None else f"/{self.total}"
        line = f"{self.what} {self.completed}{whole} {self.note}".rstrip()
        if line == self._written:  # the end of a work whose last step has just been shown
            return
        self._written = line
        self._console.print(f"{line} {self._last_line - self._started:.0f} s", highlight=False, soft_wrap=True)
