"""Workers of one machine: the mean of any message with the same bits everywhere, and nobody waits for who is gone."""

from __future__ import annotations

import itertools
import socket
import threading
from types import SimpleNamespace

import pytest
import torch

from snefy_ldl.training import exchange, neighbours
from snefy_ldl.training.exchange import ProcessGroup
from snefy_ldl.training.neighbours import MOST_BYTES, PIECE_BYTES, Neighbours, meet_neighbours

pytestmark = pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="this system has no sockets in files")


def together(work, count):
    """What each of so many threads answers, in their order; what one raises, its place holds."""
    answers = [None] * count

    def run(rank):
        try:
            answers[rank] = work(rank)
        except Exception as error:
            answers[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    return answers


def connect(count):
    ends = [{} for _ in range(count)]
    for first, second in itertools.combinations(range(count), 2):
        ends[first][second], ends[second][first] = socket.socketpair()
    return [Neighbours(rank, [end for _, end in sorted(ends[rank].items())]) for rank in range(count)]


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize(
    ("size", "dtype"),
    [(1, torch.float64), (9_999, torch.float32), (PIECE_BYTES // 2 + 1, torch.float64), (7, torch.bfloat16)],
)
def test_everybody_has_the_mean_with_the_same_bits(count, size, dtype):
    draw = torch.Generator().manual_seed(size)
    messages = [torch.randn(size, generator=draw).to(dtype) for _ in range(count)]
    expected = torch.stack([message.double() for message in messages]).mean(0)
    workers = connect(count)

    def work(rank):
        values = messages[rank].clone()
        for _ in range(3):  # places are used again, and a fast worker may be a message ahead
            values.copy_(messages[rank])
            workers[rank].average(values)
        workers[rank].close()
        return values

    answers = together(work, count)
    for answer in answers:
        assert torch.equal(answer, answers[0])
    rounding = {torch.float64: 1e-15, torch.float32: 1e-6, torch.bfloat16: 2e-2}[dtype]
    torch.testing.assert_close(answers[0].double(), expected, rtol=0, atol=4 * rounding)


def test_who_is_gone_is_told():
    first, second = connect(2)
    second.close()
    with pytest.raises(ConnectionError):
        first.average(torch.ones(3))
    first.close()


def test_long_messages_go_another_way():
    worker, other = connect(2)
    assert worker.suits(torch.ones(MOST_BYTES // 4))
    assert not worker.suits(torch.ones(MOST_BYTES // 4 + 1))
    assert not worker.suits(torch.ones(3, device="meta"))
    worker.close()
    other.close()


class Group:
    """Torch's process group, played by threads; it counts the messages that go through it."""

    def __init__(self, count, change=lambda rank, word: word):
        self.count, self.change, self.reduced = count, change, 0
        self.thread, self.words = threading.local(), [None] * count
        self.barrier = threading.Barrier(count, timeout=30)

    def get_rank(self):
        return self.thread.rank

    def get_world_size(self):
        return self.count

    def get_backend(self):
        return "gloo"

    def all_gather_object(self, places, word):
        self.words[self.thread.rank] = self.change(self.thread.rank, word)
        self.barrier.wait()
        places[:] = self.words
        self.barrier.wait()

    def all_reduce(self, message):
        self.words[self.thread.rank] = message.clone()
        self.barrier.wait()
        message.copy_(sum(self.words))
        self.barrier.wait()
        self.reduced += self.thread.rank == 0


def play(monkeypatch, group, work):
    monkeypatch.setattr(neighbours, "distributed", group)
    monkeypatch.setattr(exchange, "distributed", group)

    def run(rank):
        group.thread.rank = rank
        return work(rank)

    return together(run, group.count)


def average_some(rank):
    tensors = [torch.full((2, 3), float(rank)), torch.tensor(rank, dtype=torch.float64), torch.full((4,), 2.0 * rank)]
    group = ProcessGroup()
    for _ in range(2):
        copies = [tensor.clone() for tensor in tensors]
        group.average(copies)
    group.close()
    return copies


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("count", [2, 3])
def test_a_group_meets_where_all_are_on_one_machine(monkeypatch, count, apart):
    """A worker whose socket others cannot reach sends everybody to gloo."""

    def hide(rank, word):
        return word + "-elsewhere" if apart and rank == 0 and isinstance(word, str) else word

    group = Group(count, hide)
    mean = (count - 1) / 2
    for answer in play(monkeypatch, group, average_some):
        for tensor, value in zip(answer, (mean, mean, 2 * mean)):
            torch.testing.assert_close(tensor, torch.full_like(tensor, value))
    assert group.reduced == (4 if apart else 0)


def test_without_sockets_nobody_waits(monkeypatch):
    monkeypatch.setattr(neighbours, "socket", SimpleNamespace(socket=socket.socket))
    assert play(monkeypatch, Group(2), lambda rank: meet_neighbours()) == [None, None]


def test_a_name_too_long_for_a_socket_sends_everybody_to_gloo(monkeypatch, tmp_path):
    place = tmp_path / ("long" * 30)
    place.mkdir()
    monkeypatch.setattr(neighbours.tempfile, "tempdir", str(place))
    assert play(monkeypatch, Group(2), lambda rank: meet_neighbours()) == [None, None]
