"""Workers of one machine that pass each other short messages through sockets, without a thread in between.

A step of a small net takes a few milliseconds. gloo hands every message from thread to thread and back, and where
processors sleep between two messages, as in virtual machines, waking those threads takes as long as the step itself. A
worker that writes to and reads from a socket by itself waits for its neighbours and for nobody else.
"""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, distributed

Word = TypeVar("Word")

__all__ = ["Neighbours", "meet_neighbours"]

#: Bytes that are written before as many are read: less than a socket holds, or all would write and nobody read.
PIECE_BYTES = 1 << 16
#: Bytes a socket should hold: a neighbour may be one piece ahead.
HELD_BYTES = 4 * PIECE_BYTES
#: Bytes that a worker sends at one step, at most; longer messages are better cut among workers, as gloo does.
MOST_BYTES = 1 << 21
#: Seconds without a word from a neighbour after which a worker gives up, as long as gloo's.
PATIENCE = 1800.0
#: Seconds in which neighbours must have met.
MEETING_SECONDS = 30.0


class Neighbours:
    """Workers of one machine, each connected with every other.

    Args:
        rank: number of this worker.
        sockets: connected to the other workers, in the order of their numbers.

    Attributes:
        n_workers: how many there are, with this one.

    Example:
        >>> from threading import Thread
        >>> ends = socket.socketpair()
        >>> workers = [Neighbours(rank, [end]) for rank, end in enumerate(ends)]
        >>> messages = [torch.ones(3), torch.zeros(3)]
        >>> threads = [Thread(target=worker.average, args=(message,)) for worker, message in zip(workers, messages)]
        >>> _ = [thread.start() for thread in threads], [thread.join() for thread in threads]
        >>> messages[0], messages[1]
        (tensor([0.5000, 0.5000, 0.5000]), tensor([0.5000, 0.5000, 0.5000]))
        >>> for worker in workers:
        ...     worker.close()
    """

    def __init__(self, rank: int, sockets: Sequence[socket.socket]) -> None:
        self._rank, self._sockets, self.n_workers = rank, list(sockets), len(sockets) + 1
        self._received: dict[tuple[torch.dtype, int], list[Tensor]] = {}
        for end in self._sockets:
            end.settimeout(PATIENCE)
            for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                end.setsockopt(socket.SOL_SOCKET, option, HELD_BYTES)

    def suits(self, message: Tensor) -> bool:
        """Whether a message may go this way.

        Args:
            message: a vector.

        Returns:
            Whether it lies in the machine's memory and is short.
        """
        return message.device.type == "cpu" and message.nbytes * len(self._sockets) <= MOST_BYTES

    @torch.no_grad()
    def average(self, message: Tensor) -> None:
        """Replace a message by its mean over all workers, with the same bits everywhere.

        Args:
            message: a vector (P,) that :meth:`suits`, as long everywhere.

        Raises:
            ConnectionError: a neighbour has gone.
            TimeoutError: a neighbour is silent.
        """
        key = (message.dtype, len(message))
        others = self._received.get(key)
        if others is None:
            others = self._received[key] = [torch.empty_like(message) for _ in self._sockets]
        written, read = _bytes_of(message), [_bytes_of(other) for other in others]
        for start in range(0, len(written), PIECE_BYTES):
            piece = slice(start, start + PIECE_BYTES)
            for end in self._sockets:
                end.sendall(written[piece])
            for end, place in zip(self._sockets, read):
                _fill(end, place[piece])
        # in the order of their numbers: sums of three and more depend on it
        parts = [*others[: self._rank], message, *others[self._rank :]]
        total = parts[0] + parts[1]
        for part in parts[2:]:
            total += part
        torch.div(total, self.n_workers, out=message)

    def close(self) -> None:
        """Hang up."""
        for end in self._sockets:
            end.close()


def _bytes_of(tensor: Tensor) -> memoryview:
    return tensor.view(torch.uint8).numpy().data


def _fill(end: socket.socket, place: memoryview) -> None:
    """Read as many bytes as the place holds."""
    count = 0
    while count < len(place):
        read = end.recv_into(place[count:])
        if not read:
            raise ConnectionError("a worker that trains the same model has gone")
        count += read


def meet_neighbours() -> Neighbours | None:
    """Connect with the other workers of torch's process group; each of them calls it at the same place.

    Returns:
        The neighbours, or None for everybody where not all are on one machine, or it has no such sockets.
    """
    rank, count = distributed.get_rank(), distributed.get_world_size()
    if count < 2:
        return None
    with tempfile.TemporaryDirectory(prefix="snefy-ldl-") as folder:  # which no other user can look into
        listener = _listen(str(Path(folder) / "worker"))
        paths = _tell_all("" if listener is None else str(Path(folder) / "worker"), count)
        ends = {other: _call(paths[other], rank) for other in range(rank)}
        everybody = all(_tell_all(listener is not None and None not in ends.values(), count))
        try:
            if everybody and listener is not None:  # every call went through: nobody waits for one that never comes
                for _ in range(rank + 1, count):
                    number, end = _answer(listener)
                    ends[number] = end
        finally:
            if listener is not None:
                listener.close()
    known = [end for _, end in sorted(ends.items()) if end is not None]
    if everybody:
        return Neighbours(rank, known)
    for end in known:
        end.close()
    return None


def _tell_all(word: Word, count: int) -> list[Word]:
    """What every worker says, in the order of their numbers."""
    words: list[Word] = [word] * count
    distributed.all_gather_object(words, word)
    return words


def _listen(path: str) -> socket.socket | None:
    """A socket that others may call; None where there are no such sockets, or the name is too long for one."""
    if not hasattr(socket, "AF_UNIX"):
        return None
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(path)
    except OSError:
        listener.close()
        return None
    listener.listen(128)
    listener.settimeout(MEETING_SECONDS)
    return listener


def _call(path: str, rank: int) -> socket.socket | None:
    """Connect with a worker and say who calls; None where it is on another machine."""
    if not path or not hasattr(socket, "AF_UNIX"):
        return None
    end = socket.socket(socket.AF_UNIX)
    end.settimeout(MEETING_SECONDS)
    try:
        end.connect(path)
        end.sendall(rank.to_bytes(4, "big"))
    except OSError:
        end.close()
        return None
    return end


def _answer(listener: socket.socket) -> tuple[int, socket.socket]:
    """The number of a worker that calls, and the connection with it."""
    end, _ = listener.accept()
    end.settimeout(MEETING_SECONDS)
    name = bytearray(4)
    _fill(end, memoryview(name))
    return int.from_bytes(name, "big"), end
