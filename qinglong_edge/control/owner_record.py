"""What a listening owner writes into the lock file, so that commands find its socket.

One line of JSON, written through the descriptor that holds the lock and cleared at the end. A
killed owner leaves its line behind: a record is believed only while its very process lives.
"""

import errno
import os
import stat
from typing import NamedTuple

from qinglong_edge.domain import ids, limits
from qinglong_edge.domain.canonical import Fields, canonical_bytes, parse_object
from qinglong_edge.domain.errors import UnavailableError, UsageError
from qinglong_edge.executor.process_identity import read_stat
from qinglong_edge.ports.ambient import Clocks
from qinglong_edge.storage.filesystem import unavailable
from qinglong_edge.storage.sqlite.owner import LOCK

RECORD_BYTES_MAX = 4_096
PID_MAX = 2**31 - 1

_NOTHING = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO})
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class OwnerRecord(NamedTuple):
    """Hold which process listens, and where: a path, from the state directory if relative."""

    pid: int
    boot_id: str
    start_ticks: int
    socket: str


def this_process(socket: str, clocks: Clocks) -> OwnerRecord:
    """Return the record of the calling process; raises `UnavailableError` without `/proc`."""
    pid = os.getpid()
    start_ticks = _start_ticks(pid)
    if start_ticks is None:
        raise UnavailableError("proc_missing", "the process table cannot be read")
    return OwnerRecord(pid, clocks.read().boot_id, start_ticks, socket)


def write(descriptor: int, record: OwnerRecord) -> None:
    """Write the record through the descriptor that holds the lock.

    Raises `UsageError` for a socket whose path no record can hold, and `UnavailableError`.
    """
    try:
        line = canonical_bytes(record._asdict()) + b"\n"
    except UnicodeEncodeError as error:
        raise _unrecordable() from error
    if len(line) > RECORD_BYTES_MAX:
        raise _unrecordable()
    _replace(descriptor, line)


def clear(descriptor: int) -> None:
    """Take the record away: nobody listens any more."""
    _replace(descriptor, b"")


def read(state_dir: str, clocks: Clocks) -> OwnerRecord | None:
    """Return the record of an owner that lives, its socket as a path to connect to.

    None where the file is missing, empty or malformed, or its process is gone. A reader may meet a
    line that is just being written: it looks again. Raises `UnavailableError`.
    """
    try:
        data = _content(os.path.join(state_dir, LOCK))
    except OSError as error:
        raise unavailable(error) from error
    record = _parsed(data)
    if record is None or not _lives(record, clocks):
        return None
    return record._replace(socket=os.path.join(state_dir, record.socket))


def _content(path: str) -> bytes:
    try:
        descriptor = os.open(path, _READ)
    except OSError as error:
        if error.errno in _NOTHING:
            return b""
        raise
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return b""
        return os.pread(descriptor, RECORD_BYTES_MAX + 1, 0)
    finally:
        os.close(descriptor)


def _parsed(data: bytes) -> OwnerRecord | None:
    if not data or data.find(b"\n") != len(data) - 1:
        return None
    try:
        fields = Fields(parse_object(data, "owner", most=RECORD_BYTES_MAX), "owner")
        pid = ids.check_int(fields.take("pid"), "pid", least=1, most=PID_MAX)
        boot_id = ids.check_ident(fields.take("boot_id"), "boot_id")
        start_ticks = ids.check_int(
            fields.take("start_ticks"), "start_ticks", least=0, most=limits.SAFE_INTEGER_MAX
        )
        socket = fields.take("socket")
        fields.done()
    except UsageError:
        return None
    if not isinstance(socket, str) or not socket or "\0" in socket:
        return None
    return OwnerRecord(pid, boot_id, start_ticks, socket)


def _lives(record: OwnerRecord, clocks: Clocks) -> bool:
    """Compare boot and start: a number alone is soon another process's.

    Where this process can read no boot id, the owner drew one for itself, and its start decides.
    """
    try:
        boot_id = clocks.read().boot_id
    except UnavailableError:
        boot_id = record.boot_id
    return boot_id == record.boot_id and _start_ticks(record.pid) == record.start_ticks


def _start_ticks(pid: int) -> int | None:
    """Return when a living process began, in ticks of the kernel since the boot, or None."""
    try:
        found = read_stat(pid)
    except OSError:
        return None
    return None if found.dead else found.start_ticks


def _replace(descriptor: int, line: bytes) -> None:
    try:
        at = 0
        while at < len(line):
            at += os.pwrite(descriptor, line[at:], at)
        os.ftruncate(descriptor, len(line))
    except OSError as error:
        raise unavailable(error) from error


def _unrecordable() -> UsageError:
    return UsageError(
        "invalid_socket", f"the socket's path must be UTF-8 and fit into {RECORD_BYTES_MAX} bytes"
    )
