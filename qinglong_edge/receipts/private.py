"""Reach, read and move private files by descriptors, so that no link on the way leads elsewhere.

Everything is done below a state directory, inside `entered`, which is also where the system's
errors become ours. Only `FileNotFoundError` passes: what an absence means, its caller says.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from qinglong_edge.domain import limits
from qinglong_edge.domain.errors import DamagedError, UnavailableError

DIRECTORY_MODE = 0o700
FILE_MODE = 0o600
BYTES_MAX = limits.RECEIPT_BYTES_MAX
_OTHERS = 0o077
_STATE = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_DIRECTORY = _STATE | os.O_NOFOLLOW
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_UNAVAILABLE = {
    errno.ENOSPC: ("disk_full", "no space left on the device"),
    errno.EDQUOT: ("disk_full", "the quota of the user is used up"),
    errno.EROFS: ("read_only", "the file system cannot be written"),
}


class Look(NamedTuple):
    """Hold what a name leads to: its bytes, where it may be opened, and what is wrong with it."""

    data: bytes | None
    fault: str | None


class Identity(NamedTuple):
    """Hold what tells one file from the next of its name."""

    device: int
    inode: int
    size: int
    changed_ns: int


@contextmanager
def translated(*, absence: bool = True) -> Iterator[None]:
    """Turn the system's errors into `UnavailableError`; foreign text stays in `__cause__`.

    Without `absence` a `FileNotFoundError` passes.
    """
    try:
        yield
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not absence:
            raise
        known = _UNAVAILABLE.get(error.errno or 0, ("storage_error", "the storage failed"))
        raise UnavailableError(*known) from error


@contextmanager
def entered(state: str, *names: str, make: bool = False) -> Iterator[int]:
    """Yield the descriptor of a directory below the state, made and synced where it is missing.

    Raises `FileNotFoundError` where it is missing and not made, `DamagedError` where one of the
    directories is a link, no directory, somebody else's or open to others.
    """
    with translated():
        opened = [os.open(state, _STATE)]
    try:
        with translated(absence=make):
            for name in names:
                opened.append(_below(name, opened[-1], make=make))
        with translated(absence=False):
            yield opened[-1]
    finally:
        for descriptor in opened:
            os.close(descriptor)


def look(at: int, name: str) -> Look:
    """Read a private file that others must not have touched; raises `FileNotFoundError`.

    Judged twice: before it is opened, since opening a device does things, and on the descriptor.
    """
    fault = _closed_fault(os.stat(name, dir_fd=at, follow_symlinks=False))
    if fault is not None:
        return Look(None, fault)
    file = os.open(name, _READ, dir_fd=at)
    try:
        fault = _closed_fault(os.fstat(file))
        if fault is not None:
            return Look(None, fault)
        data = os.pread(file, BYTES_MAX + 1, 0)
        return Look(data, _open_fault(at, name, file, data))
    finally:
        os.close(file)


def temporaries(at: int, name: str) -> Iterator[str]:
    """Yield the names under which the file of a name was, or is being, written."""
    stem = temporary_stem(name)
    size = len(stem) + 32 + len(".tmp")
    with os.scandir(at) as found:
        for entry in found:
            if len(entry.name) == size and entry.name.startswith(stem):
                if entry.name.endswith(".tmp"):
                    yield entry.name


def temporary_stem(name: str) -> str:
    """Return how the temporary names of a file begin; 32 digits and `.tmp` follow."""
    return f".{name.removesuffix('.json')}."


def identity(at: int, name: str) -> Identity:
    """Return the identity of what has a name, a link itself; raises `FileNotFoundError`."""
    return identity_of(os.stat(name, dir_fd=at, follow_symlinks=False))


def identity_of(found: os.stat_result) -> Identity:
    """Return the identity in a status."""
    return Identity(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


def move(source: tuple[int, str], target: tuple[int, str], seen: Identity) -> bool:
    """Move what was seen, durably, to a name that says what it is; repeat it after a crash.

    Returns False, with the source kept and nothing replaced, where either name holds something
    else. What cannot be linked (a directory, a stranger's file) is renamed.
    """
    if identity(*source) != seen:
        return False
    ends = {"src_dir_fd": source[0], "dst_dir_fd": target[0]}
    try:
        os.link(source[1], target[1], follow_symlinks=False, **ends)
    except PermissionError:
        os.rename(source[1], target[1], **ends)
    except FileExistsError:
        if identity(*target) != seen:
            return False
        os.unlink(source[1], dir_fd=source[0])
    else:
        if identity(*target) != seen:  # it took the source's name meanwhile
            os.unlink(target[1], dir_fd=target[0])
            return False
        os.unlink(source[1], dir_fd=source[0])
    os.fsync(target[0])
    os.fsync(source[0])
    return True


def _below(name: str, at: int, *, make: bool) -> int:
    if make:
        with suppress(FileExistsError):
            os.mkdir(name, DIRECTORY_MODE, dir_fd=at)
            os.fsync(at)
    try:
        opened = os.open(name, _DIRECTORY, dir_fd=at)
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENOTDIR}:
            raise _damaged() from error
        raise
    found = os.fstat(opened)
    if found.st_uid != os.geteuid() or found.st_mode & _OTHERS:
        os.close(opened)
        raise _damaged()
    return opened


def _damaged() -> DamagedError:
    return DamagedError("receipts_damaged", "a directory of receipts or keys is not private")


def _closed_fault(found: os.stat_result) -> str | None:
    if not stat.S_ISREG(found.st_mode):
        return "not_regular"
    if found.st_uid != os.geteuid():
        return "foreign_owner"
    return "too_large" if found.st_size > BYTES_MAX else None


def _open_fault(at: int, name: str, file: int, data: bytes) -> str | None:
    found = os.fstat(file)
    if found.st_mode & _OTHERS:
        return "loose_mode"
    if len(data) != found.st_size:
        return "changed"
    if not data:
        return "empty"
    return _closed_fault(found) or (None if _once(at, name, file) else "linked")


def _once(at: int, name: str, file: int) -> bool:
    """Tell whether a file has one name, or a second one that its publication is about to drop."""
    found = os.fstat(file)
    for temporary in temporaries(at, name) if found.st_nlink == 2 else ():  # noqa: PLR2004
        with suppress(FileNotFoundError):
            if os.path.samestat(found, os.stat(temporary, dir_fd=at, follow_symlinks=False)):
                return True
    return os.fstat(file).st_nlink == 1
