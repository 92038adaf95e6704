"""One connection: a line in pieces, an answer in pieces, and a peer that leaves."""

import select
import socket

import pytest

from qinglong_edge.control.connection import Connection, GoneError, Stage
from qinglong_edge.control.protocol import LINE_BYTES_MAX
from qinglong_edge.domain.errors import UsageError


def pair() -> tuple[Connection, socket.socket]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    return Connection(ours, 1, 5), theirs


def drain(connection: Connection) -> bytes | None:
    """Read until there is a line or nothing more."""
    for _ in range(10):
        line = connection.read()
        if line is not None:
            return line
    return None


def test_a_line_is_put_together() -> None:
    connection, peer = pair()
    assert connection.mask() == select.POLLIN
    for piece in (b"{", b"}"):
        peer.sendall(piece)
        assert connection.read() is None
    peer.sendall(b"\nmore")
    assert connection.read() == b"{}\n"
    connection.close()
    peer.close()


@pytest.mark.parametrize("over", [0, 1])
def test_a_line_has_a_bound_exactly(over: int) -> None:
    connection, peer = pair()
    peer.sendall(b"x" * (LINE_BYTES_MAX - 1 + over) + b"\n")
    if over:
        with pytest.raises(UsageError):
            drain(connection)
    else:
        line = drain(connection)
        assert line is not None
        assert len(line) == LINE_BYTES_MAX
    connection.close()
    peer.close()


def test_a_line_without_an_end_and_a_peer_without_a_line() -> None:
    connection, peer = pair()
    peer.sendall(b"{")
    peer.shutdown(socket.SHUT_WR)
    assert connection.read() is None
    with pytest.raises(UsageError):
        connection.read()
    assert not connection.has_hung_up()
    peer.close()
    assert connection.has_hung_up()
    connection.close()
    silent, peer = pair()
    peer.close()
    with pytest.raises(GoneError):
        silent.read()
    silent.close()


def test_an_answer_waits_for_its_reader() -> None:
    connection, peer = pair()
    text = b'{"a":"' + b"b" * 3_000_000 + b'"}'
    connection.answer(0, text, 9)
    assert (connection.stage, connection.mask()) == (Stage.WRITING, select.POLLOUT)
    assert (connection.deadline_ms, connection.unread_bytes) == (9, len(text))
    peer.setblocking(False)
    got, whole = b"", False
    while not whole:
        whole = connection.write()
        while select.select([peer], [], [], 0)[0]:
            got += peer.recv(65_536)
    assert got.count(b"\n") == -(-len(text) // 49_152)
    connection.answer(0, text, 9)
    peer.close()
    with pytest.raises(GoneError):
        connection.write()
    connection.close()
    assert (connection.stage, connection.unread_bytes) == (Stage.CLOSED, 0)
