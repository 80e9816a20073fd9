"""What an optional package that is missing says: one sentence with the command that installs it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def extra(name: str, needs: str) -> Iterator[None]:
    """For the lines that import packages of an extra, or call what imports them.

    Args:
        name: of the extra in ``pyproject.toml``.
        needs: what needs which packages.

    Raises:
        ImportError: a package is missing.

    Example:
        >>> with extra("plot", "pictures need matplotlib"):
        ...     import no_such_package
        Traceback (most recent call last):
        ImportError: pictures need matplotlib: pip install 'snefy-ldl[plot]'
    """
    try:
        yield
    except ImportError:
        raise ImportError(f"{needs}: pip install 'snefy-ldl[{name}]'") from None
