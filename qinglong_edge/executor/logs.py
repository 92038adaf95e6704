"""Keep what actions and tasks printed: one file each, capped, private, never part of an outcome.

Output may hold secrets, so it goes here and nowhere else. A log is for people, not evidence: it is
not synced, and a full disk, a taken name or a foreign directory lose output, never an answer.
"""

import os
import stat
import threading
from contextlib import suppress
from typing import NamedTuple

from qinglong_edge.domain import ids, limits
from qinglong_edge.domain.errors import DamagedError, UnavailableError
from qinglong_edge.executor import private_file

MISSING = ".missing"  # after the name of a task's log
LAST_LINE_BYTES = 96  # kept free for the line that says how much is missing
_DIGITS_MAX = 20
_NAME_CHARS_MAX = limits.ID_CHARS_MAX + len(".log")
_PRIVATE_DIRECTORY = 0o700


class LogFaults(NamedTuple):
    """Count what logs lost since the start: logs not opened, failed writes, bytes dropped."""

    refused: int
    write_errors: int
    dropped_bytes: int


class LogPart(NamedTuple):
    """Hold a piece of a log; `truncated` tells that more bytes follow."""

    data: bytes
    truncated: bool


class ActionLogs:
    """Open the logs of one directory and count what they lost; safe from several threads."""

    def __init__(self, logs_dir: str, *, most: int = limits.ACTION_LOG_BYTES_MAX) -> None:
        """Keep the directory's path (made when the first log needs it) and the cap in bytes."""
        self._logs_dir = logs_dir
        self._most = most
        self._lock = threading.Lock()
        self._faults = LogFaults(0, 0, 0)

    def open(self, dispatch_id: str) -> "LogWriter":
        """Return the log of one dispatch; one that cannot be opened discards everything."""
        name = log_name(dispatch_id)
        try:
            directory = _open_directory(self._logs_dir, make=True)
            try:
                fd = private_file.create(name, dir_fd=directory)
            finally:
                os.close(directory)
        except OSError:
            self._count(LogFaults(1, 0, 0))
            fd = -1
        return LogWriter(fd, self._most, self)

    def faults(self) -> LogFaults:
        """Return the counters since the start."""
        with self._lock:
            return self._faults

    def _count(self, more: LogFaults) -> None:
        with self._lock:
            old = self._faults
            self._faults = LogFaults(*(was + new for was, new in zip(old, more, strict=True)))


class CappedFile:
    """Take the output of one process; keeps the first bytes up to the cap, counts the rest."""

    def __init__(self, fd: int, most: int) -> None:
        """Keep a descriptor, or -1 for a file that could not be opened."""
        self._fd = fd
        self._left = most
        self._dropped = 0
        self._errors = 0

    def write(self, data: bytes, /) -> None:
        """Keep what still fits; never raises. After a failed write nothing more is kept."""
        kept = 0
        if self._fd >= 0 and not self._errors:
            kept = self._put(data[: self._left])
        self._left -= kept
        self._dropped += len(data) - kept

    def _put(self, data: bytes) -> int:
        done = 0
        while done < len(data):
            try:
                done += os.write(self._fd, data[done:])
            except OSError:
                self._errors += 1
                break
        return done


class LogWriter(CappedFile):
    """Take the output of one action."""

    def __init__(self, fd: int, most: int, logs: ActionLogs) -> None:
        """Keep room for the last line, and whom to tell what was lost."""
        super().__init__(fd, max(0, most - LAST_LINE_BYTES))
        self._logs = logs

    def close(self) -> None:
        """Say in the last line how many bytes are missing, and close; twice does no harm."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with suppress(OSError):
                if self._dropped:
                    os.write(fd, b"\n[qinglong-edge: %d bytes dropped]\n" % self._dropped)
            with suppress(OSError):
                os.close(fd)
        self._logs._count(LogFaults(0, self._errors, self._dropped))  # noqa: SLF001 - one file
        self._errors = self._dropped = 0


class RunLog(CappedFile):
    """Take the output of one task, and say beside it how many bytes are missing.

    The file that says so is made first and is empty while nobody knows. At the end it goes where
    nothing is missing, and holds the number otherwise; a full disk leaves it empty. The log may use
    its whole cap.
    """

    def __init__(self, logs_dir: str, attempt_id: str, most: int) -> None:
        """Make both files; raises `OSError` where a name is taken, and `UsageError`."""
        self._name = log_name(attempt_id)
        self._directory = _open_directory(logs_dir, make=True)
        self._missing = -1
        try:
            self._missing = private_file.create(self._name + MISSING, dir_fd=self._directory)
            super().__init__(private_file.create(self._name, dir_fd=self._directory), most)
        except OSError:
            self._finish(keep=self._missing < 0)
            raise

    def close(self) -> int:
        """Finish both files and return how many bytes are missing."""
        os.close(self._fd)
        if self._dropped:
            with suppress(OSError):
                os.write(self._missing, b"%d" % self._dropped)
        self._finish(keep=self._dropped > 0)
        return self._dropped

    def discard(self) -> None:
        """Take both files away: nothing ran."""
        os.close(self._fd)
        with suppress(OSError):
            os.unlink(self._name, dir_fd=self._directory)
        self._finish(keep=False)

    def _finish(self, *, keep: bool) -> None:
        if not keep:
            with suppress(OSError):
                os.unlink(self._name + MISSING, dir_fd=self._directory)
        for fd in (self._missing, self._directory):
            if fd >= 0:
                os.close(fd)


def log_name(dispatch_id: str) -> str:
    """Return the file name of a dispatch's log; raises `UsageError` for what is no id."""
    return ids.check_ident(dispatch_id, "dispatch_id") + ".log"


def read_log(logs_dir: str, name: str, *, most: int, offset: int = 0) -> LogPart | None:
    """Read at most `most` bytes of a log from `offset`; None where there is no such log.

    Raises `UsageError` for a name that is none, `DamagedError` (`log_damaged`) for a link, anything
    but a regular file, or what belongs to somebody else, `UnavailableError` (`log_unreadable`)
    otherwise. Changes nothing; the action may still be writing.
    """
    ids.check_ident(name, "log", most=_NAME_CHARS_MAX)
    return _read(logs_dir, name, most=most, offset=offset)


def missing_bytes(logs_dir: str, attempt_id: str) -> int | None:
    """Return how many bytes a task's log does not hold; None where nobody knows (yet).

    Says nothing about whether there is a log. Raises like `read_log`.
    """
    part = _read(logs_dir, log_name(attempt_id) + MISSING, most=_DIGITS_MAX, offset=0)
    if part is None:
        return 0
    return int(part.data) if part.data.isdigit() else None


def _read(logs_dir: str, name: str, *, most: int, offset: int) -> LogPart | None:
    try:
        directory = _open_directory(logs_dir, make=False)
        try:
            data, size = private_file.read(
                name, _check_private, most, dir_fd=directory, offset=offset
            )
        finally:
            os.close(directory)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UnavailableError("log_unreadable", "the log cannot be read") from error
    return LogPart(data, offset + len(data) < size)


def _check_private(found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1 or found.st_uid != os.geteuid():
        raise DamagedError("log_damaged", "the log is not a private regular file")


def _open_directory(path: str, *, make: bool) -> int:
    """Return a descriptor of our own directory; raises `OSError` otherwise."""
    if make:
        with suppress(FileExistsError):
            os.mkdir(path, _PRIVATE_DIRECTORY)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(fd)
        if found.st_uid != os.geteuid():
            raise PermissionError("the directory belongs to somebody else")
        if make and stat.S_IMODE(found.st_mode) != _PRIVATE_DIRECTORY:
            os.fchmod(fd, _PRIVATE_DIRECTORY)
    except OSError:
        os.close(fd)
        raise
    return fd
