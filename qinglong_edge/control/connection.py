"""One peer's connection: bytes in until a line is whole, bytes out until the answer is; no waiting.

The connection knows nothing of commands. `GoneError` means that nobody reads an answer any more.
"""

import enum
import select
import socket
import struct
from contextlib import suppress
from typing import TYPE_CHECKING

from qinglong_edge.control import protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

READ_BYTES = 16_384
LINES_AT_ONCE = 8  # half a megabyte, then the other peers have their turn
_CREDENTIALS = struct.Struct("=iII")  # pid, uid, gid


class Stage(enum.Enum):
    """Name what a connection waits for."""

    READING = "reading"
    QUEUED = "queued"
    RUNNING = "running"
    PARKED = "parked"
    WRITING = "writing"
    CLOSED = "closed"


class GoneError(Exception):
    """Say that the peer has hung up."""


def peer_uid(sock: socket.socket) -> int:
    """Return the uid that the peer had when it connected, by the kernel's word."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(raw)
    return int(uid)


class Connection:
    """Hold one accepted socket and how far its one request has come."""

    def __init__(self, sock: socket.socket, uid: int, deadline_ms: int) -> None:
        """Take over a socket that does not block."""
        self._sock = sock
        self.fd = sock.fileno()
        self.uid = uid
        self.stage = Stage.READING
        self.deadline_ms: int | None = deadline_ms
        self.unread_bytes = 0
        self._line = bytearray()
        self._lines: Iterator[bytes] = iter(())
        self._out = memoryview(b"")

    def mask(self) -> int:
        """Return what to poll for; the kernel tells of a hang-up besides."""
        if self.stage is Stage.READING:
            return select.POLLIN
        return select.POLLOUT if self.stage is Stage.WRITING else 0

    def read(self) -> bytes | None:
        """Return the line once it is whole; what follows it is not read.

        Raises `UsageError` for a line that is too long or has no end, `GoneError` for a peer that
        left before it said anything.
        """
        room = protocol.LINE_BYTES_MAX - len(self._line)
        try:
            data = self._sock.recv(min(READ_BYTES, room))
        except (BlockingIOError, InterruptedError):
            return None
        except OSError as error:
            raise GoneError from error
        if not data and not self._line:
            raise GoneError
        if not data:
            raise protocol.protocol_error("request: the line has no end")
        line, end, _ = data.partition(b"\n")
        self._line += line + end
        if end:
            whole = bytes(self._line)
            self._line = bytearray()
            return whole
        if len(self._line) >= protocol.LINE_BYTES_MAX:
            raise protocol.protocol_error(f"request: over {protocol.LINE_BYTES_MAX} bytes")
        return None

    def answer(self, exit_code: int, text: bytes, deadline_ms: int) -> None:
        """Begin to write an answer."""
        self.stage = Stage.WRITING
        self.deadline_ms = deadline_ms
        self.unread_bytes = len(text)
        self._lines = protocol.cut(exit_code, text)

    def write(self) -> bool:
        """Write what the peer takes now; tell whether the answer is whole. Raises `GoneError`."""
        for _ in range(LINES_AT_ONCE):
            if not self._out:
                line = next(self._lines, None)
                if line is None:
                    return True
                self._out = memoryview(line)
            try:
                sent = self._sock.send(self._out)
            except (BlockingIOError, InterruptedError):
                return False
            except OSError as error:
                raise GoneError from error
            self._out = self._out[sent:]
        return False

    def has_hung_up(self) -> bool:
        """Ask the kernel whether the peer has closed; one that only stopped sending has not."""
        poll = select.poll()
        poll.register(self.fd, 0)
        return any(event & (select.POLLHUP | select.POLLERR) for _, event in poll.poll(0))

    def close(self) -> None:
        """Close the socket; what was written stays readable for the peer."""
        self.stage = Stage.CLOSED
        self.unread_bytes = 0
        self._lines, self._out = iter(()), memoryview(b"")
        with suppress(OSError):
            self._sock.close()
