"""Ask the owner over its socket: one line there, one answer back, within a deadline."""

import select
import socket
import time
from collections.abc import Iterator

from qinglong_edge.commands.engine import Answer
from qinglong_edge.control import address, protocol
from qinglong_edge.control.protocol import Part, Request
from qinglong_edge.domain.errors import QinglongError, RefusedError, UnavailableError, UsageError
from qinglong_edge.ports.ambient import Clocks

CONNECT_MS = 5_000  # for an owner that is there but takes nobody: its loop turns in milliseconds
READ_BYTES = 65_536
_AGAIN_MS = 20  # between two tries at a full backlog


class OwnerUnreachableError(UnavailableError):
    """Say that nobody answered: not there, refused, or gone before the answer was whole.

    The command may have been carried out. The same line may be repeated, by whatever way the state
    is then reached: its ids tell a repeat from a second command.
    """

    def __init__(self) -> None:
        super().__init__("owner_unreachable", "nobody answers on the socket of the state")


def ask(path: str, request: Request, *, deadline_ms: int | None, clocks: Clocks) -> Answer:
    """Return the owner's answer to one request, or raise the error it answered with.

    `deadline_ms` bounds the whole call; None waits as long as the owner lives (for `cycle`).
    Raises besides: `OwnerUnreachableError`; `UsageError` (`protocol`) for a request that fits no
    line; `RefusedError` (`socket_not_allowed`, `not_a_socket`); `UnavailableError` `owner_slow` at
    the deadline, `protocol` for an answer that is none. After these two the command may have been
    carried out.
    """
    line = protocol.encode_request(request)
    now_ms = clocks.monotonic_ms()
    end_ms = None if deadline_ms is None else now_ms + deadline_ms
    until_ms = now_ms + CONNECT_MS
    with _connected(path, until_ms if end_ms is None else min(end_ms, until_ms), clocks) as sock:
        wait = _Wait(sock, end_ms, clocks)
        _send(sock, line, wait)
        try:
            result = protocol.decode_answer(_parts(sock, wait))
        except UsageError as error:
            raise _incomprehensible() from error
    if isinstance(result, QinglongError):
        raise result
    return result


class _Wait:
    """Wait for the socket, as long as there is time."""

    def __init__(self, sock: socket.socket, end_ms: int | None, clocks: Clocks) -> None:
        self._sock = sock
        self._end_ms = end_ms
        self._clocks = clocks

    def __call__(self, mask: int) -> None:
        left_ms = None if self._end_ms is None else self._end_ms - self._clocks.monotonic_ms()
        poll = select.poll()
        poll.register(self._sock, mask)
        if (left_ms is not None and left_ms <= 0) or not poll.poll(left_ms):
            raise UnavailableError(
                "owner_slow", "the owner has not answered in time; ask again to learn what it did"
            )


def _connected(path: str, until_ms: int, clocks: Clocks) -> socket.socket:
    while True:
        try:
            return address.connect(path)
        except BlockingIOError as error:
            if clocks.monotonic_ms() >= until_ms:
                raise OwnerUnreachableError from error
        except PermissionError as error:
            raise RefusedError(
                "socket_not_allowed", "this user may not talk to the owner of the state"
            ) from error
        except OSError as error:
            raise OwnerUnreachableError from error
        time.sleep(_AGAIN_MS / 1000)


def _send(sock: socket.socket, line: bytes, wait: _Wait) -> None:
    """Send the line; an owner that closed before it was whole may have answered all the same."""
    rest = memoryview(line)
    while rest:
        try:
            rest = rest[sock.send(rest) :]
        except BlockingIOError:
            wait(select.POLLOUT)
        except OSError:
            return


def _parts(sock: socket.socket, wait: _Wait) -> Iterator[Part]:
    total = 0
    for line in _lines(sock, wait):
        part = protocol.decode_part(line)
        yield part
        total += len(line)
        if not part.more:
            return
        if total > 2 * protocol.ANSWER_BYTES_MAX:  # a part may take twice its text in a line
            raise protocol.protocol_error("the answer has no end")


def _lines(sock: socket.socket, wait: _Wait) -> Iterator[bytes]:
    held = bytearray()
    while True:
        end = held.find(b"\n") + 1
        if end:
            yield bytes(held[:end])
            del held[:end]
            continue
        if len(held) >= protocol.LINE_BYTES_MAX:
            raise protocol.protocol_error("a line of the answer has no end")
        held += _received(sock, wait)


def _received(sock: socket.socket, wait: _Wait) -> bytes:
    while True:
        try:
            data = sock.recv(READ_BYTES)
        except BlockingIOError:
            wait(select.POLLIN)
            continue
        except OSError as error:
            raise OwnerUnreachableError from error
        if not data:
            raise OwnerUnreachableError
        return data


def _incomprehensible() -> UnavailableError:
    """Answer for an owner of another version: it was asked, and what it says cannot be read."""
    failure = UnavailableError(
        protocol.CODE,
        "the owner's answer cannot be read; it may be of another version: start it again",
    )
    failure.retryable = False
    return failure
