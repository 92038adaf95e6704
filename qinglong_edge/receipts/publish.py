"""Publish a file: room first, then bytes, sync, name, sync (contract 7.3, 24.2).

Level A writes a file that has no name; where the file system or a missing /proc forbids that, level
B writes one under a temporary name. Both get their final name by a link, which the kernel refuses
where the name is taken; a file system without links is refused, and nothing is ever renamed here.

The room is allocated, so that a disk that fills up meanwhile refuses starts, not ends. What a file
system that compresses or never overwrites in place has promised is less: it needs free space.
"""

import errno
import os
import stat
from contextlib import suppress

from qinglong_edge.domain.errors import RefusedError, UsageError
from qinglong_edge.ports.ambient import Entropy
from qinglong_edge.ports.probe import CrashPoint, Moment, Probe, Step, no_probe
from qinglong_edge.ports.receipts import Published
from qinglong_edge.receipts import private
from qinglong_edge.receipts.private import BYTES_MAX, FILE_MODE

_UNNAMED = os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC
_NAMED = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_UNNAMED = {errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT}
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.EXDEV, errno.ENOSYS}
_NO_ALLOCATION = {errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS}


class FileReserve:
    """Answer `ports.receipts.Reserve`; `temporary` is None at level A."""

    def __init__(self, at: int, name: str, *, entropy: Entropy, probe: Probe = no_probe) -> None:
        """Take room below an open directory, which may be closed afterwards; errors as the port."""
        self._name = name
        self._probe = probe
        self._file = -1
        self.temporary: str | None = None
        with private.translated():
            self._at = os.dup(at)
            try:
                self._open(entropy)
                _allocate(self._file, entropy)
            except BaseException:
                self.close()
                raise

    def publish(self, data: bytes, /) -> Published:
        """Write, sync, link, sync; the room is given back whatever happens."""
        if len(data) > BYTES_MAX:
            raise UsageError("too_large", f"a receipt has at most {BYTES_MAX} bytes")
        try:
            with private.translated():
                _overwrite(self._file, data)
                self._probe(CrashPoint(Moment.BEFORE, Step.PUBLISH))
                answer = Published.NEW if self._link() else self._compare(data)
                self._probe(CrashPoint(Moment.INSIDE, Step.PUBLISH))
                self._drop_temporary()
                os.fsync(self._at)
                self._probe(CrashPoint(Moment.AFTER, Step.PUBLISH))
                return answer
        finally:
            self.close()

    def close(self) -> None:
        """Give back what is still held."""
        if self._at >= 0:
            self._drop_temporary()
        for descriptor in (self._file, self._at):
            if descriptor >= 0:
                os.close(descriptor)
        self._file = self._at = -1

    def _open(self, entropy: Entropy) -> None:
        self._file = _open_unnamed(self._at)
        if self._file < 0:
            temporary = f"{private.temporary_stem(self._name)}{entropy(16).hex()}.tmp"
            self._file = os.open(temporary, _NAMED, FILE_MODE, dir_fd=self._at)
            self.temporary = temporary
        with suppress(PermissionError):
            os.fchmod(self._file, FILE_MODE)
        if stat.S_IMODE(os.fstat(self._file).st_mode) != FILE_MODE:
            raise RefusedError(
                "filesystem_without_modes", "this file system does not keep a file private"
            )

    def _link(self) -> bool:
        """Give the file its name; False where the name is taken."""
        source = self.temporary or _handle(self._file)
        ends = {"src_dir_fd": self._at, "dst_dir_fd": self._at}
        try:
            # From here on the run has ended, for everybody and for ever.
            os.link(source, self._name, follow_symlinks=self.temporary is None, **ends)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            raise RefusedError(
                "filesystem_without_links", "this file system has no usable hard links"
            ) from error
        return True

    def _compare(self, data: bytes) -> Published:
        same = private.look(self._at, self._name).data == data
        return Published.SAME if same else Published.OTHER

    def _drop_temporary(self) -> None:
        temporary, self.temporary = self.temporary, None
        if temporary is not None:
            with suppress(OSError):  # readers know it by its name
                os.unlink(temporary, dir_fd=self._at)


def _handle(file: int) -> str:
    return f"/proc/self/fd/{file}"


def _open_unnamed(at: int) -> int:
    """Return a file without a name that can be given one later, or -1."""
    try:
        file = os.open(".", _UNNAMED, FILE_MODE, dir_fd=at)
    except OSError as error:
        if error.errno not in _NO_UNNAMED:
            raise
        return -1
    if os.path.exists(_handle(file)):
        return file
    os.close(file)
    return -1


def _allocate(file: int, entropy: Entropy) -> None:
    try:
        os.posix_fallocate(file, 0, BYTES_MAX)
    except OSError as error:
        if error.errno not in _NO_ALLOCATION:
            raise
        _write(file, entropy(BYTES_MAX))  # what cannot be compressed takes its room


def _overwrite(file: int, data: bytes) -> None:
    _write(file, data)
    os.ftruncate(file, len(data))
    os.fsync(file)


def _write(file: int, data: bytes) -> None:
    done = 0
    while done < len(data):
        done += os.pwrite(file, data[done:], done)
